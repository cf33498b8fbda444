#pragma once

#include <string>
#include <string_view>

namespace segue::base {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

/// One line to stderr: time, level, rank if there are several, text. Safe from any thread.
/// Text is made by the caller (fmt::format in a .cpp), so that this header serves .cu files too.
void log(LogLevel level, std::string_view text);
inline void log_debug(std::string_view text) { log(LogLevel::kDebug, text); }
inline void log_info(std::string_view text) { log(LogLevel::kInfo, text); }
inline void log_warning(std::string_view text) { log(LogLevel::kWarning, text); }
inline void log_error(std::string_view text) { log(LogLevel::kError, text); }

void set_log_level(LogLevel lowest);

/// Tells the log which rank this process is. With several ranks, lines of ranks other than 0 carry
/// the rank, and only warnings and errors of theirs are printed.
void set_log_rank(int rank, int num_ranks);
int log_rank();

/// Says `text` once per process and `key`: for notices that a loop would repeat.
void log_once(LogLevel level, std::string_view key, std::string_view text);

namespace detail {
/// The line as log() prints it, without the time.
std::string format_log_line(LogLevel level, std::string_view text, int rank, int num_ranks);
/// Writes to stderr in one piece. `stays_open`: the text is a line that will be rewritten (progress
/// on a terminal); whatever comes next first wipes it.
void write_stderr(std::string_view text, bool stays_open);
}  // namespace detail

}  // namespace segue::base
