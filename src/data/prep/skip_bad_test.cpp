// Rows that cannot be used: left out, counted, listed; duplicates; attributes whose number is 0.

#include <algorithm>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/file.h"
#include "base/test_util.h"
#include "base/time.h"
#include "data/prep/duplicates.h"
#include "data/prep/prep.h"
#include "data/prep/prep_test_util.h"
#include "data/store/store_verify.h"

namespace segue::data {
namespace {

using base::contains;
using base::error_of;

/// What a store says about its rows is not what it says about its events.
StoreBytes without_row_files(StoreBytes bytes) {
  for (const std::string name : {kRowsFile, kSkippedFile, kManifestFile}) bytes.erase(name);
  return bytes;
}

const std::vector<std::string> kBadRows = {
    ",600,1,0,50,100,listen\n",            // no user
    "null,600,1,0,50,100,listen\n",        // the same
    "x,600,1,0,50,100,listen\n",           // text for a user
    "1,,1,0,50,100,listen\n",              // no time
    "1,-5,1,0,50,100,listen\n",            // a time before all
    "1,99999999999999999,1,0,5,1,like\n",  // after all
    "1,yesterday,1,0,50,100,listen\n",     // no time at all
    "1,600,,0,50,100,listen\n",            // no item
    "1,600,-3,0,50,100,listen\n",          // no such item
    "1,600,1,0,50,100,hug\n",              // no such kind
    "1,600,1,0,many,100,listen\n",         // text for a value
    "1,600,1,0,-1,100,listen\n",           // no such value
    "1,600,1,300,50,100,listen\n",         // no flag
    "1,600,1\n",                           // too few fields
    "1,600,1,0,50,100,listen,7\n",         // too many
    "\"1,600,1,0,50,100,listen\n",         // an open quote
};

class SkipBad : public testing::Test {
 protected:
  SkipBad() : log_("raw"), rows_(rows_of(random_log(800, 5))) {
    put(rows_);
    prep(log_.config("clean"));
    clean_ = without_row_files(store_bytes(log_.folder + "/clean"));
  }

  static std::vector<std::string> rows_of(const std::vector<Event>& events) {
    std::vector<std::string> rows;
    for (const Event& e : events) rows.push_back(csv_row(e));
    return rows;
  }
  void put(const std::vector<std::string>& rows) const {
    std::string text = kCsvHeader;
    for (const std::string& row : rows) text += row;
    log_.put("events.csv", text);
  }
  /// Bad rows at random places.
  std::vector<std::string> mixed(uint64_t seed) const {
    std::vector<std::string> rows = rows_;
    std::mt19937_64 random(seed);
    for (const std::string& bad : kBadRows) {
      const auto at = static_cast<std::ptrdiff_t>(random() % (rows.size() + 1));
      rows.insert(rows.begin() + at, bad);
    }
    return rows;
  }
  PrepConfig config(const std::string& limit) const {
    PrepConfig c = log_.config("store");
    c.overwrite = true;
    c.skip_bad = SkipLimit::parse(limit);
    return c;
  }

