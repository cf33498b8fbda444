#pragma once

#include <cstdint>

#include "base/bf16.h"

namespace segue::base {

/// Everything random in Segue is a pure function of what it is for: there is no generator state to
/// save, and the same element gets the same number on any device, rank or micro-batch cut.
///
/// Philox4x32-10 (Salmon et al., 2011): 128 bits of counter and 64 bits of key give 128 random
/// bits.
struct PhiloxCounter {
  uint32_t x = 0, y = 0, z = 0, w = 0;
};
struct PhiloxKey {
  uint32_t lo = 0, hi = 0;
};

inline constexpr int kPhiloxRounds = 10;

SEGUE_HOST_DEVICE inline PhiloxCounter philox_round(PhiloxCounter c, PhiloxKey k) {
  const uint64_t p0 = static_cast<uint64_t>(0xD2511F53u) * c.x;
  const uint64_t p1 = static_cast<uint64_t>(0xCD9E8D57u) * c.z;
  return {static_cast<uint32_t>(p1 >> 32) ^ c.y ^ k.lo, static_cast<uint32_t>(p1),
          static_cast<uint32_t>(p0 >> 32) ^ c.w ^ k.hi, static_cast<uint32_t>(p0)};
}
SEGUE_HOST_DEVICE inline PhiloxKey philox_next_key(PhiloxKey k) {
  return {k.lo + 0x9E3779B9u, k.hi + 0xBB67AE85u};
}
SEGUE_HOST_DEVICE inline PhiloxCounter philox(PhiloxCounter c, PhiloxKey k) {
  for (int round = 0; round < kPhiloxRounds; ++round) {
    c = philox_round(c, k);
    k = philox_next_key(k);
  }
  return c;
}

/// One step of splitmix64: advances nothing, returns the mixed value of `x + golden ratio`.
SEGUE_HOST_DEVICE constexpr uint64_t splitmix64(uint64_t x) {
  x += 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

/// splitmix64 is one to one: this is the way back.
SEGUE_HOST_DEVICE constexpr uint64_t splitmix64_inverse(uint64_t x) {
  x = (x ^ (x >> 31) ^ (x >> 62)) * 0x319642B2D24D8EC3ull;
  x = (x ^ (x >> 27) ^ (x >> 54)) * 0x96DE1B173F119089ull;
  x = x ^ (x >> 30) ^ (x >> 60);
  return x - 0x9E3779B97F4A7C15ull;
}

/// Key of one training step (dropout) or of one purpose (initialisation: step = a purpose
/// constant).
SEGUE_HOST_DEVICE constexpr PhiloxKey philox_key(uint64_t seed, uint64_t step) {
  const uint64_t mixed = splitmix64(splitmix64(seed) ^ step);
  return {static_cast<uint32_t>(mixed), static_cast<uint32_t>(mixed >> 32)};
}

/// Uniform in [0, 1) with 24 random bits.
SEGUE_HOST_DEVICE inline float uniform_f32(uint32_t bits) {
  return static_cast<float>(bits >> 8) * 0x1p-24f;
}

// ---- dropout ----

/// Eight consecutive columns share one Philox call: counter = (column / 8, token, sample, site),
/// key of the step. Column c keeps its value iff the (c mod 8)-th 16-bit word is >= threshold.
SEGUE_HOST_DEVICE inline uint32_t dropout_threshold(float p) {
  return static_cast<uint32_t>(p * 65536.0f + 0.5f);  // NOLINT(bugprone-incorrect-roundings)
}
SEGUE_HOST_DEVICE inline uint32_t dropout_keep_bits(PhiloxKey key, uint32_t site, uint32_t sample,
                                                    uint32_t token, uint32_t column_group,
                                                    uint32_t threshold) {
  const PhiloxCounter r = philox({column_group, token, sample, site}, key);
  const uint32_t words[4] = {r.x, r.y, r.z, r.w};
  uint32_t keep = 0;
  for (int i = 0; i < 4; ++i) {
    keep |= static_cast<uint32_t>((words[i] & 0xffffu) >= threshold) << (2 * i);
    keep |= static_cast<uint32_t>((words[i] >> 16) >= threshold) << (2 * i + 1);
  }
  return keep;
}

// ---- initial values ----

/// Random word for element (row, column) of the tensor named by `name_hash`; four columns a call.
SEGUE_HOST_DEVICE inline PhiloxCounter init_bits(uint64_t seed, uint64_t name_hash, uint64_t row,
                                                 uint32_t column_group) {
  return philox({column_group, static_cast<uint32_t>(row), static_cast<uint32_t>(row >> 32),
                 static_cast<uint32_t>(name_hash >> 32)},
                philox_key(seed, name_hash));
}

}  // namespace segue::base
