#include "train/loop.h"

#include <filesystem>
#include <sstream>

#include <gtest/gtest.h>

#include "base/file.h"
#include "base/log.h"
#include "base/test_util.h"
#include "train/run_folder.h"
#include "train/test_util.h"

namespace segue::train {
namespace {

class LoopTest : public testing::Test {
 protected:
  void SetUp() override {
    folder = base::temp_path("run");
    std::filesystem::remove_all(folder);
    base::set_log_level(base::LogLevel::kWarning);
  }
  void TearDown() override {
    std::filesystem::remove_all(folder);
    base::set_log_level(base::LogLevel::kInfo);
  }

  std::vector<std::string> metrics() const {
    std::istringstream text(base::read_file(folder + "/metrics.jsonl"));
    std::vector<std::string> lines;
    for (std::string line; std::getline(text, line);) lines.push_back(line);
    return lines;
  }
  /// The text after `"key": ` up to the next comma or brace.
  static std::string value(const std::string& line, const std::string& key) {
    const size_t at = line.find("\"" + key + "\": ");
    if (at == std::string::npos) return "missing";
    const size_t begin = at + key.size() + 4;
    return line.substr(begin, line.find_first_of(",}", begin) - begin);
  }

  std::string folder;
};

TEST_F(LoopTest, LeavesConfigAndMetrics) {
  const RunConfig c = tiny_config();
  const TrainSummary summary = train_loop(c, folder);
  EXPECT_EQ(base::read_file(folder + "/config.toml"), base::to_toml(c));
  const std::vector<std::string> lines = metrics();
  ASSERT_EQ(lines.size(), 4u);  // steps 2, 4, 6 and the evaluation
  EXPECT_EQ(value(lines[0], "step"), "2");
  EXPECT_EQ(value(lines[2], "step"), "6");
  for (const char* key :
       {"loss", "loss_window", "tasks", "auc", "auc_window", "lr", "sparse_lr", "grad_norm",
        "samples", "tokens", "samples_per_s", "tokens_per_s", "model_gflops_per_s", "wall_s"}) {
    EXPECT_NE(value(lines[1], key), "missing") << key;
  }
  EXPECT_EQ(value(lines[3], "event"), "\"eval\"");
  EXPECT_EQ(value(lines[3], "samples"), "48");
  EXPECT_NE(value(lines[3], "oracle_auc"), "missing");
  EXPECT_EQ(summary.steps, 6);
  EXPECT_EQ(summary.held_out.samples, 48);
  EXPECT_GT(summary.oracle_auc, 0.6);
  EXPECT_GT(summary.samples_per_s, 0);
}

TEST_F(LoopTest, StepsThatDoNotFillAWindowAreLogged) {
  RunConfig c = tiny_config();
  c.train.steps = 3;
  c.train.eval_batches = 0;
  train_loop(c, folder);
  const std::vector<std::string> lines = metrics();
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(value(lines[1], "step"), "3");
  EXPECT_EQ(value(lines[1], "samples"), "24");
}

TEST_F(LoopTest, RefusesAFolderWithARun) {
  const RunConfig c = tiny_config();
  train_loop(c, folder);
  const std::vector<std::string> before = metrics();
  const auto error = base::error_of([&] { train_loop(c, folder); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::kInvalidArgument);
  EXPECT_TRUE(base::contains(error->what(), folder));
  EXPECT_TRUE(base::contains(error->what(), "--overwrite"));
  EXPECT_EQ(metrics(), before);
  EXPECT_NO_THROW(train_loop(c, folder, true));
}

TEST_F(LoopTest, AFailedStartTouchesNothing) {
  RunConfig c = tiny_config();
  train_loop(c, folder);
  const std::vector<std::string> before = metrics();
  c.train.device = "cuda:99";
  EXPECT_THROW(train_loop(c, folder, true), Error);
  EXPECT_EQ(metrics(), before);
}

TEST_F(LoopTest, ResolvedConfigReproducesTheRun) {
  RunConfig c = tiny_config();
  c.optimizer.lr = 0.1 + 0.2;  // a number whose digits matter
  train_loop(c, folder);
  std::vector<std::string> first = metrics();

  base::ConfigSources sources;
  sources.file = folder + "/config.toml";
  sources.use_environment = false;
  const RunConfig again = load_run_config(sources);
  train_loop(again, folder, true);
  const std::vector<std::string> second = metrics();
  ASSERT_EQ(first.size(), second.size());
  for (size_t i = 0; i < first.size(); ++i) {
    for (const char* key : {"loss", "auc", "auc_window", "grad_norm"}) {
      EXPECT_EQ(value(first[i], key), value(second[i], key)) << key;
    }
  }
}

TEST_F(LoopTest, TablesLargerThanTheMachineAreRefused) {
  RunConfig c = tiny_config();
  c.sparse.tables[0].rows = int64_t{1} << 50;
  const auto error = base::error_of([&] { train_loop(c, folder); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::kOutOfMemory);
  EXPECT_TRUE(base::contains(error->what(), "sparse.tables"));
}

TEST_F(LoopTest, UnwritableFolderIsAnError) {
  base::write_file(folder, "a file, not a folder");
  const auto error = base::error_of([&] { train_loop(tiny_config(), folder + "/run"); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::kIo);
}

}  // namespace
}  // namespace segue::train
