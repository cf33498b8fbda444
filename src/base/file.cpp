#include "base/file.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <limits>
#include <system_error>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/error.h"

namespace segue::base {
namespace {

std::string reason(int error) { return std::generic_category().message(error); }

[[noreturn]] void fail_to_open(const std::string& path, int error) {
  if (error == ENOENT || error == ENOTDIR) {
    fail(ErrorCode::kNotFound, fmt::format("{}: no such file", path));
  }
  fail(ErrorCode::kIo, fmt::format("{}: cannot be opened: {}", path, reason(error)));
}

/// Opens a file that must not be there yet, or -1; O_NOFOLLOW for what O_EXCL leaves to the file
/// system.
int open_new(const std::string& path, int flags) {
  return ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC | flags, 0666);
}

[[noreturn]] void fail_to_create(const std::string& path, int error) {
  fail(ErrorCode::kIo, fmt::format("{}: cannot be created: {}", path, reason(error)));
}

uint64_t random_bits() {
  uint64_t bits = 0;
  while (::getrandom(&bits, sizeof bits, 0) != static_cast<ssize_t>(sizeof bits)) {
    if (errno != EINTR) fail(ErrorCode::kIo, "no random numbers: " + reason(errno));
  }
  return bits;
}

/// Makes the new name itself durable, not only the content of the file.
void sync_folder_of(const std::string& path) {
  const std::string folder = folder_of(path);
  const Descriptor fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  // EINVAL: the file system has no such operation (some network and FUSE mounts).
  if (fd.get() < 0 || (::fsync(fd.get()) != 0 && errno != EINVAL)) {
    fail(ErrorCode::kIo, fmt::format("{}: folder cannot be synced: {}", folder, reason(errno)));
  }
}

}  // namespace

// ---- reading ----

Descriptor::~Descriptor() {
  if (fd_ >= 0) ::close(fd_);
}

FileIdentity identity_of(const Descriptor& file) {
  struct stat info {};
  if (::fstat(file.get(), &info) != 0) {
    fail(ErrorCode::kIo, fmt::format("an open file cannot be asked for: {}", reason(errno)));
  }
  const auto ns = [](const timespec& time) {
    return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
  };
  return {.bytes = info.st_size,
          .modified_ns = ns(info.st_mtim),
          .changed_ns = ns(info.st_ctim),
          .device = info.st_dev,
          .inode = info.st_ino};
}

namespace {

// Without O_NONBLOCK opening a pipe waits for whoever writes to it.
constexpr int kRead = O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY;

[[noreturn]] void fail_irregular(const std::string& path) {
  fail(ErrorCode::kIo, fmt::format("{}: not a regular file", path));
}

bool is_control(char c) { return static_cast<unsigned char>(c) < ' ' || c == '\x7f'; }

Descriptor checked_regular(Descriptor file, const std::string& path) {
  struct stat info {};
  if (file.get() < 0 || ::fstat(file.get(), &info) != 0) fail_to_open(path, errno);
  if (!S_ISREG(info.st_mode)) fail_irregular(path);
  return file;
}

std::string read_all(const Descriptor& fd, const std::string& path) {
  std::string text;
  char buffer[1 << 16];
  for (;;) {
    const ssize_t count = ::read(fd.get(), buffer, sizeof(buffer));
    if (count == 0) return text;
    if (count > 0) {
      text.append(buffer, static_cast<size_t>(count));
    } else if (errno != EINTR) {
      fail(ErrorCode::kIo, fmt::format("{}: cannot be read: {}", path, reason(errno)));
    }
  }
}

}  // namespace

Descriptor open_regular(const std::string& path) {
  return checked_regular(Descriptor(::open(path.c_str(), kRead)), path);
}

bool is_confined(std::string_view name) {
  if (std::ranges::any_of(name, is_control)) return false;
  for (size_t begin = 0; begin <= name.size();) {  // an empty part: "", "/x", "x//y", "x/"
    const size_t end = std::min(name.find('/', begin), name.size());
    const std::string_view part = name.substr(begin, end - begin);
    if (part.empty() || part == "." || part == "..") return false;
    begin = end + 1;
  }
  return true;
}

