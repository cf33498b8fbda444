// A kind of table that the product does not have, behind the same interface: rows are made for any
// 64-bit id when training first asks for it, and live in a memory that stage() fills.

#include <algorithm>
#include <limits>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/rng.h"
#include "comm/world.h"
#include "sparse/static_table.h"
#include "sparse/tables_test_util.h"

namespace segue::sparse {
namespace {

using test::Bench;
using test::Ids;

constexpr double kTimeout = 20;
constexpr int64_t kDim = 4;

int64_t key_of(int64_t id) {
  return static_cast<int64_t>(base::splitmix64(static_cast<uint64_t>(id)));  // one to one
}

/// What a new row begins with.
float first_value(int64_t key, int64_t column) {
  return static_cast<float>(static_cast<uint64_t>(key) % 1000 + static_cast<uint64_t>(column));
}

class GrowingTable final : public Table {
 public:
  explicit GrowingTable(TableSpec given)
      : Table(std::move(given)),
        stored_(static_cast<size_t>(spec().config.rows * spec().dim)),
        resident_(stored_.size()),
        keys_(static_cast<size_t>(spec().config.rows)) {}

  int64_t check(const Lookup&) const override { return 0; }
  void make_keys(std::span<const int64_t> ids, int64_t* keys) const override {
    std::ranges::transform(ids, keys, key_of);
  }
  bool has_negative_keys() const override { return true; }
  Share share_of(int rank) const override {
    const uint64_t width =
        std::numeric_limits<uint64_t>::max() / static_cast<uint64_t>(spec().ranks);
    const auto first = [&](int r) {
      return static_cast<int64_t>((uint64_t{1} << 63) + width * static_cast<uint64_t>(r));
    };
    const bool last = rank == spec().ranks - 1;
    return {first(rank),
            last ? std::numeric_limits<int64_t>::max() : first(rank + 1) - 1,
            {0, spec().dim}};
  }
  void find_slots(std::span<int64_t> keys, Mode mode) override {
    EXPECT_TRUE(std::ranges::is_sorted(keys));
    EXPECT_EQ(std::set<int64_t>(keys.begin(), keys.end()).size(), keys.size());
    for (int64_t& key : keys) {
      const auto found = slots_.find(key);
      if (found == slots_.end() && mode == Mode::kEvaluation) {
        key = -1;
        continue;
      }
      key = found == slots_.end() ? insert(key) : found->second;
    }
  }
  bool stage(std::span<const int64_t> slots, const Stream&) override {
    ++stages;
    for (const int64_t slot : slots) {
      if (slot < 0) continue;
      pinned.insert(slot);
      std::copy_n(row(stored_, slot), spec().dim, row(resident_, slot));
    }
    return true;
  }
  Resident resident() const override {
    const int64_t rows = spec().config.rows;
    return {host(resident_, spec().dim), Tensor(nullptr, DType::kF32, Device::cpu(), {rows, 0})};
  }
  void release(std::span<const int64_t> slots, Mode, const Stream* last_use) override {
    releases += last_use != nullptr ? 1 : 0;
    for (const int64_t slot : slots) {
      if (pinned.erase(slot) > 0) {
        std::copy_n(row(resident_, slot), spec().dim, row(stored_, slot));
      }
    }
  }
  void mark_saved() override {}
  /// Copies, which load() takes over.
  std::vector<TableArray> snapshot(Extent /*extent*/) override {
    for (const auto& [key, slot] : slots_) keys_[static_cast<size_t>(slot)] = key;
    copy_ = stored_;
    return {{.name = "key", .value = host_view(std::span<int64_t>(keys_))},
            {.name = "weight", .value = host(copy_, spec().dim)}};
  }
  void load(const SavedArrays&) override {
    slots_.clear();
    for (size_t slot = 0; slot < keys_.size() && keys_[slot] != 0; ++slot) {
      slots_[keys_[slot]] = static_cast<int64_t>(slot);
    }
    stored_ = copy_;
  }
  int64_t bytes() const override { return static_cast<int64_t>(stored_.size() * sizeof(float)); }

  int64_t inserts = 0, stages = 0, releases = 0;
  std::set<int64_t> pinned;

