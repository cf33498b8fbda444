#pragma once

#include <array>
#include <string_view>
#include <utility>

#include "ops/adam_step.h"
#include "ops/optimizer.h"

// What each dense optimizer does to one element, in the type of the tensor; the CPU and the CUDA
// form run the same step over all of them. A step has
//   kName      as papers and logs write it
//   kStates    the names of the arrays it keeps, one number each for every parameter
//   apply      (gradient scaled by the clip factor, the element, its numbers in the order of
//              kStates; as an array of them nvcc contracts other products, and bits change)
// and a line in dispatch_dense.

namespace segue::ops {

/// Weight decay is part of the gradient, and so of the moments.
template <class T>
struct DenseAdam {
  static constexpr std::string_view kName = "Adam";
  static constexpr std::array<std::string_view, 2> kStates = {"adam_m", "adam_v"};

  explicit DenseAdam(const DenseUpdateParams& p)
      : adam(p.lr, p.beta1, p.beta2, p.eps, p.t), decay(static_cast<T>(p.weight_decay)) {}

  SEGUE_HOST_DEVICE void apply(T gradient, T& parameter, T& m, T& v) const {
    adam.apply(gradient + decay * parameter, m, v, parameter);
  }

  AdamStep<T> adam;
  T decay;
};

/// Weight decay shrinks the parameter beside the step and leaves the moments alone, which are those
/// of Adam and named so.
template <class T>
struct DenseAdamW {
  static constexpr std::string_view kName = "AdamW";
  static constexpr std::array<std::string_view, 2> kStates = {"adam_m", "adam_v"};

  explicit DenseAdamW(const DenseUpdateParams& p)
      : adam(p.lr, p.beta1, p.beta2, p.eps, p.t), shrink(static_cast<T>(p.lr * p.weight_decay)) {}

  SEGUE_HOST_DEVICE void apply(T gradient, T& parameter, T& m, T& v) const {
    parameter -= shrink * parameter;
    adam.apply(gradient, m, v, parameter);
  }

  AdamStep<T> adam;
  T shrink;
};

/// f(the step of p.kind).
template <class T, class F>
void dispatch_dense(const DenseUpdateParams& p, F&& f) {
  switch (p.kind) {
    case DenseOptimizer::kAdam:
      return f(DenseAdam<T>(p));
    case DenseOptimizer::kAdamW:
      return f(DenseAdamW<T>(p));
  }
}

/// 0, 1, ... for the arrays that a step keeps: what their elements are handed to apply() by.
template <class Step>
using StateIndices = std::make_index_sequence<Step::kStates.size()>;

}  // namespace segue::ops
