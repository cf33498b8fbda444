#include "base/bf16.h"

namespace segue {

f16::f16(float value) {
  const uint32_t word = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (word >> 16) & 0x8000u;
  const uint32_t magnitude = word & 0x7fffffffu;

  if (magnitude > 0x7f800000u) {
    bits = 0x7fff;  // the one canonical NaN, as for bf16
    return;
  }
  if (magnitude >= 0x477ff000u) {  // 65520, halfway between the largest half and 2^16, or more
    bits = static_cast<uint16_t>(sign | 0x7c00u);
    return;
  }
  if (magnitude < 0x38800000u) {  // below 2^-14: a subnormal half, a multiple of 2^-24
    // Adding 0.5, whose last place is 2^-24, lets the FPU round to that multiple, to nearest even.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    bits = static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000u));
    return;
  }
  // Re-bias the exponent from 127 to 15 and round away 13 mantissa bits; a carry moves the
  // exponent.
  const uint32_t rebiased = magnitude - (112u << 23);
  bits = static_cast<uint16_t>(sign | ((rebiased + 0xfffu + ((rebiased >> 13) & 1u)) >> 13));
}

f16::operator float() const {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1fu;
  const uint32_t mantissa = bits & 0x3ffu;
  if (exponent == 0) {  // zero or subnormal: mantissa * 2^-24 is exact
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(magnitude));
  }
  if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  return std::bit_cast<float>(sign | ((exponent + 112u) << 23) | (mantissa << 13));
}

}  // namespace segue
