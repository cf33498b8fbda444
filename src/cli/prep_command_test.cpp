// `segue prep` as a process: killed, without disk, in company, within its memory.

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "base/test_util.h"
#include "base/time.h"
#include "cli/test_util.h"
#include "data/prep/prep_test_util.h"
#include "data/store/store_stage.h"
#include "data/store/store_verify.h"

namespace segue::cli {
namespace {

namespace fs = std::filesystem;
using base::contains;
using data::Event;
using data::StoreBytes;

void expect_error(const Outcome& o, int code, const std::string& part) {
  EXPECT_EQ(o.code, code) << o.err;
  EXPECT_TRUE(contains(o.err, "segue: error: "));
  EXPECT_TRUE(contains(o.err, part));
}

/// A raw folder with a schema file, out of order, and how to prepare it.
class PrepCommand : public testing::Test {
 protected:
  PrepCommand() : log_("raw") {}

  void put_log(size_t rows, int64_t users) {
    log_.put("schema.toml", base::to_toml(log_.schema));
    log_.put_events("events.csv", data::random_log(rows, 17, users));
  }
  std::vector<std::string> arguments(const std::string& store) const {
    return {"prep",      "--raw", log_.folder, "--out",  log_.folder + "/" + store,
            "--history", "20",    "--memory",  "128MiB", "--threads",
            "2"};
  }
  StoreBytes prepare(const std::string& store) {
    const Outcome o = run_process(arguments(store));
    EXPECT_EQ(o.code, 0) << o.err;
    EXPECT_TRUE(contains(o.out, "rows/s"));
    return data::store_bytes(log_.folder + "/" + store);
  }

  /// Kills `kills` runs at random moments; each time the store must be whole or not look so.
  void survive(int kills, uint64_t seed) {
    const base::Stopwatch watch;
    const StoreBytes wanted = prepare("wanted");
    const double seconds = watch.seconds();
    const std::string folder = log_.folder + "/store";
    std::mt19937_64 random(seed);
    int killed = 0;
    for (int i = 0; i < kills; ++i) {
      Process process(arguments("store"));
      // Half of them near the end, where files move into place.
      const double share = static_cast<double>(random() % 1000) / 1000;
      const double moment = seconds * (i % 2 == 0 ? share : 0.8 + 0.25 * share);
      std::this_thread::sleep_for(std::chrono::duration<double>(moment));
      process.kill();
      if (process.wait().signal == SIGKILL) ++killed;
      if (!fs::exists(folder) || !data::is_finished_store(folder)) continue;
      EXPECT_TRUE(data::same_store(wanted, without_leftovers(folder))) << "seed " << seed;
      fs::remove_all(folder);
    }
    EXPECT_GT(killed, 0);
    EXPECT_TRUE(data::same_store(wanted, prepare("store")));
  }

  /// A process killed after its last step may leave its temporary folder.
  static StoreBytes without_leftovers(const std::string& folder) {
    StoreBytes bytes = data::store_bytes(folder);
    std::erase_if(bytes, [](const auto& file) { return file.first.starts_with(".tmp/"); });
    return bytes;
  }

  data::RawLog log_;
};

TEST_F(PrepCommand, MakesAndVerifiesAStore) {
  put_log(2000, 30);
  std::vector<std::string> a = arguments("store");
  a.insert(a.end(), {"--min-history", "5", "--min-history", "0", "--verify"});
  const Outcome o = run(a);
  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_TRUE(contains(o.out, "verified"));
  EXPECT_TRUE(fs::exists(log_.folder + "/store/hstu_cache_L20/positions_L20_m5.npy"));
  const Outcome again = run_process({"prep", "--out", log_.folder + "/store", "--verify"});
  EXPECT_EQ(again.code, 0) << again.err;
  EXPECT_TRUE(contains(again.out, "good checksums"));
  expect_error(run_process(arguments("store")), 2, "holds a finished store");

  const std::string file = log_.folder + "/store/hstu_cache_L20/flat_uid.npy";
  std::string bytes = base::read_file(file);
  bytes[200] = static_cast<char>(bytes[200] ^ 4);
  base::put_file(file, bytes);
  expect_error(run({"prep", "--out", log_.folder + "/store", "--verify"}), 4,
               "flat_uid.npy: was changed");
}

TEST_F(PrepCommand, OverwritingIsKilledAtAnyMomentAndAStoreIsThere) {
  put_log(2000, 30);
  const base::Stopwatch watch;
  const StoreBytes wanted = prepare("store");
  const double seconds = watch.seconds();
  std::vector<std::string> a = arguments("store");
  a.push_back("--overwrite");
  std::mt19937_64 random(7);
  for (int i = 0; i < 12; ++i) {
    Process process(a);
    const double share = static_cast<double>(random() % 1000) / 1000;
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds * (0.5 + 0.6 * share)));
    process.kill();
    process.wait();
    EXPECT_TRUE(data::same_store(wanted, without_leftovers(log_.folder + "/store"))) << i;
  }
  EXPECT_EQ(run_process(a).code, 0);
  EXPECT_FALSE(fs::exists(data::StoreStage::beside(log_.folder + "/store")));
}

