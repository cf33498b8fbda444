#include "model/ranker.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

#include "base/stage.h"
#include "model/flops.h"
#include "model/ranker_parts.h"
#include "ops/deferred_sums.h"
#include "ops/optimizer.h"
#include "ops/rows.h"

namespace segue::model {

Ranker::Ranker(const ModelConfig& config, sparse::Tables& tables, Device device,
               DType parameter_dtype, uint64_t seed)
    : config_(config), tables_(tables), embedding_dim_(embedding_dim(config, tables.config())) {
  config.validate();
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
        MlpConfig{.in = embedding_dim_ * static_cast<int64_t>(sequence_tables_.size()),
                  .hidden = config.item_hidden,
                  .out = config.dim,
                  .relu = config.embedding_mlp == EmbeddingMlp::kRelu,
                  .xavier_normal = false});
  }
  parameters_.allocate(device, parameter_dtype, seed);
  places_ = std::make_unique<Places>();
}

Ranker::~Ranker() = default;

std::vector<Tensor> Ranker::gradient_buckets() const {
  const Tensor all = parameters_.grads();
  const auto at = [&](size_t parameter) {  // where its gradient begins
    if (parameter == parameters_.all().size()) return all.elements();
    const Tensor& grad = parameters_.all()[parameter].grad;
    return (static_cast<const char*>(grad.data) - static_cast<const char*>(all.data)) /
           size_of(all.dtype);
  };
  std::vector<Tensor> buckets;
  const auto add = [&](size_t first, size_t end) {
    buckets.push_back(all.narrow(0, at(first), at(end) - at(first)));
  };
  add(0, layer_parameters_.front());
  for (size_t l = layers_.size(); l-- > 0;) add(layer_parameters_[l], layer_parameters_[l + 1]);
  add(layer_parameters_.back(), parameters_.all().size());
  return buckets;
}

void Ranker::set_head_group(HeadGroup* heads) {
  SEGUE_ASSERT(heads == nullptr || heads->num_heads() == config_.heads,
               "a head group of another number of heads");
  heads_ = heads;
}

namespace {

Tensor zeros(const Exec& exec, int64_t rows, int64_t columns, DType dtype) {
  const Tensor z = exec.arena->tensor(dtype, {rows, columns});
  zero(z, exec.stream);
  return z;
}

}  // namespace

Ranker::Rows Ranker::rows_forward(const Exec& exec, PreparedBatch& batch,
                                  const UploadBlock::Placed& placed, bool training) const {
  Rows rows;
  rows.table_rows = tables_.rows(exec, batch.ticket, batch.looked_up);
  if (training) {
    rows.table_gradients =
        zeros(exec, rows.table_rows.size(0), rows.table_rows.size(1), exec.parameter_dtype());
  }
  rows.input_index = placed.tensor(batch.input_index);
  if (exec.device.is_cuda()) {
    rows.sorted_index = {placed.tensor(batch.sorted_keys), placed.tensor(batch.sorted_items)};
  }
  const Tensor inputs = exec.activation({rows.input_index.size(0), embedding_dim_});
  ops::gather_rows(exec, rows.table_rows, rows.input_index, inputs);
  rows.saved = preprocessor_->forward(
      exec, preprocessor_->split_inputs(inputs, batch.branch_rows, batch.layout.samples()),
      placed.tensor(batch.action_code));
  if (training) {
    rows.all_gradients =
        zeros(exec, preprocessor_->row_count(rows.saved), config_.dim, exec.parameter_dtype());
    rows.gradients = preprocessor_->split_rows(rows.all_gradients, rows.saved);
  }
  return rows;
}

void Ranker::rows_backward(const Exec& exec, Rows& rows) const {
  Arena::Mark scratch(*exec.arena);
  const Tensor dinputs = exec.activation({rows.input_index.size(0), embedding_dim_});
  preprocessor_->backward(exec, rows.saved, rows.all_gradients, dinputs);
  ops::segment_sum(exec, dinputs, rows.input_index, rows.table_gradients, 1, rows.sorted_index);
}

Pass Ranker::run(const Exec& exec, const Batch& batch, const PassOptions& options) {
  {
    const base::Stage stage("prepare batch");
    prepare(batch, options.micro_batch_tokens,
            options.training ? sparse::Mode::kTraining : sparse::Mode::kEvaluation, prepared_);
  }
  return run(exec, prepared_, options);
}

Pass Ranker::run(const Exec& exec, PreparedBatch& batch, const PassOptions& options) {
  Pass pass = enqueue(exec, batch, options);
  send_results(exec, pass);
  finish(pass);
  return pass;
}

