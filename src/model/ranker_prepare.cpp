// What happens to a batch before it runs: from its columns to the indices that ops read.

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/log.h"
#include "base/parallel.h"
#include "model/ranker.h"
#include "model/ranker_batch.h"
#include "model/ranker_parts.h"
#include "ops/bags.h"
#include "ops/rows.h"

namespace segue::model {

namespace {

constexpr int64_t kLabelsPerTask = 1 << 12;

int32_t action_code_of(int64_t bits, std::span<const int64_t> weights) {
  int32_t code = 0;
  for (size_t k = 0; k < weights.size(); ++k) {
    if ((bits & weights[k]) > 0) code |= int32_t{1} << k;
  }
  return code;
}

/// A place among the rows of one table among those of all; -1 stays.
int32_t table_row(int32_t place, int64_t first_row) {
  return place < 0 ? place : place + static_cast<int32_t>(first_row);
}

/// Rows of ids, in `to`, but -1 where the id is 0: there is no such value.
std::span<const int32_t> present_rows(std::span<const int64_t> ids, std::span<const int32_t> rows,
                                      HostArray<int32_t>& to) {
  to.resize(std::ssize(rows));
  int32_t* const out = to.data();
  base::parallel_for(std::ssize(rows), kEventsPerTask, [&](int64_t begin, int64_t end) {
    for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
      out[i] = ids[i] == 0 ? -1 : rows[i];
    }
  });
  return std::as_const(to).span();
}

/// A column on its way into the block.
struct ColumnCopy {
  std::span<const int64_t> from;
  std::span<int64_t> to;
};

/// All of them at once: every start of threads costs.
void copy_columns(std::span<const ColumnCopy> copies) {
  int64_t longest = 0;
  for (const ColumnCopy& c : copies) longest = std::max(longest, std::ssize(c.from));
  base::parallel_for(longest, kEventsPerTask, [&](int64_t begin, int64_t end) {
    for (const ColumnCopy& c : copies) {
      const int64_t last = std::min(end, std::ssize(c.from));
      if (begin < last) std::copy(c.from.data() + begin, c.from.data() + last, c.to.data() + begin);
    }
  });
}

/// An element of an offsets array.
int64_t at(const std::vector<int64_t>& values, int64_t i) { return values[static_cast<size_t>(i)]; }

}  // namespace

std::unique_ptr<PreparedBatch> Ranker::new_batch() const { return std::make_unique<RankerBatch>(); }

void Ranker::prepare(const Batch& batch, int64_t micro_batch_tokens, sparse::Mode mode,
                     PreparedBatch& prepared) {
  auto& out = static_cast<RankerBatch&>(prepared);
  batch.validate();
  out.layout = BatchLayout(config_, batch);
  out.block.clear();
  if (parameters_.values().device.is_cuda()) out.block.set_memory(HostMemory::kPinned);
  out.token_offsets = out.layout.token_offsets;
  out.num_labels = out.layout.labels();
  out.labels.resize(config_.tasks.size() * static_cast<size_t>(out.num_labels));
  out.sample_labels.resize(static_cast<size_t>(out.samples()));
  for (int64_t b = 0; b < out.samples(); ++b) {
    out.sample_labels[static_cast<size_t>(b)] = out.layout.labels_of(b);
  }

  prepare_columns(batch, out);
  prepare_ids(batch, mode, out);
  prepare_branches(out);
  prepare_context(batch, out);
  sort_inputs(out);
  prepare_actions(batch, out);
  if (config_.numeric.any() || config_.numeric.in_tokens()) prepare_numbers(batch, out);
  out.micro_batches.clear();
  std::vector<MicroBatch> cuts = cut_micro_batches(out.layout, micro_batch_tokens);
  std::vector<GroupSequences> group;
  if (heads_ != nullptr) group = heads_->agree(out.layout, cuts);
  out.maxima = {out.layout.most_before_targets, out.layout.most_targets};
  for (size_t i = 0; i < cuts.size(); ++i) {
    RankerBatch::Tokens& tokens =
        out.micro_batches.emplace_back(prepare_tokens(batch, cuts[i], out));
    if (heads_ != nullptr) {
      tokens.group = std::move(group[i]);
      tokens.most_targets = tokens.group.most_targets();  // peers take the same path
    }
    if (truncates()) prepare_truncated(tokens, out);
  }
  if (bags_) prepare_bags(out);
}

