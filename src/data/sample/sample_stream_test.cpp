#include "data/sample/sample_stream.h"

#include <algorithm>
#include <map>
#include <set>

#include <gtest/gtest.h>

#include "data/store/store_test_util.h"

namespace segue::data {
namespace {

using Values = std::vector<int64_t>;

StreamConfig small_config() {
  StreamConfig config;
  config.min_history = 0;
  config.batch_size = 5;
  return config;
}

class StreamTest : public testing::Test {
 protected:
  void use(uint64_t seed, const StoreShape& shape = {.users = 40}) {
    written = make_store(base::temp_path(std::to_string(seed)), seed, shape);
    store = std::make_unique<EventStore>(written.folder, written.schema);
  }
  int64_t time(int64_t position) const { return written.timestamps[static_cast<size_t>(position)]; }
  int64_t user(int64_t position) const { return written.users[static_cast<size_t>(position)]; }

  TestStore written;
  std::unique_ptr<EventStore> store;
};

TEST_F(StreamTest, EveryAnchorOfTheTrainingWindowsComesOnceOverAllRanks) {
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    use(seed);
    StreamConfig config = small_config();
    config.shuffle_fraction = seed % 2 == 0 ? 0.3 : 0;
    config.sort_by_time = seed == 3;
    for (const int world : {1, 2, 3, 4}) {
      SCOPED_TRACE(testing::Message() << "seed " << seed << " world " << world);
      Values seen;
      for (int rank = 0; rank < world; ++rank) {
        const SampleStream stream(*store, config, rank, world);
        for (int64_t w = stream.first_window(); w < stream.end_window(); ++w) {
          const SampleList list = stream.train_window(w);
          for (int64_t b = 0; b < list.num_batches(); ++b) {
            seen.insert(seen.end(), list.batch(b).begin(), list.batch(b).end());
          }
        }
      }
      const SampleStream stream(*store, config);
      Values expected;
      for (const int64_t a : written.anchors(0)) {
        if (time(a) < stream.windows().start_time(stream.end_window())) expected.push_back(a);
      }
      EXPECT_EQ(stream.end_window(), stream.windows().num_windows() - 1);
      EXPECT_EQ(stream.total_train_samples(), static_cast<int64_t>(expected.size()));
      std::ranges::sort(seen);
      EXPECT_EQ(seen, expected);
    }
  }
}

// A step is the same set of samples with the same numbers, however many ranks share it.
TEST_F(StreamTest, TheGlobalBatchDoesNotDependOnTheNumberOfRanks) {
  use(2);
  using Step = std::map<int64_t, int64_t>;  // number in the step -> anchor
  std::map<int, std::vector<Step>> steps;
  for (const int world : {1, 2, 3, 4}) {
    StreamConfig config = small_config();
    config.batch_size = 13;  // no multiple of any number of ranks
    for (int rank = 0; rank < world; ++rank) {
      const SampleStream stream(*store, config, rank, world);
      size_t step = 0;
      for (int64_t w = stream.first_window(); w < stream.end_window(); ++w) {
        const SampleList list = stream.train_window(w);
        for (int64_t b = 0; b < list.num_batches(); ++b, ++step) {
          if (rank == 0) steps[world].emplace_back();
          const std::span<const int64_t> batch = list.batch(b);
          for (size_t i = 0; i < batch.size(); ++i) {
            const int64_t number = list.sample_index(static_cast<int64_t>(i));
            EXPECT_LT(number, list.global_samples(b));
            EXPECT_TRUE(steps[world][step].emplace(number, batch[i]).second);
          }
        }
      }
      EXPECT_EQ(step, steps[world].size()) << "ranks agree on the number of steps";
    }
    EXPECT_EQ(steps[world], steps[1]) << world;
  }
}

TEST_F(StreamTest, RanksDifferByAtMostOneSample) {
  const StreamConfig config = small_config();
  for (int64_t n = 0; n < 60; ++n) {
    Values all(static_cast<size_t>(n));
    for (const int world : {1, 2, 3, 4}) {
      std::vector<SampleList> lists;
      lists.reserve(static_cast<size_t>(world));
      for (int r = 0; r < world; ++r) lists.emplace_back(all, Values{}, config, r, world);
      for (int64_t b = 0; b < lists[0].num_batches(); ++b) {
        int64_t total = 0;
        for (const SampleList& list : lists) {
          EXPECT_LE(list.batch(b).size(), lists[0].batch(b).size());
          EXPECT_GE(list.batch(b).size() + 1, lists[0].batch(b).size());
          total += static_cast<int64_t>(list.batch(b).size());
        }
        EXPECT_EQ(lists[0].global_samples(b), total);
        EXPECT_GT(total, 0);
      }
      EXPECT_EQ(lists[0].num_samples(), n);
    }
  }
}

TEST_F(StreamTest, TheReferencesModeDropsIncompleteBatches) {
  StreamConfig config = small_config();
  config.incomplete = IncompleteBatches::kDrop;
  for (int64_t n = 0; n < 60; ++n) {
    Values all(static_cast<size_t>(n));
    for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int64_t>(i);
    for (const int world : {1, 2, 3, 4}) {
      for (int rank = 0; rank < world; ++rank) {
        const SampleList list(all, {}, config, rank, world);
        EXPECT_EQ(list.num_batches(), n / config.batch_size);
        for (int64_t b = 0; b < list.num_batches(); ++b) {
          ASSERT_EQ(static_cast<int64_t>(list.batch(b).size()), (5 - rank + world - 1) / world);
          EXPECT_EQ(list.global_samples(b), 5);
          for (size_t i = 0; i < list.batch(b).size(); ++i) {
            EXPECT_EQ(list.batch(b)[i], b * 5 + rank + world * static_cast<int64_t>(i));
          }
        }
      }
    }
  }
}

TEST_F(StreamTest, NoTrainingAnchorIsAtOrAfterAFixedHoldout) {
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    use(seed);
    for (const int64_t eval_window : {-1, 7, 12}) {
      for (const int64_t train_windows : {-1, 4}) {
        StreamConfig config = small_config();
        config.eval_window = eval_window;
        config.eval_windows = 2;
        config.start_window = 2;
        config.train_windows = train_windows;
        config.shuffle_fraction = 1;
        const SampleStream stream(*store, config);
        const Values held_out = stream.eval_positions();
        ASSERT_FALSE(held_out.empty());
        int64_t start = INT64_MAX;
        for (const int64_t a : held_out) start = std::min(start, time(a));
        const int64_t first_held_out = eval_window >= 0    ? eval_window
                                       : train_windows > 0 ? 2 + train_windows
                                                           : stream.windows().num_windows() - 2;
        EXPECT_GE(start, stream.windows().start_time(first_held_out));
        int64_t trained = 0;
        for (int64_t w = stream.first_window(); w < stream.end_window(); ++w) {
          for (const int64_t a : stream.train_positions(w)) {
            EXPECT_LT(time(a), stream.windows().start_time(first_held_out));
            EXPECT_GE(time(a), stream.windows().start_time(2));
            ++trained;
          }
        }
        EXPECT_GT(trained, 0);
      }
    }
  }
}

