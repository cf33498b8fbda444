#include <string>
#include <vector>

#include <fmt/format.h>

#include "base/error.h"
#include "ops/metrics.h"
#include "runner/cases.h"

namespace segue::golden {

namespace {
constexpr int64_t kMostBins = 100'000'000;
}

void run_metrics(const CaseContext& context) {
  const Case& golden = context.golden;
  const Settings& settings = golden.settings();
  settings.require_number("eta", ops::NormalizedEntropy::kEta);
  const int64_t tasks = settings.positive("n_tasks");
  const int64_t updates = settings.positive("n_updates");
  const int64_t bins = settings.positive("num_bins");
  const Shape first = golden.shape("predictions0");
  if (first.empty() || first[0] != tasks || bins > kMostBins) {
    fail(ErrorCode::kCorrupt, fmt::format("{} tasks, {} bins, predictions of shape {}: impossible",
                                          tasks, bins, to_string(first)));
  }
  std::vector<ops::BinnedAuc> auc(static_cast<size_t>(tasks), ops::BinnedAuc(bins));
  std::vector<ops::NormalizedEntropy> entropy(static_cast<size_t>(tasks));

  const auto per_task = [&](const auto& metrics, auto&& value) {
    std::vector<double> values;
    values.reserve(metrics.size());
    for (const auto& metric : metrics) values.push_back(value(metric));
    return values;
  };
  for (int64_t update = 0; update < updates; ++update) {
    const Shape shape = golden.shape(fmt::format("predictions{}", update));
    const Shape expected = {tasks, shape.empty() ? 0 : shape.back()};
    const auto column = [&](const char* name) {
      const Values stored = golden.values(fmt::format("{}{}", name, update), expected);
      return std::vector<float>(stored.data.begin(), stored.data.end());
    };
    const std::vector<float> predictions = column("predictions");
    const std::vector<float> labels = column("labels");
    const std::vector<float> weights = column("weights");
    const auto samples = static_cast<size_t>(expected[1]);
    for (size_t task = 0; task < static_cast<size_t>(tasks); ++task) {
      const auto of_task = [&](const std::vector<float>& all) {
        return std::span(all).subspan(task * samples, samples);
      };
      auc[task].add(of_task(predictions), of_task(labels), of_task(weights));
      entropy[task].add(of_task(predictions), of_task(labels), of_task(weights));
    }
    context.checker.check("auc", fmt::format("expect_auc_after{}", update),
                          per_task(auc, [](const ops::BinnedAuc& m) { return m.value(); }), {tasks},
                          Level::kFloatSum);
    context.checker.check(
        "ne", fmt::format("expect_ne_after{}", update),
        per_task(entropy, [](const ops::NormalizedEntropy& m) { return m.value(); }), {tasks},
        Level::kFloatSum);
  }
  // The reference adds up weights and labels of an update in float32 and only then in double; the
  // cross entropy is double throughout.
  struct Sum {
    const char* name;
    double ops::NormalizedEntropy::*member;
    Level level;
  };
  const Sum sums[] = {
      {"expect_cross_entropy_sum", &ops::NormalizedEntropy::cross_entropy_sum, Level::kDoubleSum},
      {"expect_weighted_num_samples", &ops::NormalizedEntropy::weighted_num_samples,
       Level::kFloatSum},
      {"expect_pos_labels", &ops::NormalizedEntropy::positive_labels, Level::kFloatSum},
      {"expect_neg_labels", &ops::NormalizedEntropy::negative_labels, Level::kFloatSum}};
  for (const Sum& sum : sums) {
    const auto value = [&](const ops::NormalizedEntropy& m) { return m.*sum.member; };
    context.checker.check("sums", sum.name, per_task(entropy, value), {tasks}, sum.level);
  }
}

}  // namespace segue::golden
