#pragma once

// For tests only: disks that are nearly full.

#include <cstdio>
#include <exception>
#include <string>

#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

namespace segue::base {

inline constexpr int kNoMount = 77;

/// Runs `body` in a child, for which a file system of `size` ("256k") lies over `folder`. What it
/// returns (0 ... 76); 100 + n when signal n ended it, 99 when it threw, kNoMount when this user
/// may not mount anything. A process that has threads must not need them in the child.
template <class Body>
int on_small_disk(const std::string& folder, const std::string& size, Body body) {
  const pid_t child = ::fork();
  if (child == 0) {
    if (::unshare(CLONE_NEWNS) != 0 && ::unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) {
      ::_exit(kNoMount);
    }
    if (::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount("none", folder.c_str(), "tmpfs", 0, ("size=" + size).c_str()) != 0) {
      ::_exit(kNoMount);
    }
    try {
      ::_exit(body());
    } catch (const std::exception& error) {
      std::fprintf(stderr, "%s\n", error.what());
      ::_exit(99);
    }
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 100 + WTERMSIG(status);
}

/// Gives the disk of on_small_disk() another size.
inline bool resize_disk(const std::string& folder, const std::string& size) {
  return ::mount("none", folder.c_str(), "tmpfs", MS_REMOUNT, ("size=" + size).c_str()) == 0;
}

}  // namespace segue::base
