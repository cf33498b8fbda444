#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/file_io.h"
#include "data/log/log_schema.h"

namespace segue::data {

/// A raw file that a store was made from.
struct SourceFile {
  std::string name;
  int64_t bytes = 0;
};

/// Where a store comes from, as far as whoever made it wants to tell.
struct StoreOrigin {
  std::string command;  // "prep", "synth"
  std::string options;  // what else decides the content, in words of the command line
  std::vector<SourceFile> sources;
};

/// Where a segment of a store belongs: see data/store/segments.h.
struct SegmentLink {
  int64_t number = 0;     // 0: a store of its own
  uint64_t previous = 0;  // checksum of the manifest before
};

/// The ids of a column that got numbers, in the order of their numbers: how many, and XXH64 of
/// their texts with a line end behind each. Of a segment: together with those of the pieces before
/// it.
struct IdRecord {
  std::string column;  // "user", "item", or the name of an attribute
  int64_t count = 0;
  uint64_t xxh64 = 0;

  bool operator==(const IdRecord&) const = default;
};

/// STORE/segue/manifest.json: what is in a store, with sizes and checksums. No times and no paths:
/// equal stores have equal manifests (apart from their sources).
struct StoreManifest {
  std::string segue_version;
  int64_t history_length = 0;
  std::vector<int64_t> min_history;  // none in a segment
  int64_t num_events = 0, num_users = 0, num_items = 0;
  SegmentLink segment;
  StoreOrigin origin;
  std::vector<IdRecord> ids;  // of the maps that the store or segment has; none before 0.2
  std::vector<base::FileRecord> files;

  std::string cache_folder() const;  // "hstu_cache_L4086"
  const base::FileRecord* find(const std::string& name) const;

  std::string to_json() const;
  uint64_t checksum() const;  // as to_json() has it
  /// Error(kCorrupt) for anything that to_json() would not have written: its checksum is one that
  /// anybody can compute, so every number is checked, and names do not leave the store.
  static StoreManifest from_json(const std::string& text, const std::string& path);
  /// Error(kNotFound) if there is none, Error(kCorrupt) if it is damaged.
  static StoreManifest read(const std::string& store);

 private:
  std::string problem() const;  // empty: none
};

/// The schema that a store was made with (STORE/segue/schema.toml).
LogSchema read_store_schema(const std::string& store);

// Names inside a store.
inline constexpr const char* kManifestFile = "segue/manifest.json";
inline constexpr const char* kSchemaFile = "segue/schema.toml";
inline constexpr const char* kSplitMetaFile = "split_meta.json";
inline constexpr const char* kPopularityFile = "item_popularity.npy";
std::string positions_file(int64_t history_length, int64_t min_history);
std::string anchor_ts_file(int64_t history_length, int64_t min_history);

}  // namespace segue::data
