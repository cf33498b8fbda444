#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "base/parallel.h"
#include "ops/rows.h"
#include "sparse/tables.h"
#include "sparse/tables_test_util.h"

// Updates of tables against a plain reference.

namespace segue::sparse {
namespace {

using namespace test;

/// One row at a time, in maps, by the formulas in ops/optimizer.h.
template <class T>
class Reference {
 public:
  Reference(const TablesConfig& config, const Tensor& weights) : config_(config) {
    const std::vector<double> values = values_of(weights);
    for (size_t i = 0; i < values.size(); ++i) {
      rows_[static_cast<int64_t>(i) / config.dim].w.push_back(static_cast<T>(values[i]));
    }
    for (auto& [id, row] : rows_) {
      row.m.assign(row.w.size(), 0);
      row.v.assign(row.w.size(), 0);
    }
  }

  void add_gradient(int64_t id, const std::vector<double>& g) {
    std::vector<T>& sum = gradients_[id];
    sum.resize(g.size(), 0);
    for (size_t c = 0; c < g.size(); ++c) sum[c] += static_cast<T>(g[c]);
  }

  void step(T lr, int64_t t) {
    const auto eps = static_cast<T>(config_.eps);
    const auto b1 = static_cast<T>(config_.beta1), b2 = static_cast<T>(config_.beta2);
    const T correction1 = 1 - std::pow(b1, static_cast<T>(t));
    const T correction2 = std::sqrt(1 - std::pow(b2, static_cast<T>(t)));
    for (const auto& [id, g] : gradients_) {
      Row& row = rows_[id];
      T squares = 0;
      for (const T x : g) squares += x * x;
      row.mean_square += squares / static_cast<T>(g.size());
      for (size_t c = 0; c < g.size(); ++c) {
        switch (config_.optimizer) {
          case ops::RowOptimizer::kRowwiseAdagrad:
            row.w[c] -= lr / (std::sqrt(row.mean_square) + eps) * g[c];
            break;
          case ops::RowOptimizer::kAdagrad:
            row.v[c] += g[c] * g[c];
            row.w[c] -= lr / (std::sqrt(row.v[c]) + eps) * g[c];
            break;
          case ops::RowOptimizer::kSgd:
            row.w[c] -= lr * g[c];
            break;
          case ops::RowOptimizer::kAdam:
            row.m[c] = b1 * row.m[c] + (1 - b1) * g[c];
            row.v[c] = b2 * row.v[c] + (1 - b2) * g[c] * g[c];
            row.w[c] -= lr / correction1 * row.m[c] / (std::sqrt(row.v[c]) / correction2 + eps);
            break;
        }
      }
    }
    gradients_.clear();
  }

  std::vector<double> weights() const {
    std::vector<double> values;
    for (const auto& [id, row] : rows_) values.insert(values.end(), row.w.begin(), row.w.end());
    return values;
  }

 private:
  struct Row {
    std::vector<T> w, m, v;
    T mean_square = 0;
  };
  TablesConfig config_;
  std::map<int64_t, Row> rows_;
  std::map<int64_t, std::vector<T>> gradients_;
};

double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  EXPECT_EQ(a.size(), b.size());
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(a[i] - b[i]));
  return largest;
}

/// Training below never names an item from here on.
int64_t first_untouched(const Tables& tables) {
  return tables.table(TableId{0}).resident().weights.size(0) * 4 / 5;
}

