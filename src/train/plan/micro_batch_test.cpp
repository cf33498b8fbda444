#include "train/plan/micro_batch.h"

#include <gtest/gtest.h>

#include "base/test_util.h"
#include "train/presets.h"
#include "train/test_util.h"

namespace segue::train {
namespace {

constexpr int64_t kUsual = TrainConfig::kUsualMicroBatch;
constexpr double kGib = 1 << 30;

Cluster one_gpu(double bytes) {
  return {.ranks = 1, .ranks_per_machine = 1, .device_limit = bytes};
}

MicroBatchChoice choose(const RunConfig& c, double bytes) {
  return choose_micro_batch(c, Device::cuda(), one_gpu(bytes));
}

double planned_bytes(RunConfig c, int64_t tokens) {
  c.train.micro_batch_tokens = tokens;
  return memory_plan(c, Device::cuda()).total();
}

TEST(MicroBatchTest, AWholeBatchWhereItFitsAndFewPartsElsewhere) {
  const RunConfig c = preset_config("dlrmv4-1gpu");
  const int64_t longest = 3276, whole = 256 * longest;
  const double least = planned_bytes(c, kUsual), most = planned_bytes(c, whole);
  const MicroBatchChoice all = choose(c, most + 1);
  EXPECT_EQ(all.tokens, whole);
  EXPECT_TRUE(base::contains(all.why, "a whole batch")) << all.why;
  int64_t before = whole;
  for (const double share : {0.9, 0.6, 0.3, 0.1}) {
    const double bytes = least + share * (most - least);
    const MicroBatchChoice some = choose(c, bytes);
    EXPECT_LE(some.tokens, before) << some.why;
    EXPECT_LT(some.tokens, whole) << some.why;
    EXPECT_GT(some.tokens, kUsual) << some.why;
    EXPECT_EQ(some.tokens % longest, 0) << "whole samples";
    EXPECT_LE(planned_bytes(c, some.tokens), bytes) << some.why;
    before = some.tokens;
  }
  EXPECT_LT(before, whole / 4);
  // Tables that do not fit take all there is, and the rest lies elsewhere.
  EXPECT_EQ(choose(c, 60e9).tokens, kUsual);
  EXPECT_TRUE(base::contains(choose(c, 60e9).why, "tables"));
}

TEST(MicroBatchTest, RanksShareBatchAndTables) {
  RunConfig c = preset_config("dlrmv4-1gpu");
  Cluster cluster = one_gpu(40e9);
  EXPECT_EQ(choose_micro_batch(c, Device::cuda(), cluster).tokens, kUsual);
  cluster.ranks = cluster.ranks_per_machine = 4;
  EXPECT_EQ(choose_micro_batch(c, Device::cuda(), cluster).tokens, 64 * 3276);
}

TEST(MicroBatchTest, WhereThereIsNothingToChoose) {
  RunConfig c = preset_config("dlrmv4-1gpu");
  EXPECT_EQ(choose_micro_batch(c, Device::cpu(), one_gpu(1e12)).tokens, kUsual);
  EXPECT_EQ(choose(c, 0).tokens, kUsual);
  EXPECT_TRUE(base::contains(choose(c, 0).why, "not known"));
  c.parallel.device_gib = 150;  // what a rank may have, whatever is there
  EXPECT_EQ(choose_micro_batch(c, Device::cuda(), cluster_of(c, 1, 1)).tokens, 256 * 3276);
  EXPECT_EQ(choose(tiny_config(), 1e12).tokens, kUsual);    // a few hundred tokens
  c.train.arena_gib = 1.0001 * planned_bytes(c, 0) / kGib;  // much more than any step takes
  EXPECT_EQ(choose(c, 1e9).tokens, 256 * 3276);
  c.train.arena_gib = 1;
  EXPECT_EQ(choose(c, 1e12).tokens, kUsual);
  c.train.micro_batch_tokens = 12345;
  EXPECT_EQ(choose(c, 1e12).tokens, 12345);
}

/// What a trainer is made with is what was chosen.
TEST(MicroBatchTest, ThePlanOfARunHasTheChoice) {
  RunConfig c = tiny_config();
  Ranks alone;
  EXPECT_EQ(plan_for(c, alone, Device::cpu()).micro_batch_tokens, kUsual);
  EXPECT_FALSE(plan_for(c, alone, Device::cpu()).micro_batch_why.empty());
  c.train.micro_batch_tokens = 50;
  EXPECT_EQ(plan_for(c, alone, Device::cpu()).micro_batch_tokens, 50);
  EXPECT_EQ(Trainer(c, Device::cpu()).plan().micro_batch_tokens, 50);
}

}  // namespace
}  // namespace segue::train
