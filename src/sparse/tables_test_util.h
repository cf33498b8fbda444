#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/test_util.h"
#include "sparse/tables.h"
#include "tensor/arena.h"
#include "tensor/exec.h"

namespace segue::sparse::test {

using base::contains;
using base::message_of;
using Ids = std::vector<int64_t>;

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
