#include "data/numbers/taste_groups.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "base/rng.h"
#include "data/numbers/tally.h"

namespace segue::data {
namespace {

constexpr size_t kGroups = kMostTasteGroups;
constexpr int64_t kFewestUsers = 10;  // of a value
constexpr int kPasses = 12;
constexpr double kRandomness = 3;  // of log-likelihoods, in the first pass; none in the last third
constexpr double kLeastVariance = 0.05, kMostVariance = 10;
constexpr double kWeightOfUsers = 5, kWeightOfValues = 10;  // tries of the wider share

double logit(double share) { return std::log(share / (1 - share)); }

/// How much better than expected a user does with a value, in log-odds, and how well that is known.
struct Liking {
  int32_t user = 0;
  float excess = 0, precision = 0;
};

class Groups {
 public:
  Groups(std::span<const UserValueTally> tallies, std::span<uint8_t> groups) : groups_(groups) {
    likings_.reserve(tallies.size());
    begins_.resize(groups.size() + 1);
    Tally all;
    for (const UserValueTally& t : tallies) {
      const auto user = static_cast<size_t>(t.user);
      if (user >= users_.size()) users_.resize(user + 1);
      const Tally tally = {t.positive, t.all};
      users_[user] += tally;
      all += tally;
    }
    const double share = all.share(0.5, 1);
    for (size_t begin = 0, end = 0; begin < tallies.size(); begin = end) {
      Tally of_value;
      for (; end < tallies.size() && tallies[end].value == tallies[begin].value; ++end) {
        of_value += {tallies[end].positive, tallies[end].all};
      }
      const double base = logit(of_value.share(share, kWeightOfValues)) - logit(share);
      for (size_t i = begin; i < end; ++i) likings_.push_back(liking(tallies[i], base, share));
      begins_[static_cast<size_t>(tallies[begin].value) + 1] = static_cast<int64_t>(end - begin);
    }
    set_variance();
    for (size_t v = 0; v < groups.size(); ++v) begins_[v + 1] += begins_[v];
    for (size_t v = 0; v < groups.size(); ++v) {
      if (users_of(v) >= kFewestUsers) order_.push_back(v);
      if (users_of(v) < kFewestUsers) groups_[v] = 0;
    }
    std::ranges::stable_sort(order_, [&](size_t a, size_t b) { return users_of(a) > users_of(b); });
    tastes_.resize(users_.size());
    for (Tastes& t : tastes_) t.variance.fill(1 / prior_precision_);
    for (const size_t v : order_) add(v, 1);
  }

  /// One pass over all values; says how many moved.
  int64_t pass(int number, double randomness) {
    int64_t moved = 0;
    for (const size_t v : order_) {
      add(v, -1);
      // Those in use, and one that is empty: the others would be as good.
      const auto empty = static_cast<size_t>(std::ranges::find(values_, 0) - values_.begin());
      while (ends_ > 0 && values_[ends_ - 1] == 0) --ends_;
      const size_t candidates = std::max(ends_, std::min(empty + 1, kGroups));
      const std::array<float, kGroups> fit = fits(v, candidates);
      double best = -std::numeric_limits<double>::infinity();
      uint8_t to = 0;
      for (size_t g = 0; g < candidates; ++g) {
        if (values_[g] == 0 && g != empty) continue;
        const double value = fit[g] + (randomness > 0 ? randomness * gumbel(number, v, g) : 0);
        if (value <= best) continue;
        best = value;
        to = static_cast<uint8_t>(g + 1);
      }
      moved += to != groups_[v] ? 1 : 0;
      groups_[v] = to;
      add(v, 1);
    }
    return moved;
  }

 private:
  /// What is known of a user's taste for each group.
  struct Tastes {
    std::array<float, kGroups> mean{}, variance{};
    std::array<float, kGroups> weighted{}, precision{};  // sums that these are made of
  };

  Liking liking(const UserValueTally& t, double base, double share) const {
    const double own = users_[static_cast<size_t>(t.user)].share(share, kWeightOfUsers);
    // Rounded to 0 or 1 it would make infinities.
    constexpr double kLeast = 1e-6;
    const double expected = std::clamp(1 / (1 + std::exp(-base - logit(own))), kLeast, 1 - kLeast);
    const double information = t.all * expected * (1 - expected);
    return {t.user, static_cast<float>((t.positive - t.all * expected) / information),
            static_cast<float>(information)};
  }

