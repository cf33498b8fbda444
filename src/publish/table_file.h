#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/file_io.h"
#include "data/log/vector_table.h"
#include "publish/row_codec.h"
#include "publish/version_manifest.h"

namespace segue::publish {

/// What one version has of one table: changed rows and removed ids, both ascending by id if the
/// file is as it should be; whoever reads it looks.
class TableFile {
 public:
  virtual ~TableFile() = default;
  /// The next rows, valid until the call after; false at the end.
  virtual bool next(data::VectorBlock& block) = 0;
  virtual std::span<const int64_t> removed() const = 0;
};

/// Of the version in `folder`. Error(kCorrupt) where the file is not what the manifest says,
/// Error(kUnsupported) for Parquet without support for it.
std::unique_ptr<TableFile> open_table_file(const std::string& folder,
                                           const VersionManifest& manifest,
                                           const PublishedTable& table,
                                           const data::VectorFiles* parquet);

/// Calls its argument for each row.
using RowFeed = std::function<void(const VisitRow& visit)>;

struct WrittenTable {
  std::vector<base::FileRecord> files;
  uint64_t digest = 0;  // sum of those of its rows
};

/// Writes the rows of `ids`, which `feed` gives, and the removed ids of a table into `folder`.
/// Error(kIo) before anything is written where the disk has no room for it.
WrittenTable write_table_file(const std::string& folder, const std::string& table,
                              FileFormat format, RowCodec& codec, std::span<const int64_t> ids,
                              std::span<const int64_t> removed, const RowFeed& feed,
                              const data::VectorFiles* parquet);

/// Error(kUnsupported) where Parquet is asked for in a build without it.
void require_format(FileFormat format, const data::VectorFiles* parquet);

}  // namespace segue::publish
