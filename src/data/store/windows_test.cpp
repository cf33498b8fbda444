#include "data/store/windows.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>

#include <gtest/gtest.h>

#include "data/store/store_test_util.h"

namespace segue::data {
namespace {

namespace fs = std::filesystem;

std::vector<int64_t> read(const WindowIndex& index, int64_t window) {
  std::vector<int64_t> positions;
  index.read(window, positions);
  return positions;
}

void expect_by_the_rules(const TestStore& s, int64_t min_history, int64_t seconds,
                         const WindowIndex& index) {
  const std::vector<int64_t> anchors = s.anchors(min_history);
  const auto time = [&](int64_t a) { return s.timestamps[static_cast<size_t>(a)]; };
  int64_t first = time(anchors[0]), last = first;
  for (const int64_t a : anchors) {
    first = std::min(first, time(a));
    last = std::max(last, time(a));
  }
  EXPECT_EQ(index.t_min(), first);
  EXPECT_EQ(index.t_max(), last);
  ASSERT_EQ(index.num_windows(), (last - first + 1 + seconds - 1) / seconds);
  EXPECT_EQ(index.num_anchors(), static_cast<int64_t>(anchors.size()));
  EXPECT_EQ(index.min_history(), min_history);
  EXPECT_EQ(index.window_seconds(), seconds);
  std::map<int64_t, std::vector<int64_t>> expected;
  for (const int64_t a : anchors) expected[(time(a) - first) / seconds].push_back(a);
  for (int64_t w = 0; w < index.num_windows(); ++w) {
    EXPECT_EQ(read(index, w), expected[w]) << "window " << w;
    EXPECT_EQ(index.size(w), static_cast<int64_t>(expected[w].size()));
  }
}

TEST(WindowIndex, HoldsEveryAnchorOnceByTime) {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    StoreShape shape;
    shape.min_history = {0, 17};
    const TestStore s = make_store(base::temp_path(std::to_string(seed)), seed, shape);
    const EventStore store(s.folder, s.schema);
    for (const int64_t min_history : {0, 17, 25}) {
      for (const int64_t seconds : {int64_t{600}, int64_t{86400}, int64_t{1} << 40}) {
        SCOPED_TRACE(testing::Message()
                     << "seed " << seed << " m " << min_history << " s " << seconds);
        expect_by_the_rules(s, min_history, seconds,
                            WindowIndex::open_or_build(store, min_history, seconds));
        // And once more from the file.
        expect_by_the_rules(s, min_history, seconds,
                            WindowIndex::open_or_build(store, min_history, seconds));
      }
    }
  }
}

// So little memory that the anchors are passed over many times, and buffers are flushed early.
TEST(WindowIndex, LittleMemoryGivesTheSameFile) {
  StoreShape shape;
  shape.users = 60;
  const TestStore s = make_store(base::temp_path("store"), 9, shape);
  const EventStore store(s.folder, s.schema);
  WindowIndex::open_or_build(store, 0, 7200);
  const std::string path = s.index("windows_m0_s7200.idx");
  const std::string generous = base::read_file(path);
  for (const int64_t memory : {1, 2048, 40000}) {
    fs::remove(path);
    WindowIndex::open_or_build(store, 0, 7200, memory);
    EXPECT_EQ(base::read_file(path), generous) << memory;
  }
}

TEST(WindowIndex, IsMadeAgainWhenDamagedOrStale) {
  StoreShape shape;
  TestStore s = make_store(base::temp_path("store"), 3, shape);
  const std::string path = s.index("windows_m0_s86400.idx");
  {
    const EventStore store(s.folder, s.schema);
    WindowIndex::open_or_build(store, 0, 86400);
    const std::string good = base::read_file(path);
    std::string damaged = good;
    damaged[good.size() - 20] ^= 1;
    base::put_file(path, damaged);
    expect_by_the_rules(s, 0, 86400, WindowIndex::open_or_build(store, 0, 86400));
    EXPECT_EQ(base::read_file(path), good);
    base::put_file(path, good.substr(0, good.size() - 8));
    expect_by_the_rules(s, 0, 86400, WindowIndex::open_or_build(store, 0, 86400));
  }
  for (int64_t& time : s.timestamps) time = time * 3 / 2;
  s.write(shape);
  const EventStore store(s.folder, s.schema);
  expect_by_the_rules(s, 0, 86400, WindowIndex::open_or_build(store, 0, 86400));
}

TEST(WindowIndex, NoAnchorsMakeNoWindows) {
  const TestStore s = make_store(base::temp_path("store"), 3);
  const EventStore store(s.folder, s.schema);
  const WindowIndex index = WindowIndex::open_or_build(store, 5000, 86400);
  EXPECT_EQ(index.num_windows(), 0);
  EXPECT_EQ(index.num_anchors(), 0);
}

TEST(WindowIndex, RefusesAnchorsOutOfOrderAndImpossibleTimes) {
  StoreShape shape;
  shape.users = 40;  // more anchors than are looked at when the list is opened
  const TestStore s = make_store(base::temp_path("store"), 3, shape);
  std::vector<int64_t> anchors = s.anchors(0);
  std::swap(anchors[1], anchors[2]);
  put_npy(s.column("positions_L30_m0"), "<i8", anchors);
  {
    const EventStore store(s.folder, s.schema);
    const auto error = base::error_of([&] { WindowIndex::open_or_build(store, 0, 86400); });
    EXPECT_EQ(error->code(), ErrorCode::kCorrupt);
    EXPECT_TRUE(base::contains(error->what(), "positions_L30_m0.npy"));
  }
  s.write_anchors(0, 30);
  std::vector<int64_t> times;
  for (const int64_t a : s.anchors(0)) times.push_back(s.timestamps[static_cast<size_t>(a)]);
  times[1] = int64_t{1} << 62;
  put_npy(s.column("anchor_ts_L30_m0"), "<i8", times);
  const EventStore store(s.folder, s.schema);
  const auto error = base::error_of([&] { WindowIndex::open_or_build(store, 0, 1); });
  EXPECT_EQ(error->code(), ErrorCode::kCorrupt);
  EXPECT_TRUE(base::contains(error->what(), "anchor_ts_L30_m0.npy"));
  EXPECT_EQ(base::error_of([&] { WindowIndex::open_or_build(store, 0, 0); })->code(),
            ErrorCode::kInvalidArgument);
}

// A store of 9 billion events, all holes on disk but for the few that matter.
TEST(WindowIndex, PositionsMayNeedMoreThan32Bits) {
  constexpr int64_t kEvents = int64_t{9'000'000'000};
  const int64_t third = kEvents / 3;
  TestStore s = make_store(base::temp_path("store"), 3);
  s.users.clear();
  s.unique_users = {0, 1, 2};
  s.user_start = {0, third, 2 * third};
  s.user_end = {third, 2 * third, kEvents};
  const std::vector<int64_t> anchors = {5,
                                        (int64_t{1} << 32) - 1,
                                        int64_t{1} << 32,
                                        (int64_t{1} << 32) + 7,
                                        (int64_t{1} << 33) + 1,
                                        (int64_t{1} << 33) + 9};
  const std::vector<int64_t> times = {0, 0, 50, 0, 50, 0};
  const auto put = [](const std::string& path, int64_t element, int64_t index, int64_t value) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(128 + index * element);
    file.write(reinterpret_cast<const char*>(&value), static_cast<std::streamsize>(element));
  };
  const auto holes = [&](const std::string& column, const std::string& descr, int64_t element) {
    const int64_t shape[] = {kEvents};
    const std::string header = base::npy_header(descr, shape);
    ASSERT_EQ(header.size(), 128U);
    base::put_file(s.column(column), header);
    fs::resize_file(s.column(column), static_cast<uintmax_t>(128 + kEvents * element));
  };
  for (const char* column : {"flat_uid", "flat_item_ids", "flat_timestamps", "flat_event_types"}) {
    holes(column, "<i8", 8);
  }
  holes("flat_is_organic", "|i1", 1);
  for (const char* column : {"flat_is_listen_plus", "flat_is_like", "flat_is_skip"}) {
    holes(column, "|b1", 1);
  }
  for (const int64_t user : {1, 2}) {
    put(s.column("flat_uid"), 8, user * third, user);
    put(s.column("flat_uid"), 8, (user + 1) * third - 1, user);
  }
  for (size_t i = 0; i < anchors.size(); ++i) {
    put(s.column("flat_timestamps"), 8, anchors[i], times[i]);
  }
  put_npy(s.column("user_start"), "<i8", s.user_start);
  put_npy(s.column("user_end"), "<i8", s.user_end);
  put_npy(s.column("unique_uids"), "<i8", s.unique_users);
  put_npy(s.column("positions_L30_m0"), "<i8", anchors);
  put_npy(s.column("anchor_ts_L30_m0"), "<i8", times);
  base::put_file(s.cache + "/store_meta.json", R"({"num_users": 3, "total_events": 9000000000})");

  const EventStore store(s.folder, s.schema);
  const WindowIndex index = WindowIndex::open_or_build(store, 0, 50);
  ASSERT_EQ(index.num_windows(), 2);
  EXPECT_EQ(read(index, 0), (std::vector<int64_t>{anchors[0], anchors[1], anchors[3], anchors[5]}));
  EXPECT_EQ(read(index, 1), (std::vector<int64_t>{anchors[2], anchors[4]}));
}

TEST(UserSplit, IsThePublishedHash) {
  EXPECT_EQ(UserSplit::hash(0, 0), 0.8833108082136426);
  EXPECT_EQ(UserSplit::hash(1, 0), 0.5665615751722809);
  EXPECT_EQ(UserSplit::hash(2, 0), 0.5911897341980794);
  EXPECT_EQ(UserSplit::hash(123456, 0), 0.22617122565625025);
  EXPECT_TRUE((UserSplit{0.8, 0}.is_eval(0)));
  EXPECT_FALSE((UserSplit{0.8, 0}.is_eval(1)));
  EXPECT_TRUE((UserSplit{UserSplit::hash(1, 0), 0}.is_eval(1))) << "the bound itself is held out";
  EXPECT_FALSE(UserSplit{}.active());
}

}  // namespace
}  // namespace segue::data
