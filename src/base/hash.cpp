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

void start_lanes(uint64_t (&lanes)[4], uint64_t seed) {
  lanes[0] = seed + kXxPrime1 + kXxPrime2;
  lanes[1] = seed + kXxPrime2;
  lanes[2] = seed;
  lanes[3] = seed - kXxPrime1;
}

/// Takes all whole stripes of 32 bytes; returns where it stopped.
const unsigned char* take_stripes(uint64_t (&lanes)[4], const unsigned char* p,
                                  const unsigned char* end) {
  uint64_t a = lanes[0], b = lanes[1], c = lanes[2], d = lanes[3];
  for (; end - p >= 32; p += 32) {
    a = round(a, read64(p));
    b = round(b, read64(p + 8));
    c = round(c, read64(p + 16));
    d = round(d, read64(p + 24));
  }
  lanes[0] = a, lanes[1] = b, lanes[2] = c, lanes[3] = d;
  return p;
}

/// The end of the algorithm: `p` .. `end` are the bytes after the last whole stripe.
uint64_t finish(const uint64_t (&lanes)[4], uint64_t seed, uint64_t total, const unsigned char* p,
                const unsigned char* end) {
  uint64_t h = seed + kXxPrime5;
  if (total >= 32) {
    h = rotl(lanes[0], 1) + rotl(lanes[1], 7) + rotl(lanes[2], 12) + rotl(lanes[3], 18);
    for (const uint64_t lane : lanes) h = merge(h, lane);
  }
  h += total;

  for (; end - p >= 8; p += 8) h = rotl(h ^ round(0, read64(p)), 27) * kXxPrime1 + kXxPrime4;
  for (; end - p >= 4; p += 4) {
    h = rotl(h ^ (read32(p) * kXxPrime1), 23) * kXxPrime2 + kXxPrime3;
  }
  for (; p != end; ++p) h = rotl(h ^ (*p * kXxPrime5), 11) * kXxPrime1;

  h = (h ^ (h >> 33)) * kXxPrime2;
  h = (h ^ (h >> 29)) * kXxPrime3;
  return h ^ (h >> 32);
}

}  // namespace

// Steps and constants: xxHash specification, "XXH64 algorithm description".
uint64_t xxh64(const void* data, size_t bytes, uint64_t seed) {
  if (bytes == 0) data = "";  // an empty span may hand in a null pointer
  const auto* const begin = static_cast<const unsigned char*>(data);
  uint64_t lanes[4];
  start_lanes(lanes, seed);
  const unsigned char* const rest = take_stripes(lanes, begin, begin + bytes);
  return finish(lanes, seed, bytes, rest, begin + bytes);
}

Xxh64Stream::Xxh64Stream(uint64_t seed) : seed_(seed) { start_lanes(lanes_, seed); }

void Xxh64Stream::update(const void* data, size_t bytes) {
  if (bytes == 0) return;
  const auto* p = static_cast<const unsigned char*>(data);
  const unsigned char* const end = p + bytes;
  const size_t held = total_ % sizeof(tail_);
  total_ += bytes;
  if (held > 0) {
    const size_t missing = sizeof(tail_) - held;
    if (bytes < missing) {
      std::memcpy(tail_ + held, p, bytes);
      return;
    }
    std::memcpy(tail_ + held, p, missing);
    p += missing;
    take_stripes(lanes_, tail_, tail_ + sizeof(tail_));
  }
  p = take_stripes(lanes_, p, end);
  std::memcpy(tail_, p, static_cast<size_t>(end - p));
}

uint64_t Xxh64Stream::digest() const {
  return finish(lanes_, seed_, total_, tail_, tail_ + total_ % sizeof(tail_));
}

}  // namespace segue::base
