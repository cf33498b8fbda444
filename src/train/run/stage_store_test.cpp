#include "train/run/stage_store.h"

#include <filesystem>
#include <thread>

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/file.h"
#include "base/test_util.h"

namespace segue::train {
namespace {

namespace fs = std::filesystem;

/// Something in the form of a store.
std::string make_files() {
  const std::string store = base::temp_path("store");
  fs::create_directories(store + "/hstu_cache_L8");
  fs::create_directories(store + "/segue");
  base::put_file(store + "/hstu_cache_L8/flat_uid.npy", std::string(100'000, 'u'));
  base::put_file(store + "/segue/manifest.json", "{}");
  base::put_file(store + "/segue/verified-here.json", "this machine's");
  base::put_file(store + "/split_meta.json", "");
  return store;
}

TEST(StageStore, CopiesOnceAndOnlyTheStore) {
  const std::string store = make_files(), folder = base::temp_path("disk");
  const std::string copy = stage_store(store + "/", folder);
  EXPECT_EQ(base::read_file(copy + "/hstu_cache_L8/flat_uid.npy"), std::string(100'000, 'u'));
  EXPECT_TRUE(base::exists(copy + "/split_meta.json"));
  EXPECT_FALSE(base::exists(copy + "/segue/verified-here.json"));
  // What this machine derives lies beside the copy, and does not make it another store.
  base::put_file(store + "/segue/positions.npy", "derived");
  const auto before = fs::last_write_time(copy + "/hstu_cache_L8/flat_uid.npy");
  EXPECT_EQ(stage_store(store, folder), copy);
  EXPECT_EQ(fs::last_write_time(copy + "/hstu_cache_L8/flat_uid.npy"), before);
  EXPECT_EQ(stage_store(store + "/hstu_cache_L8", folder), copy + "/hstu_cache_L8");
}

TEST(StageStore, CompletesWhatWasBrokenOff) {
  const std::string store = make_files(), folder = base::temp_path("disk");
  const std::string copy = stage_store(store, folder);
  fs::remove(copy + "/staged");
  base::put_file(copy + "/hstu_cache_L8/flat_uid.npy", "half");
  base::put_file(copy + "/hstu_cache_L8/flat_uid.npy.part", "half");
  EXPECT_EQ(stage_store(store, folder), copy);
  EXPECT_EQ(fs::file_size(copy + "/hstu_cache_L8/flat_uid.npy"), 100'000U);
  EXPECT_FALSE(base::exists(copy + "/hstu_cache_L8/flat_uid.npy.part"));
}

TEST(StageStore, AStoreThatChangedIsAnother) {
  const std::string store = make_files(), folder = base::temp_path("disk");
  const std::string copy = stage_store(store, folder);
  base::put_file(store + "/split_meta.json", "new");
  EXPECT_NE(stage_store(store, folder), copy);
}

TEST(StageStore, ProcessesOfAMachineShareACopy) {
  const std::string store = make_files(), folder = base::temp_path("disk");
  std::vector<std::string> copies(4);
  std::vector<std::thread> threads;
  for (std::string& copy : copies) {
    threads.emplace_back([&copy, &store, &folder] { copy = stage_store(store, folder); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& copy : copies) EXPECT_EQ(copy, copies[0]);
}

TEST(StageStore, SaysWhatIsWrong) {
  const std::string empty = base::temp_path("empty"), file = base::temp_path("file");
  fs::create_directories(empty);
  base::put_file(file, "");
  EXPECT_TRUE(base::contains(
      base::message_of(ErrorCode::kNotFound, [&] { stage_store(empty, base::temp_path("disk")); }),
      "no store"));
  const std::string store = make_files();
  base::message_of(ErrorCode::kIo, [&] { stage_store(store, file); });
}

}  // namespace
}  // namespace segue::train
