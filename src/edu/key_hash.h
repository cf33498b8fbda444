#pragma once

#include <cstdint>

#include "base/rng.h"

namespace segue::edu {

/// Row of a key in a table of `rows`: the finalizer of splitmix64 with signed shifts, then the
/// magnitude. That is how the published workload hashes; for most keys it is not splitmix64.
constexpr int64_t hash_row(int64_t key, int64_t seed, int64_t rows) {
  const auto times = [](int64_t x, uint64_t factor) {
    return static_cast<int64_t>(static_cast<uint64_t>(x) * factor);
  };
  int64_t x = key ^ seed;
  x = times(x ^ (x >> 30), 0xBF58476D1CE4E5B9ull);
  x = times(x ^ (x >> 27), 0x94D049BB133111EBull);
  x = x ^ (x >> 31);
  const auto bits = static_cast<uint64_t>(x);
  const uint64_t magnitude = x < 0 ? 0 - bits : bits;  // also of the smallest number
  return static_cast<int64_t>(magnitude % static_cast<uint64_t>(rows));
}

/// Seeds of the first three bags are the published ones.
constexpr int64_t bag_seed(int64_t bag) {
  constexpr int64_t kPublished[] = {0xA5A5A5A5, 0x5A5A5A5A, 0xC3C3C3C3};
  if (bag < 3) return kPublished[bag];
  return static_cast<int64_t>(base::splitmix64(static_cast<uint64_t>(bag)) >> 1);
}

/// One key of up to three ids below 2^21.
constexpr int64_t pack_key(int64_t a, int64_t b, int64_t c = 0) { return a | b << 21 | c << 42; }

}  // namespace segue::edu
