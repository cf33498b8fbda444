#include "sparse/shard_plan.h"

#include "base/error.h"

namespace segue::sparse {

ColumnBlock column_block(int64_t dim, int64_t block, int64_t blocks) {
  const int64_t unit = dim % 4 == 0 && dim / 4 >= blocks ? 4 : 1;
  const int64_t units = dim / unit;
  return {block * units / blocks * unit, (block + 1) * units / blocks * unit};
}

ShardPlan ShardPlan::single(int64_t tables) {
  ShardPlan plan;
  plan.tables.resize(static_cast<size_t>(tables));
  return plan;
}

LocalShard local_shard(const TablePlacement& placement, int64_t rows, int64_t dim, int rank) {
  const auto parts = static_cast<int64_t>(placement.ranks.size());
  const bool by_rows =
      placement.sharding == Sharding::kRow || placement.sharding == Sharding::kTableRow;
  SEGUE_ASSERT(placement.sharding != Sharding::kAuto && parts > 0, "a plan has decided");
  LocalShard shard;
  shard.partition = {rows, by_rows ? parts : 1};
  shard.columns = {0, dim};
  const int64_t place = placement.place_of(rank);
  if (place == parts) return shard;
  shard.part = by_rows ? place : 0;
  if (placement.sharding == Sharding::kColumn) shard.columns = column_block(dim, place, parts);
  return shard;
}

}  // namespace segue::sparse
