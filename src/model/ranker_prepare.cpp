// The host part of a pass: from a batch to the indices that ops read.

#include <algorithm>
#include <atomic>
#include <numeric>
#include <utility>

#include "base/log.h"
#include "base/parallel.h"
#include "model/ranker.h"
#include "model/ranker_batch.h"
#include "model/ranker_parts.h"
#include "ops/assemble.h"
#include "ops/rows.h"

namespace segue::model {

namespace {

constexpr int64_t kSamplesPerTask = 16;
constexpr int64_t kEventsPerTask = 1 << 16;

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
  out.num_labels = out.layout.labels;
  out.labels.resize(config_.tasks.size() * static_cast<size_t>(out.num_labels));
  out.sample_labels.resize(static_cast<size_t>(out.samples()));
  for (int64_t b = 0; b < out.samples(); ++b) {
    out.sample_labels[static_cast<size_t>(b)] = out.layout.labels_of(b);
  }

  prepare_ids(batch, mode, out);
  prepare_branches(out);
  prepare_context(batch, out);
  sort_inputs(out);
  prepare_actions(batch, out);
  out.micro_batches.clear();
  std::vector<MicroBatch> cuts = cut_micro_batches(out.layout, micro_batch_tokens);
  std::vector<GroupSequences> group;
  if (heads_ != nullptr) group = heads_->agree(out.layout, cuts);
  out.maxima = {out.layout.most_before_targets, out.layout.most_targets};
  for (size_t i = 0; i < cuts.size(); ++i) {
    RankerBatch::Tokens& tokens =
        out.micro_batches.emplace_back(prepare_tokens(batch, cuts[i], out));
    if (heads_ == nullptr) continue;
    tokens.group = std::move(group[i]);
    tokens.most_targets = tokens.group.most_targets();  // peers take the same path
  }
}

/// A feature of every event, then of every candidate.
void Ranker::read_feature(const Batch& batch, const SequenceFeature& feature,
                          HostArray<int64_t>& to) {
  to.resize(0);
  const auto append = [&](const std::string& column) {
    const std::span<const int64_t> from = batch.values(column, places_->attribute);
    const int64_t begin = to.size();
    to.resize(begin + std::ssize(from));
    base::parallel_for(std::ssize(from), kEventsPerTask, [&](int64_t first, int64_t end) {
      std::copy_n(from.data() + first, end - first, to.data() + begin + first);
    });
  };
  append(feature.history);
  if (config_.labels == LabelKind::kCandidates) append(feature.candidate);
}

/// False: an item has several values of the feature.
bool Ranker::attribute_of_items(const Batch& batch, const SequenceFeature& feature,
                                HostArray<int64_t>& of_item) {
  const std::span<const int64_t> items = std::as_const(places_->items.values).span();
  const std::span<const int32_t> item = std::as_const(places_->items.inverse).span();
  of_item.resize(static_cast<int64_t>(items.size()));
  // f(item, value) for what the batch says of its candidates, and of its events unless a map does.
  const Batch::Attribute* const map = batch.find_attribute(feature.history);
  const bool mapped =
      map != nullptr && batch.columns[static_cast<size_t>(map->of)].name == config_.item.history;
  const auto for_each = [&](const auto& f) {
    const auto over = [&](std::span<const int64_t> values, std::span<const int32_t> of) {
      base::parallel_for(std::ssize(values), kEventsPerTask, [&](int64_t begin, int64_t end) {
        for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
          f(of_item[of[i]], values[i]);
        }
      });
    };
    if (!mapped) over(batch.values(feature.history, places_->attribute), item);
    if (config_.labels != LabelKind::kCandidates) return;
    const std::span<const int64_t> values = batch.values(feature.candidate, places_->attribute);
    over(values, item.last(values.size()));
  };
  if (mapped) {
    base::parallel_for(of_item.size(), kEventsPerTask, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) of_item[i] = map->of_id(items[static_cast<size_t>(i)]);
    });
  } else {
    for_each([](int64_t& of, int64_t value) {
      const std::atomic_ref<int64_t> known(of);
      // Popular items are there already: most threads only read.
      if (known.load(std::memory_order_relaxed) == value) return;
      known.store(value, std::memory_order_relaxed);
    });
  }
  std::atomic<bool> decided = true;
  for_each([&](const int64_t& of, int64_t value) {
    if (of != value) decided.store(false, std::memory_order_relaxed);
  });
  return decided;
}

