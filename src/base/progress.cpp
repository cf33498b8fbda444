#include "base/progress.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/log.h"
#include "base/memory.h"

namespace segue::base {
namespace {

using Seconds = std::chrono::duration<double>;

constexpr Seconds kTerminalInterval(0.1);
constexpr Seconds kPlainInterval(5.0), kLongestPlainInterval(60.0);

/// The width of the terminal, less a column: a line that wraps cannot be rewritten.
size_t terminal_columns() {
  winsize size{};
  if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return std::string::npos;
  return size.ws_col - 1u;
}

/// In a log file lines come less often as time goes on: a run of a day needs no line every 5 s.
Seconds plain_interval(Seconds elapsed) {
  return std::clamp(elapsed / 50, kPlainInterval, kLongestPlainInterval);
}

}  // namespace

std::string fit_columns(std::string line, size_t columns) {
  // Fields are two spaces apart. Name and share stay, and so do the newest facts, at the end.
  constexpr size_t kKept = 2;
  while (line.size() > columns) {
    size_t begin = 0;
    for (size_t i = 0; i < kKept && begin != std::string::npos; ++i) {
      begin = line.find("  ", begin == 0 ? 0 : begin + 2);
    }
    const size_t end = begin == std::string::npos ? begin : line.find("  ", begin + 2);
    if (end == std::string::npos) break;
    line.erase(begin, end - begin);
  }
  if (line.size() > columns) line.resize(columns);
  return line;
}

std::string with_separators(std::string digits) {
  const int64_t first = digits.starts_with('-') ? 1 : 0;
  const size_t whole = std::min(digits.find('.'), digits.size());
  for (auto at = static_cast<int64_t>(whole) - 3; at > first; at -= 3) {
    digits.insert(digits.begin() + at, ',');
  }
  return digits;
}

std::string format_count(double count) {
  if (!(std::abs(count) < 1e15)) return fmt::format("{:.3g}", count);
  double scaled = count;
  const char* suffix = "";
  for (const char* next : {"k", "M", "G", "T"}) {
    if (std::abs(scaled) < 999.5) break;
    scaled /= 1000.0;
    suffix = next;
  }
  if (*suffix == '\0' && scaled == std::floor(scaled)) return fmt::format("{:.0f}", scaled);
  const double magnitude = std::abs(scaled);
  const int decimals = magnitude >= 99.95 ? 0 : magnitude >= 9.995 ? 1 : 2;
  return fmt::format("{:.{}f}{}", scaled, decimals, suffix);
}

std::string format_bytes(double bytes) {
  return bytes < kGib ? fmt::format("{:.1f} MiB", bytes / kMib)
                      : fmt::format("{:.1f} GiB", bytes / kGib);
}

std::string format_duration(double seconds) {
  if (!(seconds >= 0.0) || seconds > 1e9) return "?";
  const auto total = static_cast<int64_t>(std::llround(seconds));
  const int64_t days = total / 86400, hours = total / 3600 % 24, minutes = total / 60 % 60;
  if (days > 0) return fmt::format("{}d {:02}h", days, hours);
  if (hours > 0) return fmt::format("{}:{:02}:{:02}", hours, minutes, total % 60);
  return fmt::format("{}:{:02}", minutes, total % 60);
}

std::string format_progress(std::string_view label, int64_t done, int64_t total,
                            std::string_view unit, double seconds, bool finished,
                            std::string_view extra, int64_t before) {
  std::string line(label);
  if (total > 0) {
    // Rounded down: 100% means done.
    const double share = std::clamp(static_cast<double>(done) / static_cast<double>(total), 0., 1.);
    line += fmt::format("  {:.0f}%  {}/{} {}", std::floor(100.0 * share),
                        format_count(static_cast<double>(done)),
                        format_count(static_cast<double>(total)), unit);
  } else {
    line += fmt::format("  {} {}", format_count(static_cast<double>(done)), unit);
  }
  const double rate = seconds > 0.0 ? static_cast<double>(done - before) / seconds : 0.0;
  if (rate > 0.0) line += fmt::format("  {} {}/s", format_count(rate), unit);
  if (finished) {
    line += fmt::format("  took {}", format_duration(seconds));
  } else if (total > 0 && rate > 0.0) {
    const auto left = static_cast<double>(std::max<int64_t>(total - done, 0));
    line += fmt::format("  left {}", format_duration(left / rate));
  }
  if (!extra.empty()) line += fmt::format("  {}", extra);
  return line;
}

Progress::Progress(std::string label, int64_t total, std::string unit, int64_t before)
    : label_(std::move(label)),
      unit_(std::move(unit)),
      total_(total),
      before_(before),
      done_(before),
      terminal_(isatty(STDERR_FILENO) == 1),
      start_(std::chrono::steady_clock::now()),
      last_print_(start_) {}

Progress::~Progress() {
  // An exception is on its way or the caller had nothing to add: leave no half line behind.
  if (!finished_ && terminal_ && log_rank() == 0) detail::write_stderr("", false);
}

void Progress::update(int64_t done, std::string_view extra) {
  done_ = done;
  const auto now = std::chrono::steady_clock::now();
  const Seconds interval = terminal_ ? kTerminalInterval : plain_interval(now - start_);
  if (!finished_ && now - last_print_ >= interval) print(extra, false);
}

void Progress::finish(std::string_view extra) {
  if (finished_) return;
  finished_ = true;
  if (total_ > 0) done_ = std::max(done_, total_);
  print(extra, true);
}

void Progress::print(std::string_view extra, bool last) {
  last_print_ = std::chrono::steady_clock::now();
  const double seconds = Seconds(last_print_ - start_).count();
  const std::string line =
      format_progress(label_, done_, total_, unit_, seconds, last, extra, before_);
  if (terminal_ && !last) {
    if (log_rank() == 0) detail::write_stderr(fit_columns(line, terminal_columns()), true);
  } else {
    log_info(line);
  }
}

}  // namespace segue::base
