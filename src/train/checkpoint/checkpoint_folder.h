#pragma once

#include <cstdint>
#include <string>
#include <utility>

namespace segue::train {

/// What lies in a folder of checkpoints: `step-<N>`, each whole, and what begins with `.tmp-`:
/// saves that are being written, and what is on its way out.
class CheckpointFolder {
 public:
  explicit CheckpointFolder(std::string path) : path_(std::move(path)) {}

  const std::string& path() const { return path_; }
  /// Where save `number`, of `step`, lies until it is complete.
  std::string temporary(int64_t step, int64_t number) const;
  /// Makes that save the checkpoint of its step.
  void put_in_place(int64_t step, int64_t number) const;
  /// Moves aside all but the newest `keep_last` (0: all of them) up to `step` and what these need,
  /// and all of later steps: the run came back to before them.
  void prune(int64_t step, int64_t keep_last) const;
  /// Removes temporaries, but not those of saves after `last_number`, which other ranks may have
  /// begun to write.
  void clear_temporaries(int64_t last_number) const;

 private:
  void move_aside(int64_t step) const;

  std::string path_;
};

}  // namespace segue::train
