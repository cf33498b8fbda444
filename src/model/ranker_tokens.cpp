#include <algorithm>
#include <cmath>
#include <optional>
#include <string>

#include "base/log.h"
#include "model/flops.h"
#include "model/ranker.h"
#include "model/ranker_parts.h"
#include "ops/loss.h"
#include "ops/rows.h"
#include "ops/token_arrays.h"
#include "tensor/part_timer.h"

namespace segue::model {
namespace {

const char* layer_name(size_t layer, const char* direction) {
  return base::lasting_name("layer " + std::to_string(layer) + " " + direction);
}

/// Of a layer, for tokens in front of any truncation. The formula counts all of its work: where
/// only targets are computed it says nothing about the time.
PartWork layer_work(const ModelConfig& config, const Exec& exec, const Sequences& tokens,
                    size_t layer, bool backward, bool targets_only) {
  const auto flop = [&](bool with_backward) {
    return layer_flops(config, static_cast<int64_t>(layer), tokens.offsets, with_backward);
  };
  return {.flop = targets_only ? 0
                  : backward   ? flop(true) - flop(false)
                               : flop(false),
          .tokens = tokens.tokens(),
          .samples = std::ssize(tokens.offsets) - 1,
          .arena_bytes = exec.arena->used()};
}

}  // namespace

Ranker::Tokens Ranker::place_tokens(const Exec& exec, const RankerBatch& batch,
                                    const RankerBatch::Tokens& micro,
                                    const UploadBlock::Placed& placed, const Rows& rows,
                                    const PassOptions& options) const {
  Tokens t;
  t.count = micro.count;
  t.most_targets = micro.most_targets;
  t.first_label = micro.first_label;

  const int64_t samples = std::ssize(micro.offsets) - 1, first = micro.first_sample;
  const bool candidates = config_.labels == LabelKind::kCandidates;
  ops::TokenColumns columns;
  columns.token_offsets = placed.tensor(micro.device_offsets);
  columns.event_offsets = placed.tensor(batch.event_offsets).narrow(0, first, samples + 1);
  columns.candidate_offsets = placed.tensor(batch.candidate_offsets).narrow(0, first, samples + 1);
  columns.sample = placed.tensor(batch.sample_number).narrow(0, first, samples);
  columns.event_time = placed.tensor(batch.event_time);
  columns.candidate_time = placed.tensor(batch.candidate_time);
  columns.event_action = placed.tensor(batch.event_action);
  columns.item = placed.tensor(batch.item);
  if (batch.event_label.count > 0) {
    columns.event_label = placed.tensor(batch.event_label);
    columns.first_label = micro.first_label;
  }
  columns.row_of_item = placed.tensor(batch.row_of_item);
  columns.contextual = config_.contextual_tokens();
  columns.first_context_row = batch.branch_rows + first * config_.contextual_tokens();
  columns.interleaved = config_.tokens != TokenKind::kMerged;
  columns.item_with_action = config_.tokens == TokenKind::kPaired;
  columns.causal = config_.causal_tokens();
  columns.action_codes = batch.action_codes;
  columns.action_weights = config_.action.weights;
  columns.events_are_labels = !candidates;
  columns.position_buckets = config_.position_buckets;
  columns.time_buckets = config_.time_buckets + 1;
  columns.time_bucket_seconds = ModelConfig::kTimeBucketSeconds;
  const ops::TokenArrays arrays =
      ops::take_token_arrays(exec, micro.count, micro.labels, time_table_ != nullptr);
  ops::fill_token_arrays(exec, columns, arrays);

  t.sequences.offsets = micro.offsets;
  t.sequences.device_offsets = placed.tensor(micro.device_offsets);
  if (candidates) {
    t.sequences.num_targets = micro.num_targets;
    t.sequences.device_num_targets = placed.tensor(micro.device_num_targets);
  }
  t.sequences.rows = {arrays.sample, arrays.token};
  t.sequences.training = options.training;
  if (heads_ != nullptr) {
    t.sequences.heads = heads_;
    t.sequences.group = &micro.group;
  }
  t.sequences.score_scale = 1.0 / static_cast<double>(std::max<int64_t>(
                                      1, config_.attention.score_scale == ScoreScale::kBatchMax
                                             ? batch.maxima[0] + batch.maxima[1]
                                             : config_.max_seq_len));

  t.assemble.content = rows.saved.rows;
  if (rows.saved.context_rows) {
    t.assemble.context = rows.saved.context_rows.reshape(
        {batch.layout.samples() * config_.contextual_tokens(), config_.dim});
  }
  t.assemble.row_index = arrays.row;
  t.assemble.action_rows = rows.saved.action_rows;
  t.assemble.action_index = arrays.action;
  t.assemble.scale =
      config_.input_scale == InputScale::kOne ? 1 : std::sqrt(static_cast<double>(config_.dim));
  t.assemble.position_table = position_table_->value;
  t.assemble.position_index = arrays.position;
  if (time_table_ != nullptr) {
    t.assemble.time_table = time_table_->value;
    t.assemble.time_index = arrays.time;
  }
  t.assemble.dropout = {.p = options.training ? static_cast<float>(config_.input_dropout) : 0.f,
                        .site = kInputDropoutSite,
                        .rows = t.sequences.rows};

  t.labelled = {arrays.label_row, {arrays.label_sample, arrays.label_token}};
  t.label_timestamps = arrays.label_time;
  t.label_features = {placed.tensor(micro.label_features)};
  if (bags_) {
    t.label_features.offsets =
        placed.tensor(batch.label_bags.offsets).narrow(0, 0, micro.labels * num_features() + 1);
    t.label_features.bag =
        placed.tensor(batch.label_bags.bag).narrow(0, 0, micro.labels * num_columns());
  }
  if (numeric_mlp_) {
    t.label_numbers = place_numbers(batch.label_numbers, config_.numeric.width(), placed)
                          .rows(micro.first_label, micro.labels);
  }
  for (const auto& part : micro.label_values) t.label_values.push_back(placed.tensor(part));
  for (const auto& part : micro.label_values_double) t.label_values.push_back(placed.tensor(part));
  if (truncates()) place_truncated(exec, micro, placed, t);
  return t;
}

/// Dropout goes on by the numbers that tokens had.
void Ranker::place_truncated(const Exec& exec, const RankerBatch::Tokens& micro,
                             const UploadBlock::Placed& placed, Tokens& t) const {
  const RankerBatch::Tokens::Truncated& from = micro.truncated;
  Tokens::Truncated& to = t.truncated;
  to.kept = placed.tensor(from.kept);
  to.sequences = t.sequences;
  to.sequences.offsets = from.offsets;
  to.sequences.device_offsets = placed.tensor(from.device_offsets);
  if (heads_ != nullptr) to.sequences.group = &from.group;
  const ops::RowIdentity& all = t.sequences.rows;
  const auto left = [&](const Tensor& x) {
    const Tensor y = exec.arena->tensor(x.dtype, {to.kept.size(0)});
    ops::take(exec, x, placed.tensor(from.kept_short), y);
    return y;
  };
  to.sequences.rows = {left(all.sample), left(all.token)};
  to.labelled = {placed.tensor(from.label_rows), t.labelled.identity};
}

Ranker::UserSide Ranker::user_forward(const Exec& exec, const Tokens& tokens,
                                      const PassOptions& options) const {
  const int64_t labels = tokens.labelled.rows.size(0);
  if (options.probe) {
    ops::AssembleParams plain = tokens.assemble;
    plain.scale = 1;
    plain.position_table = plain.time_table = {};
    plain.dropout = {};
    const Tensor preprocessed = exec.activation({tokens.count, config_.dim});
    ops::assemble_forward(exec, plain, preprocessed);
    options.probe("preprocessed", preprocessed);
  }

  UserSide u;
  u.x0 = exec.activation({tokens.count, config_.dim});
  ops::AssembleParams assemble = tokens.assemble;
  if (const int64_t bytes = ops::assemble_keep_bytes(exec, assemble, config_.dim); bytes > 0) {
    assemble.keep = u.keep = exec.arena->tensor(DType::kU8, {tokens.count, bytes});
  }
  const auto make_input = [&](const ops::FollowingNorm& norm) {
    ops::assemble_forward(exec, assemble, u.x0, norm);
    if (options.probe) options.probe("positional", u.x0);
  };

  const char* const why_full = config_.why_last_layer_is_full(tokens.most_targets);
  u.collapsed = why_full == nullptr;
  if (!u.collapsed && config_.identities.last_layer_targets) {
    base::log_once(base::LogLevel::kInfo, "last_layer_targets",
                   std::string("identity last_layer_targets does not apply: ") + why_full);
  }
  const auto work = [&](size_t l) {
    return [&, l] {
      return layer_work(config_, exec, tokens.sequences, l, /*backward=*/false,
                        u.collapsed && l + 1 == layers_.size());
    };
  };
  const size_t full_layers = layers_.size() - (u.collapsed ? 1 : 0);
  Tensor x = u.x0;
  u.layers.reserve(full_layers);
  if (full_layers == 0) make_input({});
  const auto truncate_before = [&](size_t l) {
    if (!tokens.truncated_at(l, config_)) return;
    const Tensor left = exec.activation({tokens.truncated.kept.size(0), config_.dim});
    ops::gather_rows(exec, x, tokens.truncated.kept, left);
    x = left;
  };
  for (size_t l = 0; l < full_layers; ++l) {
    const Part part(layer_name(l, "forward"), work(l));
    truncate_before(l);
    u.layers.push_back(layers_[l].forward(exec, tokens.sequences_of(l, config_), x,
                                          l == 0 ? make_input : StuLayer::MakeInput{}));
    x = u.layers.back().x_out;
    if (options.probe) options.probe("stu" + std::to_string(l), x);
  }
  std::optional<Part> part;
  if (u.collapsed) {
    part.emplace(layer_name(full_layers, "forward"), work(full_layers));
    truncate_before(full_layers);
  }
  const Tensor selected = postprocessor_->make_input(exec, labels);
  const TargetTokens& labelled = truncates() ? tokens.truncated.labelled : tokens.labelled;
  if (u.collapsed) {
    u.last = layers_.back().forward_targets(exec, tokens.sequences_of(full_layers, config_), x,
                                            labelled, selected);
  } else {
    ops::gather_rows(exec, x, labelled.rows, selected);
  }
  part.reset();
  u.post = postprocessor_->forward(exec, selected, tokens.label_timestamps);
  u.user = u.post.y;
  if (options.probe) options.probe("postprocessed", u.user);
  return u;
}

void Ranker::user_backward(const Exec& exec, Rows& rows, const Tokens& tokens, const UserSide& u,
                           const Tensor& duser, const PassOptions& options, bool last) const {
  const auto layer_done = [&](size_t l) {
    if (last && options.gradients_ready) options.gradients_ready(layers_.size() - l);
  };
  const auto work = [&](size_t l) {
    return [&, l] {
      return layer_work(config_, exec, tokens.sequences, l, /*backward=*/true,
                        u.collapsed && l + 1 == layers_.size());
    };
  };
  const Tensor dselected = exec.activation({duser.size(0), config_.dim});
  postprocessor_->backward(exec, u.post, duser, dselected);

  const Tensor dx_all = exec.activation({tokens.count, config_.dim});
  Tensor dx = dx_all;  // of the tokens that a layer works on
  if (truncates()) dx = exec.activation({tokens.truncated.kept.size(0), config_.dim});
  // What was dropped in front of a layer has no gradient from there.
  const auto truncated_before = [&](size_t l) {
    if (!tokens.truncated_at(l, config_)) return;
    zero(dx_all, exec.stream);
    ops::scatter_rows(exec, dx, tokens.truncated.kept, dx_all);
    dx = dx_all;
  };
  if (u.collapsed) {
    const size_t l = layers_.size() - 1;
    const Part part(layer_name(l, "backward"), work(l));
    layers_[l].backward_targets(exec, tokens.sequences_of(l, config_), u.last, dselected, dx);
    truncated_before(l);
    layer_done(l);
  } else {
    zero(dx, exec.stream);
    ops::segment_sum(exec, dselected,
                     (truncates() ? tokens.truncated.labelled : tokens.labelled).rows, dx);
  }
  for (size_t l = u.layers.size(); l-- > 0;) {
    const Part part(layer_name(l, "backward"), work(l));
    layers_[l].backward(exec, tokens.sequences_of(l, config_), u.layers[l], dx, dx);
    truncated_before(l);
    layer_done(l);
  }
  const int64_t dim = config_.dim;
  ops::AssembleGradients g;
  g.content = rows.gradients.rows;
  if (rows.gradients.context_rows) {
    g.context = rows.gradients.context_rows.reshape(
        {rows.gradients.context_rows.elements() / std::max<int64_t>(dim, 1), dim});
  }
  g.action = rows.gradients.action_rows;
  g.position = position_table_->grad;
  if (time_table_ != nullptr) g.time = time_table_->grad;
  ops::AssembleParams assemble = tokens.assemble;
  assemble.keep = u.keep;
  ops::assemble_backward(exec, assemble, dx, g);
}

Exec Ranker::head_exec(const Exec& exec) const {
  return config_.head_precision == HeadPrecision::kFloat ? wide_exec(exec) : exec;
}

Ranker::ItemSide Ranker::item_forward(const Exec& exec, const Rows& rows, const Tokens& tokens,
                                      const Tensor& user, const PassResults& results) const {
  const Part part("head forward");
  const Exec head = head_exec(exec);
  const int64_t labels = tokens.labelled.rows.size(0);
  ItemSide item;
  item.user = user;
  if (item_mlp_) {
    item.item_rows = head.activation({labels, num_features() * embedding_dim_});
    tokens.label_features.read(head, rows.table_rows,
                               item.item_rows.reshape({labels * num_features(), embedding_dim_}));
    item.item = item_mlp_->forward(head, item.item_rows);
    item.product = head.activation({labels, config_.dim});
    ops::multiply_forward(head, item.user, item.item.y, item.product);
  } else {
    item.product = as_activation(head, user);
  }
  if (numeric_mlp_) {
    item.numbers = numeric_mlp_->forward(head, tokens.label_numbers, item.product);
    item.product = item.numbers.y;
  }
  item.logits = results.logits.rows(tokens.first_label, labels);
  item.head = head_->forward(head, item.product, {}, item.logits);
  item.dlogits = wide_exec(exec).activation({labels, item.logits.size(1)});
  return item;
}

void Ranker::loss(const Exec& exec, const Tokens& tokens, const ItemSide& item, double denominator,
                  const PassResults& results) const {
  const Part part("head forward");
  const Exec wide = wide_exec(exec);
  const int64_t labels = tokens.labelled.rows.size(0);
  for (size_t k = 0; k < config_.tasks.size(); ++k) {
    const TaskConfig& task = config_.tasks[k];
    const auto column = static_cast<int64_t>(k);
    ops::loss_forward_backward(
        wide, task.kind, item.logits.column(column), tokens.label_values[k], {},
        task.weight / denominator, item.dlogits.column(column),
        results.predictions.select(column).narrow(0, tokens.first_label, labels),
        results.losses.narrow(0, column, 1));
  }
}

Tensor Ranker::item_backward(const Exec& exec, Rows& rows, const Tokens& tokens,
                             const ItemSide& item) const {
  const Part part("head backward");
  const Exec head = head_exec(exec);
  const int64_t labels = item.user.size(0);
  const Tensor dproduct = head.activation({labels, config_.dim});
  Tensor duser = dproduct;
  head_->backward(head, item.head, item.dlogits, dproduct);
  if (numeric_mlp_) numeric_mlp_->backward(head, item.numbers, dproduct, {});
  if (item_mlp_) {
    duser = exec.activation({labels, config_.dim});
    Arena::Mark scratch(*exec.arena);
    const Tensor ditem = head.activation({labels, config_.dim});
    ops::multiply_backward(head, dproduct, item.user, item.item.y, duser, ditem);
    const Tensor drows = head.activation({labels, item.item_rows.size(1)});
    item_mlp_->backward(head, item.item, ditem, drows);
    tokens.label_features.add_gradients(
        head, drows.reshape({labels * num_features(), embedding_dim_}), rows.table_gradients);
  }
  return rounded_activation(exec, duser);
}

}  // namespace segue::model
