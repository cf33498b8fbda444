#pragma once

#include "base/rng.h"
#include "ops/dropout.h"
#include "ops/kernel.cuh"

// Dropout in kernels: what is kept is drawn for 8 columns at a time, one Philox call, and applied
// to pairs of 16-bit numbers. Forward may leave bits for backward, where reading costs less.

namespace segue::ops::cuda {

/// What dropout keeps of 8 neighbouring columns, as masks for packed pairs of 16-bit numbers: all
/// ones where a column is kept. As bits, where they are stored: even columns in bits 0 .. 3, odd
/// ones in bits 16 .. 19, so that four groups share a word and masks become bits without shifts.
struct KeepMasks {
  uint32_t pairs[4];

  __device__ static constexpr int bit_of(int column) { return column / 2 + column % 2 * 16; }
  /// All ones in each half whose highest bit is set.
  __device__ static uint32_t from_signs(uint32_t x) {
    uint32_t mask;
    asm("prmt.b32 %0, %1, %1, 0xbb99;" : "=r"(mask) : "r"(x));
    return mask;
  }
  /// Of the group in place `slot` (0 .. 3) of a word; other bits are not looked at.
  __device__ static KeepMasks from_bits(uint32_t bits, int slot = 0) {
    KeepMasks masks;
#pragma unroll
    for (int i = 0; i < 4; ++i) masks.pairs[i] = from_signs(bits << (15 - 4 * slot - i));
    return masks;
  }
  __device__ uint32_t bits(int slot = 0) const {
    uint32_t all = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) all |= pairs[i] & 0x10001u << (4 * slot + i);
    return all;
  }
};

struct DropoutArgs {
  bool active = false;
  // The key of every round of Philox: as kernel parameters they cost neither registers nor sums.
  base::PhiloxKey keys[base::kPhiloxRounds] = {};
  uint32_t site = 0;
  // The threshold for two 16-bit words at once: what takes 15 bits that reach its own to 2^15, and
  // all ones if its highest bit is 0. See keep_masks.
  uint32_t low_bits_to_sign = 0, high_bit_is_clear = 0;
  float scale = 1;
  const int32_t* sample = nullptr;
  const int32_t* token = nullptr;

  DropoutArgs() = default;
  DropoutArgs(const Exec& exec, const Dropout& dropout) {
    SEGUE_ASSERT(dropout.p >= 0 && dropout.p < 1, "dropout probability outside [0, 1)");
    if (dropout.p <= 0) return;
    active = true;
    keys[0] = exec.dropout_key;
    for (int i = 1; i < base::kPhiloxRounds; ++i) keys[i] = base::philox_next_key(keys[i - 1]);
    site = dropout.site;
    const uint32_t threshold = base::dropout_threshold(dropout.p);  // up to 65536: none is kept
    const bool high = threshold >= 0x8000u;
    low_bits_to_sign = (0x8000u - (high ? threshold - 0x8000u : threshold)) * 0x10001u;
    high_bit_is_clear = high ? 0u : ~0u;
    scale = static_cast<float>(1.0 / (1.0 - static_cast<double>(dropout.p)));
    sample = device_ptr<int32_t>(dropout.rows.sample);
    token = device_ptr<int32_t>(dropout.rows.token);
  }

  /// Which random numbers a row owns; read early, used late.
  struct Row {
    uint32_t sample = 0, token = 0;
  };
  __device__ Row row(int64_t r) const {
    if (!active) return {};
    return {static_cast<uint32_t>(sample[r]), static_cast<uint32_t>(token[r])};
  }

  /// base::philox with the keys made before.
  __device__ base::PhiloxCounter philox(const Row& row, uint32_t group) const {
    base::PhiloxCounter c{group, row.token, row.sample, site};
#pragma unroll
    for (int i = 0; i < base::kPhiloxRounds; ++i) c = base::philox_round(c, keys[i]);
    return c;
  }