/// What the token arrays are made from. A GPU finds the distinct items while columns are copied.
void Ranker::prepare_columns(const Batch& batch, RankerBatch& out) {
  const bool candidates = config_.labels == LabelKind::kCandidates;
  const BatchLayout& layout = out.layout;
  UploadBlock& block = out.block;
  out.event_offsets = block.add(std::span<const int64_t>(layout.history_offsets));
  out.candidate_offsets = block.add(std::span<const int64_t>(layout.candidate_offsets));
  out.sample_number = block.add(batch.sample_index.span());
  out.event_time = block.add<int64_t>(layout.events());
  out.candidate_time = block.add<int64_t>(layout.candidates());
  out.event_action = block.add<int64_t>(layout.events());
  out.item = block.add<int32_t>(layout.events() + layout.candidates());
  out.event_label = {};
  if (!candidates && !config_.event_label.empty()) {
    out.event_label = block.add<int32_t>(layout.events());
    const std::span<int32_t> label = block.span(out.event_label);
    std::ranges::fill(label, -1);
    for (size_t k = 0; k < layout.labelled_events.size(); ++k) {
      label[static_cast<size_t>(layout.labelled_events[k])] = static_cast<int32_t>(k);
    }
  }
  start_items(batch, out);
  std::vector<ColumnCopy> copies = {
      {batch.column(config_.history_timestamp).values.span(), block.span(out.event_time)},
      {batch.column(config_.action.history).values.span(), block.span(out.event_action)}};
  if (candidates) {
    copies.push_back(
        {batch.column(config_.candidate_timestamp).values.span(), block.span(out.candidate_time)});
  }
  copy_columns(copies);
}

void Ranker::prepare_ids(const Batch& batch, sparse::Mode mode, RankerBatch& out) {
  find_items(batch, out);
  Places& places = *places_;
  std::vector<ColumnLookup> lookups;
  const auto ids_of = [&](size_t c) {
    return std::as_const(c == 0 ? places.items.values : places.attributes[c - 1]).span();
  };
  for (size_t c = 0; c < columns_.size(); ++c) {
    lookups.push_back({{sequence_tables_[c], places.names[c], ids_of(c), out.block.span(out.item)},
                       {columns_[c].history}});
    if (config_.labels == LabelKind::kCandidates) {
      lookups.back().columns.push_back(columns_[c].candidate);
    }
  }
  for (size_t f = 0; f < contextual_tables_.size(); ++f) {
    const ContextualFeature& feature = config_.contextual[f];
    for (const std::string& name : value_columns(feature.name, feature.values)) {
      const Batch::Column& column = batch.column(name);
      lookups.push_back(
          {{contextual_tables_[f], column.name, column.values.span()}, {column.name}});
    }
  }
  look_up(batch, lookups, mode, out);
  places.feature_index.clear();
  places.present.resize(columns_.size());
  for (size_t c = 0; c < columns_.size(); ++c) {
    std::span<const int32_t> rows = out.ticket.inverse(static_cast<int64_t>(c));
    if (columns_[c].values > 1) rows = present_rows(ids_of(c), rows, places.present[c]);
    places.feature_index.push_back(rows);
  }
}

