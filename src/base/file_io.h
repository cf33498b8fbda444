#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "base/hash.h"

namespace segue::base {

// Files too large to be mapped or held: everything goes through buffers of the caller's size, so
// that the memory of a process is what it planned. Errors are Error(kIo) or Error(kNotFound) with
// the path and the system's reason.

class OutputFile {
 public:
  /// A new file, in place of what was there: see create_file.
  explicit OutputFile(std::string path);
  explicit OutputFile(TemporaryFile made);  // whose descriptor it closes
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  const std::string& path() const { return path_; }
  void write(const void* data, size_t bytes);
  /// Leaves the place of the next write() alone. Safe from several threads.
  void write_at(int64_t offset, const void* data, size_t bytes);
  void close();  // durable when it returns

 private:
  std::string path_;
  int fd_ = -1;
};

/// A regular file; anything else is Error(kIo), and not waited for.
class InputFile {
 public:
  explicit InputFile(std::string path);
  /// A file that data names: never leaves `folder`, see open_beneath().
  InputFile(const std::string& folder, const std::string& name);

  const std::string& path() const { return path_; }
  int64_t size() const { return identity_.bytes; }
  const FileIdentity& identity() const { return identity_; }  // when it was opened
  /// Fills as much of `data` as the file has from `offset` on. Safe from several threads.
  size_t read_at(int64_t offset, void* data, size_t bytes) const;
  /// Advice to the system: these bytes will be wanted soon.
  void read_ahead(int64_t offset, int64_t bytes) const;

 private:
  std::string path_;
  Descriptor file_;
  FileIdentity identity_;
};

/// What a manifest says about a file.
struct FileRecord {
  std::string name;  // relative to the store
  int64_t bytes = 0;
  uint64_t xxh64 = 0;  // of the elements (.npy) or of the whole file (everything else)
  std::string dtype;   // NumPy's word; empty: no array
  int64_t count = 0;   // elements
};

/// Bytes of an element of "<i8", "|b1" and the like; 0: nothing that a store has.
int64_t element_bytes(std::string_view dtype);

/// A one-dimensional .npy file of which nobody knows the length yet: the header is written last.
class ColumnFile {
 public:
  ColumnFile(const std::string& path, std::string dtype);

  void append(const void* elements, size_t bytes);
  template <class T>
  void append(std::span<const T> elements) {
    append(elements.data(), elements.size_bytes());
  }
  template <class T>
  void append(T element) {
    append(&element, sizeof(T));
  }
  FileRecord finish();  // durable; the record has no name yet

 private:
  void flush();

  OutputFile file_;
  std::string dtype_;
  size_t element_bytes_;
  size_t header_bytes_;
  std::vector<std::byte> buffer_;
  int64_t bytes_ = 0;
  Xxh64Stream hash_;
};

/// A file that is hashed as it is written; for anything but arrays.
class HashedFile {
 public:
  explicit HashedFile(const std::string& path) : file_(path) {}

  void write(const void* data, size_t bytes);
  void write(std::string_view text) { write(text.data(), text.size()); }
  int64_t size() const { return bytes_ + static_cast<int64_t>(buffer_.size()); }
  FileRecord finish();  // durable; the record has no name yet

 private:
  void flush();

  OutputFile file_;
  std::string buffer_;
  int64_t bytes_ = 0;
  Xxh64Stream hash_;
};

/// Size and hash of a file that is there, read through a buffer.
FileRecord record_of(const InputFile& file);

void sync_folder(const std::string& path);
/// Renames durably as far as the file goes; the folders are synced by the caller.
void rename_path(const std::string& from, const std::string& to);

}  // namespace segue::base
