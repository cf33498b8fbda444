#include "data/store/pool_index.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "base/parallel.h"

namespace segue::data {
namespace {

constexpr int64_t kEventsOfRun = int64_t{2} << 20;

// Sections of the file: facts, then offsets and positions of every pool.
constexpr size_t kFacts = 0;
constexpr size_t offsets_section(size_t pool) { return 1 + 2 * pool; }
constexpr size_t positions_section(size_t pool) { return 2 + 2 * pool; }

/// Two passes over the columns: count per user, then write the slice of every run of users.
class Builder {
 public:
  explicit Builder(const EventStore& store)
      : store_(store),
        num_pools_(store.schema().pools.size()),
        runs_(store.user_runs(kEventsOfRun)),
        progress_("pools", 2 * store.num_events(), "events"),
        offsets_(num_pools_, std::vector<int64_t>(store.user_start().size() + 1, 0)) {}

  void write(const std::string& path, uint64_t key) {
    for_runs([&](size_t run) { count(run); });
    std::vector<int64_t> sizes = {sizeof(int64_t)};
    for (std::vector<int64_t>& offsets : offsets_) {
      for (size_t i = 1; i < offsets.size(); ++i) offsets[i] += offsets[i - 1];
      sizes.push_back(static_cast<int64_t>(offsets.size() * sizeof(int64_t)));
      sizes.push_back(offsets.back() * static_cast<int64_t>(sizeof(uint32_t)));
    }
    IndexWriter writer(path, key, sizes);
    const std::array<int64_t, 1> facts = {num_shared_};
    writer.write_items(kFacts, 0, std::span<const int64_t>(facts));
    for (size_t p = 0; p < num_pools_; ++p) {
      writer.write_items(offsets_section(p), 0, std::span<const int64_t>(offsets_[p]));
    }
    for_runs([&](size_t run) {
      for (size_t p = 0; p < num_pools_; ++p) write_run(run, p, writer);
    });
    writer.commit();
  }

 private:
  struct Range {
    size_t begin = 0, end = 0;
  };
  Range events_of(int64_t uid) const {
    const auto u = static_cast<size_t>(uid);
    return {static_cast<size_t>(store_.user_start()[u]), static_cast<size_t>(store_.user_end()[u])};
  }
  std::span<const int64_t> users_of(size_t run) const {
    return store_.unique_users().subspan(runs_[run], runs_[run + 1] - runs_[run]);
  }

  template <class Action>
  void for_runs(Action action) {
    base::parallel_for(static_cast<int64_t>(runs_.size()) - 1, 1, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const auto run = static_cast<size_t>(r);
        action(run);
        const std::span<const int64_t> users = users_of(run);
        const size_t first = events_of(users.front()).begin;
        const size_t count = events_of(users.back()).end - first;
        for (size_t p = 0; p < num_pools_; ++p) forget(store_.in_pool(p).subspan(first, count));
        progress_.add(static_cast<int64_t>(count));
      }
    });
  }

  void count(size_t run) {
    int64_t shared = 0;
    std::vector<uint8_t> pools_of_event;
    for (const int64_t uid : users_of(run)) {
      const Range events = events_of(uid);
      const size_t n = events.end - events.begin;
      pools_of_event.assign(n, 0);
      for (size_t p = 0; p < num_pools_; ++p) {
        const uint8_t* const flags = store_.in_pool(p).data() + events.begin;
        int64_t found = 0;
        for (size_t i = 0; i < n; ++i) {
          const auto flag = static_cast<uint8_t>(flags[i] != 0);
          found += flag;
          pools_of_event[i] = static_cast<uint8_t>(pools_of_event[i] + flag);
        }
        offsets_[p][static_cast<size_t>(uid) + 1] = found;
      }
      for (const uint8_t pools : pools_of_event) shared += pools > 1;
    }
    num_shared_ += shared;
  }

  void write_run(size_t run, size_t pool, const IndexWriter& writer) const {
    const std::span<const int64_t> users = users_of(run);
    const std::vector<int64_t>& offsets = offsets_[pool];
    const int64_t first = offsets[static_cast<size_t>(users.front())];
    const auto count = static_cast<size_t>(offsets[static_cast<size_t>(users.back()) + 1] - first);
    // Every event is written, and the next one over it if it was not in the pool.
    std::vector<uint32_t> positions(count + 1);
    size_t found = 0;
    for (const int64_t uid : users) {
      const Range events = events_of(uid);
      const uint8_t* const flags = store_.in_pool(pool).data() + events.begin;
      for (size_t i = 0; i < events.end - events.begin; ++i) {
        positions[std::min(found, count)] = static_cast<uint32_t>(i);
        found += flags[i] != 0;
      }
    }
    if (found != count) {
      fail(ErrorCode::kIo,
           fmt::format("{}: changed while it was read",
                       store_.column_path("flat_is_" + store_.schema().pools[pool].name)));
    }
    writer.write_items(positions_section(pool), first,
                       std::span<const uint32_t>(positions.data(), count));
  }

  const EventStore& store_;
  size_t num_pools_;
  std::vector<size_t> runs_;
  BuildProgress progress_;
  std::vector<std::vector<int64_t>> offsets_;  // per pool, by user id
  std::atomic<int64_t> num_shared_ = 0;
};

}  // namespace

PoolIndex::PoolIndex(IndexFile file, const EventStore& store) : file_(std::move(file)) {
  for (size_t p = 0; p < store.schema().pools.size(); ++p) {
    pools_.push_back({file_.section<int64_t>(offsets_section(p)),
                      file_.section<uint32_t>(positions_section(p))});
    // Look-ups trust them.
    const std::span<const int64_t> offsets = pools_[p].offsets;
    if (offsets.size() != store.user_start().size() + 1 || offsets.front() != 0 ||
        offsets.back() != size(p) || !std::ranges::is_sorted(offsets)) {
      file_.fail_senseless("its offsets are wrong");
    }
  }
  const std::span<const int64_t> facts = file_.section<int64_t>(kFacts);
  if (facts.size() != 1) file_.fail_senseless("it does not count shared events");
  num_shared_ = facts[0];
}

PoolIndex PoolIndex::open_or_build(const EventStore& store) {
  const std::vector<PoolConfig>& pools = store.schema().pools;
  std::vector<std::string> made_from = {store.column_path("user_start"),
                                        store.column_path("user_end")};
  uint64_t key = store.fingerprint_of_column("user_start", store.user_start(), pools.size());
  key = store.fingerprint_of_column("user_end", store.user_end(), key);
  for (size_t p = 0; p < pools.size(); ++p) {
    key = fingerprint_of(std::span<const char>(pools[p].name), key);
    made_from.push_back(store.column_path("flat_is_" + pools[p].name));
    key = store.fingerprint_of_file(made_from.back(), store.in_pool(p), key);
  }
  return {data::open_or_build(store.index_folder(), "pools.idx", key,
                              [&](const std::string& path) {
                                store.require_intact(made_from);
                                Builder(store).write(path, key);
                              }),
          store};
}

}  // namespace segue::data