 private:
  float* row(std::vector<float>& values, int64_t slot) { return &values[slot * spec().dim]; }
  static Tensor host(const std::vector<float>& values, int64_t dim) {
    return {const_cast<float*>(values.data()),
            DType::kF32,
            Device::cpu(),
            {static_cast<int64_t>(values.size()) / dim, dim}};
  }
  int64_t insert(int64_t key) {
    ++inserts;
    const auto slot = static_cast<int64_t>(slots_.size());
    SEGUE_ASSERT(slot < spec().config.rows, "the test has room for all ids");
    slots_[key] = slot;
    for (int64_t c = 0; c < spec().dim; ++c) row(stored_, slot)[c] = first_value(key, c);
    return slot;
  }

  std::map<int64_t, int64_t> slots_;
  std::vector<float> stored_, resident_, copy_;  // where rows live, where a step uses them
  std::vector<int64_t> keys_;                    // of a snapshot, by slot
};

/// A growing table beside a static one.
TablesConfig growing_and_static() {
  TablesConfig config;
  config.tables = {{"any", 64}, {"item", 50}};
  config.dim = kDim;
  config.optimizer = ops::RowOptimizer::kSgd;
  return config;
}

struct Fixture {
  Tables tables;
  GrowingTable& any;
  Bench bench;

  explicit Fixture(const ShardPlan& plan = ShardPlan::single(2), TableGroups groups = {})
      : tables(growing_and_static(), plan, groups, Device::cpu(), DType::kF32, 5, make),
        any(dynamic_cast<GrowingTable&>(tables.table(TableId{0}))) {}

