#include "data/log/log_schema.h"

#include <cmath>
#include <string>

#include <gtest/gtest.h>

#include "base/test_util.h"

namespace segue::data {
namespace {

using base::contains;
using base::error_of;

TEST(LogSchema, YambdaPresets) {
  for (const std::string size : {"50m", "500m", "5b"}) {
    const LogSchema c = LogSchema::preset("yambda-" + size);
    c.validate();
    EXPECT_EQ(c.label, size);
    EXPECT_EQ(c.events, "flat/" + size + "/multi_event.parquet");
    EXPECT_EQ(base::to_toml(c.samples()), base::to_toml(SampleSchema::yambda()));
  }
  const auto error = error_of([] { LogSchema::preset("yambda-5m"); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::kConfig);
  EXPECT_TRUE(contains(error->what(), "did you mean"));
}

TEST(LogSchema, YambdaPools) {
  const EventRules rules(LogSchema::preset("yambda-5b"));
  const auto bits = [&rules](uint8_t kind, float value) {
    const Event e = {.value = value, .kind = kind};
    int set = 0;
    for (size_t p = 0; p < rules.num_pools(); ++p)
      set |= static_cast<int>(rules.in_pool(p, e)) << p;
    return set;
  };
  EXPECT_EQ(bits(0, 50), 1);
  EXPECT_EQ(bits(0, 1000), 1);
  EXPECT_EQ(bits(0, 49), 4);
  EXPECT_EQ(bits(0, 0), 4);
  EXPECT_EQ(bits(0, Event::kNoValue), 4);
  EXPECT_EQ(bits(1, Event::kNoValue), 2);
  EXPECT_EQ(bits(1, 90), 2);
  for (const uint8_t kind : {2, 3, 4}) EXPECT_EQ(bits(kind, 90), 0);
  for (uint8_t kind = 0; kind < 5; ++kind) {
    EXPECT_EQ(rules.may_be_anchor({.kind = kind}), kind == 0);
  }
}

/// Values are float, thresholds are written in decimal.
TEST(LogSchema, AValueAtAThresholdIsNotBelowIt) {
  for (const double threshold : {0.1, 0.2, 0.3, 0.6, 0.7, 3.5, 4.1, 16777217.0}) {
    LogSchema schema;
    schema.pools = {{.name = "high", .bit = 1, .min_value = threshold},
                    {.name = "low", .bit = 2, .below_value = threshold}};
    const EventRules rules(schema);
    const Event at = {.value = static_cast<float>(threshold)};
    EXPECT_TRUE(rules.in_pool(0, at)) << threshold;
    EXPECT_FALSE(rules.in_pool(1, at)) << threshold;
    const Event below = {.value = std::nextafter(at.value, 0.f)};
    EXPECT_FALSE(rules.in_pool(0, below)) << threshold;
    EXPECT_TRUE(rules.in_pool(1, below)) << threshold;
  }
}

TEST(LogSchema, PoolsByFlags) {
  LogSchema schema;
  schema.flags = {"click", "like"};
  schema.pools = {{.name = "like", .flag = "like"}};
  const EventRules rules(schema);
  EXPECT_FALSE(rules.in_pool(0, {.value = 1}));
  EXPECT_TRUE(rules.in_pool(0, {.value = 2}));
  EXPECT_TRUE(rules.in_pool(0, {.value = 3}));
  EXPECT_FALSE(rules.in_pool(0, {}));
}

TEST(LogSchema, EveryMistakeIsNamed) {
  LogSchema c = LogSchema::preset("yambda-50m");
  c.events.clear();
  c.time_unit_seconds = 0.3;
  c.csv_separator.clear();
  c.flags = {"is_like"};
  c.kinds.push_back("like");
  c.anchor_kinds.push_back("play");
  c.pools[0].bit = 3;
  c.pools[1].kinds = {"love"};
  c.pools[2].below_value = -1;
  c.pools.push_back({.name = "bad name", .bit = 4, .flag = "nothing"});
  c.label_pool = "listen";
  c.attributes[1].name = "artist";
  c.attributes[1].value.clear();
  c.train_days = -1;
  const auto error = error_of([&c] { c.validate(); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::kConfig);
  for (const char* part :
       {"events:", "time_unit_seconds = 0.3", "csv_separator", "value and flags exclude",
        "kind \"like\" appears twice", "no kind \"play\"", "bit = 3 is no power of two",
        "no kind \"love\"", "to below -1 are none", "\"bad name\"", "bit = 4 belongs to another",
        "no flag \"nothing\"", "no pool \"listen\"", "\"item_to_artist.npy\" appears twice",
        "attribute \"artist\": needs", "must not be negative"}) {
    EXPECT_TRUE(contains(error->what(), part));
  }
}

TEST(LogSchema, AFileOnTopOfAPreset) {
  const std::string path = base::temp_path("schema.toml");
  base::put_file(path, "preset = \"yambda-500m\"\ntrain_days = 30\nuser_ids = \"dense\"\n");
  const LogSchema c = load_log_schema({.file = path, .sets = {"label=mine"}});
  EXPECT_EQ(c.events, "flat/500m/multi_event.parquet");
  EXPECT_EQ(c.train_days, 30);
  EXPECT_EQ(c.user_ids, IdMapping::kDense);
  EXPECT_EQ(c.label, "mine");

  base::put_file(path, "preset = \"yambda-500m\"\ntrain_day = 30\n");
  const auto error = error_of([&path] { load_log_schema({.file = path}); });
  ASSERT_TRUE(error);
  EXPECT_TRUE(contains(error->what(), "train_days"));
}

TEST(LogSchema, TheResolvedFileReadsBack) {
  for (const char* file : {"configs/schemas/movielens.toml", "configs/schemas/kuairand.toml"}) {
    const LogSchema c = load_log_schema({.file = file});
    const std::string path = base::temp_path("resolved.toml");
    base::put_file(path, base::to_toml(c));
    EXPECT_EQ(base::to_toml(load_log_schema({.file = path})), base::to_toml(c)) << file;
  }
}

}  // namespace
}  // namespace segue::data
