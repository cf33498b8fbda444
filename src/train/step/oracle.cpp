#include "train/step/oracle.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <vector>

#include "base/error.h"
#include "ops/metrics.h"

namespace segue::train {
namespace {

/// Probability that any bit of `mask` is set; bits are drawn independently.
double probability(const data::RandomBatches& data, const Batch& batch, int64_t sample,
                   int64_t position, int64_t mask) {
  double none = 1;
  for (int64_t bit = 0; mask >> bit > 0; ++bit) {
    if ((mask >> bit & 1) != 0) none *= 1 - data.probability(batch, sample, position, bit);
  }
  return 1 - none;
}

model::ColumnDemand label_column(const model::Model& model) {
  const std::vector<model::ColumnDemand> demands = model.demands();
  const auto label =
      std::ranges::find(demands, model::ColumnDemand::Role::kLabel, &model::ColumnDemand::role);
  SEGUE_ASSERT(label != demands.end(), "a model has labels");
  return *label;
}

}  // namespace

double oracle_auc(const data::RandomBatches& data, const model::Model& model,
                  std::span<const Batch> batches) {
  const std::string column = label_column(model).column;
  double sum = 0;
  int64_t binary = 0;
  for (const model::TaskConfig& task : model.tasks()) {
    if (task.kind != ops::TaskKind::kBinary) continue;
    std::vector<float> predictions, labels;
    for (const Batch& batch : batches) {
      const Batch::Column& bits = batch.column(column);
      const std::span<const int64_t> offsets = batch.offsets(bits);
      for (int64_t b = 0; b < batch.num_samples(); ++b) {
        const int64_t first = offsets[static_cast<size_t>(b)];
        for (int64_t i = first; i < offsets[static_cast<size_t>(b) + 1]; ++i) {
          predictions.push_back(
              static_cast<float>(probability(data, batch, b, i - first, task.bit)));
          labels.push_back((bits.values[i] & task.bit) > 0 ? 1.0f : 0.0f);
        }
      }
    }
    sum += ops::exact_auc(predictions, labels);
    ++binary;
  }
  return binary == 0 ? 0.5 : sum / static_cast<double>(binary);
}

std::vector<int64_t> sample_lists(const model::Model& model, std::span<const Batch> batches) {
  const model::ColumnDemand label = label_column(model);
  std::vector<int64_t> lists;
  if (label.of != model::ColumnDemand::Of::kCandidate) return lists;
  int64_t sample = 0;
  for (const Batch& batch : batches) {
    const std::span<const int64_t> offsets = batch.offsets(batch.column(label.column));
    for (size_t b = 0; b + 1 < offsets.size(); ++b, ++sample) {
      lists.insert(lists.end(), static_cast<size_t>(offsets[b + 1] - offsets[b]), sample);
    }
  }
  return std::ssize(lists) > sample ? lists : std::vector<int64_t>();
}

}  // namespace segue::train