/// Items of the batch, each once, with what they decide. Where one comes with different attributes,
/// and without the identity of distinct rows, every event and candidate is an item of its own.
void Ranker::find_items(const Batch& batch) {
  Places& places = *places_;
  places.attributes.resize(config_.additional.size());
  read_feature(batch, config_.item, places.ids);
  bool decided = config_.identities.distinct_rows;
  if (decided) sparse::distinct(places.ids.span(), false, places.scratch, places.items);
  for (size_t f = 0; f < config_.additional.size() && decided; ++f) {
    decided = attribute_of_items(batch, config_.additional[f], places.attributes[f]);
  }
  if (decided) return;
  std::swap(places.items.values, places.ids);
  const int64_t items = places.items.values.size();
  places.items.inverse.resize(items);
  std::iota(places.items.inverse.data(), places.items.inverse.data() + items, 0);
  for (size_t f = 0; f < config_.additional.size(); ++f) {
    read_feature(batch, config_.additional[f], places.attributes[f]);
  }
}

void Ranker::prepare_ids(const Batch& batch, sparse::Mode mode, RankerBatch& out) {
  find_items(batch);
  Places& places = *places_;
  std::vector<sparse::Lookup> lookups;
  for (size_t f = 0; f < sequence_tables_.size(); ++f) {
    lookups.push_back({sequence_tables_[f], places.names[f],
                       (f == 0 ? places.items.values : places.attributes[f - 1]).span(),
                       places.items.inverse.span()});
  }
  for (size_t c = 0; c < contextual_tables_.size(); ++c) {
    const std::string& column = config_.contextual[c].name;
    lookups.push_back({contextual_tables_[c], column, batch.column(column).values.span()});
  }
  look_up(batch, lookups, mode, out);
  places.feature_index.clear();
  for (size_t f = 0; f < sequence_tables_.size(); ++f) {
    places.feature_index.push_back(out.ticket.inverse(static_cast<int64_t>(f)));
  }
}

