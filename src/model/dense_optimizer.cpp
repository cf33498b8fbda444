#include "model/dense_optimizer.h"

#include <algorithm>
#include <cmath>

#include "ops/optimizer.h"

namespace segue::model {

namespace {
constexpr double kClipEps = 1e-6;  // as PyTorch's clip_grad_norm_
}

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

DenseUpdate update_dense(const Exec& exec, const OptimizerConfig& config, int64_t steps_done,
                         const Parameters& parameters) {
  DenseUpdate update;
  update.gradient_norm = std::sqrt(ops::sum_of_squares(exec, parameters.grads()));
  if (config.clip_norm > 0) {
    update.clip_scale = std::min(1.0, config.clip_norm / (update.gradient_norm + kClipEps));
  }
  const ops::AdamParams adam{.lr = learning_rates(config, steps_done).dense,
                             .beta1 = config.beta1,
                             .beta2 = config.beta2,
                             .eps = config.eps,
                             .weight_decay = config.weight_decay,
                             .t = steps_done + (config.adam_counts_initial_step ? 2 : 1)};
  ops::adam_update(exec, adam, update.clip_scale, parameters.grads(), parameters.first_moments(),
                   parameters.second_moments(), parameters.values());
  return update;
}

}  // namespace segue::model
