#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace segue::report {

/// What a trace file shows.
struct TraceContents {
  struct Span {
    std::string category, name;
    int64_t start_ns = 0, duration_ns = 0;
    int parent = -1;        // index of the span of the same track around it
    std::string arguments;  // JSON; empty: none
    int64_t end_ns() const { return start_ns + duration_ns; }
  };
  struct Track {
    int64_t process = 0, thread = 0;
    std::string process_name, name;
    std::vector<Span> spans;  // by start, outer ones first
  };
  struct Flow {
    size_t from_track = 0, to_track = 0;
    int64_t from_ns = 0, to_ns = 0;
  };
  struct Counter {
    std::string process_name, name;
    int64_t at_ns = 0;
    std::vector<std::pair<std::string, double>> values;
  };
  std::vector<Track> tracks;  // by process and thread
  std::vector<Flow> flows;
  std::vector<Counter> counters;
};

/// Reads files of trace_json() and merge_traces(); of other writers' traces what is in the same
/// form. Error(kNotFound), or Error(kCorrupt) with path and event.
TraceContents read_trace(const std::string& path);
/// `place` names the text in messages.
TraceContents parse_trace(std::string_view text, const std::string& place);

/// Files of several ranks as one: their clocks are aligned, their processes and arrows numbered
/// anew where they collide; nothing else of an event changes.
struct MergedTrace {
  std::string json;
  int files = 0;
  int64_t events = 0;
  double error_us = 0;                // by which two ranks may be apart, at most
  std::vector<std::string> warnings;  // ranks that are missing, clocks that nobody measured
};
MergedTrace merge_traces(const std::vector<std::string>& paths);

/// Trace files of a run folder that begin at `step`; 0: of the last window.
std::vector<std::string> traces_of_run(const std::string& folder, int64_t step = 0);

/// Where the time went. Sums are over all ranks of the file; per_step() makes them one rank's.
struct TraceSummary {
  struct Entry {
    std::string name;
    int64_t count = 0;
    double seconds = 0;  // with what is inside
    double own = 0;      // without
  };
  struct Gap {
    double seconds = 0;
    std::string after, before;  // work of the device around it
  };
  int64_t ranks = 0, steps = 0;  // steps of all ranks together
  double window = 0;             // seconds from the first step to the last work, of all ranks
  double busy = 0;               // of it: some stream of a device worked
  double gap_seconds = 0;        // of it: none did, between two pieces of work
  int64_t gaps = 0;              // of at least 1 us
  std::vector<Gap> largest_gaps;
  std::vector<Entry> kernels;  // and copies and fills
  std::vector<Entry> stages;   // device time of what a stage queued
  std::vector<Entry> host;     // stages by the clock of the host, "thread: stage"

  bool has_device() const { return !kernels.empty(); }
  double per_step(double seconds) const {
    return steps > 0 ? seconds / static_cast<double>(steps) : seconds;
  }
};
/// Entries are ordered by their own time, largest first.
TraceSummary summarize(const TraceContents& trace);

}  // namespace segue::report
