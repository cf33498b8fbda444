#include "balance/partition.h"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "balance/karmarkar_karp.h"
#include "base/error.h"

namespace segue::balance {
namespace {

/// Swaps stop after looking at about this many items per item: a bound for hopeless inputs.
constexpr int64_t kPasses = 400;

struct Set {
  int64_t sum = 0;
  std::vector<int64_t> items;  // ascending by weight, then number
};

struct Swap {
  int64_t worse = std::numeric_limits<int64_t>::max();  // heavier of the two sets afterwards
  size_t set = 0, from_heavy = 0, from_other = 0;       // places of the items
};

/// Makes the heaviest set lighter, step by step. Counts do not change.
class Refinement {
 public:
  Refinement(std::span<const int64_t> weights, std::vector<std::vector<int64_t>>& lists)
      : weights_(weights), lists_(lists), work_(kPasses * static_cast<int64_t>(weights.size())) {
    for (std::vector<int64_t>& list : lists_) {
      Set& set = sets_.emplace_back();
      set.items = std::move(list);
      std::ranges::sort(set.items, [this](int64_t a, int64_t b) { return lighter(a, b); });
      for (const int64_t i : set.items) set.sum += weight(i);
      total_ += set.sum;
    }
  }

  void run(double good_enough) {
    const double mean = static_cast<double>(total_) / static_cast<double>(sets_.size());
    const auto target = static_cast<int64_t>(mean * good_enough);
    while (work_ > 0) {
      const size_t heavy = heaviest();
      if (sets_[heavy].sum <= target) break;
      const Swap swap = best_swap(heavy, target);
      if (swap.worse >= sets_[heavy].sum) break;
      apply(heavy, swap);
    }
    for (size_t s = 0; s < sets_.size(); ++s) lists_[s] = std::move(sets_[s].items);
  }

 private:
  int64_t weight(int64_t item) const { return weights_[static_cast<size_t>(item)]; }
  bool lighter(int64_t a, int64_t b) const {
    return weight(a) != weight(b) ? weight(a) < weight(b) : a < b;
  }
  size_t heaviest() const {
    return static_cast<size_t>(std::ranges::max_element(sets_, {}, &Set::sum) - sets_.begin());
  }