Descriptor open_beneath(const std::string& folder, const std::string& name) {
  if (!is_confined(name)) {
    std::string shown = name;
    std::ranges::replace_if(shown, is_control, '?');
    fail(ErrorCode::kCorrupt,
         fmt::format("{}: `{}` is not the name of a file below it", folder, shown));
  }
  const std::string path = folder + "/" + name;
  Descriptor at(::open(folder.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (at.get() < 0) fail_to_open(folder, errno);
  for (size_t begin = 0;;) {
    const size_t end = std::min(name.find('/', begin), name.size());
    const std::string part = name.substr(begin, end - begin);
    const bool last = end == name.size();
    struct stat info {};
    if (::fstatat(at.get(), part.c_str(), &info, AT_SYMLINK_NOFOLLOW) != 0) {
      fail_to_open(path, errno);
    }
    if (S_ISLNK(info.st_mode)) {
      fail(ErrorCode::kCorrupt,
           fmt::format("{}: is a link, or lies behind one; a file that a manifest names must lie "
                       "in the manifest's folder",
                       path));
    }
    // Opening a device may already do something.
    if (last && !S_ISREG(info.st_mode)) fail_irregular(path);
    const int how = last ? kRead : O_PATH | O_DIRECTORY | O_CLOEXEC;
    at = Descriptor(::openat(at.get(), part.c_str(), how | O_NOFOLLOW));
    if (last) return checked_regular(std::move(at), path);
    if (at.get() < 0) fail_to_open(path, errno);
    begin = end + 1;
  }
}

std::string read_regular_file(const std::string& path) {
  return read_all(open_regular(path), path);
}

MappedFile::MappedFile(const std::string& path) {
  const Descriptor fd = open_regular(path);
  identity_ = identity_of(fd);
  size_ = static_cast<size_t>(identity_.bytes);
  if (size_ == 0) return;  // an empty mapping is an error to the kernel
  void* const data = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, fd.get(), 0);
  if (data == MAP_FAILED) {
    fail(ErrorCode::kIo, fmt::format("{}: cannot be mapped: {}", path, reason(errno)));
  }
  data_ = data;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(data_, size_);
}

// ---- writing ----

std::string folder_of(const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path().string();
  return folder.empty() ? "." : folder;
}

int create_file(const std::string& path, int flags) {
  for (;;) {
    const int fd = open_new(path, flags);
    if (fd >= 0) return fd;
    if (errno != EEXIST) fail_to_create(path, errno);
    struct stat there {};
    // A device or a pipe was not made by a program like this one, and would not come back.
    const bool known = ::lstat(path.c_str(), &there) == 0;
    if (known && !S_ISREG(there.st_mode) && !S_ISLNK(there.st_mode)) fail_to_create(path, EEXIST);
    if (::unlink(path.c_str()) != 0 && errno != ENOENT) fail_to_create(path, errno);
  }
}

TemporaryFile create_temporary(const std::string& path) {
  for (;;) {
    TemporaryFile made{fmt::format("{}.tmp-{:016x}", path, random_bits()), -1};
    made.descriptor = open_new(made.path, 0);
    if (made.descriptor >= 0) return made;
    if (errno != EEXIST) fail_to_create(made.path, errno);
  }
}

AtomicFile::AtomicFile(std::string path) : path_(std::move(path)) {
  TemporaryFile made = create_temporary(path_);
  temporary_ = std::move(made.path);
  file_ = ::fdopen(made.descriptor, "wb");
  if (file_ != nullptr) return;
  const int error = errno;
  ::close(made.descriptor);
  ::unlink(temporary_.c_str());
  fail_to_create(temporary_, error);
}

AtomicFile::~AtomicFile() {
  if (file_ == nullptr) return;
  std::fclose(file_);
  ::unlink(temporary_.c_str());
}

void AtomicFile::write(const void* data, size_t bytes) {
  SEGUE_ASSERT(file_ != nullptr, "write after commit");
  if (bytes != 0 && std::fwrite(data, 1, bytes, file_) != bytes) {
    fail(ErrorCode::kIo, fmt::format("{}: cannot be written: {}", temporary_, reason(errno)));
  }
}

void AtomicFile::commit() {
  SEGUE_ASSERT(file_ != nullptr, "commit twice");
  int error = 0;
  if (std::fflush(file_) != 0 || ::fsync(::fileno(file_)) != 0) error = errno;
  if (std::fclose(std::exchange(file_, nullptr)) != 0 && error == 0) error = errno;
  if (error == 0 && std::rename(temporary_.c_str(), path_.c_str()) != 0) error = errno;
  if (error != 0) {
    ::unlink(temporary_.c_str());
    fail(ErrorCode::kIo, fmt::format("{}: cannot be written: {}", path_, reason(error)));
  }
  sync_folder_of(path_);
}

void write_file(const std::string& path, std::string_view text) {
  AtomicFile file(path);
  file.write(text);
  file.commit();
}

std::string read_file(const std::string& path) {
  // Plain reads, not a mapping: /proc files and pipes announce no size.
  const Descriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (fd.get() < 0) fail_to_open(path, errno);
  return read_all(fd, path);
}

void make_folders(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (!error && !std::filesystem::is_directory(path, error) && !error) {
    error = std::make_error_code(std::errc::not_a_directory);
  }
  if (error) {
    fail(ErrorCode::kIo, fmt::format("{}: cannot be created: {}", path, error.message()));
  }
}

std::optional<DiskSpace> disk_space(const std::string& path) {
  struct statvfs disk {};
  if (::statvfs(path.c_str(), &disk) != 0 || disk.f_blocks == 0) return std::nullopt;
  const auto bytes = [&](fsblkcnt_t blocks) {
    int64_t product = 0;
    return __builtin_mul_overflow(blocks, disk.f_frsize, &product)
               ? std::numeric_limits<int64_t>::max()
               : product;
  };
  // What is kept for the superuser is there for the superuser.
  const fsblkcnt_t free = ::geteuid() == 0 ? disk.f_bfree : disk.f_bavail;
  return DiskSpace{bytes(disk.f_blocks), bytes(free), bytes(1)};
}

bool exists(const std::string& path) {
  std::error_code error;
  return std::filesystem::exists(path, error);
}

}  // namespace segue::base
