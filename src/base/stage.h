#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace segue::base {

/// Names what a thread is doing until the end of the scope. One mark serves three readers: the
/// watchdog (where is each thread), the split of a step's time, and traces. `name` must be a string
/// literal; stages nest. Costs two clock reads.
///
///     const base::Stage stage("gather");
class Stage {
 public:
  explicit Stage(const char* name);
  ~Stage();
  Stage(const Stage&) = delete;
  Stage& operator=(const Stage&) = delete;

 private:
  int64_t start_ns_ = 0;
};

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

/// One finished stage of a recording.
struct StageEvent {
  const char* name = nullptr;
  int thread = 0;                         // index into StageRecording::threads
  int64_t start_ns = 0, duration_ns = 0;  // from the start of the recording
};
struct StageRecording {
  std::vector<std::string> threads;
  std::vector<StageEvent> events;  // by start
};
/// Records the stages of all threads of the process. Starting again drops what was recorded.
void start_stage_recording();
StageRecording stop_stage_recording();

}  // namespace segue::base
