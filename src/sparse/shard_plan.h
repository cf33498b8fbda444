#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "base/rng.h"

namespace segue::sparse {

/// How a table is spread over ranks. kTableRow partitions the rows over some of them (those of one
/// machine), kRow over all; kReplicated keeps a copy everywhere.
enum class Sharding { kAuto, kTable, kRow, kColumn, kTableRow, kReplicated };

/// Where the rows lie: in device memory; in host memory or in a file behind a cache in device
/// memory. kHost has the smallest such cache, room for the batches in flight.
enum class Tier { kDevice, kHost, kCached, kFile };

/// Rows in `parts` parts: every `parts` consecutive rows go to different parts, rotated by a hash
/// of the group. So neither popular ids that lie together nor ids with a common stride load one
/// part more than another, and both directions are computed, not stored.
struct RowPartition {
  int64_t rows = 0, parts = 1;

  int64_t part_of(int64_t row) const { return (row % parts + turn(row / parts)) % parts; }
  int64_t slot_of(int64_t row) const { return row / parts; }
  /// Rows numbered part by part: slot `s` of part p is p * slots() + s.
  int64_t permuted(int64_t row) const { return part_of(row) * slots() + slot_of(row); }
  int64_t slots() const { return (rows + parts - 1) / parts; }
  int64_t row_of(int64_t part, int64_t slot) const {
    return slot * parts + (part + parts - turn(slot)) % parts;
  }
  /// Slots of a part that hold a row: 0 ... count - 1.
  int64_t count(int64_t part) const {
    const int64_t whole = rows / parts;
    return whole + (rows % parts != 0 && row_of(part, whole) < rows ? 1 : 0);
  }

 private:
  int64_t turn(int64_t group) const {
    return parts == 1 ? 0
                      : static_cast<int64_t>(base::splitmix64(static_cast<uint64_t>(group)) %
                                             static_cast<uint64_t>(parts));
  }
};

/// Where one table lies. `ranks` are its owners: one (kTable), the owner of each part of the rows
/// (kRow, kTableRow), of each block of columns (kColumn), or all ranks (kReplicated).
struct TablePlacement {
  Sharding sharding = Sharding::kTable;
  Tier tier = Tier::kDevice;
  std::vector<int> ranks{0};
  std::string reason;      // one sentence, for people
  int64_t cache_rows = 0;  // of each owner, where it is not on the device; 0: as the config says

  /// Of a rank among the owners; their number if it is none of them.
  int64_t place_of(int rank) const { return std::ranges::find(ranks, rank) - ranks.begin(); }
};

/// Columns [begin, end) of block `block` of `blocks`: multiples of 4 where the width allows it.
struct ColumnBlock {
  int64_t begin = 0, end = 0;
  int64_t width() const { return end - begin; }
};
ColumnBlock column_block(int64_t dim, int64_t block, int64_t blocks);

/// One placement per table of the config, in its order.
struct ShardPlan {
  int ranks = 1;
  std::vector<TablePlacement> tables;

  /// Everything on the only rank.
  static ShardPlan single(int64_t tables);
};

/// What rank `rank` keeps of a table: nothing, or some rows and columns.
struct LocalShard {
  RowPartition partition;  // of the rows
  int64_t part = -1;       // -1: nothing
  ColumnBlock columns;
  int64_t rows() const { return part < 0 ? 0 : partition.count(part); }
};
LocalShard local_shard(const TablePlacement& placement, int64_t rows, int64_t dim, int rank);

}  // namespace segue::sparse
