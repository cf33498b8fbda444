#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "base/rng.h"
#include "ops/dropout.h"
#include "ops/initialize.h"
#include "tensor/arena.h"
#include "tensor/exec.h"

namespace segue::bench {

/// Memory and an Exec for float work on the CPU.
class Workspace {
 public:
  Workspace() : arena_(Device::cpu(), int64_t{64} << 30) {
    exec.arena = &arena_;
    exec.dropout_key = base::philox_key(1, 1);
  }

  /// Normal values with the given deviation.
  Tensor random(std::initializer_list<int64_t> shape, std::string_view name, double deviation = 1) {
    const Tensor t = exec.activation(shape);
    ops::initialize(t, ops::Init::kNormal, deviation, 1, name);
    return t;
  }
  Tensor zeros(std::initializer_list<int64_t> shape) {
    const Tensor t = exec.activation(shape);
    zero(t);
    return t;
  }

  /// Sample and token of every row of packed sequences.
  ops::RowIdentity row_identity(std::span<const int64_t> offsets) {
    const ops::RowIdentity rows{exec.index({offsets.back()}), exec.index({offsets.back()})};
    for (size_t b = 0; b + 1 < offsets.size(); ++b) {
      for (int64_t r = offsets[b]; r < offsets[b + 1]; ++r) {
        rows.sample.ptr<int32_t>()[r] = static_cast<int32_t>(b);
        rows.token.ptr<int32_t>()[r] = static_cast<int32_t>(r - offsets[b]);
      }
    }
    return rows;
  }

  Exec exec;

 private:
  Arena arena_;
};

}  // namespace segue::bench
