// Ids that keep their numbers: from prep to prep, from segment to segment, and how a store whose
// ids are others is told from one that has more of them.

#include <algorithm>
#include <filesystem>
#include <sstream>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/npy.h"
#include "base/test_util.h"
#include "data/prep/append_test_util.h"
#include "data/sample/gather.h"
#include "data/store/event_log.h"
#include "data/store/id_maps.h"
#include "data/store/store_identity.h"
#include "data/store/store_verify.h"

namespace segue::data {
namespace {

namespace fs = std::filesystem;
using base::contains;
using base::message_of;

std::vector<std::string> ids_of(const std::string& store, const std::string& column) {
  std::vector<std::string> ids;
  IdMaps(store).read(column, [&](std::string_view id) {
    ids.emplace_back(id);
    return true;
  });
  return ids;
}

/// Numbers of the ids that were there stay, others follow in their order.
void expect_extends(const std::vector<std::string>& now, const std::vector<std::string>& before) {
  ASSERT_GT(now.size(), before.size());
  EXPECT_TRUE(std::equal(before.begin(), before.end(), now.begin()));
  EXPECT_TRUE(std::is_sorted(now.begin() + std::ssize(before), now.end()));
}

/// A log whose users, items and artists are texts; new ones sort before and between the old ones.
class TextLog {
 public:
  explicit TextLog(const std::string& name) : raw(GrowingLog::raw(name)) {
    raw.schema.attributes[0].value = "artist";
  }
  static std::string user(const Event& e) { return (e.user % 2 ? "m" : "a") + number(e.user); }
  static std::string item(const Event& e) {
    return (e.item % 2 ? "song-" : "b,ook ") + number(e.item);
  }

  void put(const std::vector<Event>& events, const std::string& name = "events.csv") const {
    std::string text = kCsvHeader;
    for (const Event& e : events) {
      text += user(e) + "," + std::to_string(e.time) + ",\"" + item(e) + "\",0," +
              (e.has_value() ? std::to_string(static_cast<int64_t>(e.value)) : "") + ",," +
              yambda_kinds()[e.kind] + "\n";
    }
    raw.put(name, text);
    std::string artists = "artist,item_id\n";
    for (const Event& e : events) {
      artists += "by " + std::to_string((e.item * 7) % 13 + (e.item % 2 ? 50 : 10)) + ",\"" +
                 item(e) + "\"\n";
    }
    raw.put("artists.csv", artists);
  }

  RawLog raw;

 private:
  static std::string number(int64_t n) { return std::to_string(n); }
};

/// The first part has odd ids alone: new ids sort before and between.
struct Days {
  std::vector<Event> old_days, all;
  explicit Days(uint64_t seed) : all(random_log(1500, seed)) {
    std::erase_if(all, [](const Event& e) {
      return e.time < 2 * 86400 && (e.user % 2 == 0 || e.item % 2 == 0);
    });
    std::ranges::copy_if(all, std::back_inserter(old_days),
                         [](const Event& e) { return e.time < 2 * 86400; });
  }
};

class IdsFrom : public testing::Test {
 protected:
  IdsFrom() : days_(3), old_("old"), now_("now") {
    old_.put(days_.old_days);
    now_.put(days_.all);
    prep(old_.raw.config("store"));
  }
  std::string before() const { return old_.raw.folder + "/store"; }
  std::string after() const { return now_.raw.folder + "/store"; }
  PrepConfig config(const std::string& store = "store") const {
    PrepConfig c = now_.raw.config(store);
    c.ids_from = before();
    return c;
  }
  std::string error(ErrorCode code, const PrepConfig& c) const {
    const std::string message = message_of(code, [&] { prep(c); });
    EXPECT_FALSE(base::exists(c.store + "/segue/manifest.json"));
    return message;
  }

