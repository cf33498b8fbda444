#include "data/store/event_store.h"

#include <filesystem>

#include <gtest/gtest.h>

#include "data/store/pool_index.h"
#include "data/store/store_test_util.h"

namespace segue::data {
namespace {

namespace fs = std::filesystem;

/// Tests run in the root of the sources.
std::string golden_data() { return "tests/golden/golden_data"; }

/// A copy that may be damaged, without the files that start with `left_out`.
std::string copy_of_golden(const std::string& name, const std::string& left_out = "\n") {
  const fs::path to = base::temp_path(name);
  fs::remove_all(to);  // of an earlier repetition
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(golden_data())) {
    if (entry.is_directory() || entry.path().filename().string().starts_with(left_out)) continue;
    const fs::path copy = to / fs::relative(entry.path(), golden_data());
    fs::create_directories(copy.parent_path());
    fs::copy_file(entry.path(), copy);
  }
  return to;
}

TEST(EventStore, OpensTheReferencesCache) {
  const std::string index = base::temp_path("index");
  for (const std::string& path :
       {golden_data(), golden_data() + "/", golden_data() + "/hstu_cache_L60",
        golden_data() + "/hstu_cache_L60/"}) {
    const EventStore store(path, SampleSchema::yambda(), index);
    EXPECT_EQ(store.num_events(), 21973);
    EXPECT_EQ(store.num_users(), 150);
    EXPECT_EQ(store.history_length(), 60);
    EXPECT_EQ(store.num_items(), 500);
    EXPECT_EQ(store.index_folder(), index);
    EXPECT_EQ(fs::path(store.folder()), fs::path(golden_data()));
  }
  EXPECT_FALSE(fs::exists(index)) << "opening derives nothing";
}

TEST(EventStore, DerivedAnchorsAreTheReferences) {
  const EventStore golden(golden_data(), SampleSchema::yambda(), base::temp_path("index"));
  const std::string bare = copy_of_golden("bare", "positions");
  const EventStore derived(bare, SampleSchema::yambda());
  for (const int64_t min_history : {0, 60}) {
    const Anchors expected = golden.anchors(min_history);
    const Anchors made = derived.anchors(min_history);
    EXPECT_TRUE(std::ranges::equal(made.positions, expected.positions));
    EXPECT_TRUE(std::ranges::equal(made.timestamps, expected.timestamps));
    EXPECT_GT(made.positions.size(), 10000U);
    EXPECT_TRUE(base::contains(expected.positions_file, "positions_L60"));
    EXPECT_TRUE(base::contains(made.positions_file, "segue/anchors_m"));
  }
  // A floor that nobody has prepared.
  for (const int64_t position : golden.anchors(500).positions) {
    const int64_t uid = golden.users()[static_cast<size_t>(position)];
    EXPECT_GE(position - golden.user_start()[static_cast<size_t>(uid)], 500);
  }
  EXPECT_EQ(base::error_of([&] { golden.anchors(-1); })->code(), ErrorCode::kInvalidArgument);
}

TEST(EventStore, MapsMadeFromRowsAreTheReferences) {
  const EventStore golden(golden_data(), SampleSchema::yambda());
  for (const char* left_out : {"item_to_", "item_to_artist", "item_to_album"}) {
    const EventStore store(copy_of_golden(left_out, left_out), SampleSchema::yambda());
    EXPECT_EQ(store.num_items(), 500);
    for (size_t a = 0; a < 2; ++a) {
      EXPECT_TRUE(std::ranges::equal(store.attribute_map(a), golden.attribute_map(a)));
    }
  }
}

TEST(EventStore, AMissingMapSaysWhatWouldServe) {
  const std::string folder = copy_of_golden("store", "item_to_");
  fs::remove(folder + "/album_map_album_id.npy");
  const auto error = base::error_of([&] { EventStore(folder, SampleSchema::yambda()); });
  EXPECT_EQ(error->code(), ErrorCode::kNotFound);
  EXPECT_TRUE(base::contains(error->what(), "item_to_album.npy"));
  EXPECT_TRUE(base::contains(error->what(), "album_map_album_id.npy"));
}

class DamagedStore : public testing::Test {
 protected:
  DamagedStore() : original(make_store(base::temp_path("store"), 1)) {}

