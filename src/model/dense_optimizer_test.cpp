#include "model/dense_optimizer.h"

#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/config.h"
#include "base/error.h"
#include "ops/test_util.h"

namespace segue::model {
namespace {

using ops::DenseOptimizer;
using ops::test::TestBed;

void add_two(Parameters& parameters) {
  parameters.add("a", {2, 3}, ops::Init::kUniform, 1);
  parameters.add("b", {5}, ops::Init::kOnes);
}

TEST(OptimizerStateTest, IsNamedByTheOptimizerAndLaidOutAsTheValues) {
  for (const DenseOptimizer kind : ops::kDenseOptimizers) {
    Parameters parameters;
    add_two(parameters);
    parameters.allocate(Device::cpu(), DType::kF64, 1);
    parameters.allocate_states(kind);
    const auto names = ops::dense_states(kind);
    EXPECT_TRUE(std::ranges::equal(parameters.state_names(), names));
    ASSERT_EQ(parameters.states().size(), names.size());
    for (const Parameter& p : parameters.all()) {
      ASSERT_EQ(p.states.size(), names.size());
      for (size_t s = 0; s < names.size(); ++s) {
        EXPECT_EQ(p.states[s].shape_string(), p.value.shape_string());
        EXPECT_EQ(p.states[s].ptr<double>() - parameters.states()[s].ptr<double>(),
                  p.value.ptr<double>() - parameters.values().ptr<double>());
      }
    }
  }
}

TEST(OptimizerStateTest, TakesTheMemoryThatItNeedsAndStartsAtZero) {
  const int64_t before = Buffer::live_bytes(Purpose::kOptimizer);
  Parameters parameters;
  add_two(parameters);
  parameters.allocate(Device::cpu(), DType::kF64, 1);
  EXPECT_EQ(Buffer::live_bytes(Purpose::kOptimizer) - before, 2 * 11 * 8);
  parameters.states()[1].ptr<double>()[4] = 7;
  parameters.allocate_states(DenseOptimizer::kAdamW);
  EXPECT_EQ(Buffer::live_bytes(Purpose::kOptimizer) - before, 2 * 11 * 8);
  EXPECT_EQ(parameters.states()[1].ptr<double>()[4], 0);
}

/// One update with the given optimizer and decay; the parameters are all 1, the gradients 0.5.
std::vector<double> updated(DenseOptimizer kind, double decay) {
  TestBed bed(Precision::kF64);
  Parameters parameters;
  parameters.add("b", {5}, ops::Init::kOnes);
  parameters.allocate(Device::cpu(), DType::kF64, 1);
  parameters.allocate_states(kind);
  for (double& g : parameters.grads().span<double>()) g = 0.5;
  OptimizerConfig c;
  c.kind = kind;
  c.lr = 0.1;
  c.weight_decay = decay;
  update_dense(bed.exec, c, 0, parameters);
  const std::span<double> values = parameters.values().span<double>();
  return {values.begin(), values.end()};
}

TEST(DenseOptimizerKindTest, DecidesWhatWeightDecayMeans) {
  // The first step of Adam is lr long, however long the gradient is: decay in it is not seen.
  for (const double w : updated(DenseOptimizer::kAdam, 0)) EXPECT_NEAR(w, 0.9, 1e-6);
  for (const double w : updated(DenseOptimizer::kAdam, 0.5)) EXPECT_NEAR(w, 0.9, 1e-6);
  for (const double w : updated(DenseOptimizer::kAdamW, 0)) EXPECT_NEAR(w, 0.9, 1e-6);
  for (const double w : updated(DenseOptimizer::kAdamW, 0.5)) EXPECT_NEAR(w, 0.85, 1e-6);
}

TEST(DenseOptimizerKindTest, IsReadFromConfigsAndAdamWithoutAWord) {
  const auto read = [](std::vector<std::string> sets) {
    OptimizerConfig c;
    base::ConfigSources sources;
    sources.use_environment = false;
    sources.sets = std::move(sets);
    base::load_config(c, sources);
    return c.kind;
  };
  EXPECT_EQ(read({}), DenseOptimizer::kAdam);
  EXPECT_EQ(read({"kind=adam"}), DenseOptimizer::kAdam);
  EXPECT_EQ(read({"kind=adamw"}), DenseOptimizer::kAdamW);
  EXPECT_THROW(read({"kind=momentum"}), Error);
}

}  // namespace
}  // namespace segue::model
