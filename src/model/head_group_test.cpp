#include "model/head_group.h"

#include <vector>

#include <gtest/gtest.h>

#include "base/test_util.h"
#include "ops/test_util.h"

namespace segue::model {
namespace {

using ops::test::TestBed;
constexpr double kTimeout = 20;

BatchLayout layout_of(const std::vector<int64_t>& lengths, const std::vector<int64_t>& targets) {
  BatchLayout layout;
  for (size_t b = 0; b < lengths.size(); ++b) {
    layout.token_offsets.push_back(layout.token_offsets.back() + lengths[b]);
    layout.candidate_offsets.push_back(layout.candidate_offsets.back() + targets[b]);
  }
  return layout;
}

TEST(HeadGroupTest, RanksAgreeAboutCutsAndKnowAllSequences) {
  comm::run_as_threads(3, kTimeout, [](comm::World& world) {
    const auto group = HeadGroup::open(world, Device::cpu(), 3, 6);
    EXPECT_EQ(group->own_heads(), 2);
    // Rank 0 has three cuts, rank 1 nothing, rank 2 one.
    BatchLayout layout;
    if (world.rank() == 0) layout = layout_of({5, 4, 3, 2}, {1, 0, 2, 1});
    if (world.rank() == 2) layout = layout_of({3, 0, 4}, {3, 0, 1});
    constexpr int64_t kCut = 7;
    std::vector<MicroBatch> cuts = cut_micro_batches(layout, kCut);
    const std::vector<GroupSequences> g = group->agree(layout, cuts);

    ASSERT_EQ(cuts.size(), 3u);
    ASSERT_EQ(g.size(), 3u);
    int64_t samples = 0;
    for (const MicroBatch& cut : cuts) {
      if (cut.count == 0) {
        EXPECT_EQ(cut.first, layout.samples());
      } else {
        EXPECT_EQ(cut.first, samples);
      }
      samples += cut.count;
    }
    EXPECT_EQ(samples, layout.samples());
    EXPECT_EQ(g[0].offsets, (std::vector<int64_t>{0, 5, 8, 8, 12}));
    EXPECT_EQ(g[0].num_targets, (std::vector<int64_t>{1, 3, 0, 1}));
    EXPECT_EQ(g[0].rank_offsets, (std::vector<int64_t>{0, 5, 5, 12}));
    EXPECT_EQ(g[0].most_targets(), 3);
    EXPECT_EQ(g[1].offsets, (std::vector<int64_t>{0, 4, 7}));
    EXPECT_EQ(g[1].rank_offsets, (std::vector<int64_t>{0, 7, 7, 7}));
    EXPECT_EQ(g[2].offsets, (std::vector<int64_t>{0, 2}));
    // The longest without targets has 4 (rank 0), the most targets are 3 (rank 2).
    EXPECT_EQ(layout.most_before_targets, 4);
    EXPECT_EQ(layout.most_targets, 3);
  });
}

TEST(HeadGroupTest, NothingAnywhereIsLegal) {
  comm::run_as_threads(2, kTimeout, [](comm::World& world) {
    const auto group = HeadGroup::open(world, Device::cpu(), 2, 2);
    BatchLayout layout;
    layout.most_targets = 3;
    std::vector<MicroBatch> cuts;
    EXPECT_TRUE(group->agree(layout, cuts).empty());
    EXPECT_TRUE(cuts.empty());
    EXPECT_EQ(layout.most_targets, 3);
  });
}

/// What stands at a token, head and column of matrix `m`.
double mark(int64_t m, int64_t token, int64_t head, int64_t column) {
  return static_cast<double>(((m * 100 + token) * 10 + head) * 10 + column);
}

TEST(HeadGroupTest, HeadsScatterAndGather) {
  constexpr int kRanks = 2;
  constexpr int64_t kHeads = 4;
  const std::vector<int64_t> dims = {3, 2};
  for (const std::vector<int64_t>& tokens :
       {std::vector<int64_t>{5, 2}, std::vector<int64_t>{0, 3}, std::vector<int64_t>{0, 0}}) {
    GroupSequences g;
    for (const int64_t n : tokens) g.rank_offsets.push_back(g.rank_offsets.back() + n);
    g.offsets.push_back(g.rank_offsets.back());
    comm::run_as_threads(kRanks, kTimeout, [&](comm::World& world) {
      TestBed bed(Precision::kF32, int64_t{1} << 20);
      const auto group = HeadGroup::open(world, Device::cpu(), kRanks, kHeads);
      const int64_t mine = tokens[static_cast<size_t>(world.rank())];
      std::vector<Tensor> own, back;
      for (size_t m = 0; m < dims.size(); ++m) {
        // Columns of something wider, as those of uvqk are.
        const int64_t width = kHeads * dims[m];
        own.push_back(bed.zeros(DType::kF32, {mine, width + 5}).columns(2, width));
        back.push_back(bed.zeros(DType::kF32, {mine, width + 5}).columns(1, width));
        for (int64_t t = 0; t < mine; ++t) {
          for (int64_t c = 0; c < width; ++c) {
            own[m].row<float>(t)[c] =
                static_cast<float>(mark(static_cast<int64_t>(m), g.first_token(world.rank()) + t,
                                        c / dims[m], c % dims[m]));
          }
        }
      }
      const Tensor all = bed.zeros(DType::kF32, {g.tokens(), 2 * (dims[0] + dims[1])});
      group->scatter_heads(bed.exec, g, own, all);
      for (int64_t t = 0; t < g.tokens(); ++t) {
        const float* value = all.row<float>(t);
        for (size_t m = 0; m < dims.size(); ++m) {
          for (int64_t c = 0; c < 2 * dims[m]; ++c) {
            EXPECT_EQ(*value++, mark(static_cast<int64_t>(m), t, 2 * world.rank() + c / dims[m],
                                     c % dims[m]));
          }
        }
      }
      group->gather_heads(bed.exec, g, all, back);
      for (size_t m = 0; m < dims.size(); ++m) {
        for (int64_t t = 0; t < mine; ++t) {
          for (int64_t c = 0; c < own[m].size(1); ++c) {
            EXPECT_EQ(back[m].row<float>(t)[c], own[m].row<float>(t)[c]);
          }
        }
      }
      EXPECT_EQ(group->heads().traffic().collectives, 2);
      // Half of the heads goes to the other rank; on the way back half of the heads of its tokens.
      const int64_t row_bytes = 2 * (dims[0] + dims[1]) * 4;
      EXPECT_EQ(group->heads().traffic().bytes_sent, g.tokens() * row_bytes);
    });
  }
}

TEST(HeadGroupTest, GroupsThatDoNotDivideAreRefused) {
  comm::run_as_threads(2, kTimeout, [](comm::World& world) {
    const auto expect_refused = [&](int ranks, int64_t heads, const char* why) {
      const auto e = base::error_of([&] { HeadGroup::open(world, Device::cpu(), ranks, heads); });
      ASSERT_TRUE(e);
      EXPECT_EQ(e->code(), ErrorCode::kConfig);
      EXPECT_TRUE(base::contains(e->what(), why));
    };
    expect_refused(2, 3, "model.heads = 3 cannot be shared by a tensor-parallel group of 2 ranks");
    expect_refused(3, 3, "2 ranks cannot be cut into tensor-parallel groups of 3");
    expect_refused(0, 3, "groups of 0");
  });
}

TEST(HeadGroupTest, APeerThatDoesNotComeIsAnError) {
  const auto run = [] {
    comm::run_as_threads(2, kTimeout, [](comm::World& world) {
      const auto group = HeadGroup::open(world, Device::cpu(), 2, 2);
      if (world.rank() == 1) fail(ErrorCode::kInvalidArgument, "this sample is too long");
      BatchLayout layout;
      std::vector<MicroBatch> cuts;
      try {
        group->agree(layout, cuts);
        ADD_FAILURE() << "no error";
      } catch (const Error& e) {
        EXPECT_EQ(e.code(), ErrorCode::kPeer);
        EXPECT_TRUE(base::contains(e.what(), "tensor parallel plan 0"));
      }
    });
  };
  const auto e = base::error_of(run);
  ASSERT_TRUE(e);
  EXPECT_TRUE(base::contains(e->what(), "this sample is too long"));
}

}  // namespace
}  // namespace segue::model
