#include "cli/output.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>

#include "base/error.h"

namespace segue::cli {
namespace {

void check(bool written) {
  if (written || errno == EPIPE) return;
  fail(ErrorCode::kIo, std::string("cannot write to standard output: ") + std::strerror(errno));
}

}  // namespace

void print(std::string_view text) {
  check(std::fwrite(text.data(), 1, text.size(), stdout) == text.size());
}

void flush_output() { check(std::fflush(stdout) == 0); }

}  // namespace segue::cli