void Ranker::prepare_context(const Batch& batch, RankerBatch& out) const {
  const BatchLayout& layout = out.layout;
  const int64_t samples = layout.samples();
  auto lookup = static_cast<int64_t>(sequence_tables_.size());
  const std::span<int32_t> all = out.block.span(out.input_index);
  int32_t* index = all.data() + all.size() - context_ids() * samples;
  for (size_t c = 0; c < contextual_tables_.size(); ++c) {
    const ContextualFeature& feature = config_.contextual[c];
    const int64_t first_row = out.first_row[static_cast<size_t>(contextual_tables_[c])];
    std::vector<std::span<const int32_t>> rows;
    std::vector<std::span<const int64_t>> ids;
    const std::vector<std::string> columns = value_columns(feature.name, feature.values);
    for (const std::string& column : columns) {
      rows.push_back(out.ticket.inverse(lookup++));
      ids.push_back(batch.column(column).values.span());
    }
    const std::span<const int64_t> offsets = batch.offsets(columns.front());
    for (int64_t slot = 0; slot < feature.max_length; ++slot) {
      for (int64_t b = 0; b < samples; ++b) {
        const auto place = static_cast<size_t>(offsets[static_cast<size_t>(b)] + slot);
        const bool present = place < static_cast<size_t>(offsets[static_cast<size_t>(b) + 1]) &&
                             layout.history(b) + layout.targets(b) >= feature.min_sequence;
        for (size_t k = 0; k < rows.size(); ++k) {
          const bool has = present && (rows.size() == 1 || ids[k][place] != 0);
          *index++ = has ? table_row(rows[k][place], first_row) : -1;
        }
      }
    }
  }
}

/// What backward sums the gradients of table rows by; here it is done while another batch runs.
void Ranker::sort_inputs(RankerBatch& out) const {
  if (!parameters_.values().device.is_cuda()) return;
  out.sorted_keys = out.block.add<int32_t>(out.input_index.count);
  out.sorted_items = out.block.add<int32_t>(out.input_index.count);
  ops::sort_index(out.block.span(out.input_index), out.table_rows, out.block.span(out.sorted_keys),
                  out.block.span(out.sorted_items));
}

void Ranker::prepare_branches(RankerBatch& out) {
  const std::vector<std::span<const int32_t>>& features = places_->feature_index;
  sparse::DistinctTuples& branches = places_->branches;
  const bool distinct = config_.identities.distinct_rows;
  if (distinct) {
    sparse::distinct_tuples(features, places_->scratch, branches);
    out.branch_rows = branches.count;
  } else {
    out.branch_rows = static_cast<int64_t>(features.front().size());
    branches.inverse.resize(out.branch_rows);
    std::iota(branches.inverse.data(), branches.inverse.data() + out.branch_rows, 0);
  }
  out.row_of_item = out.block.add(std::as_const(branches.inverse).span());
  const auto additional = static_cast<int64_t>(features.size()) - 1;
  out.input_index = out.block.add<int32_t>(out.branch_rows * (1 + additional) +
                                           context_ids() * out.layout.samples());
  int32_t* const content = out.block.span(out.input_index).data();
  for (int64_t f = 0; f <= additional; ++f) {
    const auto feature = static_cast<size_t>(f);
    const std::span<const int32_t> from = distinct ? branches.column(f) : features[feature];
    const int64_t first_row = out.first_row[static_cast<size_t>(sequence_tables_[feature])];
    const int64_t step = f == 0 ? 1 : additional;
    int32_t* const to = f == 0 ? content : content + out.branch_rows + f - 1;
    base::parallel_for(out.branch_rows, kEventsPerTask, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        to[i * step] = table_row(from[static_cast<size_t>(i)], first_row);
      }
    });
  }
}

