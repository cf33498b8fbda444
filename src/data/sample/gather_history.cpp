// Histories: what is taken of every pool, and how it becomes events of a batch.

#include <algorithm>
#include <array>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "data/sample/gather.h"

namespace segue::data {
namespace {

// A merge key: the position counted from the user's first event, then a bit per pool and one for
// what is predicted.
constexpr size_t kMaxLists = kMaxPools + 1;
constexpr int kMaskBits = static_cast<int>(kMaxLists);

/// Union of keys and positions, both ascending; an event in both keeps both bits. Returns its size.
/// Without branches on the data: which list comes next is as good as random.
int64_t unite(const int64_t* keys, int64_t num_keys, const uint32_t* positions,
              int64_t num_positions, int64_t bit, int64_t* out) {
  int64_t i = 0, j = 0, n = 0;
  while (i < num_keys && j < num_positions) {
    const int64_t a = keys[i] >> kMaskBits;
    const int64_t b = positions[j];
    const bool take_a = a <= b, take_b = b <= a;
    out[n++] = (take_a ? keys[i] : b << kMaskBits) | (take_b ? bit : 0);
    i += take_a;
    j += take_b;
  }
  for (; i < num_keys; ++i) out[n++] = keys[i];
  for (; j < num_positions; ++j) out[n++] = int64_t{positions[j]} << kMaskBits | bit;
  return n;
}

/// Unites what was taken into keys; both arrays have room for all of it. Returns their number.
int64_t merge(std::span<const std::span<const uint32_t>> taken, int64_t* result, int64_t* scratch) {
  // Short lists first: long ones are then walked once.
  std::array<size_t, kMaxLists> order{};
  for (size_t p = 0; p < taken.size(); ++p) {
    size_t at = p;
    for (; at > 0 && taken[order[at - 1]].size() > taken[p].size(); --at) order[at] = order[at - 1];
    order[at] = p;
  }
  // The last union must land in `result`.
  int64_t* from = taken.size() % 2 == 0 ? result : scratch;
  int64_t* to = taken.size() % 2 == 0 ? scratch : result;
  int64_t n = 0;
  for (size_t i = 0; i < taken.size(); ++i) {
    const std::span<const uint32_t> list = taken[order[i]];
    n = unite(from, n, list.data(), static_cast<int64_t>(list.size()), int64_t{1} << order[i], to);
    std::swap(from, to);
  }
  return n;
}

}  // namespace

/// The last positions of a pool in the scan range.
std::span<const uint32_t> Gatherer::take(size_t pool, const Anchor& anchor,
                                         const Budget& budget) const {
  const std::span<const uint32_t> all = pools_[anchor.piece].of_user(pool, anchor.user);
  const auto end_position = static_cast<uint32_t>(anchor.offset());
  const auto begin_position =
      static_cast<uint32_t>(std::max<int64_t>(0, anchor.offset() - budget.scan));
  const uint32_t* const end = std::lower_bound(all.data(), all.data() + all.size(), end_position);
  const uint32_t* begin = std::lower_bound(all.data(), end, begin_position);
  begin = std::max(begin, end - std::min<int64_t>(end - begin, budget.of_pool[pool]));
  // Nothing at or behind the anchor may enter its history, not even through a damaged index.
  uint32_t latest = 0;
  for (const uint32_t* p = begin; p != end; ++p) latest = std::max(latest, *p);
  if (begin != end && latest >= end_position) {
    fail(ErrorCode::kCorrupt, fmt::format("{}: positions of user {} are not in order; remove the "
                                          "file, it is made again",
                                          pools_[anchor.piece].path(), anchor.user));
  }
  return {begin, end};
}

/// An event carries the bits of all its pools, also of one that had its share without it.
void Gatherer::complete_masks(const Anchor& anchor, std::span<int64_t> keys) const {
  for (size_t p = 0; p < num_pools_; ++p) {
    const uint8_t* const in_pool = log_.piece(anchor.piece).in_pool(p).data() + anchor.user_start;
    for (int64_t& key : keys) key |= int64_t{in_pool[key >> kMaskBits] != 0} << p;
  }
}

/// Writes items, actions and times behind the first `used` events; returns how many there are now.
int64_t Gatherer::append_history(const Anchor& anchor, int64_t used, Batch& batch) const {
  if (anchor.labelled.empty()) return append_newest(anchor, kept_, used, batch);
  // Shares of pools, or of the newest, that counted what is predicted would tell its labels to the
  // events before.
  Anchor first = anchor;
  first.position = anchor.user_start + anchor.labelled.front();
  first.labelled = {};
  used = append_newest(first, kept_ - config_.sample_events, used, batch);
  Budget rest;
  rest.scan = anchor.position - first.position;
  SEGUE_ASSERT(rest.scan <= config_.sample_events, "a sample of too many events");
  rest.of_pool.fill(rest.scan);
  return append_pieces(anchor, rest, used, batch);
}

/// The newest `most` events before the anchor.
int64_t Gatherer::append_newest(const Anchor& anchor, int64_t most, int64_t used,
                                Batch& batch) const {
  const int64_t end = append_pieces(anchor, budget_, used, batch);
  const int64_t excess = end - used - std::min(end - used, most);
  if (excess == 0) return end;
  for (const int number : history_columns_) {
    int64_t* const values = batch.columns[static_cast<size_t>(number)].values.data();
    std::copy(values + used + excess, values + end, values + used);
  }
  move_history_numbers(used + excess, end, used, batch);
  return end - excess;
}

/// The same, but each piece of the log gives the newest `kept_` events.
int64_t Gatherer::append_pieces(const Anchor& anchor, const Budget& budget, int64_t used,
                                Batch& batch) const {
  std::array<std::span<const uint32_t>, kMaxLists> taken;
  const size_t lists = num_pools_ + (anchor.labelled.empty() ? 0 : 1);
  if (lists > num_pools_) taken[num_pools_] = anchor.labelled;
  Budget rest = budget;
  auto most = std::ssize(anchor.labelled);
  for (size_t p = 0; p < num_pools_; ++p) {
    taken[p] = take(p, anchor, budget);
    most += static_cast<int64_t>(taken[p].size());
    rest.of_pool[p] -= static_cast<int64_t>(taken[p].size());
  }
  rest.scan -= anchor.offset();
  for (size_t p = anchor.piece; p-- > 0 && rest.scan > 0;) {
    const UserEvents of = log_.piece(p).events_of(anchor.user);
    if (of.begin == of.end) continue;
    used = append_pieces({p, of.end, of.user, of.begin}, rest, used, batch);
    break;
  }
  const auto column = [&](int number) {
    HostArray<int64_t>& values = batch.columns[static_cast<size_t>(number)].values;
    values.resize(used + most);
    return values.data() + used;
  };
  int64_t* const items = column(history_items_);
  int64_t* const actions = column(history_actions_);
  int64_t* const times = column(history_times_);
  int64_t* const labels = config_.labelled_events() ? column(history_labels_) : nullptr;
  for (size_t c = 0; labels != nullptr && c < crosses_.size(); ++c) {
    column(history_crosses_ + static_cast<int>(c));
  }

  // The keys are merged where actions and times will be: no other memory is needed.
  const int64_t merged = merge({taken.data(), lists}, actions, times);
  const int64_t count = std::min(merged, kept_);
  int64_t* const keys = actions + (merged - count);  // never behind what is written
  if (pools_[anchor.piece].num_shared() > 0 || lists > num_pools_)
    complete_masks(anchor, {keys, static_cast<size_t>(count)});
  resize_history_numbers(used + count, batch);
  const EventStore& piece = log_.piece(anchor.piece);
  const int64_t* const user_items = piece.items().data() + anchor.user_start;
  const int64_t* const user_times = piece.timestamps().data() + anchor.user_start;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t key = keys[i];
    const int64_t position = key >> kMaskBits;
    put_history_numbers(anchor, position, used + i, batch);
    items[i] = user_items[position];
    times[i] = user_times[position];
    actions[i] = action_of_mask_[static_cast<size_t>(key) & ((size_t{1} << num_pools_) - 1)];
    if (labels == nullptr) continue;
    const bool labelled = (key >> num_pools_ & 1) != 0;
    const auto at = static_cast<size_t>(anchor.user_start + position);
    labels[i] = labelled ? label_at(piece, at) : -1;
    // NOLINTNEXTLINE(bugprone-signed-char-misuse): a number
    const int64_t organic = piece.organic()[at];
    put_history_crosses(anchor.user, {.item = items[i], .time = times[i], .organic = organic},
                        used + i, batch);
  }
  return used + count;
}

}  // namespace segue::data
