#include "model/ranker.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/bf16.h"
#include "base/error.h"
#include "model/dense_optimizer.h"
#include "model/flops.h"
#include "model/model_test_util.h"
#include "model/ranker_test_util.h"
#include "ops/test_util.h"

namespace segue::model {
namespace {

using ops::test::TestBed;

void check_gradients(const ModelConfig& config, const Batch& batch) {
  TinyRanker f(config);
  expect_gradients(f.ranker, f.bed.exec, batch);
}

TEST(RankerTest, GradientsMatchFiniteDifferences) { check_gradients(tiny_config(), tiny_batch()); }

TEST(RankerTest, GradientsWithoutIdentities) {
  ModelConfig c = tiny_config();
  c.identities = {.last_layer_targets = false, .distinct_rows = false, .action_codes = false};
  check_gradients(c, tiny_batch());
}

TEST(RankerTest, GradientsOfTheGatedInterleavedVariant) {
  check_gradients(tiny_gated_config(), tiny_batch());
}

TEST(RankerTest, GradientsOfInterleavedCandidatesWithAllMasks) {
  check_gradients(tiny_masked_config(), tiny_batch());
}

TEST(RankerTest, GradientsOfSemiLocalAttention) {
  check_gradients(tiny_semilocal_config(), tiny_batch({9, 0, 1, 6}));
}

TEST(RankerTest, PairsOfASampleAreThoseOfItsMask) {
  for (const ModelConfig& config : {tiny_config(), tiny_masked_config(), tiny_semilocal_config()}) {
    const TinyRanker f(config);
    const balance::SampleShape shape = f.ranker.work().shape;
    const attention::HstuMask mask = config.attention_mask();
    for (int64_t targets = 0; targets <= 5; ++targets) {
      const int64_t n = shape.contextual_tokens + 9 + targets;
      int64_t seen = 0;
      for (int64_t i = 0; i < n * n; ++i) seen += mask.allows(i / n, i % n, n, targets) ? 1 : 0;
      EXPECT_EQ(shape.pairs(n, targets), seen) << targets;
    }
  }
}

std::vector<double> all_results(TinyRanker& f, const Pass& pass) {
  std::vector<double> out{pass.loss};
  out.insert(out.end(), pass.logits.begin(), pass.logits.end());
  for (const double g : f.ranker.parameters().grads().span<double>()) out.push_back(g);
  for (const Tensor& t : pass.row_gradients) {
    if (t) out.insert(out.end(), t.span<double>().begin(), t.span<double>().end());
  }
  return out;
}

void expect_equal_results(const ModelConfig& a, const ModelConfig& b, int64_t cut) {
  TinyRanker fa(a);
  TinyRanker fb(b);
  const Batch batch = tiny_batch();
  const std::vector<double> expected = all_results(fa, fa.run(batch));
  const std::vector<double> found = all_results(fb, fb.run(batch, {.micro_batch_tokens = cut}));
  ASSERT_EQ(expected.size(), found.size());
  for (size_t i = 0; i < expected.size(); ++i) ASSERT_NEAR(found[i], expected[i], 1e-12) << i;
}

TEST(RankerTest, IdentitiesAndMicroBatchesChangeNothing) {
  const ModelConfig on = tiny_config();
  constexpr int64_t kOneSampleEach = 1;
  constexpr int64_t kTwoCuts = 20;
  constexpr int64_t kWhole = 1 << 20;
  ModelConfig c = on;
  c.identities.last_layer_targets = false;
  expect_equal_results(on, c, kWhole);
  c.identities.distinct_rows = false;
  expect_equal_results(on, c, kTwoCuts);
  c.identities.action_codes = false;
  expect_equal_results(on, c, kOneSampleEach);
  c = tiny_semilocal_config();
  c.identities.last_layer_targets = false;
  expect_equal_results(tiny_semilocal_config(), c, kWhole);
  c = on;
  c.recompute = {.normed_input = true, .uvqk = true, .gate = true};
  expect_equal_results(on, c, kOneSampleEach);
}

// Whatever the head computes in: scores with eight bits would be ties.
TEST(RankerTest, LogitsAreNotRounded) {
  ModelConfig config = tiny_config();
  for (const HeadPrecision head : {HeadPrecision::kFloat, HeadPrecision::kTraining}) {
    config.head_precision = head;
    TestBed bed(Precision::kBf16);
    sparse::Tables tables(tiny_tables(), Device::cpu(), DType::kF32, 3);
    Ranker ranker(config, tables, Device::cpu(), DType::kF32, 5);
    ranker.parameters().zero_grads(bed.exec.stream);
    const Pass pass = ranker.run(bed.exec, tiny_batch(), {});
    const auto fine = std::ranges::count_if(pass.logits, [](double logit) {
      return logit != static_cast<double>(round_to_bf16(static_cast<float>(logit)));
    });
    EXPECT_GT(fine, std::ssize(pass.logits) / 2);
  }
}

/// Events are predicted by tokens of both kinds that nothing later reaches.
ModelConfig causal_config(TokenKind tokens) {
  ModelConfig c = tiny_config();
  c.tokens = tokens;
  c.labels = LabelKind::kEveryItem;
  c.input_scale = InputScale::kOne;
  c.tasks.pop_back();
  return c;
}

TEST(RankerTest, GradientsOfCausalTokens) {
  for (const TokenKind tokens : {TokenKind::kMerged, TokenKind::kPaired}) {
    check_gradients(causal_config(tokens), tiny_batch());
  }
}

/// What an event's prediction may not depend on: what was done with it, and all that comes later.
TEST(RankerTest, NothingAtOrBehindAnEventReachesItsPrediction) {
  const Batch batch = tiny_batch({6, 9}, {1, 1});
  for (const TokenKind tokens : {TokenKind::kMerged, TokenKind::kPaired}) {
    for (const bool codes : {true, false}) {
      ModelConfig config = causal_config(tokens);
      config.identities.action_codes = codes;
      TinyRanker f(config);
      const std::vector<double> before = f.run(batch, {.training = false}).logits;
      for (int64_t e = 0; e < 15; ++e) {
        SCOPED_TRACE(e);
        const auto expect_same_up_to = [&](int64_t end, const Batch& changed) {
          const std::vector<double> after = f.run(changed, {.training = false}).logits;
          for (size_t i = 0; i < before.size(); ++i) {
            const bool fixed = static_cast<int64_t>(i % 15) < end;  // 15 events for each task
            EXPECT_TRUE(!fixed || after[i] == before[i]) << i;
          }
          const bool last = e == 5 || e == 14;  // of its sample
          EXPECT_TRUE(last || after != before);
        };
        Batch changed = batch.slice(0, 2);
        changed.column("action").values[e] ^= 3;
        expect_same_up_to(e + 1, changed);
        changed = batch.slice(0, 2);
        for (int64_t later = e; later < (e < 6 ? 6 : 15); ++later) {
          changed.column("item").values[later] = 19;
          changed.column("time").values[later] += 100'000;
        }
        expect_same_up_to(e, changed);
      }
    }
  }
}

/// Labels of some events alone: the loss is theirs, and so are the predictions.
TEST(RankerTest, EventsWithoutALabelAreNotPredicted) {
  const Batch batch = tiny_batch();
  ModelConfig config = causal_config(TokenKind::kPaired);
  const Pass every = TinyRanker(config).run(batch, {.training = false});
  std::vector<double> wanted;
  for (size_t i = 0; i < every.logits.size(); ++i) {
    if (i % 11 % 3 == 1) wanted.push_back(every.logits[i]);  // 11 events for each task
  }
  config.event_label = "event_label";
  TinyRanker some(config);
  for (const int64_t tokens : {1000, 12}) {
    const Pass pass = some.run(batch, {.training = false, .micro_batch_tokens = tokens});
    EXPECT_EQ(pass.num_labels, 4);
    ASSERT_EQ(pass.logits.size(), wanted.size());
    for (size_t i = 0; i < wanted.size(); ++i) EXPECT_NEAR(pass.logits[i], wanted[i], 1e-12);
  }
  check_gradients(config, batch);
}

TEST(RankerTest, KeysMayBeginAsQueries) {
  ModelConfig config = tiny_config();
  config.attention.key_init = KeyInit::kAsQueries;
  sparse::Tables tables(tiny_tables(), Device::cpu(), DType::kF32, 3);
  Ranker tied(config, tables, Device::cpu(), DType::kF32, 5);
  Ranker plain(tiny_config(), tables, Device::cpu(), DType::kF32, 5);
  const std::string name = "_hstu_transducer._stu_module._stu_layers.1._uvqk_weight";
  const Tensor a = tied.parameters().get(name).value, b = plain.parameters().get(name).value;
  const int64_t qk = config.heads * config.qk_dim, q = a.size(1) - 2 * qk;
  for (int64_t r = 0; r < a.size(0); ++r) {
    for (int64_t c = 0; c < a.size(1); ++c) {
      const int64_t from = c < q + qk ? c : c - qk;
      EXPECT_EQ(a.ptr<float>()[r * a.size(1) + c], b.ptr<float>()[r * a.size(1) + from]);
    }
  }
}

TEST(RankerTest, EmptyBatchesAndSamplesAreLegal) {
  TinyRanker f(tiny_config());
  const Pass none = f.run(tiny_batch({}, {}));
  EXPECT_EQ(none.loss, 0);
  EXPECT_EQ(none.tokens, 0);
  for (const double g : f.ranker.parameters().grads().span<double>()) EXPECT_EQ(g, 0);

  const Pass no_candidates = f.run(tiny_batch({2, 3}, {0, 0}));
  EXPECT_EQ(no_candidates.loss, 0);
  EXPECT_EQ(no_candidates.num_labels, 0);
}

TEST(RankerTest, EvaluationHasNoDropoutAndNoGradients) {
  TinyRanker f(tiny_config());
  const Batch batch = tiny_batch();
  const Pass first = f.run(batch, {.training = false});
  f.bed.exec.dropout_key = base::philox_key(9, 9);
  const Pass second = f.run(batch, {.training = false});
  EXPECT_EQ(first.logits, second.logits);
  EXPECT_NE(f.run(batch).logits, first.logits);
  for (const Tensor& t : first.row_gradients) EXPECT_FALSE(t);
}

TEST(RankerTest, DropoutFollowsTheSampleNotItsPlace) {
  ModelConfig config = tiny_config();
  TinyRanker f(config);
  const Batch batch = tiny_batch();
  const std::vector<double> whole = f.run(batch).logits;
  const Batch part = batch.slice(2, 2);
  const Pass alone = f.run(part);
  const size_t labels = static_cast<size_t>(alone.num_labels);
  for (size_t i = 0; i < labels; ++i) EXPECT_NEAR(alone.logits[i], whole[3 + i], 1e-12);
}

TEST(RankerTest, ResultsDoNotDependOnThreads) {
  TinyRanker f(tiny_config(), DType::kF32);
  const Batch batch = tiny_batch();
  ops::test::expect_independent_of_threads([&] {
    const Pass pass = f.run(batch);
    std::vector<uint8_t> bytes = ops::test::bytes_of(f.ranker.parameters().grads());
    for (const Tensor& t : pass.row_gradients) {
      const auto more = ops::test::bytes_of(t);
      bytes.insert(bytes.end(), more.begin(), more.end());
    }
    return bytes;
  });
}

TEST(RankerTest, TooLongSampleIsAClearError) {
  ModelConfig config = tiny_config();
  config.max_seq_len = 8;
  TinyRanker f(config);
  try {
    f.run(tiny_batch());
    FAIL() << "no error";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kInvalidArgument);
    EXPECT_NE(std::string(e.what()).find("model.max_seq_len"), std::string::npos);
  }
}

TEST(RankerTest, PresetHasTheReferencesParameters) {
  Preset p = preset("yambda-5b");
  for (sparse::TableConfig& t : p.tables.tables) t.rows = 2;  // 600 GB otherwise
  sparse::Tables tables(p.tables, Device::cpu(), DType::kF32, 1);
  const Ranker ranker(p.model, tables, Device::cpu(), DType::kF32, 1);
  EXPECT_EQ(ranker.parameters().count(), 15'243'057);
  EXPECT_EQ(ranker.parameters().all().size(), 69u);
}

TEST(FlopsTest, DenseCountOfThePreset) {
  EXPECT_NEAR(dense_formula_flops(preset("yambda-5b").model), 315.7e9, 0.05e9);
}

TEST(FlopsTest, AWindowCountsThePairsThatItLeaves) {
  ModelConfig c = tiny_config();
  const std::vector<int64_t> offsets{0, 30};
  const auto pair_flop = 2.0 * static_cast<double>(c.layers * c.heads * (c.qk_dim + c.v_dim));
  const double all = formula_flops(c, offsets, false);
  c.attention.window = 4;
  c.attention.global_prefix = 5;
  const auto left = static_cast<double>(c.attention_mask().pairs(30, 1));
  EXPECT_NEAR(all - formula_flops(c, offsets, false), pair_flop * (30 * 30 / 2.0 - left), 1e-6);
}

TEST(FlopsTest, LayersAddUpToTheModel) {
  ModelConfig c = tiny_config();
  const std::vector<int64_t> offsets{0, 30, 30, 47};
  const double head = 2.0 * static_cast<double>(c.tasks.size()) * static_cast<double>(c.dim);
  for (const bool backward : {false, true}) {
    double sum = (backward ? 3 : 1) * head * 3;  // of three samples
    for (int64_t l = 0; l < c.layers; ++l) sum += layer_flops(c, l, offsets, backward);
    EXPECT_NEAR(sum / formula_flops(c, offsets, backward), 1, 1e-12);
  }
}

/// Values that were published with the formula, or follow from it by hand.
TEST(FlopsTest, GatedLayersCountAsPublished) {
  ModelConfig c;
  c.layer = LayerKind::kGated;
  c.dim = 512;
  c.heads = 4;
  c.qk_dim = c.v_dim = 128;
  c.layers = 3;
  const LayerFlops one = gated_layer_flops(c, {1000, 6, 200}, true);
  EXPECT_EQ(one.attention, 3'476'350'976.0);
  EXPECT_EQ(one.products, 7'864'320'000.0);
  EXPECT_EQ(one.other, 3'072'000.0);
  EXPECT_EQ(3 * one.total(), 34'031'228'928.0);
  const LayerFlops forward = gated_layer_flops(c, {1000, 6, 200}, false);
  EXPECT_EQ(forward.attention, one.attention / 3.5);
  EXPECT_EQ(forward.products, one.products / 3);

  c.dim = 1024;
  c.qk_dim = c.v_dim = 256;
  c.layers = 8;
  c.max_seq_len = 4099;
  c.attention.contextual_mask = true;
  c.contextual = {{"a", "a"}, {"b", "b"}, {"c", "c"}};
  std::vector<int64_t> offsets;
  for (int64_t b = 0; b <= 32; ++b) offsets.push_back(b * 4099);
  EXPECT_NEAR(formula_flops(c, offsets, true), 63.8925e12, 0.00005e12);
  EXPECT_NEAR(32 * dense_formula_flops(c), formula_flops(c, offsets, true), 1);
  const LayerFlops part = gated_layer_flops(c, {4099, 3, 0}, true);
  EXPECT_NEAR(8 * 32 * part.products, (26.41 + 6.60) * 1e12, 0.01e12);
  EXPECT_NEAR(8 * 32 * part.attention, 30.88e12, 0.005e12);
  EXPECT_NEAR(8 * 32 * part.other, 0.006e12, 0.0005e12);
  // Done twice: the product of u, v, q and k, a third of what it takes in all.
  EXPECT_EQ(recomputed_flops(c, offsets), 0);
  c.recompute.gate = c.recompute.normed_input = true;
  EXPECT_EQ(recomputed_flops(c, offsets), 0);
  c.recompute.uvqk = true;
  EXPECT_NEAR(recomputed_flops(c, offsets), 26.41e12 / 3, 0.005e12);
  // Tokens in front that see no more than others are history.
  c.attention.contextual_mask = false;
  const std::vector<int64_t> single{0, 4099};
  EXPECT_EQ(formula_flops(c, single, true), 8 * gated_layer_flops(c, {4099, 0, 0}, true).total());
}

TEST(ConfigTest, ImpossibleCombinationsAreRefused) {
  ModelConfig c = tiny_config();
  c.tasks.clear();
  EXPECT_THROW(c.validate(), Error);
  c = tiny_semilocal_config();
  c.attention.window = 0;
  EXPECT_THROW(c.validate(), Error) << "a prefix that would change nothing";
  c = tiny_config();
  c.dropout = 1;
  EXPECT_THROW(c.validate(), Error);
  EXPECT_THROW(preset("yambda"), Error);
}

TEST(DenseOptimizerTest, WarmupStartsAtZeroAndIsLinear) {
  OptimizerConfig c;
  c.lr = 1e-6;
  c.sparse_lr = 1e-6;
  c.warmup_steps = 24000;
  EXPECT_EQ(learning_rates(c, 0).dense, 0);
  EXPECT_NEAR(learning_rates(c, 19).dense, 7.9167e-10, 1e-14);
  EXPECT_EQ(learning_rates(c, 24000).sparse, 1e-6);
  EXPECT_EQ(learning_rates(c, 30000).dense, 1e-6);
}

TEST(DenseOptimizerTest, ClipsByTheGlobalNorm) {
  TestBed bed(Precision::kF64);
  Parameters parameters;
  parameters.add("a", {2}, ops::Init::kZeros);
  parameters.allocate(Device::cpu(), DType::kF64, 1);
  parameters.grads().ptr<double>()[0] = 3;
  parameters.grads().ptr<double>()[1] = 4;
  OptimizerConfig c;
  c.lr = 0.1;
  const DenseUpdate u = update_dense(bed.exec, c, 0, parameters);
  EXPECT_DOUBLE_EQ(u.gradient_norm, 5);
  EXPECT_NEAR(u.clip_scale, 0.2, 1e-6);
  EXPECT_NEAR(parameters.states()[0].ptr<double>()[0], 0.05 * 3 * u.clip_scale, 1e-12);
}

}  // namespace
}  // namespace segue::model
