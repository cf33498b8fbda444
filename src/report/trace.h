#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/stage.h"

namespace segue::report {

/// Where the clock of a rank stands, so that files of several ranks can be laid over each other.
struct TraceClock {
  int64_t ahead_ns = 0;  // of the first rank's clock, as measured
  int64_t error_ns = 0;  // at most, either way; 0: nothing was measured
  std::string machine;   // ranks with the same one read the same clock
};

/// What a file says beside its events.
struct TraceFacts {
  int rank = 0, ranks = 1;
  struct Step {
    int64_t number = 0;
    int64_t start_ns = 0, duration_ns = 0;  // from the start of the recording
  };
  std::vector<Step> steps;
  TraceClock clock;
  std::string device;
};

/// The recording in the Chrome trace format, which Perfetto and chrome://tracing open: strict JSON,
/// times in microseconds with a fraction. The process is the rank. Its tracks are the steps, one
/// per thread with its stages and its long calls, and one per stream of a device: there the stages
/// that queued work lie around that work. An arrow (flow) leads from the call to the work. Spans of
/// a track nest.
std::string trace_json(const base::StageRecording& recording, const TraceFacts& facts);
void write_trace(const std::string& path, const base::StageRecording& recording,
                 const TraceFacts& facts);  // atomic

// Categories of spans.
inline constexpr const char* kStepSpan = "step";
inline constexpr const char* kHostSpan = "host";      // a stage, on its thread
inline constexpr const char* kCallSpan = "call";      // a call of the device's library
inline constexpr const char* kStageSpan = "stage";    // a stage, around its work on a stream
inline constexpr const char* kKernelSpan = "kernel";  // these three: a device works
inline constexpr const char* kCopySpan = "copy";
inline constexpr const char* kFillSpan = "fill";

namespace detail {

struct TraceSpan {
  const char* category = kHostSpan;
  std::string name;
  int64_t start_ns = 0, duration_ns = 0;
  std::string arguments;  // a JSON object; empty: none
  int64_t end_ns() const { return start_ns + duration_ns; }
};
/// A row of the picture.
struct TraceTrack {
  std::string name;
  std::vector<TraceSpan> spans;
};
/// Where an arrow begins and ends.
struct TraceFlow {
  size_t from_track = 0, to_track = 0;
  int64_t from_ns = 0, to_ns = 0;
};
struct TraceTracks {
  std::vector<TraceTrack> tracks;
  std::vector<TraceFlow> flows;
};
/// Threads first, in their order, then streams. Work that overlaps other work of its stream, which
/// no stack of spans can show, goes to a track of its own.
TraceTracks tracks_of(const base::StageRecording& recording);

}  // namespace detail
}  // namespace segue::report
