#pragma once

#include <cstdint>
#include <span>

namespace segue::ops {

/// How well predictions order what belongs together: the candidates of a sample, or what a user
/// was offered. Lists whose labels are all alike cannot be ordered wrongly and do not count.
struct ListQuality {
  int64_t lists = 0, labels = 0;  // that count
  double auc = 0.5;               // of every list, weighted by its labels ("GAUC")
  /// Means over lists. NDCG compares the gains of the first k places, discounted by
  /// log2(place + 1), with those of the best order; recall is the share of the list's positive
  /// labels that stand there. Equal predictions share their places: each has the mean over all
  /// orders.
  double ndcg = 0, recall = 0;
};

/// `lists` says where each label belongs, by any numbers in any order. Sums go through lists in the
/// order of their numbers, so the result does not depend on the order of labels. Takes 8 bytes per
/// label while it sorts.
ListQuality list_quality(std::span<const float> predictions, std::span<const float> labels,
                         std::span<const int64_t> lists, int64_t k);

}  // namespace segue::ops
