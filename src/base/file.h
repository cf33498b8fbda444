#pragma once

#include <cstddef>
#include <cstdio>
#include <span>
#include <string>
#include <string_view>

namespace segue::base {

/// A whole file mapped read-only. Error(kNotFound) or Error(kIo) with the path.
class MappedFile {
 public:
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return {static_cast<const std::byte*>(data_), size_}; }

 private:
  void* data_ = nullptr;
  size_t size_ = 0;
};

/// Writes to `path`.tmp-<pid>, then commit() fsyncs file and folder and renames. Without commit()
/// the destructor removes the temporary file: a half-written file is never read as a whole one.
class AtomicFile {
 public:
  explicit AtomicFile(std::string path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(const void* data, size_t bytes);
  void write(std::string_view text) { write(text.data(), text.size()); }
  void commit();

 private:
  std::string path_;
  std::string temporary_;
  std::FILE* file_ = nullptr;
};

void write_file(const std::string& path, std::string_view text);  // atomic
std::string read_file(const std::string& path);
void make_folders(const std::string& path);  // Error(kIo) with the reason
bool exists(const std::string& path);

}  // namespace segue::base