  /// What is kept of columns first .. first + 8 of a row, first a multiple of 8: what
  /// base::dropout_keep_bits says.
  __device__ KeepMasks keep_masks(const Row& row, int first) const {
    const base::PhiloxCounter r = philox(row, static_cast<uint32_t>(first / 8));
    const uint32_t words[4] = {r.x, r.y, r.z, r.w};
    KeepMasks masks;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      // Two words at once: 15 bits of each are compared by a sum that does not leave its half, then
      // the highest ones, which decide where they differ.
      const uint32_t low = (words[i] & 0x7fff7fffu) + low_bits_to_sign;
      const uint32_t keeps = (words[i] & low) | ((words[i] | low) & high_bit_is_clear);
      masks.pairs[i] = KeepMasks::from_signs(keeps);
    }
    return masks;
  }
  /// The same as bits, of the group that column `first` lies in.
  __device__ uint32_t keep_bits(const Row& row, int first) const {
    return keep_masks(row, first).bits();
  }

  /// Columns first .. first + kW of a row; the same map forward and backward.
  template <int kW>
  __device__ void apply(const Row& row, int first, float (&v)[kW]) const {
    if (!active) return;
    apply_bits(keep_bits(row, first), first, v);
  }
  /// The same with the bits of the group given.
  template <int kW>
  __device__ void apply_bits(uint32_t bits, int first, float (&v)[kW]) const {
    static_assert(kW == 8 || kW == 1);
#pragma unroll
    for (int j = 0; j < kW; ++j) {
      const int bit = KeepMasks::bit_of(kW == 8 ? j : first % 8);
      v[j] = bits >> bit & 1u ? __fmul_rn(v[j], scale) : 0.f;
    }
  }
  /// The same for 8 columns, rounded to a 16-bit type, in four words.
  template <class T>
  __device__ void pack_kept(const KeepMasks& masks, const float (&v)[8],
                            uint32_t (&words)[4]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      words[i] =
          masks.pairs[i] & packed<T>(__fmul_rn(v[2 * i], scale), __fmul_rn(v[2 * i + 1], scale));
    }
  }
  /// What apply_bits gives, rounded to T.
  template <class T, int kW>
  __device__ void apply_rounded(const KeepMasks& masks, int first, float (&v)[kW]) const {
    if constexpr (kW == 8 && sizeof(T) == 2) {
      uint32_t words[4];
      pack_kept<T>(masks, v, words);
#pragma unroll
      for (int i = 0; i < 4; ++i) unpack_pair<T>(words[i], v[2 * i], v[2 * i + 1]);
    } else {
      apply_bits(masks.bits(), first, v);
      round_all<T>(v);
    }
  }
  /// Stores 8 columns as they are after dropout.
  template <class T>
  __device__ void store_kept(const KeepMasks& masks, const float (&v)[8], T* to) const {
    if constexpr (sizeof(T) == 2) {
      uint32_t words[4];
      pack_kept<T>(masks, v, words);
      *reinterpret_cast<uint4*>(to) = make_uint4(words[0], words[1], words[2], words[3]);
    } else {
      float kept[8];
#pragma unroll
      for (int j = 0; j < 8; ++j) kept[j] = v[j];
      apply_bits(masks.bits(), 0, kept);
      store(to, kept);
    }
  }
};

/// Bits of dropout that one kernel leaves for another: a byte for each group of 8 columns.
struct KeepBits {
  uint8_t* data = nullptr;
  int64_t stride = 0;

  KeepBits() = default;
  explicit KeepBits(const Tensor& t) {
    if (!t) return;
    SEGUE_ASSERT(t.rank == 2 && t.dtype == DType::kU8 && t.stride(1) == 1,
                 "bits of dropout: bytes [rows, columns / 8]");
    data = static_cast<uint8_t*>(t.data);
    stride = t.stride(0);
  }
  __device__ uint8_t* at(int64_t row, int column) const { return data + row * stride + column / 8; }

  __device__ static uint8_t byte_of(const KeepMasks& masks) {
    const uint32_t bits = masks.bits();
    return static_cast<uint8_t>(bits | bits >> 12);
  }
  __device__ static KeepMasks masks_of(uint32_t byte) {
    return KeepMasks::from_bits(byte * 0x1001u);
  }
};

}  // namespace segue::ops::cuda
