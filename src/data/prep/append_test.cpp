// Logs that grow: a store and its segments give the samples of one store of all rows.

#include "data/prep/append.h"

#include <filesystem>
#include <numeric>

#include <gtest/gtest.h>

#include "base/test_util.h"
#include "data/inspect/baselines.h"
#include "data/inspect/inspect.h"
#include "data/prep/append_test_util.h"
#include "data/sample/gather.h"
#include "data/sample/sample_stream.h"
#include "data/store/store_verifier.h"
#include "data/store/store_verify.h"

namespace segue::data {
namespace {

namespace fs = std::filesystem;
using base::contains;
using base::message_of;

/// Batches of a list, as a rank gets them.
std::vector<Batch> batches_of(const SampleList& list, const Gatherer& gatherer) {
  std::vector<Batch> batches;
  for (int64_t b = 0; b < list.num_batches(); ++b) {
    const std::span<const int64_t> positions = list.batch(b);
    std::vector<int64_t> numbers;
    for (size_t i = 0; i < positions.size(); ++i) {
      numbers.push_back(list.sample_index(static_cast<int64_t>(i)));
    }
    Batch& batch = batches.emplace_back();
    gatherer.fill(positions, numbers, batch);
    batch.global_samples = list.global_samples(b);
  }
  return batches;
}

/// With all the numbers that they can have.
SampleSchema all_columns(SampleSchema schema) {
  schema.history_numbers = schema.candidate_numbers = count_names(schema);
  for (const NumberConfig& number : schema.numbers) {
    schema.history_numbers.push_back(number.name);
    if (!number.outcome) schema.candidate_numbers.push_back(number.name);
  }
  return schema;
}

struct Opened {
  EventStore store;
  Gatherer gatherer;
  SampleStream stream;

