#include "model/ranker.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

#include "base/log.h"
#include "base/stage.h"
#include "model/flops.h"
#include "model/ranker_parts.h"
#include "ops/rows.h"

namespace segue::model {

Ranker::Ranker(const ModelConfig& config, sparse::Tables& tables, Device device,
               DType parameter_dtype, uint64_t seed)
    : config_(config), tables_(tables) {
  config.validate();
  const int64_t embedding_dim = tables.config().dim;
  sequence_tables_.push_back(tables.id(config.item.table));
  for (const SequenceFeature& f : config.additional) sequence_tables_.push_back(tables.id(f.table));
  for (const ContextualFeature& f : config.contextual) {
    contextual_tables_.push_back(tables.id(f.table));
  }

  const std::string transducer = "_hstu_transducer.";
  head_ = std::make_unique<Mlp>(parameters_, "_multitask_module._prediction_module",
                                MlpConfig{.in = config.dim,
                                          .hidden = config.head_hidden,
                                          .out = static_cast<int64_t>(config.tasks.size()),
                                          .relu = config.embedding_mlp == EmbeddingMlp::kRelu,
                                          .final_norm = false,
                                          .xavier_normal = false});
  StuConfig stu{.dim = config.dim,
                .heads = config.heads,
                .qk_dim = config.qk_dim,
                .v_dim = config.v_dim,
                .kind = config.layer,
                .output_norm = config.output_norm,
                .dropout = config.dropout,
                .recompute = config.recompute};
  stu.mask = {.contextual_len = config.attention.contextual_mask ? config.contextual_tokens() : 0,
              .window = config.attention.window,
              .min_full = config.attention.min_full,
              .target_group = config.attention.target_group};
  layers_.reserve(static_cast<size_t>(config.layers));
  for (int64_t l = 0; l < config.layers; ++l) {
    stu.dropout_site = kInputDropoutSite + 1 + static_cast<uint32_t>(l);
    layers_.emplace_back(parameters_,
                         transducer + "_stu_module._stu_layers." + std::to_string(l) + ".", stu);
  }
  preprocessor_ = std::make_unique<Preprocessor>(
      parameters_, transducer + "_input_preprocessor.",
      PreprocessorConfig{.embedding_dim = embedding_dim,
                         .hidden = config.hidden,
                         .dim = config.dim,
                         .additional_features = static_cast<int64_t>(config.additional.size()),
                         .contextual_tokens = config.contextual_tokens(),
                         .action_bits = static_cast<int64_t>(config.action.weights.size()),
                         .action_dim = config.action.dim,
                         .relu = config.embedding_mlp == EmbeddingMlp::kRelu});
  postprocessor_ = std::make_unique<Postprocessor>(
      parameters_, transducer + "_output_postprocessor.",
      Postprocessor::Config{.kind = config.postprocessor, .dim = config.dim, .pi = config.time_pi});
  const auto table = [&](const char* name, int64_t rows, int64_t buckets) {
    return parameters_.add(transducer + "_positional_encoder." + name, {rows, config.dim},
                           ops::Init::kUniform, std::sqrt(1.0 / static_cast<double>(buckets)));
  };
  position_table_ =
      table("_position_embeddings_weight", config.position_buckets, config.position_buckets);
  if (config.time_buckets > 0) {
    time_table_ =
        table("_timestamp_embeddings_weight", config.time_buckets + 1, config.time_buckets);
  }
  if (config.head == HeadKind::kProduct) {
    item_mlp_ = std::make_unique<Mlp>(
        parameters_, "_item_embedding_mlp",
        MlpConfig{.in = embedding_dim * static_cast<int64_t>(sequence_tables_.size()),
                  .hidden = config.item_hidden,
                  .out = config.dim,
                  .relu = config.embedding_mlp == EmbeddingMlp::kRelu,
                  .xavier_normal = false});
  }
  parameters_.allocate(device, parameter_dtype, seed);
}

Ranker::~Ranker() = default;

namespace {

Tensor zeros_like(const Exec& exec, const Tensor& t, DType dtype) {
  Tensor z = t.rank == 3 ? exec.arena->tensor(dtype, {t.size(0), t.size(1), t.size(2)})
                         : exec.arena->tensor(dtype, {t.size(0), t.size(1)});
  zero(z);
  return z;
}

int32_t action_code_of(int64_t bits, std::span<const int64_t> weights) {
  int32_t code = 0;
  for (size_t k = 0; k < weights.size(); ++k) {
    if ((bits & weights[k]) > 0) code |= int32_t{1} << k;
  }
  return code;
}

}  // namespace

Ranker::Rows Ranker::rows_forward(const Exec& exec, const Batch& batch, const BatchLayout& layout,
                                  bool training, sparse::Ticket& ticket) {
  const bool candidates = config_.labels == LabelKind::kCandidates;
  const int64_t events = layout.events();
  const int64_t targets = layout.candidates();

  // Look-ups: history and candidates of every sequence feature, then the contextual features.
  std::vector<sparse::Lookup> lookups;
  const auto look_up = [&](sparse::TableId table, const std::string& column) {
    lookups.push_back({table, column, batch.column(column).values.span()});
  };
  for (size_t f = 0; f < sequence_tables_.size(); ++f) {
    const SequenceFeature& feature = f == 0 ? config_.item : config_.additional[f - 1];
    look_up(sequence_tables_[f], feature.history);
    if (candidates) look_up(sequence_tables_[f], feature.candidate);
  }
  for (size_t c = 0; c < contextual_tables_.size(); ++c) {
    look_up(contextual_tables_[c], config_.contextual[c].name);
  }
  ticket = tables_.begin(lookups);

  Rows rows;
  rows.table_rows.resize(static_cast<size_t>(tables_.count()));
  rows.table_gradients.resize(static_cast<size_t>(tables_.count()));
  for (const sparse::Lookup& l : lookups) {
    Tensor& r = rows.table_rows[static_cast<size_t>(l.table)];
    if (r) continue;
    r = tables_.rows(exec, ticket, l.table);
    if (training) {
      rows.table_gradients[static_cast<size_t>(l.table)] =
          zeros_like(exec, r, exec.parameter_dtype());
    }
  }

  // Which table rows every event and candidate is made of.
  const int64_t places = events + targets;
  int64_t lookup = 0;
  for (size_t f = 0; f < sequence_tables_.size(); ++f) {
    HostArray<int32_t> index;
    index.resize(places);
    std::ranges::copy(ticket.inverse(lookup++), index.data());
    if (candidates) std::ranges::copy(ticket.inverse(lookup++), index.data() + events);
    rows.feature_index.push_back(std::move(index));
  }
  rows.branch_of_event.resize(places);
  if (config_.identities.distinct_rows) {
    std::vector<std::span<const int32_t>> columns;
    for (const HostArray<int32_t>& index : rows.feature_index) columns.push_back(index.span());
    rows.tuples = sparse::distinct_tuples(columns);
    std::ranges::copy(rows.tuples.inverse.span(), rows.branch_of_event.data());
    for (size_t f = 0; f < sequence_tables_.size(); ++f) {
      rows.branch_index.push_back(
          Tensor(const_cast<int32_t*>(rows.tuples.column(static_cast<int64_t>(f)).data()),
                 DType::kI32, Device::cpu(), {rows.tuples.count}));
    }
  } else {
    std::iota(rows.branch_of_event.data(), rows.branch_of_event.data() + places, 0);
    for (const HostArray<int32_t>& index : rows.feature_index) {
      rows.branch_index.push_back(index.tensor());
    }
  }

  // Action codes: every possible pattern once, or one per event and candidate.
  const std::span<const int64_t> actions = batch.column(config_.action.history).values.span();
  const int32_t target_code = int32_t{1} << config_.action.weights.size();
  rows.action_of_event.resize(events);
  rows.action_of_target.resize(targets);
  if (config_.identities.action_codes && target_code + 1 <= kMaxActionCodes) {
    rows.action_code.resize(target_code + 1);
    std::iota(rows.action_code.data(), rows.action_code.data() + rows.action_code.size(), 0);
    for (int64_t e = 0; e < events; ++e) {
      rows.action_of_event[e] =
          action_code_of(actions[static_cast<size_t>(e)], config_.action.weights);
    }
    std::ranges::fill(rows.action_of_target.span(), target_code);
  } else {
    if (config_.identities.action_codes) {
      base::log_once(
          base::LogLevel::kInfo, "action_codes",
          "identity action_codes does not apply: too many action bits; running per event");
    }
    rows.action_code.resize(places);
    for (int64_t e = 0; e < events; ++e) {
      rows.action_code[e] = action_code_of(actions[static_cast<size_t>(e)], config_.action.weights);
    }
    std::fill(rows.action_code.data() + events, rows.action_code.data() + places, target_code);
    std::iota(rows.action_of_event.data(), rows.action_of_event.data() + events, 0);
    std::iota(rows.action_of_target.data(), rows.action_of_target.data() + targets,
              static_cast<int32_t>(events));
  }

  // Contextual slots.
  for (size_t c = 0; c < contextual_tables_.size(); ++c) {
    const ContextualFeature& feature = config_.contextual[c];
    const std::span<const int32_t> inverse = ticket.inverse(lookup++);
    const std::span<const int64_t> offsets = batch.offsets(batch.column(feature.name));
    for (int64_t slot = 0; slot < feature.max_length; ++slot) {
      HostArray<int32_t> index;
      index.resize(layout.samples());
      for (int64_t b = 0; b < layout.samples(); ++b) {
        const int64_t place = offsets[static_cast<size_t>(b)] + slot;
        const bool present = place < offsets[static_cast<size_t>(b) + 1] &&
                             layout.history(b) + layout.targets(b) >= feature.min_sequence;
        index[b] = present ? inverse[static_cast<size_t>(place)] : -1;
      }
      rows.context_index.push_back(std::move(index));
    }
  }

  // Gather and run the branches.
  const int64_t embedding_dim = tables_.config().dim;
  const int64_t n = rows.branch_index[0].size(0);
  Preprocessor::Input input;
  input.content = exec.activation({n, embedding_dim});
  ops::gather_rows(exec, rows.table_rows[static_cast<size_t>(sequence_tables_[0])],
                   rows.branch_index[0], input.content);
  const int64_t additional = static_cast<int64_t>(sequence_tables_.size()) - 1;
  if (additional > 0) {
    input.additional = exec.activation({n, additional * embedding_dim});
    for (int64_t f = 0; f < additional; ++f) {
      const size_t feature = static_cast<size_t>(f) + 1;
      ops::gather_rows(exec, rows.table_rows[static_cast<size_t>(sequence_tables_[feature])],
                       rows.branch_index[feature],
                       input.additional.columns(f * embedding_dim, embedding_dim));
    }
  }
  input.action_code = rows.action_code.tensor();
  if (config_.contextual_tokens() > 0) {
    input.context = exec.activation({config_.contextual_tokens(), layout.samples(), embedding_dim});
    int64_t slot = 0;
    for (size_t c = 0; c < contextual_tables_.size(); ++c) {
      const Tensor& source = rows.table_rows[static_cast<size_t>(contextual_tables_[c])];
      for (int64_t k = 0; k < config_.contextual[c].max_length; ++k, ++slot) {
        ops::gather_rows(exec, source, rows.context_index[static_cast<size_t>(slot)].tensor(),
                         input.context.select(slot));
      }
    }
  }
  rows.saved = preprocessor_->forward(exec, input);
  if (training) {
    rows.gradients.rows = zeros_like(exec, rows.saved.rows, exec.parameter_dtype());
    rows.gradients.action_rows = zeros_like(exec, rows.saved.action_rows, exec.parameter_dtype());
    if (rows.saved.context_rows) {
      rows.gradients.context_rows =
          zeros_like(exec, rows.saved.context_rows, exec.parameter_dtype());
    }
  }
  return rows;
}

void Ranker::rows_backward(const Exec& exec, Rows& rows) const {
  Arena::Mark scratch(*exec.arena);
  const Preprocessor::InputGradients d = preprocessor_->backward(exec, rows.saved, rows.gradients);
  const int64_t embedding_dim = tables_.config().dim;
  const auto gradients_of = [&](sparse::TableId table) -> const Tensor& {
    return rows.table_gradients[static_cast<size_t>(table)];
  };
  ops::segment_sum(exec, d.content, rows.branch_index[0], gradients_of(sequence_tables_[0]));
  for (size_t f = 1; f < sequence_tables_.size(); ++f) {
    ops::segment_sum(
        exec, d.additional.columns(static_cast<int64_t>(f - 1) * embedding_dim, embedding_dim),
        rows.branch_index[f], gradients_of(sequence_tables_[f]));
  }
  int64_t slot = 0;
  for (size_t c = 0; c < contextual_tables_.size(); ++c) {
    for (int64_t k = 0; k < config_.contextual[c].max_length; ++k, ++slot) {
      ops::segment_sum(exec, d.context.select(slot),
                       rows.context_index[static_cast<size_t>(slot)].tensor(),
                       gradients_of(contextual_tables_[c]));
    }
  }
}

Pass Ranker::run(const Exec& exec, const Batch& batch, const PassOptions& options) {
  batch.validate();
  const BatchLayout layout(config_, batch);
  PassOptions whole = options;  // what belongs to the whole batch is fixed before any micro-batch
  if (!whole.longest) whole.longest = layout.longest;
  const double denominator =
      std::max(1.0, options.loss_denominator.value_or(static_cast<double>(layout.labels)));

  Pass pass;
  pass.samples = layout.samples();
  pass.tokens = layout.tokens();
  pass.num_labels = layout.labels;
  pass.model_flops = formula_flops(config_, layout.token_offsets, options.training);
  pass.task_losses.assign(config_.tasks.size(), 0.0);
  const size_t values = config_.tasks.size() * static_cast<size_t>(layout.labels);
  pass.logits.resize(values);
  pass.predictions.resize(values);
  pass.labels.resize(values);

  pass.token_offsets = layout.token_offsets;

  Rows rows = [&] {
    const base::Stage stage("rows forward");
    return rows_forward(exec, batch, layout, options.training, pass.ticket);
  }();
  for (const MicroBatch& micro : cut_micro_batches(layout, options.micro_batch_tokens)) {
    Arena::Mark scratch(*exec.arena);
    std::optional<base::Stage> stage("tokens forward");
    const Tokens tokens = lay_out(exec, batch, layout, rows, micro, whole);
    const UserSide user = user_forward(exec, rows, tokens, options);
    ItemSide item = item_forward(exec, rows, tokens, user.user);
    if (options.probe) {
      options.probe("user_embeddings", user.user);
      if (item.item.y) options.probe("item_embeddings", item.item.y);
    }
    loss(exec, tokens, item, denominator, pass);
    stage.reset();
    if (options.training) {
      stage.emplace("tokens backward");
      const Tensor duser = item_backward(exec, rows, tokens, item, user.user);
      user_backward(exec, rows, tokens, user, duser);
    }
  }
  if (options.training) {
    const base::Stage stage("rows backward");
    rows_backward(exec, rows);
  }
  pass.loss = std::accumulate(pass.task_losses.begin(), pass.task_losses.end(), 0.0);
  pass.row_gradients = std::move(rows.table_gradients);
  return pass;
}

}  // namespace segue::model
