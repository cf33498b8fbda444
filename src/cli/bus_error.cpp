#include "cli/bus_error.h"

#include <charconv>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <string_view>

#include <fcntl.h>
#include <unistd.h>

#include "cli/app.h"

// A signal handler: no allocation, no locks, system calls alone.

namespace segue::cli {
namespace {

constexpr size_t kLongestLine = 8192;  // a path is at most 4096 bytes

void say(std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = ::write(STDERR_FILENO, text.data(), text.size());
    if (n <= 0) return;
    text.remove_prefix(static_cast<size_t>(n));
  }
}

/// The file in a line of /proc/self/maps, "7f00-7f10 r--s 00000000 08:01 123   /path", if its range
/// holds `address`; empty: it does not, or there is no file.
std::string_view file_at(std::string_view line, uint64_t address) {
  uint64_t begin = 0, end = 0;
  const char* const stop = line.data() + line.size();
  const auto [dash, begin_error] = std::from_chars(line.data(), stop, begin, 16);
  if (begin_error != std::errc() || dash == stop || *dash != '-') return {};
  const auto end_error = std::from_chars(dash + 1, stop, end, 16).ec;
  if (end_error != std::errc() || address < begin || address >= end) return {};
  const size_t path = line.find('/');
  return path == std::string_view::npos ? std::string_view() : line.substr(path);
}

/// Looks line by line through a buffer of fixed size.
void name_file(uint64_t address) {
  static char buffer[kLongestLine];
  const int fd = ::open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
  size_t held = 0;
  for (ssize_t n = 0; fd >= 0 && (n = ::read(fd, buffer + held, sizeof(buffer) - held)) > 0;) {
    std::string_view text(buffer, held + static_cast<size_t>(n));
    for (size_t end = 0; (end = text.find('\n')) != std::string_view::npos;) {
      const std::string_view file = file_at(text.substr(0, end), address);
      if (!file.empty()) {
        say("segue: error: ");
        say(file);
        say(": became shorter while it was read, or its disk cannot be read; files in use must be "
            "replaced, not written over\n");
        ::_exit(kExitFile);
      }
      text.remove_prefix(end + 1);
    }
    held = text.size() == sizeof(buffer) ? 0 : text.size();
    std::memmove(buffer, text.data(), held);
  }
}

void on_bus_error(int, siginfo_t* info, void*) {
  name_file(reinterpret_cast<uint64_t>(info->si_addr));
  // Not a file: the handler is gone by now (SA_RESETHAND), and the same access ends the process.
}

}  // namespace

void explain_bus_errors() {
  struct sigaction action {};
  action.sa_sigaction = on_bus_error;
  action.sa_flags = static_cast<int>(SA_SIGINFO | SA_RESETHAND);
  ::sigaction(SIGBUS, &action, nullptr);
}

}  // namespace segue::cli
