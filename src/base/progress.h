#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

namespace segue::base {

/// The line of a long action: label, share done, rate, time left, and whatever the caller adds.
/// On a terminal one line is rewritten; otherwise a plain line appears every few seconds.
class Progress {
 public:
  /// total 0: unknown. `before` of it were done by an earlier process: they count as done, not for
  /// the rate.
  Progress(std::string label, int64_t total, std::string unit, int64_t before = 0);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void update(int64_t done, std::string_view extra = {});
  void finish(std::string_view extra = {});

 private:
  void print(std::string_view extra, bool last);

  std::string label_;
  std::string unit_;
  int64_t total_ = 0;
  int64_t before_ = 0;
  int64_t done_ = 0;
  bool terminal_ = false;
  bool finished_ = false;
  std::chrono::steady_clock::time_point start_;
  std::chrono::steady_clock::time_point last_print_;
};

/// The line in so many columns at most: fields, which are two spaces apart, are left out from the
/// third on, so that name, share and the last ones stay.
std::string fit_columns(std::string line, size_t columns);

/// Commas between thousands, in front of the decimals if there are any.
std::string with_separators(std::string digits);
/// "980", "12.3k", "4.56M": three significant digits.
std::string format_count(double count);
/// "1.5 GiB", in MiB below that.
std::string format_bytes(double bytes);
/// "0:07", "12:34", "1:02:03", "3d 04h".
std::string format_duration(double seconds);
/// The text of a progress line: `done` of `total` (0: unknown) after `seconds`. A finished one
/// gives the time taken in place of the time left.
std::string format_progress(std::string_view label, int64_t done, int64_t total,
                            std::string_view unit, double seconds, bool finished,
                            std::string_view extra, int64_t before = 0);

}  // namespace segue::base
