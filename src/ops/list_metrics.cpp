#include "ops/list_metrics.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "base/error.h"

namespace segue::ops {
namespace {

double discount(int64_t place) { return 1 / std::log2(static_cast<double>(place) + 2); }

/// One list, from the highest prediction down.
class RankedList {
 public:
  explicit RankedList(int64_t k) : k_(k) {}

  /// So many with the same prediction.
  void add(int64_t labels, int64_t positive) {
    const auto gain = static_cast<double>(positive) / static_cast<double>(labels);
    for (int64_t place = labels_; place < std::min(k_, labels_ + labels); ++place) {
      dcg_ += gain * discount(place);
      hits_ += gain;
    }
    const int64_t negative = labels - positive;
    // A positive beats the negatives that come later, and half of those it ties with.
    lost_pairs_ += static_cast<double>(positive) *
                   (static_cast<double>(labels_ - positive_) + 0.5 * static_cast<double>(negative));
    labels_ += labels;
    positive_ += positive;
  }

  void add_to(ListQuality& sum) const {
    const int64_t negative = labels_ - positive_;
    if (positive_ == 0 || negative == 0) return;
    double best = 0;
    for (int64_t place = 0; place < std::min(k_, positive_); ++place) best += discount(place);
    const double pairs = static_cast<double>(positive_) * static_cast<double>(negative);
    sum.auc += static_cast<double>(labels_) * (1 - lost_pairs_ / pairs);
    sum.ndcg += dcg_ / best;
    sum.recall += hits_ / static_cast<double>(positive_);
    sum.labels += labels_;
    ++sum.lists;
  }

 private:
  int64_t k_;
  int64_t labels_ = 0, positive_ = 0;
  double dcg_ = 0, hits_ = 0, lost_pairs_ = 0;
};

}  // namespace

ListQuality list_quality(std::span<const float> predictions, std::span<const float> labels,
                         std::span<const int64_t> lists, int64_t k) {
  SEGUE_ASSERT(labels.size() == predictions.size() && lists.size() == predictions.size(),
               "one label and one list per prediction");
  SEGUE_ASSERT(k > 0, "ranked lists have a first place");
  std::vector<size_t> order(predictions.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, [&](size_t a, size_t b) {  // stable: bears NaN
    return lists[a] != lists[b] ? lists[a] < lists[b] : predictions[a] > predictions[b];
  });
  ListQuality sum{.auc = 0};
  for (size_t begin = 0; begin < order.size();) {
    const int64_t list = lists[order[begin]];
    RankedList ranked(k);
    while (begin < order.size() && lists[order[begin]] == list) {
      const float prediction = predictions[order[begin]];
      int64_t count = 0, positive = 0;
      do {
        positive += labels[order[begin++]] >= 0.5f ? 1 : 0;
        ++count;
      } while (begin < order.size() && lists[order[begin]] == list &&
               predictions[order[begin]] == prediction);
      ranked.add(count, positive);
    }
    ranked.add_to(sum);
  }
  if (sum.lists == 0) return {};
  sum.auc /= static_cast<double>(sum.labels);
  sum.ndcg /= static_cast<double>(sum.lists);
  sum.recall /= static_cast<double>(sum.lists);
  return sum;
}

}  // namespace segue::ops
