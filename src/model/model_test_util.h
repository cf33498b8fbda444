#pragma once

// For tests only: what holds for a model of any family.

#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "model/model.h"
#include "ops/test_util.h"

namespace segue::model {

/// Directional derivatives of the loss along random directions in every parameter, and in one
/// column of every table row that the batch reads. The model is one in double.
inline void expect_gradients(Model& model, const Exec& exec, const Batch& batch) {
  using ops::test::TestBed;
  const auto run = [&] {
    model.parameters().zero_grads();
    return model.run(exec, batch, {});
  };
  const Pass pass = run();
  const std::span<double> values = model.parameters().values().span<double>();
  const std::span<double> grads = model.parameters().grads().span<double>();
  const std::vector<double> gradient(grads.begin(), grads.end());
  const auto loss = [&] {
    Arena::Mark mark(*exec.arena);
    return model.run(exec, batch, {}).loss;
  };
  constexpr double kStep = 1e-5;
  // Every parameter tensor on its own, so that a small one cannot hide behind a large one.
  int64_t begin = 0;
  for (const Parameter& p : model.parameters().all()) {
    const int64_t n = p.value.elements();
    double expected = 0;
    const std::vector<double> saved(values.begin() + begin, values.begin() + begin + n);
    const auto move = [&](double step) {
      for (int64_t i = 0; i < n; ++i) {
        values[static_cast<size_t>(begin + i)] =
            saved[static_cast<size_t>(i)] + step * TestBed::number(77, begin + i);
      }
    };
    for (int64_t i = 0; i < n; ++i) {
      expected += gradient[static_cast<size_t>(begin + i)] * TestBed::number(77, begin + i);
    }
    move(kStep);
    const double above = loss();
    move(-kStep);
    const double below = loss();
    move(0);
    EXPECT_NEAR(expected, (above - below) / (2 * kStep), 1e-6 * std::max(1.0, std::abs(expected)))
        << p.name;
    begin += n;
  }
  sparse::Tables& tables = model.tables();
  for (int64_t t = 0; t < tables.count(); ++t) {
    const auto id = static_cast<sparse::TableId>(t);
    const Tensor& g = pass.row_gradients[static_cast<size_t>(t)];
    const auto ids = pass.ticket.slots(id);
    for (size_t u = 0; u < ids.size(); ++u) {
      double* row = tables.table(id).resident().weights.row<double>(ids[u]);
      const double saved = row[2];
      row[2] = saved + kStep;
      const double above = loss();
      row[2] = saved - kStep;
      const double below = loss();
      row[2] = saved;
      EXPECT_NEAR(g.row<double>(static_cast<int64_t>(u))[2], (above - below) / (2 * kStep), 1e-6)
          << "table " << t << " row " << ids[u];
    }
  }
}

}  // namespace segue::model
