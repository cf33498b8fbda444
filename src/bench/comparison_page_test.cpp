#include "bench/comparison_page.h"

#include <gtest/gtest.h>

#include "base/file.h"
#include "base/test_util.h"
#include "bench/pictures.h"

namespace segue::bench {
namespace {

using base::contains;

const std::string kOrigin =
    R"("gpu": "A card", "threads": 2, "version": "1", "commit": "abc", "time": "2026-11-16T10:00:00Z", "command": "segue bench x"})";

std::string cell(const char* direction, int sequences, int length, double gflops) {
  return std::string(R"({"name": "attention )") + direction + R"(", "lengths": ")" +
         std::to_string(sequences) + "x" + std::to_string(length) +
         R"(", "heads": "4x64", "shape": {"sequences": )" + std::to_string(sequences) +
         R"(, "length": )" + std::to_string(length) + R"(, "head_dim": 64}, "median_s": 0.001, )" +
         R"("gflops_per_s": )" + std::to_string(gflops) +
         R"(, "share_of_gemm": 0.6, "share_of_peak": 0.5, )" + kOrigin + "\n";
}

std::string left_out(const char* direction, int sequences, int length) {
  return std::string(R"({"name": "attention )") + direction + R"(", "shape": {"sequences": )" +
         std::to_string(sequences) + R"(, "length": )" + std::to_string(length) +
         R"(, "head_dim": 64}, "not_run": "takes 200.0 GiB of <100>", )" + kOrigin + "\n";
}

class ComparisonTest : public testing::Test {
 protected:
  void SetUp() override { base::make_folders(rows_); }
  void put(const std::string& name, const std::string& text) {
    base::put_file(rows_ + "/" + name + ".jsonl", text);
  }
  std::string map() {
    put("map", cell("forward", 1, 64, 5500) + cell("backward", 1, 64, 300'000) +
                   cell("forward", 2, 64, 450'000) + left_out("backward", 2, 64));
    return rows_ + "/map.jsonl";
  }

  const std::string rows_ = base::temp_path("compared");
};

TEST_F(ComparisonTest, TheMapIsDrawnAndListed) {
  const std::string picture = map_picture(map());
  EXPECT_TRUE(picture.starts_with("<svg xmlns="));
  EXPECT_TRUE(contains(picture, ">450</text>")) << picture;
  EXPECT_TRUE(contains(picture, ">5.5</text>"));
  EXPECT_TRUE(contains(picture, "forward, heads of 64"));
  EXPECT_LT(picture.find("forward, heads"), picture.find("backward, heads"));
  EXPECT_TRUE(contains(picture, "not run: takes 200.0 GiB of &lt;100&gt;"));
  EXPECT_FALSE(contains(picture, "<100>"));
  EXPECT_EQ(map_csv(map()),
            "head_dim,direction,sequences,length,ms,tflops_per_s,share_of_peak,share_of_product,"
            "not_run\n"
            "64,backward,1,64,1,300,0.5,0.6,\n"
            "64,backward,2,64,,,,,\"takes 200.0 GiB of <100>\"\n"
            "64,forward,1,64,1,5.5,0.5,0.6,\n"
            "64,forward,2,64,1,450,0.5,0.6,\n");
}

TEST_F(ComparisonTest, ThePageHasWhatIsThere) {
  EXPECT_TRUE(contains(comparison_page(rows_, "today"), "<h1>Segue, measured"));
  map();
  put("experiments",
      R"({"name": "baseline", "preset": "p", "lengths": "zipf", "ids": "uniform", "ranks": "1", "shape": {}, "gflops_per_s": 50000, "mfu": 0.05, "speed_up": 1, )" +
          kOrigin + "\n" +
          R"({"name": "balanced", "preset": "p", "lengths": "zipf", "ids": "uniform", "ranks": "1", "shape": {}, "not_run": "one rank", )" +
          kOrigin + "\n");
  put("published",
      R"({"topic": "T", "unit": "TFLOP/s", "text": "what", "differs": "the card & more"})"
      "\n"
      R"({"topic": "T", "system": "Other", "hardware": "16 x H100", "value": 310.6, "source": "a paper", "date": "2026-05"})"
      "\n"
      R"({"topic": "T", "rows": "map", "where": {"name": "attention forward", "sequences": 2}, "figure": "gflops_per_s", "scale": 0.001})"
      "\n"
      R"({"topic": "T", "rows": "map", "where": {"name": "attention forward", "sequences": 7}, "figure": "gflops_per_s"})"
      "\n");
  const std::string page = comparison_page(rows_, "today");
  for (const char* part :
       {"50 TFLOP/s, MFU 5.0 %, 1.00x", "not run: one rank", "Other, 16 x H100", "310.6 TFLOP/s",
        "Segue, 1 x A card", "450 TFLOP/s", "not measured", "the card &amp; more",
        "Other: a paper, 2026-05", "segue bench x (abc), 2026-11-16", "heads of 64"}) {
    EXPECT_TRUE(contains(page, part)) << part;
  }
  EXPECT_TRUE(contains(page, "default-src 'none'"));
}

TEST_F(ComparisonTest, WhatIsNoRowIsNamed) {
  put("map", cell("forward", 1, 64, 5) + "{}\n");
  EXPECT_TRUE(
      contains(base::message_of(ErrorCode::kCorrupt, [&] { map_picture(rows_ + "/map.jsonl"); }),
               "map.jsonl:2"));
  put("map", "no json\n");
  EXPECT_TRUE(
      contains(base::message_of(ErrorCode::kCorrupt, [&] { map_csv(rows_ + "/map.jsonl"); }),
               "map.jsonl:1"));
  base::message_of(ErrorCode::kNotFound, [&] { map_csv(rows_ + "/none.jsonl"); });
  put("map", "");
  put("published", R"({"topic": "T", "system": "Other", "value": 1})"
                   "\n");
  EXPECT_TRUE(
      contains(base::message_of(ErrorCode::kCorrupt, [&] { comparison_page(rows_, "today"); }),
               "topic `T`"));
}

TEST(PicturesTest, BarsAreAsLongAsTheirValues) {
  const std::string picture = bars({{"a", "1", 1}, {"b <", "2", 2, false}});
  EXPECT_TRUE(contains(picture, "width=\"210.0\"")) << picture;
  EXPECT_TRUE(contains(picture, "width=\"420.0\""));
  EXPECT_TRUE(contains(picture, "b &lt;"));
}

}  // namespace
}  // namespace segue::bench
