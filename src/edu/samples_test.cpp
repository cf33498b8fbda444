#include "edu/samples.h"

#include <algorithm>
#include <filesystem>
#include <map>

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/file.h"
#include "base/test_util.h"
#include "edu/key_hash.h"

namespace segue::edu {
namespace {

TEST(EduSyntheticTest, HasTheShapeOfMovielens) {
  const Ratings data = make_ratings(1);
  EXPECT_EQ(data.ratings.size(), 100'000U);
  EXPECT_EQ(data.users.size(), 943U);
  EXPECT_EQ(data.genres.size(), 1682U);
  EXPECT_EQ(data.truth.size(), data.ratings.size());
  std::map<std::pair<int32_t, int32_t>, int> seen;
  for (const Rating& r : data.ratings) {
    ASSERT_TRUE(r.user >= 0 && r.user < 943 && r.item >= 0 && r.item < 1682);
    ASSERT_TRUE(r.stars >= 1 && r.stars <= 5);
    EXPECT_EQ((++seen[{r.user, r.item}]), 1);
  }
}

TEST(EduSyntheticTest, IsAFunctionOfItsSeed) {
  const Ratings a = make_ratings(3, 20'000), b = make_ratings(3, 20'000),
                c = make_ratings(4, 20'000);
  EXPECT_EQ(a.truth, b.truth);
  EXPECT_NE(a.truth, c.truth);
}

TEST(EduSyntheticTest, LabelsComeAtTheirProbabilities) {
  const Ratings data = make_ratings(2);
  double expected = 0, found = 0, middle = 0, middle_found = 0;
  for (size_t i = 0; i < data.ratings.size(); ++i) {
    const double p = data.truth[i], label = data.ratings[i].positive() ? 1 : 0;
    expected += p;
    found += label;
    if (p < 0.3 || p > 0.7) continue;
    middle += p;
    middle_found += label;
  }
  EXPECT_NEAR(found / expected, 1, 0.01);
  EXPECT_NEAR(middle_found / middle, 1, 0.05);
}

class EduSamplesTest : public testing::Test {
 protected:
  /// One user with ratings at times 10, 20, 20, 30, another with one.
  static Ratings tiny() {
    Ratings data;
    data.users = {{30, true, 2}, {50, false, 5}};
    data.genres.resize(10);
    data.ratings = {{0, 1, 5, 10}, {0, 2, 1, 20}, {0, 3, 4, 20}, {0, 4, 2, 30}, {1, 5, 3, 5}};
    return data;
  }
  static std::vector<int64_t> crosses(const Samples& s, int64_t sample, int64_t bag) {
    const auto begin = s.crosses.begin() + (bag * s.count() + sample) * s.history;
    return {begin, begin + s.history};
  }
};

TEST_F(EduSamplesTest, HistoriesAreEarlierRatingsNewestFirst) {
  const Dataset data = make_dataset(tiny(), 1, 3, Split::kByTime);
  ASSERT_EQ(data.train.count(), 4);  // the oldest: item 5 of user 1, then items 1, 2, 3 of user 0
  EXPECT_EQ(crosses(data.train, 0, 0), (std::vector<int64_t>{-1, -1, -1}));
  EXPECT_EQ(crosses(data.train, 2, 0), (std::vector<int64_t>{pack_key(0, 1), -1, -1}));
  // Of the same second: not earlier.
  EXPECT_EQ(crosses(data.train, 3, 1), (std::vector<int64_t>{pack_key(3, 1), -1, -1}));
  ASSERT_EQ(data.validation.count(), 1);
  EXPECT_EQ(crosses(data.validation, 0, 2),
            (std::vector<int64_t>{pack_key(4, 3, 4), pack_key(4, 2, 1), pack_key(4, 1, 5)}));
  EXPECT_EQ(data.validation.ids, (std::vector<int64_t>{0, 4, 2}));
}

TEST_F(EduSamplesTest, ALabelOfValidationReachesNoFeature) {
  Ratings data = tiny();
  const Dataset before = make_dataset(data, 1, 3, Split::kByTime);
  data.ratings[3].stars = 5;  // the newest one, which is validated on
  const Dataset after = make_dataset(data, 1, 3, Split::kByTime);
  EXPECT_NE(before.validation.labels, after.validation.labels);
  EXPECT_EQ(before.validation.dense, after.validation.dense);
  EXPECT_EQ(before.validation.crosses, after.validation.crosses);
  EXPECT_EQ(before.train.dense, after.train.dense);
}

TEST_F(EduSamplesTest, NoFutureEntersAHistory) {
  const Ratings ratings = make_ratings(5, 20'000);
  const Dataset data = make_dataset(ratings, 5, 20);
  EXPECT_EQ(data.train.count() + data.validation.count(), 20'000);
  std::map<std::pair<int64_t, int64_t>, int64_t> time;
  for (const Rating& r : ratings.ratings) time[{r.user, r.item}] = r.time;
  for (const Samples* s : {&data.train, &data.validation}) {
    for (int64_t i = 0; i < s->count(); ++i) {
      const int64_t user = s->ids[static_cast<size_t>(i)];
      const int64_t now = time[{user, s->ids[static_cast<size_t>(s->count() + i)]}];
      for (const int64_t key : crosses(*s, i, 0)) {
        if (key < 0) continue;
        EXPECT_EQ(key & ((1 << 21) - 1), user);
        EXPECT_LT((time[{user, key >> 21}]), now);
      }
    }
  }
  EXPECT_GT(data.bayes(), data.majority() + 0.2);
}

/// Files like those of MovieLens-100K, with few lines.
class EduMovielensTest : public testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::create_directories(folder_);
    std::string users, items, ratings;
    const char* words[] = {"writer", "artist", "none"};
    for (int u = 1; u <= 3; ++u)
      users += std::to_string(u) + "|2" + std::to_string(u) + "|" + (u == 2 ? "F" : "M") + "|" +
               words[u - 1] + "|00000\n";
    for (int i = 1; i <= 50; ++i) {
      items += std::to_string(i) + "|Am\xe9lie (" + std::to_string(i) +
               ")|01-Jan-1995||http://x|0|1|0|0|0|1|0|0|0|0|0|0|0|0|0|0|0|0|0\n";
      for (int u = 1; u <= 3; ++u)
        ratings += std::to_string(u) + "\t" + std::to_string(i) + "\t" +
                   std::to_string(1 + (u + i) % 5) + "\t" + std::to_string(1000 + i) + "\n";
    }
    write("u.user", users);
    write("u.item", items);
    write("u.data", ratings);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  void write(const std::string& name, const std::string& text) {
    base::write_file(folder_ + "/" + name, text);
  }
  std::string message() {
    try {
      read_movielens(folder_);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }
  std::string folder_ = base::temp_path("movielens");
};

TEST_F(EduMovielensTest, ReadsWordsAndFlags) {
  const Ratings data = read_movielens(folder_);
  ASSERT_EQ(data.ratings.size(), 150U);
  EXPECT_EQ(data.ratings[0].user, 0);
  EXPECT_EQ(data.ratings[0].stars, 3);
  // Occupations are words; they are counted in alphabetical order.
  EXPECT_EQ(data.users[0].occupation, 2);
  EXPECT_EQ(data.users[1].occupation, 0);
  EXPECT_EQ(data.users[2].occupation, 1);
  EXPECT_FALSE(data.users[1].male);
  EXPECT_EQ(data.genres[0][1], 1.0F);
  EXPECT_EQ(data.genres[0][5], 1.0F);
  EXPECT_TRUE(data.truth.empty());
  const Dataset samples = make_dataset(data, 1);
  EXPECT_EQ(samples.train.count(), 120);
  EXPECT_EQ(samples.bayes(), 0);
}

TEST_F(EduMovielensTest, SaysWhereAFileIsWrong) {
  write("u.data", "1\t2\t3\n");
  EXPECT_NE(message().find("u.data:1: 3 fields where 4"), std::string::npos) << message();
  write("u.data", "1\t2\t9\t4\n");
  EXPECT_NE(message().find("`9`, not a whole number from 1 to 5"), std::string::npos) << message();
  write("u.data", "1\t9999\t3\t4\n");
  EXPECT_NE(message().find("9999"), std::string::npos) << message();
  write("u.user", "1|24|X|writer|0\n");
  EXPECT_NE(message().find("u.user:1"), std::string::npos) << message();
  std::filesystem::remove(folder_ + "/u.item");
  write("u.user", "1|24|M|writer|0\n");
  EXPECT_NE(message().find("u.item: not found"), std::string::npos) << message();
}

}  // namespace
}  // namespace segue::edu
