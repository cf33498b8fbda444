// What a DLRM's config alone tells.

#include <algorithm>
#include <bit>

#include <fmt/format.h>

#include "model/dlrm.h"

namespace segue::model {
namespace {

using Of = ColumnDemand::Of;
using Role = ColumnDemand::Role;

Of of(FeatureOf feature) {
  if (feature == FeatureOf::kEvent) return Of::kEvent;
  return feature == FeatureOf::kCandidate ? Of::kCandidate : Of::kSample;
}

/// Multiplications of a row of the stack.
double products(int64_t in, const std::vector<int64_t>& widths) {
  double sum = 0;
  for (const int64_t out : widths) {
    sum += static_cast<double>(in) * static_cast<double>(out);
    in = out;
  }
  return sum;
}

}  // namespace

std::string Dlrm::summary() const {
  return fmt::format(
      "DLRM of {} bags of width {}{}, {} interaction, top {}", config_.features.size(), dim_,
      config_.has_dense() ? fmt::format(" and {} dense features through {}", config_.dense_width(),
                                        fmt::join(config_.bottom, "-"))
                          : "",
      config_.interaction == Interaction::kDot ? "dot" : "concat", fmt::join(config_.top, "-"));
}

std::vector<ColumnDemand> Dlrm::demands() const {
  std::vector<ColumnDemand> all;
  for (const BagFeature& f : config_.features) {
    add_value_demands({.key = "model.dlrm.features.column",
                       .column = f.column,
                       .of = of(f.of),
                       .table = f.table,
                       .length = f.of == FeatureOf::kSample ? f.max_length : 1},
                      f.values, all);
  }
  const bool candidates = config_.has(FeatureOf::kCandidate);
  ColumnDemand label{"model.dlrm.label", config_.label, candidates ? Of::kCandidate : Of::kSample,
                     Role::kLabel};
  for (const TaskConfig& task : tasks()) {
    const auto bits = static_cast<int64_t>(std::bit_width(static_cast<uint64_t>(task.bit)));
    label.bits = std::max(label.bits, bits);
  }
  all.push_back(std::move(label));
  for (const std::string& name : config_.numeric) {
    all.push_back({.key = "model.dlrm.numeric",
                   .column = name,
                   .of = candidates ? Of::kCandidate : Of::kSample,
                   .role = Role::kNumber});
  }
  if (!config_.dense.empty()) {
    all.push_back({.key = "model.dlrm.dense",
                   .column = config_.dense,
                   .role = Role::kNumber,
                   .length = config_.dense_features});
  }
  return all;
}

int64_t Dlrm::sample_tokens(int64_t events, int64_t candidates) const {
  int64_t ids = 0;
  for (const BagFeature& f : config_.features) {
    ids += f.values * (f.of == FeatureOf::kSample  ? f.max_length
                       : f.of == FeatureOf::kEvent ? events
                                                   : candidates);
  }
  return ids;
}

int64_t Dlrm::most_events(int64_t /*candidates*/) const { return config_.max_events; }
int64_t Dlrm::most_tokens() const { return sample_tokens(config_.max_events, 1); }

int64_t Dlrm::batch_memory(const StepBounds& bounds) const {
  const bool candidates = config_.has(FeatureOf::kCandidate);
  const int64_t rows = bounds.samples * (candidates ? bounds.candidates : 1);
  const int64_t ids = rows * sample_tokens(bounds.events, 1);
  const auto features = static_cast<int64_t>(config_.features.size());
  const auto tasks_count = static_cast<int64_t>(tasks().size());
  constexpr int64_t kSmall = int64_t{1} << 20;  // ends of arrays, alignment
  return ids * (8 + 4 * 4) + (rows + 1) * features * 8 +
         rows * (config_.dense_width() + tasks_count) * 8 + kSmall;
}

double Dlrm::row_flops() const {
  std::vector<int64_t> top = config_.top;
  top.push_back(static_cast<int64_t>(tasks().size()));
  double multiplications = products(interaction_columns(), top);
  if (config_.has_dense()) multiplications += products(config_.dense_width(), config_.bottom);
  if (config_.interaction == Interaction::kDot) {
    const int64_t pairs = vectors() * (vectors() - 1) / 2;
    multiplications += static_cast<double>(pairs * dim_);
  }
  return 2 * multiplications;
}

double Dlrm::flops(std::span<const int64_t> token_offsets, bool training) const {
  const auto samples = static_cast<double>(token_offsets.size()) - 1;
  return (training ? 3 : 1) * samples * row_flops();
}

double Dlrm::padded_flops() const { return 3 * row_flops(); }

SampleWork Dlrm::work() const {
  SampleWork w;
  const auto& features = config_.features;
  const auto events = std::ranges::find(features, FeatureOf::kEvent, &BagFeature::of);
  w.shape.history = (events != features.end() ? *events : features.front()).columns().front();
  const auto tokens = static_cast<double>(std::max<int64_t>(1, sample_tokens(1, 1)));
  w.token_flop = 3 * row_flops() / tokens;
  w.layers = 1;
  w.width = dim_;
  return w;
}

std::vector<Model::Bucket> Dlrm::buckets() const {
  std::vector<Bucket> all{{0, top_parameters_}};
  if (config_.has_dense()) all.push_back({top_parameters_, parameters_.all().size()});
  return all;
}

}  // namespace segue::model
