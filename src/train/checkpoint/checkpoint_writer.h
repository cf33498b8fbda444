#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/background.h"
#include "base/error.h"
#include "tensor/buffer.h"
#include "tensor/event.h"
#include "train/checkpoint/checkpoint_config.h"
#include "train/checkpoint/checkpoint_folder.h"
#include "train/checkpoint/checkpoint_manifest.h"
#include "train/checkpoint/checkpoint_shards.h"

namespace segue::train {

/// This rank among those that save together.
struct WriterRanks {
  int rank = 0, size = 1;
  /// How long rank 0 waits for a rank that writes nothing.
  double timeout_seconds = 300;
};

/// Saves checkpoints as `<folder>/step-<N>`. What is written first lies in a folder whose name
/// begins with `.tmp-`; it is synced and renamed when complete, and only then do older checkpoints
/// beyond `keep_last` go. Checkpoints of later steps go too: this run came back to before them.
/// One writer per folder (and rank); all calls from one thread.
///
/// Several ranks have a writer each, on a folder that all of them see, and save the same steps in
/// the same order. Each writes its own files; rank 0 waits in the background for the others and
/// makes the checkpoint of them. So what rank 0 is told holds for the checkpoint, what other ranks
/// are told for their part of it.
class CheckpointWriter {
 public:
  /// Makes the folder; rank 0 clears away what a killed writer left in it. The other ranks may not
  /// save before it has.
  CheckpointWriter(std::string folder, const CheckpointConfig& config,
                   int64_t shard_bytes = kShardBytes, WriterRanks ranks = {});
  /// Waits for the last save, but not long for other ranks.
  ~CheckpointWriter();

  /// A save is being written. A caller that would not wait puts the next one off.
  bool busy() const { return busy_; }

  /// Waits for the save before, copies everything and returns; the write goes on in the background.
  /// Arrays on a GPU are copied to other memory of the GPU, after what `stream` was given before,
  /// where it has some left; otherwise to the host. A state that needs more than `copy_gib` there
  /// is written before save() returns, by several threads. `state_json` is an object with whatever
  /// else resuming needs; that of rank 0 counts. Throws when there is no memory for the copy;
  /// everything else that goes wrong is told by wait() and take_failure(). A save with a `ready`
  /// that is not ok fails with it: other ranks, which do not know, get to know that way. So does
  /// one that the disk has no room for, before anything is written. Of an `increment` the tables
  /// have only what changed since the save before, which must have succeeded.
  void save(int64_t step, CheckpointContents contents, const std::string& state_json,
            const Stream* stream = nullptr, const Status& ready = {}, bool increment = false);

  /// Waits; how the last save went. After a failed one the older checkpoints are what they were.
  Status wait();
  /// The last failure that was not taken yet; does not wait.
  Status take_failure();
  /// The last save has succeeded, as far as this rank knows: an increment may follow.
  bool succeeded() const;

  /// Seconds spent inside save() so far: how long training stood still.
  double stalled_seconds() const { return stalled_seconds_; }

 private:
  struct Job {
    int64_t step = 0;
    int64_t number = 0;  // of the save; the same on all ranks
    std::string state_json;
    std::vector<CheckpointArray> arrays;  // that this rank saves; copies, or live
    std::vector<CheckpointContents::Later> later;
    std::vector<Shard> shards;
    const Stream* stream = nullptr;  // of live arrays
    Device device;
    Status ready;
    bool increment = false;
  };

  bool is_mine(const CheckpointArray& array) const;
  bool copy_arrays(const Stream* stream);
  bool copy_on_device(const Stream* stream);
  void take_staging(int64_t bytes);
  const Stream* stream_for(Device device);
  bool alone() const { return ranks_.size == 1; }
  std::string temporary() const;
  void require_room() const;
  RankRecord write_part(bool wide);
  base::FileRecord write_shard(const std::string& folder, const Shard& shard);
  void finish(RankRecord mine);
  void leave_part(RankRecord mine) const;
  void complete(RankRecord mine);
  void write_manifest(CheckpointManifest manifest);

  CheckpointFolder folder_;
  int64_t keep_last_;
  int64_t copy_bytes_;
  int64_t shard_bytes_;
  WriterRanks ranks_;
  std::unique_ptr<std::byte[]> staging_;
  int64_t staging_bytes_ = 0;
  Buffer device_staging_;               // while a save is being written
  Event copied_;                        // to it
  std::unique_ptr<Stream> own_stream_;  // of the copies from it
  std::optional<IncrementOf> before_;   // what an increment would be of
  double stalled_seconds_ = 0;
  Job job_;
  std::atomic<bool> busy_{false}, hurry_{false};
  mutable std::mutex mutex_;  // of what follows
  Status last_, failure_;
  base::BackgroundWorker worker_;  // last: uses all of the above
};

}  // namespace segue::train