  RawLog log_;
  std::vector<std::string> rows_;
  StoreBytes clean_;
};

TEST_F(SkipBad, TheStoreIsThatOfTheRowsThatAreLeft) {
  for (const uint64_t seed : {1, 2, 3}) {
    put(mixed(seed));
    const PrepResult r = prep(config("2%"));
    EXPECT_EQ(r.rows.rows, 816);
    EXPECT_EQ(r.rows.skipped, 16);
    EXPECT_TRUE(same_store(clean_, without_row_files(store_bytes(log_.folder + "/store"))));
    EXPECT_TRUE(verify_store(log_.folder + "/store").ok());
  }
}

TEST_F(SkipBad, AlsoWithTextIdsWhichABadRowMustNotNumber) {
  log_.schema.user_ids = log_.schema.item_ids = IdMapping::kDense;
  put(rows_);
  prep(log_.config("dense"));
  const StoreBytes wanted = without_row_files(store_bytes(log_.folder + "/dense"));
  // With dense ids "x" is a user like others.
  std::vector<std::string> rows = mixed(4);
  std::erase(rows, kBadRows[2]);
  std::erase(rows, kBadRows[8]);
  put(rows);
  EXPECT_EQ(prep(config("14")).rows.skipped, 14);
  EXPECT_TRUE(same_store(wanted, without_row_files(store_bytes(log_.folder + "/store"))));
}

/// What stands in quotes is no row, whatever is wrong with the row that it is in.
TEST_F(SkipBad, ARowOverSeveralLinesIsLeftOutAsAWhole) {
  log_.put("events.csv", "note," + std::string(kCsvHeader) +
                             "first,1,600,1,0,50,100,listen\n"
                             "\"two lines\nfake,2,600,1,0,50,100,listen\n\",1,never,1,0,5,1,like\n"
                             "last,1,700,1,0,50,100,listen\n");
  PrepConfig c = config("1");
  c.schema.test_seconds = c.schema.gap_seconds = c.schema.train_days = 0;
  const PrepResult r = prep(c);
  EXPECT_EQ(r.rows.rows, 3);
  EXPECT_EQ(r.rows.skipped, 1);
  EXPECT_EQ(integers(c.store + "/hstu_cache_L20/flat_uid.npy"), (std::vector<int64_t>{1, 1}));
}

/// The first row may be the one that is wrong.
TEST_F(SkipBad, MostTimesSayWhetherTheyAreDates) {
  for (const bool dates : {false, true}) {
    std::string good, wrong = dates ? "1,0" : "1,1970-01-02";
    for (int i = 0; i < 20; ++i) {
      good += "1," + (dates ? base::iso_time(600 + i) : std::to_string(600 + i)) +
              ",1,0,50,100,listen\n";
    }
    log_.put("events.csv", kCsvHeader + wrong + ",1,0,50,100,listen\n" + good);
    PrepConfig c = config("1");
    c.schema.test_seconds = c.schema.gap_seconds = c.schema.train_days = 0;
    const PrepResult r = prep(c);
    EXPECT_EQ(r.rows.skipped, 1) << dates;
    ASSERT_EQ(r.rows.reasons.size(), 1U);
    EXPECT_EQ(r.rows.reasons[0].words(), "column \"timestamp\" is not a time");
  }
}

TEST_F(SkipBad, RowsAreCountedByReasonAndListed) {
  std::vector<std::string> rows = rows_;
  rows.insert(rows.begin() + 3, kBadRows[3]);
  rows.insert(rows.begin() + 9, kBadRows[0]);
  rows.push_back(kBadRows[1]);
  put(rows);
  const PrepResult r = prep(config("3"));
  ASSERT_EQ(r.rows.reasons.size(), 2U);
  EXPECT_EQ(r.rows.reasons[0].words(), "column \"uid\" is empty");
  EXPECT_EQ(r.rows.reasons[0].rows, 2);
  EXPECT_EQ(r.rows.reasons[1].words(), "column \"timestamp\" is empty");
  EXPECT_EQ(base::read_file(log_.folder + "/store/" + kSkippedFile),
            "file,row,column,reason\nevents.csv,4,timestamp,is empty\n"
            "events.csv,10,uid,is empty\nevents.csv,803,uid,is empty\n");
  const RowCounts read = RowCounts::read(log_.folder + "/store");
  EXPECT_EQ(read.rows, 803);
  EXPECT_EQ(read.skipped, 3);
  EXPECT_EQ(read.reasons.size(), 2U);
}

TEST_F(SkipBad, TheListEndsAndTheCountDoesNot) {
  SkippedRows skipped;
  const int64_t rows = SkippedRows::kListed + 5;
  for (int64_t i = 0; i < rows; ++i) skipped.add("a,b.csv", i, {"user", "is empty"});
  EXPECT_EQ(skipped.count(), rows);
  const std::string csv = skipped.csv();
  EXPECT_EQ(std::count(csv.begin(), csv.end(), '\n'), SkippedRows::kListed + 1);
  EXPECT_TRUE(contains(csv, "\n\"a,b.csv\",10000,user,is empty\n"));
}

TEST_F(SkipBad, MoreThanTheLimitIsAnErrorWithTheCommonestReason) {
  put(mixed(7));
  for (const char* limit : {"1%", "15", "0%"}) {
    const auto error = error_of([&] { prep(config(limit)); });
    ASSERT_TRUE(error) << limit;
    EXPECT_EQ(error->code(), ErrorCode::kCorrupt);
    EXPECT_TRUE(contains(error->what(), "16 of 816 rows cannot be used, more than --skip-bad"));
    EXPECT_TRUE(contains(error->what(),
                         "most often the row has another number of fields (2 rows), first is "));
    EXPECT_TRUE(contains(error->what(), "events.csv: row"));
    EXPECT_FALSE(std::filesystem::exists(log_.folder + "/store/" + kRowsFile));
  }
  EXPECT_EQ(prep(config("16")).rows.skipped, 16);
  put({kBadRows[0], kBadRows[1]});
  const auto error = error_of([&] { prep(config("100%")); });
  ASSERT_TRUE(error);
  EXPECT_TRUE(contains(error->what(), "2 of 2 rows cannot be used, which leaves nothing"));
}

TEST_F(SkipBad, WithoutTheOptionTheFirstRowIsAnErrorThatNamesIt) {
  for (const std::string& bad : kBadRows) {
    std::vector<std::string> rows = rows_;
    rows.insert(rows.begin() + 1, bad);
    put(rows);
    const auto error = error_of([&] {
      PrepConfig c = log_.config("store");
      c.overwrite = true;
      prep(c);
    });
    ASSERT_TRUE(error) << bad;
    EXPECT_TRUE(contains(error->what(), "--skip-bad")) << error->what();
    EXPECT_TRUE(contains(error->what(), "events.csv: row 2: ")) << error->what();
  }
}

TEST_F(SkipBad, AttributesInTheSameFileLoseTheSameRows) {
  log_.schema.attributes = {
      {.name = "artist_id", .file = "events.csv", .value = "track_length_seconds"}};
  put(mixed(9));
  EXPECT_TRUE(error_of([&] { prep(log_.config("strict")); }));
  EXPECT_EQ(prep(config("2%")).rows.skipped, 16);
  const auto error = error_of([&] {
    log_.put("few.csv", "item_id,a\n1,2\n,3\n");
    log_.schema.attributes = {{.name = "artist_id", .file = "few.csv", .value = "a"}};
    prep(config("2%"));
  });
  ASSERT_TRUE(error);
  EXPECT_TRUE(contains(error->what(), "1 of 2 rows cannot be used for attribute \"artist_id\""));
  put(rows_);
  const auto strict = error_of([&] { prep(log_.config("strict")); });
  ASSERT_TRUE(strict);
  EXPECT_TRUE(contains(strict->what(), "few.csv: row 2: column \"item_id\" is empty"));
  EXPECT_TRUE(contains(strict->what(), "--skip-bad"));
}

/// A row that the log leaves out says nothing of its item either, and gives no text a number.
TEST_F(SkipBad, AttributesOfTheLogItselfAreThoseOfTheRowsThatAreLeft) {
  for (const std::string value : {"event_type", "track_length_seconds"}) {
    SCOPED_TRACE(value);
    log_.schema.attributes = {{.name = "artist_id", .file = "event*.csv", .value = value}};
    put(rows_);
    PrepConfig c = config("0");
    c.store = log_.folder + "/wanted";
    prep(c);
    for (const uint64_t seed : {4, 5}) {
      put(mixed(seed));
      prep(config("2%"));
      EXPECT_TRUE(same_store(without_row_files(store_bytes(c.store)),
                             without_row_files(store_bytes(log_.folder + "/store"))));
    }
  }
}

/// Texts are numbered in the order of their bytes: one that is left out would move all others.
TEST_F(SkipBad, TextsOfAttributesThatAreLeftOutGetNoNumbers) {
  put(rows_);
  log_.schema.attributes = {{.name = "artist_id", .file = "names.csv", .value = "name"}};
  std::string names = "item_id,name\n";
  for (int64_t item = 0; item < 200; ++item) names += fmt::format("{},by {}\n", item, item % 9);
  log_.put("names.csv", names);
  prep(log_.config("texts"));
  const StoreBytes wanted = without_row_files(store_bytes(log_.folder + "/texts"));
  log_.put("names.csv", names + ",a nobody\nx,a text\n-1,a negative\n1,a,third\n");
  prep(config("4"));
  EXPECT_TRUE(same_store(wanted, without_row_files(store_bytes(log_.folder + "/store"))));
}

TEST(SkipLimit, SharesAndNumbers) {
  EXPECT_TRUE(SkipLimit::parse("0.1%").allows(1, 1000));
  EXPECT_FALSE(SkipLimit::parse("0.1%").allows(2, 1000));
  EXPECT_TRUE(SkipLimit::parse("25").allows(25, 30));
  EXPECT_FALSE(SkipLimit::parse("25").allows(26, 30));
  EXPECT_FALSE(SkipLimit().allows_any());
  for (const char* text : {"", "%", "x", "-1", "-1%", "101%", "1.5", "1 %", "nan%"}) {
    const auto error = error_of([&] { SkipLimit::parse(text); });
    ASSERT_TRUE(error) << text;
    EXPECT_TRUE(contains(error->what(), "--skip-bad"));
  }
}

// ---- duplicates ----

class DuplicateRows : public testing::Test {
 protected:
  DuplicateRows() : log_("raw"), events_(random_log(600, 21)) {
    std::sort(events_.begin(), events_.end());
    const auto same = [](const Event& a, const Event& b) { return a.key() == b.key(); };
    events_.erase(std::unique(events_.begin(), events_.end(), same), events_.end());
    log_.schema.train_days = log_.schema.test_seconds = log_.schema.gap_seconds = 0;
    log_.put_events("events.csv", events_);
    EXPECT_EQ(prep(log_.config("clean")).rows.duplicates, 0);
    clean_ = store_bytes(log_.folder + "/clean");
  }

