#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/log/log_schema.h"
#include "data/log/log_split.h"
#include "data/log/row_counts.h"
#include "data/log/table_reader.h"
#include "data/prep/event_runs.h"

namespace segue::data {

struct PrepConfig {
  std::string raw;    // folder with the log
  std::string store;  // folder to make
  LogSchema schema;
  int64_t memory_bytes = int64_t{4} << 30;  // peak resident memory of the process
  int64_t history_length = 4086;
  std::vector<int64_t> min_history;  // empty: {history_length}
  TieOrder ties = TieOrder::kFields;
  bool sessions = false;   // also the sessions and test events as Parquet
  bool overwrite = false;  // a finished store is replaced when the new one is complete
  SkipLimit skip_bad;      // rows that may be left out because they cannot be read
  /// The log is later than what `store` has: it becomes a segment of it. History lengths and ties
  /// are then the store's.
  bool append = false;
  /// A store whose ids keep their numbers; new ids get those behind them. Empty: numbers by rank.
  std::string ids_from;
  const ParquetSupport* parquet = nullptr;
  int64_t run_events = 0;  // events sorted at a time; 0: what memory_bytes allows

  static constexpr int64_t kLeastMemory = int64_t{128} << 20;
};

struct PrepResult {
  RowCounts rows;
  SplitCounts counts;
  bool was_in_order = false;
  int64_t runs = 0;     // sorted on disk; 0: none
  int64_t segment = 0;  // its number; 0: a store
  double seconds = 0;
};

/// Makes a store from a raw event log: reads, checks, sorts if need be, splits by time, writes. The
/// bytes of the store depend on the rows, the schema and the ids of `ids_from` alone, not on the
/// order or the cut of the files (with TieOrder::kFile on the order of events at the same time,
/// too). With `append` samples of the store are then those of one prep of all rows;
/// Error(kInvalidArgument) when a row is not later than everything that is there.
PrepResult prep(const PrepConfig& config);

/// True if the raw folder holds the events that the schema names.
bool has_log(const std::string& raw, const LogSchema& schema);

/// How a memory budget is cut up.
struct MemoryPlan {
  int64_t dictionary_bytes = 0;  // of text ids
  int64_t item_bytes = 0;        // popularity and attributes
  int64_t writer_bytes = 0;
  int64_t run_events = 0;
  int buffers = 0;  // runs in memory
  int64_t merge_bytes = 0;
  size_t block_rows = 0;
  int64_t most_waiting = 0;  // events that wait for later ones
};
MemoryPlan plan_memory(int64_t memory_bytes, int threads, TieOrder ties);

}  // namespace segue::data
