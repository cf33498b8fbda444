#include "data/log/time_format.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <chrono>
#include <cstddef>
#include <span>

#include <fmt/format.h>

namespace segue::data {
namespace {

constexpr std::array<std::string_view, 12> kMonths = {
    "january", "february", "march",     "april",   "may",      "june",
    "july",    "august",   "september", "october", "november", "december"};
constexpr std::array<std::string_view, 7> kDays = {"sunday",   "monday", "tuesday", "wednesday",
                                                   "thursday", "friday", "saturday"};
constexpr std::string_view kLetters = "YymdbBaAHIpMSfz%";

std::string_view trimmed(std::string_view text) {
  while (text.starts_with(' ')) text.remove_prefix(1);
  while (text.ends_with(' ')) text.remove_suffix(1);
  return text;
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }

/// Whether a text begins with `name`, which is lower case, in any case.
bool begins_with(std::string_view text, std::string_view name) {
  const auto same = [](char a, char b) {
    return std::tolower(static_cast<unsigned char>(a)) == static_cast<unsigned char>(b);
  };
  return text.size() >= name.size() && std::ranges::equal(text.substr(0, name.size()), name, same);
}

/// Takes a name off a text, in full or its first three letters, and returns its place among
/// `names`; -1: none.
int take_name(std::string_view& text, std::span<const std::string_view> names) {
  constexpr size_t kShort = 3;
  for (size_t i = 0; i < names.size(); ++i) {
    if (!begins_with(text, names[i].substr(0, kShort))) continue;
    text.remove_prefix(begins_with(text, names[i]) ? names[i].size() : kShort);
    return static_cast<int>(i);
  }
  return -1;
}

/// Whether what a piece of a format stands for is digits: `letter` behind a %, or a character.
bool is_number(bool piece, char letter) {
  constexpr std::string_view kNumbers = "YymdHIMSf";
  return piece ? kNumbers.find(letter) != std::string_view::npos : is_digit(letter);
}

/// Whether what is written as the rest of a format begins with a digit.
bool begins_with_digit(std::string_view format) {
  const bool piece = format.size() > 1 && format[0] == '%';
  return !format.empty() && is_number(piece, format[piece ? 1 : 0]);
}

/// Takes a time off a text, piece by piece of a format.
class TimeParser {
 public:
  explicit TimeParser(std::string_view text) : text_(text) {}

  /// `exact`: a digit may stand before or behind it, so all digits are there.
  bool take(char letter, bool exact) {
    switch (letter) {
      case 'Y':
        return number(4, true, year_);
      case 'y':
        if (!number(2, true, year_)) return false;
        year_ += year_ < 69 ? 2000 : 1900;
        return true;
      case 'm':
        return number(2, exact, month_);
      case 'd':
        return number(2, exact, day_);
      case 'b':
      case 'B':
        month_ = take_name(text_, kMonths) + 1;
        return month_ > 0;
      case 'a':
      case 'A':
        return take_name(text_, kDays) >= 0;
      case 'H':
        return number(2, exact, hour_);
      case 'I':
        return number(2, exact, hour_) && hour_ >= 1 && hour_ <= 12;
      case 'p':
        return half_of_day();
      case 'M':
        return number(2, exact, minute_);
      case 'S':
        return number(2, exact, second_);
      case 'f':
        return digits() > 0;
      case 'z':
        return zone();
      default:
        return literal(letter);
    }
  }

  bool literal(char c) {
    if (!text_.starts_with(c)) return false;
    text_.remove_prefix(1);
    while (c == ' ' && text_.starts_with(' ')) text_.remove_prefix(1);
    return true;
  }

  /// Of seconds.
  void skip_fraction() {
    if (text_.size() > 1 && text_[0] == '.' && is_digit(text_[1])) {
      text_.remove_prefix(1);
      digits();
    }
  }

