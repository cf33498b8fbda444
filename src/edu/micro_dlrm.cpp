#include "edu/micro_dlrm.h"

#include <chrono>
#include <numeric>

#include <sys/mman.h>

#include "base/parallel.h"
#include "model/dense_optimizer.h"
#include "ops/bags.h"
#include "ops/initialize.h"
#include "ops/loss.h"
#include "ops/optimizer.h"
#include "ops/rows.h"

namespace segue::edu {
namespace {

/// Address space on the CPU. On a GPU several models are timed in turns, each with its own.
int64_t arena_bytes(Device device) { return int64_t{device.is_cpu() ? 2 : 1} << 30; }

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

double forward_seconds(const SpanSeconds& s) {
  return std::accumulate(s.begin(), s.begin() + kLossSpan, 0.0);
}
double step_seconds(const SpanSeconds& s) { return std::accumulate(s.begin(), s.end(), 0.0); }
double embedding_forward(const SpanSeconds& s) { return s[kHashSpan] + s[kGatherSpan]; }
double embedding_step(const SpanSeconds& s) {
  return embedding_forward(s) + s[kBackwardRowsSpan] + s[kUpdateRowsSpan];
}

TableMemory::TableMemory(Device device, int64_t bytes, bool huge_pages, DType dtype) {
  // Rows of 8 floats are the narrowest, and each has a state.
  const int64_t elements = bytes / size_of(dtype), states = elements / 8 + 1;
  arena_ =
      std::make_unique<Arena>(device, (elements + states) * size_of(dtype) + (int64_t{4} << 20));
  const int64_t page = int64_t{2} << 20;
  if (device.is_cpu()) {
    // The table begins on a huge page.
    const auto at = reinterpret_cast<uintptr_t>(arena_->tensor(DType::kU8, {0}).data);
    arena_->tensor(DType::kU8, {(page - static_cast<int64_t>(at % page)) % page});
  }
  weights_ = arena_->tensor(dtype, {elements});
  states_ = arena_->tensor(dtype, {states});
  if (device.is_cuda()) return;
  if (huge_pages) {
    const auto size = static_cast<size_t>(weights_.bytes() / page * page);
    huge_pages_ = size > 0 && madvise(weights_.data, size, MADV_HUGEPAGE) == 0;
  }
  base::parallel_for(weights_.bytes(), page, [&](int64_t begin, int64_t end) {
    std::fill_n(static_cast<char*>(weights_.data) + begin, end - begin, char{0});
  });
}

Tensor TableMemory::table(int64_t rows, int64_t width) const {
  SEGUE_ASSERT(rows * width <= weights_.size(0), "a table larger than its memory");
  return Tensor(weights_.data, weights_.dtype, weights_.device, {rows, width});
}

Tensor TableMemory::state(int64_t rows) const {
  SEGUE_ASSERT(rows <= states_.size(0), "more rows than states");
  const Tensor state(states_.data, states_.dtype, states_.device, {rows, 1});
  zero(state);
  return state;
}

MicroDlrm::MicroDlrm(const Workload& workload, const TableMemory& memory, uint64_t seed,
                     Precision precision, TableInit init)
    : workload_(workload),
      arena_(memory.flat().device, arena_bytes(memory.flat().device)),
      stream_(memory.flat().device),
      table_(memory.table(workload.rows, workload.width)),
      state_(memory.state(workload.rows)) {
  exec_.arena = &arena_;
  exec_.stream = &stream_;
  exec_.device = table_.device;
  exec_.precision = precision;
  bottom_ = std::make_unique<model::DenseStack>(
      parameters_, "bottom", model::DenseStackConfig{.widths = {kDense, kBottom, kBottom}});
  top_ = std::make_unique<model::DenseStack>(
      parameters_, "top",
      model::DenseStackConfig{
          .widths = {workload.concat_width(), workload.top, workload.top / 2, 1},
          .final_relu = false});
  parameters_.allocate(exec_.device, exec_.parameter_dtype(), seed);
  parameters_.allocate_states(ops::DenseOptimizer::kAdamW);
  if (init == TableInit::kKeep) return;
  if (workload.hashed()) {
    zero(table_, &stream_);  // the weights of the MLP tell rows apart; random gigabytes take long
  } else {
    ops::initialize(table_, ops::Init::kUniform, 0.01, seed, "table");
  }
}

void MicroDlrm::start() {
  spans_ = {};
  last_ = now();
}

void MicroDlrm::lap(Span span) {
  if (exec_.device.is_cuda()) stream_.synchronize();
  const double time = now();
  spans_[span] += time - last_;
  last_ = time;
}

MicroDlrm::Forward MicroDlrm::forward(const Batch& batch) {
  const int64_t samples = batch.dense.size(0), width = workload_.width;
  Forward f;
  f.bottom = bottom_->forward(exec_, batch.dense);
  lap(kBottomSpan);

  f.rows = batch.rows;  // a GPU's are known
  if (!f.rows) {
    f.rows = arena_.tensor(DType::kI64, {workload_.features, batch.keys.size(1)});
    for (int64_t bag = 0; bag < workload_.features; ++bag) {
      rows_of_keys(workload_, bag, batch.keys.select(bag).span<int64_t>(),
                   f.rows.select(bag).span<int64_t>());
    }
  }
  lap(kHashSpan);

  f.vectors = exec_.activation({samples, workload_.concat_width()});
  for (int64_t bag = 0; bag < workload_.features; ++bag) {
    ops::bag_sum_forward(exec_, table_, f.rows.select(bag), batch.offsets,
                         f.vectors.columns(kBottom + bag * width, width));
  }
  lap(kGatherSpan);

  ops::convert(exec_, f.bottom.y(), f.vectors.columns(0, kBottom));
  lap(kConcatSpan);

  f.top = top_->forward(exec_, f.vectors);
  lap(kTopSpan);
  return f;
}

double MicroDlrm::loss_of(const Batch& batch, const Forward& f, double denominator,
                          const Tensor& dlogits, const Tensor& predictions) {
  const Tensor sum = arena_.tensor(DType::kF64, {1});
  zero(sum, &stream_);
  ops::loss_forward_backward(exec_, ops::TaskKind::kBinary, f.top.y().column(0), batch.labels, {},
                             1 / denominator, dlogits ? dlogits.column(0) : Tensor(), predictions,
                             sum);
  double value = 0;
  copy(host_view(std::span<double>(&value, 1)), sum, &stream_);
  stream_.synchronize();
  lap(kLossSpan);
  return value;
}

MicroDlrm::RowGradients MicroDlrm::backward(const Batch& batch, const Forward& f,
                                            const Tensor& dlogits) {
  const Tensor dvectors = exec_.activation({batch.dense.size(0), workload_.concat_width()});
  top_->backward(exec_, f.top, dlogits, dvectors);
  bottom_->backward(exec_, f.bottom, dvectors.columns(0, kBottom), {});
  lap(kBackwardMlpSpan);

  RowGradients gradients{.ids = batch.distinct, .values = {}};
  const int64_t ids = f.rows.size(1), width = workload_.width;
  if (!gradients.ids) {
    sparse::distinct(f.rows.span<int64_t>(), /*skip_negative=*/true, dedup_, found_);
    gradients.ids = host_view(found_.values.span());
  }
  gradients.values = exec_.statistic({gradients.ids.size(0), width});
  zero(gradients.values, &stream_);
  for (int64_t bag = 0; bag < workload_.features; ++bag) {
    const bool given = !batch.inverse.empty();
    const auto b = static_cast<size_t>(bag);
    const Tensor inverse =
        given ? batch.inverse[b] : host_view(found_.inverse.span()).narrow(0, bag * ids, ids);
    ops::bag_sum_backward(exec_, dvectors.columns(kBottom + bag * width, width), inverse, batch.bag,
                          gradients.values, given ? batch.sorted[b] : ops::SortedIndex());
  }
  lap(kBackwardRowsSpan);
  return gradients;
}

void MicroDlrm::update_mlp(const Rates& rates) {
  const model::OptimizerConfig config{.kind = ops::DenseOptimizer::kAdamW,
                                      .lr = rates.dense,
                                      .beta1 = 0.9,
                                      .weight_decay = 1e-2,
                                      .clip_norm = 1.0};
  const Tensor squares = arena_.tensor(DType::kF64, {1});
  ops::sum_of_squares(exec_, parameters_.grads(), squares);
  model::update_dense(exec_, config, steps_, parameters_, squares);
  lap(kUpdateMlpSpan);
}

void MicroDlrm::update_rows(const RowGradients& gradients, const Rates& rates) {
  ops::rowwise_update(
      exec_, {.kind = ops::RowOptimizer::kRowwiseAdagrad, .lr = rates.rows},
      {.ids = gradients.ids, .gradients = gradients.values, .table = table_, .state = state_});
  lap(kUpdateRowsSpan);
}

double MicroDlrm::step(const Batch& batch, const Rates& rates) {
  const Arena::Mark mark(arena_);
  parameters_.zero_grads(&stream_);
  start();
  const Forward f = forward(batch);
  const Tensor dlogits = exec_.activation({batch.dense.size(0), 1});
  const double loss = loss_of(batch, f, static_cast<double>(batch.dense.size(0)), dlogits, {});
  const RowGradients gradients = backward(batch, f, dlogits);
  update_mlp(rates);
  update_rows(gradients, rates);
  ++steps_;
  return loss;
}

void MicroDlrm::predict(const Batch& batch, std::span<float> predictions) {
  const Arena::Mark mark(arena_);
  start();
  const Forward f = forward(batch);
  if (predictions.empty()) return;
  const Tensor p = exec_.activation({batch.dense.size(0)});
  loss_of(batch, f, 1, {}, p);
  copy(host_view(predictions), p, &stream_);
  stream_.synchronize();
}

double MicroDlrm::loss(const Batch& batch) {
  const Arena::Mark mark(arena_);
  start();
  return loss_of(batch, forward(batch), static_cast<double>(batch.dense.size(0)), {}, {});
}

double MicroDlrm::accumulate(const Batch& batch, double denominator, const Tensor& row_gradients) {
  const Arena::Mark mark(arena_);
  start();
  const Forward f = forward(batch);
  const Tensor dlogits = exec_.activation({batch.dense.size(0), 1});
  const double loss = loss_of(batch, f, denominator, dlogits, {});
  const RowGradients gradients = backward(batch, f, dlogits);
  ops::segment_sum(exec_, gradients.values, gradients.ids, row_gradients);
  return loss;
}

void MicroDlrm::apply(const Tensor& row_gradients, const Rates& rates) {
  const Arena::Mark mark(arena_);
  start();
  const Tensor ids = arena_.tensor(DType::kI64, {table_.size(0)});
  std::iota(ids.span<int64_t>().begin(), ids.span<int64_t>().end(), int64_t{0});
  update_mlp(rates);
  update_rows({.ids = ids, .values = row_gradients}, rates);
  ++steps_;
}

}  // namespace segue::edu
