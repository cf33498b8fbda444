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

DenseStack::Saved DenseStack::forward(const Exec& exec, const Tensor& x, const Tensor& y) const {
  Saved s{x, {}};
  Tensor in = x;
  for (size_t i = 0; i < layers_.size(); ++i) {
    const bool last = i + 1 == layers_.size();
    const Tensor out = last && y ? y : exec.activation({x.size(0), config_.widths[i + 1]});
    ops::linear_forward(exec, in, layers_[i].weight->value, layers_[i].bias->value, out);
    // In place: where the output is positive the input was, which is all that backward asks.
    if (has_relu(i)) ops::relu_forward(exec, out, out);
    s.out.push_back(out);
    in = out;
  }
  return s;
}

void DenseStack::backward(const Exec& exec, const Saved& s, const Tensor& dy,
                          const Tensor& dx) const {
  const Arena::Mark scratch(*exec.arena);
  const int64_t rows = s.x.size(0);
  Tensor gradient = dy;
  for (size_t i = layers_.size(); i-- > 0;) {
    if (has_relu(i)) {
      // The caller's dy stays as it is.
      const Tensor before =
          i + 1 == layers_.size() ? exec.activation({rows, config_.widths[i + 1]}) : gradient;
      ops::relu_backward(exec, gradient, s.out[i], before);
      gradient = before;
    }
    const Tensor din = i == 0 ? dx : exec.activation({rows, config_.widths[i]});
    ops::linear_backward(exec, gradient, i == 0 ? s.x : s.out[i - 1], layers_[i].weight->value, din,
                         layers_[i].weight->grad, layers_[i].bias->grad);
    gradient = din;
  }
}

}  // namespace segue::model
