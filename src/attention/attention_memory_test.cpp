#include <gtest/gtest.h>

#include "attention/hstu_attention.h"

namespace segue::attention {
namespace {

constexpr int64_t kMib = int64_t{1} << 20;

TEST(AttentionMemoryTest, BackwardTakesSumsSpilledBlocksAndLists) {
  // 130 rows have 3 blocks of 64, so 6 on and below the diagonal, for each of 2 heads and of the 2
  // sequences of 130 that 260 rows could be.
  AttentionBounds b{.rows = 260, .sequences = 5, .longest = 130, .heads = 2, .mask = {}};
  const int64_t block = 64 * 64 * 2;
  const int64_t spilled = 2 * 2 * 6 * block;
  EXPECT_EQ(hstu_attention_backward_bytes(b, 0), spilled + 8 * kMib);
  // 260 rows have 4 whole runs of 64, and each of 5 sequences may end with a shorter one.
  EXPECT_EQ(hstu_attention_backward_bytes(b, 100), spilled + 8 * kMib + (4 + 5) * 100 * 4);
  // A block of queries with context meets all blocks of keys once more.
  b.mask.contextual_len = 3;
  EXPECT_EQ(hstu_attention_backward_bytes(b, 0), 2 * 2 * (6 + 3) * block + 8 * kMib);
}

TEST(AttentionMemoryTest, WhatIsSpilledIsBounded) {
  const AttentionBounds b{
      .rows = 1 << 22, .sequences = 1 << 9, .longest = 1 << 13, .heads = 8, .mask = {}};
  EXPECT_EQ(hstu_attention_backward_bytes(b, 0), 4096 * kMib + 8 * kMib);
}

TEST(AttentionMemoryTest, TargetsHaveSumsForEachChunk) {
  // 600 rows are 2 whole chunks of 256, and 4 sequences may end with a shorter one.
  const AttentionBounds b{.rows = 600, .sequences = 4, .longest = 300, .heads = 2, .mask = {}};
  EXPECT_EQ(target_attention_bytes(b, 3, 64), (2 + 4) * 3 * 2 * (64 + 1) * 4);
}

TEST(AttentionMemoryTest, TheNormIsTakenWithTensorCoresOnly) {
  const Device gpu = Device::cuda();
  EXPECT_TRUE(target_attention_norms(gpu, DType::kBf16, 64));
  EXPECT_TRUE(target_attention_norms(gpu, DType::kBf16, 512));
  EXPECT_FALSE(target_attention_norms(gpu, DType::kBf16, 96));
  EXPECT_FALSE(target_attention_norms(gpu, DType::kBf16, 576));
  EXPECT_FALSE(target_attention_norms(gpu, DType::kF32, 64));
  EXPECT_FALSE(target_attention_norms(Device::cpu(), DType::kBf16, 64));
}

}  // namespace
}  // namespace segue::attention
