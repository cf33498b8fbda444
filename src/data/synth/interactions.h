#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/config.h"
#include "batch/batch.h"

namespace segue::data {

struct InteractionConfig {
  int64_t users = 2'000;
  int64_t items = 5'000;
  int64_t dense = 16;  // dense features of a sample
  int64_t samples = 1'000'000;
  int64_t passes = 1;     // over the training part
  double held_out = 0.1;  // share of the samples, the last ones, that is not trained on

  void validate() const;  // Error(kConfig)
};
void describe(base::ConfigVisitor& v, InteractionConfig& c);

/// A log of users, items and whether they liked them, whose truth is known: sample n is a pure
/// function of (seed, n), so any rank can make any part of it, and nothing is stored. Users and
/// items are uniform, dense features x are N(0, 1), and a label is 1 with the probability
///     sigmoid(u . v + w . x - 1)
/// u and v, the factors of user and item, are 4 numbers from N(0, 1) each; w is one vector for all,
/// its entries N(0, 1) / sqrt(dense). So u . v varies by 2 and w . x by about 1 (standard
/// deviations), whatever the sizes: ids tell more than dense features, and neither all.
class Interactions {
 public:
  static constexpr int64_t kRank = 4;
  static constexpr double kOffset = -1;

  Interactions(const InteractionConfig& config, uint64_t seed);

  const InteractionConfig& config() const { return config_; }
  /// Samples [0, num_train) are for training, [num_train, samples) are held out.
  int64_t num_train() const { return num_train_; }

  /// Fills `batch` with samples [first, first + count) of the log as samples `place`, `place` + 1,
  /// ... of a step of `global_samples`: columns `user_id`, `item_id` and `label` (0 or 1), one
  /// value a sample, and the float column `dense`. The schema is set on first use.
  void fill(int64_t first, int64_t count, int64_t place, int64_t global_samples,
            Batch& batch) const;
  /// The same as a step of their own.
  void fill(int64_t first, int64_t count, Batch& batch) const {
    fill(first, count, 0, count, batch);
  }

  /// What an oracle would predict for every sample of a batch that was filled from this log: the
  /// probabilities that its labels were drawn with.
  std::vector<float> probabilities(const Batch& batch) const;

 private:
  struct Sample {
    int64_t user = 0, item = 0;
    bool label = false;
  };
  Sample make(int64_t number, std::span<float> dense) const;
  double probability(int64_t user, int64_t item, std::span<const float> dense) const;
  void set_schema(Batch& batch) const;

  InteractionConfig config_;
  uint64_t seed_ = 0;
  int64_t num_train_ = 0;
  std::vector<double> weights_;  // w
};

/// What a model has to beat: mean labels of the training part, by user or by item; where an id has
/// no label there, the mean of all.
class InteractionMeans {
 public:
  /// Goes through the whole training part once, on all threads.
  explicit InteractionMeans(const Interactions& log);

  /// Predictions for every sample of a batch.
  std::vector<float> by_user(const Batch& batch) const;
  std::vector<float> by_item(const Batch& batch) const;
  double of_all() const { return of_all_; }

 private:
  double of_all_ = 0;
  std::vector<float> users_, items_;
};

}  // namespace segue::data
