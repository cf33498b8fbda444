#include "base/stage.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <utility>

namespace segue::base {
namespace {

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

constexpr size_t kMaxDepth = 16;  // deeper stages are timed but not shown as a place

/// One thread's marks. The owner writes; others read `depth` and the marks below it, which may be a
/// moment old.
struct Slot {
  struct Mark {
    std::atomic<const char*> name{nullptr};
    std::atomic<int64_t> start_ns{0};
  };
  std::array<Mark, kMaxDepth> marks;
  std::atomic<size_t> depth{0};
  std::vector<StageSeconds> totals;  // of outermost stages; the owner's alone

  void add_total(const char* stage, double seconds) {
    const auto total = std::ranges::find(totals, stage, &StageSeconds::name);
    if (total == totals.end()) {
      totals.push_back({stage, seconds});
    } else {
      total->seconds += seconds;
    }
  }

  std::mutex mutex;  // of what follows
  std::string name;
  std::vector<StageEvent> events;
};

/// All threads of the process that ever were in a stage. A thread's slot outlives it only while a
/// recording still needs its events.
struct Registry {
  std::mutex mutex;
  std::vector<std::shared_ptr<Slot>> live, ended;
  int threads_seen = 0;
  std::atomic<bool> recording{false};
  std::atomic<int64_t> recording_start_ns{0};
};

Registry& registry() {
  static Registry* const kInstance = new Registry;  // threads may end after static destructors
  return *kInstance;
}

struct ThreadEntry {
  std::shared_ptr<Slot> slot = std::make_shared<Slot>();

  ThreadEntry() {
    Registry& all = registry();
    const std::lock_guard lock(all.mutex);
    slot->name = all.threads_seen == 0 ? "main" : "thread " + std::to_string(all.threads_seen);
    ++all.threads_seen;
    all.live.push_back(slot);
  }
  ~ThreadEntry() {
    Registry& all = registry();
    const std::lock_guard lock(all.mutex);
    std::erase(all.live, slot);
    if (all.recording) all.ended.push_back(slot);
  }
  ThreadEntry(const ThreadEntry&) = delete;
  ThreadEntry& operator=(const ThreadEntry&) = delete;
};

Slot& this_thread() {
  thread_local const ThreadEntry kEntry;
  return *kEntry.slot;
}

}  // namespace

Stage::Stage(const char* name) : start_ns_(now_ns()) {
  Slot& slot = this_thread();
  const size_t depth = slot.depth.load(std::memory_order_relaxed);
  if (depth < kMaxDepth) {
    slot.marks[depth].name.store(name, std::memory_order_relaxed);
    slot.marks[depth].start_ns.store(start_ns_, std::memory_order_relaxed);
  }
  slot.depth.store(depth + 1, std::memory_order_release);
}

Stage::~Stage() {
  const int64_t end_ns = now_ns();
  Slot& slot = this_thread();
  const size_t depth = slot.depth.load(std::memory_order_relaxed) - 1;
  slot.depth.store(depth, std::memory_order_release);
  if (depth >= kMaxDepth) return;
  const char* const name = slot.marks[depth].name.load(std::memory_order_relaxed);
  if (depth == 0) slot.add_total(name, static_cast<double>(end_ns - start_ns_) * 1e-9);
  const Registry& all = registry();
  if (!all.recording.load(std::memory_order_acquire)) return;
  const int64_t origin = all.recording_start_ns.load(std::memory_order_relaxed);
  if (start_ns_ < origin) return;  // began before the recording
  const std::lock_guard lock(slot.mutex);
  slot.events.push_back(
      {.name = name, .start_ns = start_ns_ - origin, .duration_ns = end_ns - start_ns_});
}

void name_thread(std::string name) {
  Slot& slot = this_thread();
  const std::lock_guard lock(slot.mutex);
  slot.name = std::move(name);
}

std::vector<ThreadState> thread_states() {
  std::vector<std::shared_ptr<Slot>> slots;
  {
    Registry& all = registry();
    const std::lock_guard lock(all.mutex);
    slots = all.live;
  }
  const int64_t now = now_ns();
  std::vector<ThreadState> states;
  for (const std::shared_ptr<Slot>& slot : slots) {
    ThreadState& state = states.emplace_back();
    {
      const std::lock_guard lock(slot->mutex);
      state.thread = slot->name;
    }
    const size_t depth = std::min(kMaxDepth, slot->depth.load(std::memory_order_acquire));
    for (size_t i = 0; i < depth; ++i) {
      state.stages.push_back(slot->marks[i].name.load(std::memory_order_relaxed));
      const int64_t start = slot->marks[i].start_ns.load(std::memory_order_relaxed);
      state.seconds = static_cast<double>(std::max<int64_t>(0, now - start)) * 1e-9;
    }
  }
  return states;
}

std::vector<StageSeconds> take_stage_seconds() { return std::exchange(this_thread().totals, {}); }

void start_stage_recording() {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  all.ended.clear();
  for (const std::shared_ptr<Slot>& slot : all.live) {
    const std::lock_guard slot_lock(slot->mutex);
    slot->events.clear();
  }
  all.recording_start_ns = now_ns();
  all.recording = true;
}

StageRecording stop_stage_recording() {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  all.recording = false;
  StageRecording recording;
  for (const auto* slots : {&all.live, &all.ended}) {
    for (const std::shared_ptr<Slot>& slot : *slots) {
      const std::lock_guard slot_lock(slot->mutex);
      const int thread = static_cast<int>(recording.threads.size());
      recording.threads.push_back(slot->name);
      for (StageEvent event : std::exchange(slot->events, {})) {
        event.thread = thread;
        recording.events.push_back(event);
      }
    }
  }
  all.ended.clear();
  std::ranges::stable_sort(recording.events, {}, &StageEvent::start_ns);
  return recording;
}

}  // namespace segue::base