  static std::unique_ptr<Table> make(TableSpec spec) {
    if (spec.config.name == "any") return std::make_unique<GrowingTable>(std::move(spec));
    return make_table(std::move(spec));
  }
  Ticket begin(const Ids& ids, const Ids& items, Mode mode, Ticket ticket = {}) {
    const Lookup lookups[] = {{TableId{0}, "any", ids}, {TableId{1}, "item", items}};
    return tables.begin(lookups, mode, std::move(ticket));
  }
  Tensor rows(Ticket& ticket) {
    const TableId both[] = {TableId{0}, TableId{1}};
    return tables.rows(bench.exec, ticket, both);
  }
};

const Ids kIds = {-7, 5, std::numeric_limits<int64_t>::min(), 5, 1LL << 60, -1, 0};  // 6 different

void expect_first_values(const Ids& ids, const Ticket& ticket, const Tensor& rows) {
  for (size_t i = 0; i < ids.size(); ++i) {
    const int32_t place = ticket.inverse(0)[i];
    for (int64_t c = 0; c < kDim; ++c) {
      EXPECT_EQ(rows.row<float>(place)[c], first_value(key_of(ids[i]), c)) << ids[i];
    }
  }
}

TEST(TableKindsTest, TrainingInsertsAndEvaluationDoesNot) {
  Fixture f;
  Ticket asked = f.begin(kIds, {}, Mode::kEvaluation);
  EXPECT_EQ(f.any.inserts, 0);
  EXPECT_EQ(asked.distinct_rows(TableId{0}), 6);
  const Tensor nothing = f.rows(asked);
  for (const float x : nothing.span<float>()) EXPECT_EQ(x, 0);

  Ticket trained = f.begin(kIds, {}, Mode::kTraining);
  EXPECT_EQ(f.any.inserts, 6);
  expect_first_values(kIds, trained, f.rows(trained));
  (void)f.begin({5, 77}, {}, Mode::kEvaluation);
  EXPECT_EQ(f.any.inserts, 6);
  (void)f.begin({5, 77}, {}, Mode::kTraining);
  EXPECT_EQ(f.any.inserts, 7);
}

TEST(TableKindsTest, KindsAreReadAndUpdatedSideBySide) {
  Fixture f;
  const Stream stream(Device::cpu());
  const Ids items{3, 9, 3};
  Ticket ticket = f.begin(kIds, items, Mode::kTraining);
  const Tensor rows = f.rows(ticket);
  ASSERT_EQ(rows.size(0), 6 + 2);
  const Tensor items_at = rows.rows(6, 2);
  const Tensor weights = f.tables.table(TableId{1}).resident().weights;
  EXPECT_TRUE(
      std::equal(items_at.row<float>(1), items_at.row<float>(1) + kDim, weights.row<float>(9)));

  const Tensor gradients = f.bench.exec.statistic({8, kDim});
  std::ranges::fill(gradients.span<float>(), 1.0f);
  const TableId both[] = {TableId{0}, TableId{1}};
  f.tables.apply(f.bench.exec, ticket, both, gradients, 0.5, 1);
  f.tables.release(ticket, stream);
  EXPECT_TRUE(f.any.pinned.empty());
  Ticket again = f.begin(kIds, items, Mode::kEvaluation);
  const Tensor after = f.rows(again);
  for (int64_t i = 0; i < 8; ++i) {
    for (int64_t c = 0; c < kDim; ++c) {
      EXPECT_EQ(after.row<float>(i)[c], rows.row<float>(i)[c] - 0.5f);
    }
  }
}

TEST(TableKindsTest, RowsAreStagedOnceBeforeTheyAreRead) {
  Fixture f;
  const Stream copies(Device::cpu());
  Ticket ticket = f.begin({1, 2}, {}, Mode::kTraining);
  EXPECT_EQ(f.any.stages, 0);
  f.tables.stage(ticket, copies);
  EXPECT_EQ(f.any.stages, 1);
  EXPECT_EQ(f.any.pinned.size(), 2u);
  expect_first_values({1, 2}, ticket, f.rows(ticket));
  f.rows(ticket);
  EXPECT_EQ(f.any.stages, 1);

  Ticket lazy = f.begin({3}, {}, Mode::kTraining);  // nobody stages: rows() does
  expect_first_values({3}, lazy, f.rows(lazy));
  EXPECT_EQ(f.any.stages, 2);
}

TEST(TableKindsTest, SlotsAreHeldUntilTheyAreReleased) {
  Fixture f;
  const Stream stream(Device::cpu());
  Ticket ticket = f.begin({1, 2}, {}, Mode::kTraining);
  f.tables.stage(ticket, stream);
  EXPECT_EQ(f.any.pinned.size(), 2u);
  // A batch that is never used gives its slots back when its ticket is made anew.
  ticket = f.begin({3}, {}, Mode::kTraining, std::move(ticket));
  EXPECT_TRUE(f.any.pinned.empty());
  EXPECT_EQ(f.any.releases, 0);
  f.rows(ticket);
  EXPECT_EQ(f.any.pinned.size(), 1u);
  f.tables.release(ticket, stream);
  EXPECT_TRUE(f.any.pinned.empty());
  EXPECT_EQ(f.any.releases, 1);
}

TEST(TableKindsTest, SnapshotsMayBeCopies) {
  Fixture from, to;
  Ticket trained = from.begin(kIds, {}, Mode::kTraining);
  std::vector<TableArray> saved = from.any.snapshot(Extent::kAll),
                          read = to.any.snapshot(Extent::kAll);
  ASSERT_EQ(saved.size(), read.size());
  for (size_t i = 0; i < saved.size(); ++i) copy(read[i].value, saved[i].value, nullptr);
  to.tables.load(test::no_arrays);
  Ticket asked = to.begin(kIds, {}, Mode::kEvaluation);
  expect_first_values(kIds, asked, to.rows(asked));
  EXPECT_EQ(to.any.inserts, 0);
}

TEST(TableKindsTest, OwnersInsertForAllRanks) {
  for (const int ranks : {2, 3}) {
    std::mutex mutex;
    int64_t inserts = 0;
    comm::run_as_threads(ranks, kTimeout, [&](comm::World& world) {
      ShardPlan plan;
      plan.ranks = ranks;
      plan.tables.resize(2);
      plan.tables[0].sharding = Sharding::kRow;
      for (int r = 1; r < ranks; ++r) plan.tables[0].ranks.push_back(r);
      const auto ids_group = world.open("ids"), rows_group = world.open("rows");
      Fixture f(plan, {ids_group.get(), rows_group.get()});
      Ids mine = kIds;  // all ranks ask for these, and each for some of its own
      for (int64_t i = 0; i < 4; ++i) mine.push_back(1000 * (world.rank() + 1) - i);
      Ticket asked = f.begin(mine, {7}, Mode::kEvaluation);
      EXPECT_EQ(f.any.inserts, 0);
      for (const float x : f.tables.rows(f.bench.exec, asked, TableId{0}).span<float>()) {
        EXPECT_EQ(x, 0);
      }
      Ticket trained = f.begin(mine, {7}, Mode::kTraining);
      expect_first_values(mine, trained, f.rows(trained));
      const std::lock_guard lock(mutex);
      inserts += f.any.inserts;
    });
    EXPECT_EQ(inserts, 6 + 4 * ranks);
  }
}

}  // namespace
}  // namespace segue::sparse
