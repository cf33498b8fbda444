// Ids and attributes of a raw log: which are integers that stay, which are texts that get numbers.

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/test_util.h"
#include "data/prep/prep.h"
#include "data/prep/prep_test_util.h"
#include "data/store/store_verify.h"

namespace segue::data {
namespace {

using base::contains;
using base::error_of;

// ---- text ids ----

TEST(PrepIds, TextsAreNumberedByTheirBytes) {
  RawLog log("raw");
  log.schema.attributes = {{.name = "artist_id", .file = "artists.csv", .value = "artist"}};
  log.put("artists.csv", "artist,item_id\nQueen,song-b\nAbba,song-a\n,song-c\nCher,song-z\n");
  const std::string header = kCsvHeader;
  const std::string rows[] = {"zoe,100,song-b,0,70,9,listen\n", "adam,90,song-c,0,10,9,listen\n",
                              "zoe,95,song-a,0,70,9,listen\n", "adam,300000,song-b,0,5,5,listen\n"};
  log.put("events.csv", header + rows[0] + rows[1] + rows[2] + rows[3]);
  const PrepConfig config = log.config("store");
  prep(config);
  const std::string cache = config.store + "/hstu_cache_L20/";
  EXPECT_EQ(integers(cache + "flat_uid.npy"), (Ints{0, 1, 1}));
  EXPECT_EQ(integers(cache + "flat_item_ids.npy"), (Ints{2, 0, 1}));
  EXPECT_EQ(base::read_file(config.store + "/segue/user_ids.txt"), "adam\nzoe\n");
  EXPECT_EQ(base::read_file(config.store + "/segue/item_ids.txt"), "song-a\nsong-b\nsong-c\n");
  // Artists from 1; song-z is in no event, song-c has no artist.
  EXPECT_EQ(base::read_file(config.store + "/segue/artist_id_ids.txt"), "Abba\nCher\nQueen\n");
  EXPECT_EQ(integers(config.store + "/item_to_artist.npy"), (Ints{1, 3, 0}));
  EXPECT_TRUE(verify_store(config.store).ok());

  const StoreBytes wanted = store_bytes(config.store);
  log.put("events.csv", header + rows[3] + rows[2] + rows[1] + rows[0]);
  const PrepConfig other = log.config("other");
  prep(other);
  EXPECT_TRUE(same_store(wanted, store_bytes(other.store)));
}

TEST(PrepIds, LargeIntegersCanBeMadeDense) {
  RawLog log("raw");
  log.schema.attributes.clear();
  const std::string rows = std::string(kCsvHeader) + "9000000000000000000,5,77,0,1,1,listen\n" +
                           "12,5,77,0,1,1,listen\n" + "12,999999,77,0,1,1,listen\n";
  log.put("events.csv", rows);
  const auto error = error_of([&] { prep(log.config("store")); });
  ASSERT_TRUE(error);
  EXPECT_TRUE(contains(error->what(), "row 1: column \"uid\" has the id 9000000000000000000"));
  EXPECT_TRUE(contains(error->what(), "user_ids = \"dense\""));
  log.schema.user_ids = IdMapping::kDense;
  const PrepConfig config = log.config("store");
  prep(config);
  EXPECT_EQ(integers(config.store + "/hstu_cache_L20/flat_uid.npy"), (Ints{0, 1}));
  EXPECT_EQ(integers(config.store + "/segue/user_ids.npy"), (Ints{12, 9000000000000000000}));
}

TEST(PrepIds, AFewLargeUserIdsDoNotFillTheDisk) {
  RawLog log("raw");
  log.schema.attributes.clear();
  log.put("events.csv", std::string(kCsvHeader) + "2147483646,5,77,0,1,1,listen\n" +
                            "3,5,77,0,1,1,listen\n" + "3,999999,77,0,1,1,listen\n");
  const auto error = error_of([&] { prep(log.config("store")); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::kConfig);
  EXPECT_TRUE(contains(error->what(), "user ids reach up to 2147483646, but there are 3 rows"));
  log.schema.user_ids = IdMapping::kDense;
  const PrepConfig config = log.config("store");
  prep(config);
  EXPECT_EQ(integers(config.store + "/segue/user_ids.npy"), (Ints{3, 2147483646}));
}

TEST(PrepIds, DenseIdsMayBeMixedInAnyOrder) {
  RawLog log("raw");
  log.schema.user_ids = log.schema.item_ids = IdMapping::kDense;
  const std::string number = "7,6,1234,0,1,1,listen\n", text = "ab12,999999,x7,0,1,1,listen\n";
  const std::string rows[] = {"9,1234\n", "8,x7\n"};
  log.put("events.csv", kCsvHeader + text + number);
  log.put("artists.csv", "artist_id,item_id\n" + rows[1] + rows[0]);
  prep(log.config("text_first"));
  log.put("events.csv", kCsvHeader + number + text);
  log.put("artists.csv", "artist_id,item_id\n" + rows[0] + rows[1]);
  prep(log.config("number_first"));
  EXPECT_TRUE(same_store(store_bytes(log.folder + "/text_first"),
                         store_bytes(log.folder + "/number_first")));
  EXPECT_EQ(base::read_file(log.folder + "/number_first/segue/user_ids.txt"), "7\nab12\n");
  EXPECT_EQ(integers(log.folder + "/number_first/item_to_artist.npy"), (Ints{9, 8}));
}

TEST(PrepIds, DenseIdsMayBeMixedBehindAnyNumberOfIntegers) {
  RawLog log("raw");
  log.schema.attributes.clear();
  log.schema.user_ids = IdMapping::kDense;
  std::string many;
  for (int i = 0; i < 2000; ++i) many += std::to_string(i % 12) + ",6,7,0,1,1,listen\n";
  const std::string last = "000123,999999,7,0,1,1,listen\n", header = kCsvHeader;
  log.put("events.csv", header + many + last + "11.0,6,7,0,1,1,listen\n");
  prep(log.config("store"));
  EXPECT_EQ(base::read_file(log.folder + "/store/segue/user_ids.txt"),
            "0\n000123\n1\n10\n11\n2\n3\n4\n5\n6\n7\n8\n9\n");
  // Integers alone are numbered by value, as tables with missing values have them, too.
  log.put("events.csv", header + many + "11.0,999999,7,0,1,1,listen\n");
  prep(log.config("integers"));
  EXPECT_EQ(integers(log.folder + "/integers/segue/user_ids.npy"),
            (Ints{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}));
}

/// Versions, addresses of machines, categories: digits with points are no integers.
TEST(PrepIds, OfDigitsAndPointsAreTexts) {
  RawLog log("raw");
  log.schema.attributes = {{.name = "artist_id", .file = "artists.csv", .value = "artist_id"}};
  log.put("artists.csv", "artist_id,item_id\n1.5,1.5.2\n1,1.10.0\n");
  const std::string rows =
      "10.0.0.1,6,1.5.2,0,1,1,listen\n10.0.0.20,7,1.10.0,0,1,1,listen\n"
      "10.0.0.1,999999,1.5.2,0,1,1,listen\n";
  log.put("events.csv", kCsvHeader + rows);
  for (const IdMapping mapping : {IdMapping::kAuto, IdMapping::kDense}) {
    log.schema.user_ids = log.schema.item_ids = mapping;
    PrepConfig config = log.config("store");
    config.overwrite = true;
    prep(config);
    EXPECT_EQ(base::read_file(config.store + "/segue/user_ids.txt"), "10.0.0.1\n10.0.0.20\n");
    EXPECT_EQ(base::read_file(config.store + "/segue/item_ids.txt"), "1.10.0\n1.5.2\n");
    EXPECT_EQ(base::read_file(config.store + "/segue/artist_id_ids.txt"), "1\n1.5\n");
  }
}

/// A day on which nothing happened says nothing of ids.
TEST(PrepIds, ThatAreTextsMayComeWithALaterFile) {
  RawLog log("raw");
  log.schema.attributes = {{.name = "artist_id", .file = "names-*.csv", .value = "artist"}};
  log.put("names-1.csv", "artist,item_id\n");
  log.put("names-2.csv", "artist,item_id\nQueen,song\n");
  log.put("events-1.csv", kCsvHeader);
  log.put("events-2.csv", std::string(kCsvHeader) +
                              "anna,6,song,0,1,1,listen\n"
                              "anna,999999,song,0,1,1,listen\n");
  for (const IdMapping mapping : {IdMapping::kAuto, IdMapping::kDense}) {
    log.schema.user_ids = log.schema.item_ids = mapping;
    PrepConfig config = log.config("store");
    config.overwrite = true;
    prep(config);
    EXPECT_EQ(base::read_file(config.store + "/segue/user_ids.txt"), "anna\n");
    EXPECT_EQ(integers(config.store + "/item_to_artist.npy"), Ints{1});
  }
}

TEST(PrepIds, OneAsFloatingPointNumbersHasThemAreRefused) {
  RawLog log("raw");
  log.schema.attributes.clear();
  for (const IdMapping mapping : {IdMapping::kAuto, IdMapping::kDense}) {
    log.schema.user_ids = mapping;
    for (const std::string id : {"9007199254740993.0", "1.2345678901234568e+18"}) {
      log.put("events.csv", kCsvHeader + id + ",6,7,0,1,1,listen\n1,999999,7,0,1,1,listen\n");
      const auto error = error_of([&] { prep(log.config("store")); });
      ASSERT_TRUE(error);
      EXPECT_TRUE(contains(
          error->what(), "row 1: column \"uid\" has the id " + id + " as a floating-point number"))
          << error->what();
    }
  }
}

// ---- attributes ----

/// Whichever row is the first.
TEST(PrepAttributes, AreTextsIfOneValueIsNoInteger) {
  RawLog log("raw");
  log.put("events.csv", std::string(kCsvHeader) +
                            "1,6,1,0,1,1,listen\n1,7,2,0,1,1,listen\n"
                            "1,8,3,0,1,1,listen\n1,999999,3,0,1,1,listen\n");
  const auto prepare = [&](const std::string& store, const std::vector<std::string>& rows) {
    std::string text = "artist_id,item_id\n";
    for (const std::string& row : rows) text += row + "\n";
    log.put("artists.csv", text);
    prep(log.config(store));
    return integers(log.folder + "/" + store + "/item_to_artist.npy");
  };
  using Rows = std::vector<std::string>;
  const auto ids_of = [&](const std::string& store) {
    return base::read_file(log.folder + "/" + store + "/segue/artist_id_ids.txt");
  };
  EXPECT_EQ(prepare("zeros", Rows{"02134,1", "10001,2"}), (Ints{0, 1, 2}));
  EXPECT_EQ(ids_of("zeros"), "02134\n10001\n");
  prepare("turned", Rows{"10001,2", "02134,1"});
  EXPECT_TRUE(same_store(store_bytes(log.folder + "/zeros"), store_bytes(log.folder + "/turned")));
  EXPECT_EQ(prepare("brands", Rows{"501,1", "acme,2", "501,3"}), (Ints{0, 1, 2, 1}));
  EXPECT_EQ(ids_of("brands"), "501\nacme\n");
  EXPECT_EQ(prepare("integers", Rows{"501,1", "7.0,2", ",3"}), (Ints{0, 501, 7}));
  EXPECT_FALSE(base::exists(log.folder + "/integers/segue/artist_id_ids.txt"));
}

/// In the log item 7 is another than 007, which would be all that is known of it.
TEST(PrepAttributes, OfItemsWithZerosInFrontAreRefused) {
  RawLog log("raw");
  log.put("events.csv", std::string(kCsvHeader) + "1,6,7,0,1,1,listen\n1,999999,7,0,1,1,listen\n");
  log.put("artists.csv", "artist_id,item_id\n3,7\n4,007\n");
  const auto error = error_of([&] { prep(log.config("store")); });
  ASSERT_TRUE(error);
  EXPECT_TRUE(
      contains(error->what(),
               "artists.csv: row 2: column \"item_id\" has \"007\" where an integer without "
               "leading zeros is needed; items of the log are integers"))
      << error->what();
  log.schema.item_ids = IdMapping::kDense;  // 007 is none of the log's
  const PrepConfig config = log.config("dense");
  prep(config);
  EXPECT_EQ(integers(config.store + "/item_to_artist.npy"), Ints{3});
}

TEST(PrepIds, TextsAndIntegersDoNotMixByAccident) {
  RawLog log("raw");
  log.put("events.csv", std::string(kCsvHeader) + "ab12,5,7,0,1,1,listen\n" +
                            "1234,6,7,0,1,1,listen\n" + "ab12,999999,7,0,1,1,listen\n");
  auto error = error_of([&] { prep(log.config("store")); });
  ASSERT_TRUE(error);
  EXPECT_TRUE(contains(error->what(), "row 2: column \"uid\" has the integer 1234 among texts"));
  log.schema.user_ids = IdMapping::kDense;
  const PrepConfig config = log.config("store");
  prep(config);
  EXPECT_EQ(base::read_file(config.store + "/segue/user_ids.txt"), "1234\nab12\n");

  log.schema.user_ids = IdMapping::kAuto;
  log.put("events.csv",
          std::string(kCsvHeader) + "1234,6,7,0,1,1,listen\n" + "ab12,999999,7,0,1,1,listen\n");
  error = error_of([&] { prep(log.config("store2")); });
  ASSERT_TRUE(error);
  EXPECT_TRUE(contains(error->what(), "if it is an id too, say user_ids = \"dense\""));
  EXPECT_TRUE(contains(error->what(), "row 2: column \"uid\" has \"ab12\" where an integer"));
}

}  // namespace
}  // namespace segue::data
