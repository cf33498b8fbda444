#include "model/dense_stack.h"

#include <cmath>

#include <fmt/format.h>

#include "base/error.h"
#include "ops/gemm.h"
#include "ops/rows.h"

namespace segue::model {

DenseStack::DenseStack(Parameters& parameters, const std::string& prefix,
                       const DenseStackConfig& config)
    : config_(config) {
  SEGUE_ASSERT(config.widths.size() >= 2, "a stack has a layer");
  for (size_t i = 0; i + 1 < config.widths.size(); ++i) {
    const int64_t in = config.widths[i], out = config.widths[i + 1];
    const double bound = 1 / std::sqrt(static_cast<double>(in));
    const auto add = [&](const char* what, std::vector<int64_t> shape) {
      return parameters.add(fmt::format("{}.{}.{}", prefix, 2 * i, what), std::move(shape),
                            ops::Init::kUniform, bound);
    };
    layers_.push_back({add("weight", {out, in}), add("bias", {out})});
  }
}

DenseStack::Saved DenseStack::forward_memory(const Exec& exec, int64_t rows,
                                             const Tensor& y) const {
  Saved s;
  for (size_t i = 0; i < layers_.size(); ++i) {
    const bool given = y && i + 1 == layers_.size();
    s.out.push_back(given ? y : exec.activation({rows, config_.widths[i + 1]}));
  }
  return s;
}

DenseStack::Saved DenseStack::forward(const Exec& exec, const Tensor& x, const Tensor& y) const {
  Saved s = forward_memory(exec, x.size(0), y);
  s.x = x;
  for (size_t i = 0; i < layers_.size(); ++i) {
    ops::linear_forward(exec, i == 0 ? x : s.out[i - 1], layers_[i].weight->value,
                        layers_[i].bias->value, s.out[i]);
    // In place: where the output is positive the input was, which is all that backward asks.
    if (has_relu(i)) ops::relu_forward(exec, s.out[i], s.out[i]);
  }
  return s;
}

void DenseStack::backward(const Exec& exec, const Saved& s, const Tensor& dy,
                          const Tensor& dx) const {
  const Arena::Mark scratch(*exec.arena);
  const Saved d = backward_memory(exec, s.x.size(0), dy);
  Tensor gradient = dy;
  for (size_t i = layers_.size(); i-- > 0;) {
    if (has_relu(i)) ops::relu_backward(exec, gradient, s.out[i], d.out[i]);
    gradient = i == 0 ? dx : d.out[i - 1];
    ops::linear_backward(exec, d.out[i], i == 0 ? s.x : s.out[i - 1], layers_[i].weight->value,
                         gradient, layers_[i].weight->grad, layers_[i].bias->grad);
  }
}

}  // namespace segue::model
