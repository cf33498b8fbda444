#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "ops/initialize.h"
#include "tensor/buffer.h"
#include "tensor/exec.h"
#include "tensor/tensor.h"

namespace segue::model {

/// One dense parameter. Value, gradient and both Adam moments are slices of four flat buffers, so
/// that norm, clip, update and all-reduce are one pass each.
struct Parameter {
  std::string name;  // the reference's name
  std::vector<int64_t> shape;
  ops::Init init = ops::Init::kZeros;
  double bound = 0;
  Tensor value, grad, m, v;  // set by Parameters::allocate
};

/// Registry: layers add what they need in their constructors, then allocate() makes the memory.
class Parameters {
 public:
  Parameter* add(std::string name, std::vector<int64_t> shape, ops::Init init, double bound = 0);

  /// Initial values are a function of (seed, name, element). On a GPU every parameter begins on 256
  /// bytes, so the flat tensors have a few zeros between parameters.
  void allocate(Device device, DType dtype, uint64_t seed);

  std::deque<Parameter>& all() { return all_; }
  const std::deque<Parameter>& all() const { return all_; }
  Parameter& get(std::string_view name);                   // Error(kNotFound) with the nearest name
  int64_t count() const { return count(0, all_.size()); }  // values in all parameters
  int64_t count(size_t first, size_t end) const;           // in some of them

  Tensor values() const { return values_; }
  Tensor grads() const { return grads_; }
  Tensor first_moments() const { return m_; }
  Tensor second_moments() const { return v_; }
  void zero_grads(const Stream* stream = nullptr) const { zero(grads_, stream); }
  /// All values in the type of activations, in exec's arena, where that is another type: products
  /// take them so (Exec::rounded_parameters).
  TypedCopy rounded(const Exec& exec) const;

 private:
  std::deque<Parameter> all_;  // stable addresses
  Buffer value_memory_, grad_memory_, m_memory_, v_memory_;
  Tensor values_, grads_, m_, v_;  // flat
};

/// Bounds of the usual initialisers.
double xavier_uniform_bound(int64_t fan_in, int64_t fan_out);
double xavier_normal_std(int64_t fan_in, int64_t fan_out);

}  // namespace segue::model
