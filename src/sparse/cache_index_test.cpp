// The index of a cache against a plain model: which rows may be where, never which one it chose.

#include "sparse/cache_index.h"

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/parallel.h"

namespace segue::sparse {
namespace {

using Rows = std::vector<int64_t>;
using Changes = HostArray<CacheIndex::Change>;

const auto kAnyRoom = [](int64_t) {};

/// Distinct rows, ascending; low ones more often.
Rows draw(std::mt19937_64& random, int64_t most, int64_t vocabulary) {
  std::set<int64_t> rows;
  const auto n = static_cast<int64_t>(random() % static_cast<uint64_t>(most + 1));
  for (int64_t i = 0; i < n; ++i) {
    const double u = static_cast<double>(random() >> 11) * 0x1p-53;
    rows.insert(static_cast<int64_t>(u * u * static_cast<double>(vocabulary)));
  }
  return {rows.begin(), rows.end()};
}

/// What a cache may do: rows stay where they are until their slot is given to another, which no
/// batch may have pinned.
struct Model {
  struct Slot {
    int64_t row = -1, pins = 0, last_use = 0;
    bool dirty = false;
  };
  std::map<int64_t, Slot> slots;
  std::map<int64_t, int64_t> where;  // slot of a row

  void acquire(const Rows& rows, const Rows& got, const Changes& changes) {
    const std::set<int64_t> wanted(rows.begin(), rows.end());
    std::set<int64_t> changed;
    for (const CacheIndex::Change& c : changes.span()) {
      Slot& slot = slots[c.slot];
      EXPECT_TRUE(changed.insert(c.slot).second) << "a slot changes once a batch";
      EXPECT_TRUE(wanted.contains(c.row));
      EXPECT_FALSE(where.contains(c.row)) << "it was there";
      EXPECT_EQ(slot.pins, 0) << "a pinned row was evicted";
      EXPECT_FALSE(wanted.contains(c.victim)) << "a batch evicts its own row";
      EXPECT_EQ(c.victim, slot.row);
      EXPECT_EQ(c.victim_dirty, slot.dirty);
      EXPECT_EQ(c.last_use, slot.last_use);
      where.erase(slot.row);
      where[c.row] = c.slot;
      slot.row = c.row;
      slot.dirty = false;
    }
    ASSERT_EQ(got.size(), rows.size());
    for (size_t i = 0; i < rows.size(); ++i) {
      ASSERT_TRUE(where.contains(rows[i]));
      EXPECT_EQ(where[rows[i]], got[i]);
      ++slots[got[i]].pins;
    }
  }
  void release(const Rows& got, bool wrote, int64_t number) {
    for (const int64_t s : got) {
      --slots[s].pins;
      slots[s].dirty |= wrote && number > 0;
      slots[s].last_use = std::max(slots[s].last_use, number);
    }
  }
};

TEST(CacheIndexTest, KeepsTheRulesWhateverComes) {
  for (const CachePolicy policy : {CachePolicy::kLru, CachePolicy::kLfu}) {
    for (uint64_t seed = 0; seed < 6; ++seed) {
      std::mt19937_64 random(seed);
      const auto room = static_cast<int64_t>(1 + random() % 400);
      CacheIndex index(room, policy);
      Model model;
      std::vector<Rows> out;
      int64_t number = 0, hits = 0, misses = 0;
      for (int step = 0; step < 600; ++step) {
        if (out.size() > 4 || (!out.empty() && random() % 2 == 0)) {
          const size_t which = random() % out.size();
          const bool wrote = random() % 2 == 0, used = random() % 8 != 0;
          const int64_t now = used ? ++number : 0;
          index.release(out[which], wrote, now);
          model.release(out[which], wrote, now);
          out.erase(out.begin() + static_cast<std::ptrdiff_t>(which));
          continue;
        }
        const Rows rows = draw(random, 120, 3000);
        for (const int64_t row : rows) ++(model.where.contains(row) ? hits : misses);
        Rows got = rows;
        Changes changes;
        index.acquire(got, kAnyRoom, changes);
        model.acquire(rows, got, changes);
        out.push_back(got);
        ASSERT_FALSE(HasFailure()) << "seed " << seed << ", step " << step;
      }
      EXPECT_EQ(index.hits(), hits);
      EXPECT_EQ(index.misses(), misses);
      EXPECT_EQ(index.rows_held(), static_cast<int64_t>(model.where.size()));
      for (const auto& [s, slot] : model.slots) {
        EXPECT_EQ(index.row_at(s), slot.row);
        EXPECT_EQ(index.dirty(s), slot.dirty);
        EXPECT_EQ(index.pinned(s), slot.pins > 0);
      }
      EXPECT_LE(index.slots(), index.set_slots() + 5 * 120) << "slots beyond the sets are reused";
    }
  }
}

Rows acquire(CacheIndex& index, Rows rows) {
  Changes changes;
  index.acquire(rows, kAnyRoom, changes);
  return rows;
}

bool holds(const CacheIndex& index, int64_t row) {
  for (int64_t s = 0; s < index.slots(); ++s) {
    if (index.row_at(s) == row) return true;
  }
  return false;
}

/// Batches of several pieces of parallel work, with rows beyond the sets and batches in flight.
TEST(CacheIndexTest, NothingDependsOnTheNumberOfThreads) {
  constexpr int64_t kSteps = 10;
  std::mt19937_64 random(5);
  std::vector<Rows> batches;
  for (int64_t step = 0; step < kSteps; ++step) batches.push_back(draw(random, 20'000, 60'000));
  for (const CachePolicy policy : {CachePolicy::kLru, CachePolicy::kLfu}) {
    for (const int64_t room : {3'000, 20'000}) {
      using Step = std::tuple<Rows, Rows, Rows, Rows>;  // slots; rows, slots, victims of changes
      std::vector<std::vector<Step>> runs;
      for (const int threads : {1, 2, 3, 8}) {
        base::set_num_threads(threads);
        CacheIndex index(room, policy);
        std::vector<Step>& run = runs.emplace_back();
        for (int64_t step = 0; step < kSteps; ++step) {
          Rows rows = batches[static_cast<size_t>(step)];
          Changes changes;
          index.acquire(rows, kAnyRoom, changes);
          auto& [got, came, slots, victims] = run.emplace_back();
          got = rows;
          for (const CacheIndex::Change& c : changes.span()) {
            came.push_back(c.row);
            slots.push_back(c.slot);
            victims.push_back(c.victim);
          }
          if (step > 0) index.release(std::get<0>(run[run.size() - 2]), step % 2 == 0, step);
        }
        EXPECT_GT(index.evicted(), 0);
      }
      base::set_num_threads(0);
      for (const auto& run : runs) EXPECT_TRUE(run == runs.front());
    }
  }
}

/// In one set, where it is plain which row goes: rows that a batch lacks take the ways of those not
/// used for longest, in the order of the batch.
TEST(CacheIndexTest, RowsOfABatchTakeWaysInItsOrder) {
  CacheIndex index(CacheIndex::kWays, CachePolicy::kLru);
  Rows slots;
  for (int64_t row = 0; row < CacheIndex::kWays; ++row) {
    slots.push_back(acquire(index, {row}).front());
    index.release(std::span(&slots.back(), 1), false, row + 1);
  }
  const Rows got = acquire(index, {0, 100, 200, 300});  // row 0 is there
  EXPECT_EQ(got, (Rows{slots[0], slots[1], slots[2], slots[3]}));
}

TEST(CacheIndexTest, ForgetsTheOldestOrTheRarest) {
  for (const CachePolicy policy : {CachePolicy::kLru, CachePolicy::kLfu}) {
    CacheIndex index(CacheIndex::kWays, policy);  // one set
    for (int64_t row = 0; row < CacheIndex::kWays; ++row) {
      index.release(acquire(index, {row}), false, row + 1);
    }
    for (int i = 0; i < 3; ++i) index.release(acquire(index, {0}), false, 100 + i);
    for (int64_t row = 1; row < CacheIndex::kWays; ++row) {
      index.release(acquire(index, {row}), false, 200 + row);
    }
    // Row 0 was used longest ago, but most often.
    index.release(acquire(index, {1000}), false, 300);
    EXPECT_EQ(holds(index, 0), policy == CachePolicy::kLfu);
    EXPECT_EQ(holds(index, 1), policy == CachePolicy::kLru);
  }
}

TEST(CacheIndexTest, OldFameFades) {
  CacheIndex index(CacheIndex::kWays, CachePolicy::kLfu);
  for (int i = 0; i < 40; ++i) index.release(acquire(index, {0}), false, 1);
  for (int i = 0; i < 3000; ++i) index.release(acquire(index, {1 + i % 31}), false, 1);
  EXPECT_TRUE(holds(index, 0));
  index.release(acquire(index, {1000}), false, 1);
  EXPECT_FALSE(holds(index, 0));
}

TEST(CacheIndexTest, RowsThatFindNoWayLieBeyondTheSets) {
  CacheIndex index(1, CachePolicy::kLru);
  Rows many;
  for (int64_t row = 0; row < 100; ++row) many.push_back(row);
  const Rows first = acquire(index, many);
  EXPECT_EQ(index.slots(), 100);
  EXPECT_EQ(acquire(index, many), first) << "they are found there";
  EXPECT_EQ(index.hits(), 100);
  index.release(first, true, 1);
  EXPECT_TRUE(index.pinned(first[50])) << "another batch has it";
  index.release(first, true, 2);
  Rows others;
  for (int64_t row = 100; row < 200; ++row) others.push_back(row);
  const Rows second = acquire(index, others);
  EXPECT_EQ(index.slots(), 100) << "their slots serve others";
  EXPECT_EQ(std::set<int64_t>(second.begin(), second.end()).size(), 100u);
}

TEST(CacheIndexTest, WithoutRoomNothingIsPinned) {
  CacheIndex index(1, CachePolicy::kLru);
  Rows many;
  for (int64_t row = 0; row < 50; ++row) many.push_back(row);
  Changes changes;
  const auto at_most_40 = [](int64_t slots) {
    if (slots > 40) fail(ErrorCode::kOutOfMemory, "no more");
  };
  const Rows before = many;
  EXPECT_THROW(index.acquire(many, at_most_40, changes), Error);
  EXPECT_EQ(many, before);
  EXPECT_EQ(changes.size(), 40);
  EXPECT_EQ(index.slots(), 40);
  for (int64_t s = 0; s < index.slots(); ++s) EXPECT_FALSE(index.pinned(s));
  for (const CacheIndex::Change& c : changes.span()) EXPECT_EQ(index.row_at(c.slot), c.row);
}

}  // namespace
}  // namespace segue::sparse
