#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "data/store/event_store.h"

namespace segue::data {

/// What a simple rule predicts: a share of positives among earlier events.
struct Rule {
  std::string name;  // "item", "user", "user-artist"
  std::vector<float> predictions;
};

/// Predictions of simple rules for events, each made from what happened before the event.
struct Predictions {
  std::vector<int64_t> positions;  // of the events
  std::vector<float> labels;       // 1 if an event is a positive one
  /// By the item, by the user, and by the user with items of the same attribute, shrunk towards the
  /// user's share; one of the last for every attribute of the schema. One prediction per event, NaN
  /// where there is none.
  std::vector<Rule> rules;
  int64_t sampled_every = 1;  // every how manyth user took part
};

/// What rules are asked for.
struct RuleQuery {
  /// Events to predict, each once; none: all that may be predicted (of the schema's anchor kinds).
  std::optional<std::vector<int64_t>> positions = {};
  std::vector<size_t> positive = {};  // pools; none: the schema's label pool
  int64_t most_events = 50'000'000;   // of the log; of a larger one every n-th user takes part
  bool one_thread = false;
  std::stop_token stop = {};  // then the result is worth nothing
};

/// Shares are shrunk towards a prior, as if `k` events with it had come before: 10 for items, 5 for
/// users, 2 for a user's attribute. The prior is the share of all events before the first of those
/// that are asked for (0.5 if there are none), or simply of all where all are. Time decides what is
/// earlier, and events of one second know nothing of each other. Events of other kinds, and of
/// users who do not take part, have no prediction; items know only what the others did. An item
/// beyond the maps has no attribute. Two passes over the events. Takes some 60 bytes for each event
/// that is asked for, and 24 for every other one of the same items and time.
Predictions predict_by_history(const EventStore& store, const RuleQuery& query = {});

/// How many events the items of some events had in the log before the first of these, by users of
/// whom `counts` is true. One pass over the log; after `stop` the result is worth nothing.
std::vector<int64_t> item_events_before(const EventStore& store, std::span<const int64_t> positions,
                                        const std::function<bool(int64_t user)>& counts,
                                        const std::stop_token& stop = {});

/// True probabilities for the events of a store that was made from a synthetic log: those written
/// beside the store or, if `raw_folder` is given, those beside the raw log it was prepared from,
/// matched by user and time. One per event, NaN where there is none; empty if the store has no
/// truth, or was appended to. Error(kCorrupt) if they do not belong to this store.
std::vector<float> read_truth(const EventStore& store, const std::string& raw_folder = "");

}  // namespace segue::data
