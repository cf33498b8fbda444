#include "report/trace_reader.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/checked_json.h"
#include "base/error.h"
#include "base/file.h"
#include "report/trace_json.h"

namespace segue::report {
namespace detail {

using Json = base::CheckedJson;

Json parse_trace_json(std::string_view text, const std::string& place) {
  try {
    Json trace = base::parse_checked(text);
    base::list_of(trace, "traceEvents");
    return trace;
  } catch (const Error& error) {
    fail(ErrorCode::kCorrupt, fmt::format("{}: not a trace: {}", place, error.what()));
  }
}

int64_t event_ns(const Json& event, const char* member) {
  constexpr double kMostUs = 4e12;  // some weeks
  const double us = base::real_number(event, member, -kMostUs);
  if (us > kMostUs) {
    fail(ErrorCode::kCorrupt, fmt::format("`{}` is {}, which is no time", member, us));
  }
  return std::llround(us * 1000);
}

}  // namespace detail

namespace {

using detail::event_ns;
using Json = base::CheckedJson;

constexpr int64_t kMostId = int64_t{1} << 52;

int64_t id_of(const Json& event, const char* member) {
  return base::whole_number(event, member, -kMostId, kMostId);
}

/// Collects the events of a file.
class Collector {
 public:
  void add(const Json& event) {
    const std::string phase = base::text_of(event, "ph");
    if (phase == "M") {
      add_name(event);
    } else if (phase == "X") {
      add_span(event);
    } else if (phase == "s" || phase == "f") {
      add_end_of_flow(event, phase == "s");
    } else if (phase == "C") {
      add_counter(event);
    }
  }

  TraceContents take() {
    TraceContents all;
    std::map<Key, size_t> index;
    for (auto& [key, track] : tracks_) {
      if (track.spans.empty()) continue;
      track.process = key.first;
      track.thread = key.second;
      track.process_name = process_name(key.first);
      if (track.name.empty()) track.name = fmt::format("thread {}", key.second);
      nest(track);
      index[key] = all.tracks.size();
      all.tracks.push_back(std::move(track));
    }
    for (const auto& [id, flow] : flows_) {
      if (!flow.from || !flow.to) continue;
      const auto from = index.find(flow.from->track), to = index.find(flow.to->track);
      if (from == index.end() || to == index.end()) continue;
      all.flows.push_back({from->second, to->second, flow.from->ns, flow.to->ns});
    }
    for (auto& [process, counter] : counters_) {
      counter.process_name = process_name(process);
      all.counters.push_back(std::move(counter));
    }
    return all;
  }

 private:
  using Key = std::pair<int64_t, int64_t>;
  struct FlowEnd {
    Key track;
    int64_t ns = 0;
  };
  struct Flow {
    std::optional<FlowEnd> from, to;
  };

  static Key key_of(const Json& event) { return {id_of(event, "pid"), id_of(event, "tid")}; }

  std::string process_name(int64_t process) const {
    const auto found = process_names_.find(process);
    return found != process_names_.end() ? found->second : fmt::format("process {}", process);
  }

  void add_name(const Json& event) {
    const std::string what = base::text_of(event, "name");
    if (what == "process_name") {
      process_names_[id_of(event, "pid")] = base::text_of(base::member_of(event, "args"), "name");
    } else if (what == "thread_name") {
      tracks_[key_of(event)].name = base::text_of(base::member_of(event, "args"), "name");
    }
  }

  void add_span(const Json& event) {
    TraceContents::Span span;
    span.name = base::text_of(event, "name");
    if (event.contains("cat")) span.category = base::text_of(event, "cat");
    span.start_ns = event_ns(event, "ts");
    span.duration_ns = event_ns(event, "dur");
    if (span.duration_ns < 0) {
      fail(ErrorCode::kCorrupt, fmt::format("`{}` lasts {} ns", span.name, span.duration_ns));
    }
    if (event.contains("args")) {
      span.arguments = base::member_of(event, "args")
                           .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    }
    tracks_[key_of(event)].spans.push_back(std::move(span));
  }

  void add_end_of_flow(const Json& event, bool begins) {
    Flow& flow = flows_[id_of(event, "id")];
    (begins ? flow.from : flow.to) = FlowEnd{key_of(event), event_ns(event, "ts")};
  }

  void add_counter(const Json& event) {
    TraceContents::Counter counter;
    counter.name = base::text_of(event, "name");
    counter.at_ns = event_ns(event, "ts");
    for (const auto& [name, value] : base::member_of(event, "args").items()) {
      if (value.is_number()) counter.values.emplace_back(name, value.get<double>());
    }
    counters_.emplace_back(id_of(event, "pid"), std::move(counter));
  }

  /// Who is inside whom. A span that reaches beyond the one it begins in, as no trace of ours has
  /// it, counts as inside.
  static void nest(TraceContents::Track& track) {
    std::ranges::stable_sort(track.spans, [](const auto& a, const auto& b) {
      return std::pair(a.start_ns, -a.duration_ns) < std::pair(b.start_ns, -b.duration_ns);
    });
    std::vector<int> open;
    for (size_t i = 0; i < track.spans.size(); ++i) {
      TraceContents::Span& span = track.spans[i];
      const auto ended = [&](int o) {
        const TraceContents::Span& other = track.spans[static_cast<size_t>(o)];
        // What begins and ends together with nothing in it may still hold another such thing.
        return other.end_ns() <= span.start_ns &&
               !(other.duration_ns == 0 && other.start_ns == span.start_ns &&
                 span.duration_ns == 0);
      };
      while (!open.empty() && ended(open.back())) open.pop_back();
      span.parent = open.empty() ? -1 : open.back();
      open.push_back(static_cast<int>(i));
    }
  }

  std::map<Key, TraceContents::Track> tracks_;
  std::map<int64_t, std::string> process_names_;
  std::map<int64_t, Flow> flows_;
  std::vector<std::pair<int64_t, TraceContents::Counter>> counters_;
};

}  // namespace

TraceContents parse_trace(std::string_view text, const std::string& place) {
  const Json trace = detail::parse_trace_json(text, place);
  Collector collector;
  int64_t number = 0;
  for (const Json& event : trace["traceEvents"]) {
    try {
      collector.add(event);
    } catch (const Error& error) {
      fail(ErrorCode::kCorrupt, fmt::format("{}: event {}: {}", place, number, error.what()));
    }
    ++number;
  }
  return collector.take();
}

TraceContents read_trace(const std::string& path) {
  return parse_trace(base::read_regular_file(path), path);
}

}  // namespace segue::report
