// Stores from raw logs: expectations worked out by hand, and the same rows in other shapes.

#include "data/prep/prep.h"

#include <algorithm>
#include <filesystem>
#include <random>

#include <gtest/gtest.h>

#include "base/test_util.h"
#include "data/prep/prep_test_util.h"
#include "data/store/store_verify.h"

namespace segue::data {
namespace {

namespace fs = std::filesystem;
using base::contains;
using base::error_of;

std::vector<Event> shuffled(std::vector<Event> events, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::shuffle(events.begin(), events.end(), random);
  return events;
}

TEST(Prep, SplitSessionsAndTies) {
  const RawLog log("raw");
  // With the last event at 200000: test is [113600, 200000), train ends at 111800.
  log.put("events.csv", std::string(kCsvHeader) +
                            "5,200000,9,0,90,100,listen\n"  // the last instant: nowhere
                            "5,111799,1,1,50,100,listen\n"  // the last of train
                            "5,111800,2,0,,,like\n"         // in the gap
                            "5,113600,3,0,,,like\n"         // the first of test
                            "5,199999,3,0,10,7,listen\n"    // test
                            "2,150000,4,0,80,100,listen\n"  // test, but the user has no train
                            "5,110000,6,0,70,,listen\n"     // 1799 s earlier: the same session
                            "5,108199,6,0,,,dislike\n"      // 1801 s earlier: another session
                            "3,100,7,0,30,9,listen\n"
                            "3,100,5,0,30,9,listen\n"  // ties: by kind, item, ...
                            "3,100,5,0,20,9,listen\n"
                            "3,100,2,1,,,like\n");
  PrepConfig config = log.config("store");
  config.history_length = 1;
  config.min_history = {};
  const PrepResult r = prep(config);
  EXPECT_EQ(r.rows.rows, 12);
  EXPECT_FALSE(r.was_in_order);
  EXPECT_EQ(r.counts.train_events, 7);
  EXPECT_EQ(r.counts.test_events, 2);
  EXPECT_EQ(r.counts.sessions, 3);
  EXPECT_EQ(r.counts.users, 2);

  const std::string cache = config.store + "/hstu_cache_L1/";
  EXPECT_EQ(integers(cache + "flat_uid.npy"), (Ints{3, 3, 3, 3, 5, 5, 5}));
  EXPECT_EQ(integers(cache + "flat_timestamps.npy"),
            (Ints{100, 100, 100, 100, 108199, 110000, 111799}));
  EXPECT_EQ(integers(cache + "flat_item_ids.npy"), (Ints{5, 5, 7, 2, 6, 6, 1}));
  EXPECT_EQ(integers(cache + "flat_event_types.npy"), (Ints{0, 0, 0, 1, 2, 0, 0}));
  EXPECT_EQ(integers(cache + "positions_L1.npy"), (Ints{1, 2, 5, 6}));
  EXPECT_EQ(integers(cache + "user_start.npy"), (Ints{-1, -1, -1, 0, -1, 4}));
  EXPECT_EQ(integers(config.store + "/item_to_artist.npy").size(), 200U);  // 199 is in the mapping
  EXPECT_EQ(integers(config.store + "/item_to_artist.npy")[3], 8);         // the last row counts
  EXPECT_EQ(base::read_file(config.store + "/split_meta.json"), R"({
  "size": "50m",
  "t_min": 100,
  "t_max": 200000,
  "train_start": -25808200,
  "train_end": 111800,
  "test_start": 113600,
  "test_end": 200000,
  "train_days": 300,
  "gap_minutes": 30,
  "test_days": 1,
  "session_gap_seconds": 1800,
  "num_train_events": 7,
  "num_test_events": 2,
  "num_sessions": 3,
  "num_users": 2
})");
}

TEST(Prep, TrainDaysCutTheBeginning) {
  RawLog log("raw");
  log.schema.train_days = 1;
  log.put("events.csv", std::string(kCsvHeader) + "1,25399,1,0,1,1,listen\n" +
                            "1,25400,2,0,1,1,listen\n" + "1,200000,1,0,1,1,listen\n");
  PrepConfig config = log.config("store");
  EXPECT_EQ(prep(config).counts.train_events, 1);
  EXPECT_EQ(integers(config.store + "/hstu_cache_L20/flat_item_ids.npy"), Ints{2});
}

TEST(Prep, WithoutTestPartEverythingTrains) {
  RawLog log("raw");
  log.schema.train_days = log.schema.test_seconds = log.schema.gap_seconds = 0;
  log.put_events("events.csv", random_log(500, 3));
  EXPECT_EQ(prep(log.config("store")).counts.train_events, 500);
}

// ---- the same rows, another shape ----

class PrepShapes : public testing::Test {
 protected:
  PrepShapes() : log_("raw"), events_(random_log(3000, 11)) {
    std::sort(events_.begin(), events_.end());
    log_.put_events("events.csv", events_);
    const PrepResult r = prep(log_.config("wanted"));
    EXPECT_TRUE(r.was_in_order);
    EXPECT_EQ(r.runs, 0);
    EXPECT_GT(r.counts.test_events, 100);
    wanted_ = store_bytes(log_.folder + "/wanted");
    EXPECT_TRUE(verify_store(log_.folder + "/wanted").ok());
    fs::remove(log_.folder + "/events.csv");
  }

