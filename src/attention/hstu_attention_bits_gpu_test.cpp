// Results of HSTU attention on a GPU, bit for bit.

#include <span>

#include "attention/hstu_attention_gpu_test_util.h"

namespace segue::attention {
namespace {

void expect_same_bits(const Results& a, const Results& b) {
  EXPECT_TRUE(a.o == b.o);
  EXPECT_TRUE(a.dq == b.dq);
  EXPECT_TRUE(a.dk == b.dk);
  EXPECT_TRUE(a.dv == b.dv);
  EXPECT_TRUE(a.dbias == b.dbias);
}

Case mixed_case(int64_t dim) {
  return {"mixed", {900, 3, 513, 2000, 1, 0, 777}, {1, 1, 40, 1, 1, 0, 2}, {.contextual_len = 6}, 4,
          dim};
}

TEST(GpuHstuAttentionBits, AreTheSameEveryTime) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
  for (const int64_t dim : {256, 192, 128, 96, 64, 32}) {
    const Case c = mixed_case(dim);
    const Inputs in(c);
    const Results first = run_gpu(in);
    for (int i = 0; i < 5; ++i) expect_same_bits(run_gpu(in), first);
    expect_same_bits(run_gpu<f16>(in), run_gpu<f16>(in));
  }
}

/// A race shows once in many runs: a batch that keeps all multiprocessors busy, again and again.
class GpuHstuAttentionRuns : public testing::TestWithParam<int64_t> {};
INSTANTIATE_TEST_SUITE_P(HeadDims, GpuHstuAttentionRuns, testing::Values(128, 256));

TEST_P(GpuHstuAttentionRuns, AreTheSameEachTime) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
  const char* wanted = std::getenv("SEGUE_REPEATS");
  const int repeats = wanted != nullptr ? std::atoi(wanted) : 40;
  Case c{"busy", {}, {}, {}, 4, GetParam()};
  for (uint64_t b = 0; b < 64; ++b) {
    c.lengths.push_back(9 + static_cast<int64_t>(base::splitmix64(b) % 800));
    c.targets.push_back(1);
  }
  const Inputs in(c);
  GpuBed bed(int64_t{4} << 30);
  const int64_t w = in.width;
  const auto load = [&](const std::vector<float>& values, int64_t columns) {
    std::vector<bf16> bits(values.begin(), values.end());
    const Tensor t = bed.exec.arena->tensor(DType::kBf16, {in.rows, columns});
    copy_bytes(t.data, t.device, bits.data(), Device::cpu(), bits.size() * 2, bed.exec.stream);
    bed.exec.stream->synchronize();
    return t;
  };
  const auto part = [&](const Tensor& t, int64_t i) {
    return t.columns(i * w, w).split_columns(in.c.heads);
  };
  const Tensor packed = load(in.packed, 4 * w), grad_o = load(in.grad_o, w);
  HstuAttentionParams p;
  p.v = part(packed, 1);
  p.q = part(packed, 2);
  p.k = part(packed, 3);
  p.offsets = in.offsets;
  p.num_targets = in.c.targets;
  p.alpha = in.alpha;
  p.scale = in.scale;
  std::array<Tensor, 4> out;  // o, dq, dk, dv
  for (Tensor& t : out) t = bed.exec.arena->tensor(DType::kBf16, {in.rows, w});
  const Tensor dbias = bed.exec.statistic({3 * w});
  std::vector<double> first_bias;
  int different_biases = 0;
  const Buffer host(Device::cpu(), out[0].bytes(), Purpose::kScratch, HostMemory::kPinned);
  const auto hash = [&](const Tensor& t) {
    copy_bytes(host.data(), Device::cpu(), t.data, t.device, static_cast<size_t>(t.bytes()),
               bed.exec.stream);
    bed.exec.stream->synchronize();
    const auto used = static_cast<size_t>(in.offsets.back() * w * 2);
    const size_t before = static_cast<size_t>(in.offsets.front() * w * 2);
    return base::xxh64(static_cast<const char*>(host.data()) + before, used - before);
  };
  std::array<uint64_t, 4> first{};
  std::array<int, 4> different{};
  for (int i = 0; i < repeats; ++i) {
    zero(dbias, bed.exec.stream);
    hstu_attention_forward(bed.exec, p, out[0].split_columns(in.c.heads));
    hstu_attention_backward(bed.exec, p, grad_o.split_columns(in.c.heads),
                            out[1].split_columns(in.c.heads), out[2].split_columns(in.c.heads),
                            out[3].split_columns(in.c.heads), dbias);
    const std::vector<double> bias = read_bias(bed.exec, dbias);
    if (i == 0) first_bias = bias;
    different_biases += bias == first_bias ? 0 : 1;
    for (size_t k = 0; k < out.size(); ++k) {
      const uint64_t bits = hash(out[k]);
      if (i == 0) first[k] = bits;
      different[k] += bits == first[k] ? 0 : 1;
    }
  }
  EXPECT_EQ(different, (std::array<int, 4>{})) << "of " << repeats << ": o, dq, dk, dv";
  EXPECT_EQ(different_biases, 0) << "of " << repeats;
}

