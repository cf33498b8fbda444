#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/safetensors.h"
#include "train/checkpoint_manifest.h"
#include "train/checkpoint_shards.h"

namespace segue::train {

/// Names in a folder of checkpoints that begin like this are unfinished or on their way out.
inline constexpr const char* kTemporaryPrefix = ".tmp-";

/// `<folder>/step-<step>`
std::string checkpoint_path(const std::string& folder, int64_t step);

struct CheckpointEntry {
  int64_t step = 0;
  std::string path;
};
/// By step, ascending; nothing is opened. A folder that does not exist has none.
std::vector<CheckpointEntry> list_checkpoints(const std::string& folder);

/// Everything that is wrong with the files of a checkpoint, one line each: missing, extra, cut,
/// changed, or of another step than the folder's name says. Reads all bytes.
std::vector<std::string> file_problems(const std::string& path, const CheckpointManifest& manifest);

/// A checkpoint that has been opened and verified to the last byte.
class Checkpoint {
 public:
  /// Error(kCorrupt) that names each damaged file and what is wrong with it.
  explicit Checkpoint(std::string path);

  const std::string& path() const { return path_; }
  const CheckpointManifest& manifest() const { return manifest_; }
  int64_t step() const { return manifest_.step; }
  const std::string& state_json() const { return manifest_.state_json; }

  /// An array as it was saved; `parts` are its bytes in order, mapped.
  struct Array {
    std::string file, name;
    std::string dtype;  // safetensors word
    std::vector<int64_t> shape;
    std::vector<std::span<const std::byte>> parts;

    int64_t bytes() const;

   private:
    friend class Checkpoint;
    void append(int64_t first_row, const base::SafetensorsEntry& part);
  };
  /// By file in the order of the manifest, then by name.
  const std::vector<Array>& arrays() const { return arrays_; }

  /// Copies into the live arrays. Names, types and shapes must be those of the checkpoint, no more
  /// and no less: otherwise Error(kConfig) lists the differences and nothing has been written.
  /// Complete on return.
  void read(std::span<const CheckpointArray> into, const Stream* stream = nullptr) const;

 private:
  void index_arrays();
  std::vector<const Array*> match(std::span<const CheckpointArray> arrays) const;

  std::string path_;
  CheckpointManifest manifest_;
  std::vector<base::SafetensorsFile> shards_;
  std::vector<Array> arrays_;
};

/// The newest checkpoint that is whole. Damaged ones are passed over with a warning and listed; a
/// later format is Error(kUnsupported). When nothing is left but damaged ones, starting anew is not
/// what was asked for: the caller looks at `damaged`.
struct NewestCheckpoint {
  std::optional<Checkpoint> checkpoint;
  std::vector<std::string> damaged;  // what was wrong, newest first
};
NewestCheckpoint newest_checkpoint(const std::string& folder);

}  // namespace segue::train
