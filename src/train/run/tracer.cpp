#include "train/run/tracer.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <limits>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "tensor/buffer.h"
#include "tensor/device_memory.h"
#include "tensor/gpu_recorder.h"

namespace segue::train {
namespace {

void trace_lost(const std::exception& error) {
  base::log_once(base::LogLevel::kWarning, "trace lost",
                 fmt::format("a trace is lost, training goes on: {}", error.what()));
}

}  // namespace

Tracer::Tracer(const TraceConfig& config, const Trainer& trainer, std::string folder, bool records)
    : plan_{config.steps, config.active, config.wait, config.warm_up, config.repeat},
      trainer_(trainer),
      folder_(std::move(folder)),
      records_(records) {
  facts_.rank = trainer.ranks().rank();
  facts_.ranks = trainer.ranks().size();
  facts_.device = plan_.any() ? describe(trainer.device()) : "";
}

void Tracer::before_step(int64_t step) {
  if (!plan_.any()) return;
  if (first_step_ == 0) first_step_ = step;
  last_step_ = step;
  const bool window = plan_.starts_at(step);
  if (window || (!on_ && plan_.rehearses(step))) start(window);
  if (window) {
    window_ = step;
    began_ = true;
  }
  step_ns_ = base::stage_clock_ns();
  if (window_ > 0 && records_) count_memory();
}

/// A window begins on a device without work, with the same barrier on all ranks: what is in it
/// belongs to its steps, and one sees how well clocks agree.
void Tracer::start(bool window) {
  const bool on_gpu = trainer_.device().is_cuda();
  if (records_ && !on_ && on_gpu) {
    const std::string trouble = start_gpu_recording();
    if (!trouble.empty()) {
      base::log_once(base::LogLevel::kWarning, "gpu recording",
                     "traces show the host only, no kernels: " + trouble);
    }
  }
  on_ = true;
  if (!window) {
    if (records_) base::start_stage_recording();
    return;
  }
  trainer_.stream()->synchronize();
  facts_.clock = compare_clocks(trainer_.ranks());
  facts_.steps.clear();
  if (records_) {
    drop_gpu_recording();
    base::start_stage_recording();
  }
  started_ns_ = base::stage_clock_ns();
  if (!trainer_.ranks().alone()) trainer_.ranks().results->barrier().throw_if_failed();
}

void Tracer::after_step(int64_t step) {
  if (window_ == 0) return;
  end_step(step);
  if (plan_.ends_after(step)) write();
}

void Tracer::end_step(int64_t step) {
  facts_.steps.push_back({step, step_ns_ - started_ns_, base::stage_clock_ns() - step_ns_});
}

Tracer::~Tracer() {
  try {
    const bool failed = facts_.steps.empty() || facts_.steps.back().number != last_step_;
    if (window_ > 0 && failed) end_step(last_step_);
    stop();
  } catch (const std::exception& error) {
    trace_lost(error);
  }
}

void Tracer::finish() {
  stop();
  // Windows that all lie before this process are those of another one.
  if (began_ || first_step_ == 0 || plan_.last_step() < first_step_ || facts_.rank != 0) return;
  base::log_warning(fmt::format(
      "nothing was traced: no window of [trace] begins in steps {} to {}, which were trained here",
      first_step_, last_step_));
}

void Tracer::stop() {
  if (window_ > 0) write();
  if (std::exchange(on_, false) && records_) {
    base::StageRecording dropped = base::stop_stage_recording();
    stop_gpu_recording(dropped);
  }
}

void Tracer::write() {
  const int64_t window = std::exchange(window_, 0);
  on_ = false;
  trainer_.stream()->synchronize();
  if (!records_) return;
  count_memory();
  base::StageRecording recording = base::stop_stage_recording();
  const std::string missing = stop_gpu_recording(recording);
  if (!missing.empty()) base::log_once(base::LogLevel::kWarning, "gpu records", missing);
  // Steps are counted from a moment that is not exactly the recording's.
  const int64_t later = started_ns_ - recording.start_ns;
  for (report::TraceFacts::Step& s : facts_.steps) s.start_ns += later;
  try {
    base::make_folders(folder_);
    report::write_trace(folder_ + "/" + report::trace_file_name(window, facts_.rank, facts_.ranks),
                        recording, facts_);
  } catch (const std::exception& error) {
    trace_lost(error);
  }
}

void Tracer::count_memory() const {
  std::array<base::StageFact, kNumPurposes> held;
  for (int p = 0; p < kNumPurposes; ++p) {
    const auto purpose = static_cast<Purpose>(p);
    const int64_t bytes =
        trainer_.device().is_cuda() ? device_bytes_held(purpose) : Buffer::live_bytes(purpose);
    held[static_cast<size_t>(p)] = {to_string(purpose), static_cast<double>(bytes)};
  }
  base::record_counter("memory by purpose", held);
}

namespace detail {

report::TraceClock clock_between(std::span<const BarrierTimes> first,
                                 std::span<const BarrierTimes> mine) {
  int64_t least = std::numeric_limits<int64_t>::min(), most = std::numeric_limits<int64_t>::max();
  for (size_t i = 0; i < std::min(first.size(), mine.size()); ++i) {
    least = std::max(least, mine[i].came_ns - first[i].left_ns);
    most = std::min(most, mine[i].left_ns - first[i].came_ns);
  }
  if (least > most) std::swap(least, most);  // a clock drifts: the bounds are still close
  return {.ahead_ns = least + (most - least) / 2, .error_ns = (most - least + 1) / 2};
}

}  // namespace detail

report::TraceClock compare_clocks(const Ranks& ranks) {
  report::TraceClock clock;
  if (!ranks.alone()) {
    constexpr int kBarriers = 16;
    std::vector<detail::BarrierTimes> mine(kBarriers);
    for (detail::BarrierTimes& times : mine) {
      times.came_ns = base::stage_clock_ns();
      ranks.results->barrier().throw_if_failed();
      times.left_ns = base::stage_clock_ns();
    }
    std::vector<std::vector<std::byte>> all;
    ranks.results->all_gather(std::as_bytes(std::span(mine)), all).throw_if_failed();
    std::vector<detail::BarrierTimes> first(kBarriers);
    std::memcpy(first.data(), all[0].data(),
                std::min(all[0].size(), first.size() * sizeof first[0]));
    if (!ranks.first()) clock = detail::clock_between(first, mine);
  }
  try {
    // The system's own name of what has been running since the machine was started.
    clock.machine = base::read_file("/proc/sys/kernel/random/boot_id");
    clock.machine.resize(std::min(clock.machine.size(), clock.machine.find('\n')));
  } catch (const Error&) {
    clock.machine.clear();  // then what was measured counts
  }
  return clock;
}

}  // namespace segue::train
