#include "base/json_line.h"

#include <vector>

#include <gtest/gtest.h>

namespace segue::base {
namespace {

TEST(JsonLineTest, WritesOneObject) {
  JsonLine inner;
  inner.add("x", int64_t{-3});
  JsonLine line;
  line.add("a", 0.1).add("b", true).add("c", "q\"\\\n").add("d", inner).add("e", 1.0 / 0.0);
  EXPECT_EQ(line.text(), R"({"a": 0.1, "b": true, "c": "q\"\\\u000a", "d": {"x": -3}, "e": null})");
  EXPECT_EQ(JsonLine().text(), "{}");
  EXPECT_EQ(JsonLine().add("l", std::vector<int64_t>{1, -2}).text(), R"({"l": [1, -2]})");
  EXPECT_EQ(JsonLine().add("l", std::vector<int64_t>{}).text(), R"({"l": []})");
}

}  // namespace
}  // namespace segue::base
