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

void run_adam(const Exec& exec, const OptimizerConfig& config, int64_t steps_done,
              const Parameters& parameters, const Tensor& gradient_scale, const Tensor& enabled) {
  const ops::AdamParams adam{.lr = learning_rates(config, steps_done).dense,
                             .beta1 = config.beta1,
                             .beta2 = config.beta2,
                             .eps = config.eps,
                             .weight_decay = config.weight_decay,
                             .t = steps_done + (config.adam_counts_initial_step ? 2 : 1)};
  ops::adam_update(exec, adam, gradient_scale, parameters.grads(), parameters.first_moments(),
                   parameters.second_moments(), parameters.values(), enabled);
}

}  // namespace

void update_dense(const Exec& exec, const OptimizerConfig& config, int64_t steps_done,
                  const Parameters& parameters, const Tensor& gradient_squares,
                  const Tensor& enabled) {
  const Arena::Mark scratch(*exec.arena);
  const Tensor scale = exec.arena->tensor(DType::kF64, {1});
  ops::clip_scale(exec, gradient_squares, config.clip_norm, scale);
  run_adam(exec, config, steps_done, parameters, scale, enabled);
}

DenseUpdate update_dense(const Exec& exec, const OptimizerConfig& config, int64_t steps_done,
                         const Parameters& parameters) {
  const Arena::Mark scratch(*exec.arena);
  const Tensor values = exec.arena->tensor(DType::kF64, {2});
  const Tensor squares = values.narrow(0, 0, 1);
  const Tensor scale = values.narrow(0, 1, 1);
  ops::sum_of_squares(exec, parameters.grads(), squares);
  ops::clip_scale(exec, squares, config.clip_norm, scale);
  run_adam(exec, config, steps_done, parameters, scale, {});
  double host[2];
  copy(host_view(std::span<double>(host)), values, exec.stream);
  if (exec.stream != nullptr) exec.stream->synchronize();
  return {std::sqrt(host[0]), host[1]};
}

}  // namespace segue::model