  Opened(const std::string& path, const LogSchema& schema, const GatherConfig& gather,
         const StreamConfig& config)
      : store(path, all_columns(schema.samples())),
        gatherer(store, gather),
        stream(store, config, /*rank=*/1, /*world=*/3) {}
};

void expect_same_samples(const Opened& a, const Opened& b) {
  ASSERT_EQ(a.stream.first_window(), b.stream.first_window());
  ASSERT_EQ(a.stream.end_window(), b.stream.end_window());
  ASSERT_EQ(a.stream.windows().num_windows(), b.stream.windows().num_windows());
  EXPECT_EQ(a.stream.windows().num_anchors(), b.stream.windows().num_anchors());
  EXPECT_EQ(a.stream.windows().t_min(), b.stream.windows().t_min());
  EXPECT_EQ(a.stream.windows().t_max(), b.stream.windows().t_max());
  EXPECT_EQ(a.stream.total_train_samples(), b.stream.total_train_samples());
  int64_t samples = 0;
  for (int64_t w = 0; w < a.stream.windows().num_windows(); ++w) {
    EXPECT_EQ(a.stream.windows().size(w), b.stream.windows().size(w)) << w;
    const SampleList list = a.stream.train_window(w);
    EXPECT_EQ(batches_of(list, a.gatherer), batches_of(b.stream.train_window(w), b.gatherer)) << w;
    EXPECT_EQ(batches_of(a.stream.evaluation(w - 1), a.gatherer),
              batches_of(b.stream.evaluation(w - 1), b.gatherer))
        << w;
    samples += list.num_samples();
  }
  EXPECT_GT(samples, 0);
}

void expect_same_answers(const Opened& a, const Opened& b, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<CandidateQuery> questions(200);
  for (CandidateQuery& q : questions) {
    const std::span<const int64_t> users = b.store.unique_users();
    q.user = users[random() % users.size()];
    q.item = static_cast<int64_t>(random() % 220);
    q.time = static_cast<int64_t>(random() % (5 * 86400));
  }
  Batch x, y;
  a.gatherer.fill(questions, x);
  b.gatherer.fill(questions, y);
  EXPECT_EQ(x, y);
}

/// On random logs in one to four parts.
void expect_samples_of_one_prep(uint64_t first_seed, uint64_t last_seed) {
  for (uint64_t seed = first_seed; seed <= last_seed; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const GrowingLog log(cut(growing_log(2500, seed), 1 + seed % 4, seed));
    log.prepare();
    for (const bool by_time : {false, true}) {
      const GatherConfig gather{
          .history_length = 2 + static_cast<int64_t>(random() % 40),
          .scan_window = 1 + static_cast<int64_t>(random() % 60),
          .strategy = by_time ? HistoryStrategy::kLastN : HistoryStrategy::kInterleaved,
          .max_history = static_cast<int64_t>(random() % 3) * 5};
      StreamConfig stream;
      stream.min_history = std::vector<int64_t>{0, 3, 20}[random() % 3];
      stream.window_seconds = by_time ? 7200 : 86400;
      stream.eval = by_time ? EvalMode::kNextWindow : EvalMode::kFixed;
      stream.train_share = random() % 2 == 0 ? 1 : 0.6;
      stream.batch_size = 37;
      stream.shuffle_fraction = by_time ? 0 : 0.5;
      stream.sort_by_time = by_time;
      const Opened parts(log.store(), log.whole.schema, gather, stream);
      const Opened whole(log.one_piece(), log.whole.schema, gather, stream);
      ASSERT_EQ(parts.store.segments().size(), seed % 4);
      expect_same_samples(parts, whole);
      expect_same_answers(parts, whole, seed);
    }
  }
}

/// Items that many know, so that there are groups of taste; questions of all times.
TEST(Append, TastesAreThoseOfOnePrep) {
  for (const uint64_t seed : {1, 2, 3}) {
    SCOPED_TRACE(seed);
    std::vector<Event> events = growing_log(6000, seed);
    for (Event& e : events) {
      e.kind = 0;
      e.item %= 6;
      e.value = (e.user / 3 + e.item) % 2 == 0 ? 100 : 0;
    }
    const GrowingLog log(cut(events, 1 + seed, seed));
    log.prepare();
    StreamConfig stream;
    stream.min_history = 0;
    const Opened parts(log.store(), log.whole.schema, {}, stream);
    const Opened whole(log.one_piece(), log.whole.schema, {}, stream);
    expect_same_samples(parts, whole);
    expect_same_answers(parts, whole, seed);
    Batch batch;
    const std::vector<CandidateQuery> late = {{.user = events[0].user, .time = 86400 * 6}};
    parts.gatherer.fill(late, batch);
    EXPECT_GT(batch.float_column("item_candidate_user_item_taste_count").values[0], 0);
  }
}

TEST(Append, SamplesAreThoseOfOnePrep) { expect_samples_of_one_prep(1, 4); }
TEST(SlowAppend, SamplesAreThoseOfOnePrepOnManyLogs) { expect_samples_of_one_prep(5, 40); }

TEST(Append, ANewerMapCountsAndReachesAsFarAsItsRows) {
  GrowingLog log(cut(growing_log(1500, 3), 3, 3));
  log.logs[1].put("artists.csv", "artist_id,item_id\n11,3\n12,260\n");
  log.logs[2].put("users.csv", "uid,age\n7,19\n22,21\n");
  log.whole.put("artists.csv", "artist_id,item_id\n7,3\n9,199\n8,3\n5,0\n11,3\n12,260\n");
  log.whole.put("users.csv", "uid,age\n4,31\n22,18\n100,44\n7,19\n22,21\n");
  log.prepare();
  StreamConfig stream;
  stream.min_history = 0;
  const Opened parts(log.store(), log.whole.schema, {}, stream);
  const Opened whole(log.one_piece(), log.whole.schema, {}, stream);
  EXPECT_EQ(parts.store.num_items(), 261);
  EXPECT_EQ(parts.store.attribute_map(0)[3], 11);
  EXPECT_EQ(parts.store.user_attribute(0, 22), 21);
  EXPECT_EQ(parts.store.user_attribute(0, 100), 44);
  expect_same_samples(parts, whole);
}

TEST(Append, AStoreThatIsWaitedForShowsNoWindowThatMayGrow) {
  const GrowingLog log(cut(growing_log(2500, 5), 4, 5));
  prep(log.whole.config("store"));
  StreamConfig config;
  config.min_history = 0;
  config.window_seconds = 7200;
  config.eval = EvalMode::kNextWindow;
  const Opened whole(log.one_piece(), log.whole.schema, {}, config);
  config.growing = true;
  for (size_t part = 0; part < log.logs.size(); ++part) {
    prep(log.config(part));
    const Opened parts(log.store(), log.whole.schema, {}, config);
    const int64_t end = parts.stream.end_window();
    EXPECT_EQ(end, std::max<int64_t>(0, parts.stream.windows().num_closed() - 1));
    for (int64_t w = 0; w < end; ++w) {
      EXPECT_EQ(batches_of(parts.stream.train_window(w), parts.gatherer),
                batches_of(whole.stream.train_window(w), whole.gatherer));
      EXPECT_EQ(batches_of(parts.stream.evaluation(w), parts.gatherer),
                batches_of(whole.stream.evaluation(w), whole.gatherer));
    }
  }
}

TEST(Append, WindowsCloseWithTheirLastSecond) {
  const GrowingLog log({{{.user = 1, .time = 100, .item = 1}},
                        {{.user = 2, .time = 198, .item = 1}},
                        {{.user = 1, .time = 199, .item = 1}}});
  for (const size_t part : {0U, 1U, 2U}) {
    prep(log.config(part));
    const EventStore store(log.store(), log.whole.schema.samples());
    const LogWindows windows(EventLog(store), 0, 100);
    EXPECT_EQ(windows.num_windows(), 1);
    EXPECT_EQ(windows.num_closed(), part == 2 ? 1 : 0);
    EXPECT_EQ(windows.read(0), (std::vector<std::vector<int64_t>>{{0}, {0, 1}, {0, 2, 1}}[part]));
  }
}

TEST(Append, FactsAndBaselinesAreThoseOfOnePrep) {
  const GrowingLog log(cut(growing_log(2500, 7), 3, 7));
  log.prepare();
  const EventStore parts(log.store(), log.whole.schema.samples());
  const EventStore whole(log.one_piece(), log.whole.schema.samples());
  const StoreSummary a = summarize(parts, log.whole.schema), b = summarize(whole, log.whole.schema);
  EXPECT_EQ(a.segments.size(), 2U);
  EXPECT_EQ(std::tuple(a.events, a.users, a.items, a.items_seen, a.first_time, a.last_time),
            std::tuple(b.events, b.users, b.items, b.items_seen, b.first_time, b.last_time));
  EXPECT_EQ(a.events_per_user.mean, b.events_per_user.mean);
  EXPECT_EQ(a.pools[0].events, b.pools[0].events);
  ASSERT_EQ(a.windows.size(), b.windows.size());
  for (size_t i = 0; i < a.windows.size(); ++i) {
    EXPECT_EQ(std::tuple(a.windows[i].anchors, a.windows[i].windows, a.windows[i].sizes.max),
              std::tuple(b.windows[i].anchors, b.windows[i].windows, b.windows[i].sizes.max));
  }
  const Predictions p = predict_by_history(parts), q = predict_by_history(whole);
  EXPECT_EQ(p.labels, q.labels);
  for (size_t r = 0; r < p.rules.size(); ++r) {
    EXPECT_EQ(p.rules[r].predictions, q.rules[r].predictions) << p.rules[r].name;
  }
  EXPECT_TRUE(read_truth(parts).empty());
}

TEST(Append, IndexesOfAReadOnlyStoreLieElsewhere) {
  const GrowingLog log(cut(growing_log(800, 2), 2, 2));
  log.prepare();
  const StoreBytes before = store_bytes(log.store());
  const std::string index = base::temp_path("index");
  const EventStore store(log.store(), log.whole.schema.samples(), index);
  const Gatherer gatherer(store, {});
  EXPECT_TRUE(same_store(before, store_bytes(log.store())));
  EXPECT_TRUE(base::exists(index + "/segue/segments/000001/pools.idx"));
}

// ---- mistakes ----

class AppendMistakes : public testing::Test {
 protected:
  AppendMistakes() : log_(cut(growing_log(600, 4), 2, 4)) { prep(log_.config(0)); }
  /// The error of an append, which leaves everything as it was.
  std::string error(ErrorCode code, const PrepConfig& config) const {
    const StoreBytes before = store_bytes(config.store);
    const std::string message = message_of(code, [&] { prep(config); });
    EXPECT_TRUE(same_store(before, store_bytes(config.store)));
    return message;
  }
  GrowingLog log_;
};

TEST_F(AppendMistakes, RowsThatAreNotLater) {
  prep(log_.config(1));
  const int64_t newest =
      EventLog(EventStore(log_.store(), log_.whole.schema.samples())).last_time();
  const std::string time = std::to_string(newest);
  log_.logs[1].put("events.csv", std::string(kCsvHeader) + "1," + std::to_string(newest + 1) +
                                     ",1,0,1,1,listen\n1," + time +
                                     ",1,0,1,1,listen\n1,5,1,0,1,1,listen\n");
  const std::string message = error(ErrorCode::kInvalidArgument, log_.config(1));
  EXPECT_TRUE(contains(message, "2 of 3 rows are not later than " + time));
  EXPECT_TRUE(contains(message, "events.csv: row 2 at " + time));
}

TEST_F(AppendMistakes, AnotherSchema) {
  PrepConfig config = log_.config(1);
  config.schema.anchor_kinds = {"like"};
  EXPECT_TRUE(contains(error(ErrorCode::kConfig, config), "anchor_kinds = [\"like\"]`, there `"));
  // What looks like a comment may be part of a value.
  PrepConfig first = log_.config(0);
  first.schema.label = "a  # b";
  first.overwrite = true;
  prep(first);
  config.schema = first.schema;
  config.schema.label = "a  # c";
  EXPECT_TRUE(contains(error(ErrorCode::kConfig, config), "`label = \"a  # c\"`"));
}

/// What a schema says in its comments, and which keys it has, differs from version to version.
TEST(Append, FilesMayBeCalledAnotherName) {
  const GrowingLog log(cut(growing_log(600, 8), 2, 8));
  log.prepare();
  const StoreBytes wanted = store_bytes(log.store());
  fs::remove_all(log.store());
  prep(log.config(0));
  PrepConfig c = log.config(1);
  fs::rename(c.raw + "/events.csv", c.raw + "/monday.csv");
  c.schema.events = "monday.csv";
  prep(c);
  StoreBytes found = store_bytes(log.store());
  EXPECT_EQ(EventLog(EventStore(log.store(), c.schema.samples())).num_pieces(), 2u);
  found[segment_name(1) + "/" + kManifestFile] = wanted.at(segment_name(1) + "/" + kManifestFile);
  EXPECT_TRUE(same_store(found, wanted));  // but for the names of sources
}

TEST(Append, TheSchemaStaysAsAnotherVersionWroteIt) {
  const GrowingLog log(cut(growing_log(600, 3), 2, 3));
  prep(log.config(0));
  const std::string text =
      "# of another version\n" + base::read_file(log.store() + "/" + kSchemaFile);
  base::put_file(log.store() + "/" + kSchemaFile, text);
  StoreManifest manifest = StoreManifest::read(log.store());
  const auto record = std::ranges::find(manifest.files, kSchemaFile, &base::FileRecord::name);
  ASSERT_NE(record, manifest.files.end());
  record->bytes = std::ssize(text);
  record->xxh64 = base::xxh64(text);
  base::put_file(log.store() + "/" + kManifestFile, manifest.to_json());
  prep(log.config(1));
  EXPECT_TRUE(verify_store(log.store()).ok());
  EXPECT_EQ(EventStore(log.store(), log.whole.schema.samples()).segments().size(), 1U);
}

TEST_F(AppendMistakes, TextsWhereIdsAreIntegers) {
  log_.logs[1].put("events.csv", std::string(kCsvHeader) + "anna,9999999,1,0,1,1,listen\n");
  EXPECT_TRUE(contains(error(ErrorCode::kConfig, log_.config(1)), "integers that stayed"));
  log_.logs[1].put("events.csv", std::string(kCsvHeader) + "1,9999999,1,0,1,1,listen\n");
  log_.logs[1].put("artists.csv", "artist_id,item_id\nqueen,3\n");
  EXPECT_TRUE(contains(error(ErrorCode::kConfig, log_.config(1)), "\"artist_id\" has ids that"));
}

TEST_F(AppendMistakes, StoresThatCannotGrow) {
  RawLog log("other");
  log.put_events("events.csv", growing_log(600, 4));
  prep(log.config("split"));
  PrepConfig config = log.config("split");
  config.append = true;
  EXPECT_TRUE(contains(error(ErrorCode::kUnsupported, config), "train_days = 300; all three"));

  config.store = log.folder + "/none";
  EXPECT_TRUE(contains(message_of(ErrorCode::kNotFound, [&] { prep(config); }),
                       "no finished store to append to"));
  EXPECT_FALSE(base::exists(config.store));
}

TEST_F(AppendMistakes, TwoAtOnce) {
  const StoreStage other(log_.store(), StageMode::kSegment);
  EXPECT_TRUE(contains(message_of(ErrorCode::kIo, [&] { prep(log_.config(1)); }),
                       "another process is writing this store"));
}

// ---- damage ----

class Segments : public testing::Test {
 protected:
  Segments() : log_(cut(growing_log(900, 6), 4, 6)) { log_.prepare(); }
  std::string segment(int64_t number) const { return log_.store() + "/" + segment_name(number); }
  /// What opening and verifying both say.
  std::string opening_fails() const {
    EXPECT_FALSE(compare_sizes(log_.store()).ok());
    const VerifyReport report = verify_store(log_.store());
    EXPECT_FALSE(report.ok());
    std::string message = message_of(ErrorCode::kCorrupt, [&] {
      const EventStore store(log_.store(), log_.whole.schema.samples());
    });
    EXPECT_TRUE(contains(report.problems.at(0), message));
    return message;
  }
  GrowingLog log_;
};

TEST_F(Segments, AreVerifiedWithTheStore) {
  const VerifyReport parts = verify_store(log_.store()), whole = verify_store(log_.one_piece());
  EXPECT_TRUE(parts.ok());
  EXPECT_EQ(parts.events, whole.events);
  EXPECT_EQ(parts.users, whole.users);
  EXPECT_GT(parts.files, whole.files);
  EXPECT_TRUE(compare_sizes(log_.store()).ok());
}

TEST_F(Segments, OneThatIsMissing) {
  fs::remove_all(segment(2));
  EXPECT_TRUE(contains(opening_fails(), "000002: is missing, while there is"));
}

TEST_F(Segments, OneThatIsRepeated) {
  fs::copy(segment(3), segment(4), fs::copy_options::recursive);
  EXPECT_TRUE(contains(opening_fails(), "000004: is segment 3, not 4"));
}

TEST_F(Segments, TwoInEachOthersPlace) {
  fs::rename(segment(1), segment(9));
  fs::rename(segment(2), segment(1));
  fs::rename(segment(9), segment(2));
  EXPECT_TRUE(contains(opening_fails(), "000001: is segment 2, not 1"));
}

TEST_F(Segments, OneOfAnotherStore) {
  const GrowingLog other(cut(growing_log(900, 8), 2, 8));
  fs::remove_all(log_.store());
  prep(log_.config(0));
  base::make_folders(fs::path(segment(1)).parent_path());
  // Of the same number and schema.
  RawLog raw = GrowingLog::raw("raw");
  raw.put_events("events.csv", growing_log(300, 9));
  PrepConfig config = raw.config("store");
  prep(config);
  Event later{.user = 1, .time = 900000, .item = 1};
  raw.put_events("events.csv", {later});
  config.append = true;
  prep(config);
  fs::copy(config.store + "/" + segment_name(1), segment(1), fs::copy_options::recursive);
  EXPECT_TRUE(contains(opening_fails(), "000001: was appended to another store"));
}

TEST_F(Segments, SomethingElseThere) {
  base::make_folders(segment(1) + ".old");
  EXPECT_TRUE(contains(opening_fails(), "000002: is missing, while there is"));
}

TEST_F(Segments, BytesThatChanged) {
  const std::string file = segment(2) + "/hstu_cache_L20/flat_item_ids.npy";
  std::string bytes = base::read_file(file);
  bytes[200] = static_cast<char>(bytes[200] ^ 4);
  base::put_file(file, bytes);
  const VerifyReport report = verify_store(log_.store());
  ASSERT_EQ(report.problems.size(), 1U);
  EXPECT_TRUE(contains(report.problems[0],
                       "segue/segments/000002/hstu_cache_L20/flat_item_ids.npy: was changed"));

  const EventStore store(log_.store(), log_.whole.schema.samples());
  EXPECT_TRUE(contains(
      message_of(ErrorCode::kCorrupt, [&] { StoreVerifier(*store.segments()[1], {}).finish(); }),
      "flat_item_ids.npy: was changed"));
}

TEST_F(Segments, EventsThatAreNotLater) {
  const StoreManifest newest = read_manifests(log_.store()).back();
  StoreWriter writer({.folder = log_.store(),
                      .history_length = 20,
                      .segment = {newest.segment.number + 1, newest.checksum()},
                      .stage = std::make_shared<StoreStage>(log_.store(), StageMode::kSegment)},
                     log_.whole.schema);
  const float numbers[] = {180, 50};
  Event early{.user = 1, .time = 5, .item = 1};
  early.set_numbers(numbers);
  writer.add({&early, 1});
  writer.finish();
  const VerifyReport report = verify_store(log_.store());
  ASSERT_EQ(report.problems.size(), 1U);
  EXPECT_TRUE(contains(report.problems[0], "000004/flat_timestamps.npy: begins at 5, but"));
}

TEST_F(Segments, AreReplacedWithTheirStore) {
  PrepConfig config = log_.config(0);
  config.overwrite = true;
  prep(config);
  EXPECT_EQ(count_segments(log_.store()), 0);
}

}  // namespace
}  // namespace segue::data
