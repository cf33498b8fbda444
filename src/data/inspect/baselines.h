#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "data/store/event_store.h"

namespace segue::data {

/// Predictions of simple rules for events that may be predicted (of the schema's anchor kinds),
/// each made from what happened before the event. One element per event.
struct Predictions {
  std::vector<int64_t> positions;  // event index
  std::vector<float> labels;       // 1 if the event is in the label pool
  std::vector<float> item;         // share of positives among earlier events of the item
  std::vector<float> user;         // among earlier events of the user
  /// Among earlier events of the user with items of the same attribute (artist), shrunk towards the
  /// user's share; empty when the schema has no attribute.
  std::vector<float> user_attribute;
  std::string attribute;      // its name
  int64_t sampled_every = 1;  // every how manyth user took part
};

/// Shares are shrunk towards the share of all events, as if `k` events with it had come before: 10
/// for items, 5 for users, 2 for a user's attribute. Time decides what is earlier; events of one
/// instant count in store order. Takes every n-th user so that about `most_events` are looked at,
/// 40 bytes each; then items know only what those users did.
Predictions predict_by_history(const EventStore& store, int64_t most_events = 50'000'000);

/// True probabilities for the events of a store that was made from a synthetic log: those written
/// beside the store or, if `raw_folder` is given, those beside the raw log it was prepared from,
/// matched by user and time. One per event, NaN where there is none; empty if the store has no
/// truth, or was appended to. Error(kCorrupt) if they do not belong to this store.
std::vector<float> read_truth(const EventStore& store, const std::string& raw_folder = "");

}  // namespace segue::data
