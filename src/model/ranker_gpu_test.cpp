#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "model/dense_optimizer.h"
#include "model/ranker.h"
#include "model/ranker_test_util.h"
#include "ops/gpu_test_util.h"

namespace segue::model {
namespace {

using ops::test::ModeBed;

struct Named {
  std::string name;
  bool is_gradient;
  std::vector<double> values;
};

/// Moves every parameter away from its initial value, so that biases matter, by numbers that depend
/// on their place alone.
void perturb(ModeBed& bed, const Parameters& parameters) {
  uint64_t seed = 200;
  for (const Parameter& p : parameters.all()) {
    const std::vector<double> before = bed.values(p.value.reshape({p.value.elements()}));
    std::vector<float> moved(before.size());
    for (size_t i = 0; i < before.size(); ++i) {
      const uint64_t bits = base::splitmix64(base::splitmix64(seed) + i);
      moved[i] =
          static_cast<float>(before[i] + 0.2 * (static_cast<double>(bits >> 11) * 0x1p-52 - 1.0));
    }
    const Tensor flat = p.value.reshape({p.value.elements()});
    if (flat.dtype == DType::kF64) {
      const std::vector<double> wide(moved.begin(), moved.end());
      copy(flat, host_view(std::span(wide)));
    } else {
      copy(flat, host_view(std::span(moved)));
    }
    ++seed;
  }
}

/// One training pass: everything that it leaves.
std::vector<Named> results_of(Device device, Precision precision, const ModelConfig& config,
                              int64_t micro_batch_tokens) {
  ModeBed bed(device, precision);
  const DType dtype = bed.exec.parameter_dtype();
  sparse::Tables tables(tiny_tables(), device, dtype, 3);
  Ranker ranker(config, tables, device, dtype, 5);
  perturb(bed, ranker.parameters());
  ranker.parameters().zero_grads(bed.exec.stream);
  const Pass pass = ranker.run(bed.exec, bagged_batch(numbered_batch(tiny_batch())),
                               {.micro_batch_tokens = micro_batch_tokens});
  std::vector<Named> all;
  all.push_back({"task losses", false, pass.task_losses});
  all.push_back({"logits", false, pass.logits});
  all.push_back({"predictions", false, {pass.predictions.begin(), pass.predictions.end()}});
  all.push_back({"labels", false, {pass.labels.begin(), pass.labels.end()}});
  double squares = 0;
  for (const Parameter& p : ranker.parameters().all()) {
    all.push_back({p.name, true, bed.values(p.grad.reshape({p.grad.elements()}))});
    for (const double g : all.back().values) squares += g * g;
  }
  EXPECT_NEAR(pass.gradient_squares, squares, 1e-6 * squares);
  for (size_t t = 0; t < pass.row_gradients.size(); ++t) {
    const Tensor& rows = pass.row_gradients[t];
    all.push_back({"rows of table " + std::to_string(t), true,
                   rows ? bed.values(rows) : std::vector<double>{}});
  }
  return all;
}

double largest(const std::vector<double>& values) {
  double most = 0;
  for (const double x : values) most = std::max(most, std::abs(x));
  return most;
}

std::vector<std::pair<std::string, ModelConfig>> variants() {
  std::vector<std::pair<std::string, ModelConfig>> all = {
      {"concat", tiny_config()}, {"gated", tiny_gated_config()}, {"masked", tiny_masked_config()}};
  ModelConfig off = tiny_config();
  off.identities = {.last_layer_targets = false, .distinct_rows = false, .action_codes = false};
  all.emplace_back("concat without identities", off);
  ModelConfig recompute = tiny_gated_config();
  recompute.recompute = {true, true, true};
  all.emplace_back("gated with recompute", recompute);
  all.emplace_back("semi-local", tiny_semilocal_config());
  ModelConfig truncated = tiny_config();
  truncated.layers = 3;
  truncated.truncation = {1, 2};
  all.emplace_back("truncated", truncated);
  truncated = tiny_masked_config();
  truncated.truncation = {1, 2};
  all.emplace_back("masked and truncated", truncated);
  all.emplace_back("numbers at the head", with_numbers(tiny_config(), false));
  all.emplace_back("numbers in tokens", with_numbers(tiny_config(), true));
  all.emplace_back("gated with numbers", with_numbers(tiny_gated_config(), true));
  for (const ModelConfig& config : {tiny_config(), with_numbers(tiny_gated_config(), false)}) {
    all.emplace_back("a head like all else", config).second.head_precision =
        HeadPrecision::kTraining;
  }
  all.emplace_back("bags", with_bags(tiny_config()));
  all.emplace_back("gated with bags", with_bags(tiny_gated_config()));
  all.emplace_back("bags without identities", with_bags(off));
  return all;
}

class GpuRankerTest : public ops::test::GpuTest {};

TEST_F(GpuRankerTest, FloatAgreesWithTheCpu) {
  for (const auto& [name, config] : variants()) {
    for (const int64_t cut : {int64_t{1} << 20, int64_t{12}}) {
      const auto cpu = results_of(Device::cpu(), Precision::kF32, config, cut);
      const auto gpu = results_of(Device::cuda(), Precision::kF32, config, cut);
      ASSERT_EQ(cpu.size(), gpu.size());
      // Gradients of one model differ in size by orders of magnitude, and small ones can be the
      // difference of large ones: the scale of rounding is that of the largest.
      double scale = 0;
      for (const Named& r : cpu) scale = std::max(scale, r.is_gradient ? largest(r.values) : 0);
      for (size_t i = 0; i < cpu.size(); ++i) {
        ASSERT_EQ(cpu[i].values.size(), gpu[i].values.size()) << name << " " << cpu[i].name;
        const double bound = 1e-4 * std::max(largest(cpu[i].values), 1e-2 * scale);
        EXPECT_LE(ops::test::largest_difference(cpu[i].values, gpu[i].values), bound)
            << name << ", cut " << cut << ": " << cpu[i].name;
      }
    }
  }
}

TEST_F(GpuRankerTest, Bf16ErrsLikeThePlainCpuForm) {
  for (const auto& [name, config] : variants()) {
    ModelConfig plain_config = config;
    plain_config.identities = {
        .last_layer_targets = false, .distinct_rows = false, .action_codes = false};
    const int64_t cut = int64_t{1} << 20;
    const auto exact = results_of(Device::cpu(), Precision::kF64, plain_config, cut);
    const auto plain = results_of(Device::cpu(), Precision::kBf16, plain_config, cut);
    const auto gpu = results_of(Device::cuda(), Precision::kBf16, config, cut);
    for (size_t i = 0; i < exact.size(); ++i) {
      ASSERT_EQ(exact[i].values.size(), gpu[i].values.size()) << name << " " << exact[i].name;
      const double error = ops::test::largest_difference(plain[i].values, exact[i].values);
      // Tensors of a handful of numbers: the plain form is often right by luck, so one rounding of
      // bf16 is added rather than a quarter of it.
      const double bound =
          (exact[i].is_gradient ? 3 : 2) * error + 0x1p-8 * largest(exact[i].values);
      EXPECT_LE(ops::test::largest_difference(gpu[i].values, exact[i].values), bound)
          << name << ": " << exact[i].name;
    }
  }
}

TEST_F(GpuRankerTest, RepeatedPassesGiveEqualBits) {
  for (const auto& [name, config] : variants()) {
    for (const Precision precision : {Precision::kF32, Precision::kBf16}) {
      const auto first = results_of(Device::cuda(), precision, config, 12);
      const auto second = results_of(Device::cuda(), precision, config, 12);
      for (size_t i = 0; i < first.size(); ++i) {
        EXPECT_EQ(first[i].values, second[i].values) << name << ": " << first[i].name;
      }
    }
  }
}

TEST_F(GpuRankerTest, EmptyBatchAndEvaluation) {
  ModeBed bed(Device::cuda(), Precision::kBf16);
  sparse::Tables tables(tiny_tables(), Device::cuda(), DType::kF32, 3);
  Ranker ranker(tiny_config(), tables, Device::cuda(), DType::kF32, 5);
  ranker.parameters().zero_grads(bed.exec.stream);
  EXPECT_EQ(ranker.run(bed.exec, tiny_batch({}, {}), {}).loss, 0);
  const Pass pass = ranker.run(bed.exec, tiny_batch(), {.training = false});
  EXPECT_GT(pass.loss, 0);
  EXPECT_FALSE(pass.row_gradients[0]);
}

// ---- preparing ----

/// All that a batch becomes, as far as the host sees it.
std::vector<std::vector<double>> prepared_arrays(Device device, const ModelConfig& config,
                                                 const Batch& batch) {
  sparse::Tables tables(tiny_tables(), device, DType::kF32, 3);
  Ranker ranker(config, tables, device, DType::kF32, 5);
  RankerBatch out;
  std::vector<std::vector<double>> all;
  const auto add = [&](const auto& values) { all.emplace_back(values.begin(), values.end()); };
  for (const Batch& b :
       {std::cref(batch), std::cref(batch)}) {  // in new memory, and in kept memory
    ranker.prepare(b, 12, sparse::Mode::kTraining, out);
    for (const auto& part : {out.event_offsets, out.candidate_offsets, out.sample_number,
                             out.event_time, out.candidate_time, out.event_action}) {
      add(out.block.span(part));
    }
    for (const auto& part : {out.item, out.row_of_item, out.input_index, out.action_code}) {
      add(out.block.span(part));
    }
    for (const RankerBatch::Tokens& t : out.micro_batches) {
      add(t.offsets);
      add(out.block.span(t.label_features));
      for (const auto& values : t.label_values) add(out.block.span(values));
    }
    add(out.labels);
    for (const sparse::TableId table : out.looked_up) add(out.ticket.slots(table));
  }
  return all;
}

TEST_F(GpuRankerTest, PreparesWhatTheCpuPrepares) {
  const auto full = [](Batch b) { return bagged_batch(numbered_batch(std::move(b))); };
  Batch decided = full(tiny_batch());  // an item has one artist, played or proposed
  const std::span<const int64_t> items = decided.column("candidate").values.span();
  for (size_t c = 0; c < items.size(); ++c) {
    decided.column("candidate_artist").values[static_cast<int64_t>(c)] = items[c] % 4;
  }
  const Batch contradicted = full(tiny_batch()), empty = full(tiny_batch({}, {}));
  for (const auto& [name, config] : variants()) {
    SCOPED_TRACE(name);
    for (const Batch& batch : {std::cref(decided), std::cref(contradicted), std::cref(empty)}) {
      EXPECT_EQ(prepared_arrays(Device::cuda(), config, batch),
                prepared_arrays(Device::cpu(), config, batch));
    }
  }
}

TEST(PreparedBatchTest, APreparedBatchRunsAsTheBatchItself) {
  ModeBed bed(Device::cpu(), Precision::kF32);
  sparse::Tables tables(tiny_tables(), Device::cpu(), DType::kF32, 3);
  Ranker ranker(tiny_config(), tables, Device::cpu(), DType::kF32, 5);
  const PassOptions options{.micro_batch_tokens = 12};
  const Pass direct = ranker.run(bed.exec, tiny_batch(), options);
  // Both are made before either runs, as when a loader is a step ahead; memory is used twice.
  RankerBatch first, second;
  for (int round = 0; round < 2; ++round) {
    ranker.prepare(tiny_batch(), options.micro_batch_tokens, sparse::Mode::kTraining, first);
    ranker.prepare(tiny_batch({1}, {1}), options.micro_batch_tokens, sparse::Mode::kTraining,
                   second);
    const Pass a = ranker.run(bed.exec, first, options);
    const Pass b = ranker.run(bed.exec, second, options);
    EXPECT_EQ(a.logits, direct.logits);
    EXPECT_EQ(a.labels, direct.labels);
    EXPECT_EQ(b.num_labels, 1);
  }
}

}  // namespace
}  // namespace segue::model
