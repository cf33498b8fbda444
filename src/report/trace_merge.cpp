#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <set>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "report/trace_json.h"
#include "report/trace_reader.h"

namespace segue::report {
namespace {

using Json = base::CheckedJson;

/// One file and where its clock stands.
struct Part {
  std::string path;
  Json trace;
  int64_t rank = 0, ranks = 1;
  int64_t start_ns = 0, ahead_ns = 0, error_ns = 0;
  std::string machine;
  bool has_clock = false;
};

Part read_part(const std::string& path) {
  Part part{.path = path, .trace = detail::parse_trace_json(base::read_regular_file(path), path)};
  const auto facts = part.trace.find("otherData");
  if (facts == part.trace.end() || !facts->is_object() || !facts->contains("clock")) return part;
  constexpr int64_t kMost = int64_t{1} << 62;
  try {
    part.rank = base::whole_number(*facts, "rank");
    part.ranks = base::whole_number(*facts, "ranks", 1);
    const Json& clock = base::member_of(*facts, "clock");
    part.start_ns = base::whole_number(clock, "start_ns", -kMost / 4, kMost / 4);
    part.ahead_ns = base::whole_number(clock, "ahead_ns", -kMost / 4, kMost / 4);
    part.error_ns = base::whole_number(clock, "error_ns", 0, kMost / 4);
    part.machine = base::text_of(clock, "machine");
  } catch (const Error& error) {
    fail(ErrorCode::kCorrupt, fmt::format("{}: otherData: {}", path, error.what()));
  }
  part.has_clock = true;
  return part;
}

/// Ranks of one machine read one clock: what was measured between them is noise, unless it says
/// that the clocks cannot be the same.
void trust_one_clock(std::vector<Part>& parts) {
  for (Part& part : parts) {
    const bool same = !part.machine.empty() && part.machine == parts.front().machine;
    if (same && std::abs(part.ahead_ns) <= part.error_ns) part.ahead_ns = part.error_ns = 0;
  }
}

void shift(Json& event, const char* member, int64_t by_ns) {
  const auto found = event.find(member);
  if (found == event.end()) return;
  constexpr double kNsPerUs = 1000;
  *found = static_cast<double>(detail::event_ns(event, member) + by_ns) / kNsPerUs;
}

/// Numbers that must differ between files.
class Renumber {
 public:
  int64_t process(int64_t old) {
    const auto [found, is_new] = processes_.try_emplace(old, old);
    if (is_new && !taken_.insert(old).second) {
      found->second = *taken_.rbegin() + 1;
      taken_.insert(found->second);
    }
    return found->second;
  }
  int64_t flow(const Json& old) {
    const auto [found, is_new] = flows_.try_emplace(old.dump(), next_flow_);
    if (is_new) ++next_flow_;
    return found->second;
  }
  void next_file() {
    processes_.clear();
    flows_.clear();
  }

 private:
  std::map<int64_t, int64_t> processes_;
  std::map<std::string, int64_t> flows_;
  std::set<int64_t> taken_;
  int64_t next_flow_ = 1;
};

void warn_of_absent(const std::vector<Part>& parts, MergedTrace& merged) {
  std::set<int64_t> there;
  for (const Part& part : parts) {
    if (!part.has_clock) {
      merged.warnings.push_back(fmt::format(
          "{}: nothing is known of its clock; it begins where the others do", part.path));
    }
    there.insert(part.rank);
  }
  for (int64_t rank = 0; rank < std::min<int64_t>(parts.front().ranks, 4096); ++rank) {
    if (there.contains(rank)) continue;
    merged.warnings.push_back(
        fmt::format("rank {} of {} is not among the files", rank, parts.front().ranks));
  }
}

}  // namespace

MergedTrace merge_traces(const std::vector<std::string>& paths) {
  if (paths.empty()) fail(ErrorCode::kInvalidArgument, "no traces to merge");
  std::vector<Part> parts;
  for (const std::string& path : paths) parts.push_back(read_part(path));
  std::ranges::stable_sort(parts, {}, &Part::rank);
  MergedTrace merged;
  merged.files = static_cast<int>(parts.size());
  warn_of_absent(parts, merged);
  trust_one_clock(parts);

  const auto begin_of = [](const Part& p) { return p.start_ns - p.ahead_ns; };
  int64_t begin = 0;
  for (const Part& p : parts) {
    if (p.has_clock && (begin == 0 || begin_of(p) < begin)) begin = begin_of(p);
  }
  Json facts = parts.front().trace.value("otherData", Json::object());
  if (facts.contains("clock")) {
    facts["clock"]["start_ns"] = begin;
    facts["clock"]["ahead_ns"] = 0;
  }
  Json& aligned = facts["merged"] = Json::array();
  Renumber renumber;
  std::string events;
  for (Part& part : parts) {
    const int64_t by_ns = part.has_clock ? begin_of(part) - begin : 0;
    aligned.push_back({{"file", std::filesystem::path(part.path).filename().string()},
                       {"rank", part.rank},
                       {"shift_ns", by_ns},
                       {"error_ns", part.error_ns}});
    merged.error_us = std::max(merged.error_us, static_cast<double>(part.error_ns) / 1000);
    int64_t number = 0;
    for (Json& event : part.trace["traceEvents"]) {
      try {
        shift(event, "ts", by_ns);
        if (event.contains("pid")) {
          event["pid"] = renumber.process(base::whole_number(event, "pid", -(int64_t{1} << 52)));
        }
        if (event.contains("id")) event["id"] = renumber.flow(event["id"]);
      } catch (const Error& error) {
        fail(ErrorCode::kCorrupt, fmt::format("{}: event {}: {}", part.path, number, error.what()));
      }
      events += events.empty() ? "" : ",\n";
      events += event.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
      ++number;
    }
    merged.events += number;
    renumber.next_file();
    part.trace = nullptr;  // what has been written needs no memory
  }
  merged.json =
      fmt::format("{{\"displayTimeUnit\": \"ms\", \"otherData\": {}, \"traceEvents\": [\n{}\n]}}\n",
                  facts.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace), events);
  return merged;
}

std::vector<std::string> traces_of_run(const std::string& folder, int64_t step) {
  const std::string traces = folder + "/trace";
  std::map<int64_t, std::vector<std::string>> by_step;
  std::error_code missing;
  for (const auto& file : std::filesystem::directory_iterator(traces, missing)) {
    const std::string name = file.path().filename().string();
    constexpr std::string_view kBegin = "trace_step";
    if (!name.starts_with(kBegin) || !name.ends_with(".json")) continue;
    by_step[std::strtoll(name.c_str() + kBegin.size(), nullptr, 10)].push_back(
        file.path().string());
  }
  if (by_step.empty()) {
    fail(ErrorCode::kNotFound,
         fmt::format("{}: there are no traces; train with trace.steps or trace.repeat", traces));
  }
  const auto found = step > 0 ? by_step.find(step) : std::prev(by_step.end());
  if (found == by_step.end()) {
    std::string steps;
    for (const auto& [s, files] : by_step)
      steps += fmt::format("{}{}", steps.empty() ? "" : ", ", s);
    fail(ErrorCode::kNotFound,
         fmt::format("{}: no trace begins at step {}; there are: {}", traces, step, steps));
  }
  std::ranges::sort(found->second);
  return found->second;
}

}  // namespace segue::report
