#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/hash.h"
#include "data/store/segments.h"
#include "data/store/store_manifest.h"

namespace segue::data {

/// The hash of an IdRecord, id by id. It does not depend on how a map is written or cut.
class IdHash {
 public:
  void add(std::string_view id) {
    hash_.update(id.data(), id.size());
    hash_.update("\n", 1);
  }
  uint64_t digest() const { return hash_.digest(); }

 private:
  base::Xxh64Stream hash_;
};

/// Which ids of the log the numbers of a store stand for. Columns are "user", "item" and the
/// attributes by name. Number i of a user or item is id i of its map; attributes count from 1.
/// A segment has the ids that came with it: segue/<column>_ids.npy (int64) or .txt (one per line).
class IdMaps {
 public:
  /// Of a store and its first `segments` segments. What others made has no maps.
  explicit IdMaps(const std::string& store, int64_t segments = kAllSegments);

  const std::string& store() const { return store_; }
  const std::vector<StoreManifest>& manifests() const { return manifests_; }  // of the pieces
  /// All columns of the store that have ids, with or without a map.
  const std::vector<std::string>& columns() const { return columns_; }
  bool has_column(const std::string& column) const;
  /// True: the ids of the column got numbers; false: they are integers that stayed as they are.
  bool is_numbered(const std::string& column) const;
  std::string file_name(const std::string& column) const;  // of its first map, for messages

  /// As the newest manifest has it; read from the map where a store of 0.1 does not.
  IdRecord record(const std::string& column) const;
  /// XXH64 of the first `count` ids of a column, as an IdRecord has it.
  uint64_t hash_of_first(const std::string& column, int64_t count) const;
  /// The ids of a column in the order of their numbers; `each` returns false to stop.
  /// Error(kCorrupt) where a map is not as it was written.
  void read(const std::string& column, const std::function<bool(std::string_view)>& each) const;
  /// Records of the manifests that the maps contradict, in words; reads them all.
  std::vector<std::string> problems() const;

 private:
  struct Map {
    std::string folder;
    const base::FileRecord* file = nullptr;
  };
  std::vector<Map> maps_of(const std::string& column) const;

  std::string store_;
  std::vector<StoreManifest> manifests_;
  std::vector<std::string> columns_;
};

}  // namespace segue::data