TEST_F(PrepCommand, BadRowsAreLeftOutAndDuplicatesCounted) {
  put_log(500, 30);
  std::string text = base::read_file(log_.folder + "/events.csv");
  const size_t first = text.find('\n') + 1, second = text.find('\n', first) + 1;
  text += text.substr(first, second - first) + ",1,2,0,50,9,listen\n";
  log_.put("events.csv", text);
  expect_error(run(arguments("store")), 4, "row 502: column \"uid\" is empty");
  std::vector<std::string> a = arguments("store");
  a.insert(a.end(), {"--skip-bad", "0.1%"});
  expect_error(run(a), 4, "1 of 502 rows cannot be used, more than --skip-bad 0.1% allows");
  a.back() = "some";
  expect_error(run(a), 2, "--skip-bad some: a share of the rows");
  a.back() = "1";
  const Outcome o = run(a);
  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_TRUE(contains(o.out, "1 of 502 rows left out, see " + log_.folder +
                                  "/store/segue/skipped.csv: column \"uid\" is empty (1)"));
  EXPECT_TRUE(contains(o.out, "equal to another in everything: kept"));
  const Outcome inspected = run({"inspect", log_.folder + "/store"});
  EXPECT_TRUE(contains(inspected.out, "rows left out"));
  EXPECT_TRUE(contains(inspected.out, "duplicates kept"));
}

TEST_F(PrepCommand, InitProposesASchemaThatPrepTakes) {
  put_log(2000, 30);
  fs::remove(log_.folder + "/schema.toml");
  const Outcome proposed = run({"init", "--raw", log_.folder + "/events.csv"});
  EXPECT_EQ(proposed.code, 0) << proposed.err;
  EXPECT_TRUE(contains(proposed.out, "user = \"uid\""));
  log_.put("proposed.toml", proposed.out);
  std::vector<std::string> a = arguments("store");
  a.insert(a.end(), {"--schema", log_.folder + "/proposed.toml"});
  EXPECT_EQ(run(a).code, 0);
  expect_error(run({"init"}), 2, "name a store to propose a config for, or --raw");
  expect_error(run({"init", "--raw", log_.folder + "/nothing"}), 3, "no such file or folder");
}

TEST_F(PrepCommand, Mistakes) {
  expect_error(run({"prep", "--out", "x"}), 2, "--raw is required");
  expect_error(run({"prep", "--raw", log_.folder, "--out", log_.folder + "/s"}), 2, "--schema");
  expect_error(
      run({"prep", "--raw", log_.folder, "--out", log_.folder + "/s", "--preset", "yambda-5c"}), 2,
      "did you mean");
  expect_error(
      run({"prep", "--raw", log_.folder, "--out", log_.folder + "/s", "--preset", "yambda-5b"}), 3,
      "has no file flat/5b/multi_event.parquet");
  expect_error(run({"prep", "--raw", "x", "--out", "y", "--memory", "lots"}), 2, "--memory");
  expect_error(run({"prep", "--raw", "x", "--out", "y", "--ties", "none"}), 2, "--ties");
#if !SEGUE_HAS_ARROW
  base::make_folders(log_.folder + "/flat/50m");
  log_.put("flat/50m/multi_event.parquet", "PAR1");
  log_.put("artist_item_mapping.parquet", "PAR1");
  log_.put("album_item_mapping.parquet", "PAR1");
  expect_error(run({"prep", "--raw", log_.folder, "--out", log_.folder + "/s"}), 7,
               "built without Parquet support; run scripts/fetch_wheels.sh and rebuild, or bring "
               "CSV");
#endif
}

