#include "report/mlperf/rcp.h"

#include <filesystem>
#include <vector>

#include <gtest/gtest.h>

#include "base/file.h"
#include "base/test_util.h"

namespace segue::report {
namespace {

using base::contains;

TEST(StudentT, HasTheQuantilesOfTheTables) {
  EXPECT_NEAR(student_t_quantile(0.95, 24), 1.7108820799094282, 1e-12);
  EXPECT_NEAR(student_t_quantile(0.95, 26), 1.7056179197592727, 1e-12);
  EXPECT_NEAR(student_t_quantile(0.95, 1), 6.313751514675043, 1e-11);
  EXPECT_NEAR(student_t_quantile(0.975, 10), 2.228138851986274, 1e-12);
  EXPECT_NEAR(student_t_quantile(0.05, 24), -1.7108820799094282, 1e-12);
  EXPECT_EQ(student_t_quantile(0.5, 3), 0);
}

TEST(Rcp, ReferenceOfDlrmv4) {
  const RcpReference reference = builtin_rcp("dlrmv4");
  ASSERT_EQ(reference.records.size(), 3u);
  const double expected[3][3] = {{69'067'662, 3'810'680, 66'297'354},
                                 {87'545'173, 6'149'459, 83'074'608},
                                 {112'903'964, 7'357'036, 107'555'509}};
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_NEAR(reference.records[i].mean, expected[i][0], 1);
    EXPECT_NEAR(reference.records[i].stdev, expected[i][1], 1);
    EXPECT_NEAR(reference.records[i].smallest, expected[i][2], 1);
  }
  const RcpReference fewer = pruned(reference);
  ASSERT_EQ(fewer.records.size(), 2u);  // 16384 is slower than the line between its neighbours
  const RcpRecord line = interpolated(16384, fewer.records[0], fewer.records[1]);
  EXPECT_NEAR(line.mean, 83'679'763, 1);
  EXPECT_NEAR(line.smallest, 80'117'345, 1);
}

TEST(Rcp, PruningDropsBatchesBelowTheFastest) {
  RcpReference reference;
  for (const auto& [batch, mean] : {std::pair(8, 50.0), {16, 40.0}, {32, 45.0}, {64, 60.0}}) {
    reference.records.push_back({"", batch, mean, 1, mean - 1});
  }
  const RcpReference fewer = pruned(reference);
  ASSERT_EQ(fewer.records.size(), 3u);
  EXPECT_EQ(fewer.records[0].batch, 16);
}

std::string run_text(const std::string& benchmark, int64_t batch, double samples,
                     const std::string& status) {
  const auto line = [](const std::string& key, const std::string& value, const std::string& meta) {
    return "[0] :::MLLOG {\"namespace\": \"\", \"time_ms\": 1, \"key\": \"" + key +
           "\", \"value\": " + value + ", \"metadata\": {" + meta + "}}\n";
  };
  const std::string at =
      "\"samples_count\": " + std::to_string(samples) + ", \"epoch_num\": 0.12345";
  return line("submission_benchmark", "\"" + benchmark + "\"", "") +
         line("global_batch_size", std::to_string(batch), "") +
         line("eval_accuracy", "0.1", "\"samples_count\": 1, \"epoch_num\": 0.1") +
         line("eval_accuracy", "0.76", at) +
         (status.empty() ? "" : line("run_stop", "null", "\"status\": \"" + status + "\""));
}

/// A folder with one result file per point; a negative one did not converge.
std::string folder_of(int64_t batch, const std::vector<double>& points,
                      const std::string& benchmark = "dlrmv4") {
  const std::string folder = base::temp_path("runs" + std::to_string(batch));
  std::filesystem::remove_all(folder);
  base::make_folders(folder);
  for (size_t i = 0; i < points.size(); ++i) {
    base::put_file(folder + "/result_" + std::to_string(i) + ".txt",
                   run_text(benchmark, batch, std::abs(points[i]),
                            points[i] < 0 ? (i % 2 ? "" : "aborted") : "success"));
  }
  return folder;
}

RcpVerdict judge(int64_t batch, const std::vector<double>& points) {
  return judge_convergence(read_submission(folder_of(batch, points)),
                           pruned(builtin_rcp("dlrmv4")));
}

TEST(Rcp, DecidesByTheMeanWithoutExtremes) {
  const std::vector<double> slow(10, 70e6);
  EXPECT_TRUE(judge(8192, slow).passed);
  EXPECT_EQ(judge(8192, slow).scaling_factor, 1);
  std::vector<double> extremes(10, 70e6);
  extremes[0] = 1;
  extremes[5] = 1e12;
  EXPECT_EQ(judge(8192, extremes).mean, 70e6);
  const RcpVerdict scaled = judge(8192, std::vector<double>(10, 67e6));
  EXPECT_TRUE(scaled.passed);
  EXPECT_NEAR(scaled.scaling_factor, 69'067'662 / 67e6, 1e-6);
  EXPECT_TRUE(judge(8192, std::vector<double>(10, 66'297'355)).passed);
  const RcpVerdict fast = judge(8192, std::vector<double>(10, 66'297'353));
  EXPECT_FALSE(fast.passed);
  EXPECT_EQ(fast.scaling_factor, 1);
}

TEST(Rcp, BatchSizesBetweenAboveAndBelow) {
  EXPECT_TRUE(judge(16384, std::vector<double>(10, 80'117'346)).passed);
  EXPECT_FALSE(judge(16384, std::vector<double>(10, 80'117'344)).passed);
  const RcpVerdict above = judge(65536, std::vector<double>(10, 1e9));
  EXPECT_FALSE(above.passed);
  EXPECT_TRUE(contains(above.reason, "submit"));
  EXPECT_TRUE(judge(1024, std::vector<double>(10, 70e6)).passed);
  const RcpVerdict below = judge(1024, std::vector<double>(10, 50e6));
  EXPECT_FALSE(below.passed);
  EXPECT_TRUE(contains(below.reason, "submit"));
}

TEST(Rcp, OneRunMayFail) {
  std::vector<double> points(10, 70e6);
  points[2] = -70e6;
  EXPECT_TRUE(judge(8192, points).passed);
  points[3] = -70e6;
  EXPECT_FALSE(judge(8192, points).passed);
  EXPECT_TRUE(contains(judge(8192, points).reason, "converge"));
  EXPECT_FALSE(judge(8192, {70e6, 70e6}).passed);
}

TEST(Rcp, ReadsOtherReferences) {
  const std::string path = base::temp_path("rcp.json");
  base::put_file(path, R"({"b": {"Benchmark": "dlrm_dcnv2", "BS": 64, "Hyperparams": {},
      "Epochs to converge": [0.1, 0.2, 0.3, 0.4]}, "a": {"Benchmark": "dlrm_dcnv2", "BS": 32,
      "Hyperparams": {}, "samples to converge": [1, 1, 1]}})");
  const RcpReference reference = read_rcp(path);
  ASSERT_EQ(reference.records.size(), 2u);
  EXPECT_EQ(reference.records[0].batch, 32);
  EXPECT_EQ(reference.records[0].smallest, 1);  // no spread: only the mean itself will do
  EXPECT_NEAR(reference.records[1].mean, 0.25, 1e-15);
  const RcpSubmission epochs = read_submission(folder_of(64, {1, 2, 3}, "dlrm_dcnv2"));
  EXPECT_EQ(epochs.runs[0].converged_at, 0.123);
  for (const char* text : {"{}", "{", R"({"a": {"Benchmark": "x"}})",
                           R"({"a": {"Benchmark": "x", "BS": 1, "Epochs to converge": [1]}})"}) {
    base::put_file(path, text);
    const auto error = base::error_of([&] { read_rcp(path); });
    ASSERT_TRUE(error);
    EXPECT_EQ(error->code(), ErrorCode::kCorrupt) << error->what();
  }
}

