#include "ops/exchange.h"

#include <cstring>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.h"
#include "ops/gpu_test_util.h"
#include "tensor/buffer.h"
#include "tensor/growing_buffer.h"
#include "tensor/host_mapping.h"

namespace segue::ops {
namespace {

using test::ModeBed;
using GpuExchangeTest = test::GpuTest;

constexpr int64_t kNear = 300, kFar = 2000;

/// A slot each, some of which give a row, some get one, some both, some nothing.
struct Lists {
  std::vector<int64_t> slots, out, in;
};
Lists lists() {
  Lists made;
  for (int64_t i = 0; i < 257; ++i) {
    made.slots.push_back(i * 7 % kNear);
    made.out.push_back(i % 3 == 0 ? -1 : i * 11 % kFar);
    made.in.push_back(i % 4 == 1 ? -1 : (i + 1000) * 11 % kFar);
  }
  return made;
}

/// What is in both matrices after rows have moved one after the other.
void move_by_hand(const Lists& lists, int64_t columns, std::vector<float>& near,
                  std::vector<float>& far) {
  const auto row_bytes = static_cast<size_t>(columns) * sizeof(float);
  const auto at = [&](std::vector<float>& of, int64_t row) { return of.data() + row * columns; };
  for (size_t i = 0; i < lists.slots.size(); ++i) {
    float* const slot = at(near, lists.slots[i]);
    if (lists.out[i] >= 0) std::memcpy(at(far, lists.out[i]), slot, row_bytes);
    if (lists.in[i] >= 0) std::memcpy(slot, at(far, lists.in[i]), row_bytes);
  }
}

std::vector<float> numbers(int64_t count, float first) {
  std::vector<float> made(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    made[static_cast<size_t>(i)] = first + static_cast<float>(i);
  }
  return made;
}

/// Both matrices of both pairs, with wide rows and narrow ones, on a device; `far` in host memory.
void expect_as_by_hand(Device device, int64_t columns) {
  ModeBed bed(device, Precision::kF32);
  const Lists rows = lists();
  constexpr int64_t kNarrow = 3;
  const int64_t widths[] = {columns, kNarrow};
  std::vector<float> near[2], far[2];
  std::vector<Buffer> near_memory;
  std::vector<GrowingBuffer> far_memory;  // whole pages: none is mapped twice
  HostMapping mapping(device);
  std::vector<RowPair> pairs;
  for (size_t p = 0; p < 2; ++p) {
    near[p] = numbers(kNear * widths[p], 0.5f);
    far[p] = numbers(kFar * widths[p], 1e6f);
    const auto bytes = [](const std::vector<float>& of) {
      return static_cast<int64_t>(of.size() * sizeof(float));
    };
    near_memory.emplace_back(device, bytes(near[p]), Purpose::kTable);
    far_memory.emplace_back(Device::cpu(), bytes(far[p]), Purpose::kTable);
    far_memory[p].grow(bytes(far[p]));
    copy_bytes(near_memory[p].data(), device, near[p].data(), Device::cpu(),
               near[p].size() * sizeof(float), bed.exec.stream);
    bed.exec.stream->synchronize();
    std::memcpy(far_memory[p].data(), far[p].data(), far[p].size() * sizeof(float));
    ASSERT_TRUE(mapping.add(far_memory[p].data(), far_memory[p].bytes()));
    pairs.push_back({Tensor(near_memory[p].data(), DType::kF32, device, {kNear, widths[p]}),
                     Tensor(far_memory[p].data(), DType::kF32, device, {kFar, widths[p]})});
    move_by_hand(rows, widths[p], near[p], far[p]);
  }
  exchange_rows(bed.exec, {bed.longs(rows.slots), bed.longs(rows.out), bed.longs(rows.in)}, pairs);
  exchange_rows(bed.exec, {bed.longs({}), bed.longs({}), bed.longs({})}, pairs);
  bed.exec.stream->synchronize();
  for (size_t p = 0; p < 2; ++p) {
    std::vector<float> now(near[p].size());
    copy_bytes(now.data(), Device::cpu(), near_memory[p].data(), device, now.size() * sizeof(float),
               bed.exec.stream);
    bed.exec.stream->synchronize();
    EXPECT_TRUE(now == near[p]) << "pair " << p << ", " << columns << " columns";
    EXPECT_EQ(std::memcmp(far_memory[p].data(), far[p].data(), far[p].size() * sizeof(float)), 0)
        << "pair " << p << ", " << columns << " columns";
  }
}

TEST(ExchangeTest, RowsGoBeforeOthersTakeTheirSlots) {
  for (const int64_t columns : {1, 6, 64, 512}) expect_as_by_hand(Device::cpu(), columns);
}

TEST_F(GpuExchangeTest, RowsInHostMemoryMoveAsOnTheCpu) {
  for (const int64_t columns : {1, 6, 64, 512, 1000}) expect_as_by_hand(Device::cuda(), columns);
}

TEST(ExchangeTest, ARowThatThereIsNotIsAnError) {
  ModeBed bed(Device::cpu(), Precision::kF32);
  const Tensor near = bed.parameter(1, {4, 2}), far = bed.parameter(2, {9, 2});
  const RowPair pair{near, far};
  const auto move = [&](int64_t slot, int64_t out, int64_t in) {
    exchange_rows(bed.exec, {bed.longs({slot}), bed.longs({out}), bed.longs({in})}, {&pair, 1});
  };
  EXPECT_NO_THROW(move(3, 8, 0));
  EXPECT_THROW(move(4, 8, 0), Error);
  EXPECT_THROW(move(3, 9, 0), Error);
  EXPECT_THROW(move(3, 8, 9), Error);
}

TEST_F(GpuExchangeTest, MemoryIsMappedOnceAtATime) {
  Buffer memory(Device::cpu(), 1 << 20, Purpose::kTable);
  HostMapping first(Device::cuda());
  EXPECT_TRUE(first.add(memory.data(), memory.bytes()));
  {
    HostMapping second(Device::cuda());
    EXPECT_FALSE(second.add(memory.data(), memory.bytes())) << "a refusal is an answer";
  }
  EXPECT_TRUE(HostMapping(Device::cuda()).add(nullptr, 0));
}

}  // namespace
}  // namespace segue::ops