/// Each branch reads one row for a feature: the sum of its values.
void Ranker::prepare_bags(RankerBatch& out) const {
  std::vector<int64_t> offsets;
  const auto add = [&](int64_t values) { offsets.push_back(offsets.back() + values); };
  const auto add_additional = [&] {
    for (const SequenceFeature& f : config_.additional) add(f.values);
  };
  const auto send = [&] {
    RankerBatch::Bags bags{out.block.add(std::span<const int64_t>(offsets)),
                           out.block.add<int32_t>(offsets.back())};
    ops::bag_of_each(offsets, out.block.span(bags.bag));
    return bags;
  };
  offsets.assign(1, 0);
  for (int64_t row = 0; row < out.branch_rows; ++row) add(1);
  for (int64_t row = 0; row < out.branch_rows; ++row) add_additional();
  for (const ContextualFeature& f : config_.contextual) {
    for (int64_t slot = 0; slot < f.max_length * out.layout.samples(); ++slot) add(f.values);
  }
  out.input_bags = send();

  int64_t labels = 0;
  for (const RankerBatch::Tokens& micro : out.micro_batches)
    labels = std::max(labels, micro.labels);
  offsets.assign(1, 0);
  for (int64_t label = 0; label < labels; ++label) {
    add(1);
    add_additional();
  }
  out.label_bags = send();
}

/// Every possible pattern once, or one code per event and candidate.
void Ranker::prepare_actions(const Batch& batch, RankerBatch& out) const {
  const int32_t target_code = int32_t{1} << config_.action.weights.size();
  out.action_codes = config_.identities.action_codes && target_code + 1 <= kMaxActionCodes &&
                     !config_.numeric.in_tokens();
  if (out.action_codes) {
    out.action_code = out.block.add<int32_t>(target_code + 1);
    const std::span<int32_t> codes = out.block.span(out.action_code);
    std::iota(codes.begin(), codes.end(), 0);
    return;
  }
  if (config_.identities.action_codes && !config_.numeric.in_tokens()) {
    base::log_once(base::LogLevel::kInfo, "action_codes",
                   "identity action_codes does not apply: too many action bits; running per event");
  }
  const std::span<const int64_t> actions = batch.column(config_.action.history).values.span();
  out.action_code = out.block.add<int32_t>(out.layout.events() + out.layout.candidates());
  const std::span<int32_t> codes = out.block.span(out.action_code);
  std::ranges::fill(codes, target_code);
  std::ranges::transform(actions, codes.begin(), [&](int64_t bits) {
    return action_code_of(bits, config_.action.weights);
  });
}

RankerBatch::Tokens Ranker::prepare_tokens(const Batch& batch, const MicroBatch& micro,
                                           RankerBatch& out) const {
  const BatchLayout& layout = out.layout;
  const int64_t last = micro.first + micro.count;
  const int64_t begin = at(layout.token_offsets, micro.first);
  const std::vector<int64_t>& label_offsets = layout.label_offsets;

  RankerBatch::Tokens t;
  t.first_sample = micro.first;
  t.count = at(layout.token_offsets, last) - begin;
  t.first_label = at(label_offsets, micro.first);
  t.labels = at(label_offsets, last) - t.first_label;
  t.offsets.push_back(0);
  for (int64_t b = micro.first; b < last; ++b) {
    t.offsets.push_back(at(layout.token_offsets, b + 1) - begin);
    t.num_targets.push_back(layout.targets(b));
    t.most_targets = std::max(t.most_targets, layout.targets(b));
  }

  UploadBlock& block = out.block;
  t.device_offsets = block.add(std::span<const int64_t>(t.offsets));
  t.device_num_targets = block.add(std::span<const int64_t>(t.num_targets));
  t.label_features =
      block.add<int32_t>(t.labels * static_cast<int64_t>(places_->feature_index.size()));
  const bool in_double = parameters_.values().dtype == DType::kF64;
  for (size_t k = 0; k < config_.tasks.size(); ++k) {
    if (in_double) t.label_values_double.push_back(block.add<double>(t.labels));
    if (!in_double) t.label_values.push_back(block.add<float>(t.labels));
  }
  fill_labels(batch, t, out);
  return t;
}

