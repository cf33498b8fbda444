#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/time.h"
#include "train/checkpoint/checkpoint_writer.h"
#include "train/run/publisher.h"
#include "train/run_config.h"
#include "train/step/ranks.h"

namespace segue::train {

/// The saves of a run: when one is wanted, whether it is full, what becomes of one that failed, and
/// handing on what is whole to be published.
class Saver {
 public:
  /// Collective: the first rank clears away what a killed run left, before the others write.
  /// `saved_step` is that of the checkpoint which the run goes on from, -1: none. It is published
  /// first: the run may have been killed when it had saved it and not published it.
  Saver(const std::string& folder, const RunConfig& config, const Ranks& ranks,
        const Publisher::Publish& publish, int64_t saved_step);

  /// Training begins.
  void begin() { since_save_.restart(); }
  /// Before a step, the `batches`-th of its window and the `steps`-th of the run.
  void before_step(int64_t batches, int64_t steps);
  /// What this rank would do next. While the last checkpoint is still being written the next one
  /// waits, training does not. So it is while the store is verified, but not for ever: there may be
  /// no time left over for that.
  struct Wish {
    bool save = false, full = false;
  };
  Wish wish(bool verified) const;

  /// An increment where the config asks for them and there is something to add to. The first save
  /// of a process and its last one are `full`. Says what it will be.
  bool next_is_full(bool full);
  void save(int64_t step, CheckpointContents contents, const std::string& state_json,
            const Stream* stream, const Status& logs, bool full);

  /// After every step: says that a save has failed (Error(kIo) where that ends a run), publishes
  /// one that is whole.
  void look();
  /// Waits for a save that is being written, before the last one.
  void settle();
  /// Waits for the last one, which has to be there before a process ends. Error(kIo).
  void finish();
  void wait_until_published();

  double stalled_seconds() const { return writer_->stalled_seconds(); }

 private:
  void report(const Status& status) const;
  void publish_saved();
  void publish(int64_t step);

  const std::string folder_;
  const CheckpointConfig config_;
  std::unique_ptr<CheckpointWriter> writer_;
  std::unique_ptr<Publisher> publisher_;  // of the first rank, where something publishes
  base::Stopwatch since_save_, since_due_;
  bool wanted_ = false;
  int64_t since_full_ = 0;  // saves
  int64_t saved_step_ = -1, published_step_ = -1;
};

}  // namespace segue::train
