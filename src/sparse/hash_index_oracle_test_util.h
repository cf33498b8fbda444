#pragma once

// For tests only.

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <tuple>
#include <vector>

#include "sparse/hash_index_rules.h"
#include "sparse/hash_index_test_util.h"

namespace segue::sparse::test {

/// The rules said once more, one key after the other. Shares nothing with the index but the mixing
/// of keys and the number of uses that a key needs.
class Oracle {
 public:
  struct Entry {
    bool has_row = false;
    int64_t step = 0, score = 0, time = 0;
  };
  struct Bucket {
    std::map<int64_t, Entry> held;
    int64_t rows = 0;  // of these that have one
  };

  explicit Oracle(const HashIndexConfig& config)
      : c_(config),
        rules_(detail::rules_of(config)),
        gated_(c_.admit_after > 1 || c_.admit_share < 1) {
    rows_each_ = gated_ ? 64 : 128;
    const int64_t most = (c_.max_rows + rows_each_ - 1) / rows_each_;
    while (shards_ * 2 <= most / 4 && shards_ < 1024) {
      shards_ *= 2;
      ++bits_;
    }
    const int64_t start = c_.start_rows == 0 ? c_.max_rows : c_.start_rows;
    largest_ = (c_.max_rows + shards_ * rows_each_ - 1) / (shards_ * rows_each_);
    tables_.assign(static_cast<size_t>(shards_),
                   std::vector<Bucket>(static_cast<size_t>((start + shards_ * rows_each_ - 1) /
                                                           (shards_ * rows_each_))));
  }

  HashFound find_or_insert(const HashBatch& b) {
    HashFound found{std::vector<int64_t>(b.keys.size(), -1),
                    std::vector<uint8_t>(b.keys.size(), 0)};
    if (c_.ttl_seconds > 0) {
      std::set<Bucket*> touched;
      for (const int64_t key : b.keys) touched.insert(&bucket(key));
      for (Bucket* each : touched) expire(*each, b);
    }
    std::vector<int> wish(b.keys.size(), 0);  // 1: a row
    std::map<size_t, std::map<Bucket*, int64_t>> wishes;
    for (size_t i = 0; i < b.keys.size(); ++i) {
      wish[i] = use(b, i, found);
      if (wish[i] != 0) ++wishes[shard(b.keys[i])][&bucket(b.keys[i])];
    }
    for (const auto& [at, in_buckets] : wishes) {
      const bool overflows = std::ranges::any_of(in_buckets, [&](const auto& each) {
        return each.first->rows + each.second > rows_each_;
      });
      if (overflows) grow(at, b, wish);
    }
    for (size_t i = 0; i < b.keys.size(); ++i) insert(b, i, wish[i] != 0, found);
    return found;
  }

  const Entry* find(int64_t key) {
    const std::map<int64_t, Entry>& own = bucket(key).held;
    const auto it = own.find(key);
    return it == own.end() ? nullptr : &it->second;
  }

  HashIndex::Counts counts() const {
    HashIndex::Counts c = counts_;
    for (const std::vector<Bucket>& table : tables_) {
      c.capacity += static_cast<int64_t>(table.size()) * rows_each_;
      c.slots += static_cast<int64_t>(table.size()) * 128;
      for (const Bucket& each : table) {
        c.rows += each.rows;
        c.candidates += static_cast<int64_t>(each.held.size()) - each.rows;
      }
    }
    return c;
  }

  /// Rows are 0 for all that have one.
  HashIndex::Entries entries() const {
    HashIndex::Entries e;
    for (const std::vector<Bucket>& table : tables_) {
      e.buckets.push_back(static_cast<int64_t>(table.size()));
      for (const Bucket& each : table) {
        for (const auto& [key, entry] : each.held) {
          e.keys.push_back(key);
          e.rows.push_back(entry.has_row ? 0 : -1);
          e.steps.push_back(entry.step);
          if (gated_ || c_.evict != Evict::kLru) e.scores.push_back(entry.score);
          if (c_.ttl_seconds > 0) e.times.push_back(entry.time);
        }
      }
    }
    return e;
  }

  size_t shard(int64_t key) const {
    const uint64_t u = static_cast<uint64_t>(key) + (uint64_t{1} << 63);
    return bits_ == 0 ? 0 : static_cast<size_t>(u >> (64 - bits_));
  }

 private:
  size_t place(int64_t key, size_t buckets) const {
    __extension__ using Wide = unsigned __int128;
    const Wide u = static_cast<uint64_t>(key) + (uint64_t{1} << 63);
    const Wide within = u - (static_cast<Wide>(shard(key)) << (64 - bits_));
    return static_cast<size_t>(within * buckets >> (64 - bits_));
  }
  Bucket& bucket(int64_t key) {
    std::vector<Bucket>& table = tables_[shard(key)];
    return table[place(key, table.size())];
  }
  static void forget(Bucket& own, std::map<int64_t, Entry>::iterator it) {
    own.rows -= it->second.has_row ? 1 : 0;
    own.held.erase(it);
  }

