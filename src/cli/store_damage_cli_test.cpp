// Commands on stores that are damaged, by accident or on purpose: they refuse them, and neither
// crash nor look outside.

#include <algorithm>
#include <filesystem>
#include <map>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/test_util.h"
#include "cli/run_test_util.h"
#include "cli/test_util.h"
#include "data/store/damage_test_util.h"
#include "data/store/store_verifier.h"

namespace segue::cli {
namespace {

namespace fs = std::filesystem;
using base::contains;
using data::Damage;
using data::ManifestJson;

class DamagedStore : public testing::Test {
 protected:
  void SetUp() override {
    good_ = base::temp_path("good");
    const Outcome o =
        run({"synth", "--out", good_, "--users", "60", "--items", "300", "--days", "12",
             "--events-per-user", "60", "--history", "16", "--min-history", "4"});
    ASSERT_EQ(o.code, kExitOk) << o.err;
  }
  void TearDown() override { fs::remove_all(good_); }

  std::string copy() const {
    std::string folder = base::temp_path("store");
    fs::remove_all(folder);
    fs::copy(good_, folder, fs::copy_options::recursive);
    return folder;
  }
  static std::vector<std::vector<std::string>> commands(const std::string& store) {
    return {{"inspect", store},
            {"inspect", store, "--verify"},
            {"inspect", store, "--baselines"},
            {"inspect", store, "--json", "--min-history", "5"},
            {"prep", "--out", store, "--verify"}};
  }
  /// Nothing but a message and its code: 1 would be an exception that nobody expected. A manifest
  /// may say that it is of a version to come.
  static void expect_told(const Outcome& o) {
    EXPECT_TRUE(o.code == kExitOk || o.code == kExitFile || o.code == kExitCorrupt ||
                o.code == kExitUnsupported)
        << o.code;
    EXPECT_TRUE(o.code == kExitOk || contains(o.err, "segue: error: "));
  }
  void survive(int damages, uint64_t seed) const {
    std::map<int, int> codes;
    for (int i = 0; i < damages; ++i) {
      const std::string store = copy();
      const std::string what = Damage(store, seed + static_cast<uint64_t>(i)).apply();
      SCOPED_TRACE(what + ", seed " + std::to_string(seed + static_cast<uint64_t>(i)));
      for (const std::vector<std::string>& command : commands(store)) {
        const Outcome o = run(command);
        expect_told(o);
        ++codes[o.code];
      }
    }
    EXPECT_GT(codes[kExitCorrupt], damages);
    for (const auto& [code, times] : codes) {
      RecordProperty("code_" + std::to_string(code), times);
    }
  }