  Error expect_error(ErrorCode code, std::initializer_list<std::string> parts) {
    const auto error = base::error_of([&] {
      const EventStore store(original.folder, original.schema);
      store.anchors(0);
    });
    if (!error) return {ErrorCode::kIo, ""};
    EXPECT_EQ(error->code(), code) << error->what();
    for (const std::string& part : parts) EXPECT_TRUE(base::contains(error->what(), part));
    return *error;
  }

  TestStore original;
};

TEST_F(DamagedStore, IsFineBefore) {
  const EventStore store(original.folder, original.schema);
  EXPECT_EQ(store.num_events(), original.num_events());
  EXPECT_TRUE(std::ranges::equal(store.anchors(0).positions, original.anchors(0)));
}

TEST_F(DamagedStore, TruncatedColumns) {
  for (const fs::directory_entry& entry : fs::directory_iterator(original.cache)) {
    const std::string path = entry.path();
    if (entry.path().extension() != ".npy" || path.ends_with("flat_played_ratio.npy")) continue;
    const std::string good = base::read_file(path);
    for (const size_t size : {good.size() - 1, good.size() / 2, size_t{60}, size_t{0}}) {
      base::put_file(path, good.substr(0, size));
      expect_error(ErrorCode::kCorrupt, {path});
    }
    fs::remove(path);
    const std::string name = entry.path().filename();
    const bool anchors = name.starts_with("positions") || name.starts_with("anchor_ts");
    if (!anchors) expect_error(ErrorCode::kNotFound, {path});  // anchors can be made again
    base::put_file(path, good);
  }
}

TEST_F(DamagedStore, ColumnsOfDifferentLengths) {
  const auto shorter = [](auto column) {
    column.pop_back();
    return column;
  };
  const std::string uid = original.column("flat_uid");
  put_npy(original.column("flat_timestamps"), "<i8", shorter(original.timestamps));
  expect_error(ErrorCode::kCorrupt, {original.column("flat_timestamps"), uid});
  put_npy(original.column("flat_timestamps"), "<i8", original.timestamps);
  put_npy(original.column("flat_is_like"), "|b1", shorter(original.pools[1]));
  expect_error(ErrorCode::kCorrupt, {original.column("flat_is_like"), uid});
  put_npy(original.column("flat_is_like"), "|b1", original.pools[1]);
  put_npy(original.column("user_end"), "<i8", shorter(original.user_end));
  expect_error(ErrorCode::kCorrupt, {original.column("user_end"), original.column("user_start")});
  put_npy(original.column("user_end"), "<i8", original.user_end);
  put_npy(original.column("anchor_ts_L30_m0"), "<i8", shorter(original.anchors(0)));
  expect_error(ErrorCode::kCorrupt, {"anchor_ts_L30_m0.npy", "positions_L30_m0.npy"});
  put_npy(original.folder + "/item_to_album.npy", "<i8", shorter(original.maps[1]));
  expect_error(ErrorCode::kCorrupt, {"item_to_album.npy", "item_to_artist.npy"});
}

TEST_F(DamagedStore, WrongTypesAndShapes) {
  const std::vector<int32_t> narrow(original.items.begin(), original.items.end());
  put_npy(original.column("flat_item_ids"), "<i4", narrow);
  expect_error(ErrorCode::kCorrupt, {original.column("flat_item_ids"), "<i4", "<i8"});
  const int64_t shape[] = {1, original.num_events()};
  base::write_npy(original.column("flat_item_ids"), "<i8", shape,
                  std::as_bytes(std::span<const int64_t>(original.items)));
  expect_error(ErrorCode::kCorrupt, {original.column("flat_item_ids"), "2 dimensions"});
}

TEST_F(DamagedStore, UnfinishedStores) {
  fs::remove(original.cache + "/_READY");
  expect_error(ErrorCode::kCorrupt, {"unfinished", "_READY"});
}

TEST_F(DamagedStore, UsersThatDoNotTileTheEvents) {
  const auto with = [&](size_t uid, int64_t start, int64_t end, const std::string& message) {
    TestStore s = original;
    s.user_start[uid] = start;
    s.user_end[uid] = end;
    put_npy(s.column("user_start"), "<i8", s.user_start);
    put_npy(s.column("user_end"), "<i8", s.user_end);
    expect_error(ErrorCode::kCorrupt, {"user_start.npy", "user_end.npy", message});
  };
  const auto uid = static_cast<size_t>(original.unique_users[4]);
  const int64_t start = original.user_start[uid], end = original.user_end[uid];
  with(uid, start + 1, end, "do not tile");
  with(uid, start - 1, end, "do not tile");
  with(uid, start, start, "has events");
  with(uid, -1, -1, "do not tile");
  const auto last = static_cast<size_t>(original.unique_users.back());
  with(last, original.user_start[last], original.num_events() + 1, "has events");
  with(last, -1, -1, "do not tile");
}

TEST_F(DamagedStore, UsersThatAreNotListed) {
  TestStore s = original;
  s.unique_users.pop_back();
  put_npy(s.column("unique_uids"), "<i8", s.unique_users);
  expect_error(ErrorCode::kCorrupt, {"unique_uids.npy", "does not list"});
  s.unique_users = original.unique_users;
  s.unique_users.push_back(s.unique_users.back() + 1);
  put_npy(s.column("unique_uids"), "<i8", s.unique_users);
  expect_error(ErrorCode::kCorrupt, {"unique_uids.npy", "lists"});
}

TEST_F(DamagedStore, EventsOfAnotherUser) {
  original.users.front() += 1;
  put_npy(original.column("flat_uid"), "<i8", original.users);
  expect_error(ErrorCode::kCorrupt, {"flat_uid.npy", "user_start.npy"});
}

TEST_F(DamagedStore, MetadataThatSaysOtherwise) {
  base::put_file(original.cache + "/store_meta.json", "{\"num_users\": 3, \"total_events\": 4}");
  expect_error(ErrorCode::kCorrupt, {"store_meta.json", "flat_uid.npy"});
  base::put_file(original.cache + "/store_meta.json", "{\"num_users\": ");
  expect_error(ErrorCode::kCorrupt, {"store_meta.json"});
}

TEST_F(DamagedStore, AnchorsThatAreNone) {
  std::vector<int64_t> anchors = original.anchors(0);
  anchors.back() = original.num_events();
  put_npy(original.column("positions_L30_m0"), "<i8", anchors);
  expect_error(ErrorCode::kCorrupt, {"positions_L30_m0.npy", "ascending"});
  anchors = original.anchors(0);
  for (int64_t& a : anchors) a = std::min(a + 5, original.num_events());
  put_npy(original.column("positions_L30_m0"), "<i8", anchors);
  expect_error(ErrorCode::kCorrupt, {"positions_L30_m0.npy"});
}

TEST(EventStore, ManyCachesMustBeTold) {
  const TestStore s = make_store(base::temp_path("store"), 1);
  make_store(s.folder, 1, {.history_length = 40});
  const auto error = base::error_of([&] { EventStore(s.folder, s.schema); });
  EXPECT_TRUE(base::contains(error->what(), "hstu_cache_L30"));
  EXPECT_TRUE(base::contains(error->what(), "hstu_cache_L40"));
  EXPECT_NO_THROW(EventStore(s.cache, s.schema));
}

TEST(EventStore, FoldersThatHoldNone) {
  EXPECT_EQ(base::error_of([&] { EventStore("/nowhere", SampleSchema::yambda()); })->code(),
            ErrorCode::kNotFound);
  const std::string empty = base::temp_path("empty");
  base::make_folders(empty);
  EXPECT_EQ(base::error_of([&] { EventStore(empty, SampleSchema::yambda()); })->code(),
            ErrorCode::kNotFound);
}

TEST(EventStore, RunsOfUsersCoverThemAll) {
  const TestStore s = make_store(base::temp_path("store"), 1, {.users = 50});
  const EventStore store(s.folder, s.schema);
  for (const int64_t events : {1, 100, 1000, 1000000}) {
    const std::vector<size_t> runs = store.user_runs(events);
    EXPECT_EQ(runs.front(), 0U);
    EXPECT_EQ(runs.back(), 50U);
    EXPECT_TRUE(std::ranges::is_sorted(runs, std::ranges::less_equal{}));
  }
  EXPECT_EQ(store.user_runs(1).size(), 51U);
}

TEST(PoolIndex, HoldsEveryEventOfAPool) {
  for (const bool disjoint : {true, false}) {
    const TestStore s = make_store(base::temp_path(disjoint ? "a" : "b"), 2,
                                   {.users = 40, .disjoint_pools = disjoint});
    const EventStore store(s.folder, s.schema);
    const PoolIndex index = PoolIndex::open_or_build(store);
    EXPECT_EQ(index.num_shared() > 0, !disjoint);
    for (size_t p = 0; p < 3; ++p) {
      int64_t total = 0;
      for (const int64_t uid : s.unique_users) {
        const auto u = static_cast<size_t>(uid);
        std::vector<uint32_t> expected;
        for (int64_t e = s.user_start[u]; e < s.user_end[u]; ++e) {
          if (s.pools[p][static_cast<size_t>(e)] != 0) {
            expected.push_back(static_cast<uint32_t>(e - s.user_start[u]));
          }
        }
        EXPECT_TRUE(std::ranges::equal(index.of_user(p, uid), expected));
        total += static_cast<int64_t>(expected.size());
      }
      EXPECT_EQ(index.size(p), total);
    }
  }
}

TEST(PoolIndex, FollowsAChangedStore) {
  TestStore s = make_store(base::temp_path("store"), 2);
  const int64_t before = PoolIndex::open_or_build(EventStore(s.folder, s.schema)).size(0);
  s.pools[0][0] ^= 1;
  put_npy(s.column("flat_is_listen_plus"), "|b1", s.pools[0]);
  EXPECT_NE(PoolIndex::open_or_build(EventStore(s.folder, s.schema)).size(0), before);
}

/// Of a large column a fingerprint alone looks at some pages.
TEST(EventStore, AChangeAnywhereInALargeColumnIsInItsChecksum) {
  TestStore s = make_store(base::temp_path("store"), 3, {.users = 6, .max_events = 300'000});
  constexpr size_t kBetweenPages = 1000;
  ASSERT_GT(s.items.size() * sizeof(int64_t), kWholeFingerprint);
  StoreManifest manifest{
      .segue_version = "test", .history_length = 30, .min_history = {0}, .num_users = 6};
  manifest.origin.command = "prep";
  manifest.num_events = s.num_events();
  const auto key = [&] {
    put_npy(s.column("flat_item_ids"), "<i8", s.items);
    manifest.files = {{.name = "hstu_cache_L30/flat_item_ids.npy",
                       .bytes = static_cast<int64_t>(fs::file_size(s.column("flat_item_ids"))),
                       .xxh64 = base::xxh64(s.items.data(), s.items.size() * sizeof(int64_t)),
                       .dtype = "<i8",
                       .count = std::ssize(s.items)}};
    base::make_folders(s.folder + "/segue");
    base::put_file(s.folder + "/" + kManifestFile, manifest.to_json());
    const EventStore store(s.folder, s.schema),
        unverified(s.folder, s.schema, "", VerifyMode::kNever);
    const uint64_t found = store.fingerprint_of_column("flat_item_ids", store.items(), 0);
    EXPECT_EQ(unverified.fingerprint_of_column("flat_item_ids", unverified.items(), 0), found);
    return found;
  };
  const uint64_t before = key();
  EXPECT_EQ(key(), before);
  ++s.items[kBetweenPages];
  EXPECT_NE(key(), before);
}

TEST(PoolIndex, GoesToTheFolderThatWasNamed) {
  const TestStore s = make_store(base::temp_path("store"), 2);
  const std::string index = base::temp_path("elsewhere");
  PoolIndex::open_or_build(EventStore(s.folder, s.schema, index));
  EXPECT_TRUE(fs::exists(index + "/pools.idx"));
  EXPECT_FALSE(fs::exists(s.folder + "/segue"));
}

}  // namespace
}  // namespace segue::data
