#include "edu/workload.h"

#include <set>

#include <gtest/gtest.h>

#include "edu/key_hash.h"

namespace segue::edu {
namespace {

TEST(EduWorkloadTest, CountsAreThePublishedOnes) {
  const Workload micro = micro_dlrm(256);
  EXPECT_EQ(micro.embedding_parameters(), 21'168);
  EXPECT_EQ(micro.bottom_parameters(), 208);
  EXPECT_EQ(micro.top_parameters(), 1'601);
  EXPECT_EQ(micro.mlp_parameters() + micro.embedding_parameters(), 22'977);
  EXPECT_EQ(micro.table_bytes(), 84'672);
  EXPECT_EQ(micro.concat_width(), 32);
  EXPECT_EQ(micro.forward_flops(), 3'488);

  const Workload dram = micro_dlrm_faithful(Keys::kHashedIds, 8192);
  EXPECT_EQ(dram.table_bytes(), 2'048'000'000);
  EXPECT_EQ(dram.concat_width(), 776);
  EXPECT_EQ(dram.mlp_parameters(), 25'617);
  EXPECT_EQ(dram.forward_flops(), 2 * 25'552);
  EXPECT_EQ(dram.gathered_bytes(), 24.0 * (1 << 20));
}

TEST(EduWorkloadTest, BytesOfAStepFollowTheRule) {
  const Workload w = micro_dlrm_dram(Keys::kUniform, 1'000'000, 64, 20, 512);
  // 12 m + 8 for a distinct row, 4 m for every further look-up; large caches hold the rest.
  const double distinct = 30'000, further = static_cast<double>(w.lookups()) - distinct;
  const double rows = distinct * (12 * 64 + 8) + further * 4 * 64;
  EXPECT_DOUBLE_EQ(w.step_bytes(distinct, 1e12) - 28.0 * static_cast<double>(w.mlp_parameters()),
                   rows);
  EXPECT_GT(w.step_bytes(distinct, 0), w.step_bytes(distinct, 1e12));  // activations, too
}

TEST(EduWorkloadTest, PoolingSetsTheIntensity) {
  EXPECT_DOUBLE_EQ(pooled_intensity(32, 20), 1.05);
  EXPECT_DOUBLE_EQ(pooled_intensity(256, 1), 128.25);
  const Workload w = micro_dlrm_dram(Keys::kUniform, 1'000'000, 256, 20, 1024);
  const double exact = w.forward_flops() * 1024 / w.gathered_bytes();
  EXPECT_NEAR(exact, pooled_intensity(32, 20), 0.05);
}

TEST(EduKeyHashTest, HasThePublishedVectors) {
  constexpr int64_t kKeys[] = {0, 1, 2, 942, 1681};
  constexpr int64_t kRows[3][5] = {{453945, 1352557, 156608, 79641, 1359130},
                                   {1680318, 909740, 802450, 639903, 955059},
                                   {1367505, 1111762, 1070393, 453412, 1588128}};
  for (int64_t bag = 0; bag < 3; ++bag) {
    for (size_t i = 0; i < 5; ++i) {
      EXPECT_EQ(hash_row(kKeys[i], bag_seed(bag), 2'000'000), kRows[bag][i])
          << bag << " " << kKeys[i];
    }
  }
}

TEST(EduKeyHashTest, PublishedIdsTouchFewRows) {
  std::set<int64_t> rows;
  const int64_t counts[] = {kUserRows, kItemRows, kOccupationRows};
  for (int64_t bag = 0; bag < 3; ++bag) {
    for (int64_t id = 0; id < counts[bag]; ++id)
      rows.insert(hash_row(id, bag_seed(bag), 2'000'000));
  }
  EXPECT_EQ(rows.size(), 2'643U);
}

TEST(EduKeyHashTest, StaysInTheTableForEveryKey) {
  for (const int64_t key :
       {int64_t{0}, INT64_MAX, INT64_MIN, int64_t{-1}, pack_key(942, 1681, 5)}) {
    for (int64_t bag = 0; bag < 5; ++bag) {
      const int64_t row = hash_row(key, bag_seed(bag), 7);
      EXPECT_GE(row, 0);
      EXPECT_LT(row, 7);
    }
  }
  EXPECT_NE(pack_key(1, 2, 3), pack_key(2, 1, 3));
  EXPECT_NE(bag_seed(3), bag_seed(4));
}

}  // namespace
}  // namespace segue::edu
