#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/prefetcher.h"
#include "data/log/table_reader.h"
#include "data/store/store_manifest.h"

namespace segue::data {

/// A raw file on disk.
struct LogFile {
  std::string path;
  std::string name;  // relative to the raw folder
  int64_t bytes = 0;
};

/// The files that `pattern` (with *, ? and [...] inside path components) names below `folder`, by
/// path.
std::vector<LogFile> list_log_files(const std::string& folder, const std::string& pattern);
/// The same. Error(kNotFound) if there is none.
std::vector<LogFile> find_log_files(const std::string& folder, const std::string& pattern);
std::vector<std::string> paths_of(const std::vector<LogFile>& files);
/// The pattern that names a file of this name alone.
std::string literal_pattern(const std::string& name);

/// Reads the files of a log one after the other, on a thread of its own.
class LogReader {
 public:
  LogReader(std::vector<LogFile> files, std::vector<ColumnRequest> columns,
            const TableOptions& options);

  /// Replaces `block`; false at the end. block.file counts the files.
  bool next(RawBlock& block) { return blocks_->next(block); }
  int64_t bytes_read() const { return bytes_; }
  int64_t total_bytes() const { return total_bytes_; }

 private:
  bool make(RawBlock& block);

  std::vector<LogFile> files_;
  std::vector<ColumnRequest> columns_;
  TableOptions options_;
  int64_t total_bytes_ = 0;
  size_t file_ = 0;
  int64_t bytes_before_ = 0;
  std::unique_ptr<TableReader> reader_;
  std::atomic<int64_t> bytes_ = 0;
  std::unique_ptr<base::Prefetcher<RawBlock>> blocks_;  // last: its thread uses the rest
};

}  // namespace segue::data