TEST(GpuHstuAttentionBits, DoNotDependOnTheRoomForScoreGradients) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
  const Case c = mixed_case(128);
  const Inputs in(c);
  const Results roomy = run_gpu(in);
  // 2,000 rows alone leave 18 MiB, all sequences 28: two chunks, or more.
  expect_same_bits(run_gpu(in, int64_t{32} << 20), roomy);
  // No room at all: scores are computed twice, and dq is rounded elsewhere.
  const Results narrow = run_gpu(in, int64_t{9} << 20);
  EXPECT_TRUE(narrow.dk == roomy.dk);
  EXPECT_TRUE(narrow.dv == roomy.dv);
  expect_near(run_cpu(in, Precision::kF64), run_cpu(in, Precision::kBf16), narrow);
}

/// Wide heads have the same choice of chunks, and without room the portable kernels.
TEST(GpuHstuAttentionBits, OfWideHeadsDoNotDependOnTheRoomForScoreGradients) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
  const Case c = mixed_case(256);
  const Inputs in(c);
  expect_same_bits(run_gpu(in, int64_t{48} << 20), run_gpu(in));
  expect_near(run_cpu(in, Precision::kF64), run_cpu(in, Precision::kBf16),
              run_gpu(in, int64_t{9} << 20));
}

TEST(GpuHstuAttentionErrors, AForcedKernelHasNoSubstitute) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
  Case c = mixed_case(256);
  c.kernel = Kernel::kSm90;
  const Inputs in(c);
  const std::optional<Error> error = base::error_of([&] { run_gpu(in, int64_t{9} << 20); });
  ASSERT_TRUE(error.has_value());
  EXPECT_EQ(error->code(), ErrorCode::kConfig);
  // 2,000 rows are 32 blocks, 528 on and below the diagonal and 32 for context, in 4 heads.
  EXPECT_TRUE(base::contains(error->what(), "needs 17 MiB of scratch")) << error->what();
  EXPECT_TRUE(base::contains(error->what(), "kernel = \"auto\"")) << error->what();
}

/// Small batches come as an argument of the kernels, and the last sequences of one length tile by
/// tile: whichever way, a sequence has the bits that it has alone.
TEST(GpuHstuAttentionBits, DoNotDependOnTheOrderOfTiles) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
  constexpr int64_t kRows = 600;  // 20 tiles
  for (const int64_t context : {0, 6}) {
    const Case alone{"alone", {kRows}, {1}, {.contextual_len = context}, 4, 64};
    const Inputs one(alone);
    const Results expected = run_gpu(one);
    for (const int64_t sequences : {6, 7, 40}) {
      SCOPED_TRACE(sequences);
      Case c = alone;
      c.lengths.assign(static_cast<size_t>(sequences), kRows);
      c.targets.assign(static_cast<size_t>(sequences), 1);
      Inputs in(c);
      const auto repeat = [&](const std::vector<float>& from, std::vector<float>& to, int64_t w) {
        const auto begin = from.begin() + kRowsBefore * w;
        for (const int64_t row : std::span(in.offsets).first(c.lengths.size())) {
          std::copy_n(begin, kRows * w, to.begin() + row * w);
        }
      };
      repeat(one.packed, in.packed, 4 * in.width);
      repeat(one.grad_o, in.grad_o, in.width);
      const Results all = run_gpu(in);
      const auto expect_same = [&](const std::vector<double>& expect,
                                   const std::vector<double>& some) {
        const auto begin = expect.begin() + kRowsBefore * in.width;
        for (const int64_t row : std::span(in.offsets).first(c.lengths.size())) {
          EXPECT_TRUE(std::equal(begin, begin + kRows * in.width, some.begin() + row * in.width));
        }
      };
      expect_same(expected.o, all.o);
      expect_same(expected.dq, all.dq);
      expect_same(expected.dk, all.dk);
      expect_same(expected.dv, all.dv);
    }
  }
}

TEST(GpuHstuAttentionBits, DoNotDependOnALongNeighbour) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
  const Case short_ones{"short", {500, 129, 64, 300}, {1, 1, 2, 70}, {}, 2, 128};
  Case all = short_ones;  // one more, so long that another kernel is chosen
  all.lengths.push_back(kLong);
  all.targets.push_back(1);
  const Inputs in(short_ones);
  Inputs more(all);
  more.scale = in.scale;
  const auto rows = static_cast<size_t>(in.offsets.back());
  const auto width = static_cast<size_t>(in.width);
  std::copy_n(in.packed.begin(), rows * 4 * width, more.packed.begin());
  std::copy_n(in.grad_o.begin(), rows * width, more.grad_o.begin());
  const Results alone = run_gpu(in), together = run_gpu(more);
  EXPECT_TRUE(std::equal(alone.o.begin(), alone.o.begin() + static_cast<int64_t>(rows * width),
                         together.o.begin()));
}

}  // namespace
}  // namespace segue::attention
