#include "data/synth/random_batches.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/parallel.h"
#include "base/test_util.h"

namespace segue::data {
namespace {

using base::contains;
using base::message_of;
using Role = RandomColumn::Role;

/// One user, a history with actions, ten candidates with labels.
RandomSchema candidates_schema() {
  RandomSchema schema;
  // Candidates come first in the schema, but last in time.
  schema.groups = {{"candidates", 10}, {"user", 1}, {"history", -1}};
  schema.columns = {
      {"candidate_id", "candidates", Role::kId, 1000, "", 1},
      {"candidate_artist", "candidates", Role::kId, 50, "candidate_id", 1, "artist"},
      {"candidate_time", "candidates", Role::kTimestamp, 0, "", 1},
      {"label", "candidates", Role::kLabel, 0, "", 3},
      {"user_id", "user", Role::kId, 300, "", 1},
      {"artist_fans", "history", Role::kId, 7, "artist_id", 1},  // before its source
      {"item_id", "history", Role::kId, 1000, "", 1},
      {"artist_id", "history", Role::kId, 50, "item_id", 1, "artist"},
      {"action", "history", Role::kAction, 0, "", 6},
      {"time", "history", Role::kTimestamp, 0, "", 1},
      {"time_again", "history", Role::kTimestamp, 0, "", 1},
  };
  return schema;
}

/// A label for every item of the history.
RandomSchema every_item_schema() {
  RandomSchema schema;
  schema.groups = {{"user", 1}, {"history", -1}};
  schema.columns = {{"user_id", "user", Role::kId, 100, "", 1},
                    {"item_id", "history", Role::kId, 100, "", 1},
                    {"action", "history", Role::kAction, 0, "", 4},
                    {"label", "history", Role::kLabel, 0, "", 2}};
  return schema;
}

std::vector<int64_t> values(const Batch& batch, std::string_view column, int64_t sample) {
  const Batch::Column& c = batch.column(column);
  const auto offsets = batch.offsets(c).subspan(static_cast<size_t>(sample), 2);
  return {c.values.data() + offsets[0], c.values.data() + offsets[1]};
}

struct Prediction {
  double probability = 0;
  bool positive = false;
};

/// All candidates of some steps with what an oracle knows about one bit of theirs.
std::vector<Prediction> oracle(const RandomBatches& data, int64_t steps, int64_t bit,
                               int64_t candidates) {
  std::vector<Prediction> all;
  Batch batch;
  for (int64_t step = 0; step < steps; ++step) {
    data.fill(step, batch);
    for (int64_t s = 0; s < batch.num_samples(); ++s) {
      const std::vector<int64_t> labels = values(batch, "label", s);
      for (int64_t p = 0; p < candidates; ++p) {
        all.push_back(
            {data.probability(batch, s, p, bit), (labels[static_cast<size_t>(p)] >> bit & 1) != 0});
      }
    }
  }
  return all;
}

/// Probability that a positive is ranked above a negative; ties count half.
double auc(std::vector<Prediction> all) {
  std::ranges::sort(all, {}, &Prediction::probability);
  double positives = 0, rank_sum = 0;
  for (size_t i = 0; i < all.size();) {
    size_t end = i;
    while (end < all.size() && all[end].probability == all[i].probability) ++end;
    const double rank = 0.5 * static_cast<double>(i + end + 1);
    for (; i < end; ++i) {
      if (!all[i].positive) continue;
      rank_sum += rank;
      ++positives;
    }
  }
  const double negatives = static_cast<double>(all.size()) - positives;
  return (rank_sum - positives * (positives + 1) / 2) / (positives * negatives);
}

TEST(RandomBatchesTest, FillsTheSchema) {
  const RandomBatches data(candidates_schema(), {}, 1);
  Batch batch;
  data.fill(3, batch);
  batch.validate();
  EXPECT_EQ(batch.num_samples(), 64);
  EXPECT_EQ(batch.global_samples, 64);
  EXPECT_EQ(batch.sample_index[63], 63);
  std::set<size_t> lengths;
  for (int64_t s = 0; s < 64; ++s) {
    EXPECT_EQ(values(batch, "user_id", s).size(), 1u);
    EXPECT_EQ(values(batch, "candidate_id", s).size(), 10u);
    lengths.insert(values(batch, "item_id", s).size());
  }
  EXPECT_GE(*lengths.begin(), 1u);
  EXPECT_LT(*lengths.rbegin(), 128u);
  EXPECT_GT(lengths.size(), 20u);
  const auto expect_below = [&](const char* column, int64_t limit) {
    for (const int64_t v : batch.column(column).values.span()) ASSERT_TRUE(v >= 0 && v < limit);
  };
  expect_below("item_id", 1000);
  expect_below("artist_id", 50);
  expect_below("user_id", 300);
  expect_below("action", 64);
  expect_below("label", 8);
}

TEST(RandomBatchesTest, ASampleIsTheSameHoweverItIsAskedFor) {
  const RandomBatches data(candidates_schema(), {}, 1);
  const RandomBatches twin(candidates_schema(), {}, 1);
  const int threads = base::num_threads();
  Batch whole, head, tail, empty;
  base::set_num_threads(1);
  data.fill(5, whole);
  base::set_num_threads(2);
  twin.fill(9, head);  // leftovers must not matter
  twin.fill(5, 10, 54, tail);
  twin.fill(5, 0, 10, head);
  twin.fill(5, 7, 0, empty);
  base::set_num_threads(threads);
  EXPECT_EQ(tail.sample_index[0], 10);
  EXPECT_TRUE(head == whole.slice(0, 10));
  EXPECT_TRUE(empty == whole.slice(7, 0));
  EXPECT_TRUE(tail == whole.slice(10, 54));
}

TEST(RandomBatchesTest, SeedAndStepMatter) {
  const RandomBatches data(candidates_schema(), {}, 1);
  const RandomBatches other(candidates_schema(), {}, 2);
  Batch a, b, c;
  data.fill(0, a);
  data.fill(1, b);
  other.fill(0, c);
  EXPECT_FALSE(a == b);
  EXPECT_FALSE(a == c);
}

TEST(RandomBatchesTest, FunctionsOfAnIdAreFunctions) {
  const RandomBatches data(candidates_schema(), {}, 1);
  std::map<int64_t, int64_t> artist_of, fans_of;
  Batch batch;
  for (int64_t step = 0; step < 3; ++step) {
    data.fill(step, batch);
    for (int64_t s = 0; s < batch.num_samples(); ++s) {
      const auto expect_function = [&](const char* source, const char* target, auto& seen) {
        const std::vector<int64_t> from = values(batch, source, s), to = values(batch, target, s);
        for (size_t i = 0; i < from.size(); ++i) {
          EXPECT_EQ(seen.try_emplace(from[i], to[i]).first->second, to[i]);
        }
      };
      expect_function("item_id", "artist_id", artist_of);
      expect_function("candidate_id", "candidate_artist", artist_of);  // the same function
      expect_function("artist_id", "artist_fans", fans_of);
    }
  }
  std::set<int64_t> artists;
  for (const auto& [item, artist] : artist_of) artists.insert(artist);
  EXPECT_GT(artists.size(), 40u);
}

TEST(RandomBatchesTest, TimeRisesAndCandidatesComeLast) {
  const RandomBatches data(candidates_schema(), {}, 1);
  Batch batch;
  data.fill(0, batch);
  for (int64_t s = 0; s < batch.num_samples(); ++s) {
    std::vector<int64_t> times = values(batch, "time", s);
    EXPECT_EQ(times, values(batch, "time_again", s));
    EXPECT_GT(times.front(), 1'000'000);
    const std::vector<int64_t> last = values(batch, "candidate_time", s);
    times.insert(times.end(), last.begin(), last.end());
    EXPECT_TRUE(std::ranges::is_sorted(times));
  }
}

TEST(RandomBatchesTest, LabelsFollowTheOracle) {
  const RandomBatches data(candidates_schema(), {}, 1);
  for (int64_t bit = 0; bit < 3; ++bit) {
    SCOPED_TRACE(bit);
    const std::vector<Prediction> all = oracle(data, 12, bit, 10);
    double positives = 0, expected = 0, variance = 0;
    for (const Prediction& p : all) {
      positives += p.positive ? 1 : 0;
      expected += p.probability;
      variance += p.probability * (1 - p.probability);
    }
    EXPECT_NEAR(positives, expected, 4.5 * std::sqrt(variance));
    const double share = positives / static_cast<double>(all.size());
    EXPECT_GT(share, 0.3);
    EXPECT_LT(share, 0.7);
    EXPECT_GT(auc(all), 0.65);
    EXPECT_LT(auc(all), 0.95);
  }
}

TEST(RandomBatchesTest, WithoutSignalLabelsAreCoinFlips) {
  RandomDataConfig config;
  config.signal = 0;
  const RandomBatches data(candidates_schema(), config, 1);
  const std::vector<Prediction> all = oracle(data, 12, 0, 10);
  double positives = 0;
  for (const Prediction& p : all) {
    ASSERT_EQ(p.probability, 0.5);
    positives += p.positive ? 1 : 0;
  }
  const auto n = static_cast<double>(all.size());
  EXPECT_NEAR(positives / n, 0.5, 4.5 * 0.5 / std::sqrt(n));
}

/// What a model can learn from: the share of set action bits in a user's histories goes with the
/// probability of that user's labels.
/// Without a signal, labels know nothing but what was done with the artist before.
TEST(RandomBatchesTest, LabelsFollowWhatMatchesInTheHistory) {
  RandomDataConfig config;
  config.signal = 0;
  config.match = 0.7;
  config.match_by = "artist";
  config.lengths = {DistributionKind::kUniform, 20, 60};
  const RandomBatches data(candidates_schema(), config, 1);
  Batch batch;
  data.fill(3, batch);
  int64_t matched = 0;
  for (int64_t s = 0; s < batch.num_samples(); ++s) {
    const std::vector<int64_t> artists = values(batch, "artist_id", s);
    const std::vector<int64_t> actions = values(batch, "action", s);
    const std::vector<int64_t> asked = values(batch, "candidate_artist", s);
    for (size_t p = 0; p < asked.size(); ++p) {
      for (const int64_t bit : {0, 2}) {
        int64_t count = 0;
        for (size_t e = 0; e < artists.size(); ++e) {
          if (artists[e] == asked[p]) count += (actions[e] >> bit & 1) != 0 ? 1 : -1;
        }
        matched += count != 0 ? 1 : 0;
        EXPECT_NEAR(data.probability(batch, s, static_cast<int64_t>(p), bit),
                    1 / (1 + std::exp(-0.7 * static_cast<double>(count))), 1e-12);
      }
    }
  }
  EXPECT_GT(matched, 100);
  double sum = 0, square = 0;
  for (const Prediction& p : oracle(data, 40, 0, 10)) {
    sum += (p.positive ? 1 : 0) - p.probability;
    square += p.probability * (1 - p.probability);
  }
  EXPECT_LT(std::abs(sum), 4 * std::sqrt(square)) << "labels have the probabilities that are told";
}

TEST(RandomBatchesTest, HistoryTellsAboutTheUser) {
  RandomDataConfig config;
  config.ids = {DistributionKind::kUniform, 0, 0};
  const RandomBatches data(candidates_schema(), config, 1);
  Batch batch;
  double sum_xy = 0, sum_x = 0, sum_y = 0, sum_xx = 0, sum_yy = 0, n = 0;
  for (int64_t step = 0; step < 10; ++step) {
    data.fill(step, batch);
    for (int64_t s = 0; s < batch.num_samples(); ++s) {
      double x = 0, y = 0;
      const std::vector<int64_t> actions = values(batch, "action", s);
      for (const int64_t action : actions) x += static_cast<double>(action & 1);
      for (int64_t p = 0; p < 10; ++p) y += data.probability(batch, s, p, 0);
      x /= static_cast<double>(actions.size());
      sum_xy += x * y, sum_x += x, sum_y += y, sum_xx += x * x, sum_yy += y * y, n += 1;
    }
  }
  const double correlation = (n * sum_xy - sum_x * sum_y) /
                             std::sqrt((n * sum_xx - sum_x * sum_x) * (n * sum_yy - sum_y * sum_y));
  EXPECT_GT(correlation, 0.4);
}

TEST(RandomBatchesTest, LabelsOfEveryItemAreItsActions) {
  const RandomBatches data(every_item_schema(), {}, 1);
  Batch batch;
  data.fill(0, batch);
  const auto actions = batch.column("action").values.span();
  const auto labels = batch.column("label").values.span();
  std::set<int64_t> seen;
  for (size_t i = 0; i < labels.size(); ++i) {
    ASSERT_EQ(labels[i], actions[i] & 3);
    seen.insert(labels[i]);
  }
  EXPECT_EQ(seen.size(), 4u);
  EXPECT_GT(data.probability(batch, 0, 0, 1), 0.0);
}

TEST(RandomBatchesTest, WorksWithoutUsersItemsOrActions) {
  RandomSchema schema;
  schema.groups = {{"history", -1}};
  schema.columns = {{"label", "history", Role::kLabel, 0, "", 1}};
  const RandomBatches data(schema, {}, 1);
  Batch batch;
  data.fill(0, batch);
  batch.validate();
  EXPECT_EQ(data.probability(batch, 0, 0, 0), 0.5);
}

TEST(RandomBatchesTest, IdsStayInAnyVocabularyUnderAnyDistribution) {
  for (const auto kind :
       {DistributionKind::kUniform, DistributionKind::kNormal, DistributionKind::kZipf,
        DistributionKind::kLognormal, DistributionKind::kZipfBounded}) {
    for (const int64_t vocabulary : {1, 2, 17}) {
      for (const int64_t high : {0, 10, 100}) {
        RandomSchema schema = every_item_schema();
        for (RandomColumn& column : schema.columns) column.vocabulary = vocabulary;
        RandomDataConfig config;
        config.ids = {kind, 0, high, 20, 20, 1.2};
        const RandomBatches data(schema, config, 1);
        Batch batch;
        data.fill(0, batch);
        for (const int64_t id : batch.column("item_id").values.span()) {
          ASSERT_TRUE(id >= 0 && id < vocabulary && (high == 0 || id <= high)) << id;
        }
      }
    }
  }
}

TEST(RandomBatchesTest, BadSchemasAndConfigsAreExplained) {
  const auto message = [](auto&& change, ErrorCode code = ErrorCode::kInvalidArgument) {
    RandomSchema schema = candidates_schema();
    RandomDataConfig config;
    change(schema, config);
    return message_of(code, [&] { const RandomBatches data(schema, config, 1); });
  };
  using S = RandomSchema;
  using C = RandomDataConfig;
  EXPECT_TRUE(contains(message([](S& s, C&) { s.columns[0].vocabulary = 0; }), "`candidate_id`"));
  EXPECT_TRUE(contains(message([](S& s, C&) { s.columns[0].group = "x"; }), "group `x`"));
  EXPECT_TRUE(contains(message([](S& s, C&) { s.columns[1].function_of = "user_id"; }),
                       "no id column of group `candidates`"));
  EXPECT_TRUE(contains(message([](S& s, C&) { s.columns[7].function_of = "artist_fans"; }),
                       "a function of itself"));
  EXPECT_TRUE(contains(message([](S& s, C&) { s.columns[3].bits = 63; }), "63 bits"));
  EXPECT_TRUE(contains(message([](S& s, C&) { s.columns[3].name = "time"; }), "`time`"));
  EXPECT_TRUE(contains(message([](S& s, C&) { s.groups[1].fixed_length = -2; }), "`user`"));

  const auto config_message = [&](auto&& change) {
    return message([&](S&, C& c) { change(c); }, ErrorCode::kConfig);
  };
  EXPECT_TRUE(contains(config_message([](C& c) { c.ids.low = 300; }), "`user_id`"));
  EXPECT_TRUE(contains(config_message([](C& c) { c.batch_size = 0; }), "`batch_size`"));
  EXPECT_TRUE(contains(config_message([](C& c) { c.signal = -1; }), "`signal`"));
  EXPECT_TRUE(contains(config_message([](C& c) { c.lengths.high = 0; }), "lengths: "));
  EXPECT_TRUE(contains(config_message([](C& c) { c.ids.alpha = 0.5; }), "ids: "));
  EXPECT_TRUE(
      contains(config_message([](C& c) { c.lengths = {DistributionKind::kZipf, 1, 0, 0, 0, 2}; }),
               "fill all memory"));

  const RandomBatches data(candidates_schema(), {}, 1);
  Batch other;
  other.add_group("history");
  EXPECT_TRUE(contains(message_of(ErrorCode::kInvalidArgument, [&] { data.fill(0, other); }),
                       "other groups or columns"));
  Batch more;
  data.fill(0, more);
  more = more.schema();
  more.add_float_column("price", 0);
  EXPECT_TRUE(contains(message_of(ErrorCode::kInvalidArgument, [&] { data.fill(0, more); }),
                       "other groups or columns"));
}

TEST(RandomBatchesTest, MatchesNeedAFeatureInCommon) {
  RandomDataConfig config;
  config.match = 1;
  const auto message = [&] {
    return message_of(ErrorCode::kConfig,
                      [&] { const RandomBatches data(candidates_schema(), config, 1); });
  };
  EXPECT_TRUE(contains(message(), "`match_by`")) << message();
  config.match_by = "album";
  EXPECT_TRUE(contains(message(), "\"album\" is the table of no feature")) << message();
  config.match = -1;
  EXPECT_TRUE(contains(message(), "`match`")) << message();
}

TEST(RandomBatchesTest, ReadsFromConfig) {
  RandomDataConfig config;
  base::ConfigSources sources;
  sources.use_environment = false;
  sources.sets = {"signal=3.5", "lengths.kind=lognormal", "lengths.mean=100", "ids.alpha=1.05"};
  base::load_config(config, sources);
  config.validate();
  EXPECT_EQ(config.signal, 3.5);
  EXPECT_EQ(config.lengths.kind, DistributionKind::kLognormal);
  EXPECT_EQ(config.ids.alpha, 1.05);
}

}  // namespace
}  // namespace segue::data
