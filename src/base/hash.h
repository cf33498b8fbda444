#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/bf16.h"

namespace segue::base {

namespace detail {
inline constexpr uint64_t kXxPrime1 = 11400714785074694791ull;
inline constexpr uint64_t kXxPrime2 = 14029467366897019727ull;
inline constexpr uint64_t kXxPrime3 = 1609587929392839161ull;
inline constexpr uint64_t kXxPrime4 = 9650029242287828579ull;
inline constexpr uint64_t kXxPrime5 = 2870177450012600261ull;
SEGUE_HOST_DEVICE constexpr uint64_t rotl(uint64_t x, int r) { return (x << r) | (x >> (64 - r)); }
}  // namespace detail

/// XXH64 of `count` (at most 3) int64 values laid out little-endian: the hash of a crossed feature.
/// Inputs below 32 bytes need only the short path of the algorithm, which is what runs on the
/// device.
SEGUE_HOST_DEVICE constexpr uint64_t xxh64_words(const int64_t* words, int count, uint64_t seed) {
  using namespace detail;
  uint64_t h = seed + kXxPrime5 + 8u * static_cast<uint64_t>(count);
  for (int i = 0; i < count; ++i) {
    h ^= rotl(static_cast<uint64_t>(words[i]) * kXxPrime2, 31) * kXxPrime1;
    h = rotl(h, 27) * kXxPrime1 + kXxPrime4;
  }
  h ^= h >> 33;
  h *= kXxPrime2;
  h ^= h >> 29;
  h *= kXxPrime3;
  return h ^ (h >> 32);
}

/// XXH64 of any bytes: file checksums, config fingerprints, hashes of names.
uint64_t xxh64(const void* data, size_t bytes, uint64_t seed = 0);
inline uint64_t xxh64(std::string_view text, uint64_t seed = 0) {
  return xxh64(text.data(), text.size(), seed);
}

/// The same hash for bytes that arrive in pieces; the cut does not matter.
class Xxh64Stream {
 public:
  explicit Xxh64Stream(uint64_t seed = 0);
  void update(const void* data, size_t bytes);
  uint64_t digest() const;  // of everything so far; more may follow

 private:
  // libxxhash's state, in room of our own: a header of this room includes no library.
  alignas(8) std::byte state_[88];
};

}  // namespace segue::base
