#include "report/trace.h"

#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/file.h"

namespace segue::report {
namespace {

std::string quote(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

/// Nanoseconds as microseconds, exactly.
std::string microseconds(int64_t ns) { return fmt::format("{}.{:03}", ns / 1000, ns % 1000); }

}  // namespace

std::string trace_json(const base::StageRecording& recording, int rank) {
  std::string out = "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n";
  out += fmt::format(
      R"({{"name": "process_name", "ph": "M", "pid": {0}, "tid": 0, "args": {{"name": "rank {0}"}}}})",
      rank);
  for (size_t i = 0; i < recording.threads.size(); ++i) {
    out += fmt::format(
        ",\n"
        R"({{"name": "thread_name", "ph": "M", "pid": {}, "tid": {}, "args": {{"name": {}}}}})",
        rank, i, quote(recording.threads[i]));
  }
  for (const base::StageEvent& event : recording.events) {
    out += fmt::format(
        ",\n"
        R"({{"name": {}, "ph": "X", "pid": {}, "tid": {}, "ts": {}, "dur": {}}})",
        quote(event.name), rank, event.thread, microseconds(event.start_ns),
        microseconds(event.duration_ns));
  }
  return out + "\n]}\n";
}

void write_trace(const std::string& path, const base::StageRecording& recording, int rank) {
  base::write_file(path, trace_json(recording, rank));
}

std::optional<int64_t> TracePlan::window_of(int64_t step) const {
  if (active < 1) return std::nullopt;
  std::vector<int64_t> sorted = steps;
  std::sort(sorted.begin(), sorted.end());
  std::optional<int64_t> first;
  int64_t end = 0;
  for (const int64_t s : sorted) {
    if (s > step) break;
    if (!first || s >= end) first = s;
    end = s + active;
  }
  return first && step < end ? first : std::nullopt;
}

bool TracePlan::ends_after(int64_t step) const {
  const std::optional<int64_t> window = window_of(step);
  return window && window_of(step + 1) != window;
}

std::string TracePlan::file_name(int64_t step) const {
  const std::optional<int64_t> window = window_of(step);
  return window ? fmt::format("trace_step{}.json", *window) : std::string();
}

}  // namespace segue::report
