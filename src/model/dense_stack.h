#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/parameters.h"
#include "tensor/exec.h"

namespace segue::model {

/// Linear and ReLU in turn: widths[0] -> widths[1] -> ... Parameters are named <prefix>.0, .2, .4,
/// ... as positions in a sequence that counts the ReLUs too; weights and biases are uniform in
/// +-1/sqrt(fan_in) at first.
struct DenseStackConfig {
  std::vector<int64_t> widths;  // of the input and of every layer's output
  bool final_relu = true;       // off: the last layer is linear, as logits are
};

class DenseStack {
 public:
  DenseStack(Parameters& parameters, const std::string& prefix, const DenseStackConfig& config);

  struct Saved {
    Tensor x;
    std::vector<Tensor> out;  // of every layer
    const Tensor& y() const { return out.back(); }
  };
  /// Everything in the result lives in exec's arena, except x, which is borrowed, and the output if
  /// it is given a place of its own, `y`.
  Saved forward(const Exec& exec, const Tensor& x, const Tensor& y = {}) const;
  /// Parameter gradients += ; dx overwritten (absent: not computed).
  void backward(const Exec& exec, const Saved& saved, const Tensor& dy, const Tensor& dx) const;

  /// What they take from exec's arena: see ArenaPlan.
  Saved forward_memory(const Exec& exec, int64_t rows, const Tensor& y = {}) const;
  /// Gradients of what layers give; that of the last one is dy itself, unless ReLU changes it.
  Saved backward_memory(const Exec& exec, int64_t rows, const Tensor& dy) const {
    return forward_memory(exec, rows, config_.final_relu ? Tensor() : dy);
  }

  int64_t out() const { return config_.widths.back(); }

 private:
  bool has_relu(size_t layer) const { return layer + 1 < layers_.size() || config_.final_relu; }

  struct Layer {
    Parameter *weight = nullptr, *bias = nullptr;
  };
  DenseStackConfig config_;
  std::vector<Layer> layers_;
};

}  // namespace segue::model
