#include "tensor/upload.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

namespace segue {
namespace {

const std::vector<int32_t> kSmall = {1, -2, 3};
const std::vector<int64_t> kWide = {int64_t{1} << 40, 5};

TEST(UploadTest, PartsLieSideBySideAndAligned) {
  UploadBlock block;
  for (int round = 0; round < 2; ++round) {  // memory is used again
    block.clear();
    const auto small = block.add(std::span<const int32_t>(kSmall));
    const auto none = block.add<float>(0);
    const auto wide = block.add(std::span<const int64_t>(kWide));
    Exec exec;
    const UploadBlock::Placed placed = block.place(exec);
    const Tensor t = placed.tensor(wide);
    EXPECT_EQ(t.dtype, DType::kI64);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(t.data) % 256, 0u);
    EXPECT_EQ(std::vector(t.span<int64_t>().begin(), t.span<int64_t>().end()), kWide);
    EXPECT_EQ(placed.tensor(small).span<int32_t>()[1], -2);
    EXPECT_TRUE(placed.tensor(none));
    EXPECT_EQ(placed.tensor(none).elements(), 0);
  }
}

TEST(UploadTest, NothingCanBePlaced) {
  UploadBlock block;
  EXPECT_NO_THROW(block.place(Exec{}));
}

class GpuUploadTest : public testing::Test {
 protected:
  void SetUp() override {
    if (cuda_device_count() == 0) GTEST_SKIP() << "there is no GPU";
  }
};

TEST_F(GpuUploadTest, OneCopyPlacesAllParts) {
  const Device gpu = Device::cuda(0);
  Arena arena(gpu, 1 << 20);
  const Stream stream(gpu);
  Exec exec;
  exec.arena = &arena;
  exec.stream = &stream;
  exec.device = gpu;
  UploadBlock block;
  block.set_memory(HostMemory::kPinned);
  block.add(std::span<const int32_t>(kSmall));
  const auto wide = block.add(std::span<const int64_t>(kWide));
  const Tensor there = block.place(exec).tensor(wide);
  std::vector<int64_t> back(2);
  copy(host_view(std::span(back)), there, &stream);
  stream.synchronize();
  EXPECT_EQ(back, kWide);
}

TEST_F(GpuUploadTest, ACopyOnItsOwnStreamWaitsForTheReadersOfTheLastOne) {
  const Device gpu = Device::cuda(0);
  Arena arena(gpu, int64_t{256} << 20);
  const Stream stream(gpu), copies(gpu);
  Exec exec;
  exec.arena = &arena;
  exec.stream = &stream;
  exec.device = gpu;
  constexpr int64_t kCount = 1 << 20;
  constexpr int kRounds = 8;
  const Tensor read = arena.tensor(DType::kI32, {kRounds, kCount});
  const Tensor busy = arena.tensor(DType::kU8, {int64_t{64} << 20});
  UploadBlock blocks[2];
  for (UploadBlock& block : blocks) block.set_memory(HostMemory::kPinned);
  Event filled[2];  // the host block may change again
  for (int round = 0; round < kRounds; ++round) {
    UploadBlock& block = blocks[round % 2];
    filled[round % 2].synchronize();
    block.clear();
    const auto part = block.add<int32_t>(kCount);
    std::ranges::fill(block.span(part), round);
    block.send(copies);
    filled[round % 2].record(copies);
    const Tensor there = block.place(exec).tensor(part);
    for (int i = 0; i < 20; ++i) zero(busy, &stream);  // readers come late
    copy(read.select(round), there, &stream);
    block.release(stream);
  }
  std::vector<int32_t> back(kRounds * kCount);
  copy(host_view(std::span(back)), read.reshape({kRounds * kCount}), &stream);
  stream.synchronize();
  for (size_t i = 0; i < back.size(); ++i) ASSERT_EQ(back[i], static_cast<int>(i / kCount));
}

TEST_F(GpuUploadTest, ZeroFillsStridedRowsOnly) {
  const Device gpu = Device::cuda(0);
  Arena arena(gpu, 1 << 20);
  const Stream stream(gpu);
  std::vector<float> host(12, 1.f);
  const Tensor t = arena.tensor(DType::kF32, {3, 4});
  copy(t, Tensor(host.data(), DType::kF32, Device::cpu(), {3, 4}));
  zero(t.columns(1, 2), &stream);
  stream.synchronize();
  copy(Tensor(host.data(), DType::kF32, Device::cpu(), {3, 4}), t);
  EXPECT_EQ(host, (std::vector<float>{1, 0, 0, 1, 1, 0, 0, 1, 1, 0, 0, 1}));
}

}  // namespace
}  // namespace segue