  StoreBytes made(const PrepConfig& config) {
    result_ = prep(config);
    return store_bytes(config.store);
  }

  RawLog log_;
  std::vector<Event> events_;
  StoreBytes wanted_;
  PrepResult result_;
};

TEST_F(PrepShapes, AnyOrder) {
  for (const uint64_t seed : {1, 2, 3}) {
    log_.put_events("events.csv", shuffled(events_, seed));
    PrepConfig config = log_.config("store");
    config.overwrite = true;
    EXPECT_TRUE(same_store(wanted_, made(config)));
    EXPECT_FALSE(result_.was_in_order);
    EXPECT_EQ(result_.runs, 1);  // in memory
  }
}

TEST_F(PrepShapes, TiesInAnyOrder) {
  // In order of (user, time), ties shuffled: sorted on the way, without a sort of the whole.
  std::vector<Event> events = shuffled(events_, 5);
  std::stable_sort(events.begin(), events.end(), [](const Event& a, const Event& b) {
    return std::pair(a.user, a.time) < std::pair(b.user, b.time);
  });
  log_.put_events("events.csv", events);
  EXPECT_TRUE(same_store(wanted_, made(log_.config("store"))));
  EXPECT_TRUE(result_.was_in_order);
}

TEST_F(PrepShapes, ManyRunsOnDisk) {
  log_.put_events("events.csv", shuffled(events_, 4));
  for (const int64_t run_events : {1000, 64}) {
    PrepConfig config = log_.config("store");
    config.overwrite = true;
    config.run_events = run_events;
    // A block of rows is the smallest run.
    EXPECT_TRUE(same_store(wanted_, made(config)));
  }
}

TEST_F(PrepShapes, SeveralFiles) {
  const std::vector<Event> events = shuffled(events_, 6);
  log_.put_events("events-3.csv", {events.begin(), events.begin() + 1000});
  log_.put_events("events-1.csv", {events.begin() + 1000, events.begin() + 1001});
  log_.put_events("events-2.csv", {});
  log_.put_events("events.csv", {events.begin() + 1001, events.end()});
  log_.put("unrelated.csv", "x\n1\n");
  EXPECT_TRUE(same_store(wanted_, made(log_.config("store"))));
}

TEST_F(PrepShapes, OtherColumnsAndNumbers) {
  std::string text =
      "event_type,extra,timestamp,uid,item_id,track_length_seconds,"
      "played_ratio_pct,is_organic\r\n";
  for (const Event& e : shuffled(events_, 7)) {
    text += std::to_string(e.kind) + ",\"a,b\"," + std::to_string(e.time) + ".0," +
            std::to_string(e.user) + "," + std::to_string(e.item) + ".0," +
            (e.length < 0 ? "null" : std::to_string(e.length) + ".7") + "," +
            (e.has_value() ? std::to_string(e.value) : "NaN") + "," +
            (e.organic != 0 ? "True" : "false") + "\r\n";
  }
  log_.put("events.csv", text);
  EXPECT_TRUE(same_store(wanted_, made(log_.config("store"))));
}

TEST_F(PrepShapes, FileOrderOfTiesIsKept) {
  const std::vector<Event> events = shuffled(events_, 8);
  log_.put_events("events.csv", events);
  PrepConfig config = log_.config("store");
  config.ties = TieOrder::kFile;
  const StoreBytes first = made(config);
  EXPECT_FALSE(same_store(wanted_, first));
  config.store += "2";
  config.run_events = 64;
  EXPECT_TRUE(same_store(first, made(config)));
  // The same again when the input is in order already.
  std::vector<Event> in_order = events;
  std::stable_sort(in_order.begin(), in_order.end(), [](const Event& a, const Event& b) {
    return std::pair(a.user, a.time) < std::pair(b.user, b.time);
  });
  log_.put_events("events.csv", in_order);
  config.store += "3";
  EXPECT_TRUE(same_store(first, made(config)));
  EXPECT_TRUE(result_.was_in_order);
}

TEST_F(PrepShapes, AnyMemory) {
  log_.put_events("events.csv", shuffled(events_, 9));
  PrepConfig config = log_.config("store");
  config.memory_bytes = int64_t{3} << 30;
  EXPECT_TRUE(same_store(wanted_, made(config)));
}

// ---- names and warnings ----

TEST(PrepNames, OfRawFilesNeedNotBeUtf8) {
  RawLog log("raw");
  log.put_events("events-\xe9t\xe9.csv", random_log(100, 3, 2));
  const PrepConfig config = log.config("store");
  prep(config);
  EXPECT_TRUE(verify_store(config.store).ok());
  EXPECT_EQ(StoreManifest::read(config.store).origin.sources[0].name,
            "events-\xef\xbf\xbdt\xef\xbf\xbd.csv");
}

TEST(PrepWarnings, NothingToPredictAndTimesInTheFuture) {
  RawLog log("raw");
  log.schema.attributes.clear();
  log.put("events.csv", std::string(kCsvHeader) + "1,1700000000000,77,0,1,1,listen\n" +
                            "3,1700000000000,77,0,1,1,listen\n" +
                            "3,1700100000000,77,0,1,1,listen\n");
  log.schema.test_seconds = log.schema.gap_seconds = 0;
  PrepConfig config = log.config("store");
  config.min_history = {2};
  testing::internal::CaptureStderr();
  prep(config);
  std::string said = testing::internal::GetCapturedStderr();
  EXPECT_TRUE(contains(said, "is time_unit_seconds of its schema right? (it is 1)")) << said;
  EXPECT_TRUE(contains(said, "no event has 2 earlier ones"));
  config = log.config("other");
  config.schema.time_unit_seconds = 0.001;
  config.schema.test_seconds = config.schema.gap_seconds = 0;
  testing::internal::CaptureStderr();
  prep(config);
  said = testing::internal::GetCapturedStderr();
  EXPECT_FALSE(contains(said, "right?")) << said;
  EXPECT_FALSE(contains(said, "earlier ones")) << said;
}

// ---- logs that are wrong ----

class PrepMistakes : public testing::Test {
 protected:
  PrepMistakes() : log_("raw") {}

