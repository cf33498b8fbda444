// What a step of the ranker takes from its arena: the calls of ranker.cpp and ranker_tokens.cpp in
// their order, for the largest batch.

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "model/arena_plan.h"
#include "model/ranker.h"
#include "model/ranker_parts.h"
#include "ops/token_arrays.h"

namespace segue::model {

/// Its first samples are as long as may be, until a micro-batch is full. Of a table it has as many
/// different rows as there may be.
struct Ranker::LargestBatch {
  LargestBatch(const Ranker& m, const StepBounds& bounds);

  Preprocessor::Sizes branches;
  int64_t table_rows = 0, most_table_rows = 0;  // of all tables, of one
  int64_t labels = 0, micro_labels = 0;         // of the batch, of a micro-batch
  bool collapsed = false;                       // the last layer runs at target rows only
  size_t full_layers = 0;
  std::vector<int64_t> offsets{0}, num_targets;
  GroupSequences group;
  Sequences sequences;  // of a micro-batch
  /// The same for layers that work on the newest tokens only. Short samples lose nothing: as many
  /// tokens as there may be, in samples as long as they may be.
  std::vector<int64_t> left_offsets{0};
  GroupSequences left_group;
  Sequences left;

  const Sequences& of(const ModelConfig& c, size_t layer) const {
    return static_cast<int64_t>(layer) < c.whole_layers() ? sequences : left;
  }
};

Ranker::LargestBatch::LargestBatch(const Ranker& m, const StepBounds& bounds) {
  const ModelConfig& c = m.config_;
  const bool candidates = c.labels == LabelKind::kCandidates;
  const int64_t places = bounds.samples * (bounds.events + (candidates ? bounds.candidates : 0));
  const auto distinct =
      static_cast<int64_t>(std::ceil(bounds.distinct_share * static_cast<double>(places)));
  const int64_t codes = (int64_t{1} << std::min<size_t>(c.action.weights.size(), 32)) + 1;
  const bool by_code =
      c.identities.action_codes && codes <= kMaxActionCodes && !c.numeric.in_tokens();
  branches = {.rows = c.identities.distinct_rows ? distinct : places,
              .codes = by_code ? codes : places,
              .samples = bounds.samples};
  std::vector<int64_t> ids(m.tables_config_.tables.size(), 0);
  for (const sparse::TableId t : m.sequence_tables_) ids[static_cast<size_t>(t)] += distinct;
  for (size_t f = 0; f < c.contextual.size(); ++f) {
    ids[static_cast<size_t>(m.contextual_tables_[f])] +=
        bounds.samples * c.contextual[f].max_length * c.contextual[f].values;
  }
  for (size_t t = 0; t < ids.size(); ++t) {
    ids[t] = std::min(ids[t], m.tables_config_.tables[t].id_limit());
    table_rows += ids[t];
    most_table_rows = std::max(most_table_rows, ids[t]);
  }

  const int64_t longest = std::max<int64_t>(1, c.sample_tokens(bounds.events, bounds.candidates));
  const int64_t tokens =
      std::min(bounds.samples * longest, std::max(bounds.micro_batch_tokens, longest));
  for (int64_t s = 1; s <= bounds.samples; ++s) offsets.push_back(std::min(s * longest, tokens));
  num_targets.assign(static_cast<size_t>(bounds.samples), candidates ? bounds.candidates : 0);
  labels = bounds.samples * (candidates ? bounds.candidates : bounds.events);
  micro_labels = candidates ? labels : std::min(tokens / c.tokens_per_event(), labels);
  collapsed = c.why_last_layer_is_full(bounds.candidates) == nullptr;
  full_layers = m.layers_.size() - (collapsed ? 1 : 0);
  sequences.offsets = offsets;
  sequences.num_targets = num_targets;
  sequences.training = true;
  const int64_t targets = candidates ? bounds.candidates : 0;
  const int64_t kept = longest - c.kept_tokens(longest, std::min(targets, longest)).dropped;
  const int64_t left_tokens = std::min(bounds.samples * kept, tokens);
  for (int64_t s = 1; s <= bounds.samples; ++s) {
    left_offsets.push_back(std::min(s * kept, left_tokens));
  }
  left = sequences;
  left.offsets = left_offsets;
  if (bounds.head_ranks == 1) return;
  const auto share = [&](std::span<const int64_t> of_one, GroupSequences& of_all) {
    for (int64_t r = 0; r < bounds.head_ranks; ++r) {
      for (const int64_t end : of_one.subspan(1)) {
        of_all.offsets.push_back(r * of_one.back() + end);
      }
      of_all.rank_offsets.push_back((r + 1) * of_one.back());
    }
  };
  share(offsets, group);
  sequences.group = &group;
  share(left_offsets, left_group);
  left.group = &left_group;
}

/// Of FeatureRows::add_gradients.
void Ranker::plan_feature_gradients(const Exec& exec, int64_t ids, int64_t table_rows) const {
  const Arena::Mark scratch(*exec.arena);
  // A row for every value; the CPU reads gradients of bags where they are.
  if (bags_ && exec.device.is_cuda()) exec.activation({ids, embedding_dim_});
  plan_segment_sum(exec, ids, table_rows, embedding_dim_);
}

void Ranker::tokens_forward_memory(const Exec& exec, const LargestBatch& b) const {
  const int64_t tokens = b.sequences.tokens(), labels = b.micro_labels, dim = config_.dim;
  ops::take_token_arrays(exec, tokens, labels, time_table_ != nullptr);
  const int64_t left = truncates() ? b.left.tokens() : 0;
  for (int i = 0; i < 2 && left > 0; ++i) exec.arena->tensor(DType::kI64, {left});  // who they are
  exec.activation({tokens, dim});                                                   // x0
  ops::AssembleParams assemble;
  assemble.dropout.p = static_cast<float>(config_.input_dropout);
  exec.arena->tensor(DType::kU8, {tokens, ops::assemble_keep_bytes(exec, assemble, dim)});
  for (size_t l = 0; l < b.full_layers; ++l) layers_[l].forward_memory(exec, b.of(config_, l));
  if (left > 0) exec.activation({left, dim});
  const Tensor selected = postprocessor_->make_input(exec, labels);
  const Sequences& last = b.of(config_, layers_.size() - 1);
  if (b.collapsed) layers_.back().targets_forward_memory(exec, last, selected);
  postprocessor_->forward_memory(exec, labels);

  const Exec head = head_exec(exec);
  if (item_mlp_) {
    head.activation({labels, num_features() * embedding_dim_});  // item rows
    item_mlp_->forward_memory(head, labels);
  }
  if (item_mlp_ || head.dtype() != exec.dtype()) head.activation({labels, dim});  // product
  if (numeric_mlp_) numeric_mlp_->forward_memory(head, labels);
  const Tensor dlogits = wide_exec(exec).activation({labels, std::ssize(config_.tasks)});
  head_->forward_memory(head, labels, dlogits);  // logits lie among the results
}

void Ranker::tokens_backward_memory(const Exec& exec, const LargestBatch& b) const {
  const int64_t tokens = b.sequences.tokens(), labels = b.micro_labels, dim = config_.dim;
  const Exec head = head_exec(exec);
  head.activation({labels, dim});  // dproduct
  plan_backward(head, *head_, labels);
  if (numeric_mlp_) plan_backward(head, *numeric_mlp_, labels);
  if (item_mlp_ || head.dtype() != exec.dtype()) exec.activation({labels, dim});  // duser
  if (item_mlp_) {
    const Arena::Mark scratch(*exec.arena);
    head.activation({labels, dim});                              // ditem
    head.activation({labels, num_features() * embedding_dim_});  // drows
    plan_backward(head, *item_mlp_, labels);
    plan_feature_gradients(head, labels * num_columns(), b.table_rows);
  }
  exec.activation({labels, dim});  // dselected
  plan_backward(exec, *postprocessor_, labels);
  exec.activation({tokens, dim});  // dx
  const Sequences& last = b.of(config_, layers_.size() - 1);
  if (truncates()) exec.activation({last.tokens(), dim});
  if (b.collapsed) {
    layers_.back().targets_backward_memory(exec, last);
  } else {
    plan_segment_sum(exec, labels, last.tokens(), dim);
  }
  if (b.full_layers > 0) plan_backward(exec, layers_.front(), b.sequences);
  const Arena::Mark scratch(*exec.arena);
  const bool on_gpu = exec.device.is_cuda();
  const bool copies = !on_gpu && (config_.input_dropout > 0 || exec.rounds_to_bf16());
  if (copies) exec.activation({tokens, dim});
  // By row, position and time, and by action where there are many: a GPU sorts all at once.
  plan_segment_sum(exec, (on_gpu ? 4 : 1) * tokens, preprocessor_->row_count(b.branches), dim);
}

StepMemory Ranker::step_memory(const StepBounds& bounds, Precision precision, Device device) const {
  const LargestBatch b(*this, bounds);
  ArenaPlan plan(precision, device);
  const Exec& exec = plan.exec;
  pass_memory(exec, b.labels);
  exec.statistic({2, b.table_rows, embedding_dim_});  // and gradients
  const int64_t inputs =
      b.branches.rows * num_features() + b.branches.samples * config_.contextual_tokens();
  exec.activation({inputs, embedding_dim_});
  preprocessor_->forward_memory(exec, b.branches);
  exec.statistic({preprocessor_->row_count(b.branches), config_.dim});  // gradients
  const int64_t rows = exec.arena->used();
  int64_t forward = 0;
  {
    const Arena::Mark micro_batch(*exec.arena);
    tokens_forward_memory(exec, b);
    forward = exec.arena->used();
    tokens_backward_memory(exec, b);
  }
  {
    const Arena::Mark rows_backward(*exec.arena);
    exec.activation({inputs, embedding_dim_});  // dinputs
    plan_backward(exec, *preprocessor_, b.branches);
    plan_feature_gradients(
        exec, b.branches.rows * num_columns() + b.branches.samples * context_ids(), b.table_rows);
  }
  if (tables_config_.backward_wire != sparse::Wire::kF32) {  // gradients of a table as they travel
    plan_scratch(exec, b.most_table_rows * embedding_dim_ * size_of(exec.parameter_dtype()));
  }
  return plan.step(rows, forward);
}

std::vector<MemorySwitch> Ranker::memory_switches(const StepBounds& bounds, Precision precision,
                                                  Device device) const {
  std::vector<MemorySwitch> switches;
  for (const auto& [name, member] :
       {std::pair("normed_input", &RecomputeConfig::normed_input),
        std::pair("uvqk", &RecomputeConfig::uvqk), std::pair("gate", &RecomputeConfig::gate)}) {
    const auto bytes = [&, member = member](bool on) {
      ModelConfig c = config_;
      c.recompute.*member = on;
      return Ranker(c, tables_config_).step_memory(bounds, precision, device).total();
    };
    switches.push_back({fmt::format("model.recompute.{}", name), config_.recompute.*member,
                        bytes(false) - bytes(true)});
  }
  return switches;
}

int64_t Ranker::batch_memory(const StepBounds& bounds) const {
  const int64_t events = bounds.samples * bounds.events;
  const int64_t places = events + bounds.samples * bounds.candidates;
  const int64_t tasks = std::ssize(config_.tasks);
  const bool candidates = config_.labels == LabelKind::kCandidates;
  const int64_t labels = candidates ? places - events : events;
  constexpr int64_t kSmall = int64_t{1} << 20;  // offsets, action codes, alignment
  // Which tokens are left, and where labels are among them.
  const int64_t tokens = bounds.samples * config_.sample_tokens(bounds.events, bounds.candidates);
  const int64_t numbers =
      labels * config_.numeric.width() +
      (config_.numeric.in_tokens() ? places * config_.numeric.token_width() : 0);
  const int64_t truncated = truncates() ? tokens * (8 + 4) + labels * 4 : 0;
  const int64_t labelled = config_.event_label.empty() ? 0 : events * 4;
  const int64_t of_context = bounds.samples * config_.contextual_tokens();
  const int64_t ids = places * num_columns() + bounds.samples * context_ids();
  const int64_t bags = bags_
                           ? (places * num_features() + of_context + labels * num_features()) * 8 +
                                 (ids + labels * num_columns()) * 4
                           : 0;
  // Times, actions, items and their rows; table rows, once more sorted, and their slots.
  return places * (2 * 8 + 2 * 4) + ids * (8 + 3 * 4) + places * 4 +
         labels * (num_columns() * 4 + tasks * 8) + bags + numbers * 4 + truncated + labelled +
         kSmall;
}

void Ranker::reserve_prepare(int64_t bytes) {
  const Device device = parameters_.values().device;
  if (!device.is_cuda() || bytes == 0) return;
  if (!places_->on_device) places_->on_device = std::make_unique<Places::OnDevice>(device);
  places_->on_device->dedup.reserve(device, bytes);
}

int64_t Ranker::prepare_memory(const StepBounds& bounds) const {
  if (!config_.identities.distinct_rows) return 0;
  return sparse::DeviceDedup::memory_bytes(bounds.samples * (bounds.events + bounds.candidates));
}

}  // namespace segue::model
