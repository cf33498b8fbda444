#include "base/file_io.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include "base/error.h"
#include "base/npy.h"

namespace segue::base {
namespace {

constexpr size_t kColumnBuffer = 64 << 10;
constexpr size_t kCopyBuffer = 1 << 20;

[[noreturn]] void fail_io(const std::string& path, const char* what, int error) {
  fail(ErrorCode::kIo,
       fmt::format("{}: cannot be {}: {}", path, what, std::generic_category().message(error)));
}

std::string header(const std::string& dtype, int64_t count) {
  const int64_t shape[] = {count};
  return npy_header(dtype, shape);
}

}  // namespace

OutputFile::OutputFile(std::string path) : path_(std::move(path)), fd_(create_file(path_)) {}

OutputFile::OutputFile(TemporaryFile made) : path_(std::move(made.path)), fd_(made.descriptor) {}

OutputFile::~OutputFile() {
  if (fd_ >= 0) ::close(fd_);
}

void OutputFile::write(const void* data, size_t bytes) {
  const char* p = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t n = ::write(fd_, p, bytes);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail_io(path_, "written", errno);
    p += n;
    bytes -= static_cast<size_t>(n);
  }
}

void OutputFile::write_at(int64_t offset, const void* data, size_t bytes) {
  const char* p = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t n = ::pwrite(fd_, p, bytes, offset);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail_io(path_, "written", errno);
    p += n;
    offset += n;
    bytes -= static_cast<size_t>(n);
  }
}

void OutputFile::close() {
  const int fd = std::exchange(fd_, -1);
  const int error = ::fsync(fd) == 0 ? 0 : errno;
  if (::close(fd) != 0 || error != 0) fail_io(path_, "written", error != 0 ? error : errno);
}

InputFile::InputFile(std::string path)
    : path_(std::move(path)), file_(open_regular(path_)), identity_(identity_of(file_)) {}

InputFile::InputFile(const std::string& folder, const std::string& name)
    : path_(folder + "/" + name),
      file_(open_beneath(folder, name)),
      identity_(identity_of(file_)) {}

size_t InputFile::read_at(int64_t offset, void* data, size_t bytes) const {
  size_t done = 0;
  while (done < bytes) {
    const ssize_t n = ::pread(file_.get(), static_cast<char*>(data) + done, bytes - done,
                              offset + static_cast<int64_t>(done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail_io(path_, "read", errno);
    if (n == 0) break;
    done += static_cast<size_t>(n);
  }
  return done;
}

void InputFile::read_ahead(int64_t offset, int64_t bytes) const {
  ::posix_fadvise(file_.get(), offset, bytes, POSIX_FADV_WILLNEED);
}

int64_t element_bytes(std::string_view dtype) {
  for (const std::string_view known : {"|b1", "|i1", "<u4", "<f4", "<i8"}) {
    if (dtype == known) return known[2] - '0';
  }
  return 0;
}

ColumnFile::ColumnFile(const std::string& path, std::string dtype)
    : file_(path),
      dtype_(std::move(dtype)),
      element_bytes_(static_cast<size_t>(element_bytes(dtype_))) {
  SEGUE_ASSERT(element_bytes_ > 0, "not a type of elements");
  // A header of zeros: the file does not open as an array before finish().
  const std::string placeholder(header(dtype_, 0).size(), '\0');
  header_bytes_ = placeholder.size();
  file_.write(placeholder.data(), placeholder.size());
}

void ColumnFile::append(const void* elements, size_t bytes) {
  if (bytes == 0) return;
  if (buffer_.size() + bytes > kColumnBuffer) flush();
  if (bytes >= kColumnBuffer) {
    hash_.update(elements, bytes);
    file_.write(elements, bytes);
    bytes_ += static_cast<int64_t>(bytes);
    return;
  }
  if (buffer_.capacity() == 0) buffer_.reserve(kColumnBuffer);
  const auto* const begin = static_cast<const std::byte*>(elements);
  buffer_.insert(buffer_.end(), begin, begin + bytes);
}

void ColumnFile::flush() {
  hash_.update(buffer_.data(), buffer_.size());
  file_.write(buffer_.data(), buffer_.size());
  bytes_ += static_cast<int64_t>(buffer_.size());
  buffer_.clear();
}

FileRecord ColumnFile::finish() {
  flush();
  FileRecord record;
  record.dtype = dtype_;
  record.count = bytes_ / static_cast<int64_t>(element_bytes_);
  const std::string final_header = header(dtype_, record.count);
  SEGUE_ASSERT(final_header.size() == header_bytes_, "the header has grown");
  file_.write_at(0, final_header.data(), final_header.size());
  file_.close();
  record.bytes = bytes_ + static_cast<int64_t>(header_bytes_);
  record.xxh64 = hash_.digest();
  return record;
}

void HashedFile::write(const void* data, size_t bytes) {
  buffer_.append(static_cast<const char*>(data), bytes);
  if (buffer_.size() >= kColumnBuffer) flush();
}

void HashedFile::flush() {
  hash_.update(buffer_.data(), buffer_.size());
  file_.write(buffer_.data(), buffer_.size());
  bytes_ += static_cast<int64_t>(buffer_.size());
  buffer_.clear();
}

FileRecord HashedFile::finish() {
  flush();
  file_.close();
  FileRecord record;
  record.bytes = bytes_;
  record.xxh64 = hash_.digest();
  return record;
}

FileRecord record_of(const InputFile& file) {
  std::vector<std::byte> buffer(
      std::min<size_t>(kCopyBuffer, static_cast<size_t>(file.size()) + 1));
  Xxh64Stream hash;
  FileRecord record;
  while (const size_t n = file.read_at(record.bytes, buffer.data(), buffer.size())) {
    hash.update(buffer.data(), n);
    record.bytes += static_cast<int64_t>(n);
  }
  record.xxh64 = hash.digest();
  return record;
}

void sync_folder(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) fail_io(path, "opened", errno);
  // EINVAL: the file system has no such operation (some network and FUSE mounts).
  const int error = ::fsync(fd) == 0 || errno == EINVAL ? 0 : errno;
  ::close(fd);
  if (error != 0) fail_io(path, "synced", error);
}

void rename_path(const std::string& from, const std::string& to) {
  if (std::rename(from.c_str(), to.c_str()) != 0) {
    fail(ErrorCode::kIo, fmt::format("{}: cannot be renamed to {}: {}", from, to,
                                     std::generic_category().message(errno)));
  }
}

}  // namespace segue::base
