#include "train/trainer.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "base/rng.h"
#include "base/stage.h"
#include "base/time.h"
#include "ops/optimizer.h"
#include "tensor/launches.h"
#include "train/checkpoint_model.h"
#include "train/memory_plan.h"

namespace segue::train {
namespace {

[[noreturn]] void fail_numeric(int64_t step, const std::string& what) {
  fail(ErrorCode::kNumeric,
       fmt::format("step {}: {} is not finite. Parameters and tables are as before the step. Lower "
                   "optimizer.lr or optimizer.sparse_lr, add optimizer.warmup_steps, or set "
                   "optimizer.clip_norm; train.precision = \"f64\" tells rounding from divergence",
                   step, what));
}

}  // namespace

DType parameter_dtype(Precision precision) {
  return precision == Precision::kF64 ? DType::kF64 : DType::kF32;
}

Trainer::Trainer(const RunConfig& config, Device device)
    : config_(config),
      arena_(device, arena_bytes(config, device)),
      stream_(device),
      copy_stream_(device),
      tables_(config.sparse, device, parameter_dtype(config.train.precision),
              static_cast<uint64_t>(config.train.seed)),
      ranker_(config.model, tables_, device, parameter_dtype(config.train.precision),
              static_cast<uint64_t>(config.train.seed)),
      batch_bytes_(model::batch_memory(config.model, step_bounds(config))),
      lifetime_(config.model.tasks),
      window_(config.model.tasks, config.train.metric_window) {}

Exec Trainer::exec(int64_t step) {
  Exec e;
  e.arena = &arena_;
  e.stream = &stream_;
  e.device = arena_.device();
  e.precision = config_.train.precision;
  e.dropout_key =
      base::philox_key(static_cast<uint64_t>(config_.train.seed), static_cast<uint64_t>(step));
  return e;
}

void Trainer::prepare(const Batch& batch, model::PreparedBatch& prepared) {
  ranker_.prepare(batch, config_.train.micro_batch_tokens, prepared);
  prepared.block.reserve_copy(device(), batch_bytes_);  // so that memory stays what was announced
  prepared.block.send(copy_stream_);
}

StepStats Trainer::step(const Batch& batch) {
  {
    const base::Stage stage("prepare batch");
    prepare(batch, prepared_);
  }
  return step(prepared_);
}

StepStats Trainer::step(model::PreparedBatch& prepared) {
  const base::Stopwatch watch;
  const int64_t launches_before = launches();
  const Arena::Mark mark(arena_);
  StepStats stats;
  stats.step = steps_done_ + 1;
  stats.rates = model::learning_rates(config_.optimizer, steps_done_);
  const Exec e = exec(stats.step);

  model::PassOptions options;
  options.micro_batch_tokens = config_.train.micro_batch_tokens;
  ranker_.parameters().zero_grads(&stream_);
  model::Pass pass = ranker_.enqueue(e, prepared, options);
  // The host reads the results while the updates run; these look for themselves whether all is
  // finite. So a GPU never waits for the host between two steps.
  ranker_.send_results(e, pass);
  update(e, pass, stats);
  prepared.block.release(stream_);
  ranker_.finish(pass);
  prepared.ticket = std::move(pass.ticket);  // its memory serves the next batch
  require_finite(e, pass, stats.step);
  ++steps_done_;

  const base::Stage stage("count");
  for (size_t k = 0; k < config_.model.tasks.size(); ++k) {
    lifetime_.add(k, of_task(pass.predictions, k, pass.num_labels),
                  of_task(pass.labels, k, pass.num_labels));
  }
  window_.add(pass);
  stats.loss = pass.loss;
  stats.task_losses = std::move(pass.task_losses);
  stats.gradient_norm = std::sqrt(pass.gradient_squares);
  stats.samples = pass.samples;
  stats.tokens = pass.tokens;
  stats.token_offsets = std::move(pass.token_offsets);
  stats.model_flops = pass.model_flops;
  stats.launches = launches() - launches_before;
  stats.seconds = watch.seconds();
  return stats;
}

void Trainer::update(const Exec& exec, const model::Pass& pass, const StepStats& stats) {
  const Tensor finite = arena_.tensor(DType::kF64, {1});
  ops::all_finite(exec, pass.results.sums, finite);
  std::optional<base::Stage> stage("update tables");
  tables_.apply(exec, pass.ticket, pass.looked_up, pass.all_row_gradients, stats.rates.sparse,
                stats.step, finite);
  stage.reset();
  stage.emplace("update dense");
  model::update_dense(exec, config_.optimizer, steps_done_, ranker_.parameters(),
                      pass.results.gradient_squares, finite);
}

void Trainer::require_finite(const Exec& exec, const model::Pass& pass, int64_t step) const {
  const base::Stage stage("check finite");
  for (size_t k = 0; k < pass.task_losses.size(); ++k) {
    if (!std::isfinite(pass.task_losses[k])) {
      fail_numeric(step, fmt::format("the loss of task `{}`", config_.model.tasks[k].name));
    }
  }
  const auto finite = [&](const Tensor& t) {
    const Arena::Mark scratch(*exec.arena);
    const Tensor squares = exec.arena->tensor(DType::kF64, {1});
    ops::sum_of_squares(exec, t.reshape({t.elements()}), squares);
    double value = 0;
    copy(host_view(std::span(&value, 1)), squares, exec.stream);
    exec.stream->synchronize();
    return std::isfinite(value);
  };
  if (!std::isfinite(pass.gradient_squares)) {
    for (const model::Parameter& p : ranker_.parameters().all()) {
      if (!finite(p.grad)) fail_numeric(step, fmt::format("the gradient of `{}`", p.name));
    }
    fail_numeric(step, "the norm of the dense gradient");
  }
  if (!std::isfinite(pass.row_gradient_squares)) {
    for (size_t t = 0; t < pass.row_gradients.size(); ++t) {
      const Tensor& gradients = pass.row_gradients[t];
      if (gradients && !finite(gradients)) {
        fail_numeric(step,
                     fmt::format("the gradient of table `{}`", config_.sparse.tables[t].name));
      }
    }
    fail_numeric(step, "the norm of the gradients of all tables");
  }
}

model::Pass Trainer::predict(const Batch& batch) {
  const Arena::Mark mark(arena_);
  model::PassOptions options;
  options.training = false;
  options.micro_batch_tokens = config_.train.micro_batch_tokens;
  return ranker_.run(exec(0), batch, options);
}

std::vector<CheckpointArray> Trainer::arrays() {
  std::vector<CheckpointArray> all = model_arrays(ranker_.parameters(), tables_);
  for (std::vector<CheckpointArray> part :
       {lifetime_.arrays("train_lifetime"), window_.arrays("train_window")}) {
    std::ranges::move(part, std::back_inserter(all));
  }
  return all;
}

void Trainer::restore(int64_t steps_done, int64_t window_labels_seen) {
  steps_done_ = steps_done;
  window_.restore_seen(window_labels_seen);
}

}  // namespace segue::train
