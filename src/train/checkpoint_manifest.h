#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/file_io.h"

namespace segue::train {

inline constexpr const char* kCheckpointManifest = "manifest.json";

/// manifest.json of a checkpoint: what else is in the folder, and the state that is no array. It
/// holds no time: equal runs leave equal bytes.
struct CheckpointManifest {
  int64_t step = 0;
  std::string segue_version;
  std::string state_json;               // an object; compact once it was read back
  std::vector<data::FileRecord> files;  // name, bytes, xxh64 of the whole file

  int64_t bytes() const;  // of all files but the manifest

  /// JSON that ends in a checksum of every byte before it. Error(kInvalidArgument) when state_json
  /// is not an object.
  std::string text() const;
  /// Error(kCorrupt) when any byte is not as it was written, Error(kUnsupported) for a later
  /// format.
  static CheckpointManifest parse(const std::string& text, const std::string& path);
  /// Of the checkpoint in `folder`; Error(kNotFound) when there is no such folder.
  static CheckpointManifest read(const std::string& folder);
};

}  // namespace segue::train
