#include "bench/experiments.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/test_util.h"
#include "bench/attention_map.h"
#include "bench/length_kinds.h"
#include "bench/row_file.h"

namespace segue::bench {
namespace {

using base::contains;
using Json = nlohmann::json;

SuiteSettings small_suite() {
  SuiteSettings s;
  s.bench.repeats = {0, 1};
  s.bench.device = "cpu";
  s.bench.ceiling = 64;
  s.bench.sets = {"data.batch_size=8", "model.layers=2", "train.peak_tflops=1"};
  return s;
}

/// Rows that a suite reports.
std::vector<Json> rows_of(const SuiteSettings& settings,
                          std::vector<std::string>* notes = nullptr) {
  std::vector<Json> rows;
  Report report([&](const std::string& line) { rows.push_back(Json::parse(line)); }, true);
  Report text([&](const std::string& line) { notes->push_back(line); }, false);
  const auto alone = comm::self_world();
  run_suite(settings, *alone, notes == nullptr ? report : text);
  return rows;
}

const Json& row(const std::vector<Json>& rows, const std::string& name) {
  const auto found = std::ranges::find_if(rows, [&](const Json& r) { return r["name"] == name; });
  EXPECT_NE(found, rows.end()) << name;
  return *found;
}

TEST(SuiteTest, EveryExperimentIsARowThatWasMeasuredOrSaysWhyNot) {
  const std::vector<Json> rows = rows_of(small_suite());
  ASSERT_EQ(rows.size(), 1u + 9);  // the ceiling, then the experiments
  const std::vector<std::string> cannot = {"balanced", "fast attention", "tensor parallel"};
  for (size_t i = 1; i < rows.size(); ++i) {
    const Json& r = rows[i];
    const bool left_out = std::ranges::find(cannot, r["name"].get<std::string>()) != cannot.end();
    EXPECT_EQ(r.contains("not_run"), left_out) << r;
    EXPECT_EQ(r.contains("speed_up"), !left_out) << r;
    EXPECT_EQ(r["lengths"], "lognormal");
    EXPECT_TRUE(r.contains("commit") && r.contains("command") && r.contains("device")) << r;
    if (left_out) continue;
    EXPECT_GT(r["samples_per_s"], 0);
    EXPECT_GT(r["mfu"], 0);
    EXPECT_EQ(r["repeats"], 1);
    EXPECT_TRUE(r["set"].get<std::string>().find('=') != std::string::npos);
  }
  EXPECT_EQ(row(rows, "baseline")["speed_up"], 1);
  EXPECT_TRUE(contains(row(rows, "balanced")["not_run"], "--ranks"));
  // The product that is done twice is work of the hardware, not of the model.
  const auto ratio = [&](const char* name) {
    const Json& r = row(rows, name);
    return r["hfu"].get<double>() / r["mfu"].get<double>();
  };
  EXPECT_DOUBLE_EQ(ratio("recompute"), 1);
  EXPECT_GT(ratio("recompute more"), 1.1);
  EXPECT_LT(ratio("recompute more"), 1.4);
  EXPECT_FALSE(row(rows, "identities").contains("hfu"));
}

TEST(SuiteTest, RowsThatAreThereAreNotMeasuredAgain) {
  SuiteSettings s = small_suite();
  s.out = base::temp_path("suite.jsonl");
  s.only = {"baseline", "recompute", "balanced"};
  const std::vector<Json> first = rows_of(s);
  ASSERT_EQ(first.size(), 1u + 3);
  const std::string kept = base::read_file(s.out);
  std::vector<std::string> notes;
  rows_of(s, &notes);
  EXPECT_EQ(std::ranges::count_if(notes, [](const auto& n) { return contains(n, "is in "); }), 2);
  // What could not run is tried again, and says so again.
  EXPECT_EQ(std::ranges::count_if(notes, [](const auto& n) { return contains(n, "not run"); }), 1);
  EXPECT_EQ(std::ranges::count(base::read_file(s.out), '\n'), std::ranges::count(kept, '\n'));
  // A file that was cut short in a line is not silently measured over.
  base::put_file(s.out, kept.substr(0, kept.size() / 2));
  const std::string error = base::message_of(ErrorCode::kCorrupt, [&] { rows_of(s); });
  EXPECT_TRUE(contains(error, "suite.jsonl:")) << error;
  // Other lengths are another thing, with the baseline of their own.
  base::put_file(s.out, kept);
  s.lengths = {"zipf"};
  s.ids = {"uniform"};
  s.only = {"recompute"};
  const std::vector<Json> other = rows_of(s);
  ASSERT_EQ(other.size(), 2u);
  EXPECT_EQ(other[1]["lengths"], "zipf");
  EXPECT_EQ(other[1]["ids"], "uniform");
  EXPECT_FALSE(other[1].contains("speed_up"));
}

TEST(SuiteTest, EveryLawOfLengthsAndIdsRuns) {
  SuiteSettings s = small_suite();
  s.lengths = length_names();
  s.ids = {"uniform", "zipf"};
  s.only = {"baseline"};
  const std::vector<Json> rows = rows_of(s);
  ASSERT_EQ(s.lengths.size(), 4u);
  ASSERT_EQ(rows.size(), 1u + 4 * 2);  // the ceiling, then the pairs
  std::set<std::string> laws, tokens;
  for (size_t i = 1; i < rows.size(); ++i) {
    const Json& r = rows[i];
    laws.insert(r["lengths"].get<std::string>() + " " + r["ids"].get<std::string>());
    tokens.insert(r["shape"]["tokens"].dump());
    EXPECT_GT(r["samples_per_s"], 0) << r;
    EXPECT_EQ(r["speed_up"], 1) << r;
  }
  EXPECT_EQ(laws.size(), 8u);
  EXPECT_EQ(tokens.size(), 4u);  // ids do not change lengths
  EXPECT_TRUE(laws.contains("normal zipf_bounded"));
}

TEST(SuiteTest, UnknownNamesAreErrors) {
  SuiteSettings s = small_suite();
  s.only = {"fast"};
  EXPECT_TRUE(contains(base::message_of(ErrorCode::kInvalidArgument, [&] { rows_of(s); }),
                       "there is: baseline, balanced"));
  s = small_suite();
  s.lengths = {"long"};
  EXPECT_TRUE(contains(base::message_of(ErrorCode::kInvalidArgument, [&] { rows_of(s); }),
                       "uniform, normal, lognormal, zipf"));
  s = small_suite();
  s.ids = {"some"};
  EXPECT_THROW(rows_of(s), Error);
}

TEST(SuiteTest, LengthsStayWithinTheConfigs) {
  for (const std::string& name : length_names()) {
    const data::Distribution d = length_distribution(name, 100);
    EXPECT_EQ(most_of(d), 100) << name;
    EXPECT_EQ(name_of(d), name);
    const data::Sampler sampler(d);
    for (uint64_t i = 0; i < 1000; ++i) {
      EXPECT_GE(sampler(1, i), 1);
      EXPECT_LE(sampler(1, i), 100);
    }
  }
  EXPECT_EQ(name_of({data::DistributionKind::kUniform, 7, 8}), "fixed");
}

std::vector<Json> cells_of(const MapSettings& settings) {
  std::vector<Json> rows;
  Report report([&](const std::string& line) { rows.push_back(Json::parse(line)); }, true);
  run_map(settings, report);
  return rows;
}

TEST(AttentionMapTest, CellsAreMeasuredOnceOrSayWhyNot) {
  MapSettings s;
  s.device = "cpu";
  s.sequences = {1, 2};
  s.lengths = {8, 16};
  s.head_dims = {8};
  s.heads = 2;
  s.cell_seconds = 0;
  s.out = base::temp_path("map.jsonl");
  const std::vector<Json> rows = cells_of(s);
  ASSERT_EQ(rows.size(), 1u + 2 * 4);
  EXPECT_EQ(rows[1]["name"], "attention forward");
  EXPECT_EQ(rows[2]["name"], "attention backward");
  EXPECT_EQ(rows[3]["lengths"], "2x8");
  EXPECT_GT(rows[3]["gflops_per_s"], 0);
  EXPECT_GT(rows[3]["share_of_gemm"], 0);
  EXPECT_EQ(cells_of(s).size(), 1u);  // the ceiling
  s.lengths = {int64_t{1} << 28};     // more than any memory
  s.sequences = {1};
  const std::vector<Json> beyond = cells_of(s);
  ASSERT_EQ(beyond.size(), 3u);
  EXPECT_TRUE(contains(beyond[1]["not_run"], " GiB of "));
  s.lengths = {0};
  EXPECT_THROW(cells_of(s), Error);
}

}  // namespace
}  // namespace segue::bench
