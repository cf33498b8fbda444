#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ops/initialize.h"
#include "ops/optimizer.h"
#include "tensor/buffer.h"
#include "tensor/exec.h"
#include "tensor/tensor.h"

namespace segue::model {

/// One dense parameter. Value, gradient and what the optimizer keeps are slices of flat buffers, so
/// that norm, clip, update and all-reduce are one pass each.
struct Parameter {
  std::string name;  // the reference's name
  std::vector<int64_t> shape;
  ops::Init init = ops::Init::kZeros;
  double bound = 0;
  /// Columns that begin with the values of others.
  struct Copied {
    int64_t from = 0, to = 0, width = 0;
  } copied = {};
  Tensor value, grad;          // set by Parameters::allocate
  std::vector<Tensor> states;  // what Parameters::state_names names
};

/// Registry: layers add what they need in their constructors, then allocate() makes the memory.
class Parameters {
 public:
  Parameter* add(std::string name, std::vector<int64_t> shape, ops::Init init, double bound = 0);

  /// Initial values are a function of (seed, name, element). On a GPU every parameter begins on 256
  /// bytes, so the flat tensors have a few zeros between parameters. The states are Adam's.
  void allocate(Device device, DType dtype, uint64_t seed);
  /// The states of this optimizer instead, all 0.
  void allocate_states(ops::DenseOptimizer optimizer);

  std::deque<Parameter>& all() { return all_; }
  const std::deque<Parameter>& all() const { return all_; }
  Parameter& get(std::string_view name);                   // Error(kNotFound) with the nearest name
  int64_t count() const { return count(0, all_.size()); }  // values in all parameters
  int64_t count(size_t first, size_t end) const;           // in some of them

  Tensor values() const { return values_; }
  Tensor grads() const { return grads_; }
  /// What the optimizer keeps, under the names that it gives it (ops::dense_states).
  std::span<const std::string_view> state_names() const { return state_names_; }
  std::span<const Tensor> states() const { return states_; }
  void zero_grads(const Stream* stream = nullptr) const { zero(grads_, stream); }
  /// All values in the type of activations, in exec's arena, where that is another type: products
  /// take them so (Exec::rounded_parameters).
  TypedCopy rounded(const Exec& exec) const;

 private:
  std::deque<Parameter> all_;  // stable addresses
  Buffer value_memory_, grad_memory_;
  std::vector<Buffer> state_memory_;
  std::span<const std::string_view> state_names_;
  Tensor values_, grads_;  // flat
  std::vector<Tensor> states_;
};

/// Bounds of the usual initialisers.
double xavier_uniform_bound(int64_t fan_in, int64_t fan_out);
double xavier_normal_std(int64_t fan_in, int64_t fan_out);

}  // namespace segue::model
