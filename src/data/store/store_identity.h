#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/store/id_maps.h"
#include "data/store/store_manifest.h"

namespace segue::data {

/// What a run remembers of its store, to tell later whether a store is the same log, and whether
/// its numbers stand for the same ids. Neither depends on where a store lies.
struct StoreIdentity {
  static constexpr int64_t kAsTheyAre = -1;

  uint64_t content = 0;         // of the files without segments; 0: no manifest, so nobody can tell
  int64_t segments = 0;         // that were there
  uint64_t newest_segment = 0;  // checksum of the newest one's manifest
  std::vector<IdRecord> ids;  // of every column; a count of kAsTheyAre: integers of the log itself

  bool operator==(const StoreIdentity&) const = default;
  std::string to_json() const;
  static StoreIdentity from_json(const std::string& text);  // Error(kCorrupt)
};
StoreIdentity identity_of(const IdMaps& store);

/// True: the store is the one that was recorded, with as many segments or more.
bool is_same_store(const StoreIdentity& recorded, const IdMaps& store);

/// Which recorded ids have other numbers in the store, in words; empty: none has, and more may have
/// come behind them. Reads a map only if it is another one than was recorded.
std::string ids_problem(const StoreIdentity& recorded, const IdMaps& store);
/// True: the store has ids that were not there when `recorded` was.
bool has_new_ids(const StoreIdentity& recorded, const IdMaps& store);

}  // namespace segue::data
