#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/config.h"
#include "batch/batch.h"
#include "data/synth/distribution.h"

namespace segue::data {

/// What the columns of a random batch are; made by the caller from its model's features.
struct RandomColumn {
  enum class Role { kId, kTimestamp, kAction, kLabel };
  std::string name;
  std::string group;  // columns of a group share their lengths
  Role role = Role::kId;
  /// kId: ids in [0, vocabulary).
  int64_t vocabulary = 0;
  /// kId: a fixed function of this column of the group (artist of an item); empty: drawn.
  std::string function_of;
  /// kAction, kLabel: number of bits.
  int64_t bits = 1;
  /// With function_of: columns that name one function agree (artist of an item in the history and
  /// of the same item as a candidate); empty: the column's own name.
  std::string function_name = {};
};
struct RandomGroup {
  std::string name;
  int64_t fixed_length = -1;  // -1: drawn from the length distribution
};
/// A column of floats from N(0, 1), on which nothing depends.
struct RandomNumbers {
  std::string name, group;
};
struct RandomSchema {
  std::vector<RandomGroup> groups;
  std::vector<RandomColumn> columns;
  std::vector<RandomNumbers> numbers = {};
};

struct RandomDataConfig {
  int64_t batch_size = 64;
  Distribution lengths{DistributionKind::kUniform, 1, 128};
  Distribution ids{DistributionKind::kZipf, 0, 0, 0, 0, 1.2};
  int64_t candidates = 1;  // of a sample: the items that a ranking request asks about
  double signal = 2.0;     // strength of the dependence of labels on ids; 0: coin flips
  double match = 0;        // likewise on what was done before with events of the same `match_by`
  std::string match_by;    // a function_name
  void validate() const;
};
void describe(base::ConfigVisitor& v, RandomDataConfig& c);

/// An endless stream of batches, a pure function of (seed, step, sample): no state, any order.
///
/// Every event (a position of a group) has an item: the first drawn id of its group. Every sample
/// has a user: the first drawn id of the first group of fixed length 1 without actions and labels.
/// Each id carries a fixed hidden preference per bit, the same for every seed. Bit b of an event is
/// set with probability
///     sigmoid(signal * (preference of the item + preference of the user / 2))
/// and shows in every action and label column of the group. So histories tell about users and
/// items, a model that works makes the loss fall, and the achievable AUC is below 1.
///
/// With `match`, labels also depend on the history, the group of drawn length with actions or
/// labels: `match` times (earlier events of the same `match_by`, say artist, with the bit less
/// those without it) is added before the sigmoid. Without a signal nothing else tells anything
/// about a label.
///
/// Timestamps rise within a sample; groups with labels come after all others.
class RandomBatches {
 public:
  RandomBatches(RandomSchema schema, const RandomDataConfig& config, uint64_t seed);

  /// Fills `batch` with samples [first, first + count) of step `step`; its schema is set on first
  /// use. The step has batch_size samples: that becomes global_samples.
  void fill(int64_t step, int64_t first, int64_t count, Batch& batch) const;
  void fill(int64_t step, Batch& batch) const { fill(step, 0, config_.batch_size, batch); }

  /// True probability of label bit `bit` for a filled batch's sample: what an oracle would predict.
  double probability(const Batch& batch, int64_t sample, int64_t position, int64_t bit) const;

 private:
  struct GroupPlan {
    uint64_t stream = 0;  // sets its random numbers apart from those of other groups
    int item = -1;        // column whose preference decides, -1: none
    int matched = -1;     // column of match_by, -1: none
  };
  struct ColumnPlan {
    int group = 0;
    int source = -1;  // column that this one is a function of
    uint64_t stream = 0;
  };
  void plan_groups();
  void plan_columns();
  void plan_matches();
  void set_schema(Batch& batch) const;
  uint64_t sample_key(int64_t step, int64_t sample) const;
  void fill_ids(uint64_t key, int64_t sample, Batch& batch) const;
  void fill_timestamps(uint64_t key, int64_t sample, Batch& batch) const;
  void fill_events(uint64_t key, int64_t sample, Batch& batch) const;
  void fill_numbers(uint64_t key, int64_t sample, Batch& batch) const;
  double user_preference(const Batch& batch, int64_t sample, int64_t bit) const;
  double event_probability(int64_t item, double user, int64_t bit,
                           double matches) const;  // item -1: none
  double matches(const Batch& batch, int64_t sample, int column, int64_t position,
                 int64_t bit) const;

  RandomSchema schema_;
  RandomDataConfig config_;
  uint64_t seed_ = 0;
  Sampler lengths_;
  std::vector<Sampler> ids_;  // per column
  std::vector<GroupPlan> groups_;
  std::vector<ColumnPlan> columns_;
  std::vector<int> id_order_;  // id columns, sources before what is computed from them
  std::vector<int> clock_;     // groups with timestamps in the order of time
  int user_ = -1;              // column, -1: none
  int done_ = -1;              // column of what matches are counted by, -1: none
};

}  // namespace segue::data
