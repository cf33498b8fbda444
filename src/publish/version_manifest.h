#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/file_io.h"
#include "publish/row_codec.h"

namespace segue::publish {

inline constexpr const char* kVersionManifest = "manifest.json";
inline constexpr const char* kDenseFile = "dense.safetensors";

/// How the files of tables are written.
enum class FileFormat { kSafetensors, kParquet };
const char* to_string(FileFormat format);
/// Error(kInvalidArgument) that lists what there is.
FileFormat file_format_of(std::string_view name);

struct PublishedTable {
  std::string name;
  int64_t dim = 0;
  int64_t rows = 0;     // of the table after this version
  int64_t in_file = 0;  // of them new or changed
  int64_t removed = 0;  // ids that the version before had
  /// Of the table after this version: the sum of RowCodec::digest() over its rows, modulo 2^64. The
  /// sum of the version before needs only the rows that differ.
  uint64_t content = 0;

  bool operator==(const PublishedTable&) const = default;
};

/// manifest.json of a version.
struct VersionManifest {
  int64_t number = 0;              // from 1 on
  int64_t base = 0;                // of the base that it counts on; its own number: it is one
  int64_t previous = 0;            // 0: it was the first
  uint64_t previous_checksum = 0;  // that the manifest of `previous` ends in
  int64_t step = 0;
  std::string segue_version;
  uint64_t checkpoint = 0;                 // XXH64 of the manifest of the checkpoint
  std::optional<int64_t> samples, window;  // where the checkpoint tells
  std::string store;  // data::StoreIdentity of what it was trained on; empty: it does not tell
  FileFormat format = FileFormat::kSafetensors;
  RowType dtype = RowType::kF32;
  std::vector<PublishedTable> tables;
  std::vector<base::FileRecord> files;
  uint64_t checksum = 0;  // that it ended in when it was read

  bool is_base() const { return base == number; }
  int64_t bytes() const;  // of all files but the manifest
  std::vector<std::string> file_names() const;

  /// JSON that ends in a checksum of every byte before it.
  std::string text() const;
  /// Error(kCorrupt) when any byte is not as it was written, or a number cannot be what it should
  /// be: anybody can write a checksum. Error(kUnsupported) for a later format.
  static VersionManifest parse(const std::string& text, const std::string& path);
  /// Of the version in `folder`.
  static VersionManifest read(const std::string& folder);
};

/// `<table>.safetensors` and the like.
std::string table_file_name(const std::string& table, FileFormat format);
/// Of kParquet, where something was removed.
std::string removed_file_name(const std::string& table);

}  // namespace segue::publish
