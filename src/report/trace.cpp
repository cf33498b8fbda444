#include "report/trace.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/file.h"

namespace segue::report {
namespace {

std::string json_text(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

/// Nanoseconds as microseconds, exactly.
std::string microseconds(int64_t ns) {
  return fmt::format("{}{}.{:03}", ns < 0 ? "-" : "", std::abs(ns) / 1000, std::abs(ns) % 1000);
}

std::string facts_json(const base::StageRecording& recording, const TraceFacts& facts) {
  nlohmann::ordered_json steps = nlohmann::ordered_json::array();
  for (const TraceFacts::Step& step : facts.steps) steps.push_back(step.number);
  const nlohmann::ordered_json all = {{"made_by", "segue"},
                                      {"rank", facts.rank},
                                      {"ranks", facts.ranks},
                                      {"device", facts.device},
                                      {"steps", std::move(steps)},
                                      {"clock",
                                       {{"start_ns", recording.start_ns},
                                        {"ahead_ns", facts.clock.ahead_ns},
                                        {"error_ns", facts.clock.error_ns},
                                        {"machine", facts.clock.machine}}}};
  return all.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

/// Events of one process, one line each.
class Events {
 public:
  explicit Events(int pid) : pid_(pid) {}

  void name(const char* what, size_t tid, const std::string& text) {
    add(fmt::format(R"({{"name": "{}", "ph": "M", "pid": {}, "tid": {}, "args": {{"name": {}}}}})",
                    what, pid_, tid, json_text(text)));
  }
  void order(size_t tid) {
    add(fmt::format(
        R"({{"name": "thread_sort_index", "ph": "M", "pid": {}, "tid": {}, "args": {{"sort_index": {}}}}})",
        pid_, tid, tid));
  }
  void span(size_t tid, const detail::TraceSpan& s) {
    add(fmt::format(
        R"({{"name": {}, "cat": "{}", "ph": "X", "pid": {}, "tid": {}, "ts": {}, "dur": {}{}}})",
        json_text(s.name), s.category, pid_, tid, microseconds(s.start_ns),
        microseconds(s.duration_ns), s.arguments.empty() ? "" : R"(, "args": )" + s.arguments));
  }
  void flow(size_t number, size_t from, int64_t from_ns, size_t to, int64_t to_ns) {
    constexpr const char* kForm =
        R"({{"name": "queued", "cat": "flow", "ph": "{}", "id": {}, "pid": {}, "tid": {}, "ts": {}{}}})";
    add(fmt::format(fmt::runtime(kForm), "s", number, pid_, from, microseconds(from_ns), ""));
    add(fmt::format(fmt::runtime(kForm), "f", number, pid_, to, microseconds(to_ns),
                    R"(, "bp": "e")"));
  }
  void counter(const base::CounterEvent& c) {
    nlohmann::ordered_json values = nlohmann::ordered_json::object();
    for (const base::StageFact& value : c.values) values[value.name] = value.value;
    add(fmt::format(R"({{"name": {}, "ph": "C", "pid": {}, "tid": 0, "ts": {}, "args": {}}})",
                    json_text(c.name), pid_, microseconds(c.at_ns), values.dump()));
  }
  std::string take() { return std::move(text_); }

 private:
  void add(const std::string& event) {
    if (!text_.empty()) text_ += ",\n";
    text_ += event;
  }

  int pid_;
  std::string text_;
};

}  // namespace

std::string trace_json(const base::StageRecording& recording, const TraceFacts& facts) {
  detail::TraceTracks all = detail::tracks_of(recording);
  detail::TraceTrack steps{"steps", {}};
  for (const TraceFacts::Step& s : facts.steps) {
    steps.spans.push_back(
        {kStepSpan, fmt::format("step {}", s.number), s.start_ns, s.duration_ns, ""});
  }
  Events events(facts.rank);
  events.name("process_name", 0, fmt::format("rank {}", facts.rank));
  const auto write = [&](size_t tid, const detail::TraceTrack& track) {
    events.name("thread_name", tid, track.name);
    events.order(tid);
    for (const detail::TraceSpan& span : track.spans) events.span(tid, span);
  };
  write(0, steps);
  for (size_t t = 0; t < all.tracks.size(); ++t) write(t + 1, all.tracks[t]);
  for (size_t i = 0; i < all.flows.size(); ++i) {
    const detail::TraceFlow& f = all.flows[i];
    events.flow(i + 1, f.from_track + 1, f.from_ns, f.to_track + 1, f.to_ns);
  }
  for (const base::CounterEvent& c : recording.counters) events.counter(c);
  return fmt::format(
      "{{\"displayTimeUnit\": \"ms\", \"otherData\": {}, \"traceEvents\": [\n{}\n]}}\n",
      facts_json(recording, facts), events.take());
}

void write_trace(const std::string& path, const base::StageRecording& recording,
                 const TraceFacts& facts) {
  base::write_file(path, trace_json(recording, facts));
}

}  // namespace segue::report