TEST(Rcp, BatchSizesThatAreNone) {
  const auto reference = [](const std::string& batch) {
    return R"({"a": {"Benchmark": "x", "BS": )" + batch + R"(, "samples to converge": [1, 2, 3]}})";
  };
  for (const char* batch : {"1e300", "8192.5", "9223372036854775807", "-9223372036854775808",
                            "18446744073709551615", "\"8192\"", "null"}) {
    EXPECT_TRUE(contains(
        base::message_of(ErrorCode::kCorrupt, [&] { parse_rcp(reference(batch), "rcp.json"); }),
        "rcp.json: `BS` of `a` is no number of samples"));
  }
  EXPECT_EQ(parse_rcp(reference("8192"), "rcp.json").records[0].batch, 8192);
  for (const char* batch : {"1e300", "NaN", "-Infinity", "9223372036854775807", "\"8192\""}) {
    RcpSubmission submission;
    const std::string log =
        std::string(":::MLLOG {\"time_ms\": 1, \"key\": \"global_batch_size\", ") +
        "\"value\": " + batch + ", \"metadata\": {}}\n";
    EXPECT_TRUE(contains(
        base::message_of(ErrorCode::kCorrupt, [&] { add_run(submission, log, "result_0.txt"); }),
        "result_0.txt, line 1: the batch size is no number of samples"));
  }
}

TEST(Rcp, SaysWhatIsWrongWithTheRuns) {
  EXPECT_EQ(base::error_of([] { read_submission(folder_of(1, {})); })->code(),
            ErrorCode::kNotFound);
  const std::string folder = folder_of(8192, {70e6, 70e6, 70e6});
  base::put_file(folder + "/result_9.txt", run_text("dlrmv4", 4096, 1, "success"));
  const auto disagree = base::error_of([&] { read_submission(folder); });
  EXPECT_TRUE(contains(disagree->what(), "result_9.txt"));
  base::put_file(folder + "/result_9.txt", ":::MLLOG {\"key\": \"run_stop\"\n");
  const auto broken = base::error_of([&] { read_submission(folder); });
  EXPECT_EQ(broken->code(), ErrorCode::kCorrupt);
  EXPECT_TRUE(contains(broken->what(), "line 1"));
  base::put_file(folder + "/result_9.txt", "nothing\n");
  EXPECT_TRUE(contains(base::error_of([&] { read_submission(folder); })->what(), "no `global"));
  EXPECT_EQ(base::error_of([] { builtin_rcp("flux1"); })->code(), ErrorCode::kUnsupported);
}

TEST(Rcp, ScalingFileComesAndGoes) {
  const std::string folder = folder_of(8192, {1});
  RcpVerdict verdict;
  verdict.passed = true;
  verdict.scaling_factor = 1.25;
  write_scaling(folder, verdict);
  EXPECT_EQ(base::read_file(folder + "/scaling.json"), "{\"scaling_factor\":1.25}");
  verdict.scaling_factor = 1;
  write_scaling(folder, verdict);
  EXPECT_FALSE(base::exists(folder + "/scaling.json"));
}

}  // namespace
}  // namespace segue::report
