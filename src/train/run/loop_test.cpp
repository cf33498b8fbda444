#include "train/run/loop.h"

#include <csignal>
#include <thread>

#include "ops/gemm.h"
#include "tensor/card_test_util.h"
#include "train/run/loop_test_util.h"
#include "train/test_util.h"

namespace segue::train {
namespace {

TEST_F(LoopTest, LeavesConfigAndMetrics) {
  RunConfig c = tiny_config();
  const TrainSummary summary = train_loop(c, folder);
  c.train.micro_batch_tokens = TrainConfig::kUsualMicroBatch;  // what was chosen
  EXPECT_EQ(base::read_file(folder + "/config.toml"), base::to_toml(c));
  const std::vector<std::string> lines = metrics();
  ASSERT_EQ(lines.size(), 5u);  // steps 2, 4, 6, the evaluation and the end
  EXPECT_EQ(value(lines[0], "step"), "2");
  EXPECT_EQ(value(lines[2], "step"), "6");
  for (const char* key : {"event",         "window",        "samples",
                          "loss",          "loss_window",   "tasks",
                          "auc",           "auc_window",    "lr",
                          "sparse_lr",     "grad_norm",     "loss_z",
                          "grad_norm_z",   "skipped_steps", "samples_window",
                          "tokens_window", "lengths",       "samples_per_s",
                          "tokens_per_s",  "gflops_padded", "gflops_jagged",
                          "stages",        "loader_wait_s", "memory_peak_bytes",
                          "launches",      "wall_s"}) {
    EXPECT_NE(value(lines[1], key), "missing") << key;
  }
  EXPECT_EQ(value(lines[3], "event"), "\"eval\"");
  EXPECT_EQ(value(lines[3], "samples"), "144");
  EXPECT_EQ(value(lines[3], "eval_samples"), "48");
  EXPECT_NE(value(lines[3], "oracle_auc"), "missing");
  EXPECT_EQ(value(lines[4], "status"), "\"finished\"");
  EXPECT_EQ(summary.steps, 6);
  ASSERT_TRUE(summary.held_out);
  EXPECT_EQ(summary.held_out->samples, 48);
  EXPECT_GT(summary.oracle_auc.value_or(0), 0.6);
  EXPECT_GT(summary.samples_per_s, 0);
  EXPECT_TRUE(summary.finished);
  EXPECT_TRUE(base::exists(folder + "/checkpoints/step-6/manifest.json"));
}

TEST_F(LoopTest, TheLogNamesTheProductsOfItsDevice) {
  base::set_log_level(base::LogLevel::kInfo);
  for (const char* device : {"cpu", "cuda"}) {
    RunConfig c = tiny_config();
    c.train.device = device;
    const bool gpu = parse_device(device).is_cuda();
    if (gpu && cuda_device_count() == 0) continue;
    testing::internal::CaptureStderr();
    train_loop(c, folder + "/" + device);
    const std::string gemm = gpu ? ops::gemm_gpu_backend() : ops::gemm_backend();
    EXPECT_TRUE(base::contains(testing::internal::GetCapturedStderr(), "threads, gemm " + gemm));
  }
}

TEST_F(LoopTest, TheEnergyOfASampleIsThatOfTheStepsOfItsLine) {
  CardState shared;
  shared.other_processes = 1;
  LoopOptions options;
  options.card = std::make_shared<FakeCard>(shared, 48);
  testing::internal::CaptureStderr();
  train_loop(tiny_config(), folder, options);
  EXPECT_TRUE(base::contains(testing::internal::GetCapturedStderr(), "1 other process computes"));
  const std::vector<std::string> lines = metrics();
  // 48 J from look to look, two steps of 24 samples in between.
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(value(lines[i], "samples_window"), "48");
    EXPECT_EQ(value(lines[i], "joules_per_sample"), "1");
  }
}

TEST_F(LoopTest, AKernelThatTheDeviceDoesNotHaveIsAnErrorBeforeTheRun) {
  RunConfig c = tiny_config();
  c.model.attention.kernel = attention::Kernel::kSm90;
  const std::string message = base::message_of(ErrorCode::kConfig, [&] { train_loop(c, folder); });
  EXPECT_TRUE(base::contains(message, "attention kernel `sm90` runs on a GPU only"));
  EXPECT_FALSE(base::exists(folder));
}

TEST_F(LoopTest, StepsThatDoNotFillAnIntervalAreLogged) {
  RunConfig c = tiny_config();
  c.train.steps = 3;
  c.eval.at_end = false;
  train_loop(c, folder);
  const std::vector<std::string> lines = metrics();
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(value(lines[1], "step"), "3");
  EXPECT_EQ(value(lines[1], "samples_window"), "24");
}

TEST_F(LoopTest, AFinishedRunIsLeftAsItIs) {
  const RunConfig c = tiny_config();
  train_loop(c, folder);
  const std::vector<std::string> before = metrics();
  const TrainSummary again = train_loop(c, folder);
  EXPECT_TRUE(again.resumed);
  EXPECT_TRUE(again.finished);
  EXPECT_EQ(again.steps, 6);
  EXPECT_EQ(metrics(), before);
  LoopOptions over;
  over.overwrite = true;
  EXPECT_FALSE(train_loop(c, folder, over).resumed);
}

TEST_F(LoopTest, MoreStepsContinueAFinishedRunWhenAllowed) {
  RunConfig c = tiny_config();
  c.eval.at_end = false;  // one more evaluation would show in the lifetime metrics
  train_loop(c, folder);
  c.train.steps = 8;
  const auto error = base::error_of([&] { train_loop(c, folder); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::kConfig);
  EXPECT_TRUE(base::contains(error->what(), "train.steps: was 6, now 8"));
  LoopOptions allow;
  allow.allow_config_changes = {"train.steps"};
  const TrainSummary more = train_loop(c, folder, allow);
  EXPECT_EQ(more.steps, 8);
  EXPECT_EQ(value(metrics().back(), "step"), "8");

  const std::string straight = folder + "_straight";
  train_loop(c, straight);
  EXPECT_EQ(checkpoint_bytes(folder, 8), checkpoint_bytes(straight, 8));
  std::filesystem::remove_all(straight);
}

TEST_F(LoopTest, KeysThatOnlySayHowMayDiffer) {
  RunConfig c = tiny_config();
  train_loop(c, folder);
  c.train.threads = 2;
  c.checkpoint.keep_last = 5;
  c.trace.steps = {3};
  EXPECT_NO_THROW(train_loop(c, folder));
}

TEST_F(LoopTest, EvaluatesOnScheduleAndOnceAtTheEnd) {
  RunConfig c = tiny_config();
  c.eval.every_steps = 3;
  c.train.log_every = 100;
  train_loop(c, folder);
  std::vector<std::string> events;
  for (const std::string& line : metrics()) {
    events.push_back(value(line, "event") + value(line, "step"));
  }
  // A line of training closes before each evaluation.
  EXPECT_EQ(events, (std::vector<std::string>{"\"train\"3", "\"eval\"3", "\"train\"6", "\"eval\"6",
                                              "\"end\"6"}));
}

TEST_F(LoopTest, StopsAtTheTarget) {
  RunConfig c = tiny_config();
  c.eval.every_steps = 2;
  c.eval.target_auc = 0.01;  // the first evaluation reaches it
  const TrainSummary summary = train_loop(c, folder);
  EXPECT_TRUE(summary.target_reached);
  EXPECT_EQ(summary.steps, 2);
  EXPECT_EQ(value(metrics().back(), "status"), "\"target reached\"");
  EXPECT_EQ(train_loop(c, folder).steps, 2);  // and stays stopped
}

TEST_F(LoopTest, ASignalSavesAndTheRunGoesOnAsIfNothingHadHappened) {
  RunConfig c = tiny_config();
  c.eval.every_steps = 4;
  c.trace.steps = {3};
  c.trace.active = 1;
  const std::string straight = folder + "_straight";
  train_loop(c, straight);

  std::signal(SIGTERM, SIG_IGN);  // the run may end before the signal comes
  // The trace of step 3 is the sign that the loop is inside the run.
  std::thread sender([&] {
    while (!base::exists(folder + "/trace/trace_step3.json")) std::this_thread::yield();
    std::raise(SIGTERM);
  });
  c.train.steps = 6;
  TrainSummary summary = train_loop(c, folder);
  sender.join();
  std::signal(SIGTERM, SIG_DFL);
  for (int i = 0; i < 10 && !summary.finished; ++i) summary = train_loop(c, folder);
  EXPECT_TRUE(summary.finished);
  EXPECT_EQ(checkpoint_bytes(folder, 6), checkpoint_bytes(straight, 6));
  EXPECT_EQ(lasting(metrics_of(folder)), lasting(metrics_of(straight)));
  std::filesystem::remove_all(straight);
}

TEST_F(LoopTest, AStopBetweenTwoLinesTellsTheLossOfItsLastSteps) {
  RunConfig c = tiny_config();
  c.train.steps = 1'000'000;
  c.train.log_every = 1'000'000;
  c.eval.at_end = false;
  c.trace.steps = {3};
  c.trace.active = 1;
  std::signal(SIGTERM, SIG_IGN);
  std::thread sender([&] {
    while (!base::exists(folder + "/trace/trace_step3.json")) std::this_thread::yield();
    std::raise(SIGTERM);
  });
  const TrainSummary summary = train_loop(c, folder);
  sender.join();
  std::signal(SIGTERM, SIG_DFL);
  EXPECT_FALSE(summary.finished);
  EXPECT_GT(summary.last_loss, 0);
}

TEST_F(LoopTest, ASignalDuringTheLastEvaluationLeavesItToTheNextStart) {
  RunConfig c = tiny_config();
  c.eval.at_end = false;
  c.eval.every_steps = c.train.steps;
  c.eval.max_batches = 400;
  std::signal(SIGTERM, SIG_IGN);
  std::thread sender([&] {  // the line of the last step comes just before its evaluation
    const std::string path = folder + "/metrics.jsonl", last = "\"step\": 6";
    while (!base::exists(path) || !base::contains(base::read_file(path), last)) {
      std::this_thread::yield();
    }
    std::raise(SIGTERM);
  });
  TrainSummary summary = train_loop(c, folder);
  sender.join();
  std::signal(SIGTERM, SIG_DFL);
  EXPECT_EQ(summary.steps, 6);
  EXPECT_FALSE(summary.finished);
  EXPECT_FALSE(summary.held_out);
  // Killed once more, after that evaluation and before the next checkpoint.
  const std::string saved = folder + "_saved", checkpoints = folder + "/checkpoints";
  std::filesystem::copy(checkpoints, saved, std::filesystem::copy_options::recursive);
  EXPECT_TRUE(train_loop(c, folder).finished);
  std::filesystem::remove_all(checkpoints);
  std::filesystem::rename(saved, checkpoints);
  summary = train_loop(c, folder);
  EXPECT_TRUE(summary.finished);
  EXPECT_TRUE(summary.held_out);
  const auto scalars = scalars_of(folder);
  EXPECT_EQ(scalars.count({"eval/auc", 6}), 1u);
  for (const int64_t step : {2, 4, 6}) EXPECT_EQ(scalars.count({"train/loss", step}), 1u) << step;
}

TEST_F(LoopTest, TensorboardShowsEveryPointOfAResumedRunOnce) {
  RunConfig c = tiny_config();
  c.train.log_every = 1;
  c.eval.every_steps = 2;
  c.checkpoint.every_steps = 2;
  c.checkpoint.keep_last = 10;
  train_loop(c, folder);
  const auto expected = scalars_of(folder);
  EXPECT_EQ(expected.size(), 6u * 5 + 3 * 8);
  const auto killed_at =
      [&](const std::vector<int>& lost) {  // the checkpoints that did not get out
        for (const int step : lost) {
          std::filesystem::remove_all(folder + "/checkpoints/step-" + std::to_string(step));
        }
        EXPECT_TRUE(train_loop(c, folder).finished);
        EXPECT_EQ(scalars_of(folder), expected);
      };
  killed_at({6});
  killed_at({4, 6});
  killed_at({2, 4, 6});
  killed_at({4, 6});
}

TEST_F(LoopTest, DamagedCheckpointsAreReportedAndThePreviousOneIsUsed) {
  RunConfig c = tiny_config();
  c.checkpoint.every_steps = 2;
  c.checkpoint.keep_last = 10;
  train_loop(c, folder);
  const std::vector<std::string> before = lasting(metrics());
  const auto expected = checkpoint_bytes(folder, 6);
  std::string dense = base::read_file(folder + "/checkpoints/step-6/dense.safetensors");
  dense[dense.size() / 2] ^= 1;
  base::write_file(folder + "/checkpoints/step-6/dense.safetensors", dense);
  base::set_log_level(base::LogLevel::kError);
  const TrainSummary summary = train_loop(c, folder);
  EXPECT_EQ(summary.steps, 6);
  EXPECT_EQ(lasting(metrics()), before);
  EXPECT_EQ(checkpoint_bytes(folder, 6), expected);
}

TEST_F(LoopTest, NonFiniteStopsOrSkipsAndCounts) {
  RunConfig c = tiny_config();
  c.optimizer.lr = 1e30;  // the second step cannot be finite
  c.optimizer.clip_norm = 0;
  auto error = base::error_of([&] { train_loop(c, folder); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::kNumeric);

  base::set_log_level(base::LogLevel::kError);
  c.train.non_finite = NonFinite::kSkip;
  c.train.max_skipped = 3;
  LoopOptions over;
  over.overwrite = true;
  error = base::error_of([&] { train_loop(c, folder, over); });
  ASSERT_TRUE(error);  // more than it may leave out
  EXPECT_EQ(error->code(), ErrorCode::kNumeric);
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
  LoopOptions over;
  over.overwrite = true;
  train_loop(again, folder, over);
  const std::vector<std::string> second = metrics();
  ASSERT_EQ(first.size(), second.size());
  for (size_t i = 0; i < first.size(); ++i) {
    for (const char* key : {"loss", "auc", "auc_window", "grad_norm"}) {
      EXPECT_EQ(value(first[i], key), value(second[i], key)) << key;
    }
  }
}

/// Their number shows in the bits: a run that chose it goes on with it, whatever it would choose
/// now.
TEST_F(LoopTest, AResumedRunKeepsItsMicroBatches) {
  RunConfig c = tiny_config();
  c.eval.at_end = false;
  train_loop(c, folder);
  const auto chosen = checkpoint_bytes(folder, 6);
  EXPECT_EQ(recorded_config(base::read_file(folder + "/config.toml")).train.micro_batch_tokens,
            TrainConfig::kUsualMicroBatch);

  LoopOptions over, resume;
  over.overwrite = true;
  resume.allow_config_changes = {"train.steps"};
  c.train.micro_batch_tokens = 50;
  train_loop(c, folder, over);
  const auto small = checkpoint_bytes(folder, 6);
  EXPECT_TRUE(small != chosen);

  c.train.steps = 3;
  train_loop(c, folder, over);
  c.train.steps = 6;
  c.train.micro_batch_tokens = 0;
  EXPECT_TRUE(train_loop(c, folder, resume).resumed);
  EXPECT_TRUE(checkpoint_bytes(folder, 6) == small);
  EXPECT_EQ(recorded_config(base::read_file(folder + "/config.toml")).train.micro_batch_tokens, 50);
  c.train.micro_batch_tokens = 60;
  EXPECT_THROW(train_loop(c, folder, resume), Error);
}

/// Lines of metrics are then written while the next step runs.
TEST_F(LoopTest, PreparingAheadChangesNothing) {
  RunConfig c = tiny_config();
  c.train.steps = 11;
  c.eval.every_steps = 3;
  c.checkpoint.every_steps = 5;
  c.parallel.pipeline = Pipeline::kOff;
  train_loop(c, folder);
  const std::vector<std::string> plain = lasting(metrics());
  const auto bytes = checkpoint_bytes(folder, 11);
  LoopOptions over;
  over.overwrite = true;
  c.parallel.pipeline = Pipeline::kOn;
  train_loop(c, folder, over);
  EXPECT_EQ(lasting(metrics()), plain);
  EXPECT_TRUE(checkpoint_bytes(folder, 11) == bytes);
}

TEST_F(LoopTest, TablesLargerThanTheMachineAreRefused) {
  RunConfig c = tiny_config();
  c.sparse.tables[0].rows = int64_t{1} << 50;
  const auto error = base::error_of([&] { train_loop(c, folder); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::kOutOfMemory);
  EXPECT_TRUE(base::contains(error->what(), "sparse.tables"));
}

}  // namespace
}  // namespace segue::train
