#include "train/step/metrics.h"

#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/test_util.h"
#include "train/run/terminal_log.h"

namespace segue::train {
namespace {

const std::vector<float> kPredictions{0.75f, 0.25f, 0.5f, 0.5f};

/// One task for each list of labels.
Evaluation evaluation_of(const std::vector<std::vector<float>>& labels) {
  std::vector<model::TaskConfig> tasks;
  model::Pass pass;
  pass.samples = pass.num_labels = static_cast<int64_t>(kPredictions.size());
  for (const std::vector<float>& of_task : labels) {
    tasks.push_back({"task" + std::to_string(tasks.size()), ops::TaskKind::kBinary, 1, 1.0});
    pass.task_losses.push_back(1);
    pass.predictions.insert(pass.predictions.end(), kPredictions.begin(), kPredictions.end());
    pass.labels.insert(pass.labels.end(), of_task.begin(), of_task.end());
  }
  Evaluator evaluator(tasks);
  evaluator.add(pass);
  return evaluator.result();
}

/// What the console says of entropy and after it.
std::string entropy_in_line(const Evaluation& evaluation) {
  testing::internal::CaptureStderr();
  log_evaluation(evaluation, 7, 1.0);
  const std::string line = testing::internal::GetCapturedStderr();
  return line.substr(std::min(line.size(), line.find(" NE ")));
}

TEST(MetricsTest, EntropyOfOneClassStaysOutOfWhatPeopleRead) {
  const std::vector<float> both{1, 0, 1, 0}, none{0, 0, 0, 0}, all{1, 1, 1, 1};
  const Evaluation plain = evaluation_of({both}), mixed = evaluation_of({none, both, all});
  EXPECT_FALSE(plain.tasks[0].one_class);
  EXPECT_TRUE(mixed.tasks[0].one_class && mixed.tasks[2].one_class);
  EXPECT_FALSE(mixed.tasks[1].one_class);
  // The reference's numbers are kept.
  EXPECT_EQ(plain.telling_entropy(), plain.normalized_entropy());
  EXPECT_GT(mixed.tasks[0].normalized_entropy, 1e6);
  EXPECT_GT(mixed.normalized_entropy(), 1e6);
  EXPECT_EQ(mixed.telling_entropy(), plain.normalized_entropy());
  EXPECT_EQ(entropy_in_line(mixed), entropy_in_line(plain));

  EXPECT_FALSE(evaluation_of({none, all}).telling_entropy());
  EXPECT_TRUE(base::contains(entropy_in_line(evaluation_of({none, all})), "NE n/a (one class) "));
}

}  // namespace
}  // namespace segue::train
