#include "data/inspect/inspect.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/file.h"
#include "base/test_util.h"
#include "data/inspect/baselines.h"
#include "data/numbers/tally.h"
#include "data/prep/prep.h"
#include "data/store/store_test_util.h"
#include "data/store/store_verify.h"
#include "data/store/store_writer.h"
#include "data/synth/synth_output.h"

namespace segue::data {
namespace {

using base::contains;

/// User 1 and 2 take turns; kind 0 is a listen. Artists: items 0, 1 -> 7; item 2 -> 8.
std::string handmade_store(const std::string& name) {
  struct Row {
    int64_t user, time, item;
    float value;
    uint8_t kind;
  };
  const std::vector<Row> rows = {{1, 10, 0, 100, 0}, {1, 20, 0, -1, 1},  {1, 30, 1, 10, 0},
                                 {1, 100, 2, 90, 0}, {2, 15, 0, 80, 0},  {2, 40, 0, 0, 0},
                                 {2, 50, 1, 60, 0},  {2, 86500, 2, 5, 0}};
  std::vector<Event> events;
  for (const Row& r : rows) {
    Event e;
    e.user = r.user;
    e.time = r.time;
    e.item = r.item;
    e.value = r.value;
    e.kind = r.kind;
    e.organic = r.item == 2 ? 1 : 0;
    events.push_back(e);
  }
  std::string folder = base::temp_path(name);
  StoreWriter writer({.folder = folder, .history_length = 6, .min_history = {0}},
                     LogSchema::preset("yambda-50m"));
  writer.add(events);
  const std::vector<int64_t> items = {0, 1, 2}, artists = {7, 7, 8}, albums = {1, 0, 1};
  writer.set_attribute("artist_id", items, artists);
  writer.set_attribute("album_id", items, albums);
  writer.finish();
  return folder;
}

/// A small store, its raw log, and both opened.
struct SynthStore {
  SynthLog log{{.users = 60, .items = 800, .days = 12, .events_per_user = 120, .seed = 3}};
  std::string folder;
  LogSchema schema;
  explicit SynthStore(const std::string& name) : folder(base::temp_path(name)) {
    write_synth_store(log, {.folder = folder, .history_length = 30, .min_history = {10}});
    schema = schema_for(folder);
  }
  EventStore open() const { return EventStore(folder, schema.samples()); }
};

TEST(InspectTest, SpreadTakesNearestRanks) {
  const Spread s = spread_of({5, 1, 4, 2, 3, 10, 6, 8, 7, 9});
  EXPECT_EQ(s.count, 10);
  EXPECT_EQ(s.min, 1);
  EXPECT_EQ(s.median, 5);
  EXPECT_EQ(s.p90, 9);
  EXPECT_EQ(s.max, 10);
  EXPECT_DOUBLE_EQ(s.mean, 5.5);
  EXPECT_EQ(spread_of({4}).p90, 4);
  EXPECT_EQ(spread_of({}).count, 0);
}

TEST(InspectTest, SummaryOfAHandmadeStore) {
  const std::string folder = handmade_store("store");
  const LogSchema schema = schema_for(folder);
  const EventStore store(folder, schema.samples());
  const StoreSummary s = summarize(store, schema);
  EXPECT_EQ(s.events, 8);
  EXPECT_EQ(s.users, 2);
  EXPECT_EQ(s.items, 3);
  EXPECT_EQ(s.items_seen, 3);
  EXPECT_EQ(s.events_per_user.max, 4);
  EXPECT_EQ(s.first_time, 10);
  EXPECT_EQ(s.last_time, 86500);
  EXPECT_DOUBLE_EQ(s.organic_share, 0.25);
  ASSERT_EQ(s.kinds.size(), 5u);
  EXPECT_EQ(s.kinds[0].events, 7);
  EXPECT_EQ(s.kinds[1].events, 1);
  ASSERT_EQ(s.pools.size(), 3u);
  EXPECT_EQ(s.pools[0].events, 4);  // listen_plus
  EXPECT_EQ(s.pools[1].events, 1);  // like
  EXPECT_EQ(s.pools[2].events, 3);  // skip
  EXPECT_DOUBLE_EQ(s.pools[0].share, 0.5);
  EXPECT_EQ(s.in_no_pool, 0);
  EXPECT_EQ(s.predicted, 7);
  EXPECT_EQ(s.positive, 4);
  ASSERT_EQ(s.attributes.size(), 2u);
  EXPECT_EQ(s.attributes[0].values, 2);
  EXPECT_DOUBLE_EQ(s.attributes[0].item_share, 1);
  EXPECT_EQ(s.attributes[1].values, 1);
  EXPECT_DOUBLE_EQ(s.attributes[1].item_share, 2.0 / 3);
  EXPECT_DOUBLE_EQ(s.attributes[1].event_share, 6.0 / 8);
  ASSERT_EQ(s.windows.size(), 1u);
  EXPECT_EQ(s.windows[0].anchors, 7);
  EXPECT_EQ(s.windows[0].windows, 2);
  EXPECT_EQ(s.windows[0].empty, 0);
  EXPECT_EQ(s.windows[0].sizes.max, 6);
  EXPECT_EQ(s.history.lengths.count, 7);
  EXPECT_EQ(s.history.lengths.max, 3);
  EXPECT_EQ(s.history.newest.max, 3);
  ASSERT_TRUE(s.manifest);
  EXPECT_EQ(s.manifest->num_events, 8);
}

TEST(InspectTest, AStoreWithoutAttributesHasItemsToo) {
  LogSchema schema = LogSchema::preset("yambda-50m");
  schema.attributes.clear();
  schema.crosses.clear();
  const std::string folder = base::temp_path("store");
  StoreWriter writer({.folder = folder, .history_length = 6, .min_history = {0}}, schema);
  const std::vector<Event> events = {{.user = 1, .time = 1, .item = 4},
                                     {.user = 1, .time = 2, .item = 9}};
  writer.add(events);
  writer.finish();
  const EventStore store(folder, schema.samples());
  const StoreSummary s = summarize(store, schema);
  EXPECT_EQ(s.items, 10);
  EXPECT_EQ(s.items_seen, 2);
}

TEST(InspectTest, TimesInAWrongUnitAreNoReasonToFillTheMemory) {
  const std::string folder = base::temp_path("store");
  const LogSchema schema = LogSchema::preset("yambda-50m");
  StoreWriter writer({.folder = folder, .history_length = 6, .min_history = {0}}, schema);
  const std::vector<Event> events = {{.user = 1, .time = 0, .item = 4},
                                     {.user = 1, .time = int64_t{1} << 53, .item = 4}};
  writer.add(events);
  writer.finish();
  const EventStore store(folder, schema.samples());
  const auto error = base::error_of([&] { summarize(store, schema); });
  ASSERT_TRUE(error);
  EXPECT_TRUE(contains(error->what(), "time_unit_seconds"));
}

TEST(InspectTest, HistoriesAreAsLongAsGatheredOnes) {
  StoreShape shape;
  shape.disjoint_pools = false;
  const TestStore test = make_store(base::temp_path("store"), 5, shape);
  const EventStore store(test.folder, test.schema);
  for (const int64_t length : {3, 12, 30, 300}) {
    const InspectConfig config{
        .history_length = length, .min_history = 0, .scan_window = 40, .history_samples = 1 << 20};
    const StoreSummary s = summarize(store, schema_for(test.folder), config);
    for (const HistoryStrategy strategy :
         {HistoryStrategy::kInterleaved, HistoryStrategy::kLastN}) {
      const GatherConfig gather{.history_length = length, .scan_window = 40, .strategy = strategy};
      std::vector<int64_t> lengths;
      for (const int64_t anchor : store.anchors(0).positions) {
        const ExpectedHistory h = expected_history(test, gather, anchor);
        lengths.push_back(static_cast<int64_t>(h.positions.size()));
      }
      const Spread wanted = spread_of(lengths);
      const Spread& found =
          strategy == HistoryStrategy::kLastN ? s.history.newest : s.history.lengths;
      EXPECT_EQ(found.count, wanted.count);
      EXPECT_EQ(found.median, wanted.median);
      EXPECT_EQ(found.max, wanted.max);
      EXPECT_DOUBLE_EQ(found.mean, wanted.mean);
    }
  }
}

TEST(InspectTest, SizesAreComparedWithTheManifest) {
  const SynthStore synth("store");
  const VerifyReport fine = compare_sizes(synth.folder);
  EXPECT_TRUE(fine.has_manifest);
  EXPECT_TRUE(fine.ok());
  EXPECT_GT(fine.files, 20);
  EXPECT_TRUE(verify_store(synth.folder).ok());  // the additional file included

  std::filesystem::resize_file(synth.folder + "/split_meta.json", 10);
  std::filesystem::remove(synth.folder + "/segue/listen_probability.npy");
  const std::string likes = synth.folder + "/hstu_cache_L30/flat_is_like.npy";
  std::string bytes = base::read_file(likes);
  bytes.replace(bytes.find("|b1"), 3, "|i1");
  base::put_file(likes, bytes);
  const VerifyReport bad = compare_sizes(synth.folder);
  ASSERT_EQ(bad.problems.size(), 3u);
  EXPECT_TRUE(contains(bad.problems[0], "flat_is_like.npy: was changed: bytes 0 to 127"));
  EXPECT_TRUE(contains(bad.problems[1], "segue/listen_probability.npy: is missing"));
  EXPECT_TRUE(contains(bad.problems[2], "split_meta.json: has 10 bytes, should have"));

  const TestStore other = make_store(base::temp_path("other"), 1);
  EXPECT_FALSE(compare_sizes(other.folder).has_manifest);
}

// ---- predictions ----

TEST(BaselinesTest, UseOnlyWhatWasBefore) {
  const std::string folder = handmade_store("store");
  const EventStore store(folder, schema_for(folder).samples());
  const Predictions p = predict_by_history(store);
  EXPECT_EQ(p.positions, (std::vector<int64_t>{0, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(p.labels, (std::vector<float>{1, 0, 1, 1, 0, 1, 0}));
  const double prior = 4.0 / 7;
  const auto share = [](double positive, double all, double weight, double towards) {
    return static_cast<float>((positive + weight * towards) / (all + weight));
  };
  // Item 0: times 10 (+), 15 (+), 40 (-); item 1: 30 (-), 50 (+); item 2: 100 (+), 86500.
  const std::vector<float> item = {share(0, 0, 10, prior), share(0, 0, 10, prior),
                                   share(0, 0, 10, prior), share(1, 1, 10, prior),
                                   share(2, 2, 10, prior), share(0, 1, 10, prior),
                                   share(1, 1, 10, prior)};
  ASSERT_EQ(p.rules.size(), 4u);
  EXPECT_EQ(p.rules[0].name, "item");
  EXPECT_EQ(p.rules[0].predictions, item);
  EXPECT_EQ(p.rules[1].name, "user");
  const std::vector<float>& user = p.rules[1].predictions;
  EXPECT_EQ(user[2], share(1, 2, 5, prior));
  EXPECT_EQ(user[3], share(0, 0, 5, prior));
  EXPECT_EQ(user[6], share(2, 3, 5, prior));
  EXPECT_EQ(p.rules[2].name, "user-artist");
  EXPECT_EQ(p.rules[3].name, "user-album");
  // User 2 had artist 7 three times before, artist 8 never.
  const auto user_share = [&](double positive, double all) {
    return (positive + 5 * prior) / (all + 5);
  };
  EXPECT_FLOAT_EQ(p.rules[2].predictions[5], share(1, 2, 2, user_share(1, 2)));
  EXPECT_FLOAT_EQ(p.rules[2].predictions[6], share(0, 0, 2, user_share(2, 3)));
  // Item 1, the seventh event, is of album 0 as one of user 1 is; of user 2 it is the first.
  EXPECT_FLOAT_EQ(p.rules[3].predictions[5], share(0, 0, 2, user_share(1, 2)));
}

/// Asked for some events only, rules know the same, with a prior of what came before them.
TEST(BaselinesTest, SomeEventsInAnyOrder) {
  const std::string folder = handmade_store("store");
  const EventStore store(folder, schema_for(folder).samples());
  // Times 50 and 40 of user 2, 100 of user 1, and a like, which is not predicted.
  const Predictions p = predict_by_history(store, {.positions = {{6, 3, 5, 1}}});
  EXPECT_EQ(p.positions, (std::vector<int64_t>{6, 3, 5, 1}));
  const double prior = 2.0 / 2;  // of those before the like at 20: both are positive
  const auto share = [&](double positive, double all, double weight) {
    return static_cast<float>((positive + weight * prior) / (all + weight));
  };
  const std::vector<float>&item = p.rules[0].predictions, &user = p.rules[1].predictions;
  EXPECT_EQ(item[0], share(0, 1, 10));
  EXPECT_EQ(item[1], share(0, 0, 10));
  EXPECT_EQ(item[2], share(2, 2, 10));
  EXPECT_TRUE(std::isnan(item[3]) && std::isnan(user[3]));
  EXPECT_EQ(user[0], share(1, 2, 5));
  EXPECT_EQ(user[1], share(1, 2, 5));
  EXPECT_EQ(user[2], share(1, 1, 5));
  EXPECT_EQ(p.labels, (std::vector<float>{1, 1, 0, 0}));
  // Items 1, 2, 0 and 0; before the like there were events of item 0 only, one of each user.
  const std::vector<int64_t> at = {6, 3, 5, 1};
  EXPECT_EQ(item_events_before(store, at, [](int64_t) { return true; }),
            (std::vector<int64_t>{0, 0, 2, 2}));
  EXPECT_EQ(item_events_before(store, at, [](int64_t u) { return u == 1; }),
            (std::vector<int64_t>{0, 0, 1, 1}));
  EXPECT_TRUE(predict_by_history(store, {.positions = {{}}}).rules[0].predictions.empty());
  EXPECT_EQ(base::error_of([&] { predict_by_history(store, {.positions = {{8}}}); })->code(),
            ErrorCode::kCorrupt);
}

/// Items of one list, and an item that no map knows.
TEST(BaselinesTest, EventsOfOneSecondKnowNothingOfEachOther) {
  std::vector<Event> events;
  for (const auto& [time, item, value] :
       {std::tuple(10, 0, 100), {10, 0, 100}, {10, 2, 0}, {20, 0, 0}, {20, 9, 0}}) {
    Event& e = events.emplace_back();
    e.user = 1;
    e.time = time;
    e.item = item;
    e.value = static_cast<float>(value);
  }
  const std::string folder = base::temp_path("list");
  StoreWriter writer({.folder = folder, .history_length = 6, .min_history = {0}},
                     LogSchema::preset("yambda-50m"));
  writer.add(events);
  const std::vector<int64_t> items = {0, 2}, artists = {7, 8};
  writer.set_attribute("artist_id", items, artists);
  writer.finish();
  const EventStore store(folder, schema_for(folder).samples());
  const Predictions p = predict_by_history(store);
  const double prior = 2.0 / 5, user = (2 + 5 * prior) / 8;
  EXPECT_EQ(p.rules[0].predictions[1], static_cast<float>(prior));
  EXPECT_EQ(p.rules[0].predictions[3], static_cast<float>((2 + 10 * prior) / 12));
  EXPECT_EQ(p.rules[1].predictions[2], static_cast<float>(prior));
  EXPECT_EQ(p.rules[1].predictions[4], static_cast<float>(user));
  EXPECT_EQ(p.rules[2].predictions[4], static_cast<float>(user)) << "of no artist";
}

/// Events of a window, asked for alone, are predicted as among all, but for the prior.
TEST(BaselinesTest, AWindowIsPredictedAsAmongAll) {
  const SynthStore synth("store");
  const EventStore store = synth.open();
  const Predictions all = predict_by_history(store);
  const auto time = [&](size_t i) {
    return store.timestamps()[static_cast<size_t>(all.positions[i])];
  };
  const int64_t first = *std::ranges::min_element(store.timestamps());
  const int64_t begin = first + 8 * 86400, end = first + 10 * 86400;
  std::vector<int64_t> window;
  std::vector<size_t> places;
  for (size_t i = all.positions.size(); i-- > 0;) {
    if (time(i) < begin || time(i) >= end) continue;
    window.push_back(all.positions[i]);
    places.push_back(i);
  }
  ASSERT_GT(window.size(), 100u);
  Tally before, of_all;
  int64_t begins = end;
  for (const size_t i : places) begins = std::min(begins, time(i));
  for (size_t i = 0; i < all.labels.size(); ++i) {
    of_all.add(all.labels[i] != 0);
    if (time(i) < begins) before.add(all.labels[i] != 0);
  }
  const double shift = std::abs(before.share(0, 0) - of_all.share(0, 0));
  for (const bool one_thread : {false, true}) {
    const Predictions p =
        predict_by_history(store, {.positions = window, .one_thread = one_thread});
    for (size_t r = 0; r < all.rules.size(); ++r) {
      for (size_t i = 0; i < places.size(); ++i) {
        EXPECT_NEAR(p.rules[r].predictions[i], all.rules[r].predictions[places[i]], shift + 1e-6);
      }
    }
  }
}

TEST(BaselinesTest, LargeStoresAreSampledByUser) {
  const SynthStore synth("store");
  const EventStore store = synth.open();
  const Predictions all = predict_by_history(store);
  const Predictions some = predict_by_history(store, {.most_events = store.num_events() / 3});
  EXPECT_EQ(all.sampled_every, 1);
  EXPECT_GE(some.sampled_every, 3);
  EXPECT_LT(some.positions.size(), all.positions.size() * 3 / 4);
  EXPECT_GT(some.positions.size(), 0u);
}

TEST(BaselinesTest, TruthBesideTheStoreAndBesideTheRawLogAgree) {
  const SynthStore synth("direct");
  const EventStore direct = synth.open();
  const std::vector<float> truth = read_truth(direct);
  ASSERT_EQ(truth.size(), static_cast<size_t>(direct.num_events()));
  for (size_t i = 0; i < truth.size(); ++i) {
    EXPECT_EQ(std::isnan(truth[i]), direct.kinds()[i] != kListen);
  }

  const std::string raw = base::temp_path("raw");
  write_raw_log(synth.log, *make_csv_log_writer(raw, "50m"), raw);
  const std::vector<float> matched = read_truth(direct, raw);
  ASSERT_EQ(matched.size(), truth.size());
  for (size_t i = 0; i < truth.size(); ++i) {
    EXPECT_TRUE(matched[i] == truth[i] || (std::isnan(matched[i]) && std::isnan(truth[i])));
  }

  const SynthLog other({.users = 60, .items = 800, .days = 12, .events_per_user = 120, .seed = 4});
  const std::string other_raw = base::temp_path("other");
  write_raw_log(other, *make_csv_log_writer(other_raw, "50m"), other_raw);
  const auto error = base::error_of([&] { read_truth(direct, other_raw); });
  ASSERT_TRUE(error);
  EXPECT_TRUE(contains(error->what(), "was not made from this log"));
  EXPECT_EQ(error->code(), ErrorCode::kCorrupt);

  const std::string handmade = handmade_store("handmade");
  EXPECT_TRUE(read_truth(EventStore(handmade, schema_for(handmade).samples())).empty());
}

}  // namespace
}  // namespace segue::data
