// Attributes of several values: from raw files to columns of samples.

#include <algorithm>
#include <filesystem>
#include <numeric>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/npy.h"
#include "base/test_util.h"
#include "data/inspect/feature_summary.h"
#include "data/inspect/id_ranges.h"
#include "data/inspect/inspect.h"
#include "data/prep/append_test_util.h"
#include "data/sample/gather.h"
#include "data/store/event_log.h"
#include "data/store/id_maps.h"
#include "data/store/store_identity.h"
#include "data/store/store_verify.h"

namespace segue::data {
namespace {

using base::contains;
using base::message_of;
using Values = std::vector<int64_t>;

constexpr const char* kGenres =
    "item_id,genre\n"
    "0,Drama\n"
    "1,\"Action|Comedy|Action | Drama|War\"\n"  // one twice, more than three
    "2,Comedy| |\n"
    "3,Comedy|Drama|War\n"
    "3,War\n"  // the last row of an item counts, with its values alone
    "5,|\n"
    "199,Western|Action|Drama\n";

/// Up to three genres of an item, up to two tastes of a user.
RawLog bag_log(const std::string& name) {
  RawLog log = GrowingLog::raw(name);
  log.schema.attributes[0] = {
      .name = "genre", .file = "genres.csv", .value = "genre", .separator = "|", .max_values = 3};
  log.schema.user_attributes.resize(2);
  UserAttributeFile& taste = log.schema.user_attributes[1];
  taste.name = "taste";
  taste.file = "tastes.csv";
  taste.value = "taste";
  taste.separator = ";";
  taste.max_values = 2;
  log.put("genres.csv", kGenres);
  log.put("tastes.csv", "uid,taste\n4,7;9\n22,7\n100,12;7;7\n");
  log.put_events("events.csv", random_log(1500, 4));
  return log;
}

Values map_of(const std::string& store, const std::string& name) {
  const base::NpyFile file(store + "/" + name + ".npy");
  const std::span<const int64_t> values = file.as<int64_t>("<i8");
  return {values.begin(), values.end()};
}

Values genres(const std::string& store, size_t item) {
  Values values;
  for (const char* k : {"1", "2", "3"}) {
    values.push_back(map_of(store, std::string("item_to_genre_") + k)[item]);
  }
  return values;
}

TEST(PrepBags, TheFirstDifferentValuesFillTheColumns) {
  const RawLog log = bag_log("bags");
  testing::internal::CaptureStderr();
  prep(log.config("store"));
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_TRUE(contains(said, "items with more than 3 values of genre: 1; the first 3")) << said;
  EXPECT_FALSE(contains(said, "values of taste")) << "7;7 is one value";
  const std::string store = log.folder + "/store";
  EXPECT_TRUE(verify_store(store).ok());
  EXPECT_EQ(base::read_file(store + "/segue/genre_ids.txt"),
            "Action\nComedy\nDrama\nWar\nWestern\n");
  EXPECT_EQ(genres(store, 0), (Values{3, 0, 0}));
  EXPECT_EQ(genres(store, 1), (Values{1, 2, 3}));
  EXPECT_EQ(genres(store, 2), (Values{2, 0, 0}));
  EXPECT_EQ(genres(store, 3), (Values{4, 0, 0}));
  EXPECT_EQ(genres(store, 4), (Values{0, 0, 0}));
  EXPECT_EQ(genres(store, 5), (Values{0, 0, 0}));
  EXPECT_EQ(genres(store, 199), (Values{5, 1, 3}));
  // Integers stay as they are.
  EXPECT_FALSE(base::exists(store + "/segue/taste_ids.txt"));
  EXPECT_EQ(map_of(store, "user_to_taste_1")[100], 12);
  EXPECT_EQ(map_of(store, "user_to_taste_2")[100], 7);
  EXPECT_EQ(map_of(store, "user_to_taste_2")[22], 0);
}

TEST(PrepBags, SamplesAndFactsKnowThem) {
  const RawLog log = bag_log("samples");
  prep(log.config("store"));
  const std::string folder = log.folder + "/store";
  const EventStore store(folder, log.schema.samples());
  const Gatherer gatherer(store, {.history_length = 20, .scan_window = 40, .max_history = 10});
  const std::span<const int64_t> anchors = store.anchors(0).positions;
  std::vector<int64_t> index(anchors.size());
  std::iota(index.begin(), index.end(), 0);
  Batch batch;
  gatherer.fill(anchors, index, batch);
  HostArray<int64_t> memory;
  for (const std::string k : {"1", "2", "3"}) {
    const Values map = map_of(folder, "item_to_genre_" + k);
    const std::span<const int64_t> items = batch.column("item_id").values.span();
    const std::span<const int64_t> history = batch.values("genre_" + k, memory);
    ASSERT_EQ(history.size(), items.size());
    for (size_t i = 0; i < items.size(); ++i) {
      ASSERT_EQ(history[i], map[static_cast<size_t>(items[i])]);
    }
    for (int64_t i = 0; i < std::ssize(anchors); ++i) {
      const int64_t item = batch.column("item_candidate_id").values[i];
      ASSERT_EQ(batch.column("item_candidate_genre_" + k).values[i],
                map[static_cast<size_t>(item)]);
    }
  }
  EXPECT_EQ(batch.column("taste_1").values.size(), std::ssize(anchors));

  const std::vector<IdRange> ranges = id_ranges(store);
  const auto genre = std::ranges::find(ranges, "genre", &IdRange::column);
  ASSERT_NE(genre, ranges.end());
  EXPECT_EQ(genre->largest, 5) << "of all columns";
  EXPECT_EQ(genre->values, 3);
  for (const char* column : {"genre_1", "genre_3", "item_candidate_genre_2"}) {
    EXPECT_TRUE(genre->has(column)) << column;
  }
  for (const char* column : {"genre", "genre_4", "genre_11", "item_candidate_genre"}) {
    EXPECT_FALSE(genre->has(column)) << column;
  }
  const auto taste = std::ranges::find(ranges, "taste", &IdRange::column);
  ASSERT_NE(taste, ranges.end());
  EXPECT_EQ(taste->largest, 12);

  const StoreSummary summary = summarize(store, log.schema);
  ASSERT_EQ(summary.attributes.size(), 1u);
  EXPECT_EQ(summary.attributes[0].name, "genre");
  EXPECT_EQ(summary.attributes[0].values, 5);
  EXPECT_EQ(summary.attributes[0].of_one, 3);
  EXPECT_NEAR(summary.attributes[0].item_share, 5.0 / 200, 1e-12);
  const std::vector<AttributeSummary> users = summarize_user_attributes(store);
  ASSERT_EQ(users.size(), 2u);
  EXPECT_EQ(users[1].name, "taste");
  EXPECT_EQ(users[1].values, 3);
  EXPECT_EQ(users[1].of_one, 2);
}

TEST(PrepBags, TheNumberZeroIsNoneUnlessTheSchemaSaysSo) {
  RawLog log = bag_log("zero");
  log.put("genres.csv", "item_id,genre\n1,0|3|3|7\n2,0\n");
  prep(log.config("none"));
  EXPECT_EQ(genres(log.folder + "/none", 1), (Values{3, 7, 0}));
  EXPECT_EQ(genres(log.folder + "/none", 2), (Values{0, 0, 0}));
  log.schema.attributes[0].zero = ZeroMeaning::kValue;
  prep(log.config("value"));
  EXPECT_EQ(genres(log.folder + "/value", 1), (Values{1, 4, 8}));
  EXPECT_EQ(genres(log.folder + "/value", 2), (Values{1, 0, 0}));
}

/// One text among them makes texts of all.
TEST(PrepBags, AllAreIntegersOrAllTexts) {
  const RawLog log = bag_log("mixed");
  log.put("genres.csv", "item_id,genre\n1,3|7\n2,x\n");
  prep(log.config("store"));
  EXPECT_EQ(base::read_file(log.folder + "/store/segue/genre_ids.txt"), "3\n7\nx\n");
  log.put("genres.csv", "item_id,genre\n1,3|-7\n");
  EXPECT_TRUE(contains(message_of(ErrorCode::kCorrupt, [&] { prep(log.config("negative")); }),
                       "item 1 has attribute -7"));
}

TEST(PrepBags, TheVocabularyIsOneAndKeepsItsNumbers) {
  const RawLog before = bag_log("before");
  prep(before.config("store"));
  const std::string old = before.folder + "/store";
  RawLog after = bag_log("after");
  after.put("genres.csv", "item_id,genre\n1,Adventure|War|Action\n2,Zombie\n");
  PrepConfig config = after.config("store");
  config.ids_from = old;
  prep(config);
  EXPECT_TRUE(verify_store(config.store).ok());
  EXPECT_EQ(base::read_file(config.store + "/segue/genre_ids.txt"),
            "Action\nComedy\nDrama\nWar\nWestern\nAdventure\nZombie\n");
  EXPECT_EQ(genres(config.store, 1), (Values{6, 4, 1}));
  EXPECT_EQ(genres(config.store, 2), (Values{7, 0, 0}));
  const IdMaps now(config.store);
  EXPECT_EQ(std::ranges::count(now.columns(), "genre"), 1);
  EXPECT_FALSE(now.has_column("genre_1"));
  EXPECT_EQ(now.record("genre").count, 7);
  EXPECT_EQ(ids_problem(identity_of(IdMaps(old)), now), "");
  // Numbers of other ids are noticed.
  prep(after.config("anew"));
  EXPECT_TRUE(
      contains(ids_problem(identity_of(IdMaps(old)), IdMaps(after.folder + "/anew")), "genre"));
}

TEST(PrepBags, SegmentsGiveTheSamplesOfOnePrep) {
  const std::vector<Event> events = growing_log(1500, 5);
  const std::vector<std::vector<Event>> parts = cut(events, 2, 5);
  RawLog whole = bag_log("whole"), first = bag_log("first"), second = bag_log("second");
  whole.put_events("events.csv", events);
  first.put_events("events.csv", parts[0]);
  second.put_events("events.csv", parts[1]);
  // Three values become one, one becomes three, and a new item comes; a new genre too.
  const std::string more = "1,War\n2,War|Drama|Opera\n150,Opera|Action\n";
  second.put("genres.csv", "item_id,genre\n" + more);
  whole.put("genres.csv", kGenres + more);
  std::filesystem::remove(second.folder + "/tastes.csv");
  std::filesystem::remove(second.folder + "/users.csv");
  prep(first.config("store"));
  PrepConfig append = second.config("store");
  append.store = first.folder + "/store";
  append.append = true;
  prep(append);
  EXPECT_TRUE(verify_store(append.store).ok());
  // Opera sorts behind Drama: as an id of the segment it comes last, and so it must in one prep.
  PrepConfig all = whole.config("store");
  all.ids_from = first.folder + "/store";
  prep(all);
  const SampleSchema schema = whole.schema.samples();
  const EventStore a(append.store, schema), b(all.store, schema);
  EXPECT_EQ(a.segments().size(), 1u);
  const EventLog log(a);
  for (size_t k = 0; k < 3; ++k) {
    for (const int64_t item : {0, 1, 2, 3, 150, 199}) {
      EXPECT_EQ(a.attribute_map(k)[static_cast<size_t>(item)],
                b.attribute_map(k)[static_cast<size_t>(item)])
          << k << " " << item;
    }
  }
  EXPECT_EQ(a.attribute_map(0)[1], 4) << "War alone";
  EXPECT_EQ(a.attribute_map(1)[1], 0);
  EXPECT_EQ(a.attribute_map(2)[2], 6) << "Opera, of the segment";
  std::vector<CandidateQuery> questions;
  for (const int64_t user : b.unique_users()) {
    for (const int64_t item : {1, 2, 150}) {
      questions.push_back({.user = user, .item = item, .time = 5 * 86400});
    }
  }
  Batch x, y;
  Gatherer(a, {}).fill(questions, x);
  Gatherer(b, {}).fill(questions, y);
  EXPECT_EQ(x, y);
}

TEST(PrepBags, SchemasThatDoNotFitSayWhatToChange) {
  const LogSchema fine = bag_log("schemas").schema;
  fine.validate();
  const auto error = [&](const auto& change) {
    LogSchema schema = fine;
    change(schema);
    return message_of(ErrorCode::kConfig, [&] { schema.validate(); });
  };
  EXPECT_TRUE(contains(error([](LogSchema& s) { s.attributes[0].separator = ""; }),
                       "\"genre\": max_values = 3 needs separator"));
  EXPECT_TRUE(contains(error([](LogSchema& s) { s.attributes[0].max_values = 1; }),
                       "separator = \"|\" needs max_values, how many values of an item are kept"));
  EXPECT_TRUE(contains(error([](LogSchema& s) { s.user_attributes[1].max_values = 25; }),
                       "of a user are kept: 2 to 24, not 25"));
  for (const char* separator : {"a", "\n", "\"", "-", "9"}) {
    EXPECT_TRUE(contains(error([&](LogSchema& s) { s.attributes[0].separator = separator; }),
                         "may be part of a value"));
  }
  EXPECT_TRUE(contains(error([](LogSchema& s) {
                         s.attributes.push_back({.name = "genre_2", .file = "x", .value = "x"});
                       }),
                       "attribute \"genre_2\" appears twice"));
  EXPECT_TRUE(contains(error([](LogSchema& s) {
                         s.attributes.push_back(s.attributes[0]);
                         s.attributes[0].max_values = s.attributes[1].max_values = 13;
                         s.attributes[1].name = "tag";
                       }),
                       "26 attributes of items; samples hold at most 24"));
  EXPECT_TRUE(
      contains(error([](LogSchema& s) {
                 s.crosses = {{"c", {"uid", "genre"}, 100}};
               }),
               "key `genre` has several values; name one of its columns, such as `genre_1`"));
  LogSchema first = fine;
  first.crosses = {{"c", {"uid", "genre_1"}, 100}};
  first.validate();
}

}  // namespace
}  // namespace segue::data
