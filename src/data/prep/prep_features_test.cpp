// Numbers of events and attributes of users, from raw files to samples.

#include <algorithm>
#include <bit>
#include <cmath>
#include <filesystem>
#include <limits>
#include <map>
#include <random>
#include <set>

#include <gtest/gtest.h>

#include "base/npy.h"
#include "base/test_util.h"
#include "data/inspect/feature_summary.h"
#include "data/inspect/id_ranges.h"
#include "data/log/number_arena.h"
#include "data/prep/event_sorter.h"
#include "data/prep/prep_test_util.h"
#include "data/sample/gather.h"
#include "data/store/store_verify.h"

namespace segue::data {
namespace {

using base::contains;
using base::message_of;

constexpr float kMissing = std::numeric_limits<float>::quiet_NaN();

/// A row of a log, and what it says of price (known before) and watched (an outcome).
struct Row {
  Event event;
  std::string price, watched;
};

std::vector<Row> random_rows(size_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<Row> rows;
  for (const Event& e : random_log(count, seed)) {
    const char* const prices[] = {"", "0", "-3.25", "19.9", "1e6", "null", "NaN", "7"};
    rows.push_back({e, prices[random() % 8], std::to_string(random() % 1000)});
  }
  return rows;
}

float number(const std::string& text) {
  return text.empty() || text == "null" || text == "NaN" ? kMissing : std::stof(text);
}

RawLog number_log(const std::string& name) {
  std::filesystem::remove_all(base::temp_path(name));
  RawLog log(name);
  log.schema.test_seconds = log.schema.gap_seconds = log.schema.train_days = 0;
  log.schema.numbers = {{.name = "price"},
                        {.name = "watched", .column = "watched (s)", .outcome = true}};
  return log;
}

void put_rows(const RawLog& log, const std::string& name, const std::vector<Row>& rows) {
  std::string text = std::string("price,watched (s),") + kCsvHeader;
  for (const Row& row : rows) text += row.price + "," + row.watched + "," + csv_row(row.event);
  log.put(name, text);
}

/// Rows in the order of a store, NaN before or behind all others.
void sort_rows(std::vector<Row>& rows) {
  const auto bits = [](const std::string& text) { return std::bit_cast<uint32_t>(number(text)); };
  std::ranges::sort(rows, [&](const Row& a, const Row& b) {
    return std::tuple(a.event.key(), bits(a.price), bits(a.watched)) <
           std::tuple(b.event.key(), bits(b.price), bits(b.watched));
  });
}

TEST(PrepNumbers, LieBesideTheirEventsHoweverTheLogIsSorted) {
  std::vector<Row> rows = random_rows(20000, 3);
  RawLog log = number_log("numbers");
  put_rows(log, "events.csv", rows);
  PrepConfig one_run = log.config("one_run"), runs = log.config("runs");
  runs.run_events = 1000;  // at least; a run ends with a block of rows
  EXPECT_EQ(prep(one_run).runs, 1);
  EXPECT_GT(prep(runs).runs, 3);
  sort_rows(rows);
  put_rows(log, "events.csv", rows);
  EXPECT_TRUE(prep(log.config("in_order")).was_in_order);
  const StoreBytes bytes = store_bytes(one_run.store);
  for (const char* const other : {"runs", "in_order"}) {
    EXPECT_TRUE(same_store(bytes, store_bytes(log.folder + "/" + other))) << other;
  }
  const std::string cache = one_run.store + "/hstu_cache_L20/";
  const base::NpyFile prices(cache + "flat_number_price.npy");
  const base::NpyFile watched(cache + "flat_number_watched.npy");
  ASSERT_EQ(prices.elements(), std::ssize(rows));
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto same = [&](const base::NpyFile& file, const std::string& text) {
      return std::bit_cast<uint32_t>(file.as<float>("<f4")[i]) ==
             std::bit_cast<uint32_t>(number(text));
    };
    ASSERT_TRUE(same(prices, rows[i].price)) << i;
    ASSERT_TRUE(same(watched, rows[i].watched)) << i;
  }
  EXPECT_TRUE(verify_store(one_run.store).ok());
}

TEST(PrepNumbers, EventsThatStayInTheLogsOrderKeepTheirs) {
  std::vector<Row> rows = random_rows(3000, 4);
  RawLog log = number_log("ties");
  put_rows(log, "events.csv", rows);
  PrepConfig config = log.config("store");
  config.ties = TieOrder::kFile;
  config.run_events = 500;
  prep(config);
  std::ranges::stable_sort(rows, [](const Row& a, const Row& b) {
    return std::pair(a.event.user, a.event.time) < std::pair(b.event.user, b.event.time);
  });
  const base::NpyFile watched(config.store + "/hstu_cache_L20/flat_number_watched.npy");
  for (size_t i = 0; i < rows.size(); ++i) {
    ASSERT_EQ(watched.as<float>("<f4")[i], number(rows[i].watched)) << i;
  }
}

/// Many numbers: blocks of a run are larger than what cursors begin with.
TEST(PrepNumbers, AnEventMayHaveMany) {
  std::vector<Event> events = random_log(4000, 9);
  NumberArena kept;
  std::mt19937_64 random(9);
  for (Event& e : events) {
    const std::span<float> numbers = kept.add(kMaxNumbers);
    for (float& x : numbers) x = static_cast<float>(random() % 100);
    e.set_numbers(numbers);
  }
  const std::string folder = base::temp_path("many_numbers");
  base::make_folders(folder);
  EventSorter sorter({.scratch = [&](const std::string& name) { return folder + "/" + name; },
                      .run_events = 600,
                      .merge_bytes = 700 << 10,
                      .numbers = kMaxNumbers});
  for (const Event& e : events) {
    sorter.buffer().push_back(e);
    sorter.numbers().take(sorter.buffer().back());
    sorter.added();
  }
  EXPECT_GT(sorter.finish(), 5);
  std::sort(events.begin(), events.end());
  size_t done = 0;
  EventBlock block;
  while (sorter.next(block)) {
    for (const Event& e : block.events) {
      ASSERT_EQ(e.key(), events[done].key());
      ASSERT_TRUE(std::ranges::equal(e.numbers(), events[done].numbers())) << done;
      ++done;
    }
  }
  EXPECT_EQ(done, events.size());
}

TEST(PrepNumbers, DamageIsFound) {
  RawLog log = number_log("damage");
  put_rows(log, "events.csv", random_rows(500, 5));
  const PrepConfig config = log.config("store");
  prep(config);
  const std::string column = config.store + "/hstu_cache_L20/flat_number_price.npy";
  const std::string bytes = base::read_file(column);
  std::string flipped = bytes;
  flipped.back() = static_cast<char>(flipped.back() ^ 1);
  base::put_file(column, flipped);
  const VerifyReport report = verify_store(config.store);
  ASSERT_FALSE(report.ok());
  EXPECT_TRUE(contains(report.problems[0], "flat_number_price.npy"));
  base::put_file(column, bytes.substr(0, bytes.size() - 4));
  const std::string message =
      message_of(ErrorCode::kCorrupt, [&] { EventStore(config.store, log.schema.samples()); });
  EXPECT_TRUE(contains(message, "flat_number_price.npy"));
}

TEST(PrepNumbers, MistakesAreNamed) {
  RawLog log = number_log("mistakes");
  std::vector<Row> rows = random_rows(10, 6);
  rows[3].price = "1e39";
  put_rows(log, "events.csv", rows);
  const auto message = [&] {
    return message_of(ErrorCode::kCorrupt, [&] { prep(log.config("store")); });
  };
  EXPECT_TRUE(contains(message(), "column \"price\" has 1e+39; numbers are finite"));
  EXPECT_TRUE(contains(message(), "row 4"));
  rows[3].price = "cheap";
  put_rows(log, "events.csv", rows);
  EXPECT_TRUE(contains(message(), "cheap"));

  const auto schema_error = [&](const auto& change) {
    LogSchema schema = log.schema;
    change(schema);
    return message_of(ErrorCode::kConfig, [&] { schema.validate(); });
  };
  EXPECT_TRUE(contains(schema_error([](LogSchema& s) { s.numbers[0].name = "a b"; }), "`column`"));
  EXPECT_TRUE(contains(schema_error([](LogSchema& s) { s.numbers[1].name = "price"; }), "twice"));
  EXPECT_TRUE(contains(schema_error([](LogSchema& s) { s.numbers[0].name = "gap"; }), "taken"));
  EXPECT_TRUE(
      contains(schema_error([](LogSchema& s) { s.numbers[0].name = "artist_id"; }), "taken"));
  EXPECT_TRUE(
      contains(schema_error([](LogSchema& s) { s.numbers.resize(65, {.name = "n"}); }), "twice"));
  LogSchema unknown = log.schema;
  unknown.numbers[0].column = "cost";
  PrepConfig config = log.config("store");
  config.schema = unknown;
  EXPECT_TRUE(contains(message_of(ErrorCode::kConfig, [&] { prep(config); }), "cost"));
}

struct Opened {
  EventStore store;
  Gatherer gatherer;
  Opened(const std::string& path, const SampleSchema& schema, bool labelled_events = false)
      : store(path, schema),
        gatherer(store, {.history_length = 24,
                         .scan_window = 60,
                         .max_history = 9,
                         .sample_events = labelled_events ? 1 : 0}) {}
};

SampleSchema with_numbers(SampleSchema schema, bool candidates) {
  schema.history_numbers = {"price", "watched", "gap"};
  if (candidates) schema.candidate_numbers = {"price", "user_rate"};
  return schema;
}

Batch samples_of(const Opened& o, std::span<const int64_t> anchors) {
  std::vector<int64_t> index(anchors.size());
  for (size_t i = 0; i < index.size(); ++i) index[i] = static_cast<int64_t>(i);
  Batch batch;
  o.gatherer.fill(anchors, index, batch);
  batch.validate();
  return batch;
}

TEST(PrepNumbers, SamplesCarryThem) {
  RawLog log = number_log("samples");
  put_rows(log, "events.csv", random_rows(2000, 7));
  prep(log.config("store"));
  const Opened o(log.folder + "/store", with_numbers(log.schema.samples(), true));
  const std::span<const int64_t> anchors = o.store.anchors(0).positions;
  const Batch batch = samples_of(o, anchors);
  const std::span<const int64_t> offsets = batch.group("history").offsets.span();
  const auto same = [](float a, float b) {
    return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
  };
  int64_t missing = 0;
  for (size_t i = 0; i < anchors.size(); ++i) {
    const auto at = static_cast<size_t>(anchors[i]);
    EXPECT_TRUE(same(batch.float_column("item_candidate_price").values[static_cast<int64_t>(i)],
                     o.store.number(0)[at]));
    missing += std::isnan(o.store.number(0)[at]) ? 1 : 0;
    // Backwards from the anchor: the next event that is the one of the history.
    auto e = static_cast<int64_t>(at);
    for (int64_t k = offsets[i + 1] - 1; k >= offsets[i]; --k) {
      const auto is_it = [&](int64_t p) {
        const auto q = static_cast<size_t>(p);
        return o.store.items()[q] == batch.column("item_id").values[k] &&
               o.store.timestamps()[q] == batch.column("action_timestamp").values[k] &&
               same(o.store.number(0)[q], batch.float_column("price").values[k]) &&
               same(o.store.number(1)[q], batch.float_column("watched").values[k]);
      };
      do --e;
      while (e >= 0 && !is_it(e));
      ASSERT_GE(e, 0) << "no event has these numbers";
    }
  }
  EXPECT_GT(missing, 0);
}

TEST(PrepNumbers, QuestionsHaveWhatIsGivenAndNoOutcomes) {
  RawLog log = number_log("questions");
  put_rows(log, "events.csv", random_rows(500, 8));
  prep(log.config("store"));
  const std::vector<CandidateQuery> questions = {
      {.user = 1, .item = 3, .time = 1'000'000, .numbers = {2.5f, 60.f}},
      {.user = 1, .item = 3, .time = 1'000'000}};
  Batch batch;
  Opened(log.folder + "/store", with_numbers(log.schema.samples(), true))
      .gatherer.fill(questions, batch);
  EXPECT_EQ(batch.float_column("item_candidate_price").values[0], 2.5f);
  EXPECT_TRUE(std::isnan(batch.float_column("item_candidate_price").values[1]));
  Batch events;
  Opened(log.folder + "/store", with_numbers(log.schema.samples(), false), true)
      .gatherer.fill(questions, events);
  for (const int64_t i : {0, 1}) {
    const int64_t last = events.group("history").offsets[i + 1] - 1;
    EXPECT_TRUE(std::isnan(events.float_column("watched").values[last])) << "an outcome";
    EXPECT_EQ(std::isnan(events.float_column("price").values[last]), i == 1);
  }
}

/// Whatever happens at or after a moment, and to users who come later, changes no sample before it.
TEST(PrepNumbers, TheFutureChangesNothing) {
  for (const uint64_t seed : {11, 12, 13}) {
    SCOPED_TRACE(seed);
    std::vector<Row> rows = random_rows(1500, seed);
    sort_rows(rows);
    const int64_t now = rows[seed * 97 % rows.size()].event.time;
    RawLog log = number_log("future");
    log.schema.user_attributes.resize(1);
    log.schema.user_attributes[0].name = "country";
    log.schema.user_attributes[0].file = "users.csv";
    log.schema.user_attributes[0].value = "country";
    log.put("users.csv", "uid,country\n1,fr\n4,de\n7,fr\n");
    put_rows(log, "events.csv", rows);
    prep(log.config("before"));
    for (Row& row : rows) {
      if (row.event.time < now) continue;
      row.price = "123456";
      row.watched = "0.5";
      row.event.item = (row.event.item + 1) % 200;
      row.event.kind = 0;
      row.event.value = 99;
    }
    put_rows(log, "events.csv", rows);
    prep(log.config("after"));
    const SampleSchema schema = with_numbers(log.schema.samples(), true);
    const Opened before(log.folder + "/before", schema), after(log.folder + "/after", schema);
    std::vector<int64_t> earlier, other;
    for (const int64_t p : before.store.anchors(0).positions) {
      (before.store.timestamps()[static_cast<size_t>(p)] < now ? earlier : other).push_back(p);
    }
    ASSERT_FALSE(earlier.empty());
    ASSERT_FALSE(other.empty());
    EXPECT_EQ(samples_of(before, earlier), samples_of(after, earlier));
    EXPECT_FALSE(samples_of(before, other) == samples_of(after, other));
  }
}

TEST(PrepNumbers, AreSummarized) {
  RawLog log = number_log("summary");
  std::vector<Row> rows = random_rows(4, 1);
  for (size_t i = 0; i < 4; ++i) rows[i].price = std::vector<std::string>{"", "1", "3", "5"}[i];
  put_rows(log, "events.csv", rows);
  prep(log.config("store"));
  const EventStore store(log.folder + "/store", log.schema.samples());
  const std::vector<NumberSummary> s = summarize_numbers(store);
  ASSERT_EQ(s.size(), 2u);
  EXPECT_EQ(s[0].missing, 1);
  EXPECT_DOUBLE_EQ(s[0].min, 1);
  EXPECT_DOUBLE_EQ(s[0].mean, 3);
  EXPECT_DOUBLE_EQ(s[0].max, 5);
  EXPECT_NEAR(s[0].deviation, std::sqrt(8.0 / 3), 1e-12);
  EXPECT_NEAR(s[0].log_mean, (std::log(2) + std::log(4) + std::log(6)) / 3, 1e-12);
  EXPECT_TRUE(s[1].outcome);
}

RawLog user_log(const std::string& name) {
  RawLog log = number_log(name);
  log.schema.user_attributes.resize(2);
  log.schema.user_attributes[0].name = "country";
  log.schema.user_attributes[0].file = "users.csv";
  log.schema.user_attributes[0].value = "country";
  log.schema.user_attributes[1].name = "age_id";
  log.schema.user_attributes[1].file = "users.csv";
  log.schema.user_attributes[1].value = "age";
  log.put("users.csv", "uid,country,age\n4,fr,31\n1,de,\n4,ch,30\n500,at,7\n");
  put_rows(log, "events.csv", random_rows(800, 2));
  return log;
}

TEST(PrepUserAttributes, AreMapsThatSamplesRead) {
  const RawLog log = user_log("user_maps");
  prep(log.config("store"));
  const std::string folder = log.folder + "/store";
  EXPECT_TRUE(verify_store(folder).ok());
  EXPECT_EQ(base::read_file(folder + "/segue/country_ids.txt"), "at\nch\nde\nfr\n");
  SampleSchema schema = log.schema.samples();
  schema.crosses = {{"country_x_hour", {"country", "hour_of_day"}, 1000}};
  const Opened o(folder, schema);
  EXPECT_EQ(o.store.user_attribute(0, 4), 2) << "the last row of a user counts";
  EXPECT_EQ(o.store.user_attribute(0, 1), 3);
  EXPECT_EQ(o.store.user_attribute(1, 4), 30);
  EXPECT_EQ(o.store.user_attribute(1, 1), 0) << "no value";
  EXPECT_EQ(o.store.user_attribute(0, 501), 0);
  const std::span<const int64_t> anchors = o.store.anchors(0).positions;
  const Batch batch = samples_of(o, anchors);
  std::map<int64_t, std::set<int64_t>> crosses;  // ids by country
  for (int64_t i = 0; i < std::ssize(anchors); ++i) {
    const int64_t user = batch.column("uid").values[i];
    EXPECT_EQ(batch.column("country").values[i], o.store.user_attribute(0, user));
    EXPECT_EQ(batch.column("age_id").values[i], o.store.user_attribute(1, user));
    crosses[batch.column("country").values[i]].insert(batch.column("country_x_hour").values[i]);
  }
  ASSERT_EQ(crosses.size(), 3u);
  for (const auto& [country, ids] : crosses) EXPECT_LE(ids.size(), 24u);
  const std::vector<IdRange> ranges = id_ranges(o.store);
  const auto country = std::ranges::find(ranges, "country", &IdRange::column);
  ASSERT_NE(country, ranges.end());
  EXPECT_EQ(country->largest, 3);
  const std::vector<AttributeSummary> s = summarize_user_attributes(o.store);
  EXPECT_EQ(s[0].values, 2);
  EXPECT_NEAR(s[0].item_share, 2.0 / static_cast<double>(o.store.num_users()), 1e-12);
  // Labelled events: contextual columns stay those of the sample.
  const Batch labelled = samples_of(Opened(folder, schema, true), anchors.first(20));
  EXPECT_EQ(labelled.column("country").values.size(), 20);
}

/// The map of a file without rows is not as long as the largest id.
TEST(PrepUserAttributes, NobodyHasOne) {
  RawLog log = user_log("nobody");
  log.put("users.csv", "uid,country,age\n");
  std::vector<Row> rows = random_rows(10, 3);
  for (Row& row : rows) row.event.user = 50'000'000;
  put_rows(log, "events.csv", rows);
  log.schema.user_ids = IdMapping::kAsIs;
  prep(log.config("store"));
  const EventStore store(log.folder + "/store", log.schema.samples());
  EXPECT_EQ(store.user_attribute(0, 50'000'000), 0);
  EXPECT_LE(store.user_attribute_map(0).size(), 1u);
  EXPECT_TRUE(verify_store(log.folder + "/store").ok());
}

TEST(PrepUserAttributes, GoWithAStoreThatIsReplaced) {
  RawLog log = user_log("replaced");
  prep(log.config("store"));
  log.schema.user_attributes.clear();
  PrepConfig again = log.config("store");
  again.overwrite = true;
  prep(again);
  EXPECT_FALSE(base::exists(again.store + "/user_to_age.npy"));
}

TEST(PrepUserAttributes, FollowUsersThatGetNewNumbers) {
  RawLog log = user_log("renumbered_users");
  log.schema.user_ids = IdMapping::kDense;
  prep(log.config("store"));
  const EventStore store(log.folder + "/store", log.schema.samples());
  EXPECT_EQ(store.user_attribute(0, 0), 3) << "user 1 is the first";
  EXPECT_EQ(store.user_attribute(0, 1), 2) << "user 4 the second";
  EXPECT_EQ(std::ssize(store.user_attribute_map(0)), store.num_users());
}

TEST(PrepUserAttributes, MistakesAreNamed) {
  RawLog log = user_log("user_mistakes");
  const auto message = [&]() -> std::string {
    return base::error_of([&] { prep(log.config("store")); })->what();
  };
  log.put("users.csv", "uid,country,age\n4,fr,-2\n");
  EXPECT_TRUE(contains(message(), "user 4 has attribute -2"));
  log.put("users.csv", "uid,country,age\n,fr,2\n");
  EXPECT_TRUE(contains(message(), "column \"uid\" is empty"));
  log.put("users.csv", "uid,land,age\n1,fr,2\n");
  EXPECT_TRUE(contains(message(), "country"));
  log.schema.user_attributes[0].name = "artist_id";
  EXPECT_TRUE(contains(message(), "twice"));
  log.schema.user_attributes[0].name = "country";
  log.schema.user_attributes[0].value = "";
  EXPECT_TRUE(contains(message(), "needs file, user and value"));
  // A store whose map is gone.
  RawLog fine = user_log("map_gone");
  prep(fine.config("store"));
  std::filesystem::remove(fine.folder + "/store/user_to_age.npy");
  EXPECT_TRUE(contains(
      base::error_of([&] { EventStore(fine.folder + "/store", fine.schema.samples()); })->what(),
      "user_to_age.npy"));
}

}  // namespace
}  // namespace segue::data
