#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace segue::base {

// ---- reading ----

/// Owns a file descriptor.
class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  ~Descriptor();
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  int get() const { return fd_; }

 private:
  int fd_;
};

/// Which file it is and when it last changed: as long as none of this differs, a file that was read
/// need not be read again.
struct FileIdentity {
  int64_t bytes = 0;
  int64_t modified_ns = 0, changed_ns = 0;  // content; content, name, owner or rights
  uint64_t device = 0, inode = 0;

  bool same_file(const FileIdentity& other) const {
    return device == other.device && inode == other.inode;
  }
  friend bool operator==(const FileIdentity&, const FileIdentity&) = default;
};
FileIdentity identity_of(const Descriptor& file);

/// Opens a regular file for reading, at once: a pipe or a device is Error(kIo), and not waited for.
Descriptor open_regular(const std::string& path);

/// True for a name that data may give to a file below a folder: relative, and no part of it leads
/// up, to the same place or through a control character into somebody's terminal.
bool is_confined(std::string_view name);

/// The same for a file that data names. Never leaves `folder`, which may itself be a link:
/// Error(kCorrupt) for a name that is not confined, and for one that leads through a link.
Descriptor open_beneath(const std::string& folder, const std::string& name);

/// The text of a regular file; see open_regular().
std::string read_regular_file(const std::string& path);

/// A whole regular file mapped read-only. Error(kNotFound) or Error(kIo) with the path.
class MappedFile {
 public:
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return {static_cast<const std::byte*>(data_), size_}; }
  const FileIdentity& identity() const { return identity_; }  // of the file that is mapped

 private:
  FileIdentity identity_;
  void* data_ = nullptr;
  size_t size_ = 0;
};

// ---- writing ----

/// The folder that a file at `path` lies in; "." where the path names none.
std::string folder_of(const std::string& path);

/// A new, empty file at `path` in place of the file or link that is there; no link is followed and
/// nothing else is replaced. The descriptor is open for reading and writing, with `flags` of open()
/// added; the caller closes it. Error(kIo).
int create_file(const std::string& path, int flags = 0);

/// A new file beside `path`, `<path>.tmp-<random digits>`. It was not there before and no link was
/// followed: in a folder that everybody may write to nobody can guess or plant it. The caller
/// closes the descriptor, and renames or removes the file. Error(kIo).
struct TemporaryFile {
  std::string path;
  int descriptor = -1;
};
TemporaryFile create_temporary(const std::string& path);

/// Writes to a temporary file beside `path`, then commit() fsyncs file and folder and renames: a
/// link at `path` is replaced, not followed. Without commit() the destructor removes the temporary
/// file: a half-written file is never read as a whole one.
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
std::string read_file(const std::string& path);                   // also of a pipe
void make_folders(const std::string& path);                       // Error(kIo) with the reason
bool exists(const std::string& path);

/// Of the file system that holds `path`; nullopt where it does not tell.
struct DiskSpace {
  int64_t total = 0, available = 0;
  int64_t block = 1;  // what a file takes is a multiple of it
};
std::optional<DiskSpace> disk_space(const std::string& path);

}  // namespace segue::base
