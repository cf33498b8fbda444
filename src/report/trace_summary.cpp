#include <algorithm>
#include <limits>
#include <map>
#include <set>

#include <fmt/format.h>

#include "report/trace.h"
#include "report/trace_reader.h"

namespace segue::report {
namespace {

using Span = TraceContents::Span;
using Entries = std::map<std::string, TraceSummary::Entry>;

constexpr double kSecondsPerNs = 1e-9;
constexpr size_t kLargestGaps = 5;
constexpr int64_t kLeastGap = 1000;  // nanoseconds

bool is_work(const Span& s) {
  return s.category == kKernelSpan || s.category == kCopySpan || s.category == kFillSpan;
}

void add(Entries& entries, const std::string& name, int64_t count, int64_t ns, int64_t own_ns) {
  TraceSummary::Entry& e = entries[name];
  e.name = name;
  e.count += count;
  e.seconds += static_cast<double>(ns) * kSecondsPerNs;
  e.own += static_cast<double>(own_ns) * kSecondsPerNs;
}

std::vector<TraceSummary::Entry> ordered(const Entries& entries) {
  std::vector<TraceSummary::Entry> list;
  for (const auto& [name, entry] : entries) list.push_back(entry);
  std::ranges::stable_sort(list, std::ranges::greater(), &TraceSummary::Entry::own);
  return list;
}

/// The stages of a thread, by the clock.
void add_host(const TraceContents::Track& track, Entries& entries) {
  std::vector<int64_t> own;
  for (const Span& s : track.spans) own.push_back(s.duration_ns);
  for (const Span& s : track.spans) {
    if (s.parent >= 0 && s.category == kHostSpan) {
      own[static_cast<size_t>(s.parent)] -= s.duration_ns;
    }
  }
  for (size_t i = 0; i < track.spans.size(); ++i) {
    const Span& s = track.spans[i];
    if (s.category != kHostSpan) continue;
    add(entries, fmt::format("{}: {}", track.name, s.name), 1, s.duration_ns, own[i]);
  }
}

/// Work of a stream, and the stages around it: each name once, however deep.
void add_device(const TraceContents::Track& track, Entries& kernels, Entries& stages) {
  for (const Span& s : track.spans) {
    if (s.category == kStageSpan) stages[s.name].count += 1;
    if (!is_work(s)) continue;
    add(kernels, s.name, 1, s.duration_ns, s.duration_ns);
    std::set<std::string> seen;
    bool innermost = true;
    for (int at = s.parent; at >= 0; at = track.spans[static_cast<size_t>(at)].parent) {
      const Span& outer = track.spans[static_cast<size_t>(at)];
      if (outer.category != kStageSpan || !seen.insert(outer.name).second) continue;
      add(stages, outer.name, 0, s.duration_ns,
          std::exchange(innermost, false) ? s.duration_ns : 0);
    }
    if (seen.empty()) add(stages, "(no stage)", 1, s.duration_ns, s.duration_ns);
  }
}

/// One rank: when its device worked.
void add_busy(std::vector<const Span*> work, int64_t begin, int64_t end, TraceSummary& sum) {
  std::ranges::stable_sort(work, {}, [](const Span* s) { return s->start_ns; });
  int64_t covered = begin, busy = 0;
  const Span* last = nullptr;
  for (const Span* s : work) {
    if (s->start_ns > covered && last != nullptr) {
      const int64_t gap = s->start_ns - covered;
      sum.gap_seconds += static_cast<double>(gap) * kSecondsPerNs;
      if (gap >= kLeastGap) {
        ++sum.gaps;
        sum.largest_gaps.push_back({static_cast<double>(gap) * kSecondsPerNs, last->name, s->name});
      }
    }
    const int64_t from = std::clamp(s->start_ns, covered, end);
    const int64_t to = std::clamp(s->end_ns(), from, end);
    busy += to - from;
    if (s->end_ns() > covered) {
      covered = std::max(covered, to);
      last = s;
    }
  }
  sum.busy += static_cast<double>(busy) * kSecondsPerNs;
  sum.window += static_cast<double>(end - begin) * kSecondsPerNs;
}

}  // namespace

TraceSummary summarize(const TraceContents& trace) {
  TraceSummary sum;
  Entries kernels, stages, host;
  std::map<int64_t, std::vector<const Span*>> work;
  std::map<int64_t, std::pair<int64_t, int64_t>> windows;
  for (const TraceContents::Track& track : trace.tracks) {
    add_host(track, host);
    add_device(track, kernels, stages);
    auto& [begin, end] = windows
                             .try_emplace(track.process, std::numeric_limits<int64_t>::max(),
                                          std::numeric_limits<int64_t>::min())
                             .first->second;
    for (const Span& s : track.spans) {
      if (s.category == kStepSpan) ++sum.steps;
      if (is_work(s)) work[track.process].push_back(&s);
      if (s.category == kStepSpan || is_work(s)) {
        begin = std::min(begin, s.start_ns);
        end = std::max(end, s.end_ns());
      }
    }
  }
  for (auto& [name, entry] : stages) entry.name = name;
  for (const auto& [process, window] : windows) {
    if (window.first > window.second) continue;
    ++sum.ranks;
    add_busy(std::move(work[process]), window.first, window.second, sum);
  }
  std::ranges::stable_sort(sum.largest_gaps, std::ranges::greater(), &TraceSummary::Gap::seconds);
  if (sum.largest_gaps.size() > kLargestGaps) sum.largest_gaps.resize(kLargestGaps);
  sum.kernels = ordered(kernels);
  sum.stages = ordered(stages);
  sum.host = ordered(host);
  return sum;
}

}  // namespace segue::report
