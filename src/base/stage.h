#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace segue::base {

/// A number that says more about a stage: a shape, an amount of work. `name` is a literal.
struct StageFact {
  const char* name = nullptr;
  double value = 0;
};

/// Names what a thread is doing until the end of the scope. One mark serves three readers: the
/// watchdog (where is each thread), the split of a step's time, and traces. `name` must be a string
/// literal, or a lasting_name(); stages nest. Costs two clock reads.
///
///     const base::Stage stage("gather");
class Stage {
 public:
  explicit Stage(const char* name);
  ~Stage();
  Stage(const Stage&) = delete;
  Stage& operator=(const Stage&) = delete;

  static constexpr size_t kMostFacts = 4;
  /// For traces; facts beyond kMostFacts are dropped. What takes time to find out is asked for only
  /// while recording_stages().
  void add(StageFact fact);

 private:
  int64_t start_ns_ = 0;
  std::array<StageFact, kMostFacts> facts_{};  // up to the first without a name
};

/// The same text for as long as the process lives; for names that are no literals, such as a
/// layer's.
const char* lasting_name(const std::string& text);

/// How this thread is called in reports; "main" or "thread N" until told.
void name_thread(std::string name);

/// What a live thread that has ever been in a stage is doing now.
struct ThreadState {
  std::string thread;
  std::vector<const char*> stages;  // outermost first; empty: in none
  double seconds = 0;               // since the innermost one began
};
std::vector<ThreadState> thread_states();

/// Time this thread spent in each outermost stage since the last call, in the order in which they
/// first ended: parts that add up.
struct StageSeconds {
  const char* name = nullptr;
  double seconds = 0;
};
std::vector<StageSeconds> take_stage_seconds();

/// Time that each live thread has spent in every stage so far, inner ones counted in outer ones as
/// well. It only grows: what a step took is a difference.
struct ThreadStages {
  std::string thread;
  std::vector<StageSeconds> stages;
};
std::vector<ThreadStages> stage_totals();

/// The clock of stages, in nanoseconds: CLOCK_MONOTONIC, one for all processes of a machine.
int64_t stage_clock_ns();

/// One finished stage of a recording.
struct StageEvent {
  const char* name = nullptr;
  int thread = 0;                         // index into StageRecording::threads
  int64_t start_ns = 0, duration_ns = 0;  // from the start of the recording
  std::array<StageFact, Stage::kMostFacts> facts{};
};
/// Amounts at one time, which a trace draws as curves.
struct CounterEvent {
  const char* name = nullptr;
  int64_t at_ns = 0;  // from the start of the recording
  std::vector<StageFact> values;
};
/// Something that a device did. Stages know nothing of devices: whoever watches one adds it.
struct DeviceWork {
  enum class Kind : uint8_t { kKernel, kCopy, kFill } kind = Kind::kKernel;
  std::string name;
  int device = 0;
  int64_t stream = 0;                     // a number of the device's own
  int64_t start_ns = 0, duration_ns = 0;  // from the start of the recording
  int64_t bytes = 0;                      // of a copy or fill
  std::array<int32_t, 3> grid{}, block{};
  int32_t registers = 0;     // of a thread
  int64_t shared_bytes = 0;  // of a block
  int call = -1;             // index into StageRecording::calls: what queued it
};
/// A call by which a thread of the host queued work, or waited for it.
struct DeviceCall {
  std::string name;
  int64_t thread_id = 0;                  // the system's
  int64_t start_ns = 0, duration_ns = 0;  // from the start of the recording
};
struct StageRecording {
  int64_t start_ns = 0;  // by stage_clock_ns()
  std::vector<std::string> threads;
  std::vector<int64_t> thread_ids;  // the system's
  std::vector<StageEvent> events;   // by start
  std::vector<CounterEvent> counters;
  std::vector<DeviceWork> work;
  std::vector<DeviceCall> calls;
};
/// Records the stages of all threads of the process. Starting again drops what was recorded.
void start_stage_recording();
StageRecording stop_stage_recording();
bool recording_stages();
/// Nothing while nobody records.
void record_counter(const char* name, std::span<const StageFact> values);

}  // namespace segue::base
