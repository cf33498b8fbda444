#include "data/synth/distribution.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.h"

namespace segue::data {
namespace {

constexpr double kErrors = 4.5;  // allowed distance in standard errors; draws are fixed, not flaky

std::vector<int64_t> sample(const Distribution& d, size_t n, uint64_t key = 1) {
  const Sampler sampler(d);
  std::vector<int64_t> values(n);
  for (size_t i = 0; i < n; ++i) values[i] = sampler(key, i);
  return values;
}

struct Moments {
  double mean = 0, std = 0;
};
template <class Range>
Moments moments(const Range& values) {
  double sum = 0, squares = 0;
  for (const auto v : values) {
    sum += static_cast<double>(v);
    squares += static_cast<double>(v) * static_cast<double>(v);
  }
  const auto n = static_cast<double>(values.size());
  return {sum / n, std::sqrt(squares / n - sum / n * (sum / n))};
}

double share(const std::vector<int64_t>& values, int64_t value) {
  return static_cast<double>(std::count(values.begin(), values.end(), value)) /
         static_cast<double>(values.size());
}

double share_error(double p, size_t n) {
  return kErrors * std::sqrt(p * (1 - p) / static_cast<double>(n));
}

std::vector<int64_t> histogram(const std::vector<int64_t>& values, int64_t low, int64_t high) {
  std::vector<int64_t> counts(static_cast<size_t>(high - low));
  for (const int64_t v : values) {
    EXPECT_TRUE(v >= low && v < high) << v;
    ++counts[static_cast<size_t>(v - low)];
  }
  return counts;
}

/// Pearson's statistic; its mean is the number of cells less one.
double chi_square(const std::vector<int64_t>& counts, const std::vector<double>& probabilities) {
  const auto n = static_cast<double>(std::accumulate(counts.begin(), counts.end(), int64_t{0}));
  double sum = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    const double expected = n * probabilities[i];
    sum += (static_cast<double>(counts[i]) - expected) *
           (static_cast<double>(counts[i]) - expected) / expected;
  }
  return sum;
}

double chi_square_limit(size_t cells) {
  const auto freedom = static_cast<double>(cells - 1);
  return freedom + kErrors * std::sqrt(2 * freedom);
}

Distribution make(DistributionKind kind, int64_t low, int64_t high, double mean, double std,
                  double alpha) {
  return {kind, low, high, mean, std, alpha};
}
Distribution uniform(int64_t low, int64_t high) {
  return make(DistributionKind::kUniform, low, high, 0, 0, 0);
}
Distribution zipf(int64_t low, int64_t high, double alpha) {
  return make(DistributionKind::kZipf, low, high, 0, 0, alpha);
}
Distribution zipf_bounded(int64_t low, int64_t high, double alpha) {
  return make(DistributionKind::kZipfBounded, low, high, 0, 0, alpha);
}

TEST(DistributionTest, UniformIsFlat) {
  const auto counts = histogram(sample(uniform(3, 20), 200'000), 3, 20);
  EXPECT_LT(chi_square(counts, std::vector<double>(17, 1.0 / 17)), chi_square_limit(17));
  const auto wide = sample(uniform(0, int64_t{1} << 62), 1000);
  EXPECT_NEAR(moments(wide).mean * 0x1p-62, 0.5, kErrors / std::sqrt(12.0 * 1000));
  EXPECT_EQ(sample(uniform(7, 8), 3), std::vector<int64_t>(3, 7));
}

TEST(DistributionTest, NormalClampsThenRoundsHalfToEven) {
  const auto always = [](double x, int64_t low, int64_t high) {
    return sample(make(DistributionKind::kNormal, low, high, x, 1e-300, 0), 1)[0];
  };
  EXPECT_EQ(always(0.5, 0, 0), 0);
  EXPECT_EQ(always(1.5, 0, 0), 2);
  EXPECT_EQ(always(2.5, 0, 0), 2);
  EXPECT_EQ(always(2.5000001, 0, 0), 3);
  EXPECT_EQ(always(3.7, 0, 3), 3);
  EXPECT_EQ(always(-5, 2, 0), 2);
  const auto values = sample(make(DistributionKind::kNormal, 0, 0, 1000, 50, 0), 100'000);
  EXPECT_NEAR(moments(values).mean, 1000, kErrors * 50 / std::sqrt(1e5));
  EXPECT_NEAR(moments(values).std, 50, kErrors * 50 / std::sqrt(2e5));
}

TEST(DistributionTest, LognormalHasTheMomentsOfTheValueItself) {
  const auto values = sample(make(DistributionKind::kLognormal, 0, 0, 512, 0, 0), 200'000);
  std::vector<double> logs;
  for (const int64_t v : values) logs.push_back(std::log(static_cast<double>(v)));
  EXPECT_NEAR(moments(logs).mean, 6.12675, kErrors * 0.47238 / std::sqrt(2e5));
  EXPECT_NEAR(moments(logs).std, 0.47238, kErrors * 0.47238 / std::sqrt(4e5));
  EXPECT_NEAR(moments(values).mean, 512, kErrors * 256 / std::sqrt(2e5));

  const auto clamped = sample(make(DistributionKind::kLognormal, 400, 600, 512, 300, 0), 1000);
  EXPECT_EQ(*std::ranges::min_element(clamped), 400);
  EXPECT_EQ(*std::ranges::max_element(clamped), 600);
}

TEST(DistributionTest, ZipfPilesUpAtBothEndsWhenClamped) {
  constexpr size_t kSamples = 400'000;
  const auto values = sample(zipf(1, 4096, 1.2), kSamples);
  EXPECT_NEAR(share(values, 1), 0.179, 0.0005 + share_error(0.179, kSamples));
  EXPECT_NEAR(share(values, 4096), 0.169, 0.0005 + share_error(0.169, kSamples));
  EXPECT_NEAR(moments(values).mean, 867, 0.5 + kErrors * 1551 / std::sqrt(4e5));
  EXPECT_NEAR(moments(values).std, 1551, 6);
}

TEST(DistributionTest, ZipfFollowsThePowerLaw) {
  constexpr size_t kSamples = 200'000;
  const std::pair<double, double> zetas[] = {
      {1.05, 20.58084430}, {1.5, 2.612375349}, {2.0, 1.644934067}, {4.0, 1.082323234}};
  for (const auto& [alpha, zeta] : zetas) {
    SCOPED_TRACE(alpha);
    const auto values = sample(zipf(10, 0, alpha), kSamples, 7);  // k = value - 9
    for (int64_t k = 1; k <= 6; ++k) {
      const double p = std::pow(static_cast<double>(k), -alpha) / zeta;
      EXPECT_NEAR(share(values, k + 9), p, share_error(p, kSamples)) << "k = " << k;
    }
    EXPECT_GE(*std::ranges::min_element(values), 10);
  }
}

TEST(DistributionTest, ZipfTailsOfAnyWeightAreSafe) {
  const auto values = sample(zipf(0, 0, 1.0001), 2000);
  for (const int64_t v : values) ASSERT_TRUE(v >= 0 && v < int64_t{1} << 62) << v;
  EXPECT_EQ(sample(zipf(5, 0, 64), 100), std::vector<int64_t>(100, 5));
}

TEST(DistributionTest, BoundedZipfIsExact) {
  constexpr int64_t kLow = 100, kHigh = 140;
  for (const double alpha : {0.3, 0.999999999, 1.0, 1.2, 2.5}) {
    SCOPED_TRACE(alpha);
    const auto values = sample(zipf_bounded(kLow, kHigh, alpha), 400'000, 3);
    auto counts = histogram(values, kLow, kHigh);
    std::ranges::sort(counts, std::greater<>());  // undoes the permutation, ties aside
    std::vector<double> p;
    for (int64_t k = 1; k <= kHigh - kLow; ++k)
      p.push_back(std::pow(static_cast<double>(k), -alpha));
    const double total = std::accumulate(p.begin(), p.end(), 0.0);
    for (double& x : p) x /= total;
    EXPECT_LT(chi_square(counts, p), chi_square_limit(p.size()));
  }
}

TEST(DistributionTest, BoundedZipfPermutesRanksTheSameWayForEveryKey) {
  for (const int64_t n : {1, 2, 3, 5, 16, 17, 1000}) {
    SCOPED_TRACE(n);
    // Nearly flat: every value must occur, or two ranks would share one.
    const auto counts =
        histogram(sample(zipf_bounded(0, n, 1e-9), static_cast<size_t>(40 * n)), 0, n);
    EXPECT_EQ(std::count(counts.begin(), counts.end(), 0), 0);
  }
  const auto most_frequent = [](uint64_t key) {
    const auto counts = histogram(sample(zipf_bounded(0, 1000, 1.5), 10'000, key), 0, 1000);
    return std::ranges::max_element(counts) - counts.begin();
  };
  EXPECT_EQ(most_frequent(1), most_frequent(2));
  EXPECT_NE(most_frequent(1), 0);
  for (const int64_t v : sample(zipf_bounded(0, int64_t{1} << 62, 0.5), 1000)) ASSERT_GE(v, 0);
}

TEST(DistributionTest, DrawsArePureFunctions) {
  for (const Distribution& d : {uniform(0, 1'000'000), zipf(0, 0, 1.1), zipf_bounded(0, 1000, 1.1),
                                make(DistributionKind::kNormal, 0, 0, 1000, 100, 0),
                                make(DistributionKind::kLognormal, 0, 0, 1000, 100, 0)}) {
    const Sampler a(d), b(d);
    int differs_by_key = 0;
    for (uint64_t i = 100; i-- > 0;) {
      EXPECT_EQ(a(5, i), b(5, i));
      differs_by_key += a(5, i) != a(6, i) ? 1 : 0;
    }
    EXPECT_GT(differs_by_key, 50);
    EXPECT_EQ(a(5, uint64_t{1} << 40), b(5, uint64_t{1} << 40));
  }
}

TEST(DistributionTest, ValidateSaysWhatIsWrong) {
  const auto message = [](const Distribution& d) -> std::string {
    try {
      d.validate("lengths");
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kConfig);
      return error.what();
    }
    return "no error";
  };
  const auto expect = [&](const Distribution& d, const char* part) {
    const std::string text = message(d);
    EXPECT_EQ(text.rfind("lengths: ", 0), 0u) << text;
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  expect(uniform(5, 5), "empty for low = 5, high = 5");
  expect(uniform(0, 0), "empty");
  expect(uniform(-1, 5), "`low`");
  expect(uniform(0, INT64_MAX), "2^62");
  expect(zipf_bounded(0, 0, 1), "empty");
  expect(zipf_bounded(0, 5, 0), "`alpha`");
  expect(zipf(0, 0, 1), "above 1");
  expect(zipf(0, 0, NAN), "`alpha`");
  Distribution wide;
  wide.kind = DistributionKind::kLognormal;
  wide.mean = 1e-3;
  wide.std = 1e300;
  expect(wide, "times `mean`");
  expect(zipf(9, 5, 2), "`high` = 5 is below `low` = 9");
  expect(make(DistributionKind::kNormal, 0, 0, 5, 0, 0), "`std`");
  expect(make(DistributionKind::kNormal, 0, 0, NAN, 1, 0), "finite");
  expect(make(DistributionKind::kLognormal, 0, 0, 0, 1, 0), "`mean`");
  expect(make(DistributionKind::kLognormal, 0, 0, 1, -1, 0), "`std`");
}

TEST(DistributionTest, ReadsFromConfig) {
  Distribution d;
  base::ConfigSources sources;
  sources.use_environment = false;
  sources.sets = {"kind=zipf_bounded", "low=1", "high=4096", "alpha=1.2"};
  base::load_config(d, sources);
  EXPECT_EQ(d.kind, DistributionKind::kZipfBounded);
  EXPECT_EQ(d.high, 4096);
  EXPECT_EQ(d.alpha, 1.2);
  EXPECT_NE(base::to_toml(d).find("\"zipf_bounded\""), std::string::npos);
}

}  // namespace
}  // namespace segue::data
