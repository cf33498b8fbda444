#include "balance/karmarkar_karp.h"

#include <algorithm>
#include <queue>

#include <fmt/format.h>

#include "base/error.h"

namespace segue::balance {
namespace {

constexpr int64_t kNone = -1;

/// Items of one set: a linked list through Differencing::next_, so that two sets join in O(1).
struct Set {
  int64_t sum = 0, count = 0;
  int64_t first = kNone, last = kNone;

  /// Lists are compared item by item; as no item is in two of them, the first one decides.
  bool above(const Set& other) const {
    if (sum != other.sum) return sum > other.sum;
    if (count != other.count) return count > other.count;
    return first > other.first;
  }
};

class Differencing {
 public:
  Differencing(std::span<const int64_t> weights, int64_t sets)
      : weights_(weights), sets_(sets), next_(weights.size(), kNone) {}

  std::vector<std::vector<int64_t>> run(Counts counts) {
    make_states(counts);
    const auto below = [this](int64_t a, int64_t b) { return comes_after(a, b); };
    std::priority_queue<int64_t, std::vector<int64_t>, decltype(below)> queue(below);
    const auto states = static_cast<int64_t>(all_.size()) / std::max<int64_t>(1, sets_);
    for (int64_t s = 0; s < states; ++s) queue.push(s);
    while (queue.size() > 1) {
      const int64_t a = queue.top();
      queue.pop();
      const int64_t b = queue.top();
      queue.pop();
      merge(a, b);
      queue.push(a);
    }
    return lists(queue.top());
  }

 private:
  Set* state(int64_t s) { return all_.data() + s * sets_; }
  const Set* state(int64_t s) const { return all_.data() + s * sets_; }

  void make_states(Counts counts) {
    std::vector<int64_t> order(weights_.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int64_t>(i);
    std::ranges::sort(order, [&](int64_t a, int64_t b) {
      const int64_t wa = weights_[static_cast<size_t>(a)], wb = weights_[static_cast<size_t>(b)];
      return wa != wb ? wa < wb : a < b;
    });
    const int64_t per_state = counts == Counts::kEqual ? sets_ : 1;
    for (size_t i = 0; i < order.size(); i += static_cast<size_t>(per_state)) {
      const size_t base = all_.size();
      all_.resize(base + static_cast<size_t>(sets_));
      for (int64_t j = 0; j < per_state; ++j) {
        const int64_t item = order[i + static_cast<size_t>(j)];
        // Ascending order, laid down from the back: descending.
        all_[base + static_cast<size_t>(per_state - 1 - j)] = {weights_[static_cast<size_t>(item)],
                                                               1, item, item};
      }
    }
  }

  int64_t spread(int64_t s) const { return state(s)[0].sum - state(s)[sets_ - 1].sum; }
  bool comes_after(int64_t a, int64_t b) const {
    if (spread(a) != spread(b)) return spread(a) < spread(b);
    return state(b)[0].above(state(a)[0]);
  }

  void merge(int64_t a, int64_t b) {
    Set* to = state(a);
    const Set* from = state(b);
    for (int64_t i = 0; i < sets_; ++i) append(to[i], from[sets_ - 1 - i]);
    std::sort(to, to + sets_, [](const Set& x, const Set& y) { return x.above(y); });
  }

  void append(Set& to, const Set& from) {
    if (from.count == 0) return;
    if (to.count == 0) {
      to = from;
      return;
    }
    next_[static_cast<size_t>(to.last)] = from.first;
    to.last = from.last;
    to.sum += from.sum;
    to.count += from.count;
  }

  std::vector<std::vector<int64_t>> lists(int64_t s) const {
    std::vector<std::vector<int64_t>> result(static_cast<size_t>(sets_));
    for (int64_t k = 0; k < sets_; ++k) {
      std::vector<int64_t>& list = result[static_cast<size_t>(k)];
      list.reserve(static_cast<size_t>(state(s)[k].count));
      for (int64_t i = state(s)[k].first; i != kNone; i = next_[static_cast<size_t>(i)]) {
        list.push_back(i);
      }
    }
    return result;
  }

  std::span<const int64_t> weights_;
  int64_t sets_ = 0;
  std::vector<int64_t> next_;  // [items]
  std::vector<Set> all_;       // [states][sets], each state descending
};

}  // namespace

std::vector<std::vector<int64_t>> karmarkar_karp(std::span<const int64_t> weights, int64_t sets,
                                                 Counts counts) {
  const auto n = static_cast<int64_t>(weights.size());
  if (sets <= 0) {
    fail(ErrorCode::kInvalidArgument,
         fmt::format("{} items cannot be partitioned into {} sets; there must be at least one", n,
                     sets));
  }
  if (counts == Counts::kEqual && n % sets != 0) {
    fail(ErrorCode::kInvalidArgument,
         fmt::format("{} items cannot be partitioned into {} sets of equal counts", n, sets));
  }
  if (const auto at = std::ranges::find_if(weights, [](int64_t w) { return w < 0; });
      at != weights.end()) {
    fail(ErrorCode::kInvalidArgument,
         fmt::format("item {} has the negative weight {}", at - weights.begin(), *at));
  }
  if (n == 0) return std::vector<std::vector<int64_t>>(static_cast<size_t>(sets));
  return Differencing(weights, sets).run(counts);
}

}  // namespace segue::balance
