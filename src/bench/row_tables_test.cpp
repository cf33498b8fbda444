#include "bench/row_tables.h"

#include <filesystem>

#include <gtest/gtest.h>

#include "base/file.h"
#include "base/test_util.h"
#include "bench/bench.h"

namespace segue::bench {
namespace {

using base::contains;

/// One row, with whatever else it has.
std::string row(const std::string& name, const std::string& shape, double seconds,
                const std::string& more = "") {
  return "{\"name\": \"" + name + "\", " + more + "\"shape\": {" + shape +
         "}, \"median_s\": " + std::to_string(seconds) +
         ", \"spread\": 0.02, \"gflops_per_s\": 500000, \"share_of_gemm\": 0.625, \"gpu\": \"A "
         "card\", \"threads\": 2, \"version\": \"1.2.3\", \"commit\": \"abc\", \"time\": "
         "\"2026-11-16T10:00:00Z\", \"command\": \"segue bench x --json\"}\n";
}

class RowTablesTest : public testing::Test {
 protected:
  void SetUp() override { base::make_folders(rows_); }

  FilledTables fill(const std::string& markdown) {
    base::put_file(file_, markdown);
    return fill_tables(file_, rows_);
  }
  void put_rows(const std::string& table, const std::string& text) {
    base::put_file(rows_ + "/" + table + ".jsonl", text);
  }
  std::string refused(ErrorCode code, const std::string& markdown) {
    return base::message_of(code, [&] { fill(markdown); });
  }