void Ranker::prepare_truncated(RankerBatch::Tokens& t, RankerBatch& out) const {
  const auto cut = [&](std::span<const int64_t> offsets, std::span<const int64_t> targets,
                       auto&& visit) {
    std::vector<int64_t> left{0};
    for (size_t b = 0; b + 1 < offsets.size(); ++b) {
      const int64_t n = offsets[b + 1] - offsets[b];
      const ModelConfig::Kept kept = config_.kept_tokens(n, targets[b]);
      visit(offsets[b], offsets[b + 1], kept);
      left.push_back(left.back() + n - kept.dropped);
    }
    return left;
  };
  RankerBatch::Tokens::Truncated& to = t.truncated;
  std::vector<int64_t> rows;
  to.offsets = cut(t.offsets, t.num_targets, [&](int64_t begin, int64_t end, const auto& kept) {
    for (int64_t i = begin; i < begin + kept.first; ++i) rows.push_back(i);
    for (int64_t i = begin + kept.first + kept.dropped; i < end; ++i) rows.push_back(i);
  });
  std::vector<int32_t> labels;
  for (size_t b = 0; b < t.num_targets.size(); ++b) {
    for (int64_t k = t.num_targets[b]; k > 0; --k) {
      labels.push_back(static_cast<int32_t>(to.offsets[b + 1] - k));
    }
  }
  UploadBlock& block = out.block;
  to.device_offsets = block.add(std::span<const int64_t>(to.offsets));
  to.kept = block.add(std::span<const int64_t>(rows));
  to.kept_short =
      block.add(std::span<const int32_t>(std::vector<int32_t>(rows.begin(), rows.end())));
  to.label_rows = block.add(std::span<const int32_t>(labels));
  if (heads_ == nullptr) return;
  to.group.num_targets = t.group.num_targets;
  to.group.offsets = cut(t.group.offsets, t.group.num_targets, [](auto&&...) {});
  // Ranks begin and end with sequences.
  to.group.rank_offsets.clear();
  for (const int64_t token : t.group.rank_offsets) {
    const auto sequence =
        std::ranges::lower_bound(t.group.offsets, token) - t.group.offsets.begin();
    to.group.rank_offsets.push_back(to.group.offsets[static_cast<size_t>(sequence)]);
  }
}

/// Table rows and values of every label.
void Ranker::fill_labels(const Batch& batch, const RankerBatch::Tokens& t, RankerBatch& out) const {
  const bool candidates = config_.labels == LabelKind::kCandidates;
  const std::vector<std::span<const int32_t>>& index = places_->feature_index;
  const size_t features = index.size();
  UploadBlock& block = out.block;
  const auto first = static_cast<size_t>(t.first_label);
  const std::span<const int32_t> item =
      block.span(out.item).subspan(static_cast<size_t>(candidates ? out.layout.events() : 0));
  const std::string& event_label =
      config_.event_label.empty() ? config_.action.history : config_.event_label;
  const std::span<const int64_t> bits =
      batch.column(candidates ? config_.candidate_label : event_label).values.span();
  // The candidate or event of a label.
  const std::vector<int64_t>& events = out.layout.labelled_events;
  const auto place = [&](size_t i) {
    return events.empty() ? first + i : static_cast<size_t>(events[first + i]);
  };
  const std::span<int32_t> label_features = block.span(t.label_features);
  base::parallel_for(t.labels, kLabelsPerTask, [&](int64_t begin, int64_t end) {
    for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
      for (size_t f = 0; f < features; ++f) {
        label_features[i * features + f] =
            table_row(index[f][static_cast<size_t>(item[place(i)])],
                      out.first_row[static_cast<size_t>(sequence_tables_[f])]);
      }
    }
    for (size_t k = 0; k < config_.tasks.size(); ++k) {
      const TaskConfig& task = config_.tasks[k];
      float* const labels = out.labels.data() + k * static_cast<size_t>(out.num_labels) + first;
      for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
        const bool binary = task.kind == ops::TaskKind::kBinary;
        const int64_t of = bits[place(i)];
        const auto value = static_cast<double>(binary ? int64_t{(of & task.bit) > 0} : of);
        labels[i] = static_cast<float>(value);
        if (t.label_values.empty()) {
          block.span(t.label_values_double[k])[i] = value;
        } else {
          block.span(t.label_values[k])[i] = static_cast<float>(value);
        }
      }
    }
  });
}

}  // namespace segue::model