TEST_F(PrepCommand, SurvivesBeingKilled) {
  put_log(60000, 300);
  survive(3, 1);
}

TEST_F(PrepCommand, AnOldStoreStaysUntilTheNewOneIsComplete) {
  put_log(20000, 100);
  const StoreBytes old = prepare("store");
  std::vector<std::string> a = arguments("store");
  a.insert(a.end(), {"--overwrite", "--min-history", "3"});
  const std::string folder = log_.folder + "/store";
  for (const int ms : {1, 60, 120}) {
    Process process(a);
    std::this_thread::sleep_for(std::chrono::milliseconds(ms));
    process.kill();
    process.wait();
    if (!data::is_finished_store(folder)) continue;  // caught between the two
    const StoreBytes found = without_leftovers(folder);
    EXPECT_TRUE(data::same_store(old, found) ||
                found.contains("hstu_cache_L20/positions_L20_m3.npy"));
    EXPECT_TRUE(data::verify_store(folder).ok());
  }
  EXPECT_EQ(run(a).code, 0);
  EXPECT_TRUE(fs::exists(folder + "/hstu_cache_L20/positions_L20_m3.npy"));
}

TEST_F(PrepCommand, OneProcessAtATime) {
  put_log(60000, 300);
  Process first(arguments("store"));
  while (!fs::exists(log_.folder + "/store/.tmp/store")) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  first.kill(SIGSTOP);  // it would be done before the second one has started
  expect_error(run_process(arguments("store")), 3, "another process is writing this store");
  first.kill(SIGCONT);
  EXPECT_EQ(first.wait().code, 0);
}

/// Prepares where only `bytes` fit into a file.
TEST_F(PrepCommand, FilesThatCannotGrow) {
  put_log(60000, 300);
  const StoreBytes old = prepare("store");
  for (const rlim_t bytes : {20'000, 200'000}) {
    std::vector<std::string> a = arguments("store");
    a.emplace_back("--overwrite");
    Process process(a, [bytes] {
      const struct rlimit limit = {bytes, bytes};
      return ::setrlimit(RLIMIT_FSIZE, &limit) == 0;
    });
    expect_error(process.wait(), 3, "cannot be written: File too large");
    EXPECT_TRUE(data::same_store(old, data::store_bytes(log_.folder + "/store")));  // nothing lost
  }
}

TEST_F(PrepCommand, FullDisk) {
  put_log(60000, 300);
  const std::string disk = log_.folder + "/disk";
  base::make_folders(disk);
  // A tiny disk that only the new process sees.
  Process process(arguments("disk/store"), [&disk] {
    return ::unshare(CLONE_NEWNS) == 0 &&
           ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
           ::mount("tmpfs", disk.c_str(), "tmpfs", 0, "size=1m") == 0;
  });
  const Outcome o = process.wait();
  if (o.code == 125) GTEST_SKIP() << "no right to mount";
  expect_error(o, 3, "No space left on device");
  EXPECT_TRUE(contains(o.err, "are free, about"));  // it was said before
}

TEST_F(PrepCommand, TheSameStoreFromAnyMemory) {
  put_log(60000, 300);
  const StoreBytes wanted = prepare("a");
  std::vector<std::string> a = arguments("b");
  a[8] = "2GB";
  EXPECT_EQ(run(a).code, 0);
  EXPECT_TRUE(data::same_store(wanted, data::store_bytes(log_.folder + "/b")));
}

using SlowPrepCommand = PrepCommand;

TEST_F(SlowPrepCommand, SurvivesBeingKilledOften) {
  put_log(400000, 2000);
  survive(20, 2);
}

TEST_F(SlowPrepCommand, StaysWithinItsMemory) {
  if (base::kSanitized) GTEST_SKIP() << "sanitizers need memory of their own";
  put_log(3000000, 20000);
  const Outcome o = run_process(arguments("store"));
  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_TRUE(contains(o.out, "sorted in "));
  EXPECT_FALSE(contains(o.out, "sorted in 1 run,"));
  // Libraries alone (CUDA's matrix products) may take more than that before anything is done.
  const int64_t program = run_process({"version"}).peak_bytes;
  EXPECT_LT(o.peak_bytes - program, int64_t{128} << 20);
}

}  // namespace
}  // namespace segue::cli
