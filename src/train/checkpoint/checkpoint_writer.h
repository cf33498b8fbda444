#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "base/background.h"
#include "base/error.h"
#include "train/checkpoint/checkpoint_config.h"
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
  /// A state larger than `copy_gib` is written before it returns, by several threads. `state_json`
  /// is an object with whatever else resuming needs; that of rank 0 counts. Arrays on a GPU are
  /// read after what `stream` was given before. Throws when there is no memory for the copy;
  /// everything else that goes wrong is told by wait() and take_failure(). A save with a `ready`
  /// that is not ok fails with it: other ranks, which do not know, get to know that way. So does
  /// one that the disk has no room for, before anything is written.
  void save(int64_t step, std::span<const CheckpointArray> arrays, const std::string& state_json,
            const Stream* stream = nullptr, const Status& ready = {});

  /// Waits; how the last save went. After a failed one the older checkpoints are what they were.
  Status wait();
  /// The last failure that was not taken yet; does not wait.
  Status take_failure();

  /// Seconds spent inside save() so far: how long training stood still.
  double stalled_seconds() const { return stalled_seconds_; }

 private:
  /// Where the bytes of an array are: in the copy, or live.
  struct Source {
    const std::byte* data = nullptr;
    Device device;
    std::span<const int64_t> order = {};  // of its rows, where they lie in another one
    int64_t row_bytes = 0;
  };
  struct Job {
    int64_t step = 0;
    int64_t number = 0;  // of the save; the same on all ranks
    std::string state_json;
    std::vector<Shard> shards;
    std::vector<SavedPart> parts;
    std::vector<Source> sources;  // per array
    const Stream* stream = nullptr;
    Status ready;
  };

  void copy_arrays(std::span<const CheckpointArray> arrays, int64_t bytes, const Stream* stream);
  bool alone() const { return ranks_.size == 1; }
  std::string temporary() const;
  void require_room() const;
  RankRecord write_part(bool wide) const;
  base::FileRecord write_shard(const std::string& folder, const Shard& shard) const;
  void finish(RankRecord mine);
  void leave_part(RankRecord mine) const;
  void complete(RankRecord mine) const;
  void write_manifest(CheckpointManifest manifest) const;
  void put_in_place() const;
  void move_aside(int64_t step) const;
  void prune() const;
  void clear_temporaries(int64_t last_number) const;

  std::string folder_;
  int64_t keep_last_;
  int64_t copy_bytes_;
  int64_t shard_bytes_;
  WriterRanks ranks_;
  std::unique_ptr<std::byte[]> staging_;
  int64_t staging_bytes_ = 0;
  double stalled_seconds_ = 0;
  Job job_;
  std::atomic<bool> busy_{false}, hurry_{false};
  std::mutex mutex_;  // of what follows
  Status last_, failure_;
  base::BackgroundWorker worker_;  // last: uses all of the above
};

}  // namespace segue::train
