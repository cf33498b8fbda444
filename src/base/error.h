#pragma once

#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace segue {

/// What kind of trouble it is; decides the exit code of the program and lets tests be exact.
enum class ErrorCode {
  kInvalidArgument,  // a call or command line that cannot be meant
  kConfig,           // unknown key, wrong type, impossible combination
  kNotFound,         // a file or a name that is not there
  kIo,               // the operating system refused
  kCorrupt,          // a file that is not what it says it is
  kOutOfRange,       // an id beyond its table, an index beyond its array
  kOutOfMemory,      // a budget is too small
  kUnsupported,      // right to ask, but this build or device cannot do it
  kNumeric,          // not finite where it must be
  kPeer,             // another rank is gone, does not answer, or says something else
};

std::string_view to_string(ErrorCode code);

/// The user's mistake or a broken file. The message says what was wrong, where, and what to do.
class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ErrorCode code() const { return code_; }

 private:
  ErrorCode code_;
};

[[noreturn]] void fail(ErrorCode code, const std::string& message);

/// Something that is normal in a distributed run or while saving (peer gone, disk full): a value
/// that the caller must look at, with context added on the way up.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(ErrorCode code, std::string message)
      : failed_(true), code_(code), message_(std::move(message)) {}

  bool ok() const { return !failed_; }
  ErrorCode code() const { return code_; }
  const std::string& message() const { return message_; }
  Status with(std::string_view context) const;
  void throw_if_failed() const;

 private:
  bool failed_ = false;
  ErrorCode code_ = ErrorCode::kIo;
  std::string message_;
};

[[noreturn]] void assertion_failed(const char* condition, const char* message,
                                   const char* file = __builtin_FILE(),
                                   int line = __builtin_LINE());

}  // namespace segue

/// A broken promise of our own code: prints the place and aborts. Never for user input.
#define SEGUE_ASSERT(condition, message) \
  ((condition) ? void(0) : ::segue::assertion_failed(#condition, message))
