#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "data/store/event_store.h"
#include "train/run/scoring.h"

namespace segue::train {

/// The items that an event of the store has, ascending: what no event has was never trained on, and
/// its score says nothing.
std::vector<int64_t> catalogue(const data::EventStore& store);

struct RankedItem {
  int64_t item = 0;
  std::vector<float> scores;  // of every task
};

/// The `top` of `items` for a user at `time`, best first by the first task; of equal ones the one
/// with the lower number. `progress` gets the number of items done.
std::vector<RankedItem> rank_items(Trainer& trainer, const StoreScorer& scorer, int64_t user,
                                   int64_t time, std::span<const int64_t> items, int64_t top,
                                   const std::function<void(int64_t)>& progress = {});

}  // namespace segue::train
