#include <algorithm>
#include <charconv>
#include <filesystem>
#include <map>
#include <string_view>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/time.h"
#include "comm/flight/verdict.h"

namespace segue::comm {
namespace {

namespace fs = std::filesystem;

/// N of "rank-N.json", or -1.
int rank_of_name(std::string_view name) {
  constexpr std::string_view kBefore = "rank-", kBehind = ".json";
  if (!name.starts_with(kBefore) || !name.ends_with(kBehind)) return -1;
  name.remove_prefix(kBefore.size());
  name.remove_suffix(kBehind.size());
  int rank = -1;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), rank);
  return error == std::errc() && end == name.data() + name.size() ? rank : -1;
}

/// "done 0-2, running 3 (waits for 1)"
std::string states_of(const FlightFiles& files, const GroupFlight& group, uint64_t sequence) {
  std::map<std::string, std::vector<int>> states;
  for (const int rank : group.members) {
    const FlightRecord* record = files.of(rank);
    if (record == nullptr) {
      states["no record"].push_back(rank);
      continue;
    }
    const CallFlight* call = nullptr;
    for (const GroupFlight& g : record->groups) {
      if (g.id == group.id) call = g.find(sequence);
    }
    if (call == nullptr) {
      states["not made, or forgotten"].push_back(rank);
      continue;
    }
    std::string state = to_string(call->state);
    if (!call->waits_for.empty())
      state += fmt::format(" (waits for {})", rank_list(call->waits_for));
    states[state].push_back(rank);
  }
  std::vector<std::string> parts;
  parts.reserve(states.size());
  for (const auto& [state, ranks] : states) {
    parts.push_back(fmt::format("{}: {}", rank_list(ranks), state));
  }
  return fmt::format("{}", fmt::join(parts, "; "));
}

/// A sample of every call of a group, by number.
std::map<uint64_t, const CallFlight*> calls_of(const FlightFiles& files, int id) {
  std::map<uint64_t, const CallFlight*> calls;
  for (const FlightRecord& record : files.records) {
    for (const GroupFlight& group : record.groups) {
      if (group.id != id) continue;
      for (const CallFlight& call : group.calls) {
        if (call.op != Op::kSynchronize) calls.emplace(call.sequence, &call);
      }
    }
  }
  return calls;
}

}  // namespace

const FlightRecord* FlightFiles::of(int rank) const {
  const auto found = std::ranges::lower_bound(records, rank, {}, &FlightRecord::rank);
  return found != records.end() && found->rank == rank ? &*found : nullptr;
}

FlightFiles sort_flight(std::vector<FlightRecord> records,
                        std::vector<std::pair<int, std::string>> damaged) {
  FlightFiles files;
  files.useless = std::move(damaged);
  const auto newest = std::ranges::max_element(records, {}, &FlightRecord::written_us);
  if (newest == records.end()) return files;
  files.ranks = newest->ranks;
  const std::string life = newest->life;
  std::ranges::sort(records, {}, &FlightRecord::rank);
  for (FlightRecord& record : records) {
    if (record.life != life) continue;  // of an earlier start: it says nothing about this one
    if (record.ranks != files.ranks || files.of(record.rank) != nullptr) {
      files.useless.emplace_back(record.rank, "it contradicts the records of other ranks");
      continue;
    }
    files.records.push_back(std::move(record));
  }
  std::map<std::pair<std::string, std::vector<int>>, int> ids;
  for (FlightRecord& record : files.records) {
    for (GroupFlight& group : record.groups) {
      group.id = ids.emplace(std::pair(group.name, group.members), static_cast<int>(ids.size()))
                     .first->second;
    }
  }
  std::erase_if(files.useless, [&](const auto& u) { return u.first >= files.ranks; });
  return files;
}

FlightFiles read_flight(const std::string& folder) {
  std::vector<FlightRecord> records;
  std::vector<std::pair<int, std::string>> damaged;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const int rank = rank_of_name(it->path().filename().string());
    if (rank < 0) continue;
    const std::string path = it->path().string();
    try {
      FlightRecord record = unseal_flight(base::read_regular_file(path), path);
      if (record.rank != rank) {
        fail(ErrorCode::kCorrupt, fmt::format("{}: it is of rank {}", path, record.rank));
      }
      records.push_back(std::move(record));
    } catch (const Error& e) {
      damaged.emplace_back(rank, e.what());
    }
  }
  if (records.empty()) {
    std::string which;
    for (const auto& [rank, why] : damaged) which += fmt::format("\n  {}", why);
    fail(
        damaged.empty() ? ErrorCode::kNotFound : ErrorCode::kCorrupt,
        fmt::format("{} holds no flight record{}; ranks write them when a group fails, when one of "
                    "them gives up, and on SIGUSR2{}",
                    folder, damaged.empty() ? "" : " that can be read", which));
  }
  return sort_flight(std::move(records), std::move(damaged));
}

std::string flight_table(const FlightFiles& files, size_t most_calls) {
  std::string text = fmt::format("{:<10} {:>7}  {:<12} {:>7} {:>12}  {}\n", "group", "call", "op",
                                 "step", "bytes", "ranks");
  std::map<int, const GroupFlight*> groups;
  for (const FlightRecord& record : files.records) {
    for (const GroupFlight& group : record.groups) groups.emplace(group.id, &group);
  }
  for (const auto& [id, group] : groups) {
    const auto calls = calls_of(files, id);
    auto call = calls.begin();
    if (calls.size() > most_calls) {
      std::advance(call, static_cast<std::ptrdiff_t>(calls.size() - most_calls));
    }
    for (; call != calls.end(); ++call) {
      const CallFlight& c = *call->second;
      text += fmt::format("{:<10} {:>7}  {:<12} {:>7} {:>12}  {}\n", group->name, c.sequence,
                          to_string(c.op), c.step, c.bytes, states_of(files, *group, c.sequence));
    }
  }
  text += "\n";
  for (const FlightRecord& record : files.records) {
    text += fmt::format("rank {} on {}, process {}, {}: {}\n", record.rank, record.host, record.pid,
                        base::iso_time(record.written_us / 1'000'000), record.why);
    for (const std::string& thread : record.threads) text += fmt::format("  {}\n", thread);
  }
  for (const auto& [rank, why] : files.useless) text += fmt::format("rank {}: {}\n", rank, why);
  return text;
}

base::CheckedJson to_json(const FlightFiles& files, const FlightVerdict& v) {
  base::CheckedJson json{
      {"verdict", to_string(v.kind)}, {"text", v.text}, {"ranks", v.ranks}, {"group", v.group},
      {"call", v.sequence},           {"op", v.op},     {"step", v.step},   {"bytes", v.bytes},
      {"waiting", v.waiting}};
  base::CheckedJson records = base::CheckedJson::array(), useless = base::CheckedJson::array();
  for (const FlightRecord& record : files.records) records.push_back(to_json(record));
  for (const auto& [rank, why] : files.useless) useless.push_back({{"rank", rank}, {"why", why}});
  json["run_ranks"] = files.ranks;
  json["records"] = std::move(records);
  json["useless"] = std::move(useless);
  return json;
}

}  // namespace segue::comm