/// Trains table `item` for some steps on random ids and gradients, one gradient per occurrence;
/// `see` learns every (id, gradient), `finish` the end of every step.
template <class See, class Finish>
void train(Tables& tables, Precision precision, See&& see, Finish&& finish) {
  Bench bench(precision);
  const int64_t dim = tables.config().dim;
  const auto items = static_cast<uint64_t>(first_untouched(tables));
  std::mt19937_64 random(11);
  for (int64_t step = 1; step <= 6; ++step) {
    const Arena::Mark mark(bench.arena);
    Ids history(step == 4 ? 0 : 2 * items), candidates(items);
    for (Ids* ids : {&history, &candidates}) {
      for (int64_t& id : *ids) id = static_cast<int64_t>(random() % (random() % items + 1));
    }
    const Lookup lookups[] = {{TableId{0}, "item_id", history},
                              {TableId{0}, "item_candidate_id", candidates}};
    Ticket ticket = tables.begin(lookups, Mode::kTraining);
    const Tensor sums = bench.exec.statistic({ticket.distinct_rows(TableId{0}), dim});
    zero(sums);
    for (size_t l = 0; l < std::size(lookups); ++l) {
      const Ids ids(lookups[l].ids.begin(), lookups[l].ids.end());
      const Tensor gradients = bench.exec.statistic({static_cast<int64_t>(ids.size()), dim});
      for (size_t i = 0; i < ids.size(); ++i) {
        std::vector<double> g(static_cast<size_t>(dim));
        for (double& x : g) {
          x = static_cast<float>(static_cast<double>(random() % 2001) * 1e-5 - 0.01);
        }
        dispatch_real(gradients.dtype, [&](auto zero_value) {
          using T = decltype(zero_value);
          std::copy(g.begin(), g.end(), gradients.row<T>(static_cast<int64_t>(i)));
        });
        see(ids[i], g);
      }
      ops::segment_sum(bench.exec, gradients, view(ticket.inverse(static_cast<int64_t>(l))), sums);
    }
    const double lr = 0.05 / static_cast<double>(step);
    tables.apply(bench.exec, ticket, TableId{0}, sums, lr, step);
    finish(lr, step);
  }
}

class TablesOptimizerTest : public testing::TestWithParam<ops::RowOptimizer> {
 protected:
  TablesConfig config() const {
    TablesConfig c = two_tables();
    c.optimizer = GetParam();
    return c;
  }
};

TEST_P(TablesOptimizerTest, OneUpdatePerDistinctRow) {
  Tables doubles(config(), Device::cpu(), DType::kF64, 5);
  Reference<double> reference(config(), doubles.table(TableId{0}).resident().weights);
  train(
      doubles, Precision::kF64, [&](int64_t id, const auto& g) { reference.add_gradient(id, g); },
      [&](double lr, int64_t step) { reference.step(lr, step); });
  const double moved = largest_difference(
      reference.weights(),
      values_of(
          Tables(config(), Device::cpu(), DType::kF64, 5).table(TableId{0}).resident().weights));
  EXPECT_GT(moved, 1e-4);
  // A few dozen roundings of numbers near 1 separate the two.
  EXPECT_LE(largest_difference(values_of(doubles.table(TableId{0}).resident().weights),
                               reference.weights()),
            64 * 0x1p-53);

  // In float: at most twice the error that the plain loops make in float.
  Tables floats(config(), Device::cpu(), DType::kF32, 5);
  Reference<float> plain(config(), floats.table(TableId{0}).resident().weights);
  Reference<double> exact(config(), floats.table(TableId{0}).resident().weights);
  train(
      floats, Precision::kF32,
      [&](int64_t id, const auto& g) {
        plain.add_gradient(id, g);
        exact.add_gradient(id, g);
      },
      [&](double lr, int64_t step) {
        plain.step(static_cast<float>(lr), step);
        exact.step(lr, step);
      });
  EXPECT_LE(
      largest_difference(values_of(floats.table(TableId{0}).resident().weights), exact.weights()),
      2 * largest_difference(plain.weights(), exact.weights()));
}

TEST_P(TablesOptimizerTest, UnreferencedRowsKeepTheirBits) {
  Tables tables(config(), Device::cpu(), DType::kF32, 5);
  const Tables untouched(config(), Device::cpu(), DType::kF32, 5);
  train(
      tables, Precision::kF32, [](int64_t, const auto&) {}, [](double, int64_t) {});
  const int64_t first = first_untouched(tables);
  const auto tail = [first](const Tensor& t) { return bytes_of(t.rows(first, t.size(0) - first)); };
  EXPECT_EQ(tail(tables.table(TableId{0}).resident().weights),
            tail(untouched.table(TableId{0}).resident().weights));
  EXPECT_EQ(tail(tables.table(TableId{0}).resident().state),
            tail(untouched.table(TableId{0}).resident().state));
  EXPECT_EQ(bytes_of(tables.table(TableId{1}).resident().weights),
            bytes_of(untouched.table(TableId{1}).resident().weights));
  EXPECT_EQ(bytes_of(tables.table(TableId{1}).resident().state),
            bytes_of(untouched.table(TableId{1}).resident().state));
  EXPECT_NE(bytes_of(tables.table(TableId{0}).resident().weights),
            bytes_of(untouched.table(TableId{0}).resident().weights));
}

