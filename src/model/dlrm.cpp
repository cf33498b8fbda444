#include "model/dlrm.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "base/config_checks.h"
#include "base/error.h"
#include "model/pass_scope.h"
#include "model/precision.h"
#include "ops/bags.h"
#include "ops/interaction.h"
#include "ops/loss.h"
#include "ops/rows.h"
#include "tensor/part_timer.h"

namespace segue::model {
namespace {

/// Values of one thing stand side by side.
void require_same_lengths(const Batch& batch, const std::string& first, const std::string& other) {
  if (std::ranges::equal(batch.offsets(first), batch.offsets(other))) return;
  fail(ErrorCode::kInvalidArgument,
       fmt::format("column `{}` has other lengths than `{}`: both have values of one feature of "
                   "model.dlrm.features; give it columns of the same events, candidates or samples",
                   other, first));
}

}  // namespace

struct Dlrm::Prepared final : PreparedBatch {
  /// One feature: a bag of ids for every row.
  struct Bag {
    Part<int64_t> offsets;                    // [rows + 1]
    Part<int32_t> index, bag;                 // [ids]: table row (-1: none), bag
    Part<int32_t> sorted_keys, sorted_items;  // of the index, for a GPU: see ops::sort_index
  };
  /// [features][columns]: ids, and memory of those that the batch leaves to be made.
  std::vector<std::vector<HostArray<int64_t>>> attributes;
  std::vector<std::vector<std::span<const int64_t>>> ids;
  std::vector<int64_t> row_offsets{0};  // [samples + 1]
  std::vector<Bag> bags;
  Part<float> dense;                      // [rows, dense features]
  Part<double> dense_double;              // instead, for models in double
  std::vector<Part<float>> label_values;  // per task
  std::vector<Part<double>> label_values_double;
  bool in_double = false;
};

struct Dlrm::Forward {
  Tensor table_rows;
  DenseStack::Saved bottom, top;
  Tensor vectors;  // [rows, sum of their widths]
  Tensor crossed;  // what the top MLP reads
};

Dlrm::Dlrm(const ModelConfig& config, const sparse::TablesConfig& tables)
    : Model(config.tasks), config_(config.dlrm), tables_config_(tables) {
  config.validate();
  dim_ = check_demands(tables);
  for (const BagFeature& f : config_.features) {
    feature_tables_.push_back(tables.id(f.table));
    columns_.push_back(f.columns());
  }
  if (config_.interaction == Interaction::kDot && config_.has_dense() &&
      config_.bottom.back() != dim_) {
    base::fail_config(fmt::format(
        "model.dlrm.interaction = \"dot\" multiplies vectors of one width, but model.dlrm.bottom "
        "ends with {} and table rows have {}; make them equal",
        config_.bottom.back(), dim_));
  }
  std::vector<int64_t> widths{interaction_columns()};
  widths.insert(widths.end(), config_.top.begin(), config_.top.end());
  widths.push_back(static_cast<int64_t>(config.tasks.size()));
  top_ = std::make_unique<DenseStack>(parameters_, "top_mlp",
                                      DenseStackConfig{.widths = widths, .final_relu = false});
  top_parameters_ = parameters_.all().size();
  if (!config_.has_dense()) return;
  widths = {config_.dense_width()};
  widths.insert(widths.end(), config_.bottom.begin(), config_.bottom.end());
  bottom_ =
      std::make_unique<DenseStack>(parameters_, "bottom_mlp", DenseStackConfig{.widths = widths});
}

int64_t Dlrm::vectors() const {
  return static_cast<int64_t>(config_.features.size()) + (config_.has_dense() ? 1 : 0);
}

int64_t Dlrm::interaction_columns() const {
  const auto bags = static_cast<int64_t>(config_.features.size());
  if (config_.interaction == Interaction::kDot)
    return ops::dot_interaction_columns(vectors(), dim_);
  return bags * dim_ + (config_.has_dense() ? config_.bottom.back() : 0);
}

// ---- a pass ----

Dlrm::Forward Dlrm::forward(const Exec& exec, Prepared& batch, const UploadBlock::Placed& placed,
                            const PassResults& results) const {
  const int64_t rows = batch.num_labels;
  Forward f;
  f.table_rows = tables_->rows(exec, batch.ticket, batch.looked_up);
  const int64_t in_front = bottom_ ? bottom_->out() : 0;
  f.vectors = exec.activation({rows, in_front + dim_ * std::ssize(batch.bags)});
  if (bottom_) {
    const Tensor given =
        batch.in_double ? placed.tensor(batch.dense_double) : placed.tensor(batch.dense);
    f.bottom =
        bottom_->forward(exec, as_activation(exec, given.reshape({rows, config_.dense_width()})));
    ops::convert(exec, f.bottom.y(), f.vectors.columns(0, in_front));
  }
  for (size_t i = 0; i < batch.bags.size(); ++i) {
    const Prepared::Bag& bag = batch.bags[i];
    ops::bag_sum_forward(exec, f.table_rows, placed.tensor(bag.index), placed.tensor(bag.offsets),
                         f.vectors.columns(in_front + static_cast<int64_t>(i) * dim_, dim_));
  }
  f.crossed = f.vectors;
  if (config_.interaction == Interaction::kDot) {
    f.crossed = exec.activation({rows, interaction_columns()});
    ops::dot_interaction_forward(exec, f.vectors, vectors(), f.crossed);
  }
  const bool in_place = results.logits.dtype == exec.dtype();
  f.top = top_->forward(exec, f.crossed, in_place ? results.logits : Tensor());
  if (!in_place) ops::convert(exec, f.top.y(), results.logits);
  return f;
}

Tensor Dlrm::loss(const Exec& exec, const Prepared& batch, const UploadBlock::Placed& placed,
                  double denominator, const PassResults& results) const {
  const Exec wide = wide_exec(exec);
  const Tensor dlogits = wide.activation({batch.num_labels, results.logits.size(1)});
  for (size_t k = 0; k < tasks().size(); ++k) {
    const auto column = static_cast<int64_t>(k);
    const Tensor labels = batch.in_double ? placed.tensor(batch.label_values_double[k])
                                          : placed.tensor(batch.label_values[k]);
    ops::loss_forward_backward(wide, tasks()[k].kind, results.logits.column(column), labels, {},
                               tasks()[k].weight / denominator, dlogits.column(column),
                               results.predictions.select(column),
                               results.losses.narrow(0, column, 1));
  }
  return rounded_activation(exec, dlogits);
}

Tensor Dlrm::backward(const Exec& exec, const Prepared& batch, const UploadBlock::Placed& placed,
                      const Forward& saved, const Tensor& dlogits,
                      const PassOptions& options) const {
  const int64_t rows = batch.num_labels;
  const Tensor table_gradients = exec.statistic({batch.table_rows, dim_});
  zero(table_gradients, exec.stream);
  const Arena::Mark scratch(*exec.arena);
  const Tensor dcrossed = exec.activation({rows, saved.crossed.size(1)});
  top_->backward(exec, saved.top, dlogits, dcrossed);
  if (options.gradients_ready) options.gradients_ready(0);
  Tensor dvectors = dcrossed;
  if (config_.interaction == Interaction::kDot) {
    dvectors = exec.activation({rows, saved.vectors.size(1)});
    ops::dot_interaction_backward(exec, dcrossed, saved.vectors, vectors(), dvectors);
  }
  const int64_t in_front = bottom_ ? bottom_->out() : 0;
  if (bottom_) bottom_->backward(exec, saved.bottom, dvectors.columns(0, in_front), {});
  for (size_t i = 0; i < batch.bags.size(); ++i) {
    const Prepared::Bag& bag = batch.bags[i];
    const Arena::Mark of_bag(*exec.arena);
    ops::SortedIndex sorted;
    if (exec.device.is_cuda()) {
      sorted = {placed.tensor(bag.sorted_keys), placed.tensor(bag.sorted_items)};
    }
    ops::bag_sum_backward(exec, dvectors.columns(in_front + static_cast<int64_t>(i) * dim_, dim_),
                          placed.tensor(bag.index), placed.tensor(bag.bag), table_gradients,
                          sorted);
  }
  return table_gradients;
}

StepMemory Dlrm::step_memory(const StepBounds& bounds, Precision precision, Device device) const {
  const bool candidates = config_.has(FeatureOf::kCandidate);
  const int64_t rows = bounds.samples * (candidates ? bounds.candidates : 1);
  int64_t distinct = 0, largest_bag = 0;
  for (size_t i = 0; i < config_.features.size(); ++i) {
    const BagFeature& f = config_.features[i];
    const int64_t each = f.values * (f.of == FeatureOf::kSample  ? f.max_length
                                     : f.of == FeatureOf::kEvent ? bounds.events
                                                                 : 1);
    const auto share =
        static_cast<int64_t>(std::ceil(bounds.distinct_share * static_cast<double>(rows * each)));
    distinct +=
        std::min(share, tables_config_.tables[static_cast<size_t>(feature_tables_[i])].id_limit());
    largest_bag = std::max(largest_bag, rows * each);
  }
  ArenaPlan plan(precision, device);
  const Exec& exec = plan.exec;
  pass_memory(exec, rows);
  exec.statistic({2, distinct, dim_});  // and gradients
  const int64_t rows_used = exec.arena->used();

  const bool converts = exec.dtype() != exec.parameter_dtype();
  const int64_t width = (bottom_ ? bottom_->out() : 0) + dim_ * std::ssize(config_.features);
  exec.activation({rows, width});
  if (bottom_) {
    if (converts) exec.activation({rows, config_.dense_width()});
    bottom_->forward_memory(exec, rows);
  }
  if (config_.interaction == Interaction::kDot) exec.activation({rows, interaction_columns()});
  const Tensor dlogits = wide_exec(exec).activation({rows, std::ssize(tasks())});
  top_->forward_memory(exec, rows, converts ? Tensor() : dlogits);  // logits are results
  if (converts) exec.activation({rows, std::ssize(tasks())});       // dlogits
  const int64_t forward = exec.arena->used();

  exec.activation({rows, interaction_columns()});  // dcrossed
  plan_backward(exec, *top_, rows, dlogits);
  if (config_.interaction == Interaction::kDot) exec.activation({rows, width});  // dvectors
  if (bottom_) plan_backward(exec, *bottom_, rows, Tensor());
  if (device.is_cuda()) exec.activation({largest_bag, dim_});  // a gradient for each id
  plan_segment_sum(exec, largest_bag, distinct, dim_);
  return plan.step(rows_used, forward);
}

Pass Dlrm::enqueue(const Exec& caller, PreparedBatch& prepared, const PassOptions& options) {
  auto& batch = static_cast<Prepared&>(prepared);
  PassScope scope(caller, parameters_, options, batch.num_labels);
  const Exec& exec = scope.exec;

  const auto work = [&](double passes) {
    return [&, passes] {
      return PartWork{.flop = passes * static_cast<double>(batch.num_labels) * row_flops(),
                      .samples = batch.samples(),
                      .arena_bytes = exec.arena->used()};
    };
  };
  std::optional<Part> part;
  part.emplace("forward", work(1));
  const UploadBlock::Placed placed = batch.block.place(exec);
  Pass pass = start_pass(exec, batch, placed, options.training);
  const Forward saved = forward(exec, batch, placed, pass.results);
  if (options.probe) options.probe("crossed", saved.crossed);
  const Tensor dlogits = loss(exec, batch, placed, scope.denominator, pass.results);
  Tensor table_gradients;
  if (options.training) {
    part.reset();
    part.emplace("backward", work(2));
    table_gradients = backward(exec, batch, placed, saved, dlogits, scope.options);
    scope.sums.flush();
  }
  end_pass(exec, batch, table_gradients, options, pass);
  return pass;
}

// ---- the host's part ----

std::unique_ptr<PreparedBatch> Dlrm::new_batch() const { return std::make_unique<Prepared>(); }

void Dlrm::prepare(const Batch& batch, int64_t /*micro_batch_tokens*/, sparse::Mode mode,
                   PreparedBatch& prepared) {
  auto& out = static_cast<Prepared&>(prepared);
  batch.validate();
  out.block.clear();
  if (parameters_.values().device.is_cuda()) out.block.set_memory(HostMemory::kPinned);
  out.in_double = parameters_.values().dtype == DType::kF64;

  std::vector<ColumnLookup> lookups;
  out.attributes.resize(columns_.size());
  out.ids.resize(columns_.size());
  for (size_t i = 0; i < columns_.size(); ++i) {
    out.attributes[i].resize(columns_[i].size());
    out.ids[i].clear();
    for (size_t k = 0; k < columns_[i].size(); ++k) {
      const std::string& column = columns_[i][k];
      out.ids[i].push_back(batch.values(column, out.attributes[i][k]));
      lookups.push_back({{feature_tables_[i], column, out.ids[i].back()}, {column}});
    }
  }
  look_up(batch, lookups, mode, out);
  prepare_labels(batch, out);
  prepare_bags(batch, out);
  if (bottom_) prepare_dense(batch, out);
}

void Dlrm::prepare_labels(const Batch& batch, Prepared& out) const {
  const Batch::Column& column = batch.column(config_.label);
  const std::span<const int64_t> offsets = batch.offsets(column);
  out.row_offsets.assign(offsets.begin(), offsets.end());
  const auto samples = static_cast<size_t>(batch.num_samples());
  out.sample_labels.resize(samples);
  for (size_t b = 0; b < samples; ++b) out.sample_labels[b] = offsets[b + 1] - offsets[b];
  out.num_labels = out.row_offsets.back();
  const auto rows = static_cast<size_t>(out.num_labels);
  out.labels.resize(tasks().size() * rows);
  out.label_values.clear();
  out.label_values_double.clear();
  for (size_t k = 0; k < tasks().size(); ++k) {
    const TaskConfig& task = tasks()[k];
    const std::span<float> values(out.labels.data() + k * rows, rows);
    for (size_t r = 0; r < rows; ++r) {
      const int64_t bits = column.values[static_cast<int64_t>(r)];
      values[r] = task.kind == ops::TaskKind::kBinary ? static_cast<float>((bits & task.bit) > 0)
                                                      : static_cast<float>(bits);
    }
    if (out.in_double) {
      out.label_values_double.push_back(out.block.add<double>(out.num_labels));
      std::ranges::copy(values, out.block.span(out.label_values_double.back()).begin());
    } else {
      out.label_values.push_back(out.block.add(std::span<const float>(values)));
    }
  }
}

/// Candidates have one id, or one of several values, each; what is the sample's counts for each of
/// its rows.
void Dlrm::prepare_bags(const Batch& batch, Prepared& out) const {
  const int64_t samples = batch.num_samples();
  const bool on_gpu = parameters_.values().device.is_cuda();
  out.token_offsets.assign(static_cast<size_t>(samples) + 1, 0);
  out.bags.resize(config_.features.size());
  std::vector<int64_t> offsets;
  std::vector<int32_t> index;
  int64_t lookup = 0;
  for (size_t i = 0; i < config_.features.size(); ++i) {
    const BagFeature& feature = config_.features[i];
    const std::string& column = columns_[i].front();
    const std::span<const int64_t> of_samples = batch.offsets(column);
    std::vector<std::span<const int32_t>> places;  // of every column
    for (const std::string& other : columns_[i]) {
      require_same_lengths(batch, column, other);
      places.push_back(out.ticket.inverse(lookup++));
    }
    const auto first_row =
        static_cast<int32_t>(out.first_row[static_cast<size_t>(feature_tables_[i])]);
    offsets.assign(1, 0);
    index.clear();
    const auto take = [&](int64_t begin, int64_t end) {
      for (size_t k = 0; k < places.size(); ++k) {
        for (auto at = static_cast<size_t>(begin); at < static_cast<size_t>(end); ++at) {
          const bool has = places.size() == 1 || out.ids[i][k][at] != 0;
          const int32_t place = has ? places[k][at] : -1;
          index.push_back(place < 0 ? place : place + first_row);
        }
      }
      offsets.push_back(static_cast<int64_t>(index.size()));
    };
    for (size_t b = 0; b < static_cast<size_t>(samples); ++b) {
      const int64_t rows = out.sample_labels[b], ids = of_samples[b + 1] - of_samples[b];
      if (feature.of == FeatureOf::kCandidate && ids != rows) {
        fail(ErrorCode::kInvalidArgument,
             fmt::format("sample {} of the batch has {} labels, but {} candidates in column `{}`",
                         b, rows, ids, column));
      }
      for (int64_t r = 0; r < rows; ++r) {
        if (feature.of == FeatureOf::kCandidate) {
          take(of_samples[b] + r, of_samples[b] + r + 1);
        } else {
          take(of_samples[b], of_samples[b + 1]);
        }
      }
      out.token_offsets[b + 1] += ids * feature.values;
    }
    Prepared::Bag& bag = out.bags[i];
    const auto ids = static_cast<int64_t>(index.size());
    bag.offsets = out.block.add(std::span<const int64_t>(offsets));
    bag.index = out.block.add(std::span<const int32_t>(index));
    bag.bag = out.block.add<int32_t>(ids);
    ops::bag_of_each(offsets, out.block.span(bag.bag));
    if (!on_gpu) continue;
    bag.sorted_keys = out.block.add<int32_t>(ids);
    bag.sorted_items = out.block.add<int32_t>(ids);
    ops::sort_index(out.block.span(bag.index), out.table_rows, out.block.span(bag.sorted_keys),
                    out.block.span(bag.sorted_items));
  }
  for (size_t b = 0; b < static_cast<size_t>(samples); ++b) {
    out.token_offsets[b + 1] += out.token_offsets[b];
  }
}

void Dlrm::prepare_dense(const Batch& batch, Prepared& out) const {
  const int64_t total = out.num_labels * config_.dense_width();
  if (out.in_double) {
    out.dense_double = out.block.add<double>(total);
    fill_dense(batch, out, out.block.span(out.dense_double));
  } else {
    out.dense = out.block.add<float>(total);
    fill_dense(batch, out, out.block.span(out.dense));
  }
}

/// Row by row the sample's numbers, then those of the row.
template <class T>
void Dlrm::fill_dense(const Batch& batch, const Prepared& out, std::span<T> to) const {
  const auto width = static_cast<size_t>(config_.dense_width());
  size_t first = 0;  // column of `to`
  if (!config_.dense.empty()) {
    const Batch::FloatColumn& column = batch.float_column(config_.dense);
    const std::span<const int64_t> offsets = batch.offsets(column);
    size_t row = 0;
    for (size_t b = 0; b + 1 < offsets.size(); ++b) {
      if (offsets[b + 1] - offsets[b] != config_.dense_features) {
        fail(ErrorCode::kInvalidArgument,
             fmt::format("sample {} of the batch has {} values in column `{}`, not {} as "
                         "model.dlrm.dense_features says",
                         b, offsets[b + 1] - offsets[b], config_.dense, config_.dense_features));
      }
      const float* const values = column.values.data() + offsets[b];
      for (int64_t r = 0; r < out.sample_labels[b]; ++r, ++row) {
        std::copy_n(values, config_.dense_features, to.data() + row * width);
      }
    }
    first = static_cast<size_t>(config_.dense_features);
  }
  const NumberEncoder encoder(config_.numeric, config_.forms);
  for (size_t n = 0; n < encoder.columns(); ++n) {
    const std::string& name = config_.numeric[n];
    const Batch::FloatColumn& column = batch.float_column(name);
    if (!std::ranges::equal(batch.offsets(column), out.row_offsets)) {
      fail(
          ErrorCode::kInvalidArgument,
          fmt::format("column `{}` of model.dlrm.numeric has other lengths than `{}`: it needs one "
                      "number for every label",
                      name, config_.label));
    }
    size_t end = first;
    for (size_t row = 0; row < static_cast<size_t>(out.num_labels); ++row) {
      T* const begin = to.data() + row * width;
      end = static_cast<size_t>(
          encoder.put(n, column.values[static_cast<int64_t>(row)], begin + first) - begin);
    }
    first = end;
  }
}

}  // namespace segue::model
