#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "attention/hstu_attention.h"
#include "attention/portable_kernel.h"
#include "base/bf16.h"
#include "base/hash.h"
#include "base/rng.h"
#include "base/test_util.h"
#include "ops/test_util.h"

namespace segue::attention {
namespace {

using ops::test::TestBed;

struct Case {
  std::string name;
  std::vector<int64_t> lengths;
  std::vector<int64_t> targets;  // empty: none
  HstuMask mask;
  int64_t heads = 2;
  int64_t dim = 128;
  double alpha_factor = 1;
  bool portable = false;  // on the kernels for GPUs that are not Hopper
};

std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.name; }

constexpr float kUntouched = -77;
constexpr int64_t kRowsBefore = 3, kRowsAfter = 2;

/// What both sides are computed from: packed rows u, v, q, k as a layer has them, in bf16 numbers.
struct Inputs {
  explicit Inputs(const Case& test_case, uint64_t seed = 1) : c(test_case) {
    offsets.push_back(kRowsBefore);
    int64_t longest = 1;
    for (const int64_t n : c.lengths) {
      offsets.push_back(offsets.back() + n);
      longest = std::max(longest, n);
    }
    rows = offsets.back() + kRowsAfter;
    width = c.heads * c.dim;
    packed = numbers(seed, rows * 4 * width);
    grad_o = numbers(seed + 1, rows * width);
    // Rows of no sequence hold what must never be looked at.
    const auto poison = [&](std::vector<float>& x, int64_t columns) {
      std::fill(x.end() - kRowsAfter * columns, x.end(), std::nanf(""));
    };
    poison(packed, 4 * width);
    poison(grad_o, width);
    alpha = c.alpha_factor / std::sqrt(static_cast<double>(c.dim));
    scale = 1.0 / static_cast<double>(longest);
  }

  /// Sums of four uniform numbers: near enough to normal ones, of deviation 1.
  static std::vector<float> numbers(uint64_t seed, int64_t count) {
    std::vector<float> x(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) {
      double sum = 0;
      for (int64_t k = 0; k < 4; ++k) sum += TestBed::number(seed, 4 * i + k);
      x[static_cast<size_t>(i)] = round_to_bf16(static_cast<float>(sum * 0.866));
    }
    return x;
  }

