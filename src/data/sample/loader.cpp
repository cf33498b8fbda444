#include "data/sample/loader.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/config_checks.h"
#include "base/error.h"
#include "base/parallel.h"
#include "base/stage.h"
#include "base/time.h"

namespace segue::data {

void describe(base::ConfigVisitor& v, LoaderConfig& c) {
  v.field("threads", c.threads, "threads that fill batches; 0: a quarter of the cores, 2 to 8");
  v.field("batches_in_flight", c.batches_in_flight, "batches filled ahead");
}

void LoaderConfig::validate() const {
  constexpr double kMost = 1024;
  base::require_between("loader threads", static_cast<double>(threads), 0, kMost);
  base::require_between("batches_in_flight", static_cast<double>(batches_in_flight), 1, kMost);
}

int64_t LoaderConfig::workers() const {
  return threads > 0 ? threads : std::clamp<int64_t>(base::num_threads() / 4, 2, 8);
}

int64_t end_of_training(const SampleStream& stream, int64_t epochs) {
  return stream.first_window() + epochs * (stream.end_window() - stream.first_window());
}

LoaderSource training(const SampleStream& stream, StreamPosition from, int64_t epochs) {
  const int64_t first = stream.first_window(), end = end_of_training(stream, epochs);
  if (from.window < first || from.window > end || from.batch < 0) {
    fail(ErrorCode::kInvalidArgument,
         fmt::format("training windows are {} to {}; batch {} of window {} is none of theirs",
                     first, end - 1, from.batch, from.window));
  }
  return {from.window, end, from.batch,
          [&stream, first, each = stream.end_window() - first](int64_t number) {
            return stream.train_window(first + (number - first) % each, (number - first) / each);
          }};
}

LoaderSource evaluation(const SampleStream& stream, int64_t after) {
  return {after, after + 1, 0, [&stream](int64_t window) { return stream.evaluation(window); }};
}

Loader::Loader(const Gatherer& gatherer, const LoaderConfig& config)
    : gatherer_(gatherer), config_(config) {
  config_.validate();
  slots_.resize(static_cast<size_t>(config_.batches_in_flight));
}

Loader::~Loader() { stop_and_join(); }

void Loader::stop_and_join() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  workers_.notify_all();
  planner_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

void Loader::start(LoaderSource source) {
  stop_and_join();
  stop_ = false;
  source_ = std::move(source);
  current_ = {};
  next_batch_ = 0;
  ahead_.reset();
  lists_done_ = tickets_done_ = false;
  list_error_ = nullptr;
  tickets_ = delivered_ = 0;
  wait_seconds_ = 0;
  for (Slot& slot : slots_) {
    slot.ready = false;
    slot.error = nullptr;
  }
  threads_.emplace_back([this] { prepare_lists(); });
  for (int64_t i = 0; i < config_.workers(); ++i) threads_.emplace_back([this] { work(); });
}

/// One list ahead of the one that batches are taken from.
void Loader::prepare_lists() {
  base::name_thread("window lists");
  for (int64_t number = source_.first; number < source_.end; ++number) {
    Listed made{number, nullptr};
    std::exception_ptr error;
    try {
      const base::Stage stage("list window");
      made.list = std::make_shared<const SampleList>(source_.list(number));
    } catch (...) {
      error = std::current_exception();
    }
    const base::Stage stage("wait: the next window is not needed yet");
    std::unique_lock lock(mutex_);
    planner_.wait(lock, [&] { return stop_ || !ahead_; });
    if (stop_) return;
    if (error) {
      list_error_ = error;
      break;
    }
    ahead_ = std::move(made);
    workers_.notify_all();
  }
  const std::lock_guard lock(mutex_);
  lists_done_ = true;
  workers_.notify_all();
}

/// Waits for something to do; false when there is nothing any more.
bool Loader::take_task(std::unique_lock<std::mutex>& lock, Task& task) {
  const auto list_used_up = [&] {
    return !current_.list || next_batch_ >= current_.list->num_batches();
  };
  for (;;) {
    if (stop_ || tickets_done_) return false;
    if (list_used_up() && ahead_) {
      const bool first_list = !current_.list;
      current_ = std::move(*ahead_);
      ahead_.reset();
      next_batch_ = first_list ? source_.first_batch : 0;
      planner_.notify_one();
      continue;  // it may be empty
    }
    if (list_used_up() && lists_done_) {
      tickets_done_ = true;
      workers_.notify_all();
      consumer_.notify_all();
      return false;
    }
    const bool free_slot = tickets_ - delivered_ < config_.batches_in_flight;
    if (!list_used_up() && free_slot) {
      task = {tickets_++, current_, next_batch_++};
      return true;
    }
    workers_.wait(lock);
  }
}

void Loader::work() {
  base::name_thread("loader");
  std::vector<int64_t> sample_index;
  Task task;
  std::unique_lock lock(mutex_);
  while (take_task(lock, task)) {
    Slot& slot = slots_[static_cast<size_t>(task.ticket % config_.batches_in_flight)];
    lock.unlock();
    std::exception_ptr error;
    try {
      fill(task, sample_index, slot);
    } catch (...) {
      error = std::current_exception();
    }
    task.from.list.reset();
    lock.lock();
    slot.error = error;
    slot.ready = true;
    if (task.ticket == delivered_) consumer_.notify_all();
  }
}

void Loader::fill(const Task& task, std::vector<int64_t>& sample_index, Slot& slot) const {
  const base::Stage stage("gather batch");
  const SampleList& list = *task.from.list;
  const std::span<const int64_t> positions = list.batch(task.batch);
  const std::span<const int64_t> starts = list.starts(task.batch);
  sample_index.resize(starts.empty() ? positions.size() : starts.size() - 1);
  for (size_t i = 0; i < sample_index.size(); ++i) {
    sample_index[i] = list.sample_index(static_cast<int64_t>(i));
  }
  gatherer_.fill(positions, sample_index, slot.batch, starts);
  slot.batch.global_samples = list.global_samples(task.batch);
  slot.delivery = {{task.from.number, task.batch}, list.num_batches()};
}

std::optional<BatchInfo> Loader::next(Batch& batch) {
  const base::Stopwatch watch;
  const base::Stage stage("wait for a batch");
  std::unique_lock lock(mutex_);
  SEGUE_ASSERT(!threads_.empty(), "next() before start()");
  Slot& slot = slots_[static_cast<size_t>(delivered_ % config_.batches_in_flight)];
  const auto at_end = [&] { return tickets_done_ && delivered_ == tickets_; };
  const bool starved = !slot.ready && !at_end();
  consumer_.wait(lock, [&] { return slot.ready || at_end(); });
  if (!slot.ready) {
    if (list_error_) std::rethrow_exception(list_error_);
    return std::nullopt;
  }
  if (slot.error) std::rethrow_exception(slot.error);
  BatchInfo delivery = slot.delivery;
  std::swap(batch, slot.batch);
  slot.ready = false;
  ++delivered_;
  delivery.starved = starved;
  delivery.wait_seconds = watch.seconds();
  wait_seconds_ += delivery.wait_seconds;
  lock.unlock();
  workers_.notify_one();
  return delivery;
}

}  // namespace segue::data