  RawLog log_;
  std::vector<Event> events_;
  StoreBytes clean_;
};

TEST_F(DuplicateRows, AreCountedAndDroppedWhereTheSchemaSaysSo) {
  std::vector<Event> twice = events_;
  for (size_t i = 0; i < events_.size(); i += 7) twice.push_back(events_[i]);
  for (size_t i = 0; i < events_.size(); i += 70) twice.push_back(events_[i]);
  const auto copies = static_cast<int64_t>(twice.size() - events_.size());
  for (const TieOrder ties : {TieOrder::kFields, TieOrder::kFile}) {
    std::mt19937_64 random(3);
    std::shuffle(twice.begin(), twice.end(), random);
    log_.put_events("events.csv", twice);
    PrepConfig config = log_.config("store");
    config.overwrite = true;
    config.ties = ties;
    config.run_events = 100;
    PrepResult r = prep(config);
    EXPECT_EQ(r.rows.duplicates, copies);
    EXPECT_EQ(r.counts.train_events, static_cast<int64_t>(twice.size()));
    config.schema.duplicates = Duplicates::kDrop;
    r = prep(config);
    EXPECT_EQ(r.rows.duplicates, copies);
    EXPECT_EQ(r.counts.train_events, static_cast<int64_t>(events_.size()));
    EXPECT_TRUE(RowCounts::read(config.store).dropped);
    if (ties == TieOrder::kFile) continue;
    for (const char* column : {"flat_uid", "flat_item_ids", "flat_timestamps"}) {
      const std::string name = fmt::format("hstu_cache_L20/{}.npy", column);
      EXPECT_EQ(store_bytes(config.store).at(name), clean_.at(name)) << name;
    }
  }
}

/// What is held of one second is bounded by the memory of prep.
TEST_F(DuplicateRows, AmongMoreTiesThanFitAreAnError) {
  PrepConfig config = log_.config("store");
  config.overwrite = true;
  config.ties = TieOrder::kFile;
  config.schema.duplicates = Duplicates::kDrop;
  const int64_t most = plan_memory(config.memory_bytes, 1, config.ties).most_waiting;
  ASSERT_LT(most, DuplicateFilter::kMostTies);
  std::vector<Event> events(static_cast<size_t>(most));
  for (size_t i = 0; i < events.size(); ++i) events[i].item = static_cast<int64_t>(i);
  log_.put_events("events.csv", events);
  EXPECT_EQ(prep(config).counts.train_events, most);
  events.push_back({.item = most});
  log_.put_events("events.csv", events);
  const auto error = error_of([&] { prep(config); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::kOutOfMemory);
  EXPECT_TRUE(contains(error->what(), "use --ties fields, or allow more memory"));
}

// ---- categories ----

TEST(AttributeZero, IsNoneOrAValue) {
  RawLog log("raw");
  log.put_events("events.csv", random_log(300, 2));
  log.put("artists.csv", "artist_id,item_id\n0,1\n3,2\n0,199\n");
  testing::internal::CaptureStderr();
  prep(log.config("none"));
  EXPECT_TRUE(contains(testing::internal::GetCapturedStderr(),
                       "2 of 3 rows have artist_id = 0, which says that an item has no artist_id"));
  std::vector<int64_t> map = integers(log.folder + "/none/item_to_artist.npy");
  EXPECT_EQ(map[1], 0);
  EXPECT_EQ(map[2], 3);
  log.schema.attributes[0].zero = ZeroMeaning::kValue;
  testing::internal::CaptureStderr();
  prep(log.config("value"));
  EXPECT_FALSE(contains(testing::internal::GetCapturedStderr(), "rows have artist_id"));
  map = integers(log.folder + "/value/item_to_artist.npy");
  EXPECT_EQ(map[0], 0);  // in no row
  EXPECT_EQ(map[1], 1);
  EXPECT_EQ(map[2], 4);
  EXPECT_EQ(map[199], 1);
}

}  // namespace
}  // namespace segue::data
