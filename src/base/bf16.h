#pragma once

#include <bit>
#include <cstdint>

#if defined(__CUDACC__)
#define SEGUE_HOST_DEVICE __host__ __device__
#else
#define SEGUE_HOST_DEVICE
#endif

namespace segue {

/// The upper half of a float, rounded to nearest even; bit-equal to __nv_bfloat16 and, NaN aside,
/// to torch.bfloat16.
struct bf16 {  // NOLINT(readability-identifier-naming): an element type, as float is
  uint16_t bits = 0;

  bf16() = default;
  SEGUE_HOST_DEVICE explicit bf16(float value) {
    const uint32_t word = std::bit_cast<uint32_t>(value);
    if ((word & 0x7fffffffu) > 0x7f800000u) {
      bits = 0x7fff;  // any NaN becomes the one canonical NaN, as the hardware conversion does
    } else {
      bits = static_cast<uint16_t>((word + 0x7fffu + ((word >> 16) & 1u)) >> 16);
    }
  }
  SEGUE_HOST_DEVICE explicit operator float() const {
    return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
  }
};
static_assert(sizeof(bf16) == 2);

/// value as it would survive a trip through bf16.
SEGUE_HOST_DEVICE inline float round_to_bf16(float value) {
  return static_cast<float>(bf16(value));
}

/// IEEE half precision, used as a storage and wire format only.
struct f16 {  // NOLINT(readability-identifier-naming)
  uint16_t bits = 0;

  f16() = default;
  explicit f16(float value);  // rounds to nearest even; overflow gives infinity
  explicit operator float() const;
};
static_assert(sizeof(f16) == 2);

inline float round_to_f16(float value) { return static_cast<float>(f16(value)); }

}  // namespace segue
