// What a ranker's config alone tells.

#include <algorithm>
#include <bit>

#include <fmt/format.h>

#include "model/flops.h"
#include "model/ranker.h"

namespace segue::model {
namespace {

using Of = ColumnDemand::Of;
using Role = ColumnDemand::Role;

int64_t bits_of(int64_t value) {
  return static_cast<int64_t>(std::bit_width(static_cast<uint64_t>(value)));
}

/// The item and what is a function of it, of every event or candidate.
void add_features(const ModelConfig& c, Of of, std::vector<ColumnDemand>& out) {
  const bool events = of == Of::kEvent;
  const auto column = events ? &SequenceFeature::history : &SequenceFeature::candidate;
  const char* const name = events ? "history" : "candidate";
  const std::string& item = c.item.*column;
  out.push_back({fmt::format("model.item.{}", name), item, of, Role::kId, c.item.table});
  for (const SequenceFeature& f : c.additional) {
    add_value_demands({.key = fmt::format("model.additional.{}", name),
                       .column = f.*column,
                       .of = of,
                       .table = f.table,
                       .item = item},
                      f.values, out);
  }
}

}  // namespace

std::string Ranker::summary() const {
  return fmt::format("{} layers, {} heads, width {}, {} tokens at most", config_.layers,
                     config_.heads, config_.dim, config_.max_seq_len);
}

std::vector<ColumnDemand> Ranker::demands() const {
  const ModelConfig& c = config_;
  const bool candidates = c.labels == LabelKind::kCandidates;
  std::vector<ColumnDemand> all;
  add_features(c, Of::kEvent, all);
  all.push_back({"model.history_timestamp", c.history_timestamp, Of::kEvent, Role::kTimestamp});
  const bool by_action = !candidates && c.event_label.empty();
  ColumnDemand action{"model.action.history", c.action.history, Of::kEvent,
                      by_action ? Role::kLabel : Role::kAction};
  for (const int64_t w : c.action.weights) action.bits = std::max(action.bits, bits_of(w));
  all.push_back(std::move(action));
  const auto add_label = [&](ColumnDemand label) {
    for (const TaskConfig& task : c.tasks) label.bits = std::max(label.bits, bits_of(task.bit));
    all.push_back(std::move(label));
  };
  if (candidates) {
    add_features(c, Of::kCandidate, all);
    all.push_back(
        {"model.candidate_timestamp", c.candidate_timestamp, Of::kCandidate, Role::kTimestamp});
    add_label({"model.candidate_label", c.candidate_label, Of::kCandidate, Role::kLabel});
  } else if (!by_action) {
    add_label({"model.labels", c.event_label, Of::kEvent, Role::kLabel});
  }
  for (const std::string& column : c.numeric.columns) {
    const auto add = [&](const std::string& name, Of of) {
      all.push_back(
          {.key = "model.numeric.columns", .column = name, .of = of, .role = Role::kNumber});
    };
    if (c.numeric.tokens || !candidates) add(column, Of::kEvent);
    if (candidates) add(NumericConfig::of_candidate(column), Of::kCandidate);
  }
  for (const std::string& column : c.numeric.outcomes) {
    all.push_back({.key = "model.numeric.outcomes",
                   .column = column,
                   .of = Of::kEvent,
                   .role = Role::kNumber,
                   .outcome = true});
  }
  for (const ContextualFeature& f : c.contextual) {
    add_value_demands({.key = "model.contextual.name",
                       .column = f.name,
                       .table = f.table,
                       .length = f.max_length},
                      f.values, all);
  }
  return all;
}

int64_t Ranker::sample_tokens(int64_t events, int64_t candidates) const {
  return config_.sample_tokens(events, candidates);
}

int64_t Ranker::most_events(int64_t candidates) const {
  const int64_t left = config_.max_seq_len - config_.sample_tokens(0, candidates);
  return std::max<int64_t>(0, left / config_.tokens_per_event());
}

std::string Ranker::attention_kernel(Device device, Precision precision) const {
  const Exec exec{.device = device, .precision = precision};
  return attention::describe_kernel(config_.attention.kernel,
                                    {config_.qk_dim, config_.v_dim, exec.dtype()}, device);
}

double Ranker::flops(std::span<const int64_t> token_offsets, bool training) const {
  return formula_flops(config_, token_offsets, training);
}

double Ranker::padded_flops() const { return dense_formula_flops(config_); }

SampleWork Ranker::work() const {
  const ModelConfig& c = config_;
  SampleWork w;
  w.shape.history = c.item.history;
  if (c.labels == LabelKind::kCandidates) w.shape.candidate = c.item.candidate;
  w.shape.contextual_tokens = c.contextual_tokens();
  w.shape.tokens_per_event = c.tokens_per_event();
  // Of the mean layer; the cost of tokens is not told apart by layer.
  w.shape.pairs = [c, mask = c.attention_mask()](int64_t tokens, int64_t targets) {
    const int64_t from = c.whole_layers();
    const int64_t left = tokens - c.kept_tokens(tokens, targets).dropped;
    return (from * mask.pairs(tokens, targets) + (c.layers - from) * mask.pairs(left, targets)) /
           c.layers;
  };
  w.shape.heads = c.heads;
  w.shape.head_dim = c.qk_dim;
  const int64_t gate = c.heads * c.v_dim * (c.layer == LayerKind::kConcat ? 3 : 1);
  w.token_flop = 6 * static_cast<double>(c.dim * (c.uvqk_columns() + gate));
  w.pair_flop = 7 * static_cast<double>(c.heads * (c.qk_dim + c.v_dim));
  w.layers = c.layers;
  w.width = c.dim;
  w.last_at_targets = c.why_last_layer_is_full(1) == nullptr;
  return w;
}

std::vector<Model::Bucket> Ranker::buckets() const {
  std::vector<Bucket> all{{0, layer_parameters_.front()}};
  for (size_t l = layers_.size(); l-- > 0;) {
    all.push_back({layer_parameters_[l], layer_parameters_[l + 1]});
  }
  all.push_back({layer_parameters_.back(), parameters_.all().size()});
  return all;
}

}  // namespace segue::model