TEST_F(StreamTest, TheNextWindowIsEvaluatedBeforeItIsTrainedOn) {
  use(5);
  StreamConfig config = small_config();
  config.eval = EvalMode::kNextWindow;
  const SampleStream stream(*store, config);
  EXPECT_EQ(stream.end_window(), stream.windows().num_windows() - 1);
  std::set<int64_t> trained;
  for (int64_t w = stream.first_window(); w < stream.end_window(); ++w) {
    for (const int64_t a : stream.train_positions(w)) trained.insert(a);
    const Values next = stream.eval_positions(w);
    const int64_t start = stream.windows().start_time(w + 1);
    for (const int64_t a : next) {
      EXPECT_FALSE(trained.contains(a));
      EXPECT_GE(time(a), start);
    }
    for (const int64_t a : trained) EXPECT_LT(time(a), start);
    if (w + 1 < stream.end_window()) {
      EXPECT_EQ(next, stream.train_positions(w + 1));
    }
  }
}

TEST_F(StreamTest, HeldOutUsersAreNeverTrainedOn) {
  use(6, {.users = 80});
  for (const bool next : {false, true}) {
    StreamConfig config = small_config();
    config.train_share = 0.7;
    config.split_salt = 3;
    config.shuffle_fraction = 0.5;
    config.eval = next ? EvalMode::kNextWindow : EvalMode::kFixed;
    const SampleStream stream(*store, config);
    const UserSplit split{0.7, 3};
    int64_t trained = 0, evaluated = 0, all = 0;
    for (int64_t w = stream.first_window(); w < stream.end_window(); ++w) {
      const Values positions = stream.train_positions(w);
      for (const int64_t a : positions) EXPECT_FALSE(split.is_eval(user(a)));
      for (const int64_t a : stream.eval_positions(w)) EXPECT_TRUE(split.is_eval(user(a)));
      trained += static_cast<int64_t>(positions.size());
      evaluated += static_cast<int64_t>(stream.eval_positions(w).size());
      all += stream.windows().size(w);
      EXPECT_EQ(stream.total_train_samples(w, 1), static_cast<int64_t>(positions.size()));
    }
    EXPECT_GT(trained, 0);
    EXPECT_LT(trained, all);
    EXPECT_GT(evaluated, 0);
    EXPECT_EQ(stream.total_train_samples(), trained);
  }
}

