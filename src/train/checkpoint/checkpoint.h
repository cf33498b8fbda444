#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/safetensors.h"
#include "train/checkpoint/checkpoint_manifest.h"
#include "train/checkpoint/checkpoint_part.h"
#include "train/checkpoint/checkpoint_shards.h"

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

/// How much of the files is compared with the manifest. kSizes is for ranks that open what another
/// one has just verified.
enum class Verify { kBytes, kSizes };

/// Everything that is wrong with the files of a checkpoint, one line each: missing, extra, cut,
/// changed, or of another step than the folder's name says. kBytes reads all of them.
std::vector<std::string> file_problems(const std::string& path, const CheckpointManifest& manifest,
                                       Verify verify = Verify::kBytes);

/// A checkpoint that has been opened and verified (to the last byte, unless told otherwise), and
/// with an increment the ones before it, down to a full one. It may have been saved by any number
/// of ranks, whatever they kept of each table.
class Checkpoint {
 public:
  /// Error(kCorrupt) that names each damaged file and what is wrong with it.
  explicit Checkpoint(std::string path, Verify verify = Verify::kBytes);

  const std::string& path() const { return path_; }
  const CheckpointManifest& manifest() const { return manifest_; }
  int64_t step() const { return manifest_.step; }
  const std::string& state_json() const { return manifest_.state_json; }
  /// What this one is an increment of; null: it is full.
  const Checkpoint* before() const { return before_.get(); }

  /// An array as it was saved; `parts` make up the whole, their bytes are mapped.
  struct Array {
    std::string file, name;
    std::string dtype;           // safetensors word
    std::vector<int64_t> shape;  // of the whole
    int64_t element_bytes = 0;   // 0: it has no elements
    std::vector<StoredPart> parts;

    int64_t bytes() const;
  };
  /// By file in the order of the manifest, then by name.
  const std::vector<Array>& arrays() const { return arrays_; }

  /// Copies into the live arrays, of each the part that it is. Names, types and whole shapes must
  /// be those of the checkpoint, no more and no less (but for what `may_leave` says need not be
  /// wanted): otherwise Error(kConfig) lists the differences and nothing has been written. Complete
  /// on return.
  using MayLeave = std::function<bool(const Array&)>;
  void read(std::span<const CheckpointArray> into, const Stream* stream = nullptr,
            const MayLeave& may_leave = {}) const;

 private:
  void index_arrays();
  std::vector<const Array*> match(std::span<const CheckpointArray> arrays,
                                  const MayLeave& may_leave) const;

  std::string path_;
  CheckpointManifest manifest_;
  std::unique_ptr<Checkpoint> before_;
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

/// One checkpoint, or the newest whole one of a run or of a folder of checkpoints.
Checkpoint open_checkpoint(const std::string& path);

}  // namespace segue::train
