#include "model/dense_optimizer.h"

#include <algorithm>
#include <cmath>

#include "ops/optimizer.h"

namespace segue::model {

LearningRates learning_rates(const OptimizerConfig& config, int64_t steps_done) {
  const double share = config.warmup_steps > 0
                           ? std::min(1.0, static_cast<double>(steps_done) /
                                               static_cast<double>(config.warmup_steps))
                           : 1.0;
  const auto rate = [&](double base) {
    const double start = std::min(config.warmup_start_lr, base);
    return start + (base - start) * share;
  };
  return {rate(config.lr), rate(config.sparse_lr)};
}

namespace {

void run_update(const Exec& exec, const OptimizerConfig& config, int64_t steps_done,
                const Parameters& parameters, const Tensor& gradient_squares,
                const Tensor& finite) {
  const ops::DenseUpdateParams update{.kind = config.kind,
                                      .lr = learning_rates(config, steps_done).dense,
                                      .beta1 = config.beta1,
                                      .beta2 = config.beta2,
                                      .eps = config.eps,
                                      .weight_decay = config.weight_decay,
                                      .clip_norm = config.clip_norm,
                                      .t = steps_done + (config.adam_counts_initial_step ? 2 : 1)};
  ops::dense_update(exec, update, gradient_squares, parameters.grads(), parameters.states(),
                    parameters.values(), finite);
}

}  // namespace

void update_dense(const Exec& exec, const OptimizerConfig& config, int64_t steps_done,
                  const Parameters& parameters, const Tensor& gradient_squares,
                  const Tensor& finite) {
  run_update(exec, config, steps_done, parameters, gradient_squares, finite);
}

DenseUpdate update_dense(const Exec& exec, const OptimizerConfig& config, int64_t steps_done,
                         const Parameters& parameters) {
  const Arena::Mark scratch(*exec.arena);
  const Tensor squares = exec.arena->tensor(DType::kF64, {1});
  ops::sum_of_squares(exec, parameters.grads(), squares);
  run_update(exec, config, steps_done, parameters, squares, {});
  double host = 0;
  copy(host_view(std::span<double>(&host, 1)), squares, exec.stream);
  if (exec.stream != nullptr) exec.stream->synchronize();
  return {std::sqrt(host), ops::clip_scale(host, config.clip_norm)};
}

}  // namespace segue::model
