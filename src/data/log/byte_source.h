#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace segue::data {

/// Where the bytes of a text file come from, from front to back.
struct ByteSource {
  std::string path;  // for messages
  /// Fills `data`; fewer than `bytes` only at the end.
  std::function<size_t(char* data, size_t bytes)> read;
  /// Bytes of the file that were used so far; of a compressed one fewer than were handed out.
  std::function<int64_t()> consumed;
  size_t buffer_bytes = 0;  // that are worth holding at a time
};

/// A file as it is, or unpacked if it is gzip or zstd, which its first bytes tell. Several packed
/// parts one behind the other are one text. Error(kUnsupported) for zip and bzip2, Error(kCorrupt)
/// for a file that is damaged or ends too early.
ByteSource open_bytes(const std::string& path);

/// `text` must live longer.
ByteSource text_bytes(std::string_view text, const std::string& path, size_t buffer_bytes);

}  // namespace segue::data
