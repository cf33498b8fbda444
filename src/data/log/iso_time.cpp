#include "data/log/iso_time.h"

#include <charconv>
#include <chrono>

namespace segue::data {
namespace {

/// Takes exactly `digits` digits off the front.
bool take_number(std::string_view& text, size_t digits, int& value) {
  if (text.size() < digits) return false;
  const char* const end = text.data() + digits;
  for (const char* c = text.data(); c != end; ++c) {
    if (*c < '0' || *c > '9') return false;
  }
  std::from_chars(text.data(), end, value);
  text.remove_prefix(digits);
  return true;
}

bool take(std::string_view& text, char c) {
  if (!text.starts_with(c)) return false;
  text.remove_prefix(1);
  return true;
}

/// Z, +02:00, -0530 or +02: seconds east of Greenwich.
bool take_zone(std::string_view& text, int64_t& east) {
  east = 0;
  if (text.empty() || take(text, 'Z')) return true;
  const int64_t sign = text.front() == '-' ? -1 : 1;
  if (!take(text, '+') && !take(text, '-')) return false;
  int hours = 0, minutes = 0;
  if (!take_number(text, 2, hours)) return false;
  take(text, ':');
  if (!text.empty() && !take_number(text, 2, minutes)) return false;
  east = sign * (hours * 3600 + minutes * 60);
  return hours < 24 && minutes < 60;
}

}  // namespace

bool parse_iso_time(std::string_view text, int64_t& seconds) {
  int year = 0, month = 0, day = 0, hour = 0, minute = 0, second = 0;
  if (!take_number(text, 4, year) || !take(text, '-') || !take_number(text, 2, month) ||
      !take(text, '-') || !take_number(text, 2, day)) {
    return false;
  }
  const std::chrono::year_month_day date{std::chrono::year(year),
                                         std::chrono::month(static_cast<unsigned>(month)),
                                         std::chrono::day(static_cast<unsigned>(day))};
  if (!date.ok()) return false;
  int64_t east = 0;
  if (take(text, 'T') || take(text, ' ')) {
    if (!take_number(text, 2, hour) || !take(text, ':') || !take_number(text, 2, minute)) {
      return false;
    }
    if (take(text, ':')) {
      if (!take_number(text, 2, second)) return false;
      if (take(text, '.')) {
        const size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
        if (digits == 0) return false;
        text.remove_prefix(digits);
      }
    }
    take(text, ' ');
    if (text == "UTC") text = {};
    if (!take_zone(text, east)) return false;
  }
  if (!text.empty() || hour > 23 || minute > 59 || second > 60) return false;
  const auto days = std::chrono::sys_days(date).time_since_epoch().count();
  seconds = int64_t{days} * 86400 + hour * 3600 + minute * 60 + second - east;
  return true;
}

}  // namespace segue::data