  const std::string rows_ = base::temp_path("rows"), file_ = base::temp_path("page.md");
};

TEST_F(RowTablesTest, ALinePerShapeAndAColumnPerSizeThatDiffers) {
  put_rows("x", row("gemm", "\"m\": 8", 0.001) +
                    row("attention forward", "\"heads\": 4, \"length\": 512", 0.0015,
                        "\"mask\": \"causal\", ") +
                    row("attention backward", "\"heads\": 4, \"length\": 512", 0.004,
                        "\"mask\": \"causal\", ") +
                    row("attention forward", "\"heads\": 4, \"length\": 4096", 0.01,
                        "\"mask\": \"causal\", "));
  const FilledTables filled = fill("before\n<!-- rows: x -->\nold\n<!-- end -->\nafter\n");
  EXPECT_EQ(filled.changed, std::vector<std::string>{"x"});
  EXPECT_EQ(filled.text,
            "before\n<!-- rows: x -->\n"
            "| what | length | ms |\n|---|---|---|\n"
            "| attention forward / backward | 512 | 1.500 / 4 |\n"
            "| attention forward | 4,096 | 10 |\n\n"
            "All: mask causal, heads 4, spread 2 %, TFLOP/s 500, of product 62 %. "
            "Ceilings: gemm 500 TFLOP/s. "
            "By `segue bench x --json`; A card, 2 threads, segue 1.2.3 (abc), 2026-11-16.\n"
            "<!-- end -->\nafter\n");
  EXPECT_TRUE(fill(filled.text).changed.empty());
  EXPECT_EQ(fill(filled.text).text, filled.text);
}

TEST_F(RowTablesTest, WhatWasNotRunHasItsReasonAndWhatWasReckonedItsFigures) {
  std::string measured = row("baseline", "\"samples\": 8", 0.001, "\"ranks\": \"1\", ");
  measured.insert(measured.find("\"gpu\""),
                  "\"mfu\": 0.25, \"speed_up\": 1, \"memory_gib\": 12.34, ");
  std::string left_out = row("balanced", "", 0.001);
  const size_t begin = left_out.find("\"median_s\""), end = left_out.find("\"gpu\"");
  std::string reckoned = left_out;
  left_out.replace(begin, end - begin, "\"not_run\": \"one rank\", ");
  reckoned.replace(begin, end - begin, "\"uneven_before\": 1.5, \"speed_up\": 1.4, ");
  put_rows("x", measured + left_out + reckoned);
  const std::string text =
      fill("<!-- rows: x; without spread, TFLOP/s, of product -->\n<!-- end -->\n").text;
  EXPECT_TRUE(
      contains(text, "| what | ranks | samples | ms | MFU | GiB | speed-up | not run | uneven |"))
      << text;
  EXPECT_TRUE(contains(text, "| baseline | 1 | 8 | 1 | 25.0 % | 12.34 | 1 |  |  |")) << text;
  EXPECT_TRUE(contains(text, "| balanced |  |  |  |  |  |  | one rank |  |")) << text;
  EXPECT_TRUE(contains(text, "| balanced |  |  |  |  |  | 1.400 |  | 1.500 |")) << text;
}

TEST_F(RowTablesTest, BothProtocolsStandInOneLine) {
  const std::string sustained = "\"protocol\": \"sustained\", ";
  std::string rows = row("gemm", "\"m\": 8", 0.001);
  for (const char* length : {"512", "4096"}) {
    const std::string shape = std::string("\"length\": ") + length;
    rows += row("attention forward", shape, 0.0015) + row("attention backward", shape, 0.004);
  }
  for (const char* name : {"attention forward", "attention backward"}) {
    std::string line = row(name, "\"length\": 4096", 0.002);
    rows += line.insert(line.find("\"spread\""), sustained);
  }
  put_rows("x", rows);
  const std::string text =
      fill("<!-- rows: x; without spread, spread sustained -->\n<!-- end -->\n").text;
  EXPECT_TRUE(contains(text, "| attention forward / backward | 512 |  |")) << text;
  EXPECT_TRUE(contains(text, "| attention forward / backward | 4,096 | 2 |")) << text;
  EXPECT_TRUE(contains(text, "| what | length | ms sustained |")) << text;
}

TEST_F(RowTablesTest, ColumnsCanBeLeftOut) {
  put_rows("x", row("a", "\"rows\": 1, \"head_dim\": 64", 1) +
                    row("b", "\"rows\": 2, \"head_dim\": 128", 1));
  const std::string text = fill("<!-- rows: x; without head dim, spread -->\n<!-- end -->\n").text;
  EXPECT_TRUE(contains(text, "| what | rows |\n"));
  EXPECT_FALSE(contains(text, "128"));
}

TEST_F(RowTablesTest, RowsOfABenchAndOfAPlanAreRead) {
  std::string lines;
  Report report([&](const std::string& line) { lines += line + "\n"; }, true, "segue bench loader");
  Settings settings;
  settings.repeats = {0, 1};
  settings.store_users = 20;
  settings.store_events = 600;
  run_bench("loader", settings, report);
  put_rows("loader", lines);
  put_rows("plan",
           "{\"ranks\": {\"8\": {\"step_ms\": 174.11, \"efficiency\": 0.985}}, \"made\": "
           "{\"command\": \"segue plan\", \"version\": \"1\", \"commit\": \"c\", \"time\": "
           "\"2026-11-16T10:00:00Z\"}}\n");
  const std::string text =
      fill("<!-- rows: loader -->\n<!-- end -->\n<!-- rows: plan -->\n<!-- end -->\n").text;
  EXPECT_TRUE(contains(text, "| loader, 2 threads | 2 |"));
  EXPECT_TRUE(contains(text, "samples/s |"));
  EXPECT_TRUE(
      contains(text, "| ranks | step ms | efficiency |\n|---|---|---|\n| 8 | 174.1 | 0.985 |"));
}

TEST_F(RowTablesTest, ADamagedRowIsNamedByFileAndLine) {
  const std::string page = "<!-- rows: x -->\n<!-- end -->\n";
  const std::string good = row("a", "\"rows\": 1", 1);
  for (const std::string& bad :
       {std::string("half a row"), std::string("[]"), std::string("{\"name\": \"a\"}"),
        std::string("\n" + good), std::string(good).replace(good.find("0.02"), 4, "\"no\""),
        std::string(good).replace(good.find("command"), 7, "commond")}) {
    put_rows("x", good + bad);
    const std::string message = refused(ErrorCode::kCorrupt, page);
    EXPECT_TRUE(contains(message, "x.jsonl:")) << bad;
    EXPECT_TRUE(contains(message, "segue bench --json")) << bad;
  }
  put_rows("x", "");
  EXPECT_TRUE(contains(refused(ErrorCode::kCorrupt, page), "has no rows"));
}

TEST_F(RowTablesTest, AWrongMarkerIsNamedByFileAndLine) {
  put_rows("x", row("a", "\"rows\": 1", 1));
  EXPECT_TRUE(contains(refused(ErrorCode::kNotFound, "text\n<!-- rows: y -->\n<!-- end -->\n"),
                       "page.md:2: table `y` has no rows: there is no " + rows_ + "/y.jsonl"));
  EXPECT_TRUE(contains(refused(ErrorCode::kNotFound, "<!-- rows: ../x -->\n<!-- end -->\n"),
                       "table `../x`"));
  EXPECT_TRUE(contains(refused(ErrorCode::kCorrupt, "<!-- rows: x -->\nold\n"),
                       "page.md:2: table `x` has no `<!-- end -->`"));
  EXPECT_TRUE(
      contains(refused(ErrorCode::kCorrupt, "<!-- rows: x -->\n<!-- rows: x -->\n<!-- end -->\n"),
               "page.md:2: table `x` has no"));
  EXPECT_TRUE(contains(refused(ErrorCode::kCorrupt, "<!-- rows: x\n"), "does not end in"));
  EXPECT_TRUE(contains(refused(ErrorCode::kCorrupt, "<!-- end -->\n"), "ends no table"));
}

}  // namespace
}  // namespace segue::bench
