#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "data/log/vector_table.h"
#include "publish/row_codec.h"
#include "publish/version_manifest.h"
#include "train/checkpoint/checkpoint.h"

namespace segue::publish {

struct PublishConfig {
  std::string folder;
  // What is not given is as in the newest version of the folder; of a first one: safetensors, f32,
  // all tables. Anything else than in the newest version needs a new base.
  std::optional<FileFormat> format;
  std::optional<RowType> dtype;
  std::vector<std::string> tables;             // empty: not given
  bool base = false;                           // even where an increment would do
  const data::VectorFiles* parquet = nullptr;  // null: built without
};

struct PublishResult {
  bool published = false;  // false: the newest version has all of it already
  VersionManifest version;
  double share = 0;        // of the bytes of rows and dense weights that a base would have
  double lag_seconds = 0;  // since the checkpoint was whole, when `current` was switched
};

/// The checkpoint as the next version: a base in a folder without any, else an increment of the
/// rows whose published bytes differ, and of the ids that are gone. A folder that is damaged is
/// refused with Error(kCorrupt), one that another process publishes into with
/// Error(kInvalidArgument).
PublishResult publish(const PublishConfig& config, const train::Checkpoint& checkpoint);

/// Everything that is wrong with a folder of versions, one line each.
struct Verified {
  int64_t versions = 0;
  int64_t bytes = 0;  // of their files
  std::vector<std::string> problems;
};
Verified verify(const std::string& folder, const data::VectorFiles* parquet);

/// Replays a version of `from` (0: the newest) into the only version of `to`, a folder that is
/// empty or not there. Its table files are those of a base of the same checkpoint, byte for byte.
/// Error(kCorrupt) where anything is wrong with the versions that it needs.
VersionManifest apply(const std::string& from, const std::string& to, int64_t number,
                      const data::VectorFiles* parquet);

}  // namespace segue::publish
