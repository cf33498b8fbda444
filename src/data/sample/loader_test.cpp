#include "data/sample/loader.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <utility>

#include <gtest/gtest.h>

#include "base/parallel.h"
#include "data/store/store_test_util.h"

namespace segue::data {
namespace {

/// What a run got, batch by batch.
struct Record {
  std::vector<StreamPosition> positions;
  std::vector<Batch> batches;
  friend bool operator==(const Record&, const Record&) = default;
};

class LoaderTest : public testing::Test {
 protected:
  LoaderTest() : written(make_store(base::temp_path("store"), 1, {.users = 60})) {
    store = std::make_unique<EventStore>(written.folder, written.schema);
    gatherer = std::make_unique<Gatherer>(*store, GatherConfig{});
    config.min_history = 0;
    config.batch_size = 20;
    config.shuffle_fraction = 0.5;
    config.eval_windows = 3;
  }

  static Record drain(Loader& loader) {
    Record record;
    Batch batch;
    while (const std::optional<BatchInfo> d = loader.next(batch)) {
      record.positions.push_back(d->position);
      record.batches.push_back(batch.slice(0, batch.num_samples()));
    }
    EXPECT_FALSE(loader.next(batch)) << "the end stays the end";
    EXPECT_EQ(loader.batches_delivered(), static_cast<int64_t>(record.batches.size()));
    return record;
  }
  Record run(const SampleStream& stream, int64_t threads, int64_t in_flight,
             StreamPosition from) const {
    Loader loader(*gatherer, {threads, in_flight});
    loader.start(training(stream, from));
    return drain(loader);
  }