  Days days_;
  TextLog old_, now_;
};

TEST_F(IdsFrom, OldIdsKeepTheirNumbersAndNewOnesFollow) {
  prep(config());
  for (const char* column : {"user", "item", "artist_id"}) {
    SCOPED_TRACE(column);
    expect_extends(ids_of(after(), column), ids_of(before(), column));
    EXPECT_EQ(IdMaps(after()).record(column).count, std::ssize(ids_of(after(), column)));
  }
  EXPECT_TRUE(verify_store(after()).ok());
  // Samples of the old days are the same: users, items and artists by their numbers.
  const EventStore a(before(), old_.raw.schema.samples()), b(after(), now_.raw.schema.samples());
  const Gatherer x(a, {}), y(b, {});
  std::vector<CandidateQuery> questions;
  for (const int64_t user : a.unique_users()) {
    for (int64_t item = 0; item < a.num_items(); item += 7) {
      questions.push_back({.user = user, .item = item, .time = 2 * 86400});
    }
  }
  Batch of_a, of_b;
  x.fill(questions, of_a);
  y.fill(questions, of_b);
  ASSERT_EQ(of_a.columns.size(), of_b.columns.size());
  for (size_t c = 0; c < of_a.columns.size(); ++c) {
    EXPECT_TRUE(std::ranges::equal(of_a.columns[c].values.span(), of_b.columns[c].values.span()))
        << of_a.columns[c].name;
  }
  EXPECT_GT(questions.size(), 100u);
}

TEST_F(IdsFrom, BytesDependOnRowsAndOldIdsAlone) {
  prep(config());
  const TextLog shuffled("shuffled");
  std::vector<Event> events = days_.all;
  std::ranges::reverse(events);
  shuffled.put(events);
  PrepConfig c = shuffled.raw.config("store");
  c.ids_from = before();
  c.run_events = 300;  // sorted on disk
  prep(c);
  EXPECT_TRUE(same_store(store_bytes(after()), store_bytes(c.store)));
}

TEST_F(IdsFrom, AStoreIsReplacedWithItsOwnIds) {
  const std::vector<std::string> ids = ids_of(before(), "user");
  PrepConfig c = now_.raw.config("store");
  c.store = c.ids_from = before();
  c.overwrite = true;
  prep(c);
  expect_extends(ids_of(before(), "user"), ids);
}

TEST_F(IdsFrom, IdsThatNoEventHasKeepTheirNumbers) {
  prep(config());
  PrepConfig c = old_.raw.config("fewer");
  c.ids_from = after();
  prep(c);
  EXPECT_EQ(ids_of(c.store, "user"), ids_of(after(), "user"));
  EXPECT_TRUE(verify_store(c.store).ok());
}

TEST_F(IdsFrom, DenseIntegersAndTextsAmongThem) {
  RawLog log = GrowingLog::raw("dense");
  log.schema.user_ids = log.schema.item_ids = IdMapping::kDense;
  log.schema.attributes.clear();
  const std::string rows[] = {"500,10,7,0,1,1,listen\n7,20,7,0,1,1,listen\n",
                              "0,30,7,0,1,1,listen\n9000,40,8,0,1,1,listen\n"};
  log.put("events.csv", kCsvHeader + rows[0]);
  prep(log.config("first"));
  log.put("events.csv", kCsvHeader + rows[0] + rows[1]);
  PrepConfig c = log.config("second");
  c.ids_from = log.folder + "/first";
  prep(c);
  EXPECT_EQ(ids_of(c.store, "user"), (std::vector<std::string>{"7", "500", "0", "9000"}));
  EXPECT_TRUE(base::exists(c.store + "/segue/user_ids.npy"));

  log.put("events.csv", kCsvHeader + ("anna,50,8,0,1,1,listen\n" + rows[0]));
  c = log.config("third");
  c.ids_from = log.folder + "/first";
  prep(c);
  EXPECT_EQ(ids_of(c.store, "user"), (std::vector<std::string>{"7", "500", "anna"}));
  EXPECT_TRUE(base::exists(c.store + "/segue/user_ids.txt"));
  // However they are written, the first ids are the same.
  const StoreIdentity first = identity_of(IdMaps(log.folder + "/first"));
  EXPECT_EQ(ids_problem(first, IdMaps(c.store)), "");
}

/// A file whose values happen to be integers is no reason to read the texts of the store as such.
TEST_F(IdsFrom, AttributesThatWereTextsStayTexts) {
  RawLog log = GrowingLog::raw("brands");
  const auto prepare = [&](const std::string& artists, const std::string& store,
                           const std::string& from) {
    log.put("events.csv", std::string(kCsvHeader) + "1,10,1,0,1,1,listen\n1,20,2,0,1,1,listen\n");
    log.put("artists.csv", "artist_id,item_id\n" + artists);
    PrepConfig c = log.config(store);
    c.ids_from = from.empty() ? "" : log.folder + "/" + from;
    prep(c);
    return ids_of(c.store, "artist_id");
  };
  using Ids = std::vector<std::string>;
  EXPECT_EQ(prepare("acme,1\n501,2\n", "first", ""), (Ids{"501", "acme"}));
  EXPECT_EQ(prepare("501,1\n77,2\n", "second", "first"), (Ids{"501", "acme", "77"}));
  const base::NpyFile map(log.folder + "/second/item_to_artist.npy");
  EXPECT_EQ(map.as<int64_t>("<i8")[2], 3);
}

TEST_F(IdsFrom, Mistakes) {
  PrepConfig c = config("none");
  c.ids_from = now_.raw.folder;
  EXPECT_TRUE(contains(error(ErrorCode::kNotFound, c), "no finished store"));

  RawLog integers = GrowingLog::raw("integers");
  integers.put_events("events.csv", days_.all);
  prep(integers.config("store"));
  c.ids_from = integers.folder + "/store";
  EXPECT_TRUE(contains(error(ErrorCode::kInvalidArgument, c), "has no id maps"));

  c = config("none");
  c.schema.user_ids = IdMapping::kDense;
  EXPECT_TRUE(contains(error(ErrorCode::kConfig, c), "`user_ids = \"dense\"` here"));
  c = config("none");
  c.schema.item = "track_length_seconds";
  EXPECT_TRUE(contains(error(ErrorCode::kConfig, c), "`item = \"item_id\"` there"));
  c = config("none");  // integers of an attribute would all be larger by one
  c.schema.user_attributes[0].zero = ZeroMeaning::kValue;
  EXPECT_TRUE(contains(error(ErrorCode::kConfig, c), "`zero of attribute age = \"value\"` here"));

  c = integers.config("none");
  c.schema.attributes.clear();
  c.ids_from = before();
  EXPECT_TRUE(contains(error(ErrorCode::kConfig, c), "segue/user_ids.txt"));

  c = config("none");
  c.append = true;
  EXPECT_TRUE(contains(message_of(ErrorCode::kInvalidArgument, [&] { prep(c); }), "--ids-from"));
}

TEST_F(IdsFrom, DamagedMaps) {
  const std::string map = before() + "/segue/item_ids.txt";
  const std::string whole = base::read_file(map);
  std::string other = whole;
  other[2] ^= 1;
  for (const std::string& text : {other, whole.substr(0, whole.size() - 3), whole + "x\n"}) {
    base::put_file(map, text);
    EXPECT_TRUE(contains(error(ErrorCode::kCorrupt, config("none")), "item_ids.txt"));
  }
  fs::remove(map);
  EXPECT_TRUE(contains(error(ErrorCode::kNotFound, config("none")), "item_ids.txt"));
}

// ---- segments ----

TEST_F(IdsFrom, AppendedIdsFollowThoseOfTheStore) {
  prep(config());  // all days with the numbers of the old ones: what the segment must come to
  std::vector<Event> new_days;
  std::ranges::copy_if(days_.all, std::back_inserter(new_days),
                       [](const Event& e) { return e.time >= 2 * 86400; });
  const TextLog later("later");
  later.put(new_days);
  PrepConfig c = later.raw.config("store");
  c.store = before();
  c.append = true;
  const StoreIdentity recorded = identity_of(IdMaps(before()));
  prep(c);
  for (const char* column : {"user", "item", "artist_id"}) {
    EXPECT_EQ(ids_of(before(), column), ids_of(after(), column)) << column;
    EXPECT_EQ(IdMaps(before()).record(column), IdMaps(after()).record(column)) << column;
  }
  const VerifyReport report = verify_store(before());
  EXPECT_TRUE(report.ok()) << report.problems.front();
  EXPECT_TRUE(is_same_store(recorded, IdMaps(before())));
  EXPECT_EQ(ids_problem(recorded, IdMaps(before())), "");
  EXPECT_TRUE(has_new_ids(recorded, IdMaps(before())));

  const EventStore a(before(), old_.raw.schema.samples()), b(after(), now_.raw.schema.samples());
  ASSERT_EQ(a.segments().size(), 1u);
  ASSERT_EQ(a.num_items(), b.num_items());
  EXPECT_TRUE(std::ranges::equal(a.attribute_map(0), b.attribute_map(0)));
  EXPECT_EQ(EventLog(a).users(), EventLog(b).users());
  const Gatherer x(a, {}), y(b, {});
  std::vector<CandidateQuery> questions;
  for (const int64_t user : EventLog(b).users()) {
    questions.push_back({.user = user, .item = user % b.num_items(), .time = 5 * 86400});
  }
  Batch of_a, of_b;
  x.fill(questions, of_a);
  y.fill(questions, of_b);
  for (size_t i = 0; i < of_a.columns.size(); ++i) {
    EXPECT_TRUE(std::ranges::equal(of_a.columns[i].values.span(), of_b.columns[i].values.span()))
        << of_a.columns[i].name;
  }

  // Without a new id there is no map, and the numbers go on.
  later.raw.put("events.csv", std::string(kCsvHeader) + "m1,99999999,song-1,0,1,1,listen\n");
  fs::remove(later.raw.folder + "/artists.csv");
  prep(c);
  EXPECT_FALSE(base::exists(before() + "/" + segment_name(2) + "/segue/user_ids.txt"));
  EXPECT_EQ(IdMaps(before()).record("user"), IdMaps(after()).record("user"));
  EXPECT_TRUE(verify_store(before()).ok());
}

/// An item that no map knows is like one that a map of all items has without an attribute.
TEST_F(IdsFrom, AppendedItemsWithoutAMapHaveNoAttribute) {
  const TextLog later("later"), all("all");
  std::vector<Event> new_days;
  std::ranges::copy_if(days_.all, std::back_inserter(new_days),
                       [](const Event& e) { return e.time >= 2 * 86400; });
  later.put(new_days);
  fs::remove(later.raw.folder + "/artists.csv");
  fs::remove(later.raw.folder + "/users.csv");
  all.put(days_.old_days, "other.csv");  // artists of these alone
  const std::string artists = base::read_file(all.raw.folder + "/artists.csv");
  all.put(days_.all);
  all.raw.put("artists.csv", artists);
  PrepConfig whole = all.raw.config("store");
  whole.ids_from = before();
  prep(whole);
  PrepConfig c = later.raw.config("store");
  c.store = before();
  c.append = true;
  prep(c);
  EXPECT_TRUE(verify_store(before()).ok());

  const EventStore a(before(), old_.raw.schema.samples()), b(whole.store, all.raw.schema.samples());
  EXPECT_TRUE(std::ranges::equal(a.attribute_map(0), b.attribute_map(0)));
  std::vector<CandidateQuery> questions;
  for (const int64_t user : EventLog(b).users()) {
    questions.push_back({.user = user, .item = user % b.num_items(), .time = 5 * 86400});
  }
  Batch of_a, of_b;
  Gatherer(a, {}).fill(questions, of_a);
  Gatherer(b, {}).fill(questions, of_b);
  HostArray<int64_t> memory_a, memory_b;
  EXPECT_TRUE(
      std::ranges::equal(of_a.values("item_id", memory_a), of_b.values("item_id", memory_b)));
  EXPECT_TRUE(
      std::ranges::equal(of_a.values("artist_id", memory_a), of_b.values("artist_id", memory_b)));
}

/// As of `segue init --raw log.csv`: the file of the attributes is the log, whatever it is called.
TEST(Append, AttributesOfTheLogItselfComeWithIt) {
  RawLog first = GrowingLog::raw("first"), second = GrowingLog::raw("second");
  for (RawLog* const log : {&first, &second}) {
    log->schema.user_attributes.clear();
    log->schema.numbers.clear();
    log->schema.events = "log.csv";
    log->schema.item_ids = IdMapping::kDense;
    log->schema.attributes = {
        {.name = "artist_id", .file = "log.csv", .value = "track_length_seconds"}};
  }
  first.put("log.csv", std::string(kCsvHeader) + "1,10,a,0,1,7,listen\n1,20,b,0,1,8,listen\n");
  prep(first.config("store"));
  second.put("monday.csv", std::string(kCsvHeader) + "1,30,c,0,1,9,listen\n");
  PrepConfig config = second.config("store");
  config.store = first.folder + "/store";
  config.schema.events = "monday.csv";
  config.append = true;
  testing::internal::CaptureStderr();
  prep(config);
  EXPECT_FALSE(contains(testing::internal::GetCapturedStderr(), "no attributes"));
  const EventStore store(config.store, first.schema.samples());
  const auto map = store.attribute_map(0);
  EXPECT_EQ(std::vector<int64_t>(map.begin(), map.end()), (std::vector<int64_t>{7, 8, 9}));
}

TEST(Append, NewItemsOfWhichNoFileTellsAreWarnedOf) {
  RawLog log = GrowingLog::raw("log");
  log.schema.item_ids = IdMapping::kDense;
  log.schema.user_attributes.clear();
  log.put("events.csv", std::string(kCsvHeader) + "1,10,3,0,1,7,listen\n");
  prep(log.config("store"));
  PrepConfig config = log.config("store");
  config.append = true;
  int64_t time = 20;
  const auto said = [&](const std::string& item) {
    log.put("events.csv", fmt::format("{}1,{},{},0,1,7,listen\n", kCsvHeader, ++time, item));
    testing::internal::CaptureStderr();
    prep(config);
    return testing::internal::GetCapturedStderr();
  };
  EXPECT_TRUE(contains(said("4"), "no row of artists.csv is of one of the 1 new items"));
  EXPECT_FALSE(contains(said("199"), "artists.csv"));  // a row tells of it
  EXPECT_FALSE(contains(said("4"), "artists.csv"));    // not new any more
  fs::remove(log.folder + "/artists.csv");
  EXPECT_TRUE(contains(said("5"), "which have no attributes therefore"));
}

// ---- identity ----

TEST_F(IdsFrom, IdentityComesBackFromJson) {
  const StoreIdentity identity = identity_of(IdMaps(before()));
  EXPECT_EQ(StoreIdentity::from_json(identity.to_json()), identity);
  EXPECT_EQ(identity.ids.size(), 4u);  // user, item, and an attribute of each
  for (const char* text : {"{}", "no json", R"({"content":"x","segments":0})"}) {
    EXPECT_TRUE(base::error_of([&] { StoreIdentity::from_json(text); })) << text;
  }
}

TEST_F(IdsFrom, ACopyIsTheSameStoreAndAnotherPrepIsNot) {
  const StoreIdentity recorded = identity_of(IdMaps(before()));
  const std::string copy = base::temp_path("copy");
  fs::remove_all(copy);
  fs::copy(before(), copy, fs::copy_options::recursive);
  EXPECT_TRUE(is_same_store(recorded, IdMaps(copy)));
  EXPECT_EQ(ids_problem(recorded, IdMaps(copy)), "");
  EXPECT_FALSE(has_new_ids(recorded, IdMaps(copy)));

  // By rank: other ids have the numbers.
  prep(now_.raw.config("ranked"));
  const IdMaps ranked(now_.raw.folder + "/ranked");
  EXPECT_TRUE(contains(ids_problem(recorded, ranked), "`user` have other numbers"));
  prep(config());
  EXPECT_EQ(ids_problem(recorded, IdMaps(after())), "");
  EXPECT_FALSE(is_same_store(recorded, IdMaps(after())));
  EXPECT_TRUE(
      contains(ids_problem(identity_of(IdMaps(after())), IdMaps(before())), "there they are"));

  PrepConfig c = old_.raw.config("store");
  c.overwrite = true;
  prep(c);
  EXPECT_TRUE(is_same_store(recorded, IdMaps(before()))) << "the same rows give the same store";
  c.min_history = {5};
  prep(c);
  EXPECT_FALSE(is_same_store(recorded, IdMaps(before())));
  EXPECT_EQ(ids_problem(recorded, IdMaps(before())), "");
}

TEST_F(IdsFrom, SegmentsThatAreGoneAreNoticed) {
  GrowingLog log(cut(growing_log(900, 6), 3, 6));
  log.prepare();
  const StoreIdentity recorded = identity_of(IdMaps(log.store(), 1));
  const StoreIdentity all = identity_of(IdMaps(log.store()));
  EXPECT_EQ(recorded.segments, 1);
  EXPECT_TRUE(is_same_store(recorded, IdMaps(log.store())));
  fs::remove_all(log.store() + "/" + segment_name(2));
  EXPECT_TRUE(is_same_store(recorded, IdMaps(log.store())));
  EXPECT_FALSE(is_same_store(all, IdMaps(log.store())));
}

TEST_F(IdsFrom, StoresOf01AreReadForTheirHash) {
  const IdRecord record = IdMaps(before()).record("user");
  StoreManifest manifest = StoreManifest::read(before());
  manifest.ids.clear();
  base::put_file(before() + "/" + kManifestFile, manifest.to_json());
  EXPECT_EQ(IdMaps(before()).record("user"), record);
  prep(config());
  expect_extends(ids_of(after(), "user"), ids_of(before(), "user"));
}

TEST_F(IdsFrom, AHashOfOtherIdsIsFoundByVerify) {
  StoreManifest manifest = StoreManifest::read(before());
  ASSERT_EQ(manifest.ids.size(), 3u);
  manifest.ids[1].xxh64 ^= 1;
  base::put_file(before() + "/" + kManifestFile, manifest.to_json());
  const VerifyReport report = verify_store(before());
  ASSERT_EQ(report.problems.size(), 1u);
  EXPECT_TRUE(contains(report.problems[0], "`" + manifest.ids[1].column + "`"));
}

}  // namespace
}  // namespace segue::data
