#include "base/error.h"

#include <cstdio>
#include <cstdlib>

namespace segue {

std::string_view to_string(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
      return "invalid argument";
    case ErrorCode::kConfig:
      return "config";
    case ErrorCode::kNotFound:
      return "not found";
    case ErrorCode::kIo:
      return "io";
    case ErrorCode::kCorrupt:
      return "corrupt file";
    case ErrorCode::kOutOfRange:
      return "out of range";
    case ErrorCode::kOutOfMemory:
      return "out of memory";
    case ErrorCode::kUnsupported:
      return "unsupported";
    case ErrorCode::kNumeric:
      return "numeric";
    case ErrorCode::kPeer:
      return "peer";
  }
  return "unknown";
}

void fail(ErrorCode code, const std::string& message) { throw Error(code, message); }

Status Status::with(std::string_view context) const {
  if (ok()) return *this;
  return Status(code_, std::string(context) + ": " + message_);
}

void Status::throw_if_failed() const {
  if (failed_) throw Error(code_, message_);
}

void assertion_failed(const char* condition, const char* message, const char* file, int line) {
  std::fprintf(
      stderr,
      "segue: internal error at %s:%d: %s [%s]\nThis is a bug in Segue; please report it.\n", file,
      line, message, condition);
  std::abort();
}

}  // namespace segue
