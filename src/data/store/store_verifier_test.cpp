#include "data/store/store_verifier.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/log.h"
#include "base/test_util.h"
#include "data/inspect/inspect.h"
#include "data/sample/gather.h"
#include "data/sample/sample_stream.h"
#include "data/store/damage_test_util.h"
#include "data/store/store_test_util.h"
#include "data/synth/synth_output.h"

namespace segue::data {
namespace {

namespace fs = std::filesystem;
using base::contains;

/// A store as a run opens it.
struct OpenStore {
  EventStore store;
  Gatherer gatherer;
  SampleStream stream;

  explicit OpenStore(const std::string& folder, VerifyMode verify = VerifyMode::kAuto)
      : store(folder, schema_for(folder).samples(), "", verify),
        gatherer(store, {.history_length = 16}),
        stream(store, stream_config()) {}

  static StreamConfig stream_config() {
    StreamConfig config;
    config.min_history = 4;
    return config;
  }
  std::vector<const IndexFile*> indices() const {
    return {&gatherer.pools()[0].file(), &stream.windows().pieces()[0].file()};
  }
};

void verify(const std::string& folder, VerifyMode mode = VerifyMode::kAuto) {
  const OpenStore open(folder, mode);
  StoreVerifier(open.store, open.indices(), /*at_once=*/0).finish();
}

/// Whether a run that opens the store now finds nothing left to compare.
bool is_verified(const std::string& folder, VerifyMode mode = VerifyMode::kAuto) {
  const OpenStore open(folder, mode);
  const std::vector<const IndexFile*> indices = open.indices();
  const auto known = [&](const CheckedFile& file) { return open.store.verified().contains(file); };
  const std::vector<CheckedFile> files = open.store.checked_files();
  return std::ranges::all_of(files, known) &&
         std::ranges::all_of(indices, [&](const IndexFile* i) { return known(i->checked()); });
}

class VerifierTest : public testing::Test {
 protected:
  void SetUp() override {
    base::set_log_level(base::LogLevel::kError);
    folder_ = base::temp_path("store");
    const SynthLog log({.users = 40, .items = 200, .days = 8, .events_per_user = 30, .seed = 5});
    write_synth_store(log, {.folder = folder_, .history_length = 16, .min_history = {4}});
  }
  void TearDown() override { base::set_log_level(base::LogLevel::kInfo); }

  std::string column(const std::string& name) const {
    return folder_ + "/hstu_cache_L16/" + name + ".npy";
  }
  std::vector<std::string> stamps() const {
    std::vector<std::string> found;
    for (const auto& entry : fs::directory_iterator(folder_ + "/segue")) {
      const std::string name = entry.path().filename().string();
      if (name.starts_with("verified-")) found.push_back(entry.path().string());
    }
    return found;
  }

