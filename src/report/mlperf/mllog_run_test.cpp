#include "report/mlperf/mllog_run.h"

#include <cmath>

#include <gtest/gtest.h>

#include "base/file.h"
#include "base/test_util.h"
#include "report/mlperf/mllog_test_util.h"

namespace segue::report {
namespace {

using base::contains;
using Mode = MllogWriter::Mode;

constexpr int64_t kBatch = 8192;

/// A run in memory: the log, and what a checkpoint before each call of training would keep.
struct Checkpoint {
  MllogState state;
  size_t log_bytes = 0;
};
struct WholeRun {
  std::string log;
  std::vector<Checkpoint> checkpoints;  // [i]: before training call i
};

void begin(MllogRun& run) {
  run.init_start();
  run.open(test_submission(), test_hyperparameters(kBatch));
}

WholeRun whole_run(const std::string& path) {
  WholeRun whole;
  MllogRun run(path, Mode::kTruncate);
  begin(run);
  for (const auto& call : training_calls(dlrmv4_eval_grid(kBatch), 2)) {
    whole.checkpoints.push_back({run.state(), base::read_file(path).size()});
    call(run);
  }
  whole.log = base::read_file(path);
  return whole;
}

void expect_complete(const std::string& path, const std::string& what) {
  const LintReport report = lint_mllog(path, {.werror = true});
  EXPECT_EQ(report.verdict, LintVerdict::kPassed) << what << "\n" << lint_text(report);
}

/// Resumes at training call `from` and goes on to the end.
void finish(const std::string& path, const MllogState& state, size_t from) {
  MllogRun run(path, Mode::kAppend, mllog_state_from_json(to_json(state)));
  begin(run);
  const auto calls = training_calls(dlrmv4_eval_grid(kBatch), 2);
  for (size_t i = from; i < calls.size(); ++i) calls[i](run);
  EXPECT_TRUE(run.state().run_stopped);
}

/// Cut anywhere (between lines and within), resumed from any checkpoint that existed by then.
TEST(MllogRun, KilledAnywhereAndResumedTheLogIsComplete) {
  const std::string path = base::temp_path("log");
  const WholeRun whole = whole_run(path);
  std::vector<size_t> cuts;
  for (size_t at = 0; at < whole.log.size(); at = whole.log.find('\n', at) + 1) {
    const size_t end = whole.log.find('\n', at);
    cuts.insert(cuts.end(), {at, (at + end) / 2, end});
  }
  cuts.push_back(whole.log.size());
  for (const size_t cut : cuts) {
    const std::string what = "cut at " + std::to_string(cut);
    base::put_file(path, whole.log.substr(0, cut));
    finish(path, {}, 0);
    expect_complete(path, what + ", no checkpoint");
    for (size_t i = 0; i < whole.checkpoints.size(); ++i) {
      if (whole.checkpoints[i].log_bytes > cut) break;
      base::put_file(path, whole.log.substr(0, cut));
      finish(path, whole.checkpoints[i].state, i);
      expect_complete(path, what + ", checkpoint " + std::to_string(i));
    }
  }
}

TEST(MllogRun, NothingFollowsRunStop) {
  const std::string path = base::temp_path("log");
  const WholeRun whole = whole_run(path);
  for (const Checkpoint& checkpoint : whole.checkpoints) {
    finish(path, checkpoint.state, 0);
    EXPECT_EQ(base::read_file(path), whole.log);
  }
}

TEST(MllogRun, CallingTwiceWritesOnce) {
  const std::string path = base::temp_path("log");
  MllogRun run(path, Mode::kTruncate);
  for (int i = 0; i < 2; ++i) begin(run);
  for (int i = 0; i < 2; ++i) run.block_start(0);
  for (int i = 0; i < 2; ++i) run.block_stop(57'344'000);
  for (int i = 0; i < 2; ++i) run.eval_start(57'344'000);
  run.eval_done(57'344'000, 0.76);
  EXPECT_EQ(run.state().last_eval_samples, 57'344'000);
  EXPECT_EQ(run.state().last_eval_accuracy, 0.76);
  for (int i = 0; i < 2; ++i) run.stop(MllogStatus::kSuccess, 57'344'000);
  expect_complete(path, "");
  const auto lines = lines_of(base::read_file(path));
  EXPECT_EQ(lines.size(), 36u + 6);
}

TEST(MllogRun, StopEndsTheBlock) {
  const std::string path = base::temp_path("log");
  MllogRun run(path, Mode::kTruncate);
  begin(run);
  run.block_start(0);
  run.stop(MllogStatus::kAborted, 8192);
  const auto lines = lines_of(base::read_file(path));
  EXPECT_TRUE(contains(lines[lines.size() - 2], "\"block_stop\""));
  EXPECT_TRUE(contains(lines.back(),
                       "\"status\": \"aborted\", \"samples_count\": 8192, "
                       "\"epoch_num\": 3.57"));
}

TEST(MllogRun, RefusesASecondOpinionOnTheSettings) {
  const std::string path = base::temp_path("log");
  whole_run(path);
  MllogRun run(path, Mode::kAppend);
  const auto error =
      base::error_of([&] { run.open(test_submission(), test_hyperparameters(4096)); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::kConfig);
  EXPECT_TRUE(contains(error->what(), "global_batch_size = 8192, but now it is 4096"));
}

TEST(MllogRun, RefusesALogThatIsBehindTheCheckpoint) {
  const std::string path = base::temp_path("log");
  const WholeRun whole = whole_run(path);
  const MllogState late = whole.checkpoints.back().state;
  for (const size_t bytes : {size_t{0}, whole.checkpoints[6].log_bytes}) {
    base::put_file(path, whole.log.substr(0, bytes));
    const auto error = base::error_of([&] { MllogRun(path, Mode::kAppend, late); });
    ASSERT_TRUE(error);
    EXPECT_EQ(error->code(), ErrorCode::kCorrupt);
    EXPECT_TRUE(contains(error->what(), path));
  }
}

TEST(MllogRun, RefusesWhatWouldFailLater) {
  const std::string path = base::temp_path("log");
  MllogRun run(path, Mode::kTruncate);
  auto nameless = test_submission();
  nameless.org = "";
  const auto error = base::error_of([&] { run.open(nameless, test_hyperparameters(kBatch)); });
  EXPECT_EQ(error->code(), ErrorCode::kConfig);
  EXPECT_TRUE(contains(error->what(), "submission_org"));
  auto empty = test_hyperparameters(kBatch);
  empty.micro_batch_size = 0;
  EXPECT_TRUE(contains(base::error_of([&] { run.open(test_submission(), empty); })->what(),
                       "micro_batch_size"));
  EXPECT_EQ(base::read_file(path), "");  // nothing half-said
  begin(run);
  EXPECT_EQ(base::error_of([&] { run.eval_done(1, std::nan("")); })->code(), ErrorCode::kNumeric);
  EXPECT_EQ(base::error_of([&] { run.eval_done(1, 1.5); })->code(), ErrorCode::kNumeric);
}

TEST(MllogState, SurvivesJsonAndRefusesAnythingElse) {
  MllogState state;
  state.run_opened = state.in_block = true;
  state.samples = int64_t{1} << 60;
  state.last_eval_accuracy = 0.1 + 0.2;
  EXPECT_EQ(mllog_state_from_json(to_json(state)), state);
  for (const char* text : {"", "{}", "[]", R"({"run_opened": 1})"}) {
    EXPECT_EQ(base::error_of([&] { mllog_state_from_json(text); })->code(), ErrorCode::kCorrupt);
  }
  const std::string good = to_json(MllogState{});
  for (const auto& [key, value] :
       std::vector<std::pair<std::string, std::string>>{{"samples", "-1"},
                                                        {"samples", "18446744073709551615"},
                                                        {"samples", "1e300"},
                                                        {"last_eval_samples", "-2"},
                                                        {"last_eval_samples", "true"},
                                                        {"last_eval_accuracy", "1.5"},
                                                        {"run_stopped", "0"}}) {
    std::string text = good;
    const size_t at = text.find("\"" + key + "\":") + key.size() + 3;
    text.replace(at, text.find_first_of(",}", at) - at, value);
    EXPECT_EQ(base::error_of([&] { mllog_state_from_json(text); })->code(), ErrorCode::kCorrupt)
        << text;
  }
}

}  // namespace
}  // namespace segue::report