TEST_F(StreamTest, WindowsThatDoNotExistAreErrors) {
  use(7);
  const auto expect_error = [&](const std::string& message, auto&& change) {
    StreamConfig config = small_config();
    change(config);
    const auto error = base::error_of([&] { SampleStream(*store, config); });
    ASSERT_TRUE(error);
    EXPECT_EQ(error->code(), ErrorCode::kConfig);
    EXPECT_TRUE(base::contains(error->what(), message));
  };
  expect_error("20 windows", [](StreamConfig& c) { c.eval_window = 20; });
  expect_error("20 windows", [](StreamConfig& c) { c.eval_windows = 21; });
  expect_error("none is left", [](StreamConfig& c) { c.start_window = 19; });
  expect_error("none is left", [](StreamConfig& c) { c.eval_window = 0; });
  expect_error("reach into", [](StreamConfig& c) {
    c.eval_window = 8;
    c.train_windows = 9;
  });
  expect_error("min_history", [](StreamConfig& c) { c.min_history = 5000; });
  expect_error("train_share", [](StreamConfig& c) { c.train_share = 0; });
  expect_error("batch_size", [](StreamConfig& c) { c.batch_size = 0; });
  expect_error("train_windows", [](StreamConfig& c) { c.train_windows = 0; });
  // More training windows than there are is no error: the last one is held out.
  StreamConfig config = small_config();
  config.train_windows = 299;
  const SampleStream stream(*store, config);
  EXPECT_EQ(stream.end_window(), 19);
  EXPECT_EQ(static_cast<int64_t>(stream.eval_positions().size()), stream.windows().size(19));
}