  const Case& c;
  std::vector<int64_t> offsets;
  int64_t rows = 0, width = 0;
  double alpha = 1, scale = 1;
  std::vector<float> packed, grad_o;
};

struct Results {
  std::vector<double> o, dq, dk, dv;  // rows x width, kUntouched where nothing was written
  std::vector<double> dbias;          // v, q, k
};

constexpr double kBiasBefore = 0.5;

/// dbias is what was there before and the sums of the stored columns. A sum of floats passes at
/// most 32 additions on its way, 17 of them inside a product (16 rows and what came before), which
/// cuts off where others round; the rest is four warps, rows of one warp, eight warps and the
/// result. Mode kBf16 of the CPU rounds the sum.
void expect_bias(const Inputs& in, const Results& r, bool rounds) {
  const std::vector<double>* parts[] = {&r.dv, &r.dq, &r.dk};
  ASSERT_EQ(r.dbias.size(), static_cast<size_t>(3 * in.width));
  for (int64_t i = 0; i < 3 * in.width; ++i) {
    const std::vector<double>& x = *parts[i / in.width];
    double sum = 0, size = 0;
    for (int64_t row = in.offsets.front(); row < in.offsets.back(); ++row) {
      const double value = x[static_cast<size_t>(row * in.width + i % in.width)];
      sum += value;
      size += std::abs(value);
    }
    const double bound =
        32 * 0x1p-23 * size + 0x1p-23 * kBiasBefore + (rounds ? 0x1p-8 * std::abs(sum) : 0);
    ASSERT_NEAR(r.dbias[static_cast<size_t>(i)], kBiasBefore + sum, bound) << "column " << i;
  }
}

/// A parameter that holds kBiasBefore everywhere, and its values as they are now.
Tensor make_bias(const Exec& exec, int64_t size) {
  const Tensor t = exec.statistic({size});
  dispatch_real(t.dtype, [&](auto zero) {
    const std::vector<decltype(zero)> values(static_cast<size_t>(size),
                                             static_cast<decltype(zero)>(kBiasBefore));
    copy_bytes(t.data, t.device, values.data(), Device::cpu(), static_cast<size_t>(t.bytes()),
               exec.stream);
    if (exec.stream != nullptr) exec.stream->synchronize();
  });
  return t;
}
std::vector<double> read_bias(const Exec& exec, const Tensor& t) {
  return dispatch_real(t.dtype, [&](auto zero) {
    std::vector<decltype(zero)> values(static_cast<size_t>(t.elements()));
    copy_bytes(values.data(), Device::cpu(), t.data, t.device, static_cast<size_t>(t.bytes()),
               exec.stream);
    if (exec.stream != nullptr) exec.stream->synchronize();
    return std::vector<double>(values.begin(), values.end());
  });
}

struct Gradients {
  Tensor dq, dk, dv, dbias;
};
void attend(const Exec& exec, const Case& c, const HstuAttentionParams& p, const Tensor& o,
            const Tensor& grad_o, const Gradients& g) {
#if SEGUE_HAS_CUDA
  if (c.portable && exec.device.is_cuda()) {
    ASSERT_TRUE(portable::supports(p));
    const Arena::Mark mark(*exec.arena);
    portable::forward(exec, p, o);
    return portable::backward(exec, p, grad_o, g.dq, g.dk, g.dv);
  }
#endif
  hstu_attention_forward(exec, p, o);
  hstu_attention_backward(exec, p, grad_o, g.dq, g.dk, g.dv, g.dbias);
}

/// Runs forward and backward with tensors on `bed`; `load(values)` puts numbers there and
/// `read(tensor)` gets them back.
template <class Load, class Read>
Results run(const Exec& exec, const Inputs& in, Load&& load, Read&& read) {
  const int64_t w = in.width;
  const auto part = [&](const Tensor& t, int64_t i) {
    return t.columns(i * w, w).split_columns(in.c.heads);
  };
  const Tensor packed = load(in.packed, 4 * w);
  const Tensor grad_o = load(in.grad_o, w);
  const Tensor o = load(std::vector<float>(static_cast<size_t>(in.rows * w), kUntouched), w);
  const Tensor grads =
      load(std::vector<float>(static_cast<size_t>(in.rows * 4 * w), kUntouched), 4 * w);
  HstuAttentionParams p;
  p.v = part(packed, 1);
  p.q = part(packed, 2);
  p.k = part(packed, 3);
  p.offsets = in.offsets;
  p.num_targets = in.c.targets;
  p.mask = in.c.mask;
  p.alpha = in.alpha;
  p.scale = in.scale;
  const Tensor dbias = make_bias(exec, 3 * w);
  const int64_t used = exec.arena->used();
  attend(exec, in.c, p, o.split_columns(in.c.heads), grad_o.split_columns(in.c.heads),
         {part(grads, 2), part(grads, 3), part(grads, 1), dbias});
  EXPECT_EQ(exec.arena->used(), used) << "scratch was kept";
  const std::vector<double> all = read(grads);
  const auto columns = [&](int64_t i) {
    std::vector<double> x;
    for (int64_t r = 0; r < in.rows; ++r) {
      const auto at = all.begin() + r * 4 * w + i * w;
      x.insert(x.end(), at, at + w);
    }
    return x;
  };
  for (const double x : columns(0)) EXPECT_EQ(x, double{kUntouched}) << "u was written";
  const Results r{read(o), columns(2), columns(3), columns(1), read_bias(exec, dbias)};
  if (!in.c.portable) expect_bias(in, r, exec.device.is_cpu() && exec.rounds_to_bf16());
  return r;
}

Results run_cpu(const Inputs& in, Precision precision) {
  TestBed bed(precision, int64_t{8} << 30);
  const auto load = [&](const std::vector<float>& values, int64_t columns) {
    const Tensor t = bed.zeros(bed.exec.dtype(), {in.rows, columns});
    dispatch_real(t.dtype, [&](auto zero) {
      std::copy(values.begin(), values.end(), t.span<decltype(zero)>().begin());
    });
    return t;
  };
  const auto read = [](const Tensor& t) {
    return dispatch_real(t.dtype, [&](auto zero) {
      const auto x = t.span<decltype(zero)>();
      return std::vector<double>(x.begin(), x.end());
    });
  };
  return run(bed.exec, in, load, read);
}

class GpuBed {
 public:
  explicit GpuBed(int64_t bytes) : stream_(Device::cuda()), arena_(Device::cuda(), bytes) {
    exec.arena = &arena_;
    exec.stream = &stream_;
    exec.device = Device::cuda();
    exec.precision = Precision::kBf16;
  }
  Exec exec;

