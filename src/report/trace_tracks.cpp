#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "report/trace.h"

namespace segue::report::detail {
namespace {

using Json = nlohmann::ordered_json;

std::string dumped(const Json& arguments) {
  return arguments.empty()
             ? ""
             : arguments.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string facts_of(const base::StageEvent& event) {
  Json arguments = Json::object();
  for (const base::StageFact& fact : event.facts) {
    if (fact.name != nullptr) arguments[fact.name] = fact.value;
  }
  return dumped(arguments);
}

/// The stages of one thread as a tree.
class StageTree {
 public:
  /// `events` are those of the thread, by start; ends of inner stages come before those of outer
  /// ones, so what starts together is ordered by length.
  explicit StageTree(std::vector<const base::StageEvent*> events) : events_(std::move(events)) {
    std::ranges::stable_sort(events_, [](const auto* a, const auto* b) {
      return std::pair(a->start_ns, -a->duration_ns) < std::pair(b->start_ns, -b->duration_ns);
    });
    std::vector<int> open;
    for (size_t i = 0; i < events_.size(); ++i) {
      while (!open.empty() && !holds(open.back(), events_[i]->start_ns)) open.pop_back();
      parents_.push_back(open.empty() ? -1 : open.back());
      open.push_back(static_cast<int>(i));
    }
  }

  const std::vector<const base::StageEvent*>& events() const { return events_; }

  /// The stages that were open at a time, outermost first.
  std::vector<const base::StageEvent*> path_at(int64_t ns) const {
    const auto after = std::ranges::upper_bound(
        events_, ns, {}, [](const base::StageEvent* e) { return e->start_ns; });
    int at = static_cast<int>(after - events_.begin()) - 1;
    while (at >= 0 && !holds(at, ns)) at = parents_[static_cast<size_t>(at)];
    std::vector<const base::StageEvent*> path;
    for (; at >= 0; at = parents_[static_cast<size_t>(at)]) {
      path.push_back(events_[static_cast<size_t>(at)]);
    }
    std::ranges::reverse(path);
    return path;
  }

 private:
  bool holds(int i, int64_t ns) const {
    const base::StageEvent& e = *events_[static_cast<size_t>(i)];
    return ns < e.start_ns + e.duration_ns;
  }

  std::vector<const base::StageEvent*> events_;
  std::vector<int> parents_;
};

TraceSpan span_of(const base::DeviceWork& work) {
  using Kind = base::DeviceWork::Kind;
  Json arguments = Json::object();
  if (work.kind == Kind::kKernel) {
    arguments["grid"] = work.grid;
    arguments["block"] = work.block;
    arguments["registers"] = work.registers;
    if (work.shared_bytes > 0) arguments["shared_bytes"] = work.shared_bytes;
  } else {
    arguments["bytes"] = work.bytes;
  }
  const char* const category = work.kind == Kind::kKernel ? kKernelSpan
                               : work.kind == Kind::kCopy ? kCopySpan
                                                          : kFillSpan;
  return {category, work.name, work.start_ns, work.duration_ns, dumped(arguments)};
}

/// Lays stages around the work that they queued.
class Envelopes {
 public:
  explicit Envelopes(TraceTrack& track) : track_(track) {}

  void add(const base::DeviceWork& work, const std::vector<const base::StageEvent*>& path) {
    size_t same = 0;
    while (same < open_.size() && same < path.size() && open_[same].stage == path[same]) ++same;
    close(same);
    for (size_t i = same; i < path.size(); ++i) open_.push_back({path[i], work.start_ns});
    end_ns_ = work.start_ns + work.duration_ns;
  }
  /// Stages deeper than `depth` have no more work here.
  void close(size_t depth) {
    while (open_.size() > depth) {
      const Open& o = open_.back();
      track_.spans.push_back(
          {kStageSpan, o.stage->name, o.start_ns, end_ns_ - o.start_ns, facts_of(*o.stage)});
      open_.pop_back();
    }
  }

 private:
  struct Open {
    const base::StageEvent* stage;
    int64_t start_ns;
  };
  TraceTrack& track_;
  std::vector<Open> open_;
  int64_t end_ns_ = 0;
};

/// Makes the tracks of a recording.
class TrackMaker {
 public:
  explicit TrackMaker(const base::StageRecording& recording) : recording_(recording) {
    add_threads();
    add_calls();
    add_streams();
    // Outer spans first: stages, then what lies in them.
    const auto inner = [](const TraceSpan& s) {
      return s.category != kHostSpan && s.category != kStageSpan;
    };
    for (TraceTrack& track : result.tracks) {
      std::ranges::stable_sort(track.spans, [&](const TraceSpan& a, const TraceSpan& b) {
        return std::tuple(a.start_ns, -a.duration_ns, inner(a)) <
               std::tuple(b.start_ns, -b.duration_ns, inner(b));
      });
    }
  }

  TraceTracks result;

 private:
  using Work = std::vector<const base::DeviceWork*>;

  void add_threads() {
    std::vector<std::vector<const base::StageEvent*>> by_thread(recording_.threads.size());
    for (const base::StageEvent& event : recording_.events) {
      by_thread[static_cast<size_t>(event.thread)].push_back(&event);
    }
    for (size_t t = 0; t < by_thread.size(); ++t) {
      trees_.emplace_back(std::move(by_thread[t]));
      if (t < recording_.thread_ids.size()) thread_of_id_[recording_.thread_ids[t]] = t;
      TraceTrack& track = result.tracks.emplace_back(TraceTrack{recording_.threads[t], {}});
      for (const base::StageEvent* e : trees_.back().events()) {
        track.spans.push_back({kHostSpan, e->name, e->start_ns, e->duration_ns, facts_of(*e)});
      }
    }
  }

  /// Of threads that were in no stage nothing is known but a number.
  std::optional<size_t> thread_of(const base::DeviceCall& call) const {
    const auto found = thread_of_id_.find(call.thread_id);
    if (found == thread_of_id_.end()) return std::nullopt;
    return found->second;
  }

  /// A call inside another one (a library's own) is a part of it.
  void add_calls() {
    std::vector<const base::DeviceCall*> calls;
    for (const base::DeviceCall& call : recording_.calls) calls.push_back(&call);
    std::ranges::stable_sort(calls, {}, &base::DeviceCall::start_ns);
    std::map<size_t, int64_t> ends;
    for (const base::DeviceCall* call : calls) {
      const std::optional<size_t> thread = thread_of(*call);
      if (!thread || call->start_ns < ends[*thread]) continue;
      // One that a stage ends in the middle of cannot be: it would be no call of its thread.
      const int64_t end = call->start_ns + call->duration_ns;
      const StageTree& stages = trees_[*thread];
      if (stages.path_at(call->start_ns) != stages.path_at(end - 1)) continue;
      ends[*thread] = end;
      result.tracks[*thread].spans.push_back(
          {kCallSpan, call->name, call->start_ns, call->duration_ns, ""});
    }
  }

  void add_streams() {
    std::map<std::pair<int, int64_t>, Work> by_stream;
    for (const base::DeviceWork& work : recording_.work) {
      by_stream[{work.device, work.stream}].push_back(&work);
    }
    for (auto& [stream, work] : by_stream) {
      std::ranges::stable_sort(work, {}, &base::DeviceWork::start_ns);
      const std::string name = fmt::format("GPU {} stream {}", stream.first, stream.second);
      for (int lane = 0; !work.empty(); ++lane) {
        work = add_lane(lane == 0 ? name : fmt::format("{}, beside it {}", name, lane), work);
      }
    }
  }

  /// Takes work as long as it does not overlap; returns the rest.
  Work add_lane(const std::string& name, const Work& all) {
    Work rest;
    TraceTrack track{name, {}};
    Envelopes stages(track);
    std::vector<TraceSpan> spans;
    int64_t end_ns = 0;
    for (const base::DeviceWork* work : all) {
      if (work->start_ns < end_ns) {
        rest.push_back(work);
        continue;
      }
      end_ns = work->start_ns + work->duration_ns;
      stages.add(*work, path_of(*work));
      spans.push_back(span_of(*work));
    }
    stages.close(0);
    std::ranges::move(spans, std::back_inserter(track.spans));
    result.tracks.push_back(std::move(track));
    return rest;
  }

  /// The stages that queued work of the next track, and an arrow from there.
  std::vector<const base::StageEvent*> path_of(const base::DeviceWork& work) {
    if (work.call < 0) return {};
    const base::DeviceCall& call = recording_.calls[static_cast<size_t>(work.call)];
    const std::optional<size_t> thread = thread_of(call);
    if (!thread) return {};
    result.flows.push_back({*thread, result.tracks.size(), call.start_ns, work.start_ns});
    return trees_[*thread].path_at(call.start_ns);
  }

  const base::StageRecording& recording_;
  std::vector<StageTree> trees_;
  std::map<int64_t, size_t> thread_of_id_;
};

}  // namespace

TraceTracks tracks_of(const base::StageRecording& recording) {
  return TrackMaker(recording).result;
}

}  // namespace segue::report::detail
