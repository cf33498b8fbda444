#include "report/run_reader.h"

#include <cmath>
#include <filesystem>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "base/file.h"
#include "base/test_util.h"

namespace segue::report {
namespace {

std::string train_line(int step, double loss) {
  return R"({"event":"train","step":)" + std::to_string(step) + R"(,"wall_s":)" +
         std::to_string(step * 2) + R"(,"samples":)" + std::to_string(step * 64) +
         R"(,"loss_window":)" + std::to_string(loss) + "}\n";
}

/// A run folder with this metrics file.
std::string folder_with(const std::string& metrics, const std::string& name = "run") {
  const std::string folder = base::temp_path(name);
  base::make_folders(folder);
  base::put_file(folder + "/metrics.jsonl", metrics);
  return folder;
}

TEST(RunReader, AllFieldsOfATrainLine) {
  const report::Run run = read_run(folder_with(
      R"({"event":"train","step":120,"wall_s":3.5,"samples":7680,"loss":0.6,"loss_window":0.5,"auc":0.7,"auc_window":0.75,)"
      R"("lr":1e-3,"sparse_lr":2e-3,"grad_norm":null,"loss_z":-1,"grad_norm_z":2,"skipped_steps":1,"samples_window":100,)"
      R"("length_bin":64,"lengths":[1,2,3],"samples_per_s":50,"tokens_per_s":900,"mfu_jagged":0.4,"mfu_padded":0.5,)"
      R"("stages":{"load":0.5,"attention":0.25},"loader_wait_s":0.5,"memory_peak_bytes":1024,"table_bytes":2048,"new key":[{}]})"
      "\n"));
  ASSERT_EQ(run.train.size(), 1u);
  const TrainPoint& p = run.train[0];
  EXPECT_EQ(p.at.step, 120);
  EXPECT_EQ(p.at.wall_s, 3.5);
  EXPECT_EQ(p.at.samples, 7680);
  EXPECT_EQ(p.loss, 0.5);
  EXPECT_EQ(p.auc, 0.75);
  EXPECT_EQ(p.grad_norm, kNotFinite);
  EXPECT_EQ(p.loader_wait, 0.25);  // 0.5 s of the 100 / 50 s
  EXPECT_EQ(p.length_bin, 64);
  EXPECT_EQ(p.lengths, (std::vector<double>{1, 2, 3}));
  ASSERT_EQ(p.stages.size(), 2u);
  EXPECT_EQ(p.stages[0].first, "load");  // the order of the file, not of the alphabet
  EXPECT_EQ(run.status, "unfinished");
  EXPECT_TRUE(run.warnings.empty());
}

TEST(RunReader, EvaluationAndEnd) {
  const report::Run run = read_run(folder_with(
      train_line(10, 0.5) +
      R"({"event":"eval","step":10,"wall_s":21,"samples":640,"auc":0.7,"loss":0.4,"oracle_auc":0.8,"tasks":{"like":{"auc":0.6}}})"
      "\n"
      R"({"event":"end","step":10,"samples":640,"status":"target reached"})"
      "\n"));
  ASSERT_EQ(run.eval.size(), 1u);
  EXPECT_EQ(run.eval[0].oracle_auc, 0.8);
  EXPECT_TRUE(std::isnan(run.eval[0].baseline_auc));
  EXPECT_EQ(run.eval[0].tasks.at(0).name, "like");
  EXPECT_EQ(run.last().wall_s, 21);
  EXPECT_EQ(run.status, "target reached");
}

TEST(RunReader, EntropyIsTheMeanOfTasksWithBothClasses) {
  const auto eval_of = [](const std::string& tasks) {
    const std::string line = R"({"event":"eval","step":10,"normalized_entropy":2e11,"tasks":{)";
    return read_run(folder_with(train_line(10, 0.5) + line + tasks + "}}\n")).eval.at(0);
  };
  const std::string never = R"("never":{"normalized_entropy":6e11,"one_class":true})";
  const EvalPoint some = eval_of(
      R"("a":{"normalized_entropy":0.5},"b":{"normalized_entropy":0.75},"c":{"loss":1},)" + never);
  EXPECT_EQ(some.normalized_entropy, 0.625);
  EXPECT_FALSE(some.tasks.at(0).one_class);
  EXPECT_TRUE(some.tasks.at(3).one_class);
  EXPECT_TRUE(std::isnan(some.tasks.at(3).normalized_entropy));
  EXPECT_TRUE(std::isnan(eval_of(never).normalized_entropy));
  EXPECT_EQ(eval_of(R"("a":{"normalized_entropy":0.5})").normalized_entropy, 2e11);
}

TEST(RunReader, EvaluationsTellMoreThanAuc) {
  const std::string line =
      R"({"event":"eval","step":10,"auc":0.75,"auc_low":0.7,"auc_high":0.8,"baselines":{"item":0.6,"user":0.65},)"
      R"("baseline":"user","baseline_auc":0.65,"above_baseline_by":0.1,"above_baseline_error":0.02,)"
      R"("device":"cpu","model":"small","tasks":{"like":{"auc":0.75,"auc_low":0.7,"auc_high":0.8,)"
      R"("per_user":{"users":12,"labels":99,"auc":0.6,"ndcg":0.5,"recall":0.25,"k":10},)"
      R"("calibration_error":0.01,"calibration_curve":[{"labels":5,"prediction":0.2,"share":0.4},7],)"
      R"("by_history":[{"of":"0 to 31","labels":9,"auc":0.7,"auc_low":0.5,"auc_high":0.9}],)"
      R"("by_item":[{"of":"0","labels":3,"one_class":true}]}}})"
      "\n";
  const EvalPoint e = read_run(folder_with(train_line(10, 0.5) + line)).eval.at(0);
  EXPECT_EQ(e.auc_low, 0.7);
  EXPECT_EQ(e.baseline, "user");
  EXPECT_EQ(e.baselines.at(0), std::pair(std::string("item"), 0.6));
  EXPECT_EQ(e.above_by, 0.1);
  EXPECT_EQ(e.above_error, 0.02);
  EXPECT_EQ(e.device + e.model, "cpusmall");
  const TaskMetrics& t = e.tasks.at(0);
  EXPECT_EQ(t.users, 12);
  EXPECT_EQ(t.user_auc, 0.6);
  EXPECT_EQ(t.k, 10);
  ASSERT_EQ(t.calibration_curve.size(), 1u);
  EXPECT_EQ(t.calibration_curve[0].share, 0.4);
  EXPECT_EQ(t.by_history.at(0).of, "0 to 31");
  EXPECT_EQ(t.by_history.at(0).high, 0.9);
  EXPECT_TRUE(std::isnan(t.by_item.at(0).auc));
}

TEST(RunReader, AucOfOneClassIsNone) {
  const std::string line =
      R"({"event":"eval","step":10,"auc":0.5,"tasks":{"never":{"auc":0.5,"one_class":true}}})"
      "\n";
  const EvalPoint e = read_run(folder_with(train_line(10, 0.5) + line)).eval.at(0);
  EXPECT_TRUE(std::isnan(e.auc) && std::isnan(e.tasks.at(0).auc));
  EXPECT_TRUE(e.one_class());
}

TEST(RunReader, HalfLastLineIsNormal) {
  const report::Run run = read_run(folder_with(train_line(1, 0.5) + R"({"event":"train","st)"));
  EXPECT_EQ(run.train.size(), 1u);
  EXPECT_TRUE(run.warnings.empty());
}

TEST(RunReader, BrokenLineInTheMiddleIsSkippedWithItsNumber) {
  const report::Run run =
      read_run(folder_with(train_line(1, 0.5) + "\n{\"event\":\"tr\n[1]\n" + train_line(2, 0.4)));
  EXPECT_EQ(run.train.size(), 2u);
  ASSERT_EQ(run.warnings.size(), 2u);
  EXPECT_TRUE(base::contains(run.warnings[0], "metrics.jsonl:3: not a JSON object"));
  EXPECT_TRUE(base::contains(run.warnings[1], "metrics.jsonl:4:"));
}

TEST(RunReader, ManyBrokenLinesAreCounted) {
  std::string text = train_line(1, 0.5);
  for (int i = 0; i < 30; ++i) text += "broken\n";
  const report::Run run = read_run(folder_with(text));
  ASSERT_EQ(run.warnings.size(), 11u);
  EXPECT_TRUE(base::contains(run.warnings[10], "20 more lines"));
}

TEST(RunReader, ResumedRunCountsAStepOnce) {
  std::string text;
  for (const int step : {10, 20, 30, 40}) text += train_line(step, 1.0);
  text += R"({"event":"end","step":40,"status":"stopped"})"
          "\n";
  for (const int step : {30, 50}) text += train_line(step, 2.0);
  const report::Run run = read_run(folder_with(text));
  ASSERT_EQ(run.train.size(), 4u);
  EXPECT_EQ(run.train[1].at.step, 20);
  EXPECT_EQ(run.train[2].at.step, 30);
  EXPECT_EQ(run.train[2].loss, 2.0);
  EXPECT_EQ(run.train[3].at.step, 50);
  EXPECT_EQ(run.status, "unfinished");  // it went on after the end
}

TEST(RunReader, ConfigIsFlattened) {
  const Settings settings = detail::flatten_toml(
      "top = 1\n[model]\nlayers = 3\nsizes = [1, 2]\nrate = 0.001\n[[model.tables]]\nname = "
      "\"item\"\n");
  const Settings expected = {{"model.layers", "3"},
                             {"model.rate", "0.001"},
                             {"model.sizes", "[1, 2]"},
                             {"model.tables.0.name", "item"},
                             {"top", "1"}};
  EXPECT_EQ(settings, expected);
}

TEST(RunReader, BrokenConfigIsAWarning) {
  const std::string folder = folder_with(train_line(1, 0.5));
  base::put_file(folder + "/config.toml", "a = 1\nb = \n");
  const report::Run run = read_run(folder);
  ASSERT_EQ(run.warnings.size(), 1u);
  EXPECT_TRUE(base::contains(run.warnings[0], "config.toml: line 2"));
  EXPECT_TRUE(run.config.empty());
}

// The stack is not long enough for a call per part, which ended the process.
TEST(RunReader, AKeyOfManyPartsIsAWarning) {
  const std::string folder = folder_with(train_line(1, 0.5));
  std::string key = "a";
  for (int i = 0; i < 200'000; ++i) key += ".a";
  base::put_file(folder + "/config.toml", "b = 1\n[" + key + "]\n");
  const report::Run run = read_run(folder);
  ASSERT_EQ(run.warnings.size(), 1u);
  EXPECT_TRUE(base::contains(run.warnings[0], "config.toml: line 2: a key of more than 16 parts"));
}

std::string event(int64_t ms, const std::string& key, const std::string& value,
                  const std::string& metadata = "") {
  return R"(:::MLLOG {"namespace": "", "time_ms": )" + std::to_string(ms) +
         R"(, "event_type": "POINT_IN_TIME", "key": ")" + key + R"(", "value": )" + value +
         R"(, "metadata": {"file": "a.py", "lineno": 1)" + metadata + "}}\n";
}

TEST(RunReader, LogOfAnotherSystem) {
  const std::string path = base::temp_path("result_0.txt");
  base::put_file(path,
                 "starting\n" + event(1000, "submission_org", "\"Org\"") + "[rank0] " +
                     event(1000, "global_batch_size", "64") + event(5000, "run_start", "null") +
                     event(5000, "block_start", "null", R"(, "samples_count": 0)") +
                     event(7000, "train_loss", "0.5", R"(, "samples_count": 128, "lr": 0.001)") +
                     ":::MLLOG broken\n" +
                     event(9000, "block_stop", "null", R"(, "samples_count": 640)") +
                     event(12000, "eval_accuracy", "0.76", R"(, "samples_count": 640)") +
                     event(13000, "run_stop", "null", R"(, "status": "success")"));
  const report::Run run = read_run(path);
  ASSERT_EQ(run.eval.size(), 1u);
  EXPECT_EQ(run.eval[0].auc, 0.76);
  EXPECT_EQ(run.eval[0].at.samples, 640);
  EXPECT_EQ(run.eval[0].at.wall_s, 7.0);
  EXPECT_EQ(run.eval[0].at.step, 10);
  ASSERT_EQ(run.train.size(), 2u);
  EXPECT_EQ(run.train[0].loss, 0.5);
  EXPECT_EQ(run.train[0].samples_per_s, 64);
  EXPECT_EQ(run.train[1].samples_per_s, 256);
  EXPECT_EQ(run.status, "success");
  EXPECT_TRUE(run.name.ends_with("result_0.txt"));
  const Settings expected = {{"global_batch_size", "64"}, {"submission_org", "Org"}};
  EXPECT_EQ(run.mlperf, expected);
  ASSERT_EQ(run.warnings.size(), 1u);
  EXPECT_TRUE(base::contains(run.warnings[0], ":7: not an MLPerf event"));
}

TEST(RunReader, FolderGivesParametersOfItsMlperfLog) {
  const std::string folder = folder_with(train_line(1, 0.5));
  base::put_file(folder + "/mlperf.log",
                 event(1, "global_batch_size", "64") + event(2, "eval_accuracy", "0.9"));
  const report::Run run = read_run(folder);
  EXPECT_EQ(run.mlperf.size(), 1u);
  EXPECT_TRUE(run.eval.empty());  // the metrics file is the one that counts
}

TEST(RunReader, NamesAreAsLongAsNeeded) {
  const std::string a = folder_with(train_line(1, 0.5), "a") + "/x",
                    b = folder_with(train_line(1, 0.5), "b") + "/x";
  for (const std::string& folder : {a, b}) {
    base::make_folders(folder);
    base::put_file(folder + "/metrics.jsonl", train_line(1, 0.5));
  }
  const auto runs = read_runs({a, b + "/", b});
  EXPECT_TRUE(runs[0].name.ends_with(".a/x")) << runs[0].name;
  EXPECT_TRUE(runs[1].name.ends_with(".b/x")) << runs[1].name;
  EXPECT_TRUE(runs[2].name.ends_with(".b/x (2)")) << runs[2].name;
  EXPECT_EQ(read_runs({a})[0].name, "x");
}

TEST(RunReader, Errors) {
  const auto missing = base::error_of([] { read_runs({"/no/such/run"}); });
  EXPECT_EQ(missing->code(), ErrorCode::kNotFound);
  EXPECT_TRUE(base::contains(missing->what(), "/no/such/run: no such run folder"));

  const std::string bare = base::temp_path("bare");
  base::make_folders(bare);
  const auto no_metrics = base::error_of([&] { read_runs({bare}); });
  EXPECT_EQ(no_metrics->code(), ErrorCode::kNotFound);
  EXPECT_TRUE(base::contains(no_metrics->what(), "no metrics.jsonl"));

  const std::string empty = folder_with("");
  const auto nothing = base::error_of([&] { read_runs({empty}); });
  EXPECT_EQ(nothing->code(), ErrorCode::kCorrupt);
  EXPECT_TRUE(base::contains(nothing->what(), "no train or eval line"));

  const std::string text = base::temp_path("notes.txt");
  base::put_file(text, "hello\n");
  EXPECT_TRUE(base::contains(base::error_of([&] { read_runs({text}); })->what(), ":::MLLOG"));
}

TEST(RunReader, EmptyRunBesideAnotherIsAWarning) {
  const auto runs = read_runs({folder_with("", "empty"), folder_with(train_line(1, 0.5), "full")});
  EXPECT_TRUE(base::contains(runs[0].warnings.at(0), "no train or eval line yet"));
  EXPECT_TRUE(runs[1].warnings.empty());
}

}  // namespace
}  // namespace segue::report
