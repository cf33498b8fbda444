#include "base/append_file.h"

#include <cerrno>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/log.h"

namespace segue::base {
namespace {

constexpr int64_t kRoom = 128 << 10, kLeastRoom = 4 << 10;
constexpr size_t kMostWaiting = 64 << 20;  // many days of a line per second

bool is_full(int error) { return error == ENOSPC || error == EDQUOT; }

int64_t size_of(int fd) {
  struct stat info {};
  return ::fstat(fd, &info) == 0 ? info.st_size : -1;
}

}  // namespace

AppendFile::AppendFile(std::string path, int descriptor, WhenFull when_full)
    : path_(std::move(path)), fd_(descriptor), when_full_(when_full) {
  set_room_aside(0);
}

AppendFile::~AppendFile() {
  static_cast<void>(write_waiting());
  // Cutting a file to the length it has frees what lies behind its end.
  if (const int64_t size = size_of(fd_); room_ > 0 && size >= 0) {
    if (::ftruncate(fd_, size) != 0) room_ = 0;  // it stays longer than it need be, nothing else
  }
  ::close(fd_);
}

void AppendFile::refuse(int error) const {
  fail(ErrorCode::kIo,
       fmt::format("{}: cannot be written: {}", path_, std::generic_category().message(error)));
}

/// For so many bytes and some more. On a disk that is nearly full, what there is.
void AppendFile::set_room_aside(size_t bytes) {
  const int64_t needed = static_cast<int64_t>(bytes);
  if (!has_room_ || room_ >= needed + kRoom / 2) return;
  const int64_t end = size_of(fd_);
  for (int64_t room = needed + kRoom; end >= 0 && room >= needed + kLeastRoom; room /= 2) {
    if (::fallocate(fd_, FALLOC_FL_KEEP_SIZE, end, room) == 0) {
      room_ = room;
      return;
    }
    has_room_ = is_full(errno) || errno == EINTR;
    if (!has_room_) return;
  }
}

/// The error number; 0 when it is written. When not, nothing of it is left in the file.
int AppendFile::write_whole(std::string_view record) {
  set_room_aside(record.size());
  size_t done = 0;
  int error = 0;
  while (done < record.size() && error == 0) {
    const ssize_t n = ::write(fd_, record.data() + done, record.size() - done);
    if (n > 0) done += static_cast<size_t>(n);
    if (n == 0) error = ENOSPC;
    if (n < 0 && errno != EINTR) error = errno;
  }
  room_ -= static_cast<int64_t>(done);
  if (error == 0 || done == 0) return error;
  room_ = 0;  // cutting gives it back
  const int64_t size = size_of(fd_);
  return size < 0 || ::ftruncate(fd_, size - static_cast<int64_t>(done)) != 0 ? EIO : error;
}

int AppendFile::write_waiting() {
  if (waiting_.empty()) return 0;
  const size_t count = waiting_.size();
  while (!waiting_.empty()) {
    if (const int error = write_whole(waiting_.front()); error != 0) return error;
    waiting_bytes_ -= waiting_.front().size();
    waiting_.pop_front();
  }
  log_info(
      fmt::format("{}: there is room again, {} records that waited are written", path_, count));
  return 0;
}

void AppendFile::keep(std::string_view record, int error) {
  if (waiting_bytes_ + record.size() > kMostWaiting) {
    if (lost_++ == 0) {
      log_warning(fmt::format("{}: {}; {} bytes wait already, further records are lost", path_,
                              std::generic_category().message(error), waiting_bytes_));
    }
    return;
  }
  if (waiting_.empty()) {
    log_warning(fmt::format("{}: {}; what is to be written waits in memory until there is room",
                            path_, std::generic_category().message(error)));
  }
  waiting_bytes_ += record.size();
  waiting_.emplace_back(record);
}

void AppendFile::cut(int64_t bytes) {
  if (::ftruncate(fd_, bytes) != 0) refuse(errno);
  room_ = 0;
  set_room_aside(0);
}

void AppendFile::append(std::string_view record) {
  int error = write_waiting();
  if (error == 0) error = write_whole(record);
  if (error == 0) return;
  if (when_full_ == WhenFull::kFail || !is_full(error)) refuse(error);
  keep(record, error);
}

void AppendFile::drain() {
  if (const int error = write_waiting(); error != 0) refuse(error);
}

void AppendFile::sync() {
  drain();
  if (::fdatasync(fd_) != 0) refuse(errno);
}

}  // namespace segue::base
