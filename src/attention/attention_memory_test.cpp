#include <vector>

#include <gtest/gtest.h>

#include "attention/hstu_attention.h"

namespace segue::attention {
namespace {

constexpr int64_t kMib = int64_t{1} << 20;

TEST(AttentionMemoryTest, BackwardTakesSumsSpilledBlocksAndLists) {
  // 130 rows have 3 blocks of 64, so 6 on and below the diagonal, for each of 2 heads and of 2
  // sequences; the others are empty.
  const std::vector<int64_t> offsets = {0, 130, 260, 260, 260, 260};
  const auto bytes = [&](const HstuMask& mask, int64_t dbias_columns) {
    return hstu_attention_backward_bytes(offsets, 2, mask, dbias_columns);
  };
  const int64_t block = 64 * 64 * 2;
  const int64_t spilled = 2 * 2 * 6 * block;
  EXPECT_EQ(bytes({}, 0), spilled + 8 * kMib);
  // 260 rows have 4 whole runs of 64, and each of 5 sequences may end with a shorter one.
  EXPECT_EQ(bytes({}, 100), spilled + 8 * kMib + (4 + 5) * 100 * 4);
  // A block of queries with context meets all blocks of keys once more.
  EXPECT_EQ(bytes({.contextual_len = 3}, 0), 2 * 2 * (6 + 3) * block + 8 * kMib);
}

TEST(AttentionMemoryTest, WhatIsSpilledIsBounded) {
  std::vector<int64_t> offsets;
  for (int64_t s = 0; s <= 1 << 9; ++s) offsets.push_back(s << 13);
  EXPECT_EQ(hstu_attention_backward_bytes(offsets, 8, {}, 0), 4096 * kMib + 8 * kMib);
}

TEST(AttentionMemoryTest, TargetsHaveSumsForEachChunk) {
  // 600 rows are 2 whole chunks of 256, and 4 sequences may end with a shorter one.
  const std::vector<int64_t> offsets = {0, 300, 600, 600, 600};
  EXPECT_EQ(target_attention_bytes(offsets, 2, 3, 64), (2 + 4) * 3 * 2 * (64 + 1) * 4);
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