TEST_P(TablesOptimizerTest, EqualBitsOnOneAndTwoThreads) {
  const int before = base::num_threads();
  TablesConfig big = config();  // many chunks of work for every loop
  big.tables[0].rows = 20'000;
  std::vector<std::vector<std::byte>> weights, states;
  for (const int threads : {1, 2}) {
    base::set_num_threads(threads);
    Tables tables(big, Device::cpu(), DType::kF32, 5);
    train(
        tables, Precision::kF32, [](int64_t, const auto&) {}, [](double, int64_t) {});
    weights.push_back(bytes_of(tables.table(TableId{0}).resident().weights));
    states.push_back(bytes_of(tables.table(TableId{0}).resident().state));
  }
  base::set_num_threads(before);
  EXPECT_EQ(weights[0], weights[1]);
  EXPECT_EQ(states[0], states[1]);
}

/// Rows and gradients of ids are those of distinct rows, expanded and summed; the second table may
/// have an optimizer of its own.
TEST_P(TablesOptimizerTest, RowsAndGradientsOfEachId) {
  for (const OptimizerChoice second : {OptimizerChoice::kDefault, OptimizerChoice::kAdagrad}) {
    for (const TableKind kind : {TableKind::kStatic, TableKind::kDynamic}) {
      const auto run = [&](bool by_id) {
        test::Bench bench;
        TablesConfig config = test::two_tables();
        config.optimizer = GetParam();
        config.out_of_range = OutOfRange::kZero;
        config.tables[1].optimizer = second;
        for (TableConfig& table : config.tables) table.kind = kind;
        Tables tables(config, Device::cpu(), DType::kF32, 3);
        const test::Ids items = {7, 3, 7, 60, 0}, artists = {4, 4};
        const Lookup lookups[] = {{TableId{1}, "artist", artists}, {TableId{0}, "item", items}};
        const TableId both[] = {TableId{0}, TableId{1}};
        std::vector<double> all;
        for (int64_t step = 1; step <= 3; ++step) {
          const Mode mode = step == 1 ? Mode::kEvaluation : Mode::kTraining;
          Ticket ticket = tables.begin(lookups, mode, {}, 0, InverseAt::kDevice);
          const Tensor inverse = tables.places(bench.exec, ticket).inverse;
          const Tensor gradients = bench.arena.tensor(DType::kF32, {7, 6});
          for (int64_t i = 0; i < 42; ++i) {
            gradients.ptr<float>()[i] = 0.01F * static_cast<float>((i * step) % 11 - 5);
          }
          const Tensor rows = bench.arena.tensor(DType::kF32, {7, 6});
          if (!by_id) {
            ops::gather_rows(bench.exec, tables.rows(bench.exec, ticket, both), inverse, rows);
          }
          for (const double x :
               test::values_of(by_id ? tables.rows_of_ids(bench.exec, ticket) : rows)) {
            all.push_back(x);
          }
          if (mode == Mode::kEvaluation) continue;
          if (by_id) {
            tables.apply_to_ids(bench.exec, ticket, gradients, 0.1, step);
            continue;
          }
          const int64_t distinct =
              ticket.distinct_rows(TableId{0}) + ticket.distinct_rows(TableId{1});
          const Tensor sums = bench.arena.tensor(DType::kF32, {distinct, 6});
          zero(sums);
          ops::segment_sum(bench.exec, gradients, inverse, sums);
          tables.apply(bench.exec, ticket, both, sums, 0.1, step);
        }
        return all;
      };
      EXPECT_EQ(run(true), run(false));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(AllOptimizers, TablesOptimizerTest,
                         testing::Values(ops::RowOptimizer::kRowwiseAdagrad,
                                         ops::RowOptimizer::kAdagrad, ops::RowOptimizer::kSgd,
                                         ops::RowOptimizer::kAdam));

}  // namespace
}  // namespace segue::sparse
