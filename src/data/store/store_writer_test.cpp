#include "data/store/store_writer.h"

#include <atomic>
#include <filesystem>
#include <memory>
#include <thread>

#include <gtest/gtest.h>

#include "base/npy.h"
#include "base/test_util.h"
#include "data/prep/prep_test_util.h"
#include "data/store/store_verify.h"

namespace segue::data {
namespace {

namespace fs = std::filesystem;
using base::contains;
using base::error_of;

template <class T>
std::vector<T> array(const std::string& path, const char* dtype) {
  const base::NpyFile file(path);
  const std::span<const T> data = file.as<T>(dtype);
  return {data.begin(), data.end()};
}
std::vector<int64_t> integers(const std::string& path) { return array<int64_t>(path, "<i8"); }

LogSchema yambda_schema() { return LogSchema::preset("yambda-50m"); }

Event listen(int64_t user, int64_t time, int64_t item, float value) {
  return {.user = user, .time = time, .item = item, .value = value};
}

TEST(StoreWriter, HandMadeStore) {
  const std::string folder = base::temp_path("store");
  StoreWriter writer({.folder = folder, .history_length = 2, .min_history = {2, 0}},
                     yambda_schema());
  const std::vector<Event> events = {
      listen(1, 10, 4, 50),                           // exactly half: listen_plus
      {.user = 1, .time = 10, .item = 4, .kind = 1},  // like
      listen(1, 20, 2, 49.5f),                        // skip
      {.user = 1, .time = 30, .item = 1, .kind = 2},  // dislike: in no pool, no anchor
      listen(1, 40, 4, 120),                          // listened again and again
      listen(4, 5, 0, Event::kNoValue),               // no value counts as 0: skip
      {.user = 4, .time = 5, .item = 6, .value = 99, .kind = 3, .organic = 1},
  };
  writer.add(std::span(events).first(3));
  EXPECT_FALSE(is_finished_store(folder));
  writer.add(std::span(events).subspan(3));
  const std::vector<int64_t> items = {1, 5, 1}, artists = {70, 50, 71};
  writer.set_attribute("artist_id", items, artists);
  const std::vector<int64_t> late_item = {8}, late_artist = {80};
  writer.set_attribute("artist_id", late_item, late_artist);
  EXPECT_FALSE(is_finished_store(folder));
  writer.finish();
  ASSERT_TRUE(is_finished_store(folder));

  const std::string cache = folder + "/hstu_cache_L2/";
  using Ints = std::vector<int64_t>;
  EXPECT_EQ(integers(cache + "flat_uid.npy"), (Ints{1, 1, 1, 1, 1, 4, 4}));
  EXPECT_EQ(integers(cache + "flat_item_ids.npy"), (Ints{4, 4, 2, 1, 4, 0, 6}));
  EXPECT_EQ(integers(cache + "flat_timestamps.npy"), (Ints{10, 10, 20, 30, 40, 5, 5}));
  EXPECT_EQ(integers(cache + "flat_event_types.npy"), (Ints{0, 1, 0, 2, 0, 0, 3}));
  EXPECT_EQ(array<float>(cache + "flat_played_ratio.npy", "<f4"),
            (std::vector<float>{50, 0, 49.5f, 0, 120, 0, 99}));
  using Bytes = std::vector<int8_t>;
  EXPECT_EQ(array<int8_t>(cache + "flat_is_organic.npy", "|i1"), (Bytes{0, 0, 0, 0, 0, 0, 1}));
  EXPECT_EQ(array<int8_t>(cache + "flat_is_listen_plus.npy", "|b1"), (Bytes{1, 0, 0, 0, 1, 0, 0}));
  EXPECT_EQ(array<int8_t>(cache + "flat_is_like.npy", "|b1"), (Bytes{0, 1, 0, 0, 0, 0, 0}));
  EXPECT_EQ(array<int8_t>(cache + "flat_is_skip.npy", "|b1"), (Bytes{0, 0, 1, 0, 0, 1, 0}));
  EXPECT_EQ(integers(cache + "user_start.npy"), (Ints{-1, 0, -1, -1, 5}));
  EXPECT_EQ(integers(cache + "user_end.npy"), (Ints{-1, 5, -1, -1, 7}));
  EXPECT_EQ(integers(cache + "unique_uids.npy"), (Ints{1, 4}));
  EXPECT_EQ(integers(cache + "positions_L2_m0.npy"), (Ints{0, 2, 4, 5}));
  EXPECT_EQ(integers(cache + "anchor_ts_L2_m0.npy"), (Ints{10, 20, 40, 5}));
  EXPECT_EQ(integers(cache + "positions_L2.npy"), (Ints{2, 4}));
  EXPECT_EQ(integers(cache + "anchor_ts_L2.npy"), (Ints{20, 40}));
  EXPECT_EQ(base::read_file(cache + "store_meta.json"), R"({"num_users": 2, "total_events": 7})");
  EXPECT_EQ(base::read_file(cache + "_READY"), "");
  // Maps reach as far as their rows, popularity as far as anything; the last row of an item counts.
  EXPECT_EQ(integers(folder + "/item_popularity.npy"), (Ints{1, 1, 1, 0, 3, 0, 1, 0, 0}));
  EXPECT_EQ(integers(folder + "/item_to_artist.npy"), (Ints{0, 71, 0, 0, 0, 50, 0, 0, 80}));
  EXPECT_EQ(integers(folder + "/item_to_album.npy"), Ints(9, 0));

  EXPECT_FALSE(base::exists(folder + "/.tmp"));
  const StoreManifest manifest = StoreManifest::read(folder);
  EXPECT_EQ(manifest.num_events, 7);
  EXPECT_EQ(manifest.num_users, 2);
  EXPECT_EQ(manifest.num_items, 9);
  EXPECT_EQ(manifest.files.size(), 21U);
  EXPECT_EQ(base::to_toml(read_store_schema(folder)), base::to_toml(yambda_schema()));
  EXPECT_TRUE(verify_store(folder).ok());
}

/// The vectors' store was written by the reference; its columns, fed in as events, give its files.
TEST(StoreWriter, ReproducesTheReferenceCache) {
  const std::string golden = "tests/golden/golden_data", cache = golden + "/hstu_cache_L60/";
  const auto users = integers(cache + "flat_uid.npy"),
             items = integers(cache + "flat_item_ids.npy"),
             times = integers(cache + "flat_timestamps.npy"),
             kinds = integers(cache + "flat_event_types.npy");
  const auto values = array<float>(cache + "flat_played_ratio.npy", "<f4");
  const auto organic = array<int8_t>(cache + "flat_is_organic.npy", "|i1");

  const std::string folder = base::temp_path("store");
  // Small buffers: many blocks.
  StoreWriter writer(
      {.folder = folder, .history_length = 60, .min_history = {60, 0}, .buffer_bytes = 200000},
      yambda_schema());
  for (size_t i = 0; i < users.size(); ++i) {
    const Event e = {.user = users[i],
                     .time = times[i],
                     .item = items[i],
                     .value = values[i],
                     .kind = static_cast<uint8_t>(kinds[i]),
                     .organic = organic[i]};
    writer.add({&e, 1});
  }
  for (const std::string name : {"artist", "album"}) {
    writer.set_attribute(name + "_id", integers(golden + "/" + name + "_map_item_id.npy"),
                         integers(golden + "/" + name + "_map_" + name + "_id.npy"));
  }
  writer.finish();

  int compared = 0;
  for (const auto& entry : fs::directory_iterator(cache)) {
    const std::string name = entry.path().filename().string();
    EXPECT_TRUE(base::read_file(cache + name) ==
                base::read_file(folder + "/hstu_cache_L60/" + name))
        << name;
    ++compared;
  }
  EXPECT_EQ(compared, 18);
  for (const char* name : {"/item_to_artist.npy", "/item_to_album.npy"}) {
    EXPECT_TRUE(base::read_file(golden + name) == base::read_file(folder + name)) << name;
  }
}

TEST(StoreWriter, RefusesWhatCannotBeAStore) {
  const auto message = [](auto action) {
    StoreWriter writer({.folder = base::temp_path("store")}, yambda_schema());
    const auto error = error_of([&] { action(writer); });
    return error ? std::string(error->what()) : "";
  };
  const auto add = [](std::vector<Event> events) {
    return [events](StoreWriter& writer) { writer.add(events); };
  };
  EXPECT_TRUE(contains(message(add({listen(2, 5, 0, 1), listen(1, 6, 0, 1)})), "out of order"));
  EXPECT_TRUE(contains(message(add({listen(2, 5, 0, 1), listen(2, 4, 0, 1)})), "out of order"));
  EXPECT_TRUE(contains(message(add({listen(2, 5, -1, 1)})), "item id -1"));
  EXPECT_TRUE(contains(message(add({listen(int64_t{1} << 40, 5, 0, 1)})), "user_ids = \"dense\""));
  EXPECT_TRUE(contains(message(add({listen(1, 5, 1 << 30, 1)})), "Allow more memory"));
  EXPECT_TRUE(contains(message([](StoreWriter& w) { w.finish(); }), "at least one event"));
  const std::vector<int64_t> one = {1}, minus = {-1};
  EXPECT_TRUE(contains(message([&](StoreWriter& w) { w.set_attribute("mood", one, one); }),
                       "no attribute \"mood\""));
  EXPECT_TRUE(contains(message([&](StoreWriter& w) { w.set_attribute("artist_id", minus, one); }),
                       "item id -1"));
  EXPECT_TRUE(contains(message([&](StoreWriter& w) { w.set_attribute("artist_id", one, minus); }),
                       "negative"));
  // Nothing is left of any of them.
  EXPECT_TRUE(fs::is_empty(base::temp_path("store")));
}

TEST(StoreWriter, OneAtATimeAndNeverOverAFinishedStore) {
  const std::string folder = base::temp_path("store");
  const auto write = [&folder](int64_t history, bool overwrite) {
    StoreWriter writer({.folder = folder, .history_length = history, .overwrite = overwrite},
                       yambda_schema());
    const Event e = listen(history, 5, 0, 1);
    writer.add({&e, 1});
    const auto second =
        error_of([&] { StoreWriter({.folder = folder, .overwrite = true}, yambda_schema()); });
    ASSERT_TRUE(second);
    EXPECT_EQ(second->code(), ErrorCode::kIo);
    EXPECT_TRUE(contains(second->what(), "another process is writing"));
    writer.finish();
  };
  write(3, false);
  const auto error = error_of([&] { write(5, false); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::kInvalidArgument);
  EXPECT_TRUE(contains(error->what(), "holds a finished store"));
  EXPECT_TRUE(base::exists(folder + "/hstu_cache_L3/_READY"));
  write(5, true);
  EXPECT_FALSE(base::exists(folder + "/hstu_cache_L3"));
  EXPECT_TRUE(verify_store(folder).ok());
}

TEST(StoreWriter, AnUnfinishedWriterLeavesAnOldStoreAlone) {
  const std::string folder = base::temp_path("store");
  const Event e = listen(1, 5, 0, 1);
  {
    StoreWriter writer({.folder = folder}, yambda_schema());
    writer.add({&e, 1});
    writer.finish();
  }
  const StoreBytes before = store_bytes(folder);
  {
    StoreWriter writer({.folder = folder, .overwrite = true}, yambda_schema());
    writer.add({&e, 1});
  }
  EXPECT_TRUE(same_store(before, store_bytes(folder)));
}

TEST(StoreStage, ClearsAwayWhatAKilledProcessLeft) {
  const std::string folder = base::temp_path("store");
  base::make_folders(folder + "/.tmp/store/hstu_cache_L9");
  base::put_file(folder + "/.tmp/runs-0", "old");
  base::put_file(folder + "/.tmp/lock", "");
  base::put_file(folder + "/notes.txt", "not ours");
  {
    const StoreStage stage(folder, StageMode::kNew);
    EXPECT_FALSE(base::exists(folder + "/.tmp/runs-0"));
    EXPECT_TRUE(fs::is_empty(folder + "/.tmp/store"));
  }
  EXPECT_FALSE(base::exists(folder + "/.tmp"));
  EXPECT_EQ(base::read_file(folder + "/notes.txt"), "not ours");
}

class ReplacedStore : public testing::Test {
 protected:
  ReplacedStore() : folder_(base::temp_path("store")) { write(1, false); }

  void write(int64_t user, bool overwrite = true) const {
    StoreWriter writer({.folder = folder_, .history_length = 3, .overwrite = overwrite},
                       yambda_schema());
    const Event e = listen(user, 5, 0, 1);
    writer.add({&e, 1});
    writer.finish();
  }
  int64_t user() const { return integers(folder_ + "/hstu_cache_L3/unique_uids.npy")[0]; }

  std::string folder_;
};

TEST_F(ReplacedStore, IsThereAtEveryMoment) {
  std::atomic<bool> stop = false;
  int64_t missing = 0, looks = 0;
  std::thread reader([&] {
    for (; !stop; ++looks) missing += base::exists(folder_ + "/hstu_cache_L3/_READY") ? 0 : 1;
  });
  for (int64_t i = 0; i < 8; ++i) write(i);
  stop = true;
  reader.join();
  EXPECT_EQ(missing, 0) << "of " << looks;
  EXPECT_GT(looks, 8);
  EXPECT_EQ(user(), 7);
  EXPECT_TRUE(verify_store(folder_).ok());
  EXPECT_FALSE(base::exists(StoreStage::beside(folder_)));
}

TEST_F(ReplacedStore, FilesOfOthersStay) {
  base::put_file(folder_ + "/notes.txt", "mine");
  base::make_folders(folder_ + "/runs/1");
  fs::permissions(folder_, fs::perms::owner_all | fs::perms::group_read);
  write(2);
  EXPECT_EQ(user(), 2);
  EXPECT_EQ(base::read_file(folder_ + "/notes.txt"), "mine");
  EXPECT_TRUE(base::exists(folder_ + "/runs/1"));
  EXPECT_EQ(fs::status(folder_).permissions(), fs::perms::owner_all | fs::perms::group_read);
  EXPECT_FALSE(base::exists(folder_ + "/.tmp"));
}

TEST_F(ReplacedStore, ThroughALinkAndFromInside) {
  fs::create_directory_symlink(folder_, folder_ + "-link");
  StoreWriter writer({.folder = folder_ + "-link", .history_length = 3, .overwrite = true},
                     yambda_schema());
  const Event e = listen(7, 5, 0, 1);
  writer.add({&e, 1});
  writer.finish();
  EXPECT_TRUE(fs::is_symlink(folder_ + "-link"));
  EXPECT_EQ(user(), 7);

  const fs::path before = fs::current_path();
  fs::current_path(folder_);
  StoreWriter inside({.folder = ".", .history_length = 3, .overwrite = true}, yambda_schema());
  inside.add({&e, 1});
  inside.finish();
  EXPECT_TRUE(base::exists("hstu_cache_L3/_READY"));
  EXPECT_FALSE(base::exists(".tmp"));
  fs::current_path(before);
}

TEST_F(ReplacedStore, WhatAKilledProcessLeftBesideIsClearedAway) {
  const std::string beside = StoreStage::beside(folder_);
  fs::copy(folder_, beside, fs::copy_options::recursive);  // exchanged, not yet removed
  base::make_folders(beside + "/.tmp");
  base::put_file(beside + "/.tmp/lock", "");
  base::put_file(beside + "/notes.txt", "mine");
  write(5);
  EXPECT_FALSE(base::exists(beside));
  EXPECT_EQ(user(), 5);
  EXPECT_EQ(base::read_file(folder_ + "/notes.txt"), "mine");
}

TEST(StoreStage, AFolderOfTheSameNameAsTheIndexIsLeftAlone) {
  const std::string folder = base::temp_path("store");
  base::make_folders(folder + "/segue/src");
  const auto error = error_of([&] { StoreStage(folder, StageMode::kNew); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::kInvalidArgument);
  EXPECT_TRUE(contains(error->what(), "/segue: is not part of a store"));
  EXPECT_TRUE(base::exists(folder + "/segue/src"));
  EXPECT_FALSE(base::exists(folder + "/.tmp"));
}

TEST(StoreStage, FoldersThatCannotBe) {
  EXPECT_TRUE(
      contains(error_of([] { StoreStage("", StageMode::kReplace); })->what(), "has no name"));

  const std::string file = base::temp_path("file");
  base::put_file(file, "x");
  const auto error = error_of([&] { StoreStage(file + "/store", StageMode::kNew); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::kIo);
}

}  // namespace
}  // namespace segue::data