  TestStore written;
  std::unique_ptr<EventStore> store;
  std::unique_ptr<Gatherer> gatherer;
  StreamConfig config;
};

TEST_F(LoaderTest, DeliversWhatTheStreamSays) {
  for (const int world : {1, 3}) {
    const SampleStream stream(*store, config, world - 1, world);
    Loader loader(*gatherer, {2, 3});
    loader.start(training(stream, stream.start()));
    Batch batch, expected;
    StreamPosition next = stream.start();
    for (int64_t w = stream.first_window(); w < stream.end_window(); ++w) {
      const SampleList list = stream.train_window(w);
      for (int64_t b = 0; b < list.num_batches(); ++b) {
        const std::optional<BatchInfo> d = loader.next(batch);
        ASSERT_TRUE(d);
        EXPECT_EQ(d->position, (StreamPosition{w, b}));
        EXPECT_EQ(d->position, next);
        EXPECT_EQ(d->batches_in_window, list.num_batches());
        EXPECT_GE(d->wait_seconds, 0);
        next = d->next();
        std::vector<int64_t> numbers;
        for (size_t i = 0; i < list.batch(b).size(); ++i) {
          numbers.push_back(world - 1 + static_cast<int64_t>(i) * world);
        }
        gatherer->fill(list.batch(b), numbers, expected);
        expected.global_samples = list.global_samples(b);
        EXPECT_TRUE(batch == expected);
      }
    }
    EXPECT_FALSE(loader.next(batch));
    EXPECT_EQ(next, (StreamPosition{stream.end_window(), 0}));
  }
}

TEST_F(LoaderTest, EpochsComeInOtherOrders) {
  config.shuffle_fraction = 1;
  const SampleStream stream(*store, config);
  const int64_t windows = stream.end_window() - stream.first_window();
  const LoaderSource twice = training(stream, stream.start(), 2);
  EXPECT_EQ(twice.end, end_of_training(stream, 2));
  EXPECT_EQ(twice.end - twice.first, 2 * windows);
  bool differ = false;
  for (int64_t w = stream.first_window(); w < stream.end_window(); ++w) {
    const auto anchors = [&](int64_t number) {
      const SampleList list = twice.list(number);
      std::vector<int64_t> all;
      for (int64_t b = 0; b < list.num_batches(); ++b) {
        all.insert(all.end(), list.batch(b).begin(), list.batch(b).end());
      }
      return all;
    };
    std::vector<int64_t> first = anchors(w), second = anchors(w + windows);
    EXPECT_EQ(first, stream.train_positions(w)) << "as without epochs";
    differ = differ || first != second;
    std::ranges::sort(first);
    std::ranges::sort(second);
    EXPECT_EQ(first, second);
  }
  EXPECT_TRUE(differ);
}

TEST_F(LoaderTest, TheOrderDoesNotDependOnThreads) {
  const SampleStream stream(*store, config);
  const Record one = run(stream, 1, 1, stream.start());
  EXPECT_GT(one.batches.size(), 80U);
  for (const int64_t threads : {1, 2, 3, 4}) {
    for (const int64_t in_flight : {1, 2, 7}) {
      EXPECT_EQ(run(stream, threads, in_flight, stream.start()), one)
          << threads << " threads, " << in_flight << " in flight";
    }
  }
}

TEST_F(LoaderTest, ResumesAnywhereAsIfNothingHadHappened) {
  const SampleStream stream(*store, config);
  const Record whole = run(stream, 2, 4, stream.start());
  for (size_t stop = 0; stop < whole.batches.size(); stop += 7) {
    Loader loader(*gatherer, {2, 4});
    loader.start(training(stream, stream.start()));
    Batch batch;
    StreamPosition next = stream.start();
    for (size_t i = 0; i < stop; ++i) next = loader.next(batch)->next();
    const Record rest = run(stream, 3, 4, next);
    EXPECT_TRUE(std::equal(rest.batches.begin(), rest.batches.end(),
                           whole.batches.begin() + static_cast<int64_t>(stop),
                           whole.batches.end()));
    EXPECT_TRUE(std::equal(rest.positions.begin(), rest.positions.end(),
                           whole.positions.begin() + static_cast<int64_t>(stop),
                           whole.positions.end()));
  }
  EXPECT_TRUE(run(stream, 2, 4, {stream.end_window(), 0}).batches.empty());
  // Behind the last batch of a window is before the first one of the next.
  const StreamPosition behind = {3, stream.train_window(3).num_batches()};
  EXPECT_EQ(run(stream, 2, 4, behind), run(stream, 2, 4, {4, 0}));
  EXPECT_EQ(base::error_of([&] {
              training(stream, {stream.end_window() + 1, 0});
            })->code(),
            ErrorCode::kInvalidArgument);
}

TEST_F(LoaderTest, EmptyWindowsAreSkipped) {
  config.window_seconds = 600;  // most hold nothing
  const SampleStream stream(*store, config);
  const Record record = run(stream, 3, 4, stream.start());
  int64_t empty = 0, samples = 0;
  for (int64_t w = stream.first_window(); w < stream.end_window(); ++w) {
    empty += stream.windows().size(w) == 0;
  }
  EXPECT_GT(empty, 10);
  for (const Batch& batch : record.batches) samples += batch.num_samples();
  EXPECT_EQ(samples, stream.total_train_samples());
}

TEST_F(LoaderTest, EvaluatesAgainAndAgainInTheSameMemory) {
  const SampleStream stream(*store, config);
  Loader loader(*gatherer, {2, 2});
  loader.start(evaluation(stream));
  const Record first = drain(loader);
  int64_t samples = 0;
  for (const Batch& batch : first.batches) samples += batch.num_samples();
  EXPECT_EQ(samples, static_cast<int64_t>(stream.eval_positions().size()));
  for (int i = 0; i < 3; ++i) {
    loader.start(evaluation(stream));
    EXPECT_EQ(drain(loader), first);
  }
  // And anything else in between, given up half way.
  loader.start(training(stream, stream.start()));
  Batch batch;
  loader.next(batch);
  loader.start(evaluation(stream));
  EXPECT_EQ(drain(loader), first);
}

TEST_F(LoaderTest, NextExchangesMemoryAndAllocatesNothing) {
  const SampleStream stream(*store, config);
  Loader loader(*gatherer, {2, 3});
  Batch batch;
  std::vector<int64_t> live;
  for (int round = 0; round < 4; ++round) {
    loader.start(training(stream, stream.start()));
    while (loader.next(batch)) {
    }
    live.push_back(Buffer::live_bytes(Purpose::kBatch));
  }
  // Which buffer gets which batch depends on nothing but their number, so growth ends.
  EXPECT_EQ(live[3], live[2]);
}

TEST_F(LoaderTest, CanBeDestroyedAtAnyMoment) {
  const SampleStream stream(*store, config);
  for (int i = 0; i < 40; ++i) {
    Loader loader(*gatherer, {1 + i % 4, 1 + i % 5});
    Batch batch;
    if (i % 8 == 7) continue;  // never started
    loader.start(training(stream, stream.start()));
    for (int taken = 0; taken < i % 6; ++taken) loader.next(batch);
    if (i % 3 == 0) std::this_thread::sleep_for(std::chrono::microseconds(i * 50));
  }
}

TEST_F(LoaderTest, SaysHowLongItWaited) {
  const SampleStream stream(*store, config);
  Loader loader(*gatherer, {1, 2});
  LoaderSource source = training(stream, stream.start());
  static constexpr double kDelay = 0.05;
  source.list = [list = source.list](int64_t window) {
    if (window == 0) std::this_thread::sleep_for(std::chrono::duration<double>(kDelay));
    return list(window);
  };
  loader.start(source);
  Batch batch;
  const std::optional<BatchInfo> first = loader.next(batch);
  EXPECT_TRUE(first->starved);
  EXPECT_GE(first->wait_seconds, kDelay / 2);
  EXPECT_GE(loader.wait_seconds(), first->wait_seconds);
  // A batch takes far less than this, but the machine may be busy: once must do.
  bool was_ready = false;
  for (int i = 0; i < 20 && !was_ready; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    was_ready = !loader.next(batch)->starved;
  }
  EXPECT_TRUE(was_ready);
}

TEST_F(LoaderTest, AnErrorOfAWorkerArrivesInItsPlace) {
  // The last event of a user in the middle claims to be somebody else's.
  const SampleStream stream(*store, config);
  const Record whole = run(stream, 2, 4, stream.start());
  const SampleList list = stream.train_window(5);
  const int64_t victim = list.batch(1)[3];
  std::vector<int64_t> users = written.users;
  users[static_cast<size_t>(victim)] = written.unique_users.back() + 1;
  put_npy(written.column("flat_uid"), "<i8", users);
  const EventStore damaged(written.folder, written.schema);
  const Gatherer damaged_gatherer(damaged, {});
  for (const int64_t threads : {1, 3}) {
    Loader loader(damaged_gatherer, {threads, 4});
    loader.start(training(stream, stream.start()));
    Batch batch;
    std::optional<Error> error;
    StreamPosition reached;
    try {
      while (const std::optional<BatchInfo> d = loader.next(batch)) reached = d->position;
    } catch (const Error& e) {
      error = e;
    }
    ASSERT_TRUE(error);
    EXPECT_EQ(reached, (StreamPosition{5, 0})) << "everything before it was delivered";
    EXPECT_EQ(error->code(), ErrorCode::kCorrupt);
    EXPECT_TRUE(base::contains(error->what(), written.column("flat_uid")));
    EXPECT_THROW(loader.next(batch), Error) << "and again";
    loader.start(training(stream, {6, 0}));
    EXPECT_NO_THROW(drain(loader));
  }
}

TEST_F(LoaderTest, AnErrorInAListArrivesBehindTheBatchesBeforeIt) {
  const SampleStream stream(*store, config);
  Loader loader(*gatherer, {2, 4});
  LoaderSource source = training(stream, stream.start());
  source.list = [list = source.list](int64_t window) {
    if (window == 4) fail(ErrorCode::kIo, "windows.idx: cannot be read");
    return list(window);
  };
  loader.start(source);
  Batch batch;
  StreamPosition reached;
  const auto error = base::error_of([&] {
    while (const std::optional<BatchInfo> d = loader.next(batch)) reached = d->next();
  });
  EXPECT_EQ(reached, (StreamPosition{4, 0}));
  EXPECT_EQ(error->code(), ErrorCode::kIo);
  EXPECT_TRUE(base::contains(error->what(), "windows.idx"));
  EXPECT_THROW(loader.next(batch), Error);
}

TEST(LoaderConfig, IsChecked) {
  EXPECT_EQ(base::error_of([] { LoaderConfig{-1, 4}.validate(); })->code(), ErrorCode::kConfig);
  EXPECT_EQ(base::error_of([] { LoaderConfig{1, 0}.validate(); })->code(), ErrorCode::kConfig);
  EXPECT_NO_THROW(LoaderConfig{}.validate());
}

TEST(LoaderConfig, ThreadsFollowTheCores) {
  EXPECT_EQ((LoaderConfig{3, 4}.workers()), 3);
  const int before = base::num_threads();
  for (const auto& [cores, threads] : {std::pair(1, 2), std::pair(16, 4), std::pair(96, 8)}) {
    base::set_num_threads(cores);
    EXPECT_EQ(LoaderConfig{}.workers(), threads) << cores;
  }
  base::set_num_threads(before);
}

}  // namespace
}  // namespace segue::data
