#include "publish/row_codec.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "base/bf16.h"
#include "base/error.h"
#include "base/hash.h"

namespace segue::publish {
namespace {

constexpr std::array<std::pair<RowType, const char*>, 3> kTypes = {
    {{RowType::kF32, "f32"}, {RowType::kBf16, "bf16"}, {RowType::kInt8, "int8"}}};
constexpr float kMostInt8 = 127;

int64_t element_bytes(RowType type) {
  switch (type) {
    case RowType::kF32:
      return sizeof(float);
    case RowType::kBf16:
      return sizeof(bf16);
    case RowType::kInt8:
      break;
  }
  return 1;
}

bool encode_bf16(std::span<const float> numbers, std::byte* weight) {
  for (size_t i = 0; i < numbers.size(); ++i) {
    const bf16 rounded(numbers[i]);
    if (!std::isfinite(static_cast<float>(rounded))) return false;
    std::memcpy(weight + i * sizeof(bf16), &rounded, sizeof(bf16));
  }
  return true;
}

bool encode_int8(std::span<const float> numbers, std::byte* weight, float& scale) {
  float largest = 0;
  for (const float x : numbers) {
    if (!std::isfinite(x)) return false;
    largest = std::max(largest, std::abs(x));
  }
  scale = largest / kMostInt8;
  for (size_t i = 0; i < numbers.size(); ++i) {
    const float level =
        scale > 0 ? std::clamp(std::nearbyint(numbers[i] / scale), -kMostInt8, kMostInt8) : 0;
    weight[i] = static_cast<std::byte>(static_cast<int8_t>(level));
  }
  return true;
}

}  // namespace

const char* to_string(RowType type) {
  return std::ranges::find(kTypes, type, &std::pair<RowType, const char*>::first)->second;
}

RowType row_type_of(std::string_view name) {
  for (const auto& [type, known] : kTypes) {
    if (name == known) return type;
  }
  fail(ErrorCode::kInvalidArgument,
       fmt::format("`{}` is no type of rows; there is: f32, bf16, int8", name));
}

RowCodec::RowCodec(RowType type, int64_t dim)
    : type_(type),
      dim_(dim),
      weight_bytes_(dim * element_bytes(type)),
      hashed_(static_cast<size_t>(row_bytes())) {}

int64_t RowCodec::row_bytes() const {
  return static_cast<int64_t>(sizeof(int64_t)) + weight_bytes_ +
         (scaled() ? static_cast<int64_t>(sizeof(float)) : 0);
}

bool RowCodec::encode(std::span<const float> numbers, std::byte* weight, float& scale) const {
  scale = 0;
  if (type_ == RowType::kBf16) return encode_bf16(numbers, weight);
  if (type_ == RowType::kInt8) return encode_int8(numbers, weight, scale);
  std::memcpy(weight, numbers.data(), numbers.size_bytes());
  return std::ranges::all_of(numbers, [](float x) { return std::isfinite(x); });
}

bool RowCodec::same(const Row& a, const Row& b) const {
  return std::memcmp(a.weight, b.weight, static_cast<size_t>(weight_bytes_)) == 0 &&
         (!scaled() || std::bit_cast<uint32_t>(a.scale) == std::bit_cast<uint32_t>(b.scale));
}

uint64_t RowCodec::digest(int64_t id, const Row& row) {
  std::byte* const to = hashed_.data();
  std::memcpy(to, &id, sizeof(id));
  std::memcpy(to + sizeof(id), row.weight, static_cast<size_t>(weight_bytes_));
  if (scaled()) std::memcpy(to + sizeof(id) + weight_bytes_, &row.scale, sizeof(float));
  return base::xxh64(hashed_.data(), hashed_.size());
}

}  // namespace segue::publish
