#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "data/numbers/tally.h"
#include "data/numbers/value_groups.h"
#include "data/sample/sample_schema.h"

namespace segue::data {

/// An event, or a candidate: what is known of it before its outcome, and that.
struct CountedEvent {
  int64_t item = 0, time = 0, organic = 0;
  std::array<int64_t, kMaxAttributes> attributes{};
  bool tried = false;    // counts at all: of a kind that may be predicted
  bool success = false;  // is in the success pool
  int64_t session = 0;   // of tries, set when it is seen
  double expected = 0;   // probability of success by what was known then, set when it is added
};

/// What all users together did on days before that of an event (DayCounts), and the groups that
/// follow from it.
struct EveryonesCounts {
  Tally all, item;
  std::array<Tally, kMaxAttributes> attributes{};
  const ValueGroups* groups = nullptr;  // none: no value is in one
  int64_t period = 0;                   // of the groups
};

/// What a user's earlier events say about the next one. Events come in order, and an event sees
/// those of earlier times only: events at the same time do not see each other. Outcomes that take
/// `wait` seconds to be known are not seen before: such a try is no try until then, whatever came
/// of it.
///
/// Numbers, in the order of count_names(): rates are log-odds of a share of successes, drawn
/// towards a wider one where there is little to go by; counts are log(1 + n) / 4.
class UserCounts {
 public:
  explicit UserCounts(size_t num_attributes, int64_t wait = 0)
      : num_attributes_(num_attributes), wait_(wait) {
    clear();
  }

  void clear();  // another user comes
  void add(CountedEvent event, const EveryonesCounts& everyone);
  /// Numbers of `event`, which need not be added.
  void write(const CountedEvent& event, const EveryonesCounts& everyone, std::span<float> out);

  static constexpr int64_t kSessionGap = 1800;  // seconds; a longer pause begins a session
  static constexpr size_t kRecentItems = 32, kLastOutcomes = 5;

 private:
  /// Shares of successes of everyone, and of the user.
  struct Shares {
    double prior = 0, own = 0;
  };
  /// What the user did with other values of a value's group, and their share with the value by it.
  struct Taste {
    Tally others;
    double share = 0;
  };
  void settle(int64_t now);
  void see(CountedEvent& event);
  void count(const CountedEvent& event);
  /// Of the user with an item (0) or with the value of an attribute (1 and on).
  static std::optional<uint64_t> key_of(size_t of, int64_t id);
  Tally look(size_t of, int64_t id) const;
  size_t group_of(size_t of, int64_t id) const;
  void use_groups(const EveryonesCounts& everyone);
  Shares shares(const EveryonesCounts& everyone) const;
  Taste taste(size_t of, int64_t id, double own) const;
  double expected(const CountedEvent& event, const EveryonesCounts& everyone) const;

  size_t num_attributes_;
  int64_t wait_;
  std::deque<CountedEvent> pending_;  // whose outcomes are not known yet
  size_t seen_ = 0;                   // of them, from the first on
  Tally user_;
  std::unordered_map<uint64_t, Tally> by_id_;  // by key_of()
  const ValueGroups* groups_ = nullptr;
  int64_t period_ = 0;
  std::vector<Tally> by_group_;  // of the period: group_of()
  std::array<Tally, 24> by_hour_{};
  Tally session_;
  double session_excess_ = 0, session_information_ = 0;  // over what was expected
  int64_t session_number_ = 0, counted_session_ = 0;  // of the last try that was seen, and counted
  int64_t num_events_ = 0, last_event_ = 0, num_tried_ = 0, last_tried_ = 0;
  std::array<int64_t, kRecentItems> recent_{};
  std::array<bool, kLastOutcomes> outcomes_{};
  std::array<int64_t, kMaxAttributes> last_attributes_{};
};

/// Names of the numbers that UserCounts gives for events of such samples, in their order.
std::vector<std::string> count_names(const SampleSchema& schema);

}  // namespace segue::data
