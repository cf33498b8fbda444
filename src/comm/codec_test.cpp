#include "comm/codec.h"

#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "base/rng.h"
#include "tensor/buffer.h"

namespace segue::comm {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

/// Every exponent, ties, both signs, and the ends of the ranges.
std::vector<float> hard_values(size_t count) {
  std::vector<float> values{0.f,
                            -0.f,
                            1.f,
                            65504.f,
                            65519.f,
                            65520.f,
                            -65536.f,
                            1e30f,
                            -1e30f,
                            3.3895e38f,
                            kInf,
                            -kInf,
                            kNan,
                            1e-8f,
                            0x1p-24f,
                            0x1p-25f,
                            0x1.8p-25f,
                            0x1p-133f,
                            std::numeric_limits<float>::max(),
                            std::numeric_limits<float>::lowest(),
                            0x1.fep127f,
                            0x1.ffp127f};
  for (uint64_t i = 0; values.size() < count; ++i) {
    uint32_t bits = static_cast<uint32_t>(base::splitmix64(i));
    if (i % 3 == 0) bits &= 0xffff8000u;                        // ties of bf16
    if (i % 3 == 1) bits = (bits & 0x8fffe000u) | 0x30001000u;  // in the range of f16, with ties
    values.push_back(std::bit_cast<float>(bits));
  }
  return values;
}

/// What the wire must hold, said another way than the code does.
float expected(float x, float most, float rounded) {
  if (std::isnan(x)) return x;
  if (std::abs(x) > most || std::isinf(rounded)) return std::copysign(most, x);
  return rounded;
}
float expected_bf16(float x) { return expected(x, 0x1.fep127f, round_to_bf16(x)); }
float expected_f16(float x) { return expected(x, 65504.f, round_to_f16(x)); }

void expect_same(float got, float want, float x) {
  if (std::isnan(want)) {
    EXPECT_TRUE(std::isnan(got)) << x;
  } else {
    EXPECT_EQ(std::bit_cast<uint32_t>(got), std::bit_cast<uint32_t>(want)) << x;
  }
}

/// The trip over the wire of `rows` rows of `width`, out of and into wider rows.
std::vector<float> round_trip(const std::vector<float>& values, int64_t width, int64_t stride,
                              DType wire_type, Device device, const Stream* stream) {
  const int64_t rows = static_cast<int64_t>(values.size()) / width;
  std::vector<float> wide(static_cast<size_t>(rows * stride), -7.f);
  for (int64_t r = 0; r < rows; ++r) {
    std::copy_n(values.begin() + r * width, width, wide.begin() + r * stride);
  }
  const auto bytes = static_cast<int64_t>(wide.size() * sizeof(float));
  const Buffer from(device, bytes, Purpose::kScratch), to(device, bytes, Purpose::kScratch);
  const Buffer wire(device, rows * width * size_of(wire_type), Purpose::kScratch);
  copy_bytes(from.data(), device, wide.data(), Device::cpu(), wide.size() * sizeof(float), stream);
  const Tensor in(from.data(), DType::kF32, device, {rows, stride});
  const Tensor out(to.data(), DType::kF32, device, {rows, stride});
  const Tensor travelling(wire.data(), wire_type, device, {rows, width});
  encode_rows(in.columns(0, width), travelling, stream);
  decode_rows(travelling, out.columns(0, width), stream);
  copy_bytes(wide.data(), Device::cpu(), to.data(), device, wide.size() * sizeof(float), stream);
  if (stream != nullptr) stream->synchronize();
  std::vector<float> back;
  for (int64_t r = 0; r < rows; ++r) {
    back.insert(back.end(), wide.begin() + r * stride, wide.begin() + r * stride + width);
    for (int64_t c = width; c < stride; ++c) {
      EXPECT_EQ(wide[static_cast<size_t>(r * stride + c)], 0.f) << "written beyond the row";
    }
  }
  return back;
}

void check_codec(Device device, const Stream* stream) {
  // 4 columns at a time, and one at a time by width or by stride.
  const std::pair<int64_t, int64_t> shapes[] = {{8, 8}, {8, 12}, {5, 5}, {8, 9}, {1, 3}};
  const std::vector<float> values = hard_values(20000);
  for (const auto& [width, stride] : shapes) {
    const auto half = round_trip(values, width, stride, DType::kF16, device, stream);
    const auto brain = round_trip(values, width, stride, DType::kBf16, device, stream);
    const auto full = round_trip(values, width, stride, DType::kF32, device, stream);
    for (size_t i = 0; i < full.size(); ++i) {
      expect_same(half[i], expected_f16(values[i]), values[i]);
      expect_same(brain[i], expected_bf16(values[i]), values[i]);
      expect_same(full[i], values[i], values[i]);
    }
  }
}

TEST(Codec, RoundsExactlyClampsAndKeepsNan) { check_codec(Device::cpu(), nullptr); }

TEST(Codec, NoRowsAndNoColumns) {
  for (const DType type : {DType::kF32, DType::kBf16, DType::kF16}) {
    encode_rows(Tensor(nullptr, DType::kF32, Device::cpu(), {0, 8}),
                Tensor(nullptr, type, Device::cpu(), {0, 8}));
    decode_rows(Tensor(nullptr, type, Device::cpu(), {3, 0}),
                Tensor(nullptr, DType::kF32, Device::cpu(), {3, 0}));
  }
}

TEST(Codec, DoublesOfTestsTravel) {
  std::vector<double> values{1.0 / 3, 1e300, -1e300, 0x1p-20}, back(4);
  const Tensor in(values.data(), DType::kF64, Device::cpu(), {2, 2});
  const Tensor out(back.data(), DType::kF64, Device::cpu(), {2, 2});
  std::vector<double> whole(4);
  const Tensor as_is(whole.data(), wire_dtype(Wire::kF32, DType::kF64), Device::cpu(), {2, 2});
  encode_rows(in, as_is);
  decode_rows(as_is, out);
  EXPECT_EQ(back, values);
  std::vector<uint16_t> bits(4);
  const Tensor half(bits.data(), wire_dtype(Wire::kF16, DType::kF64), Device::cpu(), {2, 2});
  encode_rows(in, half);
  decode_rows(half, out);
  EXPECT_EQ(back, (std::vector<double>{round_to_f16(1.f / 3), 65504., -65504., 0x1p-20}));
}

TEST(Codec, WireTypes) {
  EXPECT_EQ(wire_dtype(Wire::kF32, DType::kF32), DType::kF32);
  EXPECT_EQ(wire_dtype(Wire::kBf16, DType::kF32), DType::kBf16);
  EXPECT_EQ(wire_dtype(Wire::kF16, DType::kF64), DType::kF16);
}

TEST(GpuCodec, SameBitsAsTheCpu) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
  const Stream stream(Device::cuda(0));
  check_codec(Device::cuda(0), &stream);
}

}  // namespace
}  // namespace segue::comm
