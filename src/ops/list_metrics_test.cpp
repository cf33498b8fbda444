#include "ops/list_metrics.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

#include "ops/metrics.h"
#include "ops/test_util.h"

namespace segue::ops {
namespace {

using test::TestBed;

struct Lists {
  std::vector<float> predictions, labels;
  std::vector<int64_t> lists;

  void add(int64_t list, float prediction, float label) {
    lists.push_back(list);
    predictions.push_back(prediction);
    labels.push_back(label);
  }
  ListQuality quality(int64_t k) const { return list_quality(predictions, labels, lists, k); }
};

TEST(ListMetricsTest, HandMadeLists) {
  Lists l;
  // Ranks of list 7: 1, 0, 1, 0; its AUC is 3 / 4.
  l.add(7, 0.9f, 1);
  l.add(-1, 0.5f, 0);  // of one class: does not count
  l.add(7, 0.8f, 0);
  l.add(7, 0.7f, 1);
  l.add(-1, 0.7f, 0);
  l.add(7, 0.1f, 0);
  const ListQuality one = l.quality(2);
  EXPECT_EQ(one.lists, 1);
  EXPECT_EQ(one.labels, 4);
  EXPECT_DOUBLE_EQ(one.auc, 0.75);
  EXPECT_DOUBLE_EQ(one.recall, 0.5);
  EXPECT_DOUBLE_EQ(one.ndcg, 1 / (1 + 1 / std::log2(3.0)));
  EXPECT_DOUBLE_EQ(l.quality(10).recall, 1);
  EXPECT_DOUBLE_EQ(l.quality(10).ndcg, (1 + 0.5) / (1 + 1 / std::log2(3.0)));
  // A second list, ranked the wrong way, with two labels.
  l.add(3, 0.2f, 1);
  l.add(3, 0.6f, 0);
  const ListQuality two = l.quality(1);
  EXPECT_EQ(two.lists, 2);
  EXPECT_DOUBLE_EQ(two.auc, (4 * 0.75 + 2 * 0) / 6);
  EXPECT_DOUBLE_EQ(two.recall, (0.5 + 0) / 2);
  EXPECT_DOUBLE_EQ(two.ndcg, (1.0 + 0) / 2);
}

TEST(ListMetricsTest, NothingToRank) {
  const ListQuality none = list_quality({}, {}, {}, 10);
  EXPECT_EQ(none.lists, 0);
  EXPECT_EQ(none.labels, 0);
}

/// Ties count as the mean over all orders of what is equal, and AUC is that of every list alone.
TEST(ListMetricsTest, TiesAreTheMeanOverTheirOrders) {
  Lists l;
  for (const float label : {1.f, 0.f, 0.f, 1.f, 0.f}) l.add(0, 0.5f, label);
  l.add(0, 0.4f, 1);
  constexpr int64_t kPlaces = 3;
  std::vector<size_t> order = {0, 1, 2, 3, 4};
  double ndcg = 0, recall = 0, orders = 0;
  do {
    double dcg = 0, hits = 0;
    for (int64_t place = 0; place < kPlaces; ++place) {
      const float label = l.labels[order[static_cast<size_t>(place)]];
      dcg += label / std::log2(static_cast<double>(place) + 2);
      hits += label;
    }
    ndcg += dcg / (1 + 1 / std::log2(3.0) + 0.5);
    recall += hits / 3;
    ++orders;
  } while (std::ranges::next_permutation(order).found);
  const ListQuality q = l.quality(kPlaces);
  EXPECT_NEAR(q.ndcg, ndcg / orders, 1e-12);
  EXPECT_NEAR(q.recall, recall / orders, 1e-12);
  EXPECT_DOUBLE_EQ(q.auc, exact_auc(l.predictions, l.labels));
}

TEST(ListMetricsTest, TheOrderOfLabelsChangesNoBit) {
  Lists l;
  std::map<int64_t, Lists> apart;
  for (int64_t i = 0; i < 500; ++i) {
    const auto list = static_cast<int64_t>(20 * TestBed::number(1, i));
    const auto p = static_cast<float>(std::round(10 * TestBed::number(2, i)) / 10);
    const float label = TestBed::number(3, i) < p ? 1.f : 0.f;
    l.add(list, p, label);
    apart[list].add(list, p, label);
  }
  double auc = 0, labels = 0;
  for (const auto& [number, list] : apart) {
    const double positive = std::accumulate(list.labels.begin(), list.labels.end(), 0.0);
    const auto n = static_cast<double>(list.labels.size());
    if (positive == 0 || positive == n) continue;
    auc += n * exact_auc(list.predictions, list.labels);
    labels += n;
  }
  const ListQuality q = l.quality(5);
  EXPECT_GT(q.lists, 10);
  EXPECT_NEAR(q.auc, auc / labels, 1e-12);
  std::reverse(l.predictions.begin(), l.predictions.end());
  std::reverse(l.labels.begin(), l.labels.end());
  std::reverse(l.lists.begin(), l.lists.end());
  const ListQuality turned = l.quality(5);
  EXPECT_EQ(turned.auc, q.auc);
  EXPECT_EQ(turned.ndcg, q.ndcg);
  EXPECT_EQ(turned.recall, q.recall);
}

}  // namespace
}  // namespace segue::ops
