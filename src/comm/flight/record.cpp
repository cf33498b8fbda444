#include "comm/flight/record.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/sealed_json.h"

namespace segue::comm {
namespace {

using base::CheckedJson;

constexpr const char* kFormat = "segue flight record";
constexpr int64_t kVersion = 1;
constexpr int64_t kMostRanks = 1 << 20;
constexpr std::array kOps{Op::kOpen,      Op::kAllToAll, Op::kAllGather,
                          Op::kAllReduce, Op::kBarrier,  Op::kSynchronize};
constexpr std::array kStates{CallState::kRunning, CallState::kQueued, CallState::kDone,
                             CallState::kFailed};

/// Of these values the one that is called so.
template <class Values>
auto named(const Values& values, const CheckedJson& object, const char* member) {
  const std::string name = base::text_of(object, member);
  const auto found =
      std::ranges::find_if(values, [&](auto value) { return to_string(value) == name; });
  if (found == values.end()) {
    fail(ErrorCode::kCorrupt, fmt::format("`{}`: `{}` is not known", member, name));
  }
  return *found;
}

/// A peer's reason may hold any bytes.
std::string readable(const std::string& text) {
  const std::string quoted =
      CheckedJson(text).dump(-1, ' ', false, CheckedJson::error_handler_t::replace);
  return CheckedJson::parse(quoted).get<std::string>();
}

std::vector<int> ranks_of(const CheckedJson& object, const char* member, int64_t ranks) {
  std::vector<int> values;
  for (const int64_t rank : base::whole_numbers(object, member)) {
    if (rank >= ranks) fail(ErrorCode::kCorrupt, fmt::format("`{}` has rank {}", member, rank));
    values.push_back(static_cast<int>(rank));
  }
  return values;
}

CheckedJson to_json(const CallFlight& c) {
  CheckedJson json{{"sequence", c.sequence},
                   {"op", to_string(c.op)},
                   {"step", c.step},
                   {"bytes", c.bytes},
                   {"receives", c.receives},
                   {"thread", c.thread},
                   {"state", to_string(c.state)},
                   {"start_us", c.start_us},
                   {"end_us", c.end_us}};
  if (c.unfinished()) {
    json["waits_for"] = c.waits_for;
    json["gone"] = c.gone;
  }
  return json;
}

CallFlight call_from_json(const CheckedJson& json, int64_t ranks) {
  CallFlight c;
  c.sequence = static_cast<uint64_t>(base::whole_number(json, "sequence"));
  c.op = named(kOps, json, "op");
  c.step = base::whole_number(json, "step", -base::kMostCounted);
  c.bytes = base::whole_number(json, "bytes");
  c.receives = base::whole_number(json, "receives");
  c.thread = static_cast<uint64_t>(base::whole_number(json, "thread"));
  c.state = named(kStates, json, "state");
  c.start_us = base::whole_number(json, "start_us");
  c.end_us = base::whole_number(json, "end_us");
  if (c.unfinished()) {
    c.waits_for = ranks_of(json, "waits_for", ranks);
    c.gone = ranks_of(json, "gone", ranks);
  }
  return c;
}

GroupFlight group_from_json(const CheckedJson& json, int64_t ranks) {
  GroupFlight group;
  group.name = base::text_of(json, "name");
  group.members = ranks_of(json, "members", ranks);
  for (const CheckedJson& call : base::list_of(json, "calls")) {
    group.calls.push_back(call_from_json(call, ranks));
    const size_t n = group.calls.size();
    if (n > 1 && group.calls[n - 1].sequence < group.calls[n - 2].sequence) {
      fail(ErrorCode::kCorrupt, "calls are not in order");
    }
  }
  return group;
}

}  // namespace

const CallFlight* GroupFlight::last() const {
  const auto found = std::find_if(calls.rbegin(), calls.rend(),
                                  [](const CallFlight& c) { return c.op != Op::kSynchronize; });
  return found == calls.rend() ? nullptr : &*found;
}

const CallFlight* GroupFlight::find(uint64_t sequence) const {
  const auto found = std::ranges::find_if(calls, [&](const CallFlight& c) {
    return c.sequence == sequence && c.op != Op::kSynchronize;
  });
  return found == calls.end() ? nullptr : &*found;
}

std::string to_string(CallState state) {
  switch (state) {
    case CallState::kRunning:
      return "running";
    case CallState::kQueued:
      return "queued";
    case CallState::kDone:
      return "done";
    case CallState::kFailed:
      return "failed";
  }
  return "?";
}

CheckedJson to_json(const FlightRecord& r) {
  CheckedJson groups = CheckedJson::array();
  for (const GroupFlight& group : r.groups) {
    CheckedJson calls = CheckedJson::array();
    for (const CallFlight& call : group.calls) calls.push_back(to_json(call));
    groups.push_back({{"name", readable(group.name)}, {"members", group.members}});
    groups.back()["calls"] = std::move(calls);
  }
  CheckedJson threads = CheckedJson::array();
  for (const std::string& thread : r.threads) threads.push_back(readable(thread));
  CheckedJson json{{"format", kFormat},  {"version", kVersion},        {"rank", r.rank},
                   {"ranks", r.ranks},   {"life", readable(r.life)},   {"host", readable(r.host)},
                   {"pid", r.pid},       {"written_us", r.written_us}, {"why", readable(r.why)},
                   {"failed", r.failed}, {"own_error", r.own_error}};
  json["threads"] = std::move(threads);
  json["groups"] = std::move(groups);
  return json;
}

std::string seal(const FlightRecord& record) { return base::seal_json(to_json(record)); }

FlightRecord unseal_flight(const std::string& text, const std::string& path) {
  FlightRecord r;
  base::unseal_json(text, path, [&](const CheckedJson& json) {
    if (base::text_of(json, "format") != kFormat) {
      fail(ErrorCode::kCorrupt, "this is no flight record");
    }
    base::whole_number(json, "version", 1, kVersion);
    r.ranks = static_cast<int>(base::whole_number(json, "ranks", 1, kMostRanks));
    r.rank = static_cast<int>(base::whole_number(json, "rank", 0, r.ranks - 1));
    r.life = base::text_of(json, "life");
    r.host = base::text_of(json, "host");
    r.pid = base::whole_number(json, "pid");
    r.written_us = base::whole_number(json, "written_us");
    r.why = base::text_of(json, "why");
    r.failed = base::flag_of(json, "failed");
    r.own_error = base::flag_of(json, "own_error");
    for (const CheckedJson& thread : base::list_of(json, "threads")) {
      if (!thread.is_string()) fail(ErrorCode::kCorrupt, "`threads` are texts");
      r.threads.push_back(thread.get<std::string>());
    }
    for (const CheckedJson& group : base::list_of(json, "groups")) {
      r.groups.push_back(group_from_json(group, r.ranks));
    }
  });
  return r;
}

}  // namespace segue::comm