  /// The swap that leaves the lower of all possible "heavier of the two"; light partners first, and
  /// the first one that reaches the target is taken.
  Swap best_swap(size_t heavy, int64_t target) {
    std::vector<size_t> order(sets_.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::ranges::sort(order, [this](size_t a, size_t b) {
      return sets_[a].sum != sets_[b].sum ? sets_[a].sum < sets_[b].sum : a < b;
    });
    Swap best;
    for (const size_t other : order) {
      if (other == heavy) continue;
      look_at(heavy, other, best);
      if (best.worse <= target) break;
    }
    return best;
  }

  /// The weight that should move is half the difference; both lists are ascending, so the pair that
  /// comes nearest is found in one walk.
  void look_at(size_t heavy, size_t other, Swap& best) {
    const Set& h = sets_[heavy];
    const Set& o = sets_[other];
    work_ -= static_cast<int64_t>(h.items.size() + o.items.size());
    size_t j = 0;
    for (size_t i = 0; i < h.items.size(); ++i) {
      const auto worse = [&](size_t place) {
        const int64_t moved = weight(h.items[i]) - weight(o.items[place]);
        return std::max(h.sum - moved, o.sum + moved);
      };
      while (j + 1 < o.items.size() && worse(j + 1) <= worse(j)) ++j;
      if (j < o.items.size() && worse(j) < best.worse) best = {worse(j), other, i, j};
    }
  }

  void apply(size_t heavy, const Swap& swap) {
    Set& h = sets_[heavy];
    Set& o = sets_[swap.set];
    const int64_t a = h.items[swap.from_heavy], b = o.items[swap.from_other];
    replace(h, swap.from_heavy, b);
    replace(o, swap.from_other, a);
    h.sum += weight(b) - weight(a);
    o.sum += weight(a) - weight(b);
  }
  void replace(Set& set, size_t place, int64_t item) {
    set.items.erase(set.items.begin() + static_cast<std::ptrdiff_t>(place));
    set.items.insert(std::ranges::upper_bound(
                         set.items, item, [this](int64_t x, int64_t y) { return lighter(x, y); }),
                     item);
  }

  std::span<const int64_t> weights_;
  std::vector<std::vector<int64_t>>& lists_;
  std::vector<Set> sets_;
  int64_t total_ = 0;
  int64_t work_ = 0;
};

/// Heaviest overlap first, each set goes to the rank that holds most of its weight; what is left
/// goes in order. Which set a rank gets does not matter for balance, only for what has to travel.
std::vector<std::vector<int64_t>> give_to_holders(std::vector<std::vector<int64_t>> sets,
                                                  std::span<const int64_t> weights,
                                                  std::span<const int32_t> origins) {
  struct Overlap {
    int64_t weight = 0;
    size_t set = 0, rank = 0;
  };
  std::vector<Overlap> overlaps;
  std::map<size_t, int64_t> held;
  for (size_t s = 0; s < sets.size(); ++s) {
    held.clear();
    for (const int64_t i : sets[s]) {
      const auto item = static_cast<size_t>(i);
      held[static_cast<size_t>(origins[item])] += weights[item];
    }
    for (const auto& [rank, weight] : held) overlaps.push_back({weight, s, rank});
  }
  std::ranges::stable_sort(overlaps, std::greater<>(), &Overlap::weight);

  std::vector<std::vector<int64_t>> ranks(sets.size());
  std::vector<bool> given(sets.size()), served(sets.size());
  const auto give = [&](size_t set, size_t rank) {
    ranks[rank] = std::move(sets[set]);
    given[set] = served[rank] = true;
  };
  for (const Overlap& o : overlaps) {
    if (!given[o.set] && !served[o.rank]) give(o.set, o.rank);
  }
  size_t rank = 0;
  for (size_t s = 0; s < sets.size(); ++s) {
    if (given[s]) continue;
    while (served[rank]) ++rank;
    give(s, rank);
  }
  return ranks;
}

/// Where samples lie, when that is already as even as a partition would be asked to make it.
std::optional<std::vector<std::vector<int64_t>>> even_already(std::span<const int64_t> weights,
                                                              std::span<const int32_t> origins,
                                                              int64_t ranks, double good_enough) {
  std::vector<std::vector<int64_t>> lists(static_cast<size_t>(ranks));
  std::vector<int64_t> loads(lists.size(), 0);
  for (size_t i = 0; i < origins.size(); ++i) {
    const auto rank = static_cast<size_t>(origins[i]);
    lists[rank].push_back(static_cast<int64_t>(i));
    loads[rank] += weights[i];
  }
  const auto [few, many] = std::ranges::minmax(lists, {}, &std::vector<int64_t>::size);
  if (many.size() - few.size() > 1 || imbalance(loads).over_mean > good_enough) return std::nullopt;
  return lists;
}

}  // namespace

Imbalance imbalance(std::span<const int64_t> loads) {
  if (loads.empty()) return {};
  const auto [low, high] = std::ranges::minmax(loads);
  const double sum = std::accumulate(loads.begin(), loads.end(), 0.0);
  if (high <= 0) return {};
  return {static_cast<double>(high) * static_cast<double>(loads.size()) / sum,
          static_cast<double>(high - low) / static_cast<double>(high)};
}

std::vector<std::vector<int64_t>> partition(std::span<const int64_t> costs,
                                            std::span<const int32_t> origins, int64_t ranks,
                                            const PartitionOptions& options) {
  SEGUE_ASSERT(costs.size() == origins.size(), "every sample lies somewhere");
  for (const int32_t origin : origins) {
    if (origin < 0 || origin >= ranks) {
      fail(ErrorCode::kInvalidArgument,
           fmt::format("a sample lies on rank {}, but there are {} ranks", origin, ranks));
    }
  }
  // A real sample weighs at least 1. Weight 0 is for the empty places that make the counts equal:
  // they are fewer than ranks and all in the lightest group, so no rank gets two of them.
  std::vector<int64_t> weights;
  for (const int64_t cost : costs) weights.push_back(std::max<int64_t>(1, cost));
  const bool refined = options.mode == PartitionMode::kRefined;
  if (refined && ranks > 0) {
    if (auto lists = even_already(weights, origins, ranks, options.good_enough)) return *lists;
  }
  const auto real = static_cast<int64_t>(weights.size());
  if (ranks > 0) weights.resize(static_cast<size_t>((real + ranks - 1) / ranks * ranks), 0);

  std::vector<std::vector<int64_t>> sets = karmarkar_karp(weights, ranks);
  for (std::vector<int64_t>& set : sets) {
    std::erase_if(set, [real](int64_t item) { return item >= real; });
  }
  if (refined) {
    Refinement(weights, sets).run(options.good_enough);
    sets = give_to_holders(std::move(sets), weights, origins);
  }
  for (std::vector<int64_t>& set : sets) std::ranges::sort(set);
  return sets;
}

}  // namespace segue::balance