  /// Prepares the rows (between two good ones); returns code and message.
  std::string message(const std::string& rows, ErrorCode code = ErrorCode::kCorrupt) {
    log_.put("events.csv", std::string(kCsvHeader) + "1,10,1,0,1,1,listen\n" + rows +
                               "1,999999,1,0,1,1,listen\n");
    return message(code);
  }
  std::string message(ErrorCode code) {
    const PrepConfig config = log_.config("store");
    const auto error = error_of([&] { prep(config); });
    if (!error) return "";
    EXPECT_EQ(error->code(), code) << error->what();
    EXPECT_FALSE(base::exists(config.store) && is_finished_store(config.store));
    EXPECT_FALSE(base::exists(config.store + "/.tmp"));
    return error->what();
  }

  RawLog log_;
};

TEST_F(PrepMistakes, Rows) {
  const std::string file = log_.folder + "/events.csv: row 2: ";
  const auto expect = [&](const std::string& row, const std::string& part) {
    EXPECT_TRUE(contains(message(row), file + part));
  };
  expect(",20,1,0,1,1,listen\n", "column \"uid\" is empty");
  expect("1,,1,0,1,1,listen\n", "column \"timestamp\" is empty");
  expect("1,20,,0,1,1,listen\n", "column \"item_id\" is empty");
  expect("1,20,1,0,1,1,\n", "column \"event_type\" is empty");
  expect("1,20,1,,1,1,listen\n", "column \"is_organic\" is empty");
  expect("1,-20,1,0,1,1,listen\n", "column \"timestamp\" has the time -20");
  expect("1,9100000000000000,1,0,1,1,listen\n",
         "column \"timestamp\" has the time 9100000000000000");
  EXPECT_TRUE(contains(message("1,9100000000000000,1,0,1,1,listen\n"), "time_unit_seconds"));
  expect("-1,20,1,0,1,1,listen\n", "column \"uid\" has the id -1");
  expect("1,20,-5,0,1,1,listen\n", "column \"item_id\" has the id -5");
  expect("1,20,1,0,1,1,played\n", "column \"event_type\" has the unknown kind \"played\"");
  expect("1,20,1,0,1,1,5\n", "column \"event_type\" has the unknown kind \"5\"");
  expect("1,20,1,0,-1,1,listen\n", "column \"played_ratio_pct\" has the value -1");
  expect("1,20,1,0,1,-1,listen\n", "column \"track_length_seconds\" has the length -1");
  expect("1,20,1,-2,1,1,listen\n", "column \"is_organic\" has -2");
  expect("1,20,1.5,0,1,1,listen\n", "column \"item_id\" has \"1.5\" where an integer is needed");
  expect("1,20,1,0,1,1\n", "has 6 fields instead of 7");
  EXPECT_TRUE(contains(message("1,20,1,0,1,1,played\n"),
                       "known are: listen, like, dislike, unlike, undislike"));
}

TEST_F(PrepMistakes, Logs) {
  log_.put("events.csv", "user,timestamp,item_id\n");
  EXPECT_TRUE(contains(message(ErrorCode::kConfig), "has no column \"uid\""));
  EXPECT_TRUE(contains(message(ErrorCode::kConfig), "it has: user, timestamp, item_id"));
  log_.put("events.csv", kCsvHeader);
  EXPECT_TRUE(contains(message(ErrorCode::kCorrupt), "no events"));
  log_.put("events.csv", "");
  EXPECT_TRUE(contains(message(ErrorCode::kCorrupt), "is empty"));
  log_.put("events.csv", std::string(kCsvHeader) + "1,10,1,0,1,1,listen\n");
  EXPECT_TRUE(contains(message(ErrorCode::kInvalidArgument), "none of 1 events is in the train"));
  fs::remove(log_.folder + "/events.csv");
  EXPECT_TRUE(contains(message(ErrorCode::kNotFound), "has no file events*.csv"));
  log_.schema.events = "log.csv";
  EXPECT_TRUE(
      contains(message(ErrorCode::kNotFound), "has no file log.csv, which the schema names"));
}

TEST_F(PrepMistakes, Attributes) {
  EXPECT_EQ(error_of([&] { fail(ErrorCode::kIo, ""); })->code(), ErrorCode::kIo);
  log_.put("artists.csv", "artist_id,item_id\n1,\n");
  EXPECT_TRUE(contains(message(""), "artists.csv: row 1: column \"item_id\" is empty"));
  log_.put("artists.csv", "artist_id,item_id\n1,2\n-4,3\n");
  EXPECT_TRUE(contains(message(""), "artists.csv: row 2: item 3 has attribute -4"));
  log_.put("artists.csv", "artist_id,item_id\n2147483647,2\n2147483648,3\n");
  EXPECT_TRUE(contains(message(""), "artists.csv: row 2: item 3 has attribute 2147483648"));
  log_.put("artists.csv", "artist_id,item_id\n1,2\n4,9000000000\n");
  EXPECT_TRUE(contains(message(""), "artists.csv: row 2: item 9000000000 has attribute 4"));
  log_.put("artists.csv", "artist,item_id\n1,2\n");
  EXPECT_TRUE(contains(message("", ErrorCode::kConfig), "has no column \"artist_id\""));
  fs::remove(log_.folder + "/artists.csv");
  EXPECT_TRUE(contains(message("", ErrorCode::kNotFound),
                       "has no file artists.csv, which the schema names"));
}

TEST_F(PrepMistakes, Settings) {
  log_.put_events("events.csv", random_log(10, 1));
  PrepConfig config = log_.config("store");
  config.memory_bytes = 1 << 20;
  EXPECT_TRUE(contains(error_of([&] { prep(config); })->what(), "at least 128 MiB"));
  config = log_.config("store");
  config.sessions = true;
  EXPECT_TRUE(contains(error_of([&] { prep(config); })->what(), "built without Parquet support"));
  config = log_.config("store");
  config.raw += "/nowhere";
  EXPECT_TRUE(contains(error_of([&] { prep(config); })->what(), "no such folder"));
  config = log_.config("events.csv/store");
  const auto error = error_of([&] { prep(config); });
  EXPECT_EQ(error->code(), ErrorCode::kIo);
}

TEST(PlanMemory, PartsStayBelowTheWhole) {
  for (const int64_t mib : {128, 200, 512, 1024, 4096, 65536}) {
    for (const int threads : {1, 2, 8, 64}) {
      for (const TieOrder ties : {TieOrder::kFields, TieOrder::kFile}) {
        const int64_t bytes = mib << 20;
        const MemoryPlan p = plan_memory(bytes, threads, ties);
        const int64_t runs = p.run_events * p.buffers * int64_t{sizeof(Event)} *
                             (ties == TieOrder::kFile ? 3 : 2) / 2;
        EXPECT_LE(p.dictionary_bytes + runs, bytes) << mib;
        EXPECT_LE(p.dictionary_bytes + p.item_bytes + p.merge_bytes + p.writer_bytes, bytes);
      }
    }
  }
}

}  // namespace
}  // namespace segue::data