  std::string good_;
};

TEST_F(DamagedStore, IsRefusedAndNotAnalysed) {
  const std::string store = copy(), path = store + "/hstu_cache_L16/flat_uid.npy";
  std::string bytes = base::read_file(path);
  bytes[5643] = static_cast<char>(bytes[5643] ^ 14);
  base::put_file(path, bytes);
  for (const std::vector<std::string>& command : commands(store)) {
    const Outcome o = run(command);
    expect_told(o);
    const bool reads_all = std::ranges::count(command, "--verify") > 0;
    if (!reads_all) continue;
    EXPECT_EQ(o.code, kExitCorrupt);
    EXPECT_TRUE(contains(o.err, "flat_uid.npy: was changed"));
    EXPECT_FALSE(contains(o.out, "events per user"));
  }
}

TEST_F(DamagedStore, AManifestWithoutMinimumHistories) {
  const std::string store = copy(), path = store + "/segue/manifest.json";
  ManifestJson j = ManifestJson::parse(base::read_file(path));
  j["min_history"] = ManifestJson::array();
  base::put_file(path, data::sealed(j));
  for (const std::vector<std::string>& command : commands(store)) {
    const Outcome o = run(command);
    EXPECT_EQ(o.code, kExitCorrupt);
    EXPECT_TRUE(contains(o.err, "minimum histories []"));
  }
}

TEST_F(DamagedStore, NamesInAManifestDoNotLeaveTheStore) {
  const std::string secret = base::temp_path("secret");
  base::put_file(secret, std::string(98765, 's'));
  for (const std::string& name :
       {"../" + fs::path(secret).filename().string(), secret, std::string("a/../../b")}) {
    const std::string store = copy(), path = store + "/segue/manifest.json";
    ManifestJson j = ManifestJson::parse(base::read_file(path));
    j["files"][name] = {{"bytes", 1}, {"xxh64", data::hex64(0)}};
    base::put_file(path, data::sealed(j));
    for (const std::vector<std::string>& command : commands(store)) {
      const Outcome o = run(command);
      EXPECT_EQ(o.code, kExitCorrupt);
      EXPECT_FALSE(contains(o.err + o.out, "98765"));
    }
  }
}

TEST_F(DamagedStore, NeitherLinksNorPipesAreFollowed) {
  const std::string secret = base::temp_path("secret");
  base::put_file(secret, std::string(98765, 's'));
  for (const bool pipe : {false, true}) {
    const std::string store = copy(), path = store + "/segue/manifest.json";
    ManifestJson j = ManifestJson::parse(base::read_file(path));
    j["files"]["segue/extra.txt"] = {{"bytes", 1}, {"xxh64", data::hex64(0)}};
    base::put_file(path, data::sealed(j));
    const std::string extra = store + "/segue/extra.txt";
    if (pipe) {
      ASSERT_EQ(::mkfifo(extra.c_str(), 0600), 0);
    } else {
      fs::create_symlink(secret, extra);
    }
    for (const std::vector<std::string>& command : commands(store)) {
      const Outcome o = run(command);
      EXPECT_EQ(o.code, kExitCorrupt);
      EXPECT_TRUE(contains(o.err, pipe ? "not a regular file" : "is a link"));
      EXPECT_FALSE(contains(o.err + o.out, "98765"));
    }
  }
}

TEST_F(DamagedStore, AStoreMayBeReachedThroughALink) {
  fs::create_directory_symlink(good_, base::temp_path("link"));
  for (const std::vector<std::string>& command : commands(base::temp_path("link"))) {
    EXPECT_EQ(run(command).code, kExitOk);
  }
  EXPECT_EQ(run({"inspect", good_ + "/hstu_cache_L16/", "--verify"}).code, kExitOk);
}

TEST_F(DamagedStore, EveryCommandRefusesItOrGoesOn) { survive(12, 7); }

class SlowDamagedStore : public DamagedStore {};

/// --gtest_repeat and --gtest_shuffle give it other damages each time.
TEST_F(SlowDamagedStore, EveryCommandRefusesItOrGoesOn) {
  const auto seed = static_cast<uint64_t>(testing::UnitTest::GetInstance()->random_seed());
  survive(200, 1000 + seed * 100'000);
}

// ---- training ----

class TrainingOnDamage : public testing::Test {
 protected:
  void SetUp() override { make_store("90", "12"); }
  void TearDown() override { fs::remove_all(folder_); }

  void make_store(const std::string& events_per_user, const std::string& days) {
    folder_ = base::temp_path("train");
    store_ = folder_ + "/store";
    fs::create_directories(folder_);
    base::write_file(folder_ + "/config.toml", kSmallConfig);
    ASSERT_EQ(run({"synth", "--out", store_, "--users", "120", "--days", days, "--items", "1500",
                   "--events-per-user", events_per_user, "--history", "60", "--min-history", "20"})
                  .code,
              kExitOk);
  }

  Outcome train(const std::string& name, std::vector<std::string> more = {}) const {
    std::vector<std::string> all = {"train", folder_ + "/config.toml", "--run", run_folder(name)};
    for (const std::string& set :
         {"data.store=" + store_, std::string("train.steps=4"), std::string("train.log_every=1"),
          std::string("checkpoint.every_steps=1"), std::string("eval.max_batches=1")}) {
      all.insert(all.end(), {"--set", set});
    }
    all.insert(all.end(), more.begin(), more.end());
    return run(all);
  }
  std::string run_folder(const std::string& name) const { return folder_ + "/" + name; }

  /// A run that was stopped leaves no result behind.
  void expect_no_results(const std::string& name) const {
    const std::string metrics = run_folder(name) + "/metrics.jsonl";
    if (base::exists(metrics)) {
      EXPECT_FALSE(contains(base::read_file(metrics), "\"event\": \"eval\""));
      EXPECT_FALSE(contains(base::read_file(metrics), "\"event\": \"end\""));
    }
    const std::string checkpoints = run_folder(name) + "/checkpoints";
    if (!base::exists(checkpoints)) return;
    for (const auto& entry : fs::directory_iterator(checkpoints)) {
      EXPECT_FALSE(entry.path().filename().string().starts_with("step-")) << entry.path();
    }
  }

  /// Flips bytes of files of the store in place; each run must be stopped, or be what it was.
  void survive(int flips, uint64_t seed) {
    ASSERT_EQ(train("clean").code, kExitOk);
    const std::vector<std::string> metrics = lasting_metrics(run_folder("clean"));
    const auto arrays = newest_arrays(run_folder("clean"));
    std::mt19937_64 random(seed);
    const std::vector<std::string> files = Damage(store_, 0).files();
    int stopped = 0;
    for (int i = 0; i < flips; ++i) {
      const std::string name = files[random() % files.size()];
      const std::string path = store_ + "/" + name, good = base::read_file(path);
      Damage(store_, random()).flip_in(name);
      const Outcome o = train("run", {"--overwrite"});
      SCOPED_TRACE(name + ", seed " + std::to_string(seed) + ", flip " + std::to_string(i));
      if (o.code == kExitOk) {
        EXPECT_EQ(lasting_metrics(run_folder("run")), metrics);
        EXPECT_EQ(newest_arrays(run_folder("run")), arrays);
      } else {
        ++stopped;
        EXPECT_TRUE(contains(o.err, "segue: error: "));
        expect_no_results("run");
      }
      fs::remove_all(run_folder("run"));
      base::put_file(path, good);
    }
    EXPECT_GT(stopped, flips / 3);
    RecordProperty("stopped", stopped);
    ASSERT_EQ(train("again").code, kExitOk);
    EXPECT_EQ(newest_arrays(run_folder("again")), arrays);
  }

  std::string folder_, store_;
};

TEST_F(TrainingOnDamage, StopsBeforeItLeavesAnything) { survive(12, 11); }

/// With enough events to be verified in the background.
class SlowTrainingOnDamage : public TrainingOnDamage {
 protected:
  void SetUp() override {
    make_store("15000", "60");
    int64_t bytes = 0;
    for (const auto& entry : fs::recursive_directory_iterator(store_)) {
      if (entry.is_regular_file()) bytes += static_cast<int64_t>(entry.file_size());
    }
    ASSERT_GT(bytes, 2 * data::StoreVerifier::kAtOnce);
  }
};

TEST_F(SlowTrainingOnDamage, StopsBeforeItLeavesAnything) {
  survive(30, static_cast<uint64_t>(testing::UnitTest::GetInstance()->random_seed()));
}

TEST_F(TrainingOnDamage, ScoresOfADamagedStoreAreNotWritten) {
  ASSERT_EQ(train("run").code, kExitOk);
  const std::string column = "hstu_cache_L60/flat_is_organic.npy", path = store_ + "/" + column;
  const std::string good = base::read_file(path);
  Damage(store_, 5).flip_in(column);
  const std::string scores = folder_ + "/scores.csv";
  Outcome o = run({"eval", run_folder("run")});
  EXPECT_EQ(o.code, kExitCorrupt);
  EXPECT_EQ(o.out, "");
  EXPECT_TRUE(contains(o.err, column + ": was changed"));
  EXPECT_EQ(run({"score", run_folder("run"), "--out", scores}).code, kExitCorrupt);
  EXPECT_FALSE(base::exists(scores));
  EXPECT_EQ(run({"eval", run_folder("run"), "--set", "data.verify=never"}).code, kExitOk);
  base::put_file(path, good);
  o = run({"eval", run_folder("run")});
  EXPECT_EQ(o.code, kExitOk);
  EXPECT_TRUE(contains(o.err, "verified 1 file,"));
  EXPECT_FALSE(contains(run({"eval", run_folder("run")}).err, "verified"));
}

TEST_F(TrainingOnDamage, AStoreThatWasMadeAgainIsVerifiedAgain) {
  EXPECT_TRUE(contains(train("first").err, ": verified "));
  EXPECT_FALSE(contains(train("second").err, ": verified "));
  ASSERT_EQ(
      run({"synth", "--out", store_, "--users", "120", "--days", "12", "--items", "1500",
           "--events-per-user", "90", "--history", "60", "--min-history", "20", "--overwrite"})
          .code,
      kExitOk);
  EXPECT_TRUE(contains(train("third").err, ": verified "));
}

TEST_F(TrainingOnDamage, OneRankOfAMachineFindsItForAll) {
  ASSERT_EQ(train("clean").code, kExitOk);
  Damage(store_, 5).flip_in("hstu_cache_L60/flat_is_organic.npy");
  const Outcome o =
      run_process({"train", folder_ + "/config.toml", "--run", run_folder("ranks"), "--ranks", "2",
                   "--set", "data.store=" + store_, "--set", "train.steps=4", "--set",
                   "checkpoint.every_steps=1", "--set", "comm.timeout_seconds=20"});
  EXPECT_EQ(o.code, kExitCorrupt) << o.err;
  EXPECT_TRUE(contains(o.err, "flat_is_organic.npy: was changed"));
  expect_no_results("ranks");
}

}  // namespace
}  // namespace segue::cli
