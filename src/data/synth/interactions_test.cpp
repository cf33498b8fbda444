#include "data/synth/interactions.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/parallel.h"
#include "base/test_util.h"

namespace segue::data {
namespace {

using base::contains;
using base::message_of;

InteractionConfig small_config() {
  return {.users = 50, .items = 80, .dense = 5, .samples = 4'000, .held_out = 0.25};
}

std::vector<float> labels_of(const Batch& batch) {
  const std::span<const int64_t> labels = batch.column("label").values.span();
  return {labels.begin(), labels.end()};
}

double log_loss(const std::vector<float>& predictions, const std::vector<float>& labels) {
  double sum = 0;
  for (size_t i = 0; i < labels.size(); ++i) {
    const double p = std::clamp(static_cast<double>(predictions[i]), 1e-6, 1 - 1e-6);
    sum -= labels[i] > 0.5f ? std::log(p) : std::log(1 - p);
  }
  return sum / static_cast<double>(labels.size());
}

TEST(InteractionsTest, ASampleDependsOnSeedAndNumberAlone) {
  const Interactions log(small_config(), 7);
  Batch whole, part;
  log.fill(0, 4'000, whole);
  whole.validate();
  log.fill(1'234, 500, 1'234, 4'000, part);
  part.validate();
  EXPECT_TRUE(part == whole.slice(1'234, 500));
  log.fill(4'000, 0, part);
  part.validate();
  EXPECT_EQ(part.num_samples(), 0);

  Batch again, other;
  Interactions(small_config(), 7).fill(0, 4'000, again);
  EXPECT_TRUE(again == whole);
  Interactions(small_config(), 8).fill(0, 4'000, other);
  EXPECT_FALSE(other == whole);
}

TEST(InteractionsTest, BitsDoNotDependOnThreads) {
  const int before = base::num_threads();
  const Interactions log(small_config(), 7);
  Batch one, three;
  base::set_num_threads(1);
  log.fill(0, 1'000, one);
  base::set_num_threads(3);
  log.fill(0, 1'000, three);
  base::set_num_threads(before);
  EXPECT_TRUE(one == three);
}

TEST(InteractionsTest, ColumnsAreThoseOfTheContract) {
  const Interactions log(small_config(), 3);
  Batch batch;
  log.fill(10, 200, 30, 1'000, batch);
  EXPECT_EQ(batch.global_samples, 1'000);
  EXPECT_EQ(batch.sample_index[0], 30);
  EXPECT_EQ(batch.sample_index[199], 229);
  for (int64_t i = 0; i < 200; ++i) {
    EXPECT_LT(batch.column("user_id").values[i], 50);
    EXPECT_LT(batch.column("item_id").values[i], 80);
    EXPECT_LE(batch.column("label").values[i], 1);
    for (const char* name : {"user_id", "item_id", "label"}) {
      EXPECT_GE(batch.column(name).values[i], 0);
      EXPECT_EQ(batch.offsets(batch.column(name))[static_cast<size_t>(i)], i);
    }
    EXPECT_EQ(batch.offsets(batch.float_column("dense"))[static_cast<size_t>(i)], 5 * i);
  }
  const float* memory = batch.float_column("dense").values.data();
  log.fill(500, 200, batch);
  EXPECT_EQ(batch.float_column("dense").values.data(), memory);
}

/// Numbers of users, items, features and logits, each against what it should be, within 5 standard
/// errors.
TEST(InteractionsTest, NumbersAreDistributedAsTheyShouldBe) {
  constexpr int64_t kSamples = 100'000;
  InteractionConfig config;
  config.samples = kSamples;
  const Interactions log(config, 5);
  Batch batch;
  log.fill(0, kSamples, batch);

  const auto n = static_cast<double>(kSamples);
  double users = 0, items = 0;
  for (const int64_t id : batch.column("user_id").values.span()) users += static_cast<double>(id);
  for (const int64_t id : batch.column("item_id").values.span()) items += static_cast<double>(id);
  EXPECT_NEAR(users / n, 999.5, 5 * 2'000 / std::sqrt(12 * n));
  EXPECT_NEAR(items / n, 2'499.5, 5 * 5'000 / std::sqrt(12 * n));

  double sum = 0, squares = 0;
  const std::span<const float> dense = batch.float_column("dense").values.span();
  for (const float x : dense) {
    sum += static_cast<double>(x);
    squares += static_cast<double>(x) * static_cast<double>(x);
  }
  const auto values = static_cast<double>(dense.size());
  EXPECT_NEAR(sum / values, 0, 5 / std::sqrt(values));
  EXPECT_NEAR(squares / values, 1, 5 * std::sqrt(2 / values));

  // Users and items are few enough that their factors scatter more than samples do.
  double mean = 0, variance = 0;
  for (const float p : log.probabilities(batch)) {
    const double logit = std::log(static_cast<double>(p) / (1 - static_cast<double>(p)));
    mean += logit / n;
    variance += (logit + 1) * (logit + 1) / n;
  }
  EXPECT_NEAR(mean, -1, 0.1);
  EXPECT_NEAR(variance, 5, 1.2);  // 4 of u . v; of w . x sum(w^2), 1 +- sqrt(2 / 16)
}

TEST(InteractionsTest, LabelsComeTrueWithTheirProbabilities) {
  constexpr int64_t kSamples = 60'000;
  InteractionConfig config;
  config.samples = kSamples;
  const Interactions log(config, 11);
  Batch batch;
  log.fill(0, kSamples, batch);
  const std::vector<float> p = log.probabilities(batch), labels = labels_of(batch);
  constexpr size_t kBins = 10;
  double expected[kBins] = {}, variance[kBins] = {}, positive[kBins] = {};
  for (size_t i = 0; i < p.size(); ++i) {
    const double q = static_cast<double>(p[i]);
    const auto bin = std::min(kBins - 1, static_cast<size_t>(q * kBins));
    expected[bin] += q;
    variance[bin] += q * (1 - q);
    positive[bin] += static_cast<double>(labels[i]);
  }
  for (size_t bin = 0; bin < kBins; ++bin) {
    EXPECT_GT(variance[bin], 100) << bin;  // every bin says something
    EXPECT_NEAR(positive[bin], expected[bin], 4.5 * std::sqrt(variance[bin])) << bin;
  }
}

TEST(InteractionsTest, MeansAreThoseOfTheTrainingPart) {
  const Interactions log(small_config(), 21);
  ASSERT_EQ(log.num_train(), 3'000);
  const InteractionMeans means(log);
  Batch train, held_out;
  log.fill(0, 3'000, train);
  log.fill(3'000, 1'000, held_out);
  const auto mean_of = [&](const char* column, int64_t id) {
    double samples = 0, positive = 0;
    for (int64_t i = 0; i < train.num_samples(); ++i) {
      if (train.column(column).values[i] != id) continue;
      ++samples;
      positive += static_cast<double>(train.column("label").values[i]);
    }
    return static_cast<float>(positive / samples);
  };
  const std::vector<float> by_user = means.by_user(held_out), by_item = means.by_item(held_out);
  ASSERT_EQ(by_user.size(), 1'000u);
  for (int64_t i = 0; i < 1'000; i += 37) {
    const auto at = static_cast<size_t>(i);
    EXPECT_EQ(by_user[at], mean_of("user_id", held_out.column("user_id").values[i]));
    EXPECT_EQ(by_item[at], mean_of("item_id", held_out.column("item_id").values[i]));
  }
}

TEST(InteractionsTest, AnIdWithoutLabelsIsPredictedByTheMeanOfAll) {
  // Far more users than training samples.
  const Interactions log({.users = 100'000, .items = 3, .dense = 1, .samples = 200}, 1);
  const InteractionMeans means(log);
  Batch held_out;
  log.fill(log.num_train(), 20, held_out);
  for (const float p : means.by_user(held_out)) {
    EXPECT_EQ(p, static_cast<float>(means.of_all()));
  }
  // Nothing to train on at all.
  const InteractionConfig all_held_out{
      .users = 4, .items = 4, .dense = 1, .samples = 2, .held_out = 0.9};
  EXPECT_EQ(InteractionMeans(Interactions(all_held_out, 1)).of_all(), 0.5);
}

/// Factors are symmetric around 0, so means by user or item tell little: what there is to learn is
/// how users and items meet.
TEST(InteractionsTest, TheOracleBeatsTheMeans) {
  const Interactions log(
      {.users = 200, .items = 300, .dense = 16, .samples = 60'000, .held_out = 0.25}, 2);
  const InteractionMeans means(log);
  Batch train, held_out;
  log.fill(0, log.num_train(), train);
  log.fill(log.num_train(), 15'000, held_out);
  const auto loss_of_all = [&](const std::vector<float>& labels) {
    return log_loss(std::vector<float>(labels.size(), static_cast<float>(means.of_all())), labels);
  };
  // On their own samples, means of parts are never worse than the mean of the whole.
  const std::vector<float> trained = labels_of(train), labels = labels_of(held_out);
  EXPECT_LT(log_loss(means.by_user(train), trained), loss_of_all(trained));
  EXPECT_LT(log_loss(means.by_item(train), trained), loss_of_all(trained));
  const double oracle = log_loss(log.probabilities(held_out), labels);
  EXPECT_LT(oracle, log_loss(means.by_user(held_out), labels) - 0.1);
  EXPECT_LT(oracle, log_loss(means.by_item(held_out), labels) - 0.1);
  EXPECT_LT(oracle, loss_of_all(labels) - 0.1);
}

TEST(InteractionsTest, HoldsOutTheLastTenPercentByDefault) {
  const Interactions log({}, 1);
  EXPECT_EQ(log.config().samples, 1'000'000);
  EXPECT_EQ(log.num_train(), 900'000);
}

TEST(InteractionsTest, SaysWhatIsWrong) {
  const auto message = [](const InteractionConfig& config) {
    return message_of(ErrorCode::kConfig, [&] { Interactions(config, 1); });
  };
  EXPECT_TRUE(contains(message({.users = 0}), "users"));
  EXPECT_TRUE(contains(message({.items = -1}), "items"));
  EXPECT_TRUE(contains(message({.dense = 0}), "dense"));
  EXPECT_TRUE(contains(message({.samples = 0}), "samples"));
  EXPECT_TRUE(contains(message({.held_out = 1}), "held_out"));

  const Interactions log(small_config(), 1);
  const auto refused = [&](auto change) {
    Batch batch;
    log.fill(0, 1, batch);
    batch = batch.schema();
    change(batch);
    return contains(message_of(ErrorCode::kInvalidArgument, [&] { log.fill(0, 1, batch); }),
                    "other groups or columns");
  };
  EXPECT_TRUE(refused([](Batch& b) { b.add_column("extra", 0); }));
  EXPECT_TRUE(refused([](Batch& b) { b.add_float_column("extra", 0); }));
  EXPECT_TRUE(refused([](Batch& b) { b.add_group("extra"); }));
  EXPECT_TRUE(refused([](Batch& b) { b.float_columns[0].group = 0; }));
  EXPECT_TRUE(refused([](Batch& b) { b.columns[0].name = "x"; }));
}

}  // namespace
}  // namespace segue::data
