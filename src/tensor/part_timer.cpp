#include "tensor/part_timer.h"

#include <algorithm>

namespace segue {
namespace {

constexpr const char* kOther = "other";

thread_local PartTimer* t_timer = nullptr;  // of the step that this thread queues
thread_local const char* t_part = kOther;   // the innermost part

}  // namespace

PartTimer::Step::Step(PartTimer& timer, int64_t number) {
  timer.steps_.push_back({.number = number});
  t_timer = &timer;
  t_part = kOther;
  timer.mark(kOther);
}

PartTimer::Step::~Step() {
  PartTimer* const timer = std::exchange(t_timer, nullptr);
  timer->mark(nullptr);
}

void PartTimer::mark(const char* name) {
  Lap lap{.name = name};
  if (!spare_.empty()) {
    lap.begin = std::move(spare_.back());
    spare_.pop_back();
  }
  lap.begin.record(&stream_);
  steps_.back().laps.push_back(std::move(lap));
}

std::optional<StepParts> PartTimer::take(int64_t before) {
  if (steps_.empty() || steps_.front().number >= before) return {};
  Timed& timed = steps_.front();
  std::vector<Lap>& laps = timed.laps;
  if (!laps.back().begin.reached()) stream_.synchronize();
  StepParts result{.step = timed.number,
                   .seconds = laps.back().begin.seconds_since(laps.front().begin)};
  const auto part_of = [&](const char* name) -> StepParts::Part& {
    const auto found = std::ranges::find(result.parts, name, &StepParts::Part::name);
    return found != result.parts.end() ? *found : result.parts.emplace_back(StepParts::Part{name});
  };
  for (size_t i = 0; i + 1 < laps.size(); ++i) {
    part_of(laps[i].name).seconds += laps[i + 1].begin.seconds_since(laps[i].begin);
  }
  for (const auto& [name, flop] : timed.flop) part_of(name).flop += flop;
  for (Lap& lap : laps) spare_.push_back(std::move(lap.begin));
  steps_.pop_front();
  return result;
}

Part::Part(const char* name) : stage_(name), name_(name), timer_(t_timer) {
  if (timer_ == nullptr) return;
  outer_ = std::exchange(t_part, name);
  timer_->mark(name);
}

Part::~Part() {
  if (timer_ == nullptr) return;
  t_part = outer_;
  timer_->mark(outer_);
}

void Part::tell(const PartWork& work) {
  if (timer_ != nullptr) timer_->steps_.back().flop.emplace_back(name_, work.flop);
  if (work.tokens > 0) stage_.add({"tokens", static_cast<double>(work.tokens)});
  if (work.samples > 0) stage_.add({"samples", static_cast<double>(work.samples)});
  if (work.flop > 0) stage_.add({"flop", work.flop});
  if (work.arena_bytes > 0) {
    const base::StageFact used{"bytes", static_cast<double>(work.arena_bytes)};
    base::record_counter("arena", {&used, 1});
  }
}

}  // namespace segue
