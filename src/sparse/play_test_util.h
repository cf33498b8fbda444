#pragma once

// What tests of tables that lie elsewhere play on two tables, and see.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "comm/world.h"
#include "sparse/tables_test_util.h"

namespace segue::sparse::test {

inline constexpr TableId kItem{0}, kArtist{1};

inline ShardPlan plan_of(Tier tier, int ranks = 1, Sharding sharding = Sharding::kTable) {
  ShardPlan plan = ShardPlan::single(2);
  plan.ranks = ranks;
  for (TablePlacement& placement : plan.tables) {
    placement.tier = tier;
    placement.sharding = sharding;
    if (sharding == Sharding::kTable) {
      placement.ranks = {ranks / 2};
      continue;
    }
    placement.ranks.clear();
    for (int r = 0; r < ranks; ++r) placement.ranks.push_back(r);
  }
  return plan;
}

/// Of one rank, of all ranks together the same, whatever their number.
inline Ids ids_of(int64_t step, int64_t rows, int rank, int ranks) {
  std::mt19937_64 random(static_cast<uint64_t>(step) * 77 + static_cast<uint64_t>(rows));
  Ids mine;
  for (int i = 0; i < 160; ++i) {
    const double u = static_cast<double>(random() >> 11) * 0x1p-53;
    const auto id = static_cast<int64_t>(u * u * static_cast<double>(rows));
    if (i % ranks == rank) mine.push_back(id);
  }
  return mine;
}

struct Script {
  int64_t steps = 40, first = 1;
  int ahead = 0;       // batches that are begun and staged before they are used
  bool stages = true;  // false: rows() does it
  bool evaluates = true, drops = true;
};

using Log = std::vector<std::vector<std::byte>>;

/// Trains, evaluates now and then, begins batches that are never used; what was read on the way. Of
/// dynamic tables, too, `rows` says how many ids there are.
inline Log play(Tables& tables, const Script& script, int ranks = 1) {
  Log log;
  const Stream main(Device::cpu()), copies(Device::cpu());
  const TableId both[] = {kItem, kArtist};
  const auto begin = [&](int64_t step, Mode mode, Ticket old = {}) {
    Ids ids[2], scores[2];
    std::vector<Lookup> lookups;
    for (size_t t = 0; t < 2; ++t) {
      ids[t] = ids_of(step, tables.config().tables[t].rows, tables.rank(), ranks);
      if (tables.config().tables[t].dynamic()) {
        for (int64_t& id : ids[t]) id = id * 1'000'003 - 7;
      }
      scores[t] = scores_of(ids[t].size(), step, tables.rank(), ranks);
      lookups.push_back(
          {.table = both[t], .feature = "feature", .ids = ids[t], .scores = scores[t]});
    }
    Ticket ticket = tables.begin(lookups, mode, std::move(old), 100 * step);
    if (script.stages) tables.stage(ticket, copies);
    return ticket;
  };
  const auto read = [&](const Exec& exec, Ticket& ticket) {
    for (const TableId id : both) log.push_back(bytes_of(tables.rows(exec, ticket, id)));
  };
  std::deque<Ticket> prepared;
  const int64_t end = script.first + script.steps;
  int64_t next = script.first;
  for (int64_t step = script.first; step < end; ++step) {
    for (; next < end && next <= step + script.ahead; ++next) {
      Ticket dropped;
      if (script.drops && next % 7 == 0) dropped = begin(next + 1000, Mode::kTraining);
      prepared.push_back(begin(next, Mode::kTraining, std::move(dropped)));
    }
    if (script.evaluates && step % 5 == 0) {
      Bench bench;
      Ticket asked = begin(step + 5000, Mode::kEvaluation);
      read(bench.exec, asked);
      tables.release(asked, main);
    }
    Bench bench;
    Ticket ticket = std::move(prepared.front());
    prepared.pop_front();
    read(bench.exec, ticket);
    const int64_t count = ticket.distinct_rows(kItem) + ticket.distinct_rows(kArtist);
    const Tensor gradients = bench.arena.tensor(DType::kF32, {count, 6});
    for (int64_t i = 0; i < gradients.elements(); ++i) {
      gradients.ptr<float>()[i] = 0.01f * static_cast<float>((i * 7 + step) % 11 - 4);
    }
    tables.apply(bench.exec, ticket, both, gradients, 0.1, step);
    tables.release(ticket, main);
  }
  return log;
}

/// Contents of all arrays, rows in their order.
inline std::map<std::string, std::vector<std::byte>> contents(Tables& tables) {
  std::map<std::string, std::vector<std::byte>> all;
  for (const TableId id : {kItem, kArtist}) {
    for (const TableArray& array : tables.table(id).snapshot(Extent::kAll)) {
      std::vector<std::byte>& to =
          all[tables.config().tables[static_cast<size_t>(id)].name + "/" + array.name];
      if (array.order.empty()) {
        to = bytes_of(array.value);
        continue;
      }
      const int64_t row_bytes = array.value.bytes() / array.value.size(0);
      for (const int64_t place : array.order) {
        const auto* at = static_cast<const std::byte*>(array.value.data) + place * row_bytes;
        to.insert(to.end(), at, at + row_bytes);
      }
    }
  }
  return all;
}

/// What every rank reads and has in the end.
using Played = std::pair<Log, std::map<std::string, std::vector<std::byte>>>;
inline std::vector<Played> play_on_ranks(const TablesConfig& config, const ShardPlan& plan,
                                         const Script& script) {
  constexpr double kTimeout = 60;
  std::vector<Played> results(static_cast<size_t>(plan.ranks));
  comm::run_as_threads(plan.ranks, kTimeout, [&](comm::World& world) {
    const auto ids = world.open("ids"), rows = world.open("rows");
    Tables tables(config, plan, {ids.get(), rows.get()}, Device::cpu(), DType::kF32, 9);
    Played& result = results[static_cast<size_t>(world.rank())];
    result.first = play(tables, script, plan.ranks);
    result.second = contents(tables);
  });
  return results;
}

inline void move_over(Tables& from, Tables& to) {
  std::map<std::string, SavedInMemory> saved;
  for (const TableId id : {kItem, kArtist}) {
    const std::string& name = from.config().tables[static_cast<size_t>(id)].name;
    const auto [at, is_new] =
        saved.emplace(name, SavedInMemory(from.table(id).snapshot(Extent::kAll)));
    if (at->second.shape("row")) continue;
    for (const TableArray& array : to.table(id).snapshot(Extent::kAll)) {
      if (array.any_rows || array.value.bytes() == 0) continue;
      std::memcpy(array.value.data, at->second.arrays[array.name].bytes.data(),
                  static_cast<size_t>(array.value.bytes()));
    }
  }
  to.load([&](const std::string& name) { return std::make_unique<SavedInMemory>(saved.at(name)); });
}

}  // namespace segue::sparse::test
