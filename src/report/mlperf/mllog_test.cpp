#include "report/mlperf/mllog.h"

#include <cmath>

#include <gtest/gtest.h>

#include "base/disk_test_util.h"
#include "base/file.h"
#include "base/test_util.h"
#include "report/mlperf/mllog_reader.h"
#include "report/mlperf/mllog_test_util.h"

namespace segue::report {
namespace {

using base::contains;
using Mode = MllogWriter::Mode;

TEST(MllogText, IsWhatPythonWrites) {
  EXPECT_EQ(mllog_text(0.0), "0.0");
  EXPECT_EQ(mllog_text(-0.0), "-0.0");
  EXPECT_EQ(mllog_text(1.0), "1.0");
  EXPECT_EQ(mllog_text(1e-6), "1e-06");
  EXPECT_EQ(mllog_text(1.5e-8), "1.5e-08");
  EXPECT_EQ(mllog_text(0.0001), "0.0001");
  EXPECT_EQ(mllog_text(0.00012), "0.00012");
  EXPECT_EQ(mllog_text(0.95), "0.95");
  EXPECT_EQ(mllog_text(-12.25), "-12.25");
  EXPECT_EQ(mllog_text(123456.0), "123456.0");
  EXPECT_EQ(mllog_text(1e15), "1000000000000000.0");
  EXPECT_EQ(mllog_text(1e16), "1e+16");
  EXPECT_EQ(mllog_text(1e300), "1e+300");
  EXPECT_EQ(mllog_text(0.02503187406471541), "0.02503187406471541");
  EXPECT_EQ(mllog_text(std::nan("")), "null");
  EXPECT_EQ(mllog_text(INFINITY), "null");
  EXPECT_EQ(mllog_text({}), "null");
  EXPECT_EQ(mllog_text(true), "true");
  EXPECT_EQ(mllog_text(int64_t{-3}), "-3");
  EXPECT_EQ(mllog_text(std::string("a\"\n\xC3\xA9\xF0\x9F\x98\x80")),
            R"("a\"\n\u00e9\ud83d\ude00")");
}

TEST(MllogWriter, WritesTheLineOfMlperf) {
  const std::string path = base::temp_path("log");
  MllogWriter writer(path, Mode::kTruncate);
  const int line = __LINE__ + 1;
  writer.start("init_start");
  writer.event("seed", int64_t{5}, {{"a", 0.5}, {"lineno", int64_t{7}}});
  writer.end("init_stop");
  const auto lines = lines_of(base::read_file(path));
  ASSERT_EQ(lines.size(), 3u);
  const size_t time = lines[0].find("1");  // milliseconds since 1970 start with it until 2033
  const std::string ms = lines[0].substr(time, 13);
  EXPECT_EQ(
      lines[0],
      ":::MLLOG {\"namespace\": \"\", \"time_ms\": " + ms +
          ", \"event_type\": \"INTERVAL_START\", \"key\": \"init_start\", \"value\": "
          "null, \"metadata\": {\"file\": \"src/report/mlperf/mllog_test.cpp\", \"lineno\": " +
          std::to_string(line) + "}}");
  EXPECT_TRUE(contains(lines[1], R"("event_type": "POINT_IN_TIME", "key": "seed", "value": 5, )"
                                 R"("metadata": {"file": "src/report/mlperf/mllog_test.cpp", )"
                                 R"("lineno": 7, "a": 0.5}})"));
  EXPECT_TRUE(contains(lines[2], R"("event_type": "INTERVAL_END", "key": "init_stop")"));
}

TEST(MllogWriter, AppendsOrTruncates) {
  const std::string path = base::temp_path("log");
  for (int i = 0; i < 2; ++i) MllogWriter(path, Mode::kAppend).event("seed", int64_t{i});
  EXPECT_EQ(read_mllog(path).events.size(), 2u);
  MllogWriter(path, Mode::kTruncate).event("seed", int64_t{9});
  EXPECT_EQ(read_mllog(path).events.size(), 1u);
}

TEST(MllogWriter, AFragmentAtTheEndDoesNotSpoilTheLog) {
  const std::string path = base::temp_path("log");
  MllogWriter(path, Mode::kTruncate).event("seed", int64_t{1});
  const std::string whole = base::read_file(path);
  for (size_t cut = 0; cut <= whole.size(); ++cut) {
    base::put_file(path, whole + whole.substr(0, cut));
    MllogWriter(path, Mode::kAppend).event("seed", int64_t{2});
    const MllogFile file = read_mllog(path);
    EXPECT_TRUE(file.problems.empty()) << cut;
    // The second is there once only its line end is missing.
    EXPECT_EQ(file.events.size(), cut + 1 >= whole.size() ? 3u : 2u) << cut;
    EXPECT_TRUE(same_value(file.events.back().value, int64_t{2}));
  }
}

TEST(MllogWriter, RefusesWordsThatOtherToolsLookFor) {
  MllogWriter writer(base::temp_path("log"), Mode::kTruncate);
  const auto error = base::error_of([&] { writer.event("note", std::string("my run_stop")); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::kInvalidArgument);
  EXPECT_TRUE(contains(error->what(), "run_stop"));
  EXPECT_TRUE(base::error_of([&] { writer.event("x", {}, {{"eval_accuracy", 0.5}}); }));
  writer.event("eval_accuracy", 0.5);
}

TEST(MllogWriter, SaysWhichFileCannotBeWritten) {
  const auto error =
      base::error_of([] { MllogWriter(base::temp_path("none") + "/log", Mode::kAppend); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::kIo);
  EXPECT_TRUE(contains(error->what(), "/log"));
}

TEST(MllogWriter, AFullDiskLeavesWholeLines) {
  const std::string disk = base::temp_path("disk"), path = disk + "/log";
  base::make_folders(disk);
  const int code = base::on_small_disk(disk, "64k", [&] {
    MllogWriter writer(path, Mode::kTruncate);
    const auto full = base::error_of([&] {
      for (int64_t i = 0; i < 2000; ++i) writer.event("seed", i);
    });
    if (!full || full->code() != ErrorCode::kIo || !contains(full->what(), path)) return 1;
    const MllogFile file = read_mllog(path);
    return file.problems.empty() && file.events.size() > 100 ? 0 : 2;
  });
  if (code == base::kNoMount) GTEST_SKIP() << "no right to mount";
  EXPECT_EQ(code, 0);
}

TEST(MllogReader, KnowsWhereEventsStand) {
  const std::string event = R"({"time_ms": 1, "key": "k", "value": NaN, "metadata": {"a": "NaN"}})";
  const std::string text = "hello\n[0] :::MLLOG x:::MLLOG " + event + "\r\n:::MLLOG {\n";
  MllogFile file;
  for (const MllogLine& line : split_mllog(text)) parse_mllog_line(line, file);
  ASSERT_EQ(file.events.size(), 1u);
  EXPECT_EQ(file.events[0].place.line, 2);
  EXPECT_EQ(file.events[0].place.number, 0);
  EXPECT_EQ(*file.events[0].find("a"), MllogValue(std::string("NaN")));
  EXPECT_TRUE(std::isnan(std::get<double>(file.events[0].value)));
  parse_mllog_line({{}, R"({"time_ms": 1, "key": "k", "value": -Infinity, "metadata": {}})"}, file);
  EXPECT_EQ(file.events[1].value, MllogValue(-INFINITY));
  ASSERT_EQ(file.problems.size(), 1u);
  EXPECT_EQ(file.problems[0].place.line, 3);
  EXPECT_EQ(file.problems[0].place.number, 1);
}

TEST(MllogReader, ListsKeepTheirTextWhenTheyAreWrittenAgain) {
  const auto read = [](const std::string& value) {
    MllogFile file;
    const std::string line =
        R"(:::MLLOG {"time_ms": 1, "key": "a", "value": )" + value + R"(, "metadata": {}})";
    for (const MllogLine& part : split_mllog(line)) parse_mllog_line(part, file);
    return std::get<MllogRaw>(file.events.at(0).value).text;
  };
  const std::string once = read("[1, {\"\xe9t\xe9\": [null]}]");  // in latin-1
  EXPECT_EQ(once, R"([1,{"\u00e9t\u00e9":[null]}])");
  EXPECT_EQ(read(once), once);
}

// The stack is not long enough for a call per level, which ended the process.
TEST(MllogReader, AValueNestedTooDeeplyIsAProblem) {
  const auto line = [](size_t levels) {
    return MllogLine{{},
                     R"({"time_ms": 1, "key": "[[\"[", "metadata": {}, "value": )" +
                         std::string(levels, '[') + std::string(levels, ']') + "}"};
  };
  MllogFile file;
  parse_mllog_line(line(400), file);
  ASSERT_EQ(file.events.size(), 1u);
  EXPECT_EQ(std::get<MllogRaw>(file.events[0].value).text.size(), 800u);
  for (const size_t levels : {600u, 300'000u}) parse_mllog_line(line(levels), file);
  ASSERT_EQ(file.problems.size(), 2u);
  EXPECT_EQ(file.problems[1].text, "the JSON is nested too deeply");
}

}  // namespace
}  // namespace segue::report