void Ranker::prepare_context(const Batch& batch, RankerBatch& out) const {
  const BatchLayout& layout = out.layout;
  const int64_t samples = layout.samples();
  auto lookup = static_cast<int64_t>(sequence_tables_.size());
  const int64_t slots = config_.contextual_tokens() * samples;
  const std::span<int32_t> all = out.block.span(out.input_index);
  int32_t* index = all.data() + all.size() - slots;
  for (size_t c = 0; c < contextual_tables_.size(); ++c) {
    const ContextualFeature& feature = config_.contextual[c];
    const int64_t first_row = out.first_row[static_cast<size_t>(contextual_tables_[c])];
    const std::span<const int32_t> inverse = out.ticket.inverse(lookup++);
    const std::span<const int64_t> offsets = batch.offsets(batch.column(feature.name));
    for (int64_t slot = 0; slot < feature.max_length; ++slot) {
      for (int64_t b = 0; b < samples; ++b) {
        const int64_t place = offsets[static_cast<size_t>(b)] + slot;
        const bool present = place < offsets[static_cast<size_t>(b) + 1] &&
                             layout.history(b) + layout.targets(b) >= feature.min_sequence;
        *index++ = present ? table_row(inverse[static_cast<size_t>(place)], first_row) : -1;
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
  const auto additional = static_cast<int64_t>(features.size()) - 1;
  out.input_index = out.block.add<int32_t>(out.branch_rows * (1 + additional) +
                                           config_.contextual_tokens() * out.layout.samples());
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

void Ranker::prepare_actions(const Batch& batch, RankerBatch& out) {
  Places& places = *places_;
  const int64_t events = out.layout.events();
  const int64_t targets = out.layout.candidates();
  const std::span<const int64_t> actions = batch.column(config_.action.history).values.span();
  const auto code_of_event = [&](int64_t e) {
    return action_code_of(actions[static_cast<size_t>(e)], config_.action.weights);
  };
  const int32_t target_code = int32_t{1} << config_.action.weights.size();
  places.event_action.resize(events);
  places.target_action.resize(targets);
  // Every possible pattern once, or one code per event and candidate.
  if (config_.identities.action_codes && target_code + 1 <= kMaxActionCodes) {
    out.action_code = out.block.add<int32_t>(target_code + 1);
    const std::span<int32_t> codes = out.block.span(out.action_code);
    std::iota(codes.begin(), codes.end(), 0);
    base::parallel_for(events, kEventsPerTask, [&](int64_t begin, int64_t end) {
      for (int64_t e = begin; e < end; ++e) places.event_action[e] = code_of_event(e);
    });
    std::ranges::fill(places.target_action.span(), target_code);
    return;
  }
  if (config_.identities.action_codes) {
    base::log_once(base::LogLevel::kInfo, "action_codes",
                   "identity action_codes does not apply: too many action bits; running per event");
  }
  out.action_code = out.block.add<int32_t>(events + targets);
  const std::span<int32_t> codes = out.block.span(out.action_code);
  for (int64_t e = 0; e < events; ++e) codes[static_cast<size_t>(e)] = code_of_event(e);
  std::fill(codes.begin() + events, codes.end(), target_code);
  std::iota(places.event_action.data(), places.event_action.data() + events, 0);
  std::iota(places.target_action.data(), places.target_action.data() + targets,
            static_cast<int32_t>(events));
}

RankerBatch::Tokens Ranker::prepare_tokens(const Batch& batch, const MicroBatch& micro,
                                           RankerBatch& out) {
  const bool candidates = config_.labels == LabelKind::kCandidates;
  const BatchLayout& layout = out.layout;
  const int64_t last = micro.first + micro.count;
  const int64_t begin = at(layout.token_offsets, micro.first);
  const std::vector<int64_t>& label_offsets =
      candidates ? layout.candidate_offsets : layout.history_offsets;

  RankerBatch::Tokens t;
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
  for (auto* part : {&t.row, &t.action, &t.position, &t.sample, &t.token}) {
    *part = block.add<int32_t>(t.count);
  }
  if (time_table_ != nullptr) t.time = block.add<int32_t>(t.count);
  for (auto* part : {&t.label_row, &t.label_sample, &t.label_token}) {
    *part = block.add<int32_t>(t.labels);
  }
  t.label_time = block.add<int64_t>(t.labels);
  t.label_features =
      block.add<int32_t>(t.labels * static_cast<int64_t>(places_->feature_index.size()));
  const bool in_double = parameters_.values().dtype == DType::kF64;
  for (size_t k = 0; k < config_.tasks.size(); ++k) {
    if (in_double) t.label_values_double.push_back(block.add<double>(t.labels));
    if (!in_double) t.label_values.push_back(block.add<float>(t.labels));
  }

  HostArray<int64_t>& timestamps = places_->timestamps;
  timestamps.resize(t.count);
  fill_tokens(batch, micro, t, timestamps.data(), out);

  const ops::PositionParams position{.offsets = t.offsets,
                                     .num_targets = candidates
                                                        ? std::span<const int64_t>(t.num_targets)
                                                        : std::span<const int64_t>(),
                                     .contextual_len = config_.contextual_tokens(),
                                     .position_buckets = config_.position_buckets,
                                     .time_buckets = config_.time_buckets + 1,
                                     .time_bucket_seconds = ModelConfig::kTimeBucketSeconds};
  ops::position_indices(position, block.span(t.position));
  if (time_table_ != nullptr) {
    ops::time_indices(position, std::as_const(timestamps).span(), block.span(t.time));
  }
  return t;
}

void Ranker::fill_tokens(const Batch& batch, const MicroBatch& micro, const RankerBatch::Tokens& t,
                         int64_t* timestamps, RankerBatch& out) const {
  const Places& places = *places_;
  const int32_t* const item = places.items.inverse.data();
  const auto branch = [&](int64_t i) { return places.branches.inverse[item[i]]; };
  const bool candidates = config_.labels == LabelKind::kCandidates;
  const bool interleaved = config_.tokens == TokenKind::kInterleaved;
  const int64_t contextual = config_.contextual_tokens();
  const BatchLayout& layout = out.layout;
  UploadBlock& block = out.block;
  const auto content_rows = static_cast<int32_t>(out.branch_rows);
  int32_t* const row = block.span(t.row).data();
  int32_t* const action = block.span(t.action).data();
  int32_t* const sample = block.span(t.sample).data();
  int32_t* const token = block.span(t.token).data();
  int32_t* const label_row = block.span(t.label_row).data();
  int32_t* const label_sample = block.span(t.label_sample).data();
  int32_t* const label_token = block.span(t.label_token).data();
  int64_t* const label_time = block.span(t.label_time).data();
  int32_t* const label_features = block.span(t.label_features).data();
  const size_t features = places.feature_index.size();
  const std::span<const int64_t> label_column =
      batch.column(candidates ? config_.candidate_label : config_.action.history).values.span();
  const std::span<const int64_t> history_times =
      batch.column(config_.history_timestamp).values.span();
  const std::span<const int64_t> candidate_times =
      candidates ? batch.column(config_.candidate_timestamp).values.span()
                 : std::span<const int64_t>();

  const auto fill_sample = [&](int64_t b) {
    const auto sample_index = static_cast<int32_t>(batch.sample_index[b]);
    const int64_t first = at(t.offsets, b - micro.first);
    int64_t place = first;
    const auto put = [&](int32_t row_id, int32_t action_id, int64_t time) {
      row[place] = row_id;
      action[place] = action_id;
      sample[place] = sample_index;
      token[place] = static_cast<int32_t>(place - first);
      timestamps[place] = time;
      ++place;
    };
    // Label i of the batch is what the next token to be put predicts; `source` is its event or
    // candidate, counted over both.
    const auto put_label = [&](int64_t i, int64_t source, int64_t time) {
      const int64_t to = i - t.first_label;
      label_row[to] = static_cast<int32_t>(place);
      label_sample[to] = sample_index;
      label_token[to] = static_cast<int32_t>(place - first);
      label_time[to] = time;
      for (size_t f = 0; f < features; ++f) {
        label_features[static_cast<size_t>(to) * features + f] =
            table_row(places.feature_index[f][static_cast<size_t>(item[source])],
                      out.first_row[static_cast<size_t>(sequence_tables_[f])]);
      }
      const int64_t bits = label_column[static_cast<size_t>(i)];
      for (size_t k = 0; k < config_.tasks.size(); ++k) {
        const TaskConfig& task = config_.tasks[k];
        const bool binary = task.kind == ops::TaskKind::kBinary;
        const auto value =
            binary ? static_cast<double>((bits & task.bit) > 0) : static_cast<double>(bits);
        if (t.label_values.empty()) {
          block.span(t.label_values_double[k])[static_cast<size_t>(to)] = value;
        } else {
          block.span(t.label_values[k])[static_cast<size_t>(to)] = static_cast<float>(value);
        }
        out.labels[k * static_cast<size_t>(layout.labels) + static_cast<size_t>(i)] =
            static_cast<float>(value);
      }
    };

    for (int64_t s = 0; s < contextual; ++s) {
      put(content_rows + static_cast<int32_t>(b * contextual + s), -1, 0);
    }
    for (int64_t e = at(layout.history_offsets, b); e < at(layout.history_offsets, b + 1); ++e) {
      const int64_t time = history_times[static_cast<size_t>(e)];
      if (!candidates) put_label(e, e, time);
      put(branch(e), interleaved ? -1 : places.event_action[e], time);
      if (interleaved) put(-1, places.event_action[e], time);
    }
    for (int64_t c = at(layout.candidate_offsets, b); c < at(layout.candidate_offsets, b + 1);
         ++c) {
      const int64_t time = candidate_times[static_cast<size_t>(c)];
      put_label(c, layout.events() + c, time);
      put(branch(layout.events() + c), interleaved ? -1 : places.target_action[c], time);
    }
  };
  base::parallel_for(micro.count, kSamplesPerTask, [&](int64_t first, int64_t end) {
    for (int64_t b = first; b < end; ++b) fill_sample(micro.first + b);
  });
}

}  // namespace segue::model
