#pragma once

#include <cstdint>
#include <string>

#include "data/log/log_schema.h"
#include "data/prep/event_runs.h"
#include "data/store/id_maps.h"
#include "data/store/store_manifest.h"
#include "data/store/store_writer.h"

namespace segue::data {

/// A store that a log is appended to, and what the segment must know of it.
struct AppendTarget {
  SegmentLink segment;
  int64_t history_length = 0;
  int64_t num_events = 0, last_time = 0;  // of all pieces
  TieOrder ties = TieOrder::kFields;
  std::string log_files;    // `events` of its schema: what files of its log are called
  std::string schema_text;  // as it is written: segments have it byte for byte
  std::string maps_folder, user_maps_folder;  // of the newest piece with attributes of items, users
  IdMaps ids;                                 // the numbers that ids have

  /// Error(kUnsupported) if the store is none that a segment can follow: with a held-out end,
  /// sessions, or made by others. Error(kConfig) names how `schema` differs from the store's own.
  AppendTarget(const std::string& store, const LogSchema& schema);
  /// Gives the newest maps of items or users to `writer`; rows of the new log come over them.
  void copy_maps(const LogSchema& schema, bool of_users, StoreWriter& writer) const;
};

}  // namespace segue::data
