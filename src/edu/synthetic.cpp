#include <algorithm>
#include <numeric>

#include "edu/ratings.h"
#include "edu/workload.h"

namespace segue::edu {
namespace {

constexpr double kMeanAge = 34, kAgeDeviation = 12;

/// What a label depends on: P(positive) = sigmoid(the sum of all that applies).
struct Truth {
  explicit Truth(uint64_t seed) {
    Draws draw(seed, 1);
    const auto fill = [&](std::vector<double>& to, int64_t count, double deviation) {
      to.resize(static_cast<size_t>(count));
      for (double& value : to) value = deviation * draw.normal();
    };
    fill(genres, kGenres, 2.2);
    fill(users, kUserRows, 0.9);
    fill(items, kItemRows, 0.5);
    fill(occupations, kOccupationRows, 0.6);
  }
  double score(const User& user, size_t number, size_t item,
               const std::array<float, kGenres>& flags) const {
    double sum = users[number] + items[item] + occupations[static_cast<size_t>(user.occupation)] +
                 1.1 * (static_cast<double>(user.age) - kMeanAge) / kAgeDeviation +
                 (user.male ? 0.6 : -0.6);
    for (size_t g = 0; g < flags.size(); ++g)
      sum += genres[g] * (static_cast<double>(flags[g]) - kFlagged);
    return sum + 0.2;
  }

  static constexpr double kFlagged = 0.2;  // share of genre flags that are set
  std::vector<double> genres, users, items, occupations;
};

/// How many items each user rates: at least 20, a few very many, as in MovieLens.
std::vector<int64_t> activity(uint64_t seed, int64_t ratings) {
  constexpr int64_t kLeast = 20, kMost = kItemRows * 2 / 5;
  Draws draw(seed, 2);
  std::vector<double> weight(kUserRows);
  for (double& w : weight) w = std::exp(1.1 * draw.normal());
  const double sum = std::accumulate(weight.begin(), weight.end(), 0.0);
  const int64_t least = std::min(kLeast, ratings / kUserRows);
  const auto to_share = static_cast<double>(ratings - least * kUserRows);
  std::vector<int64_t> count(kUserRows);
  int64_t left = ratings;
  for (size_t u = 0; u < count.size(); ++u) {
    count[u] = std::min(kMost, least + static_cast<int64_t>(to_share * weight[u] / sum));
    left -= count[u];
  }
  // What rounding and the limit have left over goes round.
  for (size_t u = 0; left > 0; u = (u + 1) % count.size()) {
    if (count[u] < kMost) ++count[u], --left;
  }
  return count;
}

/// `count` different items, popular ones more often.
std::vector<int32_t> choose_items(Draws& draw, const std::vector<double>& popularity,
                                  int64_t count) {
  std::vector<std::pair<double, int32_t>> key(popularity.size());
  for (size_t i = 0; i < key.size(); ++i) {
    key[i] = {-std::log(1 - draw.uniform()) / popularity[i], static_cast<int32_t>(i)};
  }
  std::partial_sort(key.begin(), key.begin() + count, key.end());
  std::vector<int32_t> items;
  for (int64_t i = 0; i < count; ++i) items.push_back(key[static_cast<size_t>(i)].second);
  return items;
}

}  // namespace

Ratings make_ratings(uint64_t seed, int64_t count) {
  Ratings out;
  out.source = "made up";
  Draws draw(seed, 3);
  for (int64_t u = 0; u < kUserRows; ++u) {
    const double age = std::clamp(kMeanAge + kAgeDeviation * draw.normal(), 7.0, 73.0);
    out.users.push_back({.age = static_cast<float>(std::floor(age)),
                         .male = draw.uniform() < 0.71,
                         .occupation = static_cast<int32_t>(draw.below(kOccupationRows))});
  }
  std::vector<double> popularity;
  for (int64_t i = 0; i < kItemRows; ++i) {
    std::array<float, kGenres> flags{};
    for (float& flag : flags) flag = draw.uniform() < Truth::kFlagged ? 1.0F : 0.0F;
    out.genres.push_back(flags);
    popularity.push_back(std::pow(static_cast<double>(draw.below(kItemRows)) + 10, -0.8));
  }

  const Truth truth(seed);
  const std::vector<int64_t> counts = activity(seed, count);
  for (size_t u = 0; u < counts.size(); ++u) {
    int64_t time = draw.below(20'000'000);
    for (const int32_t item : choose_items(draw, popularity, counts[u])) {
      const auto i = static_cast<size_t>(item);
      const double score = truth.score(out.users[u], u, i, out.genres[i]);
      const double p = 1 / (1 + std::exp(-score));
      const bool positive = draw.uniform() < p;
      const bool outspoken = draw.uniform() < (positive ? p : 1 - p) / 2;
      const int32_t stars = positive ? (outspoken ? 5 : 4) : (outspoken ? 1 : 3);
      time += 1 + draw.below(600);
      out.ratings.push_back({static_cast<int32_t>(u), item, stars, time});
      out.truth.push_back(p);
    }
  }
  return out;
}

}  // namespace segue::edu
