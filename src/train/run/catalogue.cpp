#include "train/run/catalogue.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "data/inspect/id_ranges.h"
#include "data/store/event_log.h"

namespace segue::train {

std::vector<int64_t> catalogue(const data::EventStore& store) {
  const data::EventLog log(store);
  std::vector<int64_t> items;
  const std::vector<bool> occur = data::items_that_occur(log);
  for (size_t i = 0; i < occur.size(); ++i) {
    if (occur[i]) items.push_back(static_cast<int64_t>(i));
  }
  if (!occur.empty()) return items;
  for (size_t p = 0; p < log.num_pieces(); ++p) {
    const std::span<const int64_t> of_piece = log.piece(p).items();
    items.insert(items.end(), of_piece.begin(), of_piece.end());
    std::ranges::sort(items);
    items.erase(std::unique(items.begin(), items.end()), items.end());
  }
  return items;
}

std::vector<RankedItem> rank_items(Trainer& trainer, const StoreScorer& scorer, int64_t user,
                                   int64_t time, std::span<const int64_t> items, int64_t top,
                                   const std::function<void(int64_t)>& progress) {
  std::vector<data::CandidateQuery> questions;
  questions.reserve(items.size());
  for (const int64_t item : items) {
    questions.push_back({.user = user, .item = item, .time = time, .organic = scorer.organic()});
  }
  std::vector<std::vector<float>> scores(trainer.model().tasks().size());  // by task
  scorer.score(trainer, questions, [&](const model::Pass& pass) {
    for (size_t k = 0; k < scores.size(); ++k) {
      const std::span<const float> p = of_task(pass.predictions, k, pass.num_labels);
      scores[k].insert(scores[k].end(), p.begin(), p.end());
    }
    if (progress) progress(static_cast<int64_t>(scores.front().size()));
  });

  const auto rank_of = [&](size_t i) {
    const float score = scores.front()[i];
    return std::isnan(score) ? -std::numeric_limits<float>::infinity() : score;
  };
  std::vector<size_t> order(items.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const auto kept = std::min(order.size(), static_cast<size_t>(top));
  const auto end = order.begin() + static_cast<std::ptrdiff_t>(kept);
  std::partial_sort(order.begin(), end, order.end(), [&](size_t a, size_t b) {
    return rank_of(a) != rank_of(b) ? rank_of(a) > rank_of(b) : items[a] < items[b];
  });
  std::vector<RankedItem> ranked;
  for (auto i = order.begin(); i != end; ++i) {
    ranked.push_back({.item = items[*i], .scores = {}});
    for (const std::vector<float>& task : scores) ranked.back().scores.push_back(task[*i]);
  }
  return ranked;
}

}  // namespace segue::train
