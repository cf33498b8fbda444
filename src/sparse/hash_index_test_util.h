#pragma once

// For tests only.

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "sparse/hash_index.h"
#include "tensor/buffer.h"

namespace segue::sparse::test {

struct HashBatch {
  std::vector<int64_t> keys;
  std::vector<int32_t> uses;
  std::vector<int64_t> scores;
  int64_t step = 0, time = 0;

  HashBatch part(size_t begin, size_t end) const {
    const auto cut = [&](const auto& v) {
      return std::vector(v.begin() + static_cast<int64_t>(begin),
                         v.begin() + static_cast<int64_t>(end));
    };
    return {cut(keys), cut(uses), cut(scores), step, time};
  }
};

struct HashFound {
  std::vector<int64_t> rows;
  std::vector<uint8_t> is_new;
};

/// Batches of random sizes up to `largest`, of ids of which few are frequent; 0, -1 and the ends of
/// the range are among them.
class BatchMaker {
 public:
  BatchMaker(uint64_t seed, int64_t ids, int64_t largest)
      : state_(base::splitmix64(seed)), ids_(ids), largest_(largest) {}

  HashBatch next() {
    step_ += below(3);
    time_ += below(20);
    HashBatch b;
    b.step = step_;
    b.time = time_;
    const int64_t n = below(8) == 0 ? below(4) : below(largest_ + 1);
    for (int64_t i = 0; i < n; ++i) b.keys.push_back(key_of_id(id()));
    std::ranges::sort(b.keys);
    b.keys.erase(std::unique(b.keys.begin(), b.keys.end()), b.keys.end());
    for (size_t i = 0; i < b.keys.size(); ++i) {
      b.uses.push_back(static_cast<int32_t>(below(4) == 0 ? 1 + below(5) : 1));
      b.scores.push_back(below(40) - 20);
    }
    return b;
  }

  std::vector<int64_t> some_keys(int64_t n) {
    std::vector<int64_t> keys;
    for (int64_t i = 0; i < n; ++i) keys.push_back(key_of_id(id()));
    return keys;
  }

  int64_t below(int64_t n) { return static_cast<int64_t>(next_bits() % static_cast<uint64_t>(n)); }

 private:
  uint64_t next_bits() { return base::splitmix64(state_++); }

  int64_t id() {
    using Limits = std::numeric_limits<int64_t>;
    constexpr int64_t kSpecial[] = {0, -1, Limits::min(), Limits::max()};
    if (below(200) == 0) return kSpecial[below(4)];
    const double u = static_cast<double>(next_bits() >> 11) * 0x1p-53;
    return 1 + static_cast<int64_t>(u * u * u * static_cast<double>(ids_));
  }

  uint64_t state_;
  int64_t ids_, largest_, step_ = 1, time_ = 1000;
};

/// Calls an index wherever it lives, with host arrays.
class HashCaller {
 public:
  explicit HashCaller(Device device = Device::cpu()) : device_(device), stream_(device) {}

  HashFound find_or_insert(HashIndex& index, const HashBatch& b) const {
    HashIndex* const one = &index;
    return find_or_insert({&one, 1}, {&b, 1}).front();
  }

  /// By one call.
  std::vector<HashFound> find_or_insert(std::span<HashIndex* const> indices,
                                        std::span<const HashBatch> batches) const {
    std::vector<HashFound> found;
    std::vector<Placed> placed;
    std::vector<IndexRequest> requests;
    const auto keep = [&](Placed p) { return placed.emplace_back(std::move(p)).view; };
    for (size_t i = 0; i < indices.size(); ++i) {
      const HashBatch& b = batches[i];
      const size_t n = b.keys.size();
      found.push_back({std::vector<int64_t>(n, -7), std::vector<uint8_t>(n, 7)});
      IndexRequest& r = requests.emplace_back();
      r.index = indices[i];
      r.batch = {.keys = keep(place<int64_t>(b.keys)), .step = b.step, .time = b.time};
      if (!b.uses.empty()) r.batch.uses = keep(place<int32_t>(b.uses));
      if (!b.scores.empty() || n == 0) r.batch.scores = keep(place<int64_t>(b.scores));
      r.found = {keep(place<int64_t>(found.back().rows)),
                 keep(place<uint8_t>(found.back().is_new))};
    }
    sparse::find_or_insert(requests, stream_);
    for (size_t i = 0; i < found.size(); ++i) {
      fetch<int64_t>(requests[i].found.rows, found[i].rows);
      fetch<uint8_t>(requests[i].found.is_new, found[i].is_new);
    }
    return found;
  }

  std::vector<int64_t> find(const HashIndex& index, const std::vector<int64_t>& keys) const {
    std::vector<int64_t> out(keys.size(), -7);
    const Placed from = place<int64_t>(keys), to = place<int64_t>(out);
    index.find(from.view, to.view, stream_);
    fetch<int64_t>(to.view, out);
    return out;
  }

 private:
  struct Placed {
    Buffer memory;
    Tensor view;
  };

  template <class T>
  Placed place(std::span<const T> values) const {
    Placed p;
    const auto n = static_cast<int64_t>(values.size());
    p.memory = Buffer(device_, std::max<int64_t>(1, n) * static_cast<int64_t>(sizeof(T)),
                      Purpose::kScratch);
    p.view = Tensor(p.memory.data(), kDTypeOf<T>, device_, {n});
    copy_bytes(p.memory.data(), device_, values.data(), Device::cpu(), values.size_bytes(),
               &stream_);
    stream_.synchronize();
    return p;
  }
  template <class T>
  void fetch(const Tensor& from, std::span<T> to) const {
    copy_bytes(to.data(), Device::cpu(), from.data, device_, to.size_bytes(), &stream_);
    stream_.synchronize();
  }

  Device device_;
  Stream stream_;
};

}  // namespace segue::sparse::test
