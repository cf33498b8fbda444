#define XXH_INLINE_ALL  // nothing to link
#include "base/hash.h"

#include <new>

#include <xxhash.h>

namespace segue::base {
namespace {

XXH64_state_t* state_in(std::byte* storage) {
  return std::launder(reinterpret_cast<XXH64_state_t*>(storage));
}

}  // namespace

uint64_t xxh64(const void* data, size_t bytes, uint64_t seed) { return XXH64(data, bytes, seed); }

Xxh64Stream::Xxh64Stream(uint64_t seed) {
  static_assert(sizeof(state_) >= sizeof(XXH64_state_t) &&
                alignof(Xxh64Stream) >= alignof(XXH64_state_t));
  XXH64_reset(state_in(state_), seed);
}

void Xxh64Stream::update(const void* data, size_t bytes) {
  XXH64_update(state_in(state_), data, bytes);
}

uint64_t Xxh64Stream::digest() const {
  return XXH64_digest(std::launder(reinterpret_cast<const XXH64_state_t*>(state_)));
}

}  // namespace segue::base
