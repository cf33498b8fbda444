#include "train/step/held_out.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/rng.h"
#include "train/step/metrics.h"

namespace segue::train {
namespace {

/// Labels drawn with known probabilities, and predictions that know them more or less well.
struct Drawn {
  std::vector<float> labels, good, poor;

  explicit Drawn(size_t n, uint64_t seed = 1) {
    uint64_t drawn = seed << 32;
    const auto uniform = [&] {
      return static_cast<double>(base::splitmix64(drawn++) >> 11) * 0x1p-53;
    };
    for (size_t i = 0; i < n; ++i) {
      const double p = uniform();
      labels.push_back(uniform() < p ? 1.f : 0.f);
      good.push_back(static_cast<float>(p));
      poor.push_back(static_cast<float>(0.3 * p + 0.7 * uniform()));
    }
  }
};

TEST(HeldOut, TheBestRuleIsNamedWithTheLeadOverIt) {
  const Drawn d(2000);
  const std::vector<float> flat(d.labels.size(), 0.5f);
  HeldOutFacts facts;
  facts.rules = {{{"flat", flat}, {"poor", d.poor}}};
  const std::vector<TaskLabels> tasks = {{d.good, d.labels, 0}};
  const std::optional<Comparison> c = compare_with_rules(tasks, facts);
  ASSERT_TRUE(c && c->error);
  EXPECT_EQ(c->best_rule().name, "poor");
  EXPECT_EQ(c->best_rule().auc, ops::exact_auc(d.poor, d.labels));
  EXPECT_EQ(c->rules[0].auc, 0.5);
  EXPECT_TRUE(c->above());
  EXPECT_EQ(c->labels, 2000);
  EXPECT_DOUBLE_EQ(c->difference,
                   ops::exact_auc(d.good, d.labels) - ops::exact_auc(d.poor, d.labels));
  EXPECT_GT(c->difference, 5 * *c->error);

  // The other way round it is below by the same; against itself there is no difference.
  facts.rules = {{{"good", d.good}}};
  const std::vector<TaskLabels> worse = {{d.poor, d.labels, 0}}, same = {{d.good, d.labels, 0}};
  EXPECT_EQ(compare_with_rules(worse, facts)->difference, -c->difference);
  EXPECT_FALSE(compare_with_rules(worse, facts)->above());
  EXPECT_EQ(compare_with_rules(same, facts)->difference, 0);
  EXPECT_EQ(compare_with_rules(same, facts)->error, 0);
  EXPECT_FALSE(compare_with_rules(same, facts)->significant());
}

TEST(HeldOut, ComparedIsWhatRulesHaveAPredictionFor) {
  const Drawn d(500);
  std::vector<float> some = d.poor;
  for (size_t i = 0; i < some.size(); i += 2) some[i] = std::numeric_limits<float>::quiet_NaN();
  HeldOutFacts facts;
  facts.rules = {{{"some", some}}};
  const std::vector<TaskLabels> tasks = {{d.good, d.labels, 0}};
  const std::optional<Comparison> c = compare_with_rules(tasks, facts);
  ASSERT_TRUE(c);
  EXPECT_EQ(c->labels, 250);
  std::vector<float> p, l;
  for (size_t i = 1; i < some.size(); i += 2) {
    p.push_back(some[i]);
    l.push_back(d.labels[i]);
  }
  EXPECT_EQ(c->best_rule().auc, ops::exact_auc(p, l));
  std::ranges::fill(facts.rules[0][0].predictions, std::numeric_limits<float>::quiet_NaN());
  EXPECT_FALSE(compare_with_rules(tasks, facts));
  EXPECT_FALSE(compare_with_rules(tasks, {}));
}

/// Labels that are all alike say neither "above" nor "below".
TEST(HeldOut, LabelsOfOneClassAreNotCompared) {
  const Drawn d(100);
  const std::vector<float> alike(d.labels.size(), 1.f);
  HeldOutFacts facts;
  facts.rules = {{{"poor", d.poor}}, {{"poor", d.poor}}};
  const std::vector<TaskLabels> one = {{d.good, alike, 0}};
  EXPECT_FALSE(compare_with_rules(one, facts));
  const std::vector<TaskLabels> mixed = {{d.good, alike, 0}, {d.good, d.labels, 1}};
  ASSERT_TRUE(compare_with_rules(mixed, facts));
  EXPECT_TRUE(compare_with_rules(mixed, facts)->above());
}

/// Means over tasks: their parts are added before they are squared, as they share samples.
TEST(HeldOut, TasksThatAreAlikeAreNotIndependent) {
  const Drawn d(400);
  const ops::AucParts one = ops::auc_parts(d.good, d.labels);
  const MeanAuc twice = mean_auc_parts(std::vector{one, one});
  EXPECT_DOUBLE_EQ(twice.auc, one.auc);
  EXPECT_DOUBLE_EQ(ops::standard_error(twice.parts), ops::standard_error(one.parts));
  const Drawn other(400, 9);
  const MeanAuc apart = mean_auc_parts(std::vector{one, ops::auc_parts(other.good, other.labels)});
  EXPECT_LT(ops::standard_error(apart.parts), 0.85 * ops::standard_error(one.parts));
  // A task without both classes takes part with 0.5 and no error, as in the mean of AUCs.
  const MeanAuc half = mean_auc_parts(std::vector{one, ops::AucParts{}});
  EXPECT_DOUBLE_EQ(half.auc, (one.auc + 0.5) / 2);
  EXPECT_DOUBLE_EQ(ops::standard_error(half.parts), ops::standard_error(one.parts) / 2);
  // One label of a class: an AUC, of which nobody knows how far off it is, nor then the mean.
  std::vector<float> single(d.labels.size(), 0.f);
  single[7] = 1;
  EXPECT_TRUE(mean_auc_parts(std::vector{one, ops::auc_parts(d.good, single)}).parts.empty());
}

TEST(HeldOut, SlicesOfHistoriesAndItems) {
  const Drawn d(300);
  HeldOutFacts facts;
  for (size_t i = 0; i < d.labels.size(); ++i) {
    facts.history.push_back(i < 100 ? 31 : i < 150 ? 32 : 5000);
    facts.item_events.push_back(i == 0 ? 0 : 1);
    facts.lists.push_back(static_cast<int64_t>(i / 10));
  }
  const TaskDetails t = task_details(d.good, d.labels, facts, 5);
  ASSERT_EQ(t.by_history.size(), 3u);
  EXPECT_EQ(t.by_history[0].name, "0 to 31");
  EXPECT_EQ(t.by_history[1].name, "32 to 127");
  EXPECT_EQ(t.by_history[2].name, "2048 and more");
  EXPECT_EQ(t.by_history[1].labels, 50);
  EXPECT_EQ(t.by_history[2].auc,
            ops::exact_auc(std::span(d.good).subspan(150), std::span(d.labels).subspan(150)));
  EXPECT_TRUE(t.by_history[2].error);
  ASSERT_EQ(t.by_item.size(), 2u);
  EXPECT_EQ(t.by_item[0].name, "0");
  EXPECT_TRUE(t.by_item[0].one_class);
  EXPECT_FALSE(t.by_item[0].error);
  EXPECT_EQ(t.by_item[1].name, "1 to 9");
  EXPECT_EQ(t.lists.lists, ops::list_quality(d.good, d.labels, facts.lists, 5).lists);
  EXPECT_GT(t.lists.lists, 20);
  EXPECT_EQ(t.calibration.bins.size(), 10u);
  // An evaluation that ended early has facts of more labels than it has.
  const TaskDetails early =
      task_details(std::span(d.good).first(120), std::span(d.labels).first(120), facts, 5);
  EXPECT_EQ(early.by_history.back().labels, 20);
  // Nothing known: nothing said.
  const TaskDetails bare = task_details(d.good, d.labels, {}, 5);
  EXPECT_TRUE(bare.by_history.empty() && bare.by_item.empty());
  EXPECT_EQ(bare.lists.lists, 0);
}

TEST(HeldOut, IntervalsStayBetweenZeroAndOne) {
  EXPECT_EQ(auc_text(0.75, {}), "0.7500");
  EXPECT_EQ(auc_text(0.75, 0.01), "0.7500 ± 0.0196");
  EXPECT_EQ(auc_interval(0.99, 0.1).high, 1);
  EXPECT_EQ(auc_interval(0.01, 0.1).low, 0);
  EXPECT_NEAR(auc_interval(0.5, 0.1).low, 0.304, 1e-3);
}

}  // namespace
}  // namespace segue::train