  bool finish(int64_t& seconds) const {
    if (!text_.empty() || hour_ > 23 || minute_ > 59 || second_ > 60) return false;
    const std::chrono::year_month_day date{std::chrono::year(year_),
                                           std::chrono::month(static_cast<unsigned>(month_)),
                                           std::chrono::day(static_cast<unsigned>(day_))};
    if (!date.ok()) return false;
    int hour = hour_;
    if (half_ >= 0) hour = hour_ % 12 + 12 * half_;
    const auto days = std::chrono::sys_days(date).time_since_epoch().count();
    seconds = int64_t{days} * 86400 + hour * 3600 + minute_ * 60 + second_ - east_;
    return true;
  }

 private:
  bool number(size_t digits, bool exact, int& value) {
    size_t n = 0;
    value = 0;
    while (n < digits && n < text_.size() && is_digit(text_[n])) {
      value = value * 10 + (text_[n++] - '0');
    }
    text_.remove_prefix(n);
    return n > 0 && (!exact || n == digits);
  }

  /// Takes them off; returns how many.
  size_t digits() {
    const size_t n = std::min(text_.find_first_not_of("0123456789"), text_.size());
    text_.remove_prefix(n);
    return n;
  }

  bool half_of_day() {
    if (text_.size() < 2 || (text_[1] != 'M' && text_[1] != 'm')) return false;
    const int letter = std::tolower(static_cast<unsigned char>(text_[0]));
    half_ = letter == 'p' ? 1 : 0;
    text_.remove_prefix(2);
    return letter == 'a' || letter == 'p';
  }

  bool zone() {
    if (literal('Z')) return true;
    const int sign = text_.starts_with('-') ? -1 : 1;
    if (!literal('+') && !literal('-')) return false;
    int hours = 0, minutes = 0;
    if (!number(2, true, hours)) return false;
    const bool more = literal(':') || (!text_.empty() && is_digit(text_[0]));
    if (more && !number(2, true, minutes)) return false;
    east_ = sign * (hours * 3600 + minutes * 60);
    return hours < 24 && minutes < 60;
  }

  std::string_view text_;
  int year_ = 0, month_ = 1, day_ = 1, hour_ = 0, minute_ = 0, second_ = 0, half_ = -1;
  int64_t east_ = 0;
};

}  // namespace

bool parse_time(std::string_view text, std::string_view format, int64_t& seconds) {
  TimeParser parser(trimmed(text));
  bool behind_digit = false;
  for (size_t i = 0; i < format.size(); ++i) {
    if (format.substr(i).starts_with("  ")) continue;  // as one
    const bool piece = format[i] == '%' && i + 1 < format.size();
    if (piece) ++i;
    const std::string_view rest = format.substr(i + 1);
    const bool exact = behind_digit || begins_with_digit(rest);
    if (!(piece ? parser.take(format[i], exact) : parser.literal(format[i]))) return false;
    if (piece && format[i] == 'S' && !rest.starts_with('.')) parser.skip_fraction();
    behind_digit = is_number(piece, format[i]);
  }
  return parser.finish(seconds);
}

std::string time_format_problem(std::string_view format) {
  bool year = false, month = false, day = false, half = false, twelve = false;
  for (size_t i = 0; i < format.size(); ++i) {
    if (format[i] != '%') continue;
    const char letter = ++i < format.size() ? format[i] : '\0';
    if (letter == '\0' || kLetters.find(letter) == std::string_view::npos) {
      return fmt::format(
          "%{} is not known; there are %Y %y %m %d %b %a %H %I %p %M %S %f %z, as in "
          "\"%d.%m.%Y %H:%M\" or \"%y%m%d%H\"",
          letter == '\0' ? ' ' : letter);
    }
    year = year || letter == 'Y' || letter == 'y';
    month = month || letter == 'm' || letter == 'b' || letter == 'B';
    day = day || letter == 'd';
    half = half || letter == 'p';
    twelve = twelve || letter == 'I';
  }
  if (!year || !month || !day) return "a date has %Y (or %y), %m (or %b) and %d";
  if (half != twelve) return "%I, hours from 1 to 12, and %p, AM or PM, belong together";
  return "";
}

}  // namespace segue::data