  std::string folder_;
};

TEST_F(VerifierTest, EverythingThatARunReadsIsCompared) {
  verify(folder_);
  const OpenStore open(folder_);
  std::vector<std::string> names;
  for (const CheckedFile& file : open.store.checked_files()) names.push_back(file.name);
  for (const IndexFile* index : open.indices()) names.push_back(index->checked().name);
  for (const char* wanted : {"hstu_cache_L16/flat_uid.npy",
                             "hstu_cache_L16/flat_item_ids.npy",
                             "hstu_cache_L16/flat_timestamps.npy",
                             "hstu_cache_L16/flat_event_types.npy",
                             "hstu_cache_L16/flat_is_organic.npy",
                             "hstu_cache_L16/flat_is_like.npy",
                             "hstu_cache_L16/flat_is_skip.npy",
                             "hstu_cache_L16/flat_is_listen_plus.npy",
                             "hstu_cache_L16/user_start.npy",
                             "hstu_cache_L16/user_end.npy",
                             "hstu_cache_L16/unique_uids.npy",
                             "hstu_cache_L16/positions_L16_m4.npy",
                             "hstu_cache_L16/anchor_ts_L16_m4.npy",
                             "hstu_cache_L16/store_meta.json",
                             "item_to_artist.npy",
                             "item_to_album.npy",
                             "segue/schema.toml",
                             "segue/listen_probability.npy",
                             "pools.idx",
                             "windows_m4_s86400.idx"}) {
    EXPECT_EQ(std::ranges::count(names, wanted), 1) << wanted;
  }
}

TEST_F(VerifierTest, AFlippedByteOfAnyFileIsFound) {
  { const OpenStore makes_indices(folder_); }
  const Damage damage(folder_, 1);
  for (const std::string& name : damage.files()) {
    if (contains(name, "played_ratio") || contains(name, "popularity") ||
        contains(name, "split_meta")) {
      continue;  // nobody reads them
    }
    const std::string path = folder_ + "/" + name, good = base::read_file(path);
    for (const size_t at : {size_t{0}, good.size() / 2, good.size() - 1}) {
      if (name.ends_with(".idx")) continue;  // see below
      std::string bad = good;
      bad[at] = static_cast<char>(bad[at] ^ 1);
      base::put_file(path, bad);
      try {
        verify(folder_);
        ADD_FAILURE() << name << " at " << at;
      } catch (const Error& error) {
        EXPECT_TRUE(contains(error.what(), fs::path(name).filename().string()))
            << name << " at " << at;
      }
    }
    base::put_file(path, good);
  }
  verify(folder_);
}

/// Of a large index opening checks only some blocks.
TEST_F(VerifierTest, AnIndexThatChangedAfterItWasOpenedIsFound) {
  const OpenStore open(folder_);
  const std::string path = open.gatherer.pools()[0].path();
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(4096 + 100);
  file.put('\x5a');
  file.close();
  StoreVerifier verifier(open.store, open.indices(), /*at_once=*/0);
  const std::string message = base::message_of(ErrorCode::kCorrupt, [&] { verifier.finish(); });
  EXPECT_TRUE(contains(message, "pools.idx: was changed"));
  EXPECT_TRUE(contains(message, "remove the file, it is made again"));
}

TEST_F(VerifierTest, TheMessageSaysWhatToDo) {
  { const OpenStore makes_indices(folder_); }
  Damage(folder_, 3).flip_in("hstu_cache_L16/flat_item_ids.npy");
  const std::string message = base::message_of(ErrorCode::kCorrupt, [&] { verify(folder_); });
  EXPECT_TRUE(contains(message, column("flat_item_ids") + ": "));
  EXPECT_TRUE(contains(message, "segue prep --out " + folder_ + " --verify"));
  EXPECT_TRUE(contains(message, "data.verify = \"never\""));
  verify(folder_, VerifyMode::kNever);
}

TEST_F(VerifierTest, LookingDoesNotWaitAndErrorsStay) {
  { const OpenStore makes_indices(folder_); }
  Damage(folder_, 3).flip_in("hstu_cache_L16/flat_is_organic.npy");
  const OpenStore open(folder_);
  EXPECT_THROW(StoreVerifier(open.store, open.indices()), Error);
  StoreVerifier verifier(open.store, open.indices(), /*at_once=*/0);
  bool done = false;
  EXPECT_THROW(while (!done) done = verifier.finished(0), Error);
  EXPECT_FALSE(done);
  EXPECT_THROW(verifier.finished(0), Error);
  EXPECT_THROW(verifier.finish(), Error);
}

TEST_F(VerifierTest, WhatWasComparedIsNotComparedAgain) {
  EXPECT_FALSE(is_verified(folder_));
  verify(folder_);
  ASSERT_EQ(stamps().size(), 1u);
  EXPECT_TRUE(is_verified(folder_));
  EXPECT_FALSE(is_verified(folder_, VerifyMode::kAlways));
  const OpenStore open(folder_);
  StoreVerifier nothing_to_do(open.store, open.indices(), /*at_once=*/0);
  EXPECT_TRUE(nothing_to_do.finished(0));
}

TEST_F(VerifierTest, WhoeverNeedsItDoesTheRest) {
  for (int i = 0; i < 20; ++i) {
    const OpenStore open(folder_, VerifyMode::kAlways);
    StoreVerifier verifier(open.store, open.indices(), /*at_once=*/0);
    int turns = 0;
    while (!verifier.finished(1e-9)) ++turns;  // a buffer at a time
    EXPECT_TRUE(verifier.finished(0));
    EXPECT_LT(turns, 1000);
  }
}

TEST_F(VerifierTest, WhatWasComparedBeforeAnEarlyEndIsKept) {
  const OpenStore open(folder_);
  {
    StoreVerifier verifier(open.store, open.indices(), /*at_once=*/0);
    verifier.finished(1e-9);  // stops the thread
  }
  EXPECT_TRUE(stamps().size() == 1 || stamps().empty());
  const OpenStore again(folder_);
  StoreVerifier verifier(again.store, again.indices(), /*at_once=*/0);
  verifier.finish();
  EXPECT_TRUE(is_verified(folder_));
}

TEST_F(VerifierTest, WhatChangedIsComparedAgain) {
  verify(folder_);
  fs::last_write_time(column("flat_is_like"),
                      fs::last_write_time(column("flat_is_like")) + std::chrono::nanoseconds(1));
  EXPECT_FALSE(is_verified(folder_));
  verify(folder_);
  EXPECT_TRUE(is_verified(folder_));

  // Even when size and time are as they were.
  const fs::file_time_type before = fs::last_write_time(column("flat_item_ids"));
  Damage(folder_, 3).flip_in("hstu_cache_L16/flat_item_ids.npy");
  fs::last_write_time(column("flat_item_ids"), before);
  EXPECT_THROW(verify(folder_), Error);
}

TEST_F(VerifierTest, ACopyIsComparedAgain) {
  verify(folder_);
  const std::string copy = base::temp_path("copy");
  fs::copy(folder_, copy, fs::copy_options::recursive);
  for (const auto& entry : fs::recursive_directory_iterator(copy)) {
    const fs::path original = folder_ / entry.path().lexically_relative(copy);
    fs::last_write_time(entry.path(), fs::last_write_time(original));
  }
  EXPECT_FALSE(is_verified(copy));
}

TEST_F(VerifierTest, AStampThatIsDamagedOrOfAnotherStoreCountsForNothing) {
  verify(folder_);
  const std::string path = stamps().at(0), good = base::read_file(path);
  std::vector<std::string> bad = {good.substr(0, good.size() / 2), "", "[]", "{}"};
  std::string changed = good;
  changed.replace(changed.find("\"inode\": ") + 9, 1, "7");
  bad.push_back(changed);
  ManifestJson j = ManifestJson::parse(good);
  j["manifest"] = hex64(1);
  bad.push_back(sealed(j));
  for (const std::string& text : bad) {
    base::put_file(path, text);
    EXPECT_FALSE(is_verified(folder_)) << text;
  }
  base::put_file(path, good);
  EXPECT_TRUE(is_verified(folder_));
}

TEST_F(VerifierTest, WithoutAPlaceToRememberItIsComparedEachTime) {
  verify(folder_);
  const std::string path = stamps().at(0);
  fs::remove(path);
  fs::create_directory(path);  // not even root can write a file there
  verify(folder_);
  EXPECT_FALSE(is_verified(folder_));
}

TEST_F(VerifierTest, AFileThatTookTheOldOnesPlaceIsNotTheOneInUse) {
  const OpenStore open(folder_);
  const std::string path = column("flat_item_ids");
  fs::copy(path, path + ".new");
  fs::rename(path + ".new", path);
  StoreVerifier verifier(open.store, open.indices(), /*at_once=*/0);
  const std::string message = base::message_of(ErrorCode::kCorrupt, [&] { verifier.finish(); });
  EXPECT_TRUE(contains(message, "was replaced since it was opened"));
}

/// An index would outlive the damage: its fingerprint looks at some pages only.
TEST_F(VerifierTest, NoIndexIsMadeFromDamagedColumns) {
  const std::string likes = column("flat_is_like"), good = base::read_file(likes);
  Damage(folder_, 3).flip_in("hstu_cache_L16/flat_is_like.npy");
  EXPECT_THROW(OpenStore open(folder_), Error);
  EXPECT_FALSE(base::exists(folder_ + "/segue/pools.idx"));
  base::put_file(likes, good);
  const std::string times = column("anchor_ts_L16_m4"), good_times = base::read_file(times);
  std::string bytes = good_times;
  bytes[128 + 8 * 77] = static_cast<char>(bytes[128 + 8 * 77] ^ 1);
  base::put_file(times, bytes);
  EXPECT_THROW(OpenStore open(folder_), Error);
  EXPECT_FALSE(base::exists(folder_ + "/segue/windows_m4_s86400.idx"));
  base::put_file(times, good_times);
  verify(folder_);
}

TEST_F(VerifierTest, WithoutManifestOnlyIndicesAreCompared) {
  const TestStore test = make_store(base::temp_path("other"), 1);
  const EventStore store(test.folder, test.schema);
  const Gatherer gatherer(store, {.history_length = 16});
  EXPECT_TRUE(store.checked_files().empty());
  EXPECT_TRUE(store.unlisted_files().empty());
  const IndexFile* const indices[] = {&gatherer.pools()[0].file()};
  StoreVerifier(store, indices).finish();
  EXPECT_TRUE(store.verified().contains(gatherer.pools()[0].file().checked()));
}

TEST_F(VerifierTest, AnchorsThatAnotherProgramAddedAreUnlisted) {
  const std::string from = "L16_m4", to = "L16_m5";
  for (const std::string list : {"positions_", "anchor_ts_"}) {
    fs::copy(column(list + from), column(list + to));
  }
  const EventStore store(folder_, schema_for(folder_).samples());
  store.anchors(5);
  EXPECT_EQ(store.unlisted_files(),
            (std::vector<std::string>{column("positions_L16_m5"), column("anchor_ts_L16_m5")}));
}

}  // namespace
}  // namespace segue::data
