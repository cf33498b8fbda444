#include "base/stage.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <iterator>
#include <memory>
#include <mutex>
#include <set>
#include <utility>

#include <unistd.h>

namespace segue::base {

int64_t stage_clock_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

namespace {

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

  static void add_to(std::vector<StageSeconds>& sums, const char* stage, double seconds) {
    const auto sum = std::ranges::find(sums, stage, &StageSeconds::name);
    if (sum == sums.end()) {
      sums.push_back({stage, seconds});
    } else {
      sum->seconds += seconds;
    }
  }

  std::mutex mutex;  // of what follows
  std::string name;
  int64_t id = ::gettid();
  std::vector<StageSeconds> all_totals;
  std::vector<StageEvent> events;
  std::vector<CounterEvent> counters;
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

Stage::Stage(const char* name) : start_ns_(stage_clock_ns()) {
  Slot& slot = this_thread();
  const size_t depth = slot.depth.load(std::memory_order_relaxed);
  if (depth < kMaxDepth) {
    slot.marks[depth].name.store(name, std::memory_order_relaxed);
    slot.marks[depth].start_ns.store(start_ns_, std::memory_order_relaxed);
  }
  slot.depth.store(depth + 1, std::memory_order_release);
}

Stage::~Stage() {
  const int64_t end_ns = stage_clock_ns();
  Slot& slot = this_thread();
  const size_t depth = slot.depth.load(std::memory_order_relaxed) - 1;
  slot.depth.store(depth, std::memory_order_release);
  if (depth >= kMaxDepth) return;
  const char* const name = slot.marks[depth].name.load(std::memory_order_relaxed);
  const double seconds = static_cast<double>(end_ns - start_ns_) * 1e-9;
  if (depth == 0) Slot::add_to(slot.totals, name, seconds);
  const Registry& all = registry();
  const bool recording = all.recording.load(std::memory_order_acquire);
  const int64_t origin = all.recording_start_ns.load(std::memory_order_relaxed);
  const std::lock_guard lock(slot.mutex);
  Slot::add_to(slot.all_totals, name, seconds);
  if (!recording || start_ns_ < origin) return;  // began before the recording
  slot.events.push_back({.name = name,
                         .start_ns = start_ns_ - origin,
                         .duration_ns = end_ns - start_ns_,
                         .facts = facts_});
}

void Stage::add(StageFact fact) {
  const auto free = std::ranges::find(facts_, nullptr, &StageFact::name);
  if (free != facts_.end()) *free = fact;
}

const char* lasting_name(const std::string& text) {
  static std::mutex mutex;
  static auto* const names = new std::set<std::string>;  // outlives static destructors
  const std::lock_guard lock(mutex);
  return names->insert(text).first->c_str();
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
  const int64_t now = stage_clock_ns();
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

std::vector<ThreadStages> stage_totals() {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  std::vector<ThreadStages> threads;
  for (const std::shared_ptr<Slot>& slot : all.live) {
    const std::lock_guard slot_lock(slot->mutex);
    threads.push_back({slot->name, slot->all_totals});
  }
  return threads;
}

bool recording_stages() { return registry().recording.load(std::memory_order_acquire); }

void record_counter(const char* name, std::span<const StageFact> values) {
  const Registry& all = registry();
  if (!all.recording.load(std::memory_order_acquire)) return;
  const int64_t at = stage_clock_ns() - all.recording_start_ns.load(std::memory_order_relaxed);
  Slot& slot = this_thread();
  const std::lock_guard lock(slot.mutex);
  slot.counters.push_back({name, at, {values.begin(), values.end()}});
}

void start_stage_recording() {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  all.ended.clear();
  for (const std::shared_ptr<Slot>& slot : all.live) {
    const std::lock_guard slot_lock(slot->mutex);
    slot->events.clear();
    slot->counters.clear();
  }
  all.recording_start_ns = stage_clock_ns();
  all.recording = true;
}

StageRecording stop_stage_recording() {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  all.recording = false;
  StageRecording recording;
  recording.start_ns = all.recording_start_ns;
  for (const auto* slots : {&all.live, &all.ended}) {
    for (const std::shared_ptr<Slot>& slot : *slots) {
      const std::lock_guard slot_lock(slot->mutex);
      const int thread = static_cast<int>(recording.threads.size());
      recording.threads.push_back(slot->name);
      recording.thread_ids.push_back(slot->id);
      std::ranges::move(std::exchange(slot->counters, {}), std::back_inserter(recording.counters));
      for (StageEvent event : std::exchange(slot->events, {})) {
        event.thread = thread;
        recording.events.push_back(event);
      }
    }
  }
  all.ended.clear();
  std::ranges::stable_sort(recording.events, {}, &StageEvent::start_ns);
  std::ranges::stable_sort(recording.counters, {}, &CounterEvent::at_ns);
  return recording;
}

}  // namespace segue::base
