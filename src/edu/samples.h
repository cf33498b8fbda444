#pragma once

#include <cstdint>
#include <vector>

#include "edu/ratings.h"
#include "edu/workload.h"

namespace segue::edu {

/// Ratings as a model sees them.
struct Samples {
  std::vector<float> dense;   // [count, kDense]
  std::vector<float> labels;  // [count]
  std::vector<int64_t> ids;   // [3, count]: user, item, occupation
  /// [3, count, history]: (user, earlier item), (item, earlier item), (item, earlier item, stars)
  /// for the newest earlier ratings of the user; -1 where there are no more.
  std::vector<int64_t> crosses;
  std::vector<double> truth;  // P(label is 1), where it is known
  int64_t history = 0;

  int64_t count() const { return static_cast<int64_t>(labels.size()); }
  double positive_share() const;
};

struct Dataset {
  Samples train, validation;

  /// Accuracy on the validation samples of the more frequent class, and of who knows the
  /// probabilities (absent: 0).
  double majority() const;
  double bayes() const;
};

enum class Split { kRandom, kByTime };

/// 80 % of the ratings to train on, by a random order that the seed gives, or the oldest. What a
/// sample knows of its user (mean and number of ratings) comes from training ratings only, and its
/// history from earlier ones.
Dataset make_dataset(const Ratings& ratings, uint64_t seed, int64_t history = 20,
                     Split split = Split::kRandom);

}  // namespace segue::edu
