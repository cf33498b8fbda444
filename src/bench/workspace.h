#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/rng.h"
#include "ops/dropout.h"
#include "ops/initialize.h"
#include "ops/rows.h"
#include "tensor/arena.h"
#include "tensor/exec.h"

namespace segue::bench {

/// Memory and an Exec for work on one device: float on the CPU, bf16 on a GPU.
class Workspace {
 public:
  /// `gpu_bytes` 0: what the largest bench needs, or most of what the card has left.
  explicit Workspace(Device device = {}, int64_t gpu_bytes = 0)
      : arena_(device, capacity(device, gpu_bytes)), stream_(device) {
    exec.arena = &arena_;
    exec.stream = &stream_;
    exec.device = device;
    exec.precision = device.is_cuda() ? Precision::kBf16 : Precision::kF32;
    exec.dropout_key = base::philox_key(1, 1);
  }

  /// An activation of normal values with the given deviation.
  Tensor random(std::initializer_list<int64_t> shape, std::string_view name, double deviation = 1) {
    return random_of(exec.dtype(), shape, name, deviation);
  }
  /// The same in the type of parameters.
  Tensor parameter(std::initializer_list<int64_t> shape, std::string_view name,
                   double deviation = 1) {
    return random_of(exec.parameter_dtype(), shape, name, deviation);
  }
  Tensor random_of(DType dtype, std::initializer_list<int64_t> shape, std::string_view name,
                   double deviation = 1) {
    const Tensor t = arena_.tensor(dtype, shape);
    if (exec.device.is_cpu()) {
      ops::initialize(t, ops::Init::kNormal, deviation, 1, name);
      return t;
    }
    const int64_t count = std::min(kPeriod, t.elements());
    const Arena::Mark mark(arena_);
    const Tensor wide = arena_.tensor(DType::kF32, {count});
    ops::initialize(wide, ops::Init::kNormal, deviation, 1, name);
    const Tensor head(t.data, dtype, t.device, {count});
    ops::convert(exec, wide, head);
    for (int64_t at = head.bytes(); at < t.bytes(); at += head.bytes()) {
      copy_bytes(static_cast<char*>(t.data) + at, t.device, t.data, t.device,
                 static_cast<size_t>(std::min(head.bytes(), t.bytes() - at)), &stream_);
    }
    stream_.synchronize();
    return t;
  }

  Tensor zeros(std::initializer_list<int64_t> shape) { return cleared(exec.activation(shape)); }
  Tensor zero_parameter(std::initializer_list<int64_t> shape) {
    return cleared(exec.statistic(shape));
  }
  template <class T>
  Tensor placed(std::span<const T> values) {
    const Tensor t = arena_.tensor(kDTypeOf<T>, {static_cast<int64_t>(values.size())});
    copy_bytes(t.data, t.device, values.data(), Device::cpu(), static_cast<size_t>(t.bytes()),
               &stream_);
    stream_.synchronize();
    return t;
  }

  /// Sample and token of every row of packed sequences.
  ops::RowIdentity row_identity(std::span<const int64_t> offsets) {
    std::vector<int32_t> sample, token;
    for (size_t b = 0; b + 1 < offsets.size(); ++b) {
      for (int64_t r = offsets[b]; r < offsets[b + 1]; ++r) {
        sample.push_back(static_cast<int32_t>(b));
        token.push_back(static_cast<int32_t>(r - offsets[b]));
      }
    }
    return {placed<int32_t>(sample), placed<int32_t>(token)};
  }

  Exec exec;

 private:
  static constexpr int64_t kCpuBytes = int64_t{64} << 30;  // address space
  static constexpr int64_t kGpuBytes = int64_t{40} << 30;
  // Values repeat after as many: making billions of them on the host takes longer than any bench.
  static constexpr int64_t kPeriod = (int64_t{1} << 22) - 8;

  static int64_t capacity(Device device, int64_t gpu_bytes) {
    if (device.is_cpu()) return kCpuBytes;
    if (gpu_bytes > 0) return gpu_bytes;
    return std::min(kGpuBytes, cuda_facts(device.index).free_bytes / 10 * 8);
  }

  Tensor cleared(const Tensor& t) {
    zero(t, &stream_);
    return t;
  }

  Arena arena_;
  Stream stream_;
};

}  // namespace segue::bench
