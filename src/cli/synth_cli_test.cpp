#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/file.h"
#include "base/test_util.h"
#include "cli/test_util.h"

namespace segue::cli {
namespace {

using base::contains;

Outcome synth(const std::string& folder, std::vector<std::string> more = {}) {
  std::vector<std::string> all = {
      "synth",  "--out",     folder,    "--users",       "150",
      "--days", "15",        "--items", "1500",          "--events-per-user",
      "120",    "--history", "60",      "--min-history", "20"};
  all.insert(all.end(), more.begin(), more.end());
  return run(all);
}

/// The number behind the keys, each found after the one before.
double number_at(const std::string& json, const std::vector<std::string>& keys) {
  size_t at = 0;
  for (const std::string& key : keys) {
    const std::string quoted = "\"" + key + "\":";
    at = json.find(quoted, at);
    if (at == std::string::npos) {
      ADD_FAILURE() << "no " << key << " in " << json;
      return std::nan("");
    }
    at += quoted.size();
  }
  return std::strtod(json.c_str() + at, nullptr);
}

/// What the calibration of the generator promises.
void expect_calibrated(const std::string& json) {
  const auto auc = [&](const char* name) { return number_at(json, {"auc_of_all", name, "auc"}); };
  const double oracle = auc("oracle"), item = auc("item"), user = auc("user"),
               user_artist = auc("user_artist");
  EXPECT_GE(oracle, 0.78);
  EXPECT_LE(oracle, 0.88);
  EXPECT_LE(std::max(item, user) - 0.5, 0.4 * (oracle - 0.5)) << json;
  EXPECT_GT(std::min(item, user), 0.52);
  EXPECT_GT(user_artist, std::max(item, user) + 0.05);  // history carries signal
  const double positive = number_at(json, {"predicted_events", "positive_share"});
  EXPECT_GE(positive, 0.55);
  EXPECT_LE(positive, 0.65);
  const double plus = number_at(json, {"pools", "listen_plus", "share"});
  EXPECT_GE(plus, 0.55);
  EXPECT_LE(plus, 0.65);
}

// ---- synth ----

TEST(SynthCliTest, MakesAStoreOnce) {
  const std::string folder = base::temp_path("store");
  const Outcome made = synth(folder);
  EXPECT_EQ(made.code, kExitOk) << made.err;
  EXPECT_TRUE(contains(made.out, "events of 150 users") || contains(made.out, "events of 14"));
  EXPECT_TRUE(base::exists(folder + "/hstu_cache_L60/positions_L60_m20.npy"));
  EXPECT_TRUE(base::exists(folder + "/segue/listen_probability.npy"));

  const Outcome again = synth(folder);
  EXPECT_EQ(again.code, kExitUsage);
  EXPECT_TRUE(contains(again.err, "holds a finished store"));
  EXPECT_EQ(synth(folder, {"--overwrite"}).code, kExitOk);
}

TEST(SynthCliTest, WrongUseIsExplained) {
  const std::string folder = base::temp_path("store");
  const auto expect_usage = [&](const std::vector<std::string>& more, const char* part) {
    const Outcome o = synth(folder, more);
    EXPECT_EQ(o.code, kExitUsage);
    EXPECT_TRUE(contains(o.err, part));
    EXPECT_FALSE(base::exists(folder));
  };
  expect_usage({"--users", "0"}, "--users");
  expect_usage({"--items", "-5"}, "--items");
  expect_usage({"--format", "json"}, "--format");
  expect_usage({"--size-name", "7b"}, "yambda-7b");
  expect_usage({"--seed", "x"}, "--seed");
  const Outcome nowhere = run({"synth", "--out", "", "--format", "csv"});  // not into the root
  EXPECT_EQ(nowhere.code, kExitUsage);
  EXPECT_TRUE(contains(nowhere.err, "--out names no folder"));
}

TEST(SynthCliTest, ARawLogIsReplacedOnlyWhenAsked) {
  const std::string raw = base::temp_path("raw");
  ASSERT_EQ(synth(raw, {"--format", "csv"}).code, kExitOk);
  const Outcome again = synth(raw, {"--format", "csv", "--seed", "2"});
  EXPECT_EQ(again.code, kExitUsage);
  EXPECT_TRUE(contains(again.err, "--overwrite replaces it"));
  EXPECT_EQ(synth(raw, {"--format", "csv", "--seed", "2", "--overwrite"}).code, kExitOk);
}

TEST(SynthCliTest, RawLogThroughPrepTellsTheSame) {
  const std::string raw = base::temp_path("raw"), direct = base::temp_path("direct"),
                    prepared = base::temp_path("prepared");
  ASSERT_EQ(synth(raw, {"--format", "csv"}).code, kExitOk);
  ASSERT_EQ(synth(direct).code, kExitOk);
  const Outcome prep =
      run({"prep", "--raw", raw, "--out", prepared, "--history", "60", "--min-history", "20"});
  ASSERT_EQ(prep.code, kExitOk) << prep.err;
  const Outcome a = run({"inspect", direct, "--json"});
  const Outcome b = run({"inspect", prepared, "--json", "--truth", raw});
  ASSERT_EQ(a.code, kExitOk) << a.err;
  ASSERT_EQ(b.code, kExitOk) << b.err;
  const auto from_kinds = [](const std::string& json) {
    return json.substr(json.find("\"kinds\""), json.find("\"integrity\"") - json.find("\"kinds\""));
  };
  EXPECT_EQ(from_kinds(a.out), from_kinds(b.out));
  EXPECT_TRUE(contains(a.out, "oracle"));
  // Without the raw log there is no truth, and no baselines unless wanted.
  EXPECT_FALSE(contains(run({"inspect", prepared}).out, "auc"));
  const std::string baselines = run({"inspect", prepared, "--baselines"}).out;
  EXPECT_TRUE(contains(baselines, "user-artist"));
  EXPECT_FALSE(contains(baselines, "oracle"));
}

TEST(SynthCliTest, SmallLogsAreCalibrated) {
  for (const char* seed : {"1", "2", "3"}) {
    const std::string folder = base::temp_path(std::string("store") + seed);
    ASSERT_EQ(run({"synth", "--out", folder, "--users", "300", "--items", "3000", "--days", "20",
                   "--events-per-user", "200", "--seed", seed})
                  .code,
              kExitOk);
    const Outcome o = run({"inspect", folder, "--json"});
    ASSERT_EQ(o.code, kExitOk) << o.err;
    expect_calibrated(o.out);
  }
}

TEST(SlowSynthCliTest, DefaultsAreCalibrated) {
  for (const char* seed : {"1", "2", "3"}) {
    const std::string folder = base::temp_path(std::string("store") + seed);
    ASSERT_EQ(run({"synth", "--out", folder, "--seed", seed}).code, kExitOk);
    const Outcome o = run({"inspect", folder, "--json"});
    ASSERT_EQ(o.code, kExitOk) << o.err;
    expect_calibrated(o.out);
  }
}

// ---- inspect ----

TEST(InspectCliTest, TextAndJsonHaveTheSameNumbers) {
  const std::string folder = base::temp_path("store");
  ASSERT_EQ(synth(folder).code, kExitOk);
  const Outcome text = run({"inspect", folder, "--verify", "--min-history", "0"});
  const Outcome json = run({"inspect", folder, "--json", "--min-history", "0"});
  ASSERT_EQ(text.code, kExitOk) << text.err;
  ASSERT_EQ(json.code, kExitOk) << json.err;
  for (const char* title : {"store", "kinds", "pools", "attributes", "spread", "windows", "history",
                            "auc of all", "auc of the last window", "integrity"}) {
    EXPECT_TRUE(contains(text.out, title));
  }
  const auto rounded = [](double value, int decimals) {
    char digits[32];
    std::snprintf(digits, sizeof(digits), "%.*f", decimals, value);
    return std::string(digits);
  };
  for (const char* name : {"oracle", "item", "user", "user_artist"}) {
    const double auc = number_at(json.out, {"auc_of_all", name, "auc"});
    EXPECT_TRUE(contains(text.out, rounded(auc, 4)));
  }
  const double share = number_at(json.out, {"pools", "listen_plus", "share"});
  EXPECT_TRUE(contains(text.out, rounded(100 * share, 1) + " %"));
  EXPECT_TRUE(contains(text.out, "problems"));
  EXPECT_EQ(number_at(json.out, {"integrity", "problems"}), 0);
  EXPECT_EQ(number_at(json.out, {"windows", "m0", "min_history"}), 0);
  EXPECT_EQ(json.out.find('\n'), json.out.size() - 1);
}

TEST(InspectCliTest, OpensTheReferencesCache) {
  const Outcome o = run({"inspect", "tests/golden/golden_data", "--json"});
  ASSERT_EQ(o.code, kExitOk) << o.err;
  EXPECT_EQ(number_at(o.out, {"store", "events"}), 21973);
  EXPECT_EQ(number_at(o.out, {"store", "users"}), 150);
  EXPECT_EQ(number_at(o.out, {"integrity", "files_compared"}), 0);
  EXPECT_TRUE(contains(o.out, "no manifest"));
}

TEST(InspectCliTest, DerivedFilesGoToTheIndexFolder) {
  const std::string folder = base::temp_path("store"), index = base::temp_path("index");
  ASSERT_EQ(synth(folder).code, kExitOk);
  const auto files_in = [](const std::string& path) {
    std::set<std::string> names;
    for (const auto& e : std::filesystem::directory_iterator(path)) {
      names.insert(e.path().filename().string());
    }
    return names;
  };
  const std::set<std::string> before = files_in(folder + "/segue");
  const Outcome o = run({"inspect", folder, "--index", index, "--min-history", "5"});
  EXPECT_EQ(o.code, kExitOk) << o.err;
  EXPECT_FALSE(files_in(index).empty());
  EXPECT_EQ(files_in(folder + "/segue"), before);
}

TEST(InspectCliTest, DamageIsShownAndEndsInAnError) {
  const std::string folder = base::temp_path("store");
  ASSERT_EQ(synth(folder).code, kExitOk);
  const std::string path = folder + "/hstu_cache_L60/flat_is_organic.npy";
  std::string bytes = base::read_file(path);
  bytes[200] = static_cast<char>(bytes[200] ^ 1);
  base::put_file(path, bytes);
  EXPECT_EQ(run({"inspect", folder}).code, kExitOk);
  const Outcome o = run({"inspect", folder, "--verify"});
  EXPECT_EQ(o.code, kExitCorrupt);
  EXPECT_TRUE(contains(o.out, "flat_is_organic.npy"));
  EXPECT_TRUE(contains(o.err, "flat_is_organic.npy"));
}

TEST(InspectCliTest, OptionsOfStoresAreNotForFiles) {
  const Outcome o = run({"inspect", "a.npy", "--json"});
  EXPECT_EQ(o.code, kExitUsage);
  EXPECT_TRUE(contains(o.err, "for folders"));
  EXPECT_EQ(run({"inspect", base::temp_path("nowhere")}).code, kExitFile);
  const std::string empty = base::temp_path("empty");
  std::filesystem::create_directories(empty);
  const Outcome none = run({"inspect", empty});
  EXPECT_EQ(none.code, kExitFile);
  EXPECT_TRUE(contains(none.err, "no event store"));
}

}  // namespace
}  // namespace segue::cli
