#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "base/config.h"
#include "batch/batch.h"
#include "data/sample/gather.h"
#include "data/sample/sample_stream.h"

namespace segue::data {

struct LoaderConfig {
  int64_t threads = 0;            // 0: by the cores that there are
  int64_t batches_in_flight = 4;  // filled or being filled; each holds memory for a batch

  int64_t workers() const;  // threads, chosen if need be
  void validate() const;    // Error(kConfig)
};
void describe(base::ConfigVisitor& v, LoaderConfig& c);

/// What a loader goes through: lists first ... end - 1, from batch `first_batch` of the first one.
struct LoaderSource {
  int64_t first = 0, end = 0, first_batch = 0;
  std::function<SampleList(int64_t)> list;
};
/// All training windows from `from` on. They come `epochs` times and are counted on: the first
/// window of the second epoch is end_window(). The stream must live as long as the loader uses it.
LoaderSource training(const SampleStream& stream, StreamPosition from, int64_t epochs = 1);
/// Behind the last of them.
int64_t end_of_training(const SampleStream& stream, int64_t epochs);
/// One evaluation; its batches count from 0 in window `after`.
LoaderSource evaluation(const SampleStream& stream, int64_t after = -1);

/// What next() tells about a batch.
struct BatchInfo {
  StreamPosition position;  // of this batch
  int64_t batches_in_window = 0;
  double wait_seconds = 0;  // how long next() waited for it
  bool starved = false;     // it was not ready when it was asked for

  bool last_of_window() const { return position.batch + 1 == batches_in_window; }
  /// Where a run that has trained this batch goes on.
  StreamPosition next() const {
    return last_of_window() ? StreamPosition{position.window + 1, 0}
                            : StreamPosition{position.window, position.batch + 1};
  }
};

/// Fills batches ahead of their use. Worker threads take one batch each; they are delivered in the
/// order of the source whatever the number of threads, and the next window is prepared while the
/// current one is read. Memory is that of batches_in_flight + 1 batches and is used again and
/// again.
///
///     Loader loader(gatherer, config);
///     loader.start(training(stream, position));
///     while (std::optional<BatchInfo> d = loader.next(batch)) step(batch);
class Loader {
 public:
  Loader(const Gatherer& gatherer, const LoaderConfig& config);
  ~Loader();  // at any moment; waits for batches that are being filled
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  /// Begins, or begins anew: what was loaded before is dropped.
  void start(LoaderSource source);

  /// The next batch, exchanged with the content of `batch`, whose memory the loader uses again; or
  /// nothing at the end. What a worker threw is thrown here when its batch is due, and from then on
  /// at every call until start().
  std::optional<BatchInfo> next(Batch& batch);

  /// Since start().
  int64_t batches_delivered() const { return delivered_; }
  double wait_seconds() const { return wait_seconds_; }

 private:
  struct Slot {
    Batch batch;
    BatchInfo delivery;
    std::exception_ptr error;
    bool ready = false;
  };
  /// A list and its number.
  struct Listed {
    int64_t number = 0;
    std::shared_ptr<const SampleList> list;
  };
  struct Task {
    int64_t ticket = 0;
    Listed from;
    int64_t batch = 0;
  };

  void work();
  void prepare_lists();
  bool take_task(std::unique_lock<std::mutex>& lock, Task& task);
  void fill(const Task& task, std::vector<int64_t>& sample_index, Slot& slot) const;
  void stop_and_join();

  const Gatherer& gatherer_;
  LoaderConfig config_;
  std::vector<std::thread> threads_;

  std::mutex mutex_;
  std::condition_variable workers_;   // a list, a free slot, or the end
  std::condition_variable consumer_;  // a slot is ready, or the end
  std::condition_variable planner_;   // a list was taken, or the end
  bool stop_ = false;
  LoaderSource source_;
  Listed current_;                 // batches are being handed out from it
  int64_t next_batch_ = 0;         // of current_
  std::optional<Listed> ahead_;    // prepared
  bool lists_done_ = false;        // none comes after ahead_
  std::exception_ptr list_error_;  // why not
  int64_t tickets_ = 0;            // batches handed out to workers
  bool tickets_done_ = false;      // no more will be
  std::vector<Slot> slots_;        // batch t is in slot t mod size
  int64_t delivered_ = 0;
  double wait_seconds_ = 0;
};

}  // namespace segue::data
