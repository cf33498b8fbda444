// Layers that work on the newest tokens only.

#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/test_util.h"
#include "model/flops.h"
#include "model/model_test_util.h"
#include "model/ranker_test_util.h"

namespace segue::model {
namespace {

Batch long_batch() { return tiny_batch({9, 0, 3, 6}, {1, 2, 3, 1}); }

ModelConfig truncated(ModelConfig c, int64_t from_layer, int64_t events) {
  c.layers = 3;
  c.truncation = {from_layer, events};
  return c;
}

void check_gradients(const ModelConfig& config) {
  TinyRanker f(config);
  expect_gradients(f.ranker, f.bed.exec, long_batch());
}

TEST(RankerTruncationTest, GradientsMatchFiniteDifferences) {
  check_gradients(truncated(tiny_config(), 1, 2));
}

TEST(RankerTruncationTest, GradientsWhereOnlyTheLastLayerIsTruncated) {
  check_gradients(truncated(tiny_config(), 2, 4));
}

TEST(RankerTruncationTest, GradientsWithoutIdentities) {
  ModelConfig c = truncated(tiny_config(), 2, 3);
  c.identities = {.last_layer_targets = false, .distinct_rows = false, .action_codes = false};
  check_gradients(c);
}

TEST(RankerTruncationTest, GradientsWithTwoTokensAnEventAndAllMasks) {
  check_gradients(truncated(tiny_masked_config(), 1, 2));
}

TEST(RankerTruncationTest, GradientsWithAGlobalPrefix) {
  check_gradients(truncated(tiny_semilocal_config(), 1, 3));
}

std::vector<double> results(const ModelConfig& config, int64_t cut = 1 << 20) {
  TinyRanker f(config);
  const Pass pass = f.run(long_batch(), {.micro_batch_tokens = cut});
  std::vector<double> all = pass.logits;
  for (const double g : f.ranker.parameters().grads().span<double>()) all.push_back(g);
  for (const Tensor& t : pass.row_gradients) {
    if (t) all.insert(all.end(), t.span<double>().begin(), t.span<double>().end());
  }
  return all;
}

void expect_near(const std::vector<double>& a, const std::vector<double>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], 1e-12) << i;
}

TEST(RankerTruncationTest, HistoriesThatFitAreNotTouched) {
  EXPECT_EQ(results(truncated(tiny_config(), 1, 9)), results(truncated(tiny_config(), 0, 0)));
  EXPECT_NE(results(truncated(tiny_config(), 1, 8)), results(truncated(tiny_config(), 0, 0)));
}

TEST(RankerTruncationTest, IdentitiesAndMicroBatchesChangeNothing) {
  const ModelConfig on = truncated(tiny_config(), 1, 2);
  ModelConfig off = on;
  off.identities = {.last_layer_targets = false, .distinct_rows = false, .action_codes = false};
  expect_near(results(on), results(off, 20));
  ModelConfig recompute = on;
  recompute.recompute = {.normed_input = true, .uvqk = true, .gate = true};
  expect_near(results(on), results(recompute, 1));
}

/// Where the layers before do nothing, a target of a truncated last layer sees what a window of the
/// kept events and a prefix of the contextual tokens leave.
TEST(RankerTruncationTest, IsAWindowOfTheTargetsInTheLastLayer) {
  ModelConfig cut = tiny_config(), window = tiny_config();
  cut.truncation = {1, 3};
  window.attention.window = 3;
  window.attention.global_prefix = window.contextual_tokens();
  std::vector<double> logits[2];
  for (const ModelConfig* config : {&cut, &window}) {
    TinyRanker f(*config);
    for (Parameter& p : f.ranker.parameters().all()) {
      if (p.name.find("_stu_layers.0._output_weight") != std::string::npos) zero(p.value);
    }
    logits[config == &window] = f.run(long_batch()).logits;
  }
  ASSERT_EQ(logits[0].size(), 7u * 3);
  expect_near(logits[0], logits[1]);
}

TEST(RankerTruncationTest, KeptTokensAreContextNewestEventsAndTargets) {
  ModelConfig c = truncated(tiny_masked_config(), 1, 2);  // three contextual tokens, two an event
  const auto kept = [&](int64_t events, int64_t targets) {
    return c.kept_tokens(c.sample_tokens(events, targets), targets);
  };
  EXPECT_EQ(kept(5, 4).first, 3);
  EXPECT_EQ(kept(5, 4).dropped, 6);
  EXPECT_EQ(kept(2, 1).dropped, 0);
  EXPECT_EQ(kept(0, 1).dropped, 0);
  c.attention.global_prefix = 5;
  EXPECT_EQ(kept(5, 4).first, 5);
  EXPECT_EQ(kept(5, 4).dropped, 4);
}

TEST(RankerTruncationTest, FlopsAreThoseOfTheTokensThatAreLeft) {
  const ModelConfig whole = truncated(tiny_config(), 0, 0), cut = truncated(tiny_config(), 1, 4);
  const int64_t tokens = whole.sample_tokens(20, 1), left = whole.sample_tokens(4, 1);
  const std::vector<int64_t> all{0, tokens}, few{0, left}, none{0, 0};
  for (const bool backward : {false, true}) {
    const double head = formula_flops(whole, none, backward);
    const double expected = (formula_flops(whole, all, backward) - head) / 3 +
                            2 * (formula_flops(whole, few, backward) - head) / 3 + head;
    EXPECT_NEAR(formula_flops(cut, all, backward), expected, 1e-9 * expected);
    EXPECT_EQ(formula_flops(cut, few, backward), formula_flops(whole, few, backward));
  }
}

TEST(RankerTruncationTest, WrongSettingsSayWhatToDo) {
  const auto message = [](ModelConfig c, int64_t from_layer, int64_t events) {
    c.truncation = {from_layer, events};
    return base::message_of(ErrorCode::kConfig, [&] { c.validate(); });
  };
  EXPECT_TRUE(base::contains(message(tiny_config(), 2, 5), "none of the layers 1 to 1"));
  EXPECT_TRUE(base::contains(message(tiny_config(), 1, 0), "needs both"));
  EXPECT_TRUE(base::contains(message(tiny_config(), 0, 7), "needs both"));
  EXPECT_TRUE(base::contains(message(tiny_gated_config(), 1, 7), "every_item"));
}

}  // namespace
}  // namespace segue::model