 private:
  Stream stream_;
  Arena arena_;
};

/// `spare`: what the arena has beside the tensors; 0: plenty.
template <class T = bf16>
Results run_gpu(const Inputs& in, int64_t spare = 0) {
  const int64_t tensors = in.rows * in.width * 10 * 2 + 3 * in.width * 4 + 5 * 256;
  GpuBed bed(spare > 0 ? tensors + spare : int64_t{2} << 30);
  const auto load = [&](const std::vector<float>& values, int64_t columns) {
    std::vector<T> bits;
    for (const float x : values) bits.emplace_back(x);
    const Tensor t = bed.exec.arena->tensor(kDTypeOf<T>, {in.rows, columns});
    copy_bytes(t.data, t.device, bits.data(), Device::cpu(), bits.size() * 2, bed.exec.stream);
    bed.exec.stream->synchronize();
    return t;
  };
  const auto read = [&](const Tensor& t) {
    std::vector<T> bits(static_cast<size_t>(t.elements()));
    copy_bytes(bits.data(), Device::cpu(), t.data, t.device, bits.size() * 2, bed.exec.stream);
    bed.exec.stream->synchronize();
    std::vector<double> x;
    for (const T b : bits) x.push_back(double{static_cast<float>(b)});
    return x;
  };
  return run(bed.exec, in, load, read);
}

struct Errors {
  double plain, gpu, largest;
};

Errors errors(const std::vector<double>& exact, const std::vector<double>& plain,
              const std::vector<double>& gpu, const char* what) {
  Errors e{0, 0, 0};
  size_t reported = 0;
  for (size_t i = 0; i < exact.size(); ++i) {
    if (exact[i] == double{kUntouched}) {
      if (gpu[i] != exact[i] && reported++ < 5) {
        ADD_FAILURE() << what << ": written outside of all sequences, element " << i;
      }
      continue;
    }
    if (!std::isfinite(gpu[i]) && reported++ < 5) {
      ADD_FAILURE() << what << ": " << gpu[i] << " at element " << i;
    }
    e.plain = std::max(e.plain, std::abs(plain[i] - exact[i]));
    e.gpu = std::max(e.gpu, std::abs(gpu[i] - exact[i]));
    e.largest = std::max(e.largest, std::abs(exact[i]));
  }
  return e;
}

/// `finer`: by how much the type that the GPU rounds to is finer than the plain one's.
void expect_near(const Results& exact, const Results& plain, const Results& gpu, double finer = 1) {
  const Errors o = errors(exact.o, plain.o, gpu.o, "o");
  EXPECT_LE(o.gpu, 2 * o.plain / finer + 0x1p-10 * o.largest) << "o, plain " << o.plain;
  const auto gradient = [&](const auto& e, const char* what) {
    EXPECT_LE(e.gpu, 3 * e.plain / finer + 0x1p-10 * e.largest) << what << ", plain " << e.plain;
  };
  gradient(errors(exact.dq, plain.dq, gpu.dq, "dq"), "dq");
  gradient(errors(exact.dk, plain.dk, gpu.dk, "dk"), "dk");
  gradient(errors(exact.dv, plain.dv, gpu.dv, "dv"), "dv");
}

/// Longer than what the forward kernel for short sequences takes.
constexpr int64_t kLong = 1600;

std::vector<Case> cases() {
  const std::vector<int64_t> edges{0, 1, 2, 63, 64, 65, 0, 127, 128, 129, 200, 255, 256, 257, 300};
  const std::vector<int64_t> some{0, 1, 2, 1, 0, 65, 0, 3, 70, 1, 150, 0, 1, 20, 130};
  std::vector<Case> all;
  // 32 takes tiles of 64, as do all that are smaller; 256 the portable kernels.
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
  const auto everything = [&](const std::string& name, int64_t dim, bool portable) {
    all.push_back({name + std::to_string(dim), edges, some, {5, 17, 9, 4}, 3, dim, 1, portable});
  };
  for (const int64_t dim : {8, 16, 24, 40, 48, 56}) everything("everything_d", dim, false);
  for (const int64_t dim : {32, 64, 128}) everything("portable_everything_d", dim, true);
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
  for (const int64_t dim : {128, 64, 32}) {
    const Case c = mixed_case(dim);
    const Inputs in(c);
    const Results first = run_gpu(in);
    for (int i = 0; i < 5; ++i) expect_same_bits(run_gpu(in), first);
    expect_same_bits(run_gpu<f16>(in), run_gpu<f16>(in));
  }
}

/// A race shows once in many runs: a batch that keeps all multiprocessors busy, again and again.
TEST(GpuHstuAttentionBits, AreTheSameOverManyRuns) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
  const char* wanted = std::getenv("SEGUE_REPEATS");
  const int repeats = wanted != nullptr ? std::atoi(wanted) : 40;
  Case c{"busy", {}, {}, {}, 4, 128};
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

TEST(GpuHstuAttentionErrors, SayWhatIsSupported) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
  const Case c{"wide", {10}, {1}, {}, 2, 264};
  const Inputs in(c);
  const std::optional<Error> error = base::error_of([&] { run_gpu(in); });
  ASSERT_TRUE(error.has_value());
  EXPECT_EQ(error->code(), ErrorCode::kUnsupported);
  EXPECT_TRUE(base::contains(error->what(), "heads of at most 256 columns"));
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
         pick({8, 32, 48, 64, 64, 128, 128, 256})};
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
  return c;
}

TEST(GpuHstuAttentionRandom, IsAsNearToExactAsPlainBf16) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    const Case c = random_case(seed);
    SCOPED_TRACE(c.name);
    const Inputs in(c, seed);
    expect_near(run_cpu(in, Precision::kF64), run_cpu(in, Precision::kBf16), run_gpu(in));
    if (HasFailure()) return;
  }
}

TEST(GpuHstuAttentionLong, FourThousandRows) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
  const Case c{"long", {4096, 4095}, {1, 1}, {}, 1, 128};
  const Inputs in(c);
  expect_near(run_cpu(in, Precision::kF64), run_cpu(in, Precision::kBf16), run_gpu(in));
}

}  // namespace
}  // namespace segue::attention