/// Samples of several anchors: each user's of a window in a row, whole wherever a shuffle puts
/// them.
TEST_F(StreamTest, SamplesOfAUserHaveItsAnchorsInARow) {
  for (const int64_t most : {1, 3, 1000}) {
    use(5);
    StreamConfig config = small_config();
    config.sample_events = most;
    config.shuffle_fraction = 1;
    Values anchors;
    int64_t samples = 0;
    for (const int rank : {0, 1, 2}) {
      const SampleStream stream(*store, config, rank, 3);
      for (int64_t w = stream.first_window(); w < stream.end_window(); ++w) {
        const SampleList list = stream.train_window(w);
        for (int64_t b = 0; b < list.num_batches(); ++b) {
          const std::span<const int64_t> positions = list.batch(b), starts = list.starts(b);
          ASSERT_FALSE(starts.empty());
          samples += std::ssize(starts) - 1;
          ASSERT_EQ(starts.back() - starts.front(), std::ssize(positions));
          for (size_t i = 0; i + 1 < starts.size(); ++i) {
            const auto begin = static_cast<size_t>(starts[i] - starts[0]);
            const auto count = static_cast<size_t>(starts[i + 1] - starts[i]);
            ASSERT_GT(count, 0U);
            const auto of = positions.subspan(begin, count);
            EXPECT_TRUE(std::ranges::is_sorted(of));
            EXPECT_EQ(user(of.front()), user(of.back()));
            EXPECT_LT(of.back() - of.front(), most);
          }
          anchors.insert(anchors.end(), positions.begin(), positions.end());
        }
      }
    }
    const SampleStream stream(*store, config);
    EXPECT_EQ(stream.total_train_samples(), samples);
    config.sample_events = 0;
    const SampleStream one_each(*store, config);
    EXPECT_EQ(one_each.total_train_samples(), std::ssize(anchors));
    EXPECT_EQ(samples == std::ssize(anchors), most == 1);
    std::ranges::sort(anchors);
    EXPECT_TRUE(std::ranges::adjacent_find(anchors) == anchors.end());
  }
}

TEST_F(StreamTest, SortingByTimeIsStable) {
  use(8);
  StreamConfig config = small_config();
  config.sort_by_time = true;
  const SampleStream stream(*store, config);
  for (int64_t w = 0; w < stream.windows().num_windows(); ++w) {
    Values expected = stream.windows().read(w);
    std::ranges::stable_sort(expected, {}, [&](int64_t a) { return time(a); });
    EXPECT_EQ(stream.train_positions(w), expected);
  }
}

TEST(Shuffle, MovesOnlyInsideSegments) {
  for (const int64_t n : {0, 1, 2, 7, 100, 670}) {
    for (const double fraction : {0.0, 0.001, 0.25, 0.5, 0.9, 1.0, 3.0}) {
      Values order(static_cast<size_t>(n));
      for (int64_t i = 0; i < n; ++i) order[static_cast<size_t>(i)] = i;
      const Values before = order;
      shuffle_window(order, fraction, 5, 11);
      Values again = before;
      shuffle_window(again, fraction, 5, 11);
      EXPECT_EQ(order, again);
      const int64_t segment = fraction == 0 ? 1 : shuffle_segment(n, fraction);
      for (int64_t i = 0; i < n; ++i) {
        EXPECT_EQ(order[static_cast<size_t>(i)] / segment, i / segment);
      }
      Values sorted = order;
      std::ranges::sort(sorted);
      EXPECT_EQ(sorted, before);
      if (n >= 100 && fraction >= 0.25) {
        EXPECT_NE(order, before);
        Values other = before;
        shuffle_window(other, fraction, 5, 12);
        EXPECT_NE(other, order) << "another window";
        other = before;
        shuffle_window(other, fraction, 6, 11);
        EXPECT_NE(other, order) << "another seed";
      }
    }
  }
  EXPECT_EQ(shuffle_segment(670, 0.25), 168);  // 167.5
  EXPECT_EQ(shuffle_segment(666, 0.25), 166);  // 166.5: to the even neighbour
  EXPECT_EQ(shuffle_segment(3, 0.01), 1);
}

// Every element reaches every place equally often.
TEST(Shuffle, IsUniform) {
  constexpr int64_t kSize = 6, kWindows = 30000;
  std::vector<int64_t> counts(kSize * kSize, 0);
  for (int64_t window = 0; window < kWindows; ++window) {
    Values order = {0, 1, 2, 3, 4, 5};
    shuffle_window(order, 1.0, 1, window);
    for (int64_t i = 0; i < kSize; ++i) {
      ++counts[static_cast<size_t>(i * kSize + order[static_cast<size_t>(i)])];
    }
  }
  double chi_square = 0;
  const double expected = static_cast<double>(kWindows) / kSize;
  for (const int64_t c : counts) {
    const double d = static_cast<double>(c) - expected;
    chi_square += d * d / expected;
  }
  EXPECT_LT(chi_square, 52.6);  // 25 degrees of freedom, p = 0.001
}

}  // namespace
}  // namespace segue::data
