#include "data/log/id_dictionary.h"

#include <algorithm>
#include <random>
#include <set>

#include <gtest/gtest.h>

#include "base/file.h"
#include "base/npy.h"
#include "base/test_util.h"

namespace segue::data {
namespace {

using base::contains;
using base::error_of;

constexpr int64_t kPlenty = 1 << 30;

TEST(IdDictionary, NumbersDoNotDependOnTheOrder) {
  std::mt19937_64 random(1);
  std::set<std::string> distinct;
  while (distinct.size() < 5000) distinct.insert("id-" + std::to_string(random()));
  std::vector<std::string> values(distinct.begin(), distinct.end());
  for (int trial = 0; trial < 3; ++trial) {
    std::vector<std::string> shuffled = values;
    shuffled.insert(shuffled.end(), values.begin(), values.begin() + 1000);
    std::shuffle(shuffled.begin(), shuffled.end(), random);
    IdDictionary dictionary("uid", kPlenty);
    for (const std::string& value : shuffled) dictionary.add(value);
    dictionary.finish();
    ASSERT_EQ(dictionary.size(), 5000);
    for (size_t i = 0; i < values.size(); ++i) {
      ASSERT_EQ(dictionary.find(values[i]), static_cast<int64_t>(i));
    }
    EXPECT_EQ(dictionary.find("id-x"), -1);
  }
}

TEST(IdDictionary, IntegersByValueHoweverTheyCame) {
  IdDictionary texts("uid", kPlenty), integers("uid", kPlenty);
  for (const char* value : {"10", "9", "-3", "1000000000000"}) texts.add(value);
  for (const int64_t value : {int64_t{1000000000000}, int64_t{9}, int64_t{-3}, int64_t{10}}) {
    integers.add(value);
  }
  const std::string folder = base::temp_path("store");
  const StoreStage stage(folder, StageMode::kNew);
  for (IdDictionary* d : {&texts, &integers}) {
    d->finish();
    EXPECT_EQ(d->find(-3), 0);
    EXPECT_EQ(d->find("9"), 1);
    EXPECT_EQ(d->find(10), 2);
    EXPECT_EQ(d->find("1000000000000"), 3);
    const base::FileRecord record = d->write(stage, "user");
    EXPECT_EQ(record.name, "segue/user_ids.npy");
    const base::NpyFile file(stage.path(record.name));
    const auto values = file.as<int64_t>("<i8");
    EXPECT_EQ(std::vector<int64_t>(values.begin(), values.end()),
              (std::vector<int64_t>{-3, 9, 10, 1000000000000}));
  }
}

TEST(IdDictionary, TextsByTheirBytes) {
  IdDictionary d("uid", kPlenty);
  for (const char* value : {"b", "10", "9", "\xc3\xa4", "a"}) d.add(value);
  d.finish();
  const StoreStage stage(base::temp_path("store"), StageMode::kNew);
  const base::FileRecord record = d.write(stage, "user");
  EXPECT_EQ(record.name, "segue/user_ids.txt");
  EXPECT_EQ(base::read_file(stage.path(record.name)), "10\n9\na\nb\n\xc3\xa4\n");
}

TEST(IdDictionary, Limits) {
  auto error = error_of([] {
    IdDictionary d("uid", 100000);
    for (int i = 0; i < 100000; ++i) d.add(i);
  });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::kOutOfMemory);
  EXPECT_TRUE(contains(error->what(), "\"uid\""));
  error = error_of([] {  // few, but long
    IdDictionary d("uid", 1 << 20);
    for (int i = 0; i < 100; ++i) d.add(std::string(100'000, 'x') + std::to_string(i));
  });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::kOutOfMemory);
  error = error_of([] { IdDictionary("uid", kPlenty).add("a\nb"); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::kCorrupt);
}

}  // namespace
}  // namespace segue::data
