#include "data/inspect/time_span.h"

#include <limits>

#include <fmt/format.h>

#include "base/time.h"

namespace segue::data {

std::string doubt_times(int64_t first, int64_t last) {
  constexpr int64_t kDay = 86400, kDecades = 50 * 365 * kDay;
  constexpr int64_t kFarFuture = 4'102'444'800;  // the year 2100
  constexpr int64_t kFourDigits = 253'402'300'799;
  // The years 2001 to 2036, when seconds are taken for milliseconds.
  constexpr int64_t kFirstThousandth = 1'000'000, kLastThousandth = 2'100'000;
  const char* const advice = "is time_unit_seconds of its schema right?";
  if (last > kFarFuture) {
    return fmt::format("times reach up to {} s{}; {}", last,
                       last > kFourDigits ? "" : ", " + base::iso_time(last), advice);
  }
  int64_t span = 0;  // times of a store may be any number
  if (__builtin_sub_overflow(last, first, &span)) span = std::numeric_limits<int64_t>::max();
  if (span > kDecades) {
    return fmt::format("times span {} years; {}", span / (365 * kDay), advice);
  }
  if (first >= kFirstThousandth && last < kLastThousandth) {
    return fmt::format("times are from {} to {}, as if seconds were taken for milliseconds; {}",
                       base::iso_time(first), base::iso_time(last), advice);
  }
  if (span < kDay) {
    // Numbers such as 20260131 and 26013123 are dates.
    const bool dates = first > 100'000 && last < 1'000'000'000;
    return fmt::format("all times lie within {:.2f} days; {}{}", static_cast<double>(span) / kDay,
                       dates ? "if they spell dates, set time_format; " : "", advice);
  }
  return "";
}

}  // namespace segue::data
