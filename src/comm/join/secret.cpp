#include "comm/join/secret.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "comm/link/socket.h"

namespace segue::comm {
namespace {

// Shorter ones can be guessed from what travels.
constexpr size_t kShortest = 16;
constexpr size_t kLongest = 4096;

std::string problem_of(const struct stat& info, Readers readers) {
  if (!S_ISREG(info.st_mode)) return "is no plain file";
  if (static_cast<size_t>(info.st_size) > kLongest) return "is too long";
  if (readers == Readers::kAny) return "";
  if (info.st_uid != ::geteuid()) {
    return fmt::format("belongs to user {}, not to {} who runs this", info.st_uid, ::geteuid());
  }
  if ((info.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
    return fmt::format("is open to others (mode {:o}); `chmod 600` it", info.st_mode & 0777U);
  }
  return "";
}

}  // namespace

const char* const kMakeSecret =
    "make one with `(umask 077; head -c 32 /dev/urandom | base64 >segue.secret)` and start every "
    "rank with SEGUE_SECRET_FILE=segue.secret (a copy of it on every machine), or with its text in "
    "SEGUE_SECRET";

std::string read_small(const std::string& path, Readers readers, std::string& trouble) {
  // Not to be held up by a pipe that somebody has put there.
  const Socket file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat info {};
  if (!file || ::fstat(file.fd(), &info) != 0) {
    trouble = fmt::format("{}: cannot be opened: {}", path, std::strerror(errno));
    return "";
  }
  if (const std::string problem = problem_of(info, readers); !problem.empty()) {
    trouble = fmt::format("{} {}", path, problem);
    return "";
  }
  std::string text(static_cast<size_t>(info.st_size), '\0');
  const ssize_t n = ::read(file.fd(), text.data(), text.size());
  text.resize(static_cast<size_t>(std::max<ssize_t>(n, 0)));
  if (text.empty()) trouble = fmt::format("{} is empty", path);
  return text;
}

void write_private(const std::string& path, const std::string& text) {
  std::string temporary = path + ".XXXXXX";  // made new, for this user alone
  const Socket file(::mkostemp(temporary.data(), O_CLOEXEC));
  const bool good =
      file && ::write(file.fd(), text.data(), text.size()) == static_cast<ssize_t>(text.size()) &&
      ::fsync(file.fd()) == 0 && ::rename(temporary.c_str(), path.c_str()) == 0;
  if (good) return;
  const int error = errno;
  if (file) ::unlink(temporary.c_str());
  fail(ErrorCode::kIo, fmt::format("{}: cannot be written: {}", path, std::strerror(error)));
}

std::string given_secret(const std::string& text, const std::string& path) {
  if (!text.empty() && !path.empty()) {
    fail(ErrorCode::kConfig, "both SEGUE_SECRET and SEGUE_SECRET_FILE are set; leave one out");
  }
  std::string secret = text, trouble;
  if (!path.empty()) {
    secret = read_small(path, Readers::kOwner, trouble);
    if (!trouble.empty()) fail(ErrorCode::kIo, "SEGUE_SECRET_FILE: " + trouble);
  }
  while (!secret.empty() && std::strchr(" \t\r\n", secret.back()) != nullptr) secret.pop_back();
  if ((text.empty() && path.empty()) || (secret.size() >= kShortest && secret.size() <= kLongest)) {
    return secret;
  }
  fail(ErrorCode::kConfig, fmt::format("the secret of {} has {} characters; it needs {} to {}: {}",
                                       path.empty() ? "SEGUE_SECRET" : path, secret.size(),
                                       kShortest, kLongest, kMakeSecret));
}

}  // namespace segue::comm
