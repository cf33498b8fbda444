#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "data/background.h"
#include "train/checkpoint_config.h"
#include "train/checkpoint_shards.h"

namespace segue::train {

/// Saves checkpoints as `<folder>/step-<N>`. What is written first lies in a folder whose name
/// begins with `.tmp-`; it is synced and renamed when complete, and only then do older checkpoints
/// beyond `keep_last` go. Checkpoints of later steps go too: this run came back to before them.
/// One writer per folder; all calls from one thread.
class CheckpointWriter {
 public:
  /// Makes the folder and clears away what a killed writer left in it.
  CheckpointWriter(std::string folder, const CheckpointConfig& config,
                   int64_t shard_bytes = kShardBytes);
  ~CheckpointWriter();  // waits for the last save

  /// A save is being written. A caller that would not wait puts the next one off.
  bool busy() const { return busy_; }

  /// Waits for the save before, copies everything and returns; the write goes on in the background.
  /// A state larger than `copy_gib` is written before it returns, by several threads. `state_json`
  /// is an object with whatever else resuming needs. Arrays on a GPU are read after what `stream`
  /// was given before. Throws when there is no memory for the copy; everything else that goes wrong
  /// is told by wait() and take_failure().
  void save(int64_t step, std::span<const CheckpointArray> arrays, const std::string& state_json,
            const Stream* stream = nullptr);

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
  };
  struct Job {
    int64_t step = 0;
    std::string state_json;
    std::vector<Shard> shards;
    std::vector<Source> sources;  // per array
    const Stream* stream = nullptr;
  };

  void copy_arrays(std::span<const CheckpointArray> arrays, int64_t bytes, const Stream* stream);
  void run_job(bool wide);
  void write_job(const std::string& temporary, bool wide) const;
  void put_in_place(const std::string& temporary) const;
  void move_aside(int64_t step) const;
  void prune() const;
  void clear_temporaries() const;
  data::FileRecord write_shard(const std::string& folder, const Shard& shard) const;

  std::string folder_;
  int64_t keep_last_;
  int64_t copy_bytes_;
  int64_t shard_bytes_;
  std::unique_ptr<std::byte[]> staging_;
  int64_t staging_bytes_ = 0;
  double stalled_seconds_ = 0;
  Job job_;
  std::atomic<bool> busy_{false};
  std::mutex mutex_;  // of what follows
  Status last_, failure_;
  data::BackgroundWorker worker_;  // last: uses all of the above
};

}  // namespace segue::train
