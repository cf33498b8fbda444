#include "base/json_line.h"

#include <limits>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace segue::base {
namespace {

using Json = nlohmann::ordered_json;

TEST(JsonLineTest, WritesOneLineInTheOrderOfTheCalls) {
  Json line;
  line["z"] = 0.1;
  line["b"] = true;
  line["text"] = "q\"\\\n";
  line["inner"]["x"] = int64_t{-3};
  line["list"] = std::vector<int64_t>{1, -2};
  line["nothing"] = std::vector<int64_t>{};
  line["a"] = Json::object();
  EXPECT_EQ(json_line(line), R"({"z": 0.1, "b": true, "text": "q\"\\\n", "inner": {"x": -3}, )"
                             R"("list": [1, -2], "nothing": [], "a": {}})");
  EXPECT_EQ(Json::parse(json_line(line)), line);
}

TEST(JsonLineTest, NumbersComeBackAndWhatIsNoneIsNull) {
  using Limits = std::numeric_limits<double>;
  for (const double value : {1.0 / 3, 1e-5, -0.0, 5e-324, Limits::max(), 123456789.125, 1e22}) {
    EXPECT_EQ(Json::parse(json_line(value)).get<double>(), value);
  }
  EXPECT_EQ(json_line(20.0), "20");
  EXPECT_EQ(Json::parse(json_line(std::numeric_limits<int64_t>::min())).get<int64_t>(),
            std::numeric_limits<int64_t>::min());
  EXPECT_EQ(json_line({{"nan", Limits::quiet_NaN()}, {"inf", -Limits::infinity()}}),
            R"({"nan": null, "inf": null})");
}

// Names of files and runs are bytes of somebody else's.
TEST(JsonLineTest, TextThatIsNoUtf8) {
  EXPECT_EQ(json_line({{"path\xff", "a\xc3"}}), "{\"path\xef\xbf\xbd\": \"a\xef\xbf\xbd\"}");
}

}  // namespace
}  // namespace segue::base
