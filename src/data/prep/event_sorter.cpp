#include "data/prep/event_sorter.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include <fmt/format.h>

#include "base/background.h"
#include "base/error.h"

namespace segue::data {
namespace {

constexpr size_t kEncodeEvents = 8192;  // at a time
constexpr size_t kNextEvents = 8192;
constexpr size_t kSlack = 1 << 15;  // a run ends with the block of rows that fills it
constexpr int64_t kLeastCursorBytes = 64 << 10;
constexpr int64_t kMostCursorBytes = 4 << 20;

/// Appends runs to a file.
class RunFile {
 public:
  explicit RunFile(const std::string& path) : file_(path) {}

  void begin() { run_ = {.file = nullptr, .offset = end_}; }
  void append(std::span<const Event> events) {
    while (!events.empty()) {
      const size_t n = std::min(events.size(), kEncodeEvents);
      bytes_.clear();
      encode_events(events.first(n), bytes_);
      file_.write(bytes_.data(), bytes_.size());
      end_ += static_cast<int64_t>(bytes_.size());
      events = events.subspan(n);
    }
  }
  EventRun end() {
    run_.bytes = end_ - run_.offset;
    return run_;
  }
  const std::string& path() const { return file_.path(); }

 private:
  base::OutputFile file_;
  int64_t end_ = 0;
  EventRun run_;
  std::vector<uint8_t> bytes_;
};

}  // namespace

struct EventSorter::Slot {
  EventBlock block;
  std::unique_ptr<RunFile> file;  // made with the first run
  std::vector<EventRun> runs;
  size_t submitted = 0;
  base::BackgroundWorker worker;  // last: its job uses the rest
};

EventSorter::EventSorter(EventSorterConfig config) : config_(std::move(config)) {
  for (int i = 0; i < config_.buffers; ++i) slots_.push_back(std::make_unique<Slot>());
}
EventSorter::~EventSorter() = default;

std::vector<Event>& EventSorter::buffer() {
  std::vector<Event>& events = slots_[current_]->block.events;
  // Once and for good: a vector that grows needs twice its memory for a moment.
  if (events.capacity() == 0) events.reserve(static_cast<size_t>(config_.run_events) + kSlack);
  return events;
}

NumberArena& EventSorter::numbers() { return slots_[current_]->block.numbers; }

void EventSorter::added() {
  if (static_cast<int64_t>(buffer().size()) >= config_.run_events) spill();
}

void EventSorter::spill() {
  Slot& slot = *slots_[current_];
  if (!slot.file) {
    slot.file = std::make_unique<RunFile>(config_.scratch(fmt::format("runs-{}", current_)));
  }
  order_.emplace_back(current_, slot.submitted++);
  slot.worker.submit([this, &slot] {
    sort_events(slot.block.events, config_.ties);
    slot.file->begin();
    slot.file->append(slot.block.events);
    slot.runs.push_back(slot.file->end());
    slot.block.clear();
  });
  current_ = (current_ + 1) % slots_.size();
  slots_[current_]->worker.wait();
}

int64_t EventSorter::finish() {
  if (order_.empty()) {
    rest_ = std::move(slots_[current_]->block);
    sort_events(rest_.events, config_.ties);
    slots_.clear();
    return rest_.events.empty() ? 0 : 1;
  }
  if (!buffer().empty()) spill();
  std::vector<std::shared_ptr<const base::InputFile>> files;
  for (const std::unique_ptr<Slot>& slot : slots_) {
    slot->worker.wait();
    files.push_back(slot->file ? std::make_shared<const base::InputFile>(slot->file->path())
                               : nullptr);
  }
  for (const auto& [slot, run] : order_) {
    runs_.push_back(slots_[slot]->runs[run]);
    runs_.back().file = files[slot];
  }
  slots_.clear();
  const auto runs = static_cast<int64_t>(runs_.size());
  merge_passes();
  merger_ = std::make_unique<RunMerger>(runs_, buffer_bytes(runs_.size()), config_.ties);
  return runs;
}

/// The decoded block of a cursor.
int64_t EventSorter::cursor_overhead() const {
  return static_cast<int64_t>(512 * (sizeof(Event) + config_.numbers * sizeof(float)) + 4096);
}

int64_t EventSorter::fan_in() const {
  return std::max<int64_t>(2, config_.merge_bytes / (kLeastCursorBytes + cursor_overhead()));
}

size_t EventSorter::buffer_bytes(size_t runs) const {
  const int64_t share = config_.merge_bytes / static_cast<int64_t>(runs) - cursor_overhead();
  return static_cast<size_t>(std::clamp(share, kLeastCursorBytes, kMostCursorBytes));
}

/// Merges neighbours into longer runs until one merge can take them all.
void EventSorter::merge_passes() {
  const auto most = static_cast<size_t>(fan_in());
  for (int pass = 0; runs_.size() > most; ++pass) {
    std::vector<EventRun> merged;
    const std::string path = config_.scratch(fmt::format("merged-{}", pass));
    RunFile out(path);
    for (size_t first = 0; first < runs_.size(); first += most) {
      const std::span<const EventRun> group =
          std::span(runs_).subspan(first, std::min(most, runs_.size() - first));
      RunMerger merger(group, buffer_bytes(group.size()), config_.ties);
      EventBlock block;
      out.begin();
      while (merger.next(block, kNextEvents)) out.append(block.events);
      merged.push_back(out.end());
    }
    const auto file = std::make_shared<const base::InputFile>(path);
    for (EventRun& run : merged) run.file = file;
    for (const EventRun& run : runs_) std::remove(run.file->path().c_str());  // no longer needed
    runs_ = std::move(merged);
  }
}

bool EventSorter::next(EventBlock& block) {
  if (merger_) return merger_->next(block, kNextEvents);
  const std::vector<Event>& rest = rest_.events;
  const size_t n = std::min(kNextEvents, rest.size() - rest_done_);
  block.events.assign(rest.begin() + static_cast<std::ptrdiff_t>(rest_done_),
                      rest.begin() + static_cast<std::ptrdiff_t>(rest_done_ + n));
  rest_done_ += n;
  return n > 0;
}

}  // namespace segue::data
