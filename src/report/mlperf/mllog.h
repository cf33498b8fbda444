#pragma once

#include <cstdint>
#include <memory>
#include <source_location>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/append_file.h"

namespace segue::report {

/// A JSON array or object, kept as its text: no rule looks into one.
struct MllogRaw {
  std::string text;
  bool operator==(const MllogRaw&) const = default;
};

/// What an event can carry; std::monostate is null.
using MllogValue = std::variant<std::monostate, bool, int64_t, double, std::string, MllogRaw>;
using MllogMetadata = std::vector<std::pair<std::string, MllogValue>>;

/// JSON as Python's json module writes it: doubles in the shortest form that reads back as the same
/// bits and stays a double (0.0, 1e-06), text in ASCII. NaN and infinities become null.
std::string mllog_text(const MllogValue& value);

/// Writes the MLPerf log (`:::MLLOG {...}`), one write(2) per line. One process of a run has one.
/// Trouble with the file is Error(kIo), but see WhenFull.
class MllogWriter {
 public:
  enum class Mode { kTruncate, kAppend };

  /// kAppend: a last line that a crash cut short is not repaired but written on: readers ignore
  /// what stands before the last token of a line, whereas the fragment alone would fail the file.
  MllogWriter(std::string path, Mode mode, base::WhenFull when_full = base::WhenFull::kFail);

  // A point in time, the start and the end of an interval. `at` goes into the metadata as file and
  // lineno; entries of `metadata` are added to these and win over them. Error(kInvalidArgument) if
  // the line has a word (such as eval_accuracy) by which other tools would take it for another
  // event.
  using Location = std::source_location;
  void event(std::string_view key, const MllogValue& value = {}, const MllogMetadata& metadata = {},
             const Location& at = Location::current());
  void start(std::string_view key, const MllogValue& value = {}, const MllogMetadata& metadata = {},
             const Location& at = Location::current());
  void end(std::string_view key, const MllogValue& value = {}, const MllogMetadata& metadata = {},
           const Location& at = Location::current());

  /// Everything written so far survives a crash of the machine.
  void sync() { file_->sync(); }

 private:
  void write(std::string_view type, std::string_view key, const MllogValue& value,
             const MllogMetadata& metadata, const Location& at);

  std::string path_;
  std::unique_ptr<base::AppendFile> file_;
  std::string lead_;  // what must come before the next line
};

}  // namespace segue::report
