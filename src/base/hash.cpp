#include "base/hash.h"

#include <bit>
#include <cstring>

namespace segue::base {
namespace {

using namespace detail;

static_assert(std::endian::native == std::endian::little, "XXH64 reads little-endian words");

uint64_t read64(const unsigned char* p) {
  uint64_t word;
  std::memcpy(&word, p, sizeof(word));
  return word;
}

uint32_t read32(const unsigned char* p) {
  uint32_t word;
  std::memcpy(&word, p, sizeof(word));
  return word;
}

uint64_t round(uint64_t lane, uint64_t word) {
  return rotl(lane + word * kXxPrime2, 31) * kXxPrime1;
}

uint64_t merge(uint64_t h, uint64_t lane) { return (h ^ round(0, lane)) * kXxPrime1 + kXxPrime4; }

}  // namespace

// Steps and constants: xxHash specification, "XXH64 algorithm description".
uint64_t xxh64(const void* data, size_t bytes, uint64_t seed) {
  if (bytes == 0) data = "";  // an empty span may hand in a null pointer
  const auto* p = static_cast<const unsigned char*>(data);
  const unsigned char* const end = p + bytes;

  uint64_t h = seed + kXxPrime5;
  if (bytes >= 32) {
    uint64_t a = seed + kXxPrime1 + kXxPrime2;
    uint64_t b = seed + kXxPrime2;
    uint64_t c = seed;
    uint64_t d = seed - kXxPrime1;
    for (; end - p >= 32; p += 32) {
      a = round(a, read64(p));
      b = round(b, read64(p + 8));
      c = round(c, read64(p + 16));
      d = round(d, read64(p + 24));
    }
    h = rotl(a, 1) + rotl(b, 7) + rotl(c, 12) + rotl(d, 18);
    h = merge(merge(merge(merge(h, a), b), c), d);
  }
  h += bytes;

  for (; end - p >= 8; p += 8) h = rotl(h ^ round(0, read64(p)), 27) * kXxPrime1 + kXxPrime4;
  for (; end - p >= 4; p += 4) {
    h = rotl(h ^ (read32(p) * kXxPrime1), 23) * kXxPrime2 + kXxPrime3;
  }
  for (; p != end; ++p) h = rotl(h ^ (*p * kXxPrime5), 11) * kXxPrime1;

  h = (h ^ (h >> 33)) * kXxPrime2;
  h = (h ^ (h >> 29)) * kXxPrime3;
  return h ^ (h >> 32);
}

}  // namespace segue::base
