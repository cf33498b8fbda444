#include "model/number_forms.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "base/test_util.h"

namespace segue::model {
namespace {

using base::contains;
using base::message_of;

const std::vector<std::string> kColumns = {"plain", "price", "place", "speed"};
const std::vector<NumberForm> kForms = {
    {.column = "place", .shape = NumberShape::kBuckets, .bounds = {1, 3.5, 10}},
    {.column = "price", .shape = NumberShape::kLog, .offset = 0.5, .scale = 2},
    {.column = "speed", .offset = 10, .scale = 0.25}};

template <class T>
std::vector<T> row_of(const std::vector<float>& values) {
  const NumberEncoder encoder(kColumns, kForms);
  std::vector<T> row(static_cast<size_t>(numbers_width(kColumns, kForms)), T{-7});
  T* to = row.data();
  for (size_t c = 0; c < encoder.columns(); ++c) to = encoder.put(c, values[c], to);
  EXPECT_EQ(to, row.data() + row.size());
  return row;
}

TEST(NumberForms, AreWhatTheConfigSays) {
  EXPECT_EQ(numbers_width(kColumns, kForms), 7);
  EXPECT_EQ(numbers_width(kColumns, {}), 4);
  const std::vector<double> row = row_of<double>({0.3f, 19, 3.5f, 12});
  EXPECT_EQ(row[0], static_cast<double>(0.3f)) << "as it is";
  EXPECT_DOUBLE_EQ(row[1], 2 * (std::log(20.0) - 0.5));
  EXPECT_EQ(std::vector<double>(row.begin() + 2, row.begin() + 6),
            (std::vector<double>{0, 0, 1, 0}));
  EXPECT_DOUBLE_EQ(row[6], 0.5);
  const std::vector<float> narrow = row_of<float>({0.3f, 19, 3.5f, 12});
  for (size_t i = 0; i < row.size(); ++i) EXPECT_EQ(narrow[i], static_cast<float>(row[i]));
}

TEST(NumberForms, BucketsBeginAtTheirBounds) {
  const auto bucket = [](float x) {
    const std::vector<float> row = row_of<float>({0, 0, x, 0});
    return std::vector<float>(row.begin() + 2, row.begin() + 6);
  };
  EXPECT_EQ(bucket(-1e30f), (std::vector<float>{1, 0, 0, 0}));
  EXPECT_EQ(bucket(0.99f), (std::vector<float>{1, 0, 0, 0}));
  EXPECT_EQ(bucket(1), (std::vector<float>{0, 1, 0, 0}));
  EXPECT_EQ(bucket(10), (std::vector<float>{0, 0, 0, 1}));
  EXPECT_EQ(bucket(1e30f), (std::vector<float>{0, 0, 0, 1}));
}

TEST(NumberForms, LogarithmsHaveASign) {
  EXPECT_FLOAT_EQ(row_of<float>({0, -19, 0, 0})[1],
                  static_cast<float>(2 * (-std::log(20.0) - 0.5)));
}

TEST(NumberForms, WhatIsMissingIsZero) {
  const float missing = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(row_of<float>({missing, missing, missing, missing}), std::vector<float>(7, 0.f));
}

TEST(NumberForms, MistakesAreNamed) {
  const auto message = [](NumberForm form) {
    const std::vector<NumberForm> forms = {std::move(form)};
    return message_of(ErrorCode::kConfig, [&] { validate_forms(forms, kColumns); });
  };
  validate_forms(kForms, kColumns);
  EXPECT_TRUE(contains(message({.column = "prize"}), "did you mean `price`?"));
  EXPECT_TRUE(contains(message({.column = "price", .scale = 0}), "scale not 0"));
  EXPECT_TRUE(
      contains(message({.column = "price", .shape = NumberShape::kBuckets}), "needs bounds"));
  EXPECT_TRUE(contains(message({.column = "price", .bounds = {1}}), "shape = \"buckets\""));
  EXPECT_TRUE(contains(
      message({.column = "price", .shape = NumberShape::kBuckets, .bounds = {2, 2}}), "must rise"));
  const std::vector<NumberForm> twice = {{.column = "price"}, {.column = "price"}};
  EXPECT_TRUE(contains(message_of(ErrorCode::kConfig, [&] { validate_forms(twice, kColumns); }),
                       "two forms"));
}

}  // namespace
}  // namespace segue::model
