// Numeric features of events and candidates in the ranker.

#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/test_util.h"
#include "model/model_test_util.h"
#include "model/ranker_test_util.h"

namespace segue::model {
namespace {

TEST(RankerNumbers, GradientsMatchFiniteDifferences) {
  for (const bool tokens : {false, true}) {
    for (const ModelConfig& config : {tiny_config(), tiny_gated_config(), tiny_masked_config()}) {
      SCOPED_TRACE(tokens);
      TinyRanker f(with_numbers(config, tokens));
      expect_gradients(f.ranker, f.bed.exec, numbered_batch(tiny_batch()));
    }
  }
}

TEST(RankerNumbers, GradientsWithFormsAndOutcomes) {
  for (const ModelConfig& config : {tiny_config(), tiny_gated_config(), tiny_masked_config()}) {
    TinyRanker f(with_outcomes(config));
    expect_gradients(f.ranker, f.bed.exec, numbered_batch(tiny_batch()));
  }
  // Outcomes alone: the head sees no number.
  ModelConfig alone = with_outcomes(tiny_config());
  alone.numeric.columns.clear();
  alone.numeric.forms.clear();
  TinyRanker f(alone);
  expect_gradients(f.ranker, f.bed.exec, numbered_batch(tiny_batch()));
}

/// What came of an event changes no prediction of it, nor of those before it.
TEST(RankerNumbers, OutcomesShowOnlyLater) {
  for (const TokenKind tokens : {TokenKind::kMerged, TokenKind::kPaired, TokenKind::kInterleaved}) {
    SCOPED_TRACE(static_cast<int>(tokens));
    ModelConfig config = with_outcomes(tiny_config());
    config.tokens = tokens;
    config.labels = LabelKind::kEveryItem;
    config.tasks.resize(1);
    const Batch batch = numbered_batch(tiny_batch());
    TinyRanker f(config);
    const std::vector<double> plain = f.run(batch, {.training = false}).logits;
    const std::span<const int64_t> offsets = batch.offsets(batch.float_column("watched"));
    bool seen = false;
    for (int64_t e = 0; e < offsets.back(); ++e) {
      Batch other = batch.slice(0, batch.num_samples());
      other.float_column("watched").values[e] = 5;
      const std::vector<double> logits = f.run(other, {.training = false}).logits;
      ASSERT_EQ(std::ssize(logits), offsets.back());
      for (int64_t label = 0; label < std::ssize(logits); ++label) {
        const auto l = static_cast<size_t>(label);
        const bool same_sample =
            std::ranges::upper_bound(offsets, label) == std::ranges::upper_bound(offsets, e);
        if (label <= e || !same_sample) {
          EXPECT_EQ(logits[l], plain[l]) << "event " << e << ", prediction of " << label;
        } else {
          seen = seen || logits[l] != plain[l];
        }
      }
    }
    EXPECT_TRUE(seen) << "later predictions do see it";
  }
}

/// Labels of some events alone, at tokens that nothing later reaches.
TEST(RankerNumbers, GradientsWhereSomeEventsArePredicted) {
  for (const TokenKind tokens : {TokenKind::kMerged, TokenKind::kPaired}) {
    ModelConfig config = with_numbers(tiny_config(), true);
    config.tokens = tokens;
    config.labels = LabelKind::kEveryItem;
    config.event_label = "event_label";
    config.tasks.pop_back();
    const Batch batch = numbered_batch(tiny_batch());
    TinyRanker f(config);
    expect_gradients(f.ranker, f.bed.exec, batch);
    const std::vector<double> whole = f.run(batch, {.training = false}).logits;
    const std::vector<double> cut =
        f.run(batch, {.training = false, .micro_batch_tokens = 12}).logits;
    ASSERT_EQ(cut.size(), whole.size());
    for (size_t i = 0; i < cut.size(); ++i) EXPECT_NEAR(cut[i], whole[i], 1e-12);
  }
}

std::vector<double> results_of(const ModelConfig& config, const Batch& batch, int64_t cut) {
  TinyRanker f(config);
  const Pass pass = f.run(batch, {.micro_batch_tokens = cut});
  std::vector<double> all{pass.loss};
  all.insert(all.end(), pass.logits.begin(), pass.logits.end());
  for (const double g : f.ranker.parameters().grads().span<double>()) all.push_back(g);
  return all;
}

TEST(RankerNumbers, IdentitiesAndMicroBatchesChangeNothing) {
  const Batch batch = numbered_batch(tiny_batch());
  for (const bool tokens : {false, true}) {
    const ModelConfig on = with_numbers(tiny_config(), tokens);
    ModelConfig off = on;
    off.identities = {.last_layer_targets = false, .distinct_rows = false, .action_codes = false};
    const std::vector<double> expected = results_of(on, batch, 1 << 20);
    for (const std::vector<double>& found :
         {results_of(on, batch, 1), results_of(off, batch, 20)}) {
      ASSERT_EQ(found.size(), expected.size());
      for (size_t i = 0; i < found.size(); ++i) ASSERT_NEAR(found[i], expected[i], 1e-12) << i;
    }
  }
}

/// A candidate's numbers reach its own prediction, those of the history only through tokens.
TEST(RankerNumbers, EachIsSeenWhereItShouldBe) {
  for (const bool tokens : {false, true}) {
    TinyRanker f(with_numbers(tiny_config(), tokens));
    const Batch batch = numbered_batch(tiny_batch());
    const std::vector<double> plain = f.run(batch, {.training = false}).logits;
    const auto changed = [&](const std::string& column, int64_t place) {
      Batch other = batch.slice(0, batch.num_samples());
      other.float_column(column).values[place] += 1;
      const std::vector<double> logits = f.run(other, {.training = false}).logits;
      std::vector<size_t> differing;  // labels of the first task
      for (size_t i = 0; i < 7; ++i) {
        if (logits[i] != plain[i]) differing.push_back(i);
      }
      return differing;
    };
    EXPECT_EQ(changed("item_candidate_gap", 2), std::vector<size_t>{2});
    EXPECT_EQ(changed("gap", 0), tokens ? std::vector<size_t>{0} : std::vector<size_t>{});
  }
}

TEST(RankerNumbers, OutcomesNeedTokensAndNamesOfTheirOwn) {
  ModelConfig config = with_outcomes(tiny_config());
  config.validate();
  config.numeric.tokens = false;
  EXPECT_TRUE(base::contains(base::message_of(ErrorCode::kConfig, [&] { config.validate(); }),
                             "tokens = true"));
  config.numeric.tokens = true;
  config.numeric.outcomes.push_back("gap");
  EXPECT_TRUE(base::contains(base::message_of(ErrorCode::kConfig, [&] { config.validate(); }),
                             "`gap` twice"));
}

TEST(RankerNumbers, ModelsWithoutAnyAreWhatTheyWere) {
  const ModelConfig config = tiny_config();
  ModelConfig unused = config;
  unused.numeric.hidden = 9;
  unused.numeric.tokens = true;
  EXPECT_EQ(results_of(config, tiny_batch(), 20), results_of(unused, tiny_batch(), 20));
}

TEST(RankerNumbers, WrongColumnsAreRefused) {
  TinyRanker f(with_numbers(tiny_config(), true));
  const std::string missing = base::message_of(ErrorCode::kNotFound, [&] { f.run(tiny_batch()); });
  EXPECT_TRUE(base::contains(missing, "price"));
  Batch b = numbered_batch(tiny_batch());
  b.float_column("gap").group = 1;
  b.float_column("gap").values.resize(b.group("candidate").offsets[4]);
  const std::string lengths = base::message_of(ErrorCode::kInvalidArgument, [&] { f.run(b); });
  EXPECT_TRUE(base::contains(lengths, "column `gap` has other lengths than `item`"));
}

}  // namespace
}  // namespace segue::model
