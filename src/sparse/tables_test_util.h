#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/rng.h"
#include "base/test_util.h"
#include "sparse/tables.h"
#include "tensor/arena.h"
#include "tensor/exec.h"

namespace segue::sparse::test {

/// Of dynamic tables: what they admit and forget.
struct Policy {
  const char* name;
  Evict evict;
  int64_t admit_after, ttl_seconds;
  double admit_share;
};
inline constexpr Policy kPolicies[] = {{"lru", Evict::kLru, 1, 0, 1},
                                       {"lfu", Evict::kLfu, 1, 0, 1},
                                       {"age", Evict::kAge, 1, 0, 1},
                                       {"lfu, admitted", Evict::kLfu, 2, 0, 1},
                                       {"lru, ttl, by share", Evict::kLru, 1, 700, 0.5},
                                       {"score", Evict::kScore, 1, 0, 1},
                                       {"score, admitted, ttl", Evict::kScore, 2, 900, 1}};

using base::contains;
using base::message_of;
using Ids = std::vector<int64_t>;

/// One of each use, where uses of all ranks are dealt out in turn: whatever the number of ranks, a
/// use has the same.
inline Ids scores_of(size_t uses, int64_t step, int rank = 0, int ranks = 1) {
  Ids scores;
  for (uint64_t i = 0; i < uses; ++i) {
    const uint64_t use = i * static_cast<uint64_t>(ranks) + static_cast<uint64_t>(rank);
    const uint64_t random = base::splitmix64(static_cast<uint64_t>(step) * 1'000'003 + use);
    scores.push_back(static_cast<int64_t>(random % 1000) - 500);
  }
  return scores;
}

inline TablesConfig two_tables() {
  TablesConfig config;
  config.tables = {{"item", 50, 0}, {"artist", 20, 0}};
  config.dim = 6;
  return config;
}

/// What a rank keeps of a static table.
inline LocalShard shard_of(const Tables& tables, size_t t) {
  const TableConfig& config = tables.config().tables[t];
  return local_shard(tables.plan().tables[t], config.rows, tables.config().dim_of(config),
                     tables.rank());
}

/// Of a checkpoint that has nothing for tables to read themselves.
inline std::unique_ptr<SavedArrays> no_arrays(const std::string&) {
  struct None final : SavedArrays {
    std::optional<std::vector<int64_t>> shape(const std::string&) const override { return {}; }
    void read(const std::string&, DType, int64_t, int64_t, void*) const override {}
  };
  return std::make_unique<None>();
}

/// A checkpoint in memory: what all ranks save of one table, one after the other.
struct SavedInMemory final : SavedArrays {
  struct Array {
    DType dtype = DType::kF32;
    std::vector<int64_t> shape;
    std::vector<std::byte> bytes;
  };
  std::map<std::string, Array> arrays;

  SavedInMemory() = default;
  explicit SavedInMemory(const std::vector<TableArray>& snapshot) {
    for (const TableArray& array : snapshot) add(array);
  }
  void add(const TableArray& array) {
    const Tensor& value = array.value;
    const int64_t rows = value.size(0), row_bytes = rows == 0 ? 0 : value.bytes() / rows;
    Array& to = arrays[array.name];
    const bool first = to.shape.empty();
    if (!first && !array.part) return;  // all ranks have the same
    if (first) to.shape = {value.sizes.begin(), value.sizes.begin() + value.rank};
    if (!first) to.shape.front() += rows;
    to.dtype = value.dtype;
    if (row_bytes == 0) return;
    const int64_t lying = array.order.empty() ? rows : 1 + *std::ranges::max_element(array.order);
    std::vector<std::byte> host(static_cast<size_t>(lying * row_bytes));
    const Stream stream(value.device);
    copy_bytes(host.data(), Device::cpu(), value.data, value.device, host.size(), &stream);
    stream.synchronize();
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t at = array.order.empty() ? r : array.order[static_cast<size_t>(r)];
      const auto row = host.begin() + at * row_bytes;
      to.bytes.insert(to.bytes.end(), row, row + row_bytes);
    }
  }
  std::optional<std::vector<int64_t>> shape(const std::string& name) const override {
    const auto found = arrays.find(name);
    if (found == arrays.end()) return std::nullopt;
    return found->second.shape;
  }
  void read(const std::string& name, DType dtype, int64_t first, int64_t count,
            void* to) const override {
    const Array& array = arrays.at(name);
    ASSERT_EQ(array.dtype, dtype);
    const int64_t row = std::ssize(array.bytes) / std::max<int64_t>(1, array.shape.front());
    std::copy_n(array.bytes.begin() + first * row, count * row, static_cast<std::byte*>(to));
  }
};

/// Arena and Exec for one test.
struct Bench {
  Arena arena{Device::cpu(), int64_t{64} << 20};
  Exec exec;
  explicit Bench(Precision precision = Precision::kF32) {
    exec.arena = &arena;
    exec.precision = precision;
  }
};

inline Tensor view(std::span<const int32_t> values) {
  return {const_cast<int32_t*>(values.data()),
          DType::kI32,
          Device::cpu(),
          {static_cast<int64_t>(values.size())}};
}

inline std::vector<double> values_of(const Tensor& t) {
  std::vector<double> values;
  dispatch_real(t.dtype, [&](auto zero_value) {
    for (const auto value : t.span<decltype(zero_value)>()) values.push_back(value);
  });
  return values;
}

inline std::vector<std::byte> bytes_of(const Tensor& t) {
  const auto* data = static_cast<const std::byte*>(t.data);
  return {data, data + t.bytes()};
}

}  // namespace segue::sparse::test
