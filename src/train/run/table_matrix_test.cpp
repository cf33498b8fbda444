// Kinds of tables, where they lie, batches ahead, candidates, precision, ranks, and a run in two
// parts: every combination trains the same model. Two of each at a time are all covered by default;
// SEGUE_MATRIX=all (scripts/table_matrix.sh) trains every combination.

#include <array>
#include <cmath>
#include <cstdlib>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "comm/world.h"
#include "train/run/loop.h"
#include "train/run/loop_test_util.h"
#include "train/test_util.h"

namespace segue::train {
namespace {

constexpr double kTimeout = 60;
constexpr int64_t kSteps = 6, kFirstPart = 3;

// Choices of each factor; the first is what others are compared with.
enum Factor { kTables, kAhead, kCandidates, kPrecision, kRanks, kParts, kNumFactors };
constexpr std::array<int, kNumFactors> kChoices = {8, 2, 2, 2, 3, 2};
constexpr std::array kTableNames = {"static",  "cached",         "host",         "file",
                                    "dynamic", "cached dynamic", "host dynamic", "file dynamic"};
constexpr int kDynamic = 4;  // and those behind it
constexpr std::array kRankCounts = {1, 2, 4};
using Cell = std::array<int, kNumFactors>;

std::string name_of(const Cell& cell) {
  const auto ranks = kRankCounts[static_cast<size_t>(cell[kRanks])];
  return std::string(kTableNames[static_cast<size_t>(cell[kTables])]) +
         (cell[kAhead] != 0 ? " ahead" : "") + (cell[kCandidates] != 0 ? " candidates" : "") +
         (cell[kPrecision] != 0 ? " bf16" : "") + " ranks " + std::to_string(ranks) +
         (cell[kParts] != 0 ? " parts" : "");
}

std::vector<Cell> all_cells() {
  std::vector<Cell> cells = {{}};
  for (size_t f = 0; f < kNumFactors; ++f) {
    std::vector<Cell> more;
    for (Cell cell : cells) {
      for (cell[f] = 0; cell[f] < kChoices[f]; ++cell[f]) more.push_back(cell);
    }
    cells = std::move(more);
  }
  return cells;
}

/// Some cells in which any two choices of two factors meet.
std::vector<Cell> pairwise_cells() {
  using Pair = std::tuple<size_t, int, size_t, int>;
  const auto pairs_of = [](const Cell& cell) {
    std::set<Pair> pairs;
    for (size_t a = 0; a < kNumFactors; ++a) {
      for (size_t b = a + 1; b < kNumFactors; ++b) pairs.insert({a, cell[a], b, cell[b]});
    }
    return pairs;
  };
  std::set<Pair> covered;
  std::vector<Cell> chosen;
  const std::vector<Cell> all = all_cells();
  while (true) {
    const Cell* best = nullptr;
    size_t most = 0;
    for (const Cell& cell : all) {
      size_t gain = 0;
      for (const Pair& pair : pairs_of(cell)) gain += covered.contains(pair) ? 0 : 1;
      if (gain > most) best = &cell, most = gain;
    }
    if (best == nullptr) return chosen;
    covered.merge(pairs_of(*best));
    chosen.push_back(*best);
  }
}

class TableMatrixTest : public LoopTest {
 protected:
  RunConfig config_of(const Cell& cell) const {
    using sparse::TierChoice;
    RunConfig c = tiny_config();
    c.train.device = device;
    for (sparse::TableConfig& table : c.sparse.tables) {
      table.rows = 800;
      table.init_bound = 0.1;
      table.sharding = sparse::Sharding::kRow;
      constexpr TierChoice kTiers[] = {TierChoice::kDevice, TierChoice::kCached, TierChoice::kHost,
                                       TierChoice::kFile};
      table.placement = kTiers[cell[kTables] % 4];
      if (cell[kTables] % 2 == 1) table.cache_share = 0.1;
      if (cell[kTables] >= kDynamic) {
        table.kind = sparse::TableKind::kDynamic;
        table.max_rows = 4096;
        table.start_rows = 128;
      }
    }
    c.data.random.ids = {data::DistributionKind::kZipfBounded, 0, 800};
    c.data.random.ids.alpha = 0.5;
    c.parallel.pipeline = cell[kAhead] != 0 ? Pipeline::kOn : Pipeline::kOff;
    if (cell[kCandidates] != 0) {
      c.data.random.candidates = 10;
      c.model.max_seq_len = 40;
    } else {
      c.model.labels = model::LabelKind::kEveryItem;
      c.model.tokens = model::TokenKind::kInterleaved;
      c.model.max_seq_len = 48;
    }
    c.train.precision = cell[kPrecision] != 0 ? Precision::kBf16 : Precision::kF32;
    c.train.steps = kSteps;
    c.train.log_every = 1;
    c.eval.at_end = false;
    c.sparse.spill_folder = folder + "_spill";
    return c;
  }

