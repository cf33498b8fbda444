#include <filesystem>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/file.h"
#include "base/test_util.h"
#include "cli/app.h"
#include "cli/test_util.h"
#include "report/mlperf/eval_grid.h"
#include "report/mlperf/mllog_run.h"

namespace segue::cli {
namespace {

using base::contains;

Outcome run_mllog(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "mllog");
  return run(std::move(arguments));
}

void write_log(const std::string& path, const std::string& benchmark = "dlrmv4") {
  report::MllogSubmission submission;
  submission.org = submission.platform = "x";
  submission.benchmark = benchmark;
  report::MllogHyperparameters h;
  h.global_batch_size = 8192;
  h.train_samples = report::kDlrmv4TrainSamples;
  h.eval_samples = report::kDlrmv4EvalSamples;
  h.max_sequence_length = 4096;
  h.opt_base_learning_rate = h.opt_sparse_base_learning_rate = 1e-6;
  h.micro_batch_size = 1;
  h.config_filename = "x.toml";
  report::MllogRun log(path, report::MllogWriter::Mode::kTruncate);
  log.open(submission, h);
  log.block_start(0);
  log.block_stop(57'344'000);
  log.eval_done(57'344'000, 0.76);
  log.stop(report::MllogStatus::kSuccess, 57'344'000);
}

TEST(MllogCommand, LintExitsByVerdict) {
  const std::string path = base::temp_path("log");
  write_log(path);
  Outcome o = run_mllog({"lint", path, "--werror"});
  EXPECT_EQ(o.code, kExitOk) << o.out << o.err;
  EXPECT_TRUE(contains(o.out, "passed: 42 events, ruleset 6.1.0, closed dlrmv4"));
  o = run_mllog({"lint", path, "--werror", "--ruleset", "6.1.0-release"});
  EXPECT_EQ(o.code, kExitOk) << o.out << o.err;
  std::string without = base::read_file(path);
  const size_t at = without.find("lowest_numerical_precision_in_attn");
  const size_t begin = without.rfind('\n', at) + 1;
  without.erase(begin, without.find('\n', at) + 1 - begin);
  base::write_file(path + ".older", without);
  o = run_mllog({"lint", path + ".older"});
  EXPECT_EQ(o.code, kExitOk) << o.out << o.err;
  EXPECT_TRUE(contains(o.out, "want more: lowest_numerical_precision_in_attn"));
  o = run_mllog({"lint", path, "--json"});
  EXPECT_TRUE(contains(o.out, "{\"verdict\":\"passed\""));
  write_log(path, "hstu");
  o = run_mllog({"lint", path});
  EXPECT_EQ(o.code, kExitOther);
  EXPECT_TRUE(contains(o.out, "failed"));
  EXPECT_TRUE(contains(o.err, path));
  write_log(path, "flux1");
  o = run_mllog({"lint", path});
  EXPECT_EQ(o.code, kExitUnsupported);
  EXPECT_TRUE(contains(o.out, "not judged"));
  EXPECT_EQ(run_mllog({"lint", path, "--ruleset", "9"}).code, kExitUsage);
  EXPECT_EQ(run_mllog({"lint", path + ".none"}).code, kExitFile);
}

TEST(MllogCommand, RcpExitsByVerdict) {
  const std::string folder = base::temp_path("runs");
  base::make_folders(folder);
  for (int i = 0; i < 3; ++i) write_log(folder + "/result_" + std::to_string(i) + ".txt");
  Outcome o = run_mllog({"rcp", folder, "--write-scaling"});
  EXPECT_EQ(o.code, kExitOther);
  EXPECT_TRUE(contains(o.out, "warning: 3 runs"));
  EXPECT_TRUE(contains(o.out, "failed"));
  const std::string reference = base::temp_path("rcp.json");
  base::write_file(reference, R"({"a": {"Benchmark": "dlrmv4", "BS": 8192,
      "Epochs to converge": [57e6, 58e6, 58e6, 59e6]}})");
  o = run_mllog({"rcp", folder, "--reference", reference, "--json", "--write-scaling"});
  EXPECT_EQ(o.code, kExitOk) << o.out << o.err;
  EXPECT_TRUE(contains(o.out, "\"verdict\": \"passed\""));
  EXPECT_TRUE(base::exists(folder + "/scaling.json"));
  EXPECT_EQ(run_mllog({"rcp", folder + "/none"}).code, kExitFile);
}

TEST(MllogCommand, GridIsShown) {
  const Outcome o = run_mllog({"grid", "--batch", "8192", "--json"});
  EXPECT_EQ(o.code, kExitOk) << o.err;
  EXPECT_TRUE(contains(o.out, "\"first_eval_samples\": 57344000"));
  EXPECT_EQ(run_mllog({"grid", "--batch", "0"}).code, kExitUsage);
  EXPECT_EQ(run_mllog({}).code, kExitUsage);
}

}  // namespace
}  // namespace segue::cli
