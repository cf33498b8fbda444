#pragma once

#include <string>
#include <string_view>

#include <sys/mman.h>
#include <unistd.h>

#include "fuzz.h"

namespace segue::fuzz {

/// A file that exists in memory alone, for code that wants a path.
class MemoryFile {
 public:
  explicit MemoryFile(std::string_view content) : fd_(::memfd_create("fuzz", MFD_CLOEXEC)) {
    const ssize_t written = ::write(fd_, content.data(), content.size());
    require(written == static_cast<ssize_t>(content.size()), "a file in memory can be written");
  }
  ~MemoryFile() { ::close(fd_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  std::string path() const { return "/proc/self/fd/" + std::to_string(fd_); }

 private:
  int fd_;
};

}  // namespace segue::fuzz