  /// Losses of all steps, as they are written.
  std::vector<std::string> losses_of_cell(const Cell& cell) {
    const std::string run = folder + "/" + name_of(cell);
    const auto train = [&](int64_t steps) {
      RunConfig c = config_of(cell);
      c.train.steps = steps;
      comm::run_as_threads(kRankCounts[static_cast<size_t>(cell[kRanks])], kTimeout,
                           [&](comm::World& world) {
                             LoopOptions options;
                             options.own_process = false;
                             options.allow_config_changes = {"train.steps"};
                             train_loop(c, run, options, world);
                           });
    };
    if (cell[kParts] != 0) train(kFirstPart);
    train(kSteps);
    std::vector<std::string> losses;
    for (const std::string& line : metrics_of(run)) {
      if (value(line, "event") == "\"train\"") losses.push_back(value(line, "loss"));
    }
    std::filesystem::remove_all(run);
    return losses;
  }

  void compare(const std::vector<Cell>& cells) {
    std::map<Cell, std::vector<std::string>> known;
    const auto losses = [&](const Cell& cell) -> const std::vector<std::string>& {
      const auto [at, is_new] = known.try_emplace(cell);
      if (is_new) at->second = losses_of_cell(cell);
      return at->second;
    };
    for (const Cell& cell : cells) {
      SCOPED_TRACE(name_of(cell));
      const std::vector<std::string>& found = losses(cell);
      ASSERT_EQ(found.size(), static_cast<size_t>(kSteps));
      // Where tables lie, what is ahead and in how many parts: the same bits.
      Cell plain = cell;
      plain[kTables] = plain[kAhead] = plain[kParts] = 0;
      // Dynamic tables on several ranks have their rows in another order, and so their sums.
      if (cell[kTables] >= kDynamic && cell[kRanks] > 0) plain[kTables] = kDynamic;
      EXPECT_EQ(found, losses(plain));
      plain[kTables] = plain[kRanks] = 0;
      const std::vector<std::string>& one = losses(plain);
      const double most = cell[kPrecision] != 0 ? 1e-2 : 1e-5;
      for (size_t s = 0; s < one.size(); ++s) {
        EXPECT_NEAR(std::stod(found[s]), std::stod(one[s]), most * std::stod(one[s]));
      }
    }
  }

  std::string device = "cpu";
};

std::vector<Cell> wanted_cells() {
  const char* const wish = std::getenv("SEGUE_MATRIX");
  return wish != nullptr && std::string(wish) == "all" ? all_cells() : pairwise_cells();
}

TEST_F(TableMatrixTest, TheSameTrainingInAllCombinations) { compare(wanted_cells()); }

class GpuTableMatrixTest : public TableMatrixTest {
 protected:
  void SetUp() override {
    TableMatrixTest::SetUp();
    if (cuda_device_count() == 0) GTEST_SKIP() << "there is no GPU";
    device = "cuda";
  }
};

TEST_F(GpuTableMatrixTest, TheSameTrainingInAllCombinations) { compare(wanted_cells()); }

}  // namespace
}  // namespace segue::train