  void expire(Bucket& own, const HashBatch& b) {
    __extension__ using Wide = __int128;
    for (auto it = own.held.begin(); it != own.held.end();) {
      const auto each = it++;
      const Entry& e = each->second;
      if (static_cast<Wide>(e.time) + c_.ttl_seconds >= b.time || e.step + 1 >= b.step) continue;
      counts_.expired += e.has_row ? 1 : 0;
      forget(own, each);
    }
  }

  bool admitted(int64_t key, int64_t uses) const {
    return !gated_ || uses >= rules_.needed_uses(key);
  }

  int use(const HashBatch& b, size_t i, HashFound& found) {
    std::map<int64_t, Entry>& own = bucket(b.keys[i]).held;
    const auto it = own.find(b.keys[i]);
    if (it == own.end()) return admitted(b.keys[i], b.uses[i]) ? 1 : 0;
    Entry& e = it->second;
    e.step = b.step;
    e.time = b.time;
    if (!e.has_row) {
      e.score += b.uses[i];
      return admitted(b.keys[i], e.score) ? 1 : 0;
    }
    found.rows[i] = 0;
    if (c_.evict == Evict::kLfu) e.score += b.uses[i];
    if (c_.evict == Evict::kScore) e.score = b.scores[i];
    return 0;
  }

  void grow(size_t at, const HashBatch& b, const std::vector<int>& wish) {
    if (static_cast<int64_t>(tables_[at].size()) == largest_) return;
    const std::vector<Bucket> old = tables_[at];
    auto size = static_cast<int64_t>(old.size());
    const int64_t before = size;
    while (size < largest_) {
      size = std::min(largest_, std::max(size + 1, size + size / 2));
      std::vector<Bucket> grown(static_cast<size_t>(size));
      for (const Bucket& each : old) {
        for (const auto& e : each.held) {
          Bucket& to = grown[place(e.first, grown.size())];
          to.held.insert(e);
          to.rows += e.second.has_row ? 1 : 0;
        }
      }
      std::vector<int64_t> wished(grown.size(), 0);
      for (size_t i = 0; i < b.keys.size(); ++i) {
        if (shard(b.keys[i]) == at) wished[place(b.keys[i], grown.size())] += wish[i];
      }
      bool holds = true, suffices = true;
      for (size_t j = 0; j < grown.size(); ++j) {
        holds = holds && grown[j].rows <= rows_each_ && grown[j].held.size() <= 128;
        suffices = suffices && grown[j].rows + wished[j] <= rows_each_;
      }
      if (holds) tables_[at] = grown;
      if (holds && suffices) break;
    }
    counts_.growths += static_cast<int64_t>(tables_[at].size()) != before ? 1 : 0;
  }

  using Order = std::tuple<int64_t, int64_t, int64_t>;
  Order order_of(const Entry& e, int64_t key) const {
    if (!e.has_row) return {e.score, e.step, key};
    if (c_.evict == Evict::kLru) return {e.step, key, 0};
    if (c_.evict == Evict::kAge) return {e.score, key, 0};
    return {e.score, e.step, key};
  }
  bool evict(Bucket& own, bool row, int64_t now) {
    auto lowest = own.held.end();
    Order least;
    for (auto it = own.held.begin(); it != own.held.end(); ++it) {
      const Entry& e = it->second;
      if (e.has_row != row || e.step + (row ? 1 : 0) >= now) continue;
      const Order mine = order_of(e, it->first);
      if (lowest == own.held.end() || mine < least) lowest = it, least = mine;
    }
    if (lowest == own.held.end()) return false;
    counts_.evicted += row ? 1 : 0;
    forget(own, lowest);
    return true;
  }

  void insert(const HashBatch& b, size_t i, bool wants_row, HashFound& found) {
    Bucket& own = bucket(b.keys[i]);
    const auto it = own.held.find(b.keys[i]);
    const bool present = it != own.held.end();
    if (present && !wants_row) return;
    const int64_t uses = present ? it->second.score : b.uses[i];
    if (wants_row && own.rows == rows_each_) {
      if (!evict(own, true, b.step)) {
        ++counts_.refused;
        return;
      }
    } else if (!present && own.held.size() == 128) {
      if (!evict(own, false, b.step) && !evict(own, true, b.step)) {
        ++counts_.refused;
        return;
      }
    }
    Entry& e = own.held[b.keys[i]];
    e = {wants_row, b.step, uses, b.time};
    if (!wants_row) return;
    ++own.rows;
    ++counts_.inserted;
    found.rows[i] = 0;
    found.is_new[i] = 1;
    if (c_.evict == Evict::kLru) e.score = 0;
    if (c_.evict == Evict::kAge) e.score = b.time;
    if (c_.evict == Evict::kScore) e.score = b.scores[i];
  }

  HashIndexConfig c_;
  detail::IndexRules rules_;
  bool gated_;
  int64_t rows_each_, shards_ = 1, largest_ = 1;
  int bits_ = 0;
  std::vector<std::vector<Bucket>> tables_;
  HashIndex::Counts counts_;
};

}  // namespace segue::sparse::test
