// Rows behind a cache: places, limits, full disks.

#include "sparse/row_store.h"

#include <cstring>
#include <filesystem>
#include <map>
#include <random>
#include <string>

#include <gtest/gtest.h>

#include "base/disk_test_util.h"
#include "base/memory.h"
#include "base/test_util.h"

namespace segue::sparse {
namespace {

using base::contains;
using base::message_of;

RowStoreConfig config_of(int64_t rows, const std::string& folder = "") {
  return {.table = "item", .rows = rows, .weight_bytes = 24, .state_bytes = 4, .folder = folder};
}

TEST(RowStoreTest, RowsKeepTheirPlacesInMemoryAndInAFile) {
  for (const bool file : {false, true}) {
    const std::string folder = base::temp_path("store");
    RowStore store(config_of(100'000, file ? folder : ""));
    std::mt19937_64 random(3);
    std::map<int64_t, int64_t> places;
    for (int i = 0; i < 30'000; ++i) {
      const auto row = static_cast<int64_t>(random() % 100'000);
      const auto known = places.find(row);
      ASSERT_EQ(store.find(row), known == places.end() ? RowStore::kNone : known->second);
      if (known != places.end()) continue;
      store.reserve(1);
      const int64_t place = places[row] = store.add(row);
      EXPECT_FALSE(store.written(place));
      store.set_written(place);
      std::memset(store.weights(place), static_cast<int>(row % 251), 24);
      std::memset(store.state(place), static_cast<int>(row % 241), 4);
    }
    EXPECT_EQ(store.size(), static_cast<int64_t>(places.size()));
    for (const auto& [row, place] : places) {
      EXPECT_EQ(store.row_at(place), row);
      EXPECT_TRUE(store.written(place));
      EXPECT_EQ(store.weights(place)[23], static_cast<std::byte>(row % 251));
      EXPECT_EQ(store.state(place)[3], static_cast<std::byte>(row % 241));
    }
    if (file) {
      EXPECT_TRUE(std::filesystem::is_empty(folder)) << "files have no names";
    }
    store.clear();
    EXPECT_EQ(store.size(), 0);
    EXPECT_EQ(store.find(places.begin()->first), RowStore::kNone);
  }
}

TEST(RowStoreTest, ADeviceMayUseMemoryButNotAFile) {
  RowStore memory(config_of(1000)), file(config_of(1000, base::temp_path("store")));
  memory.reserve(10);
  file.reserve(10);
  EXPECT_TRUE(memory.mapped());
  EXPECT_FALSE(file.mapped());
  memory.set_most_mapped(0);
  EXPECT_FALSE(memory.mapped());
}

TEST(RowStoreTest, FarMoreRowsThanMemoryHas) {
  RowStore store({.table = "huge", .rows = int64_t{1} << 33, .weight_bytes = 32, .state_bytes = 4});
  for (int64_t i = 0; i < 1000; ++i) {
    store.reserve(1);
    const int64_t place = store.add(i * 8'589'934);
    std::memset(store.weights(place), 1, 32);
  }
  EXPECT_EQ(store.find(999 * int64_t{8'589'934}), 999);
  EXPECT_LT(store.bytes(), int64_t{64} << 20);
}

TEST(RowStoreTest, ALimitIsToldBeforeAnythingHappens) {
  RowStoreConfig config = config_of(1'000'000);
  config.most_bytes = 28 * 1000;
  RowStore store(config);
  store.reserve(900);
  for (int64_t row = 0; row < 900; ++row) store.add(row);
  store.reserve(100);  // nothing fails that would do with less
  const std::string message = message_of(ErrorCode::kOutOfMemory, [&] { store.reserve(101); });
  EXPECT_TRUE(contains(message, "item")) << message;
  EXPECT_TRUE(contains(message, "\"file\"")) << message;
  EXPECT_EQ(store.size(), 900);
  EXPECT_EQ(store.add(900), 900);
}

TEST(RowStoreTest, AFullDiskIsAnErrorAndNotASignal) {
  const std::string folder = base::temp_path("disk");
  std::filesystem::create_directories(folder);
  const int result = base::on_small_disk(folder, "16m", [&] {
    RowStore store(config_of(10'000'000, folder));
    std::string message;
    int64_t rows = 0;
    while (message.empty() && rows < 10'000'000) {
      try {
        store.reserve(10'000);
      } catch (const Error& error) {
        message = error.what();
        break;
      }
      for (int64_t i = 0; i < 10'000; ++i, ++rows) {
        std::memset(store.weights(store.add(rows)), 1, 24);
      }
    }
    if (rows < 100'000) return 1;
    if (!contains(message, "No space left") || !contains(message, "spill_folder")) return 2;
    return store.weights(rows - 1)[0] == std::byte{1} ? 0 : 3;
  });
  if (result == base::kNoMount) GTEST_SKIP() << "nothing can be mounted here";
  EXPECT_EQ(result, 0);
}

TEST(RowStoreTest, MemoryThatIsLeftIsKnown) {
  const auto left = base::available_memory();
  ASSERT_TRUE(left);
  EXPECT_GT(*left, int64_t{16} << 20);
  EXPECT_LT(*left, int64_t{1} << 50);
}

}  // namespace
}  // namespace segue::sparse