Pass Ranker::enqueue(const Exec& caller, PreparedBatch& batch, const PassOptions& options) {
  Exec exec = caller;
  exec.rounded_parameters = parameters_.rounded(exec);
  ops::DeferredSums sums(exec);
  exec.sums = &sums;
  const BatchLayout& layout = batch.layout;
  PassOptions whole = options;  // what belongs to the whole batch is fixed before any micro-batch
  if (!whole.longest) whole.longest = layout.longest;
  if (options.gradients_ready) {
    whole.gradients_ready = [&](size_t bucket) {
      sums.flush();
      options.gradients_ready(bucket);
    };
  }
  const double denominator =
      std::max(1.0, options.loss_denominator.value_or(static_cast<double>(layout.labels)));

  Pass pass;
  pass.samples = layout.samples();
  pass.tokens = layout.tokens();
  pass.num_labels = layout.labels;
  pass.model_flops = formula_flops(config_, layout.token_offsets, options.training);

  pass.token_offsets = layout.token_offsets;
  pass.row_gradients.resize(static_cast<size_t>(tables_.count()));

  std::optional<base::Stage> stage("rows forward");
  const UploadBlock::Placed placed = batch.block.place(exec);
  for (size_t i = 0; i < batch.slots.size(); ++i) {
    batch.ticket.place_slots(batch.looked_up[i], placed.tensor(batch.slots[i]));
  }
  pass.results = make_results(exec, layout.labels);
  Rows rows = rows_forward(exec, batch, placed, options.training);
  for (const PreparedBatch::Tokens& micro : batch.micro_batches) {
    Arena::Mark scratch(*exec.arena);
    stage.reset();
    stage.emplace("tokens forward");
    const Tokens tokens = place_tokens(batch, micro, placed, rows, whole);
    const UserSide user = user_forward(exec, rows, tokens, whole);
    ItemSide item = item_forward(exec, rows, tokens, user.user, pass.results);
    if (options.probe) {
      options.probe("user_embeddings", user.user);
      if (item.item.y) options.probe("item_embeddings", item.item.y);
    }
    loss(exec, tokens, item, denominator, pass.results);
    if (options.training) {
      stage.reset();
      stage.emplace("tokens backward");
      const bool last = &micro == &batch.micro_batches.back();
      const Tensor duser = item_backward(exec, rows, tokens, item);
      if (last && whole.gradients_ready) whole.gradients_ready(0);
      user_backward(exec, rows, tokens, user, duser, whole, last);
    }
  }
  if (options.training) {
    stage.reset();
    stage.emplace("rows backward");
    sums.flush();  // gradients of action rows are among them
    rows_backward(exec, rows);
    sums.flush();
    const Tensor squared[] = {parameters_.grads(),
                              rows.table_gradients.reshape({rows.table_gradients.elements()})};
    const PassResults& results = pass.results;
    if (options.gradients_ready) {
      ops::sum_of_squares(exec, squared[1], results.row_gradient_squares);
    } else {
      ops::sums_of_squares(exec, squared, results.squares);
    }
    pass.all_row_gradients = rows.table_gradients;
    for (const sparse::TableId table : batch.looked_up) {
      const auto t = static_cast<size_t>(table);
      pass.row_gradients[t] =
          rows.table_gradients.rows(batch.first_row[t], batch.ticket.distinct_rows(table));
    }
  }
  pass.labels = batch.labels;
  pass.ticket = std::move(batch.ticket);
  pass.looked_up = batch.looked_up;
  return pass;
}

PassResults Ranker::make_results(const Exec& exec, int64_t labels) const {
  const auto tasks = static_cast<int64_t>(config_.tasks.size());
  const DType type = exec.parameter_dtype();
  const int64_t sums = tasks + 2;
  const int64_t sum_bytes = sums * size_of(DType::kF64);
  const int64_t value_bytes = labels * tasks * size_of(type);
  PassResults r;
  r.memory = exec.arena->tensor(DType::kU8, {sum_bytes + 2 * value_bytes});
  const auto view = [&](int64_t at, DType dtype, std::initializer_list<int64_t> shape) {
    return Tensor(static_cast<char*>(r.memory.data) + at, dtype, exec.device, shape);
  };
  r.sums = view(0, DType::kF64, {sums});
  zero(r.sums, exec.stream);
  r.losses = r.sums.narrow(0, 0, tasks);
  r.squares = r.sums.narrow(0, tasks, 2);
  r.gradient_squares = r.squares.narrow(0, 0, 1);
  r.row_gradient_squares = r.squares.narrow(0, 1, 1);
  r.logits = view(sum_bytes, type, {labels, tasks});
  r.predictions = view(sum_bytes + value_bytes, type, {tasks, labels});
  return r;
}

void Ranker::send_results(const Exec& exec, const Pass& pass) {
  if (exec.device.is_cpu()) return;
  const Tensor& memory = pass.results.memory;
  host_results_.set_memory(HostMemory::kPinned);
  host_results_.resize(memory.bytes());
  copy(host_results_.tensor(), memory, exec.stream);
  results_arrived_.record(*exec.stream);
}

void Ranker::finish(Pass& pass) const {
  const base::Stage stage("read results");
  results_arrived_.synchronize();
  const PassResults& results = pass.results;
  const bool on_gpu = results.memory.device.is_cuda();
  const char* from = static_cast<const char*>(results.memory.data);
  const char* here = on_gpu ? reinterpret_cast<const char*>(host_results_.data()) : from;
  // The same place in the copy.
  const auto values = [&]<class T>(const Tensor& t, T) {
    return std::span(reinterpret_cast<const T*>(here + (static_cast<const char*>(t.data) - from)),
                     static_cast<size_t>(t.elements()));
  };
  const auto losses = values(results.losses, double{});
  pass.task_losses.assign(losses.begin(), losses.end());
  pass.loss = std::accumulate(losses.begin(), losses.end(), 0.0);
  pass.gradient_squares = values(results.gradient_squares, double{})[0];
  pass.row_gradient_squares = values(results.row_gradient_squares, double{})[0];
  const size_t tasks = config_.tasks.size();
  const auto labels = static_cast<size_t>(pass.num_labels);
  pass.logits.resize(tasks * labels);
  dispatch_real(results.logits.dtype, [&](auto zero_value) {
    const auto logits = values(results.logits, zero_value);
    const auto predictions = values(results.predictions, zero_value);
    for (size_t i = 0; i < labels; ++i) {
      for (size_t k = 0; k < tasks; ++k) {
        pass.logits[k * labels + i] = static_cast<double>(logits[i * tasks + k]);
      }
    }
    pass.predictions.assign(predictions.begin(), predictions.end());
  });
}

}  // namespace segue::model
