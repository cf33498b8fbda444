#include "bench/stu_stack.h"

#include <fmt/format.h>

#include "bench/lap_timer.h"
#include "model/flops.h"
#include "ops/deferred_sums.h"

namespace segue::bench {
namespace {

constexpr double kBudget = 4096;  // tokens that scores are divided by

}  // namespace

StuStack::StuStack(const LayerShape& s, int64_t layers, Device device)
    : shape_(s), w_(device), offsets_(s.offsets()), targets_(offsets_.size() - 1, 1) {
  for (int64_t l = 0; l < layers; ++l) {
    model::StuConfig config;
    config.dim = s.dim;
    config.heads = s.heads;
    config.qk_dim = config.v_dim = s.head_dim;
    config.dropout = s.dropout;
    config.dropout_site = static_cast<uint32_t>(l + 1);
    layers_.emplace_back(parameters_, fmt::format("layer.{}.", l), config);
  }
  parameters_.allocate(device, DType::kF32, 1);
  sequences_.offsets = offsets_;
  sequences_.num_targets = targets_;
  sequences_.device_offsets = w_.placed<int64_t>(offsets_);
  sequences_.device_num_targets = w_.placed<int64_t>(targets_);
  sequences_.rows = w_.row_identity(offsets_);
  sequences_.score_scale = 1 / kBudget;
  sequences_.training = true;
  x_ = w_.random({offsets_.back(), s.dim}, "x");
  gradient_ = w_.random({offsets_.back(), s.dim}, "gradient", 1e-3);
  dx_ = w_.zeros({offsets_.back(), s.dim});
}

void StuStack::run(StackTimes* times) {
  const Arena::Mark mark(*w_.exec.arena);
  parameters_.zero_grads(w_.exec.stream);
  LapTimer timer(w_.exec);
  timer.mark();
  // As in a training step: weights are rounded once, sums over rows end together.
  Exec exec = w_.exec;
  exec.rounded_parameters = parameters_.rounded(exec);
  ops::DeferredSums sums(exec);
  exec.sums = &sums;
  std::vector<model::StuLayer::Saved> saved;
  Tensor x = x_;
  for (const model::StuLayer& layer : layers_) {
    saved.push_back(layer.forward(exec, sequences_, x));
    x = saved.back().x_out;
  }
  timer.mark();
  Tensor dx = gradient_;
  for (size_t l = layers_.size(); l-- > 0;) {
    layers_[l].backward(exec, sequences_, saved[l], dx, dx_);
    dx = dx_;
  }
  sums.flush();
  timer.mark();
  const std::vector<double> laps = timer.laps();
  if (times == nullptr) return;
  times->forward.seconds.push_back(laps[0]);
  times->backward.seconds.push_back(laps[1]);
  times->both.seconds.push_back(laps[0] + laps[1]);
}

double StuStack::flops(bool backward) const {
  model::ModelConfig c;
  c.dim = shape_.dim;
  c.heads = shape_.heads;
  c.qk_dim = c.v_dim = shape_.head_dim;
  c.layers = static_cast<int64_t>(layers_.size());
  c.tasks.clear();  // no head
  return model::formula_flops(c, offsets_, backward);
}

void StuStack::add_results(const char* name, const StackTimes& times, Report& report) const {
  Result r;
  r.shape = {{"layers", static_cast<int64_t>(layers_.size())},
             {"dim", shape_.dim},
             {"heads", shape_.heads},
             {"head_dim", shape_.head_dim},
             {"sequences", static_cast<int64_t>(targets_.size())},
             {"tokens", offsets_.back()}};
  const auto add = [&](const std::string& what, const Timing& timing, double flop) {
    r.name = what;
    r.timing = timing;
    r.flop = flop;
    report.add(r);
  };
  const double all = flops(true), forward = flops(false);
  add(name, times.both, all);
  add(fmt::format("{} forward", name), times.forward, forward);
  add(fmt::format("{} backward", name), times.backward, all - forward);
}

}  // namespace segue::bench
