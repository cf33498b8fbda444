#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "data/store/event_store.h"
#include "data/store/index_file.h"

namespace segue::data {

/// Where the events of every pool are: per user, ascending, counted from the user's first event (4
/// bytes each). With it a history costs what it takes, not what it would have to scan.
class PoolIndex {
 public:
  /// Opens pools.idx of the store's index folder; makes it first when it is missing, damaged or of
  /// another store or other pools. Memory stays bounded, all cores work.
  static PoolIndex open_or_build(const EventStore& store);

  std::span<const uint32_t> of_user(size_t pool, int64_t uid) const {
    const Pool& p = pools_[pool];
    const auto u = static_cast<size_t>(uid);
    if (u + 1 >= p.offsets.size()) return {};  // a user of another piece of the log
    return p.positions.subspan(static_cast<size_t>(p.offsets[u]),
                               static_cast<size_t>(p.offsets[u + 1] - p.offsets[u]));
  }
  int64_t size(size_t pool) const { return static_cast<int64_t>(pools_[pool].positions.size()); }
  /// Events that are in more than one pool.
  int64_t num_shared() const { return num_shared_; }
  const std::string& path() const { return file_.path(); }
  const IndexFile& file() const { return file_; }

 private:
  struct Pool {
    std::span<const int64_t> offsets;     // [largest uid + 2]
    std::span<const uint32_t> positions;  // [events of the pool]
  };
  PoolIndex(IndexFile file, const EventStore& store);

  IndexFile file_;
  std::vector<Pool> pools_;
  int64_t num_shared_ = 0;
};

}  // namespace segue::data
