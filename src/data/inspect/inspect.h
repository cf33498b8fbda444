#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "data/log/log_schema.h"
#include "data/log/row_counts.h"
#include "data/store/event_store.h"
#include "data/store/store_manifest.h"

namespace segue::data {

/// How a quantity is spread over users, windows or samples.
struct Spread {
  int64_t count = 0;
  int64_t min = 0, median = 0, p90 = 0, max = 0;
  double mean = 0;
};
Spread spread_of(std::vector<int64_t> values);

struct PartOfEvents {
  std::string name;
  int64_t events = 0;
  double share = 0;  // of all events
};

/// Days of anchors, as training cuts them: window w begins w days after the first anchor.
struct WindowSummary {
  int64_t min_history = 0;
  int64_t anchors = 0;
  int64_t first_time = 0, last_time = 0;  // of anchors
  int64_t windows = 0;
  int64_t empty = 0;
  Spread sizes;  // anchors of a window, the empty ones included
};

/// Lengths of histories after gathering, from anchors taken at even distances.
struct HistorySummary {
  int64_t history_length = 0;  // what is asked for, all pools together
  Spread lengths;              // an equal share of every pool, the default
  Spread newest;               // the newest events of any pool (data.gather.strategy = "last_n")
  double fill = 0;             // mean of `lengths` / history_length
};

struct AttributeSummary {
  std::string name;
  int64_t values = 0;      // different ones, 0 (unknown) not counted
  double item_share = 0;   // items (or users, of a user's) that have one
  double event_share = 0;  // events whose item (user) has one
  int64_t of_one = 1;      // values that an item (user) has at most
};

struct StoreSummary {
  std::string folder, cache_folder;
  int64_t history_length = 0;
  std::optional<StoreManifest> manifest;                     // absent: not written by Segue
  std::vector<StoreManifest> segments;                       // what was appended
  RowCounts rows;                                            // of the logs that all were made from
  int64_t events = 0, users = 0, items = 0, items_seen = 0;  // of all pieces together
  Spread events_per_user;
  std::vector<PartOfEvents> kinds, pools;
  int64_t in_no_pool = 0;           // events that enter no history
  int64_t predicted = 0;            // events of anchor kinds
  std::optional<int64_t> positive;  // those in the label pool, where there is one
  /// Those behind another event of their user in the same second; 0 where later events decide the
  /// label, which no history has.
  int64_t same_time = 0;
  double organic_share = 0;
  int64_t first_time = 0, last_time = 0;
  std::vector<WindowSummary> windows;  // one per anchor list
  HistorySummary history;
  std::vector<AttributeSummary> attributes;

  /// More than a few: they may be items of one list, and the outcome of one tells of the others.
  bool has_lists() const { return same_time > 0 && same_time >= predicted / 100; }
};

struct InspectConfig {
  int64_t history_length = 0;  // 0: the store's
  int64_t min_history = -1;    // -1: those that the store was made with
  int64_t scan_window = 20000;
  int64_t history_samples = 2000;
};

/// Kind names for messages, and the schema to open a store with: its own, or the benchmark's when
/// it brings none.
LogSchema schema_for(const std::string& store);

/// Reads every event once; all cores work. Memory: two bits per item and 8 bytes per user.
StoreSummary summarize(const EventStore& store, const LogSchema& schema,
                       const InspectConfig& config = {});

}  // namespace segue::data
