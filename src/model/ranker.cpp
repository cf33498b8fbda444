#include "model/ranker.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "model/pass_scope.h"
#include "model/ranker_parts.h"
#include "ops/bags.h"
#include "ops/rows.h"
#include "tensor/part_timer.h"

namespace segue::model {

Ranker::Ranker(const ModelConfig& config, sparse::Tables& tables, Device device,
               DType parameter_dtype, uint64_t seed)
    : Ranker(config, tables.config()) {
  allocate(tables, device, parameter_dtype, seed);
}

Ranker::Ranker(const ModelConfig& config, const sparse::TablesConfig& tables)
    : Model(config.tasks), config_(config), tables_config_(tables) {
  config.validate();
  embedding_dim_ = check_demands(tables);
  columns_.push_back(config.item);
  for (const SequenceFeature& f : config.additional) {
    for (SequenceFeature& column : f.columns()) columns_.push_back(std::move(column));
  }
  for (const SequenceFeature& c : columns_) sequence_tables_.push_back(tables.id(c.table));
  for (const ContextualFeature& f : config.contextual) {
    contextual_tables_.push_back(tables.id(f.table));
  }
  bags_ = num_columns() > num_features() || context_ids() > config.contextual_tokens();

  const std::string transducer = "_hstu_transducer.";
  head_ = std::make_unique<Mlp>(parameters_, "_multitask_module._prediction_module",
                                MlpConfig{.in = config.dim,
                                          .hidden = config.head_hidden,
                                          .out = static_cast<int64_t>(config.tasks.size()),
                                          .relu = config.embedding_mlp == EmbeddingMlp::kRelu,
                                          .final_norm = false,
                                          .xavier_normal = false});
  if (config.numeric.any()) {
    numeric_mlp_ =
        std::make_unique<Mlp>(parameters_, "_multitask_module._numeric_embedding_mlp",
                              MlpConfig{.in = config.numeric.width(),
                                        .hidden = config.numeric.hidden,
                                        .out = config.dim,
                                        .relu = config.embedding_mlp == EmbeddingMlp::kRelu,
                                        .xavier_normal = false});
  }
  StuConfig stu{.dim = config.dim,
                .heads = config.heads,
                .qk_dim = config.qk_dim,
                .v_dim = config.v_dim,
                .kind = config.layer,
                .output_norm = config.output_norm,
                .dropout = config.dropout,
                .recompute = config.recompute,
                .kernel = config.attention.kernel,
                .key_init = config.attention.key_init};
  stu.mask = config.attention_mask();
  layers_.reserve(static_cast<size_t>(config.layers));
  layer_parameters_.push_back(parameters_.all().size());
  for (int64_t l = 0; l < config.layers; ++l) {
    stu.dropout_site = kInputDropoutSite + 1 + static_cast<uint32_t>(l);
    layers_.emplace_back(parameters_,
                         transducer + "_stu_module._stu_layers." + std::to_string(l) + ".", stu);
    layer_parameters_.push_back(parameters_.all().size());
  }
  preprocessor_ = std::make_unique<Preprocessor>(
      parameters_, transducer + "_input_preprocessor.",
      PreprocessorConfig{.embedding_dim = embedding_dim_,
                         .hidden = config.hidden,
                         .dim = config.dim,
                         .additional_features = static_cast<int64_t>(config.additional.size()),
                         .contextual_tokens = config.contextual_tokens(),
                         .action_bits = static_cast<int64_t>(config.action.weights.size()),
                         .action_dim = config.action.dim,
                         .numbers = config.numeric.in_tokens() ? config.numeric.token_width() : 0,
                         .numeric_hidden = config.numeric.hidden,
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
    item_mlp_ = std::make_unique<Mlp>(parameters_, "_item_embedding_mlp",
                                      MlpConfig{.in = embedding_dim_ * num_features(),
                                                .hidden = config.item_hidden,
                                                .out = config.dim,
                                                .relu = config.embedding_mlp == EmbeddingMlp::kRelu,
                                                .xavier_normal = false});
  }
  places_ = std::make_unique<Places>();
  const auto name = [&](const SequenceFeature& feature) {
    const bool candidates = config.labels == LabelKind::kCandidates;
    return candidates ? feature.history + " / " + feature.candidate : feature.history;
  };
  for (const SequenceFeature& column : columns_) places_->names.push_back(name(column));
}

Ranker::~Ranker() = default;

int64_t Ranker::context_ids() const {
  int64_t ids = 0;
  for (const ContextualFeature& f : config_.contextual) ids += f.max_length * f.values;
  return ids;
}

void Ranker::set_head_group(HeadGroup* heads) {
  SEGUE_ASSERT(heads == nullptr || heads->num_heads() == config_.heads,
               "a head group of another number of heads");
  heads_ = heads;
}

namespace {

Tensor zeros(const Exec& exec, int64_t rows, int64_t columns) {
  const Tensor z = exec.statistic({rows, columns});
  zero(z, exec.stream);
  return z;
}

}  // namespace

void FeatureRows::read(const Exec& exec, const Tensor& from, const Tensor& to) const {
  if (offsets) {
    ops::bag_sum_forward(exec, from, index, offsets, to);
  } else {
    ops::gather_rows(exec, from, index, to);
  }
}

void FeatureRows::add_gradients(const Exec& exec, const Tensor& dto, const Tensor& dfrom,
                                const ops::SortedIndex& sorted) const {
  if (offsets) {
    ops::bag_sum_backward(exec, dto, index, bag, dfrom, sorted);
  } else {
    ops::segment_sum(exec, dto, index, dfrom, 1, sorted);
  }
}

Ranker::Rows Ranker::rows_forward(const Exec& exec, RankerBatch& batch,
                                  const UploadBlock::Placed& placed, bool training) const {
  Rows rows;
  rows.table_rows = tables_->rows(exec, batch.ticket, batch.looked_up);
  if (training) {
    rows.table_gradients = zeros(exec, rows.table_rows.size(0), embedding_dim_);
  }
  rows.inputs = {placed.tensor(batch.input_index)};
  if (bags_) {
    rows.inputs.offsets = placed.tensor(batch.input_bags.offsets);
    rows.inputs.bag = placed.tensor(batch.input_bags.bag);
  }
  if (exec.device.is_cuda()) {
    rows.sorted_index = {placed.tensor(batch.sorted_keys), placed.tensor(batch.sorted_items)};
  }
  const Tensor inputs = exec.activation({rows.inputs.count(), embedding_dim_});
  rows.inputs.read(exec, rows.table_rows, inputs);
  const Preprocessor::Sizes n{batch.branch_rows, batch.action_code.count, batch.layout.samples()};
  rows.saved = preprocessor_->forward(
      exec, preprocessor_->split_inputs(inputs, n.rows, n.samples),
      placed.tensor(batch.action_code),
      config_.numeric.in_tokens()
          ? as_activation(exec,
                          place_numbers(batch.token_numbers, config_.numeric.token_width(), placed))
          : Tensor());
  if (training) {
    rows.all_gradients = zeros(exec, preprocessor_->row_count(n), config_.dim);
    rows.gradients = preprocessor_->split_rows(rows.all_gradients, rows.saved);
  }
  return rows;
}

void Ranker::rows_backward(const Exec& exec, Rows& rows) const {
  Arena::Mark scratch(*exec.arena);
  const Tensor dinputs = exec.activation({rows.inputs.count(), embedding_dim_});
  preprocessor_->backward(exec, rows.saved, rows.all_gradients, dinputs);
  rows.inputs.add_gradients(exec, dinputs, rows.table_gradients, rows.sorted_index);
}

Pass Ranker::enqueue(const Exec& caller, PreparedBatch& prepared, const PassOptions& options) {
  auto& batch = static_cast<RankerBatch&>(prepared);
  PassScope scope(caller, parameters_, options, batch.num_labels);
  const Exec& exec = scope.exec;

  std::optional<Part> part("rows forward");
  const UploadBlock::Placed placed = batch.block.place(exec);
  Pass pass = start_pass(exec, batch, placed, options.training);
  Rows rows = rows_forward(exec, batch, placed, options.training);
  for (const RankerBatch::Tokens& micro : batch.micro_batches) {
    Arena::Mark scratch(*exec.arena);
    part.reset();
    part.emplace("tokens forward");
    const Tokens tokens = place_tokens(exec, batch, micro, placed, rows, scope.options);
    const UserSide user = user_forward(exec, tokens, scope.options);
    ItemSide item = item_forward(exec, rows, tokens, user.user, pass.results);
    if (options.probe) {
      options.probe("user_embeddings", user.user);
      if (item.item.y) options.probe("item_embeddings", item.item.y);
    }
    loss(exec, tokens, item, scope.denominator, pass.results);
    if (options.training) {
      part.reset();
      part.emplace("tokens backward");
      const bool last = &micro == &batch.micro_batches.back();
      const Tensor duser = item_backward(exec, rows, tokens, item);
      if (last && scope.options.gradients_ready) scope.options.gradients_ready(0);
      user_backward(exec, rows, tokens, user, duser, scope.options, last);
    }
  }
  if (options.training) {
    part.reset();
    part.emplace("rows backward");
    scope.sums.flush();  // gradients of action rows are among them
    rows_backward(exec, rows);
    scope.sums.flush();
  }
  end_pass(exec, batch, rows.table_gradients, options, pass);
  return pass;
}

}  // namespace segue::model
