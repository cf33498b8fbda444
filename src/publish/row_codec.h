#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace segue::publish {

/// How the numbers of a row are published.
enum class RowType { kF32, kBf16, kInt8 };
const char* to_string(RowType type);
/// Error(kInvalidArgument) that lists what there is.
RowType row_type_of(std::string_view name);

/// A row as it is published; its numbers lie in the memory of whoever gave it.
struct Row {
  const std::byte* weight = nullptr;
  float scale = 0;  // of kInt8
};

/// Gets rows in ascending order of ids.
using VisitRow = std::function<void(int64_t id, const Row& row)>;

/// Encodes, compares and hashes the rows of one table.
class RowCodec {
 public:
  RowCodec(RowType type, int64_t dim);

  RowType type() const { return type_; }
  int64_t dim() const { return dim_; }
  bool scaled() const { return type_ == RowType::kInt8; }
  int64_t weight_bytes() const { return weight_bytes_; }
  /// Of a row in a file, with its id.
  int64_t row_bytes() const;

  /// Fills `weight`, and the scale of kInt8: the largest magnitude / 127, so that number / scale,
  /// rounded to nearest even, is what is stored. False where a number is not finite, before or
  /// after.
  [[nodiscard]] bool encode(std::span<const float> numbers, std::byte* weight, float& scale) const;
  bool same(const Row& a, const Row& b) const;
  /// XXH64 of id, numbers and scale.
  uint64_t digest(int64_t id, const Row& row);

 private:
  RowType type_;
  int64_t dim_;
  int64_t weight_bytes_;
  std::vector<std::byte> hashed_;
};

}  // namespace segue::publish
