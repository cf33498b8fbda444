#include "data/numbers/taste_groups.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <random>

#include <gtest/gtest.h>

namespace segue::data {
namespace {

/// Users with a taste for each of some groups and for each value, and what they did with values.
struct Made {
  std::vector<UserValueTally> tallies;  // by value
  std::vector<int> truth;               // group of each value
};

Made make(uint64_t seed, int users, int values, int groups, int values_of_user) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  Made made;
  for (int v = 0; v < values; ++v) made.truth.push_back(static_cast<int>(random() % groups));
  for (int u = 0; u < users; ++u) {
    std::vector<double> tastes(static_cast<size_t>(groups));
    for (double& taste : tastes) taste = normal(random);
    const double own = normal(random);
    for (int i = 0; i < values_of_user; ++i) {
      const auto v = static_cast<int32_t>(random() % static_cast<uint64_t>(values));
      const double odds = own + tastes[static_cast<size_t>(made.truth[static_cast<size_t>(v)])];
      const double p = 1 / (1 + std::exp(-odds - normal(random)));
      const auto liked = std::binomial_distribution<uint32_t>(5, p)(random);
      made.tallies.push_back({u, v, liked, 5});
    }
  }
  std::ranges::stable_sort(made.tallies, {}, &UserValueTally::value);
  return made;
}

/// The share of values whose group has mostly values of theirs.
double purity(const Made& made, const std::vector<uint8_t>& groups) {
  std::map<int, std::map<int, int>> table;
  for (size_t v = 0; v < groups.size(); ++v) {
    if (groups[v] > 0) ++table[groups[v]][made.truth[v]];
  }
  int most = 0;
  for (const auto& [group, of] : table) {
    most += std::ranges::max_element(of, {}, [](const auto& e) { return e.second; })->second;
  }
  return static_cast<double>(most) / static_cast<double>(groups.size());
}

TEST(TasteGroups, AreFound) {
  for (const uint64_t seed : {1, 2, 3}) {
    SCOPED_TRACE(seed);
    const Made made = make(seed, 1000, 120, 8, 30);
    std::vector<uint8_t> groups(120);
    find_taste_groups(made.tallies, groups);
    EXPECT_GE(purity(made, groups), 0.95);
    EXPECT_LE(std::ranges::max(groups), kMostTasteGroups);
    std::vector<uint8_t> used = groups;
    std::ranges::sort(used);
    used.erase(std::unique(used.begin(), used.end()), used.end());
    EXPECT_LE(used.size(), 12U) << "groups that nobody needs stay empty";
    std::vector<uint8_t> again(120);
    find_taste_groups(made.tallies, again);
    EXPECT_EQ(groups, again);
  }
}

TEST(TasteGroups, AFewUsersSayNothing) {
  Made made = make(4, 200, 20, 3, 10);
  // Of value 7 nine users are left, of value 8 none.
  int left = 0;
  std::erase_if(made.tallies, [&](const UserValueTally& t) {
    return t.value == 8 || (t.value == 7 && ++left > 9);
  });
  std::vector<uint8_t> groups(25, 1);
  find_taste_groups(made.tallies, groups);
  EXPECT_EQ(groups[7], 0);
  EXPECT_EQ(groups[8], 0);
  EXPECT_EQ(groups[24], 0) << "a value that nobody knows";
  EXPECT_GT(groups[0], 0);
  std::vector<uint8_t> none;
  find_taste_groups({}, none);
}

/// Everything liked or nothing: odds stay finite, and values that are alike come together or not,
/// but are somewhere.
TEST(TasteGroups, LabelsOfOneClass) {
  for (const bool liked : {false, true}) {
    Made made = make(5, 100, 10, 2, 10);
    for (UserValueTally& t : made.tallies) t.positive = liked ? t.all : 0;
    std::vector<uint8_t> groups(10);
    find_taste_groups(made.tallies, groups);
    for (const uint8_t group : groups) EXPECT_GT(group, 0);
  }
}

/// An expected share that rounds to 1 leaves tastes for all other values finite.
TEST(TasteGroups, AValueThatEverybodyAlwaysLikes) {
  constexpr uint32_t kTimes = 4'000'000'000;
  Made made = make(6, 1000, 120, 8, 30);
  for (int u = 0; u < 1000; ++u) made.tallies.push_back({u, 120, kTimes, kTimes});
  std::vector<uint8_t> groups(121);
  find_taste_groups(made.tallies, groups);
  EXPECT_GT(groups.back(), 0);
  groups.pop_back();
  EXPECT_GE(purity(made, groups), 0.9);
}

}  // namespace
}  // namespace segue::data
