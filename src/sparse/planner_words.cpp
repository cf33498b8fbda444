// Plans in words, for people and for ranks that compare theirs.

#include "sparse/planner_words.h"

#include <fmt/format.h>

#include "sparse/planner.h"

namespace segue::sparse {

std::string how_shared(const TablePlacement& p) {
  const auto n = p.ranks.size();
  switch (p.sharding) {
    case Sharding::kTable:
      return fmt::format("whole on rank {}", p.ranks.front());
    case Sharding::kRow:
      return fmt::format("rows split over all {} ranks", n);
    case Sharding::kColumn:
      return fmt::format("columns cut into {} blocks", n);
    case Sharding::kTableRow:
      return fmt::format("rows split over ranks {} to {} of one machine", p.ranks.front(),
                         p.ranks.back());
    default:
      return fmt::format("a copy on each of {} ranks", n);
  }
}

std::string_view to_string(Sharding sharding) {
  constexpr std::string_view kNames[] = {"auto",   "table",     "row",
                                         "column", "table_row", "replicated"};
  return kNames[static_cast<size_t>(sharding)];
}

std::string_view to_string(Tier tier) {
  constexpr std::string_view kNames[] = {"device", "host", "cached", "file"};
  return kNames[static_cast<size_t>(tier)];
}

std::string to_text(const ShardPlan& plan) {
  std::string text = fmt::format("{} ranks", plan.ranks);
  for (const TablePlacement& p : plan.tables) {
    text += fmt::format("; {} ", to_string(p.sharding));
    if (p.tier != Tier::kDevice) text += fmt::format("{} {} ", to_string(p.tier), p.cache_rows);
    text += fmt::format("{}", fmt::join(p.ranks, ","));
  }
  return text;
}

}  // namespace segue::sparse
