// Features of several values in the ranker.

#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/test_util.h"
#include "model/model_test_util.h"
#include "model/ranker_test_util.h"

namespace segue::model {
namespace {

std::vector<ModelConfig> configs() {
  ModelConfig off = tiny_config();
  off.identities = {.last_layer_targets = false, .distinct_rows = false, .action_codes = false};
  ModelConfig paired = tiny_config();
  paired.tokens = TokenKind::kPaired;
  paired.labels = LabelKind::kEveryItem;
  paired.event_label = "event_label";
  paired.tasks.pop_back();
  return {tiny_config(), tiny_gated_config(), tiny_masked_config(), off, paired};
}

std::vector<double> results_of(const ModelConfig& config, const Batch& batch,
                               int64_t cut = 1 << 20) {
  TinyRanker f(config);
  const Pass pass = f.run(batch, {.micro_batch_tokens = cut});
  std::vector<double> all{pass.loss};
  all.insert(all.end(), pass.logits.begin(), pass.logits.end());
  for (const double g : f.ranker.parameters().grads().span<double>()) all.push_back(g);
  return all;
}

void set_all(Batch& batch, const std::vector<std::string>& columns, int64_t value) {
  for (const std::string& name : columns)
    std::ranges::fill(batch.column(name).values.span(), value);
}

TEST(RankerBags, GradientsMatchFiniteDifferences) {
  for (const ModelConfig& config : configs()) {
    TinyRanker f(with_bags(config));
    expect_gradients(f.ranker, f.bed.exec, bagged_batch(tiny_batch()));
  }
}

TEST(RankerBags, GradientsOfASampleSBagAlone) {
  ModelConfig config = with_bags(tiny_config());
  config.additional.pop_back();
  TinyRanker f(config);
  expect_gradients(f.ranker, f.bed.exec, bagged_batch(tiny_batch()));
}

TEST(RankerBags, IdentitiesAndMicroBatchesChangeNothing) {
  const Batch batch = bagged_batch(tiny_batch());
  const ModelConfig on = with_bags(tiny_config());
  ModelConfig off = on;
  off.identities = {.last_layer_targets = false, .distinct_rows = false, .action_codes = false};
  const std::vector<double> expected = results_of(on, batch);
  for (const std::vector<double>& found : {results_of(on, batch, 1), results_of(off, batch, 20)}) {
    ASSERT_EQ(found.size(), expected.size());
    for (size_t i = 0; i < found.size(); ++i) ASSERT_NEAR(found[i], expected[i], 1e-12) << i;
  }
}

/// 0 is no row: one value among absent ones is what a plain feature looks up, bit for bit.
TEST(RankerBags, OneOfSeveralIsAPlainFeature) {
  for (const ModelConfig& config : configs()) {
    Batch batch = bagged_batch(tiny_batch());
    for (const char* column : {"genre_1", "candidate_genre_1", "liked_1"}) {
      for (int64_t& id : batch.column(column).values.span()) id = std::max<int64_t>(id, 1);
    }
    set_all(batch, {"genre_2", "genre_3", "candidate_genre_2", "candidate_genre_3", "liked_2"}, 0);
    ModelConfig plain = config;
    plain.additional.push_back({"genre_1", "candidate_genre_1", "tag"});
    plain.contextual.push_back({"liked_1", "tag"});
    EXPECT_EQ(results_of(with_bags(config), batch), results_of(plain, batch));
  }
}

/// The order of values says nothing, and each of them counts.
TEST(RankerBags, RowsAreSummed) {
  const ModelConfig config = with_bags(tiny_config());
  const Batch batch = bagged_batch(tiny_batch());
  const std::vector<double> expected = results_of(config, batch);
  Batch turned = batch.slice(0, batch.num_samples());
  for (const std::string name : {"genre_", "candidate_genre_"}) {
    const std::span<const int64_t> first = batch.column(name + "1").values.span();
    const std::span<const int64_t> last = batch.column(name + "3").values.span();
    std::ranges::copy(last, turned.column(name + "1").values.span().begin());
    std::ranges::copy(first, turned.column(name + "3").values.span().begin());
  }
  const std::vector<double> found = results_of(config, turned);
  for (size_t i = 0; i < found.size(); ++i) ASSERT_NEAR(found[i], expected[i], 1e-12) << i;
  for (const char* column : {"genre_3", "candidate_genre_2", "liked_2"}) {
    Batch without = batch.slice(0, batch.num_samples());
    set_all(without, {column}, 0);
    EXPECT_NE(results_of(config, without), expected) << column;
  }
}

/// Where nothing has a value no row of the table gets a gradient, that of id 0 neither.
TEST(RankerBags, AbsentValuesTrainNothing) {
  ModelConfig config = with_bags(tiny_config());
  std::erase_if(config.contextual, [](const ContextualFeature& f) { return f.name == "tags"; });
  Batch batch = bagged_batch(tiny_batch());
  std::vector<std::string> columns;
  for (const Batch::Column& c : batch.columns) {
    if (c.name.find("genre") != std::string::npos || c.name.starts_with("liked")) {
      columns.push_back(c.name);
    }
  }
  ASSERT_EQ(columns.size(), 8u);
  set_all(batch, columns, 0);
  TinyRanker f(config);
  const Pass pass = f.run(batch);
  const Tensor& tags = pass.row_gradients[static_cast<size_t>(f.tables.id("tag"))];
  ASSERT_EQ(tags.size(0), 1) << "id 0 is looked up";
  for (const double g : tags.span<double>()) EXPECT_EQ(g, 0);
  for (const double x : pass.logits) EXPECT_TRUE(std::isfinite(x));
}

TEST(RankerBags, ResultsDoNotDependOnThreads) {
  TinyRanker f(with_bags(tiny_config()), DType::kF32);
  const Batch batch = bagged_batch(tiny_batch());
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

TEST(RankerBags, EmptyBatchesAndSamplesAreLegal) {
  TinyRanker f(with_bags(tiny_config()));
  EXPECT_EQ(f.run(bagged_batch(tiny_batch({}, {}))).loss, 0);
  EXPECT_EQ(f.run(bagged_batch(tiny_batch({2, 3}, {0, 0}))).num_labels, 0);
}

TEST(RankerBags, MistakesAreNamed) {
  using base::contains;
  ModelConfig config = with_bags(tiny_config());
  config.additional.back().values = 4;
  TinyRanker f(config);
  const std::string missing =
      base::message_of(ErrorCode::kNotFound, [&] { f.run(bagged_batch(tiny_batch())); });
  EXPECT_TRUE(contains(missing, "genre_4")) << missing;
  config.additional.back().values = 0;
  EXPECT_TRUE(contains(base::message_of(ErrorCode::kConfig, [&] { config.validate(); }),
                       "model.additional.values"));
  config = tiny_config();
  config.item.values = 2;
  EXPECT_TRUE(contains(base::message_of(ErrorCode::kConfig, [&] { config.validate(); }),
                       "an item is one id"));
  // Two features may not share a column.
  config = with_bags(tiny_config());
  config.additional.push_back({"genre_2", "candidate_genre_2", "tag"});
  EXPECT_TRUE(contains(base::message_of(ErrorCode::kConfig, [&] { TinyRanker twice(config); }),
                       "column `genre_2` is read by two features"));
}

}  // namespace
}  // namespace segue::model
