#include "comm/flight/recorder.h"

#include <chrono>
#include <filesystem>

#include <fmt/format.h>
#include <pthread.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "base/stage.h"
#include "comm/flight/record.h"
#include "comm/join/environment.h"

namespace segue::comm {
namespace {

// Enough to tell the threads of a rank apart, in numbers that JSON keeps.
constexpr uint64_t kThreadNames = 1000003;

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch())
      .count();
}

int64_t unix_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

std::string file_of(const std::string& folder, int rank) {
  return fmt::format("{}/rank-{}.json", folder, rank);
}

}  // namespace

FlightRing::FlightRing(std::string name, int rank, std::vector<int> members)
    : name_(std::move(name)),
      rank_(rank),
      members_(std::move(members)),
      peers_(std::make_unique<std::atomic<Peer>[]>(members_.size())) {}

// Stores of fields are releases and loads acquires, so that none of them leaves the two accesses to
// the ticket around them.
void FlightRing::begin(Op op, int64_t step, uint64_t sequence, int64_t bytes, int64_t receives) {
  for (size_t q = 0; q < members_.size(); ++q) {
    peers_[q].store(Peer::kSettled, std::memory_order_relaxed);
  }
  const uint64_t ticket = calls_.load(std::memory_order_relaxed) + 1;
  Slot& slot = slots_[ticket % kCalls];
  constexpr auto kRelease = std::memory_order_release;
  slot.ticket.store(0, kRelease);
  slot.sequence.store(sequence, kRelease);
  slot.thread.store(static_cast<uint64_t>(::pthread_self()), kRelease);
  slot.step.store(step, kRelease);
  slot.bytes.store(bytes, kRelease);
  slot.receives.store(receives, kRelease);
  slot.op.store(static_cast<uint16_t>(op), kRelease);
  slot.end_ns.store(0, kRelease);
  slot.state.store(CallState::kRunning, kRelease);
  slot.start_ns.store(now_ns(), kRelease);
  slot.ticket.store(ticket, kRelease);
  calls_.store(ticket, kRelease);
}

void FlightRing::end(CallState how) {
  Slot& slot = slots_[calls_.load(std::memory_order_relaxed) % kCalls];
  slot.end_ns.store(now_ns(), std::memory_order_release);
  slot.state.store(how, std::memory_order_release);
}

GroupFlight FlightRing::snapshot(int64_t unix_minus_steady_ns) const {
  const auto to_us = [&](int64_t ns) { return ns == 0 ? 0 : (ns + unix_minus_steady_ns) / 1000; };
  GroupFlight group{name_, members_, {}};
  const uint64_t newest = calls_.load(std::memory_order_acquire);
  const uint64_t device_done = device_done_.load(std::memory_order_acquire);
  const uint64_t oldest = newest > kCalls ? newest - kCalls + 1 : 1;
  constexpr auto kAcquire = std::memory_order_acquire;
  for (uint64_t ticket = oldest; ticket <= newest; ++ticket) {
    const Slot& slot = slots_[ticket % kCalls];
    const uint64_t before = slot.ticket.load(kAcquire);
    CallFlight call;
    call.state = slot.state.load(kAcquire);
    call.sequence = slot.sequence.load(kAcquire);
    call.thread = slot.thread.load(kAcquire) % kThreadNames;
    call.op = static_cast<Op>(slot.op.load(kAcquire));
    call.step = slot.step.load(kAcquire);
    call.bytes = slot.bytes.load(kAcquire);
    call.receives = slot.receives.load(kAcquire);
    call.start_us = to_us(slot.start_ns.load(kAcquire));
    call.end_us = call.state == CallState::kRunning ? 0 : to_us(slot.end_ns.load(kAcquire));
    if (before != ticket || slot.ticket.load(kAcquire) != ticket) continue;  // overwritten by now
    if (call.state == CallState::kQueued && call.sequence <= device_done) {
      call.state = CallState::kDone;
    }
    group.calls.push_back(std::move(call));
  }
  // Whom the newest call waits for. Where it ends meanwhile this is of no use, and nobody looks.
  if (!group.calls.empty() && group.calls.back().unfinished()) {
    CallFlight& last = group.calls.back();
    for (size_t q = 0; q < members_.size(); ++q) {
      const Peer peer = peers_[q].load(kAcquire);
      if (static_cast<int>(q) == rank_ || peer == Peer::kSettled) continue;
      last.waits_for.push_back(members_[q]);
      if (peer == Peer::kGone) last.gone.push_back(members_[q]);
    }
  }
  return group;
}

FlightRecorder::FlightRecorder() = default;

std::shared_ptr<FlightRing> FlightRecorder::add_group(std::string name, int rank,
                                                      std::vector<int> members) {
  auto ring = std::make_shared<FlightRing>(std::move(name), rank, std::move(members));
  const std::lock_guard lock(mutex_);
  rings_.push_back(ring);
  return ring;
}

void FlightRecorder::set_place(const std::string& folder, int rank, int ranks,
                               const std::string& life) {
  const std::lock_guard lock(mutex_);
  folder_ = folder;
  rank_ = rank;
  ranks_ = ranks;
  life_ = life;
  std::error_code ignored;
  std::filesystem::remove(file_of(folder, rank), ignored);
}

FlightRecord FlightRecorder::snapshot(const std::string& why) const {
  FlightRecord record;
  const int64_t offset = unix_ns() - now_ns();
  record.why = why;
  record.host = machine_name();
  record.pid = ::getpid();
  for (const base::ThreadState& state : base::thread_states()) {
    record.threads.push_back(state.stages.empty()
                                 ? fmt::format("{}: in no named stage", state.thread)
                                 : fmt::format("{}: {} for {:.1f} s", state.thread,
                                               fmt::join(state.stages, " > "), state.seconds));
  }
  const std::lock_guard lock(mutex_);
  record.rank = rank_;
  record.ranks = ranks_;
  record.life = life_;
  for (const auto& ring : rings_) record.groups.push_back(ring->snapshot(offset));
  record.written_us = unix_ns() / 1000;
  return record;
}

void FlightRecorder::write(const std::string& why) noexcept {
  try {
    write_record(snapshot(why));
  } catch (const std::exception& error) {
    base::log_warning(fmt::format("no flight record: {}", error.what()));
  }
}

void FlightRecorder::write_failure(const std::string& why, bool own) noexcept {
  try {
    {
      const std::lock_guard lock(mutex_);
      if (failed_) return;
      failed_ = true;
    }
    FlightRecord record = snapshot(why);
    record.failed = true;
    record.own_error = own;
    write_record(record);
  } catch (const std::exception& error) {
    base::log_warning(fmt::format("no flight record: {}", error.what()));
  }
}

void FlightRecorder::write_record(const FlightRecord& record) noexcept {
  std::string folder;
  {
    const std::lock_guard lock(mutex_);
    folder = folder_;
    if (failed_ && !record.failed) return;  // the first reason stays
  }
  if (folder.empty()) return;
  try {
    base::make_folders(folder);
    base::write_file(file_of(folder, record.rank), seal(record));
  } catch (const std::exception& error) {
    base::log_warning(
        fmt::format("the flight record of rank {} was not written: {}", record.rank, error.what()));
  }
}

}  // namespace segue::comm
