#include "attention/hstu_attention_gpu_test_util.h"

namespace segue::attention {
namespace {

std::vector<Case> cases() {
  const std::vector<int64_t> edges{0, 1, 2, 63, 64, 65, 0, 127, 128, 129, 200, 255, 256, 257, 300};
  const std::vector<int64_t> some{0, 1, 2, 1, 0, 65, 0, 3, 70, 1, 150, 0, 1, 20, 130};
  std::vector<Case> all;
  // 32 takes tiles of 64, as do all that are smaller; 96 those of 128, 160 and 192 those of 256.
  for (const int64_t dim : {128, 64, 32, 256}) {
    const std::string d = "_d" + std::to_string(dim);
    const std::vector<Case> here{
        {"causal" + d, edges, {}, {}, 2, dim},
        {"targets" + d, edges, some, {}, 2, dim},
        {"groups" + d, edges, some, {.target_group = 3}, 1, dim},
        {"context" + d, edges, some, {.contextual_len = 8}, 2, dim},
        {"long_context" + d, edges, some, {.contextual_len = 70}, 1, dim},
        {"longer_context" + d, edges, some, {.contextual_len = 140}, 1, dim},
        {"window" + d, edges, some, {.window = 10}, 2, dim},
        {"window_full" + d, edges, some, {.window = 65, .min_full = 20}, 1, dim},
        {"everything" + d, edges, some, {5, 17, 9, 4}, 3, dim},
        {"semilocal" + d, edges, some, {.window = 10, .global_prefix = 70}, 2, dim},
        {"semilocal_all" + d, edges, some, {5, 17, 9, 4, 40}, 1, dim},
        {"long_semilocal" + d,
         {kLong, 900},
         {1, 70},
         {.window = 200, .global_prefix = 130},
         1,
         dim},
        {"long_semilocal_all" + d, {kLong}, {100}, {4, 200, 150, 1, 300}, 1, dim},
        {"long" + d, {kLong, 1}, {1, 1}, {}, 1, dim},
        {"context_in_long" + d, {kLong, 700}, {3, 200}, {.contextual_len = 9}, 1, dim},
        {"long_window" + d, {kLong}, {100}, {4, 200, 150, 1}, 1, dim},
        {"many_targets" + d, {kLong}, {1000}, {.target_group = 2}, 1, dim},
        {"steep" + d, {500, 130}, {1, 1}, {}, 2, dim, 4},
        {"steeper" + d, {500, 130}, {1, 1}, {}, 2, dim, 8},
        {"many" + d, std::vector<int64_t>(300, 70), std::vector<int64_t>(300, 1), {}, 4, dim},
    };
    all.insert(all.end(), here.begin(), here.end());
  }
  const auto everything = [&](const std::string& name, int64_t dim, Kernel kernel) {
    all.push_back({name + std::to_string(dim), edges, some, {5, 17, 9, 4, 40}, 3, dim, 1, kernel});
  };
  for (const int64_t dim : {8, 16, 24, 40, 48, 56, 72, 96, 120, 136, 160, 192, 248}) {
    everything("everything_d", dim, Kernel::kAuto);
  }
  for (const int64_t dim : {32, 64, 128, 256}) {
    everything("portable_everything_d", dim, Kernel::kPortable);
    everything("plain_everything_d", dim, Kernel::kPlain);
  }
  return all;
}

class GpuHstuAttention : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
  }
};

TEST_P(GpuHstuAttention, IsAsNearToExactAsPlainBf16) {
  const Inputs in(GetParam());
  const Results exact = run_cpu(in, Precision::kF64), plain = run_cpu(in, Precision::kBf16);
  expect_near(exact, plain, run_gpu(in));
  // f16 has three bits more than bf16; numbers of bf16 are numbers of f16, too.
  constexpr double kFiner = 8;
  expect_near(exact, plain, run_gpu<f16>(in), kFiner);
}

INSTANTIATE_TEST_SUITE_P(Masks, GpuHstuAttention, testing::ValuesIn(cases()),
                         [](const auto& test) { return test.param.name; });

TEST(GpuHstuAttentionErrors, SayWhatIsSupported) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
  const Case c{"wide", {10}, {1}, {}, 2, 264};
  const Inputs in(c);
  const std::optional<Error> error = base::error_of([&] { run_gpu(in); });
  ASSERT_TRUE(error.has_value());
  EXPECT_EQ(error->code(), ErrorCode::kUnsupported);
  EXPECT_TRUE(base::contains(error->what(), "heads of at most 256 columns"));
}

TEST(GpuHstuAttentionErrors, SayWhatAForcedKernelNeeds) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
  const Case c{"narrow", {10}, {1}, {}, 2, 48, 1, Kernel::kPortable};
  const Inputs in(c);
  const std::optional<Error> error = base::error_of([&] { run_gpu(in); });
  ASSERT_TRUE(error.has_value());
  EXPECT_EQ(error->code(), ErrorCode::kConfig);
  EXPECT_TRUE(base::contains(error->what(), "heads of 32, 64, 128 or 256 columns"));
}

/// Lengths around the edges of tiles, masks, targets and heads by chance; a failure names its seed.
Case random_case(uint64_t seed) {
  uint64_t draws = 0;
  const auto draw = [&](int64_t n) {
    return static_cast<int64_t>(base::splitmix64(seed * 1000 + draws++) % static_cast<uint64_t>(n));
  };
  const auto pick = [&](std::initializer_list<int64_t> from) {
    return from.begin()[draw(static_cast<int64_t>(from.size()))];
  };
  Case c{"seed " + std::to_string(seed),          {}, {}, {}, 1 + draw(4),
         pick({8, 32, 48, 64, 96, 128, 192, 256})};
  const int64_t sequences = 1 + draw(12);
  for (int64_t b = 0; b < sequences; ++b) {
    const int64_t edge = pick({0, 1, 32, 64, 128, 192, 256, 384, 512, 640});
    const int64_t n = std::max<int64_t>(0, edge + draw(3) - 1);
    c.lengths.push_back(n);
    c.targets.push_back(n == 0 ? 0 : draw(std::min<int64_t>(n, pick({2, 9, 200})) + 1));
  }
  if (draw(4) == 0) c.targets.clear();
  if (draw(2) == 0) c.mask.contextual_len = pick({1, 8, 63, 64, 65, 129});
  if (draw(2) == 0) c.mask.window = pick({1, 63, 64, 65, 128, 300});
  if (draw(3) == 0) c.mask.min_full = pick({1, 20, 128});
  if (draw(3) == 0) c.mask.target_group = pick({2, 3, 64});
  if (c.mask.window > 0 && draw(2) == 0) c.mask.global_prefix = pick({1, 20, 64, 65, 128, 200});
  return c;
}

TEST(GpuHstuAttentionRandom, IsAsNearToExactAsPlainBf16) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    const Case c = random_case(seed);
    SCOPED_TRACE(c.name);
    const Inputs in(c, seed);
    expect_near(run_cpu(in, Precision::kF64), run_cpu(in, Precision::kBf16), run_gpu(in));
    if (HasFailure()) return;
  }
}

TEST(GpuHstuAttentionLong, FourThousandRows) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
  for (const int64_t dim : {128, 256}) {
    const Case c{"long", {4096, 4095}, {1, 1}, {}, 1, dim};
    const Inputs in(c);
    expect_near(run_cpu(in, Precision::kF64), run_cpu(in, Precision::kBf16), run_gpu(in));
  }
}

}  // namespace
}  // namespace segue::attention
