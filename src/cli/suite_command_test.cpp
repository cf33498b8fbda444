// `segue bench suite` on several ranks: what one rank cannot do, and how it goes on.

#include <filesystem>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/test_util.h"
#include "cli/run_test_util.h"
#include "cli/test_util.h"

namespace segue::cli {
namespace {

using base::contains;

std::map<std::string, nlohmann::json> rows_of(const std::string& file) {
  std::map<std::string, nlohmann::json> rows;
  std::istringstream text(base::read_file(file));
  for (std::string line; std::getline(text, line);) {
    nlohmann::json row = nlohmann::json::parse(line);
    rows[row["name"]] = row;
  }
  return rows;
}

TEST(SuiteCommand, RanksShareBatchesAndAttentionAndOneWritesTheRows) {
  const std::string file = base::temp_path("rows.jsonl");
  std::vector<std::string> arguments = {"bench",     "suite", "--config",  "configs/random.toml",
                                        "--device",  "cpu",   "--ranks",   "2",
                                        "--repeat",  "1",     "--warm-up", "0",
                                        "--threads", "1",     "--lengths", "zipf",
                                        "--out",     file,    "--set",     "data.batch_size=8"};
  const Outcome first = run_process(arguments);
  ASSERT_EQ(first.code, 0) << first.err;
  auto rows = rows_of(file);
  ASSERT_EQ(rows.size(), 9u);
  for (const auto& [name, row] : rows) {
    EXPECT_EQ(row.contains("not_run"), name == "fast attention") << row;
    EXPECT_EQ(row["ranks"], "2");
    EXPECT_TRUE(contains(row["command"], " --ranks 2")) << row["command"];
    if (row.contains("not_run")) continue;
    EXPECT_EQ(row["shape"]["samples"], 16);  // the batch of the config is that of one rank
  }
  EXPECT_FALSE(rows["baseline"].contains("uneven_before"));
  const nlohmann::json& balanced = rows["balanced"];
  EXPECT_GT(balanced["uneven_before"], balanced["uneven_after"]);
  EXPECT_LT(balanced["uneven_after"], 1.2);

  // All ranks leave out what the first one finds in the file.
  const std::string kept = base::read_file(file);
  const Outcome again = run_process(arguments);
  ASSERT_EQ(again.code, 0) << again.err;
  EXPECT_TRUE(contains(again.out, "tensor parallel              is in " + file)) << again.out;
  EXPECT_EQ(rows_of(file)["prefetch"], nlohmann::json(rows["prefetch"]));
  std::filesystem::remove(file);
}

TEST(SuiteCommand, WhatIsWrongIsSaidBeforeAnyWork) {
  const auto refused = [](const std::vector<std::string>& arguments) {
    const Outcome o = run(arguments);
    EXPECT_EQ(o.code, kExitUsage) << o.err;
    return o.err;
  };
  const std::vector<std::string> suite = {"bench", "suite", "--config", "configs/random.toml"};
  const auto with = [&](const char* option, const char* value) {
    std::vector<std::string> all = suite;
    all.insert(all.end(), {option, value});
    return all;
  };
  EXPECT_TRUE(contains(refused({"bench", "suite", "--preset", "hstu"}), "hstu-suite-zipf"));
  EXPECT_TRUE(contains(refused(with("--lengths", "long")), "uniform, normal, lognormal, zipf"));
  EXPECT_TRUE(contains(refused(with("--only", "fast")), "there is: baseline, balanced"));
  EXPECT_TRUE(
      contains(refused({"bench", "map", "--lengths", "0", "--device", "cpu"}), "at least 1"));
}

}  // namespace
}  // namespace segue::cli
