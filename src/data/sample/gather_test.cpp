#include "data/sample/gather.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "data/store/store_test_util.h"

namespace segue::data {
namespace {

using Values = std::vector<int64_t>;

std::vector<int64_t> numbers(size_t n) {
  std::vector<int64_t> all(n);
  std::iota(all.begin(), all.end(), 0);
  return all;
}

Values at(const std::vector<int64_t>& column, const std::vector<int64_t>& positions) {
  Values values;
  for (const int64_t p : positions) values.push_back(column[static_cast<size_t>(p)]);
  return values;
}

/// Every column of every sample against the rules, told one event at a time.
void expect_by_the_rules(const TestStore& s, const GatherConfig& config, const Values& anchors,
                         const Batch& batch) {
  batch.validate();
  ASSERT_EQ(batch.num_samples(), static_cast<int64_t>(anchors.size()));
  const auto last_item = static_cast<int64_t>(s.maps[0].size()) - 1;
  for (size_t i = 0; i < anchors.size(); ++i) {
    const auto sample = static_cast<int64_t>(i);
    const auto a = static_cast<size_t>(anchors[i]);
    const ExpectedHistory expected = expected_history(s, config, anchors[i]);
    const Values items = at(s.items, expected.positions);
    const Values times = at(s.timestamps, expected.positions);
    ASSERT_EQ(sample_values(batch, "item_id", sample), items) << "anchor " << a;
    ASSERT_EQ(sample_values(batch, "action_timestamp", sample), times);
    ASSERT_EQ(sample_values(batch, "action_weight", sample), expected.actions);
    const int64_t query_time = times.empty() ? s.timestamps[a] : times.back();
    EXPECT_EQ(sample_values(batch, "dummy_query_time", sample), Values{query_time});
    EXPECT_EQ(sample_values(batch, "item_query_time", sample), Values{query_time});
    EXPECT_EQ(sample_values(batch, "item_candidate_id", sample), Values{s.items[a]});
    EXPECT_EQ(sample_values(batch, "uid", sample), Values{s.users[a]});
    int64_t label = 0;
    for (size_t p = 0; p < s.pools.size(); ++p) {
      const PoolConfig& pool = s.schema.pools[p];
      const bool counts = s.schema.label_pool.empty() || s.schema.label_pool == pool.name;
      if (counts && s.pools[p][a] != 0) label |= pool.bit;
    }
    EXPECT_EQ(sample_values(batch, "item_action_weight", sample), Values{label});
    Values candidate;
    for (size_t m = 0; m < s.maps.size(); ++m) {
      const std::string& name = s.schema.attributes[m].name;
      candidate.push_back(s.items[a] <= last_item ? s.maps[m][static_cast<size_t>(s.items[a])] : 0);
      EXPECT_EQ(sample_values(batch, "item_candidate_" + name, sample), Values{candidate.back()});
      Values clipped;
      for (const int64_t item : items) {
        clipped.push_back(s.maps[m][static_cast<size_t>(std::min(item, last_item))]);
      }
      HostArray<int64_t> memory;
      const std::span<const int64_t> all = batch.values(name, memory);
      const std::span<const int64_t> offsets = batch.offsets(name);
      EXPECT_EQ(Values(all.begin() + offsets[i], all.begin() + offsets[i + 1]), clipped);
    }
    for (const CrossConfig& cross : s.schema.crosses) {
      Values words;
      for (const std::string& key : cross.keys) {
        if (key == "uid") words.push_back(s.users[a]);
        if (key == "item_id") words.push_back(s.items[a]);
        if (key == "hour_of_day") words.push_back(s.timestamps[a] / 3600 % 24);
        if (key == "is_organic") words.push_back(s.organic[a]);
        if (key == "artist_id") words.push_back(candidate[0]);
        if (key == "album_id") words.push_back(candidate[1]);
      }
      const uint64_t hash = base::xxh64(words.data(), words.size() * sizeof(int64_t),
                                        static_cast<uint64_t>(cross.salt));
      const auto id = static_cast<int64_t>(hash % static_cast<uint64_t>(cross.rows));
      EXPECT_EQ(sample_values(batch, cross.name, sample), Values{id}) << cross.name;
    }
  }
}

TEST(Gather, EqualsTheRulesForRandomStoresAndSettings) {
  for (uint64_t seed = 1; seed <= 24; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937_64 random(seed);
    const auto one_of = [&](std::initializer_list<int64_t> list) {
      return *(list.begin() + random() % list.size());
    };
    StoreShape shape;
    shape.disjoint_pools = seed % 2 == 0;
    SampleSchema schema = SampleSchema::yambda();
    if (seed % 4 == 3) schema.pools.push_back({"long", 8});
    if (seed % 6 == 1) schema.pools.resize(1);
    if (seed % 5 == 0) schema.label_pool.clear();
    schema.crosses[1].salt = 4;
    schema.crosses[6].rows = 97;
    const TestStore s = make_store(base::temp_path(std::to_string(seed)), seed, shape, schema);
    const EventStore store(s.folder, schema);
    GatherConfig config;
    config.history_length = one_of({1, 2, 7, 30, 1000});
    config.scan_window = one_of({1, 10, 50, 20000});
    config.max_history = one_of({0, 1, 9, 41});
    config.strategy = random() % 2 == 0 ? HistoryStrategy::kInterleaved : HistoryStrategy::kLastN;
    const Gatherer gatherer(store, config);
    const Values anchors = s.anchors(0);
    Batch batch;
    gatherer.fill(anchors, numbers(anchors.size()), batch);
    expect_by_the_rules(s, config, anchors, batch);
    EXPECT_EQ(batch.find_column("artist_id"), nullptr) << "not expanded";
  }
}

TEST(Gather, EventsOfTheSameSecondMayBeLeftOut) {
  TestStore s = make_store(base::temp_path("store"), 51, {.disjoint_pools = false});
  for (int64_t& time : s.timestamps) time -= time % 40'000;
  s.write({});
  const EventStore store(s.folder, s.schema);
  const Values anchors = s.anchors(0);
  for (const HistoryStrategy strategy : {HistoryStrategy::kInterleaved, HistoryStrategy::kLastN}) {
    const GatherConfig config{.history_length = 24, .strategy = strategy, .same_time = false};
    Batch batch;
    Gatherer(store, config).fill(anchors, numbers(anchors.size()), batch);
    int64_t left_out = 0;
    for (size_t i = 0; i < anchors.size(); ++i) {
      const auto anchor = static_cast<size_t>(anchors[i]);
      auto first = static_cast<size_t>(s.user_start[static_cast<size_t>(s.users[anchor])]);
      while (s.timestamps[first] < s.timestamps[anchor]) ++first;
      left_out += static_cast<int64_t>(anchor - first);
      const Values expected = expected_history(s, config, static_cast<int64_t>(first)).positions;
      ASSERT_EQ(sample_values(batch, "item_id", static_cast<int64_t>(i)), at(s.items, expected));
    }
    EXPECT_GT(left_out, 0);
  }
}

// Marks every event by its own position in the item column, so that a leak shows by itself.
TEST(Gather, NothingAtOrAfterTheAnchorEntersItsSample) {
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    StoreShape shape;
    shape.disjoint_pools = seed % 2 == 0;
    TestStore s = make_store(base::temp_path(std::to_string(seed)), seed, shape);
    std::iota(s.items.begin(), s.items.end(), 0);
    put_npy(s.column("flat_item_ids"), "<i8", s.items);
    const EventStore store(s.folder, s.schema);
    for (const HistoryStrategy strategy :
         {HistoryStrategy::kInterleaved, HistoryStrategy::kLastN}) {
      GatherConfig config;
      config.strategy = strategy;
      const Gatherer gatherer(store, config);
      Batch batch;
      // Any event will do as an anchor: the promise does not depend on its kind.
      Values anchors(static_cast<size_t>(s.num_events()));
      std::iota(anchors.begin(), anchors.end(), 0);
      gatherer.fill(anchors, anchors, batch);
      for (const int64_t a : anchors) {
        const int64_t start = s.user_start[static_cast<size_t>(s.users[static_cast<size_t>(a)])];
        for (const int64_t position : sample_values(batch, "item_id", a)) {
          ASSERT_LT(position, a) << "seed " << seed;
          ASSERT_GE(position, start) << "another user's event, seed " << seed;
        }
      }
    }
  }
}

TEST(Gather, ADamagedPoolIndexIsCaughtAndLetsNothingThrough) {
  const TestStore s = make_store(base::temp_path("store"), 5);
  const EventStore store(s.folder, s.schema);
  const Gatherer gatherer(store, {});
  // Behind the back of the open gatherer, which has checked the file already.
  {
    const auto aligned = [](size_t bytes) { return (bytes + 63) / 64 * 64; };
    const size_t positions = 4096 + 64 + aligned((s.user_start.size() + 1) * sizeof(int64_t));
    const std::string wrong(static_cast<size_t>(std::ranges::count(s.pools[0], 1)) * 4, '\x41');
    std::fstream file(s.index("pools.idx"), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(positions + 40));
    file.write(wrong.data(), static_cast<std::streamsize>(wrong.size() - 80));
  }
  Batch batch;
  int64_t refused = 0;
  for (const int64_t a : s.anchors(0)) {
    try {
      gatherer.fill(Values{a}, Values{0}, batch);
      for (const int64_t time : sample_values(batch, "action_timestamp", 0)) {
        EXPECT_LE(time, s.timestamps[static_cast<size_t>(a)]);
      }
    } catch (const Error& error) {
      ++refused;
      EXPECT_EQ(error.code(), ErrorCode::kCorrupt);
      EXPECT_TRUE(base::contains(error.what(), "pools.idx"));
    }
  }
  EXPECT_GT(refused, 0);
  // The next one to open it makes it again.
  const Gatherer again(store, {});
  EXPECT_NO_THROW(again.fill(s.anchors(0), numbers(s.anchors(0).size()), batch));
}

TEST(Gather, RefillingAllocatesNothing) {
  const TestStore s = make_store(base::temp_path("store"), 3, {.users = 30, .max_events = 300});
  const EventStore store(s.folder, s.schema);
  const Gatherer gatherer(store, {});
  const Values anchors = s.anchors(0);
  Batch batch;
  gatherer.fill(anchors, numbers(anchors.size()), batch);
  const auto addresses = [&] {
    std::vector<const int64_t*> all = {batch.sample_index.data()};
    for (const Batch::Group& g : batch.groups) all.push_back(g.offsets.data());
    for (const Batch::Column& c : batch.columns) all.push_back(c.values.data());
    return all;
  };
  const std::vector<const int64_t*> before = addresses();
  const int64_t live = Buffer::live_bytes(Purpose::kBatch);
  const Values half(anchors.begin(), anchors.begin() + static_cast<int64_t>(anchors.size() / 2));
  for (const Values& some : {half, anchors, Values{}, anchors}) {
    gatherer.fill(some, numbers(some.size()), batch);
    EXPECT_EQ(addresses(), before);
    EXPECT_EQ(Buffer::live_bytes(Purpose::kBatch), live);
    batch.validate();
  }
}

TEST(Gather, ManyThreadsShareOneGatherer) {
  const TestStore s = make_store(base::temp_path("store"), 4);
  const EventStore store(s.folder, s.schema);
  const Gatherer gatherer(store, {});
  const Values anchors = s.anchors(0);
  Batch alone;
  gatherer.fill(anchors, numbers(anchors.size()), alone);
  std::vector<Batch> batches(4);
  std::vector<std::thread> threads;
  threads.reserve(batches.size());
  for (Batch& batch : batches) {
    threads.emplace_back([&] {
      for (int i = 0; i < 3; ++i) gatherer.fill(anchors, numbers(anchors.size()), batch);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Batch& batch : batches) EXPECT_TRUE(batch == alone);
}

TEST(Gather, AnEmptyBatchIsLegal) {
  const TestStore s = make_store(base::temp_path("store"), 4);
  const EventStore store(s.folder, s.schema);
  Batch batch;
  Gatherer(store, {}).fill({}, {}, batch);
  batch.validate();
  EXPECT_EQ(batch.num_samples(), 0);
  EXPECT_NE(batch.find_column("user_x_artist_x_hour"), nullptr);
}

// A question about what an event asks gives the event's sample, but for the label it cannot know.
/// Histories that end with what is predicted.
TEST(Gather, LabelledEventsAreTheAnchors) {
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    StoreShape shape;
    shape.disjoint_pools = seed % 2 == 0;
    const TestStore s = make_store(base::temp_path(std::to_string(seed)), seed, shape);
    const EventStore store(s.folder, s.schema);
    GatherConfig config;
    config.history_length = seed % 3 == 0 ? 7 : 1000;
    config.max_history = 20;
    const int64_t most = std::min<int64_t>(config.history_length, 20) / 2;
    config.sample_events = most;
    const Gatherer gatherer(store, config);
    Values anchors, starts;  // runs of up to `most` events of one user
    for (const int64_t a : s.anchors(0)) {
      const auto p = static_cast<size_t>(a);
      const bool goes_on = !starts.empty() &&
                           a - anchors[static_cast<size_t>(starts.back())] < most &&
                           s.users[p] == s.users[static_cast<size_t>(anchors.back())];
      if (!goes_on) starts.push_back(std::ssize(anchors));
      anchors.push_back(a);
    }
    starts.push_back(std::ssize(anchors));
    Batch batch;
    gatherer.fill(anchors, numbers(starts.size() - 1), batch, starts);
    batch.validate();
    EXPECT_EQ(batch.column("item_candidate_id").values.size(), 0);
    for (size_t i = 0; i + 1 < starts.size(); ++i) {
      const auto sample = static_cast<int64_t>(i);
      const Values of(anchors.begin() + starts[i], anchors.begin() + starts[i + 1]);
      // The history of the first anchor, with room for the others; then all that is in a pool.
      GatherConfig plain = config;
      plain.max_history = 20 - most;
      Values positions = expected_history(s, plain, of.front(), of.front()).positions;
      for (int64_t p = of.front(); p <= of.back(); ++p) {
        const bool in_pool = std::ranges::any_of(
            s.pools, [&](const auto& pool) { return pool[static_cast<size_t>(p)] != 0; });
        if (in_pool || std::ranges::find(of, p) != of.end()) positions.push_back(p);
      }
      ASSERT_EQ(sample_values(batch, "item_id", sample), at(s.items, positions));
      ASSERT_EQ(sample_values(batch, "action_timestamp", sample), at(s.timestamps, positions));
      Values actions, labels;
      for (const int64_t p : positions) {
        int64_t action = 0, label = 0;
        for (size_t pool = 0; pool < s.pools.size(); ++pool) {
          const PoolConfig& c = s.schema.pools[pool];
          if (s.pools[pool][static_cast<size_t>(p)] == 0) continue;
          action |= c.bit;
          if (s.schema.label_pool.empty() || s.schema.label_pool == c.name) label |= c.bit;
        }
        actions.push_back(action);
        labels.push_back(std::ranges::find(of, p) != of.end() ? label : -1);
      }
      EXPECT_EQ(sample_values(batch, "action_weight", sample), actions);
      EXPECT_EQ(sample_values(batch, "event_label", sample), labels);
      Values crosses;  // of user and item: the same for every sample that has the event
      for (const int64_t p : positions) {
        GatherConfig single;
        Batch alone;
        Gatherer(store, single).fill(Values{p}, Values{0}, alone);
        crosses.push_back(sample_values(alone, "user_x_artist", 0)[0]);
        if (i > 3) break;  // enough
      }
      Values found = sample_values(batch, "user_x_artist", sample);
      found.resize(crosses.size());
      EXPECT_EQ(found, crosses);
    }
  }
}

/// Outcomes of an event and of all behind it may change what stands there, never what is before it:
/// shares of pools once told a model how many successes were still to come.
TEST(Gather, WhatIsBeforeALabelledEventDoesNotKnowWhatComes) {
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const TestStore s = make_store(base::temp_path("a" + std::to_string(seed)), seed);
    Values starts{0}, anchors = s.anchors(0);
    const int64_t user = s.users[static_cast<size_t>(anchors.back())];
    std::erase_if(anchors, [&](int64_t a) { return s.users[static_cast<size_t>(a)] != user; });
    if (anchors.size() > 8) anchors.erase(anchors.begin(), anchors.end() - 8);
    starts.push_back(std::ssize(anchors));
    GatherConfig config;
    config.history_length = 12;
    config.sample_events = anchors.back() - anchors.front() + 1;
    config.max_history = 12 + config.sample_events;
    const auto sample_of = [&](const TestStore& of) {
      const EventStore store(of.folder, of.schema);
      Batch batch;
      Gatherer(store, config).fill(anchors, Values{0}, batch, starts);
      return std::array{sample_values(batch, "item_id", 0),
                        sample_values(batch, "action_weight", 0),
                        sample_values(batch, "event_label", 0)};
    };
    const auto before = sample_of(s);
    for (const int64_t moment : anchors) {
      TestStore changed = s;
      changed.folder = base::temp_path(fmt::format("b{}_{}", seed, moment));
      for (std::vector<uint8_t>& pool : changed.pools) {
        for (int64_t p = moment; p <= anchors.back(); ++p) pool[static_cast<size_t>(p)] ^= 1;
      }
      changed.write(StoreShape{});
      const auto after = sample_of(changed);
      // All up to the moment's own item, which is known when it is predicted.
      const auto rank = std::ranges::find(anchors, moment) - anchors.begin();
      size_t seen = 0;
      for (int64_t labelled = -1; labelled < rank; ++seen) labelled += before[2][seen] >= 0 ? 1 : 0;
      for (size_t i = 0; i < seen; ++i) {
        ASSERT_EQ(after[0].at(i), before[0][i]);
        if (i + 1 < seen) {
          ASSERT_EQ(after[1].at(i), before[1][i]);
        }
      }
    }
  }
}

/// A candidate that is no event is the last one of its history.
TEST(Gather, QuestionsAreLabelledEvents) {
  const TestStore s = make_store(base::temp_path("q"), 3);
  const EventStore store(s.folder, s.schema);
  GatherConfig config;
  config.max_history = 5;
  config.sample_events = 1;
  const Gatherer gatherer(store, config);
  const int64_t user = s.users.back(), late = 2'000'000'000;
  const CandidateQuery questions[] = {{user, 3, late, 1}, {user, 4, 0, 1}};
  Batch batch;
  gatherer.fill(questions, batch);
  batch.validate();
  const Values items = sample_values(batch, "item_id", 0);
  ASSERT_EQ(items.size(), 5U);
  EXPECT_EQ(items.back(), 3);
  EXPECT_EQ(sample_values(batch, "event_label", 0), (Values{-1, -1, -1, -1, 0}));
  EXPECT_EQ(sample_values(batch, "action_weight", 0).back(), 0);
  EXPECT_EQ(sample_values(batch, "action_timestamp", 0).back(), late);
  EXPECT_EQ(sample_values(batch, "item_id", 1), Values{4}) << "nothing is before time 0";
}

TEST(Gather, QuestionsAreSamplesWithoutAnEvent) {
  const TestStore s = make_store(base::temp_path("store"), 4);
  const EventStore store(s.folder, s.schema);
  const Gatherer gatherer(store, {});
  Values anchors;
  std::vector<CandidateQuery> questions;
  for (int64_t p = 0; p < s.num_events(); ++p) {
    const auto at = static_cast<size_t>(p);
    const bool tie =
        p > 0 && s.users[at] == s.users[at - 1] && s.timestamps[at] == s.timestamps[at - 1];
    if (tie) continue;  // the event before is not earlier
    anchors.push_back(p);
    questions.push_back({s.users[at], s.items[at], s.timestamps[at], s.organic[at]});
  }
  ASSERT_GT(anchors.size(), 20u);
  Batch asked, happened;
  gatherer.fill(questions, asked);
  gatherer.fill(anchors, numbers(anchors.size()), happened);
  for (const Batch::Column& column : happened.columns) {
    if (column.name == "item_action_weight") continue;
    EXPECT_TRUE(std::ranges::equal(asked.column(column.name).values.span(), column.values.span()))
        << column.name;
  }
  EXPECT_EQ(asked.column("item_action_weight").values[0], 0);

  const auto error = base::error_of(
      [&] { gatherer.fill(std::vector<CandidateQuery>{{.user = int64_t{1} << 40}}, asked); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::kOutOfRange);
}

TEST(Gather, RefusesWhatDoesNotFit) {
  const TestStore s = make_store(base::temp_path("store"), 4);
  const EventStore store(s.folder, s.schema);
  const Gatherer gatherer(store, {});
  Batch batch;
  for (const int64_t position : {int64_t{-1}, s.num_events(), int64_t{1} << 40}) {
    EXPECT_EQ(base::error_of([&] { gatherer.fill(Values{position}, Values{0}, batch); })->code(),
              ErrorCode::kCorrupt);
  }
  Batch other;
  other.add_column("x", other.add_group("g"));
  EXPECT_EQ(base::error_of([&] { gatherer.fill(Values{1}, Values{0}, other); })->code(),
            ErrorCode::kInvalidArgument);
  GatherConfig config;
  config.history_length = 0;
  EXPECT_EQ(base::error_of([&] { Gatherer(store, config); })->code(), ErrorCode::kConfig);
}

// A user id that its own table does not confirm: the columns disagree.
TEST(Gather, NamesTheFileThatGivesAnEventToTheWrongUser) {
  StoreShape shape;
  shape.users = 200;  // more than are looked at when the store is opened
  TestStore s = make_store(base::temp_path("store"), 4, shape);
  const int64_t victim = s.user_start[static_cast<size_t>(s.unique_users[100])] + 1;
  s.users[static_cast<size_t>(victim)] = s.unique_users[3];
  put_npy(s.column("flat_uid"), "<i8", s.users);
  const EventStore store(s.folder, s.schema);
  const Gatherer gatherer(store, {});
  Batch batch;
  const auto error = base::error_of([&] { gatherer.fill(Values{victim}, Values{0}, batch); });
  EXPECT_EQ(error->code(), ErrorCode::kCorrupt);
  EXPECT_TRUE(base::contains(error->what(), s.column("flat_uid")));
}

// Known values of the crossed features (all keys zero, and small ones).
TEST(Gather, CrossesAreTheBenchmarks) {
  TestStore s;
  s.folder = base::temp_path("store");
  s.schema = SampleSchema::yambda();
  s.users = {0, 1};
  s.items = {0, 2};
  s.timestamps = {0, 5 * 3600 + 24 * 3600 * 7 + 59};
  s.kinds = {0, 0};
  s.played = {0, 0};
  s.organic = {0, 1};
  s.pools = {{1, 0}, {0, 0}, {0, 1}};
  s.unique_users = {0, 1};
  s.user_start = {0, 1};
  s.user_end = {1, 2};
  s.maps = {{0, 0, 3}, {0, 0, 4}};
  s.write({});
  const EventStore store(s.folder, s.schema);
  Batch batch;
  Gatherer(store, {}).fill(Values{1, 0}, Values{0, 1}, batch);
  const char* const names[] = {"user_x_artist",       "user_x_album",  "user_x_hour",
                               "item_x_hour",         "artist_x_hour", "user_x_is_organic",
                               "user_x_artist_x_hour"};
  const Values small = {64114124, 10577137, 7457897, 19381703, 8957121, 734332, 1351993};
  const Values zero = {65648434, 5648434, 13648434, 5648434, 21648434, 1648434, 2111592};
  for (size_t c = 0; c < std::size(names); ++c) {
    EXPECT_EQ(batch.column(names[c]).values[0], small[c]) << names[c];
    EXPECT_EQ(batch.column(names[c]).values[1], zero[c]) << names[c];
  }
  EXPECT_EQ(batch.column("item_action_weight").values[0], 0);
  EXPECT_EQ(batch.column("item_action_weight").values[1], 1);
}

}  // namespace
}  // namespace segue::data
