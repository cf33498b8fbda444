// Numbers of logs that grow: files of pieces that are there stay, unless what they say has changed.

#include <filesystem>
#include <map>

#include <gtest/gtest.h>

#include "data/numbers/numbers_test_util.h"
#include "data/prep/append_test_util.h"

namespace segue::data {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kItemsOfPart = 12;

/// Every part has new items, behind those that are there.
GrowingLog log_with_new_items(IdMapping item_ids) {
  std::vector<Event> events = growing_log(6000, 71);
  for (Event& e : events) e.kind = 0;
  std::vector<std::vector<Event>> parts = cut(events, 3, 71);
  for (size_t p = 0; p < parts.size(); ++p) {
    for (Event& e : parts[p]) {
      e.item %= kItemsOfPart * static_cast<int64_t>(p + 1);
      e.value = (e.user / 3 + e.item) % 2 == 0 ? 100 : 0;
    }
  }
  GrowingLog log(parts);
  std::string all;
  for (size_t p = 0; p < log.logs.size(); ++p) {
    std::string rows;
    for (int64_t i = 0; i < kItemsOfPart; ++i) {
      const int64_t item = static_cast<int64_t>(p) * kItemsOfPart + i;
      rows += std::to_string(item % 5 + 1) + "," + std::to_string(item) + "\n";
    }
    all += rows;
    log.logs[p].put("artists.csv", "artist_id,item_id\n" + rows);
    log.logs[p].schema.item_ids = item_ids;
  }
  log.whole.put("artists.csv", "artist_id,item_id\n" + all);
  log.whole.schema.item_ids = item_ids;
  return log;
}

struct File {
  std::string bytes;
  fs::file_time_type written;
  bool operator==(const File&) const = default;
};
using Files = std::map<std::string, File>;

Files files_of_numbers(const std::string& folder) {
  Files files;
  for (const std::string name : {"counts.idx", "groups.idx", "numbers.idx"}) {
    const std::string path = folder + "/" + name;
    files[path] = {base::read_file(path), fs::last_write_time(path)};
  }
  return files;
}

std::vector<float> rows_of(const std::string& path, const GrowingLog& log) {
  const EventStore store(path, log.whole.schema.samples());
  const EventLog pieces(store);
  const EventNumbers numbers(pieces);
  EXPECT_TRUE(any_groups(pieces, numbers));
  return all_rows(pieces, numbers);
}

TEST(AppendedNumbers, NewItemsLeaveThoseOfEarlierPieces) {
  for (const IdMapping item_ids : {IdMapping::kAuto, IdMapping::kDense}) {
    const GrowingLog log = log_with_new_items(item_ids);
    Files before;
    for (size_t part = 0; part < log.logs.size(); ++part) {
      prep(log.config(part));
      rows_of(log.store(), log);
      for (const auto& [path, file] : before) {
        EXPECT_TRUE(files_of_numbers(fs::path(path).parent_path())[path] == file) << path;
      }
      before.merge(files_of_numbers(
          part == 0 ? log.store() + "/segue"
                    : log.store() + "/" + segment_name(static_cast<int64_t>(part)) + "/segue"));
    }
    prep(log.whole.config("store"));
    EXPECT_EQ(rows_of(log.store(), log), rows_of(log.one_piece(), log));
  }
}

TEST(AppendedNumbers, ACorrectedAttributeChangesThoseOfEarlierPieces) {
  const GrowingLog log = log_with_new_items(IdMapping::kAuto);
  const std::string corrected = "2,0\n5,1\n";
  log.logs[2].put("artists.csv", base::read_file(log.logs[2].folder + "/artists.csv") + corrected);
  log.whole.put("artists.csv", base::read_file(log.whole.folder + "/artists.csv") + corrected);
  for (size_t part = 0; part < log.logs.size(); ++part) {
    prep(log.config(part));
    rows_of(log.store(), log);
  }
  prep(log.whole.config("store"));
  EXPECT_EQ(rows_of(log.store(), log), rows_of(log.one_piece(), log));
}

/// A segment's numbers go on from columns of the pieces before it.
TEST(AppendedNumbers, NoneAreMadeFromEarlierPiecesThatAreDamaged) {
  std::vector<Event> events = random_log(6000, 72, 300);
  const GrowingLog log(cut(events, 2, 72));
  prep(log.config(0));
  {
    const EventStore store(log.store(), log.whole.schema.samples());
    const EventLog pieces(store);
    const EventNumbers numbers(pieces);
  }
  prep(log.config(1));
  // The first event of a user is taken for one of the user before; no column of events changes.
  const std::string cache = log.store() + "/hstu_cache_L20/";
  const auto read = [&](const char* name) {
    const base::NpyFile file(cache + name);
    const std::span<const int64_t> values = file.as<int64_t>("<i8");
    return std::vector<int64_t>(values.begin(), values.end());
  };
  std::vector<int64_t> starts = read("user_start.npy"), ends = read("user_end.npy");
  const std::vector<int64_t> users = read("unique_uids.npy");
  ASSERT_EQ(users.size(), 300U);
  // Columns are compared at users of multiples of 300 / 64.
  ++ends[static_cast<size_t>(users[1])];
  ++starts[static_cast<size_t>(users[2])];
  put_npy(cache + "user_start.npy", "<i8", starts);
  put_npy(cache + "user_end.npy", "<i8", ends);
  const EventStore store(log.store(), log.whole.schema.samples());
  const EventLog pieces(store);
  const std::string message =
      base::message_of(ErrorCode::kCorrupt, [&] { const EventNumbers numbers(pieces); });
  EXPECT_TRUE(base::contains(message, "user_start.npy: was changed") ||
              base::contains(message, "user_end.npy: was changed"))
      << message;
  const std::string segment = log.store() + "/" + segment_name(1) + "/segue/";
  EXPECT_FALSE(base::exists(segment + "groups.idx"));
  EXPECT_FALSE(base::exists(segment + "numbers.idx"));
}

}  // namespace
}  // namespace segue::data
