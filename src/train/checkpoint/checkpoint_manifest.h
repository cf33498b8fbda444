#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file_io.h"
#include "train/checkpoint/checkpoint_part.h"

namespace segue::train {

inline constexpr const char* kCheckpointManifest = "manifest.json";

/// Which part of array `name` the files of one rank hold.
struct SavedPart {
  int rank = 0;
  std::string file, name;  // as in CheckpointArray
  ArrayPart part;
};

/// Of a checkpoint whose tables hold only what changed since another one, beside it.
struct IncrementOf {
  int64_t step = 0;       // of the one before
  uint64_t checksum = 0;  // of its manifest
  int64_t number = 1;     // counted from the full one, which is 0
};

/// manifest.json of a checkpoint: what else is in the folder, and the state that is no array.
struct CheckpointManifest {
  int64_t step = 0;
  int ranks = 1;  // that saved it; format version 1 when alone, 2 otherwise, 3 of increments
  std::optional<IncrementOf> increment;  // absent: it is full
  std::string segue_version;
  std::string state_json;               // an object; compact once it was read back
  std::vector<base::FileRecord> files;  // name, bytes, xxh64 of the whole file
  std::vector<SavedPart> parts;         // of arrays that are spread over ranks
  uint64_t checksum = 0;                // of all bytes of the manifest that was read

  int64_t bytes() const;  // of all files but the manifest

  /// JSON that ends in a checksum of every byte before it. Error(kInvalidArgument) when state_json
  /// is not an object.
  std::string text() const;
  /// Error(kCorrupt) when any byte is not as it was written, or a number cannot be what it should
  /// be: anybody can write a checksum. Error(kUnsupported) for a later format.
  static CheckpointManifest parse(const std::string& text, const std::string& path);
  /// Of the checkpoint in `folder`; Error(kNotFound) when there is no such folder.
  static CheckpointManifest read(const std::string& folder);
};

/// What a rank leaves in the temporary folder when it has written its files, or could not.
struct RankRecord {
  int64_t step = 0;
  int rank = 0;
  Status status;  // of its write
  std::vector<base::FileRecord> files;
  std::vector<SavedPart> parts;

  std::string text() const;
  static RankRecord parse(const std::string& text, const std::string& path);  // Error(kCorrupt)
};

/// Arrays whose parts do not make up a whole, one line each.
std::vector<std::string> part_problems(std::span<const SavedPart> parts);

}  // namespace segue::train
