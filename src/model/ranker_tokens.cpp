#include <algorithm>
#include <cmath>

#include "base/log.h"
#include "model/ranker.h"
#include "model/ranker_parts.h"
#include "ops/loss.h"
#include "ops/rows.h"

namespace segue::model {

Ranker::Tokens Ranker::lay_out(const Exec& exec, const Batch& batch, const BatchLayout& layout,
                               const Rows& rows, const MicroBatch& micro,
                               const PassOptions& options) const {
  const bool candidates = config_.labels == LabelKind::kCandidates;
  const int64_t contextual = config_.contextual_tokens();
  const bool interleaved = config_.tokens == TokenKind::kInterleaved;
  const int64_t begin = layout.token_offsets[static_cast<size_t>(micro.first)];
  const int64_t end = layout.token_offsets[static_cast<size_t>(micro.first + micro.count)];
  const int32_t content_rows = static_cast<int32_t>(rows.saved.rows.size(0));

  Tokens t;
  t.count = end - begin;
  const Tensor row_index = exec.index({t.count});
  const Tensor action_index = exec.index({t.count});
  t.sequences.rows = {exec.index({t.count}), exec.index({t.count})};
  std::vector<int64_t> timestamps(static_cast<size_t>(t.count), 0);
  std::vector<int32_t> labelled_token;
  std::vector<int32_t> labelled_place;  // events, then candidates, of the whole batch
  const std::span<const int64_t> label_column =
      batch.column(candidates ? config_.candidate_label : config_.action.history).values.span();

  const std::span<const int64_t> history_times =
      batch.column(config_.history_timestamp).values.span();
  const std::span<const int64_t> candidate_times =
      candidates ? batch.column(config_.candidate_timestamp).values.span()
                 : std::span<const int64_t>();
  int32_t* row = row_index.ptr<int32_t>();
  int32_t* action = action_index.ptr<int32_t>();
  int32_t* sample = t.sequences.rows.sample.ptr<int32_t>();
  int32_t* token = t.sequences.rows.token.ptr<int32_t>();

  t.offsets.push_back(0);
  int64_t place = 0;
  for (int64_t b = micro.first; b < micro.first + micro.count; ++b) {
    const int64_t first = place;
    const auto put = [&](int32_t row_id, int32_t action_id, int64_t time) {
      row[place] = row_id;
      action[place] = action_id;
      sample[place] = static_cast<int32_t>(batch.sample_index[b]);
      token[place] = static_cast<int32_t>(place - first);
      timestamps[static_cast<size_t>(place)] = time;
      ++place;
    };
    for (int64_t s = 0; s < contextual; ++s) {
      put(content_rows + static_cast<int32_t>(b * contextual + s), -1, 0);
    }
    for (int64_t e = layout.history_offsets[static_cast<size_t>(b)];
         e < layout.history_offsets[static_cast<size_t>(b) + 1]; ++e) {
      const int64_t time = history_times[static_cast<size_t>(e)];
      if (!candidates) {
        labelled_token.push_back(static_cast<int32_t>(place));
        labelled_place.push_back(static_cast<int32_t>(e));
        t.label_timestamps.push_back(time);
        t.label_values.push_back(label_column[static_cast<size_t>(e)]);
      }
      if (interleaved) {
        put(rows.branch_of_event[e], -1, time);
        put(-1, rows.action_of_event[e], time);
      } else {
        put(rows.branch_of_event[e], rows.action_of_event[e], time);
      }
    }
    for (int64_t c = layout.candidate_offsets[static_cast<size_t>(b)];
         c < layout.candidate_offsets[static_cast<size_t>(b) + 1]; ++c) {
      const int64_t time = candidate_times[static_cast<size_t>(c)];
      labelled_token.push_back(static_cast<int32_t>(place));
      labelled_place.push_back(static_cast<int32_t>(layout.events() + c));
      t.label_timestamps.push_back(time);
      t.label_values.push_back(label_column[static_cast<size_t>(c)]);
      put(rows.branch_of_event[layout.events() + c], interleaved ? -1 : rows.action_of_target[c],
          time);
    }
    t.offsets.push_back(place);
    t.num_targets.push_back(layout.targets(b));
    t.most_targets = std::max(t.most_targets, layout.targets(b));
  }
  t.first_label = candidates ? layout.candidate_offsets[static_cast<size_t>(micro.first)]
                             : layout.history_offsets[static_cast<size_t>(micro.first)];

  t.sequences.offsets = t.offsets;
  if (candidates) t.sequences.num_targets = t.num_targets;
  t.sequences.training = options.training;
  t.sequences.score_scale =
      1.0 / static_cast<double>(std::max<int64_t>(
                1, config_.attention.score_scale == ScoreScale::kBatchMax ? *options.longest
                                                                          : config_.max_seq_len));

  // Encoders.
  ops::PositionParams position{.offsets = t.offsets,
                               .num_targets = t.sequences.num_targets,
                               .contextual_len = contextual,
                               .position_buckets = config_.position_buckets,
                               .time_buckets = config_.time_buckets + 1,
                               .time_bucket_seconds = ModelConfig::kTimeBucketSeconds};
  t.assemble.content = rows.saved.rows;
  if (contextual > 0) {
    t.assemble.context =
        rows.saved.context_rows.reshape({layout.samples() * contextual, config_.dim});
  }
  t.assemble.row_index = row_index;
  t.assemble.action_rows = rows.saved.action_rows;
  t.assemble.action_index = action_index;
  t.assemble.scale = std::sqrt(static_cast<double>(config_.dim));
  t.assemble.position_table = position_table_->value;
  t.assemble.position_index = exec.index({t.count});
  ops::position_indices(position, t.assemble.position_index.span<int32_t>());
  if (time_table_ != nullptr) {
    t.assemble.time_table = time_table_->value;
    t.assemble.time_index = exec.index({t.count});
    ops::time_indices(position, timestamps, t.assemble.time_index.span<int32_t>());
  }
  t.assemble.dropout = {.p = options.training ? static_cast<float>(config_.input_dropout) : 0.f,
                        .site = kInputDropoutSite,
                        .rows = t.sequences.rows};

  // Labelled tokens.
  const int64_t labels = static_cast<int64_t>(labelled_token.size());
  t.labelled = {exec.index({labels}), {exec.index({labels}), exec.index({labels})}};
  for (int64_t i = 0; i < labels; ++i) {
    const int32_t at = labelled_token[static_cast<size_t>(i)];
    t.labelled.rows.ptr<int32_t>()[i] = at;
    t.labelled.identity.sample.ptr<int32_t>()[i] = sample[at];
    t.labelled.identity.token.ptr<int32_t>()[i] = token[at];
  }
  for (const HostArray<int32_t>& feature : rows.feature_index) {
    const Tensor index = exec.index({labels});
    for (int64_t i = 0; i < labels; ++i) {
      index.ptr<int32_t>()[i] = feature[labelled_place[static_cast<size_t>(i)]];
    }
    t.label_features.push_back(index);
  }
  return t;
}

bool Ranker::collapses_last_layer(const Tokens& tokens) const {
  if (!config_.identities.last_layer_targets) return false;
  const char* reason = nullptr;
  if (config_.labels != LabelKind::kCandidates) {
    reason = "every item is a label";
  } else if (!layers_.back().can_run_targets_only()) {
    reason = "it needs layer = \"concat\" and target groups of one";
  } else if (config_.attention.window > 0) {
    reason = "attention has a window";
  } else if (tokens.most_targets > kMaxTargetsForCollapse) {
    reason = "a sample has more than 16 candidates";
  }
  if (reason == nullptr) return true;
  base::log_once(base::LogLevel::kInfo, "last_layer_targets",
                 std::string("identity last_layer_targets does not apply: ") + reason);
  return false;
}

Ranker::UserSide Ranker::user_forward(const Exec& exec, const Rows&, const Tokens& tokens,
                                      const PassOptions& options) const {
  const Tensor& labelled = tokens.labelled.rows;
  const int64_t labels = labelled.size(0);
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
  ops::assemble_forward(exec, tokens.assemble, u.x0);
  if (options.probe) options.probe("positional", u.x0);

  u.collapsed = collapses_last_layer(tokens);
  const size_t full_layers = layers_.size() - (u.collapsed ? 1 : 0);
  Tensor x = u.x0;
  u.layers.reserve(full_layers);
  for (size_t l = 0; l < full_layers; ++l) {
    u.layers.push_back(layers_[l].forward(exec, tokens.sequences, x));
    x = u.layers.back().x_out;
    if (options.probe) options.probe("stu" + std::to_string(l), x);
  }
  Tensor selected;
  if (u.collapsed) {
    u.last = layers_.back().forward_targets(exec, tokens.sequences, x, tokens.labelled);
    selected = u.last.x_out;
  } else {
    selected = exec.activation({labels, config_.dim});
    ops::gather_rows(exec, x, labelled, selected);
  }
  u.post = postprocessor_->forward(exec, selected, host_view(std::span(tokens.label_timestamps)));
  u.user = u.post.y;
  if (options.probe) options.probe("postprocessed", u.user);
  return u;
}

void Ranker::user_backward(const Exec& exec, Rows& rows, const Tokens& tokens, const UserSide& u,
                           const Tensor& duser) const {
  const Tensor dselected = exec.activation({duser.size(0), config_.dim});
  postprocessor_->backward(exec, u.post, duser, dselected);

  const Tensor dx = exec.activation({tokens.count, config_.dim});
  if (u.collapsed) {
    layers_.back().backward_targets(exec, tokens.sequences, u.last, dselected, dx);
  } else {
    zero(dx);
    ops::segment_sum(exec, dselected, tokens.labelled.rows, dx);
  }
  for (size_t l = u.layers.size(); l-- > 0;) {
    layers_[l].backward(exec, tokens.sequences, u.layers[l], dx, dx);
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
  ops::assemble_backward(exec, tokens.assemble, dx, g);
}

Ranker::ItemSide Ranker::item_forward(const Exec& exec, const Rows& rows, const Tokens& tokens,
                                      const Tensor& user) const {
  const Exec wide = wide_exec(exec);
  const int64_t labels = tokens.labelled.rows.size(0);
  const int64_t embedding_dim = tables_.config().dim;
  const int64_t features = static_cast<int64_t>(sequence_tables_.size());
  ItemSide item;
  item.product = user;
  if (item_mlp_) {
    item.item_rows = wide.activation({labels, features * embedding_dim});
    for (int64_t f = 0; f < features; ++f) {
      ops::gather_rows(
          wide, rows.table_rows[static_cast<size_t>(sequence_tables_[static_cast<size_t>(f)])],
          tokens.label_features[static_cast<size_t>(f)],
          item.item_rows.columns(f * embedding_dim, embedding_dim));
    }
    item.item = item_mlp_->forward(wide, item.item_rows);
    item.product = wide.activation({labels, config_.dim});
    ops::multiply_forward(wide, user, item.item.y, item.product);
  }
  item.head = head_->forward(wide, item.product);
  item.logits = item.head.y;
  item.dlogits = wide.activation({labels, item.logits.size(1)});
  return item;
}

void Ranker::loss(const Exec& exec, const Tokens& tokens, const ItemSide& item, double denominator,
                  Pass& pass) const {
  const Exec wide = wide_exec(exec);
  const int64_t labels = tokens.labelled.rows.size(0);
  const Tensor label = wide.statistic({labels});
  const Tensor weight = wide.statistic({labels});
  const Tensor prediction = wide.statistic({labels});
  for (size_t k = 0; k < config_.tasks.size(); ++k) {
    const TaskConfig& task = config_.tasks[k];
    const size_t at =
        k * static_cast<size_t>(pass.num_labels) + static_cast<size_t>(tokens.first_label);
    const Tensor logits = item.logits.column(static_cast<int64_t>(k));
    dispatch_real(label.dtype, [&]<class T>(T) {
      for (int64_t i = 0; i < labels; ++i) {
        const int64_t value = tokens.label_values[static_cast<size_t>(i)];
        label.ptr<T>()[i] = task.kind == ops::TaskKind::kBinary
                                ? static_cast<T>((value & task.bit) > 0)
                                : static_cast<T>(value);
        weight.ptr<T>()[i] = 1;
      }
    });
    ops::loss_forward_backward(wide, task.kind, logits, label, weight, task.weight / denominator,
                               item.dlogits.column(static_cast<int64_t>(k)), prediction,
                               host_view(std::span(pass.task_losses).subspan(k, 1)));
    dispatch_real(label.dtype, [&]<class T>(T) {
      for (int64_t i = 0; i < labels; ++i) {
        const size_t to = at + static_cast<size_t>(i);
        pass.logits[to] = static_cast<double>(*logits.row<T>(i));
        pass.predictions[to] = static_cast<float>(prediction.ptr<T>()[i]);
        pass.labels[to] = static_cast<float>(label.ptr<T>()[i]);
      }
    });
  }
}

Tensor Ranker::item_backward(const Exec& exec, Rows& rows, const Tokens& tokens,
                             const ItemSide& item, const Tensor& user) const {
  const Exec wide = wide_exec(exec);
  const int64_t labels = user.size(0);
  const Tensor duser = wide.activation({labels, config_.dim});
  const Tensor dproduct = wide.activation({labels, config_.dim});
  head_->backward(wide, item.head, item.dlogits, item_mlp_ ? dproduct : duser);
  if (item_mlp_) {
    Arena::Mark scratch(*exec.arena);
    const Tensor ditem = wide.activation({labels, config_.dim});
    ops::multiply_backward(wide, dproduct, user, item.item.y, duser, ditem);
    const Tensor drows = wide.activation({labels, item.item_rows.size(1)});
    item_mlp_->backward(wide, item.item, ditem, drows);
    const int64_t embedding_dim = tables_.config().dim;
    for (size_t f = 0; f < sequence_tables_.size(); ++f) {
      ops::segment_sum(wide, drows.columns(static_cast<int64_t>(f) * embedding_dim, embedding_dim),
                       tokens.label_features[f],
                       rows.table_gradients[static_cast<size_t>(sequence_tables_[f])]);
    }
  }
  ops::round_rows_to_bf16(exec, duser);
  return duser;
}

}  // namespace segue::model
