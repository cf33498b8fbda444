#include "sparse/shard_plan.h"

#include <algorithm>

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
  const std::vector<int>& owners = placement.ranks;
  const auto at = std::ranges::find(owners, rank);
  LocalShard shard;
  shard.deal = {rows, 1};
  shard.columns = {0, dim};
  if (at == owners.end()) return shard;
  const int64_t place = at - owners.begin();
  const auto parts = static_cast<int64_t>(owners.size());
  switch (placement.sharding) {
    case Sharding::kTable:
    case Sharding::kReplicated:
      shard.part = 0;
      break;
    case Sharding::kRow:
    case Sharding::kTableRow:
      shard.deal.parts = parts;
      shard.part = place;
      break;
    case Sharding::kColumn:
      shard.part = 0;
      shard.columns = column_block(dim, place, parts);
      break;
    case Sharding::kAuto:
      SEGUE_ASSERT(false, "a plan has decided how every table is sharded");
  }
  return shard;
}

}  // namespace segue::sparse