  /// Likings vary more than chance alone makes them: half of that is taken for tastes for groups,
  /// half for what a value has beyond its group, which a liking cannot be told from.
  void set_variance() {
    double squares = 0, weights = 0;
    for (const Liking& l : likings_) {
      const double information = l.precision, r = l.excess * information;
      squares += r * r - information;
      weights += information * information;
    }
    const double variance =
        std::clamp(weights > 0 ? squares / weights : 0, kLeastVariance, kMostVariance) / 2;
    prior_precision_ = static_cast<float>(1 / variance);
    for (Liking& l : likings_) l.precision = static_cast<float>(1 / (1 / l.precision + variance));
  }
  int64_t users_of(size_t v) const { return begins_[v + 1] - begins_[v]; }
  std::span<const Liking> likings_of(size_t v) const {
    return std::span(likings_).subspan(static_cast<size_t>(begins_[v]),
                                       static_cast<size_t>(users_of(v)));
  }

  void add(size_t v, float times) {
    if (groups_[v] == 0) return;
    const size_t g = groups_[v] - 1u;
    values_[g] += times > 0 ? 1 : -1;
    ends_ = std::max(ends_, g + 1);
    for (const Liking& l : likings_of(v)) {
      Tastes& t = tastes_[static_cast<size_t>(l.user)];
      t.weighted[g] += times * l.precision * l.excess;
      t.precision[g] += times * l.precision;
      t.variance[g] = 1 / (t.precision[g] + prior_precision_);
      t.mean[g] = t.weighted[g] * t.variance[g];
    }
  }

  /// Log-likelihood of what was done with the value, but for a constant, if it were in each group.
  std::array<float, kGroups> fits(size_t v, size_t candidates) const {
    std::array<float, kGroups> sum{};
    const size_t end = std::min((candidates + 7) / 8 * 8, kGroups);  // whole vectors
    for (const Liking& l : likings_of(v)) {
      const Tastes& t = tastes_[static_cast<size_t>(l.user)];
      for (size_t g = 0; g < end; ++g) {
        // -d^2 / (variance + 1 / precision) - log(1 + variance * precision), halved; the logarithm
        // of 1 + z is z (6 + z) / (6 + 4 z), to 1 % where z <= 1, and both share one division.
        const float d = l.excess - t.mean[g], z = t.variance[g] * l.precision;
        const float one = 1 + z, other = 6 + 4 * z;
        sum[g] -= 0.5f * (d * d * l.precision * other + z * (6 + z) * one) / (one * other);
      }
    }
    return sum;
  }

  /// The largest of values with such noise is each with the odds of its likelihood.
  static double gumbel(int number, size_t v, size_t g) {
    const base::PhiloxCounter random = base::philox(
        {static_cast<uint32_t>(v), static_cast<uint32_t>(g), static_cast<uint32_t>(number), 0},
        base::philox_key(0, 0));
    const double uniform = (random.x + 0.5) * 0x1p-32;
    return -std::log(-std::log(uniform));
  }

  std::span<uint8_t> groups_;
  std::vector<Liking> likings_;  // by value
  std::vector<int64_t> begins_;  // by value, one more at the end
  std::vector<size_t> order_;    // values of enough users
  std::vector<Tally> users_;
  std::vector<Tastes> tastes_;
  std::array<int64_t, kGroups> values_{};  // in each group
  size_t ends_ = 0;                        // behind the last group that was in use
  float prior_precision_ = 0;              // of a taste
};

}  // namespace

void find_taste_groups(std::span<const UserValueTally> tallies, std::span<uint8_t> groups) {
  constexpr int kRandomPasses = kPasses * 2 / 3;
  Groups all(tallies, groups);
  for (int pass = 0; pass < kPasses; ++pass) {
    const double left = 1 - static_cast<double>(pass) / kRandomPasses;
    const int64_t moved = all.pass(pass, std::max(0.0, kRandomness * left));
    if (left <= 0 && moved == 0) return;
  }
}

}  // namespace segue::data
