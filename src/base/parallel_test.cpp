#include "base/parallel.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/test_util.h"

namespace segue::base {
namespace {

class Parallel : public testing::Test {
 protected:
  void TearDown() override { set_num_threads(0); }
};

using Chunks = std::vector<std::pair<int64_t, int64_t>>;

/// The chunks in the order of their index, however they were run.
Chunks chunks_of(int64_t n, int64_t grain) {
  Chunks chunks(static_cast<size_t>(num_chunks(n, grain)), {-1, -1});
  parallel_for(n, grain, [&](int64_t begin, int64_t end) {
    chunks.at(static_cast<size_t>(begin / grain)) = {begin, end};
  });
  return chunks;
}

TEST_F(Parallel, EveryIndexExactlyOnce) {
  for (const int threads : {1, 2, 3, 8}) {
    set_num_threads(threads);
    for (const int64_t n : {1, 2, 7, 100, 1000}) {
      for (const int64_t grain : {1, 3, 64, 5000}) {
        std::vector<std::atomic<int>> visits(static_cast<size_t>(n));
        parallel_for(n, grain, [&](int64_t begin, int64_t end) {
          for (int64_t i = begin; i < end; ++i) ++visits[static_cast<size_t>(i)];
        });
        for (const auto& count : visits) ASSERT_EQ(count.load(), 1);
      }
    }
  }
}

TEST_F(Parallel, ChunksDependOnSizeAndGrainAlone) {
  set_num_threads(1);
  const Chunks alone = chunks_of(1003, 10);
  EXPECT_EQ(alone.size(), 101u);
  EXPECT_EQ(alone.front(), std::pair(int64_t{0}, int64_t{10}));
  EXPECT_EQ(alone.back(), std::pair(int64_t{1000}, int64_t{1003}));
  for (const int threads : {2, 5, 8}) {
    set_num_threads(threads);
    EXPECT_EQ(chunks_of(1003, 10), alone);
  }
}

TEST_F(Parallel, NothingToDo) {
  parallel_for(0, 16, [](int64_t, int64_t) { FAIL(); });
  EXPECT_EQ(num_chunks(0, 16), 0);
}

TEST_F(Parallel, HugeGrainDoesNotOverflow) {
  set_num_threads(4);
  EXPECT_EQ(num_chunks(5, INT64_MAX), 1);
  EXPECT_EQ(chunks_of(5, INT64_MAX), (Chunks{{0, 5}}));
}

TEST_F(Parallel, ResultsOfAllChunksAreVisibleAfterwards) {
  set_num_threads(4);
  std::vector<double> partial(100, 0.0);
  for (int round = 0; round < 50; ++round) {
    parallel_for(10000, 100, [&](int64_t begin, int64_t end) {
      double sum = 0.0;
      for (int64_t i = begin; i < end; ++i) sum += static_cast<double>(i);
      partial[static_cast<size_t>(begin / 100)] = sum;
    });
    double total = 0.0;
    for (const double value : partial) total += value;
    ASSERT_EQ(total, 9999.0 * 10000.0 / 2.0);
  }
}

TEST_F(Parallel, RethrowsTheExceptionOfTheLowestChunk) {
  for (const int threads : {1, 4}) {
    set_num_threads(threads);
    for (int round = 0; round < 50; ++round) {
      try {
        parallel_for(100, 1, [](int64_t begin, int64_t) {
          if (begin >= 17) throw std::runtime_error(std::to_string(begin));
        });
        FAIL() << "nothing was thrown";
      } catch (const std::runtime_error& error) {
        ASSERT_STREQ(error.what(), "17");
      }
      EXPECT_FALSE(in_parallel());
    }
  }
}

// ... and every chunk below it has run, whichever thread had it.
TEST_F(Parallel, AnExceptionAbandonsNoLowerChunk) {
  for (const int threads : {1, 2, 7, 100}) {
    set_num_threads(threads);
    for (const int64_t thrower : {0, 50, 199}) {
      std::vector<std::atomic<int>> visits(200);
      EXPECT_THROW(parallel_for(200, 1,
                                [&](int64_t begin, int64_t) {
                                  ++visits[static_cast<size_t>(begin)];
                                  if (begin >= thrower) throw std::runtime_error("at it");
                                }),
                   std::runtime_error);
      for (int64_t i = 0; i <= thrower; ++i) ASSERT_EQ(visits[static_cast<size_t>(i)].load(), 1);
    }
  }
}

// Loops that follow one another closely, from several callers: who spins, sleeps and comes late.
TEST_F(Parallel, ManyShortLoopsOfSeveralCallers) {
  set_num_threads(2);
  std::vector<std::thread> callers;
  std::atomic<int64_t> total = 0;
  for (int c = 0; c < 3; ++c) {
    callers.emplace_back([&total, c] {
      for (int i = 0; i < 2000; ++i) {
        std::atomic<int64_t> sum = 0;
        parallel_for(5, 1, [&](int64_t begin, int64_t) { sum += begin; });
        total += sum;
        if (i % 500 == c) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(total.load(), 3 * 2000 * 10);
}

TEST_F(Parallel, WorksAgainAfterAnException) {
  set_num_threads(4);
  EXPECT_THROW(parallel_for(8, 1, [](int64_t, int64_t) { throw std::logic_error("all"); }),
               std::logic_error);
  std::atomic<int64_t> sum = 0;
  parallel_for(8, 1, [&](int64_t begin, int64_t) { sum += begin; });
  EXPECT_EQ(sum.load(), 28);
}

TEST_F(Parallel, ASingleChunkLeavesTheThreadsToLoopsInIt) {
  set_num_threads(4);
  std::set<std::thread::id> seen;
  std::mutex mutex;
  std::condition_variable met;
  parallel_for(5, 5, [&](int64_t, int64_t) {
    EXPECT_FALSE(in_parallel());
    // Both chunks wait for each other: one thread alone would not get through.
    parallel_for(2, 1, [&](int64_t, int64_t) {
      std::unique_lock lock(mutex);
      seen.insert(std::this_thread::get_id());
      met.notify_all();
      EXPECT_TRUE(met.wait_for(lock, std::chrono::seconds(30), [&] { return seen.size() == 2; }));
    });
  });
}

TEST_F(Parallel, NestedCallsRunInOrderOnTheCallingThread) {
  for (const int threads : {1, 4}) {
    set_num_threads(threads);
    EXPECT_FALSE(in_parallel());
    std::atomic<int> outer_chunks = 0;
    parallel_for(8, 1, [&](int64_t, int64_t) {
      EXPECT_TRUE(in_parallel());
      const std::thread::id outer = std::this_thread::get_id();
      std::vector<int64_t> order;
      parallel_for(10, 3, [&](int64_t begin, int64_t) {
        EXPECT_EQ(std::this_thread::get_id(), outer);
        order.push_back(begin);
      });
      EXPECT_EQ(order, (std::vector<int64_t>{0, 3, 6, 9}));
      EXPECT_TRUE(in_parallel());
      ++outer_chunks;
    });
    EXPECT_EQ(outer_chunks.load(), 8);
    EXPECT_FALSE(in_parallel());
  }
}

TEST_F(Parallel, ServesSeveralCallersAtOnce) {
  set_num_threads(3);
  std::vector<std::thread> callers;
  std::atomic<int> wrong = 0;
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&wrong, caller] {
      for (int round = 0; round < 25; ++round) {
        std::vector<int64_t> seen(64, -1);
        parallel_for(64, 2, [&](int64_t begin, int64_t end) {
          for (int64_t i = begin; i < end; ++i) seen[static_cast<size_t>(i)] = i * caller;
        });
        for (size_t i = 0; i < seen.size(); ++i) {
          if (seen[i] != static_cast<int64_t>(i) * caller) ++wrong;
        }
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(wrong.load(), 0);
}

TEST_F(Parallel, UsesSeveralThreads) {
  set_num_threads(2);
  // Each chunk waits for the other one: a single thread would never get through.
  std::atomic<int> arrived = 0;
  parallel_for(2, 1, [&](int64_t, int64_t) {
    ++arrived;
    while (arrived.load() < 2) std::this_thread::yield();
  });
  EXPECT_EQ(arrived.load(), 2);
}

TEST_F(Parallel, NumberOfThreads) {
  EXPECT_GE(num_threads(), 1);
  set_num_threads(3);
  EXPECT_EQ(num_threads(), 3);
  const auto error = error_of([] { set_num_threads(-1); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(num_threads(), 3);
}

TEST_F(Parallel, EnvironmentGivesTheDefault) {
  const char* before = std::getenv("OMP_NUM_THREADS");
  const std::string saved = before == nullptr ? "" : before;
  setenv("OMP_NUM_THREADS", "5,2", 1);
  set_num_threads(0);
  EXPECT_EQ(num_threads(), 5);
  setenv("OMP_NUM_THREADS", "nonsense", 1);
  set_num_threads(0);
  EXPECT_GE(num_threads(), 1);
  if (before == nullptr) {
    unsetenv("OMP_NUM_THREADS");
  } else {
    setenv("OMP_NUM_THREADS", saved.c_str(), 1);
  }
}

}  // namespace
}  // namespace segue::base
