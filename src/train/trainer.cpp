#include "train/trainer.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "base/error.h"
#include "base/rng.h"
#include "base/time.h"
#include "ops/optimizer.h"

namespace segue::train {
namespace {

int64_t arena_bytes(const TrainConfig& config) {
  return static_cast<int64_t>(config.arena_gib * static_cast<double>(1 << 30));
}

bool is_binary(const model::TaskConfig& task) { return task.kind == ops::TaskKind::kBinary; }

template <class Value>
double mean_over_binary(std::span<const TaskQuality> tasks, Value value, double otherwise) {
  double sum = 0;
  int64_t count = 0;
  for (const TaskQuality& task : tasks) {
    if (!task.binary) continue;
    sum += value(task);
    ++count;
  }
  return count == 0 ? otherwise : sum / static_cast<double>(count);
}

/// Part `task` of a [tasks][labels] array.
std::span<const float> of_task(const std::vector<float>& values, size_t task, int64_t labels) {
  const auto n = static_cast<size_t>(labels);
  return std::span(values).subspan(task * n, n);
}

[[noreturn]] void fail_numeric(int64_t step, const std::string& what) {
  fail(ErrorCode::kNumeric,
       fmt::format("step {}: {} is not finite. Parameters and tables are as before the step. Lower "
                   "optimizer.lr or optimizer.sparse_lr, add optimizer.warmup_steps, or set "
                   "optimizer.clip_norm; train.precision = \"f64\" tells rounding from divergence",
                   step, what));
}

}  // namespace

double Evaluation::auc() const {
  return mean_over_binary(
      tasks, [](const TaskQuality& t) { return t.auc; }, 0.5);
}
double Evaluation::normalized_entropy() const {
  return mean_over_binary(
      tasks, [](const TaskQuality& t) { return t.normalized_entropy; }, 0);
}

DType parameter_dtype(Precision precision) {
  return precision == Precision::kF64 ? DType::kF64 : DType::kF32;
}

Trainer::Trainer(const RunConfig& config, Device device)
    : config_(config),
      arena_(device, arena_bytes(config.train)),
      stream_(device),
      tables_(config.sparse, device, parameter_dtype(config.train.precision),
              static_cast<uint64_t>(config.train.seed)),
      ranker_(config.model, tables_, device, parameter_dtype(config.train.precision),
              static_cast<uint64_t>(config.train.seed)),
      running_(config.model.tasks.size()),
      window_(config.model.tasks.size()) {}

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

StepStats Trainer::step(const Batch& batch) {
  const base::Stopwatch watch;
  const Arena::Mark mark(arena_);
  StepStats stats;
  stats.step = steps_done_ + 1;
  const Exec e = exec(stats.step);

  model::PassOptions options;
  options.micro_batch_tokens = config_.train.micro_batch_tokens;
  ranker_.parameters().zero_grads(&stream_);
  model::Pass pass = ranker_.run(e, batch, options);
  require_finite(e, pass, stats.step);

  stats.rates = model::learning_rates(config_.optimizer, steps_done_);
  for (int64_t t = 0; t < tables_.count(); ++t) {
    const Tensor& gradients = pass.row_gradients[static_cast<size_t>(t)];
    if (!gradients) continue;
    tables_.apply(e, pass.ticket, static_cast<sparse::TableId>(t), gradients, stats.rates.sparse,
                  stats.step);
  }
  stats.gradient_norm = std::sqrt(pass.gradient_squares);
  model::update_dense(e, config_.optimizer, steps_done_, ranker_.parameters(),
                      pass.device_gradient_squares);
  ++steps_done_;

  count_predictions(pass);
  stats.loss = pass.loss;
  stats.task_losses = std::move(pass.task_losses);
  stats.samples = pass.samples;
  stats.tokens = pass.tokens;
  stats.model_flops = pass.model_flops;
  stats.seconds = watch.seconds();
  return stats;
}

void Trainer::require_finite(const Exec& exec, const model::Pass& pass, int64_t step) const {
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
  for (size_t t = 0; t < pass.row_gradients.size(); ++t) {
    if (!std::isfinite(pass.row_gradient_squares[t])) {
      fail_numeric(step, fmt::format("the gradient of table `{}`", config_.sparse.tables[t].name));
    }
  }
}

void Trainer::count_predictions(const model::Pass& pass) {
  for (size_t k = 0; k < running_.size(); ++k) {
    if (!is_binary(config_.model.tasks[k])) continue;
    const std::span<const float> predictions = of_task(pass.predictions, k, pass.num_labels);
    const std::span<const float> labels = of_task(pass.labels, k, pass.num_labels);
    running_[k].add(predictions, labels, {});
    window_[k].add(predictions, labels, {});
  }
}

void Trainer::start_window() {
  for (ops::BinnedAuc& auc : window_) auc.reset();
}

Evaluation Trainer::evaluate(std::span<const Batch> batches) {
  const size_t num_tasks = config_.model.tasks.size();
  Evaluation result;
  std::vector<double> loss_sums(num_tasks, 0.0);
  std::vector<std::vector<float>> predictions(num_tasks), labels(num_tasks);
  std::vector<ops::NormalizedEntropy> entropy(num_tasks);

  model::PassOptions options;
  options.training = false;
  options.micro_batch_tokens = config_.train.micro_batch_tokens;
  for (const Batch& batch : batches) {
    const Arena::Mark mark(arena_);
    const model::Pass pass = ranker_.run(exec(0), batch, options);
    result.samples += pass.samples;
    result.labels += pass.num_labels;
    for (size_t k = 0; k < num_tasks; ++k) {
      loss_sums[k] += pass.task_losses[k] * static_cast<double>(pass.num_labels);
      const std::span<const float> p = of_task(pass.predictions, k, pass.num_labels);
      const std::span<const float> l = of_task(pass.labels, k, pass.num_labels);
      predictions[k].insert(predictions[k].end(), p.begin(), p.end());
      labels[k].insert(labels[k].end(), l.begin(), l.end());
      if (is_binary(config_.model.tasks[k])) entropy[k].add(p, l, {});
    }
  }
  for (size_t k = 0; k < num_tasks; ++k) {
    TaskQuality& task = result.tasks.emplace_back();
    task.name = config_.model.tasks[k].name;
    task.binary = is_binary(config_.model.tasks[k]);
    task.loss = loss_sums[k] / static_cast<double>(std::max<int64_t>(1, result.labels));
    result.loss += task.loss;
    if (!task.binary) continue;
    task.auc = ops::exact_auc(predictions[k], labels[k]);
    task.normalized_entropy = entropy[k].value();
    task.accuracy = entropy[k].accuracy();
    task.calibration = entropy[k].calibration();
  }
  return result;
}

}  // namespace segue::train
