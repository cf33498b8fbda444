#include "data/sample/sample_schema.h"

#include <functional>
#include <string>

#include <gtest/gtest.h>

#include "base/test_util.h"

namespace segue::data {
namespace {

TEST(SampleSchema, TheBenchmarksIsValid) {
  const SampleSchema s = SampleSchema::yambda();
  EXPECT_NO_THROW(s.validate());
  EXPECT_EQ(s.pools.size(), 3U);
  EXPECT_EQ(s.crosses.size(), 7U);
}

TEST(SampleSchema, WhatCannotBeMeantIsAConfigError) {
  struct Bad {
    const char* why;
    std::function<void(SampleSchema&)> change;
    const char* message;
  };
  const Bad cases[] = {
      {"no pool", [](SampleSchema& s) { s.pools.clear(); }, "0 pools"},
      {"too many",
       [](SampleSchema& s) {
         s.pools.resize(17, {"a", 1});
       },
       "17 pools"},
      {"name", [](SampleSchema& s) { s.pools[0].name = "../x"; }, "`../x`"},
      {"twice", [](SampleSchema& s) { s.pools[1].name = "skip"; }, "`skip` is twice"},
      {"bit", [](SampleSchema& s) { s.pools[2].bit = 0; }, "bit must be positive"},
      {"a column's file", [](SampleSchema& s) { s.pools[1].name = "organic"; }, "organic flag"},
      {"label", [](SampleSchema& s) { s.label_pool = "liked"; }, "`liked`"},
      {"attribute", [](SampleSchema& s) { s.attributes[0].name = "uid"; }, "taken"},
      {"a column of all", [](SampleSchema& s) { s.attributes[0].name = "action_weight"; }, "taken"},
      {"the candidate's", [](SampleSchema& s) { s.attributes[0].name = "id"; }, "taken"},
      {"too many attributes",
       [](SampleSchema& s) {
         s.attributes.clear();
         for (int i = 0; i < 25; ++i) {
           s.attributes.push_back({"a" + std::to_string(i), "a" + std::to_string(i) + ".npy"});
         }
       },
       "25 attributes"},
      {"file", [](SampleSchema& s) { s.attributes[0].file = "/etc/passwd"; }, "/etc/passwd"},
      {"no key", [](SampleSchema& s) { s.crosses[0].keys.clear(); }, "0 keys"},
      {"keys", [](SampleSchema& s) { s.crosses[0].keys.resize(4, "uid"); }, "4 keys"},
      {"key", [](SampleSchema& s) { s.crosses[0].keys[0] = "country"; }, "`country`"},
      {"rows", [](SampleSchema& s) { s.crosses[0].rows = 0; }, "rows"},
      {"cross", [](SampleSchema& s) { s.crosses[1].name = "album_id"; }, "taken"},
      {"a cross like a candidate's attribute",
       [](SampleSchema& s) { s.crosses[1].name = "item_candidate_album_id"; }, "taken"},
      {"kinds", [](SampleSchema& s) { s.anchor_kinds = {-1}; }, "anchor_kinds"},
  };
  for (const Bad& bad : cases) {
    SampleSchema s = SampleSchema::yambda();
    bad.change(s);
    const auto error = base::error_of([&] { s.validate(); });
    ASSERT_TRUE(error) << bad.why;
    EXPECT_EQ(error->code(), ErrorCode::kConfig) << bad.why;
    EXPECT_TRUE(base::contains(error->what(), bad.message)) << bad.why;
  }
}

TEST(SampleSchema, AConfigFileKeepsIt) {
  const SampleSchema before = SampleSchema::yambda();
  const std::string path = base::temp_path("schema.toml");
  base::put_file(path, base::to_toml(before));
  SampleSchema after;
  base::load_config(after, {.file = path, .use_environment = false});
  EXPECT_EQ(base::to_toml(after), base::to_toml(before));
  EXPECT_NO_THROW(after.validate());
}

TEST(SampleSchema, StemsOfAttributes) {
  EXPECT_EQ(AttributeConfig{.name = "artist_id"}.stem(), "artist");
  EXPECT_EQ(AttributeConfig{.name = "was_idle"}.stem(), "was_idle");
  EXPECT_EQ(AttributeConfig{.name = "_id"}.stem(), "_id");
}

}  // namespace
}  // namespace segue::data
