#include "data/log/event_normalizer.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"

namespace segue::data {
namespace {

constexpr int64_t kLargestTime = int64_t{1} << 53;
constexpr int64_t kTabledKinds = 256;

/// Number of the kind that `text` names; -1 if there is none.
int find_kind(const std::vector<std::string>& kinds, std::string_view text) {
  const auto found = std::find(kinds.begin(), kinds.end(), text);
  return found == kinds.end() ? -1 : static_cast<int>(found - kinds.begin());
}

/// An integer is the kind that is called so, else (where no kind is called like a number) the kind
/// with that number.
int find_kind(const std::vector<std::string>& kinds, int64_t number) {
  const int named = find_kind(kinds, std::to_string(number));
  if (named >= 0) return named;
  const bool numbers = std::any_of(kinds.begin(), kinds.end(), [](const std::string& kind) {
    int64_t ignored = 0;
    return parse_canonical_integer(kind, ignored);
  });
  return !numbers && number >= 0 && number < static_cast<int64_t>(kinds.size())
             ? static_cast<int>(number)
             : -1;
}

/// What to do about an id that is a text where integers are read.
std::string text_hint(const char* option, IdMapping mapping) {
  if (mapping == IdMapping::kAsIs) {
    return fmt::format("; ids that are texts need {} = \"auto\" or \"dense\"", option);
  }
  return fmt::format("; the ids before it are integers: if it is an id too, say {} = \"dense\"",
                     option);
}

}  // namespace

ColumnRequest IdColumn::request(const std::string& column, const std::string& hint) const {
  if (dictionary) return {.name = column, .role = ColumnRole::kText, .exact = true};
  return {.name = column, .role = ColumnRole::kInteger, .hint = hint, .exact = true};
}

void IdColumn::add(const RawColumn& column, size_t row) const {
  if (column.type == RawColumn::Type::kInteger) {
    dictionary->add(column.integers[row]);
  } else if (column.untyped) {
    dictionary->add_untyped(column.text(row));
  } else {
    dictionary->add(column.text(row));
  }
}

int64_t IdColumn::find(const RawColumn& column, size_t row) const {
  if (column.type == RawColumn::Type::kInteger) return dictionary->find(column.integers[row]);
  return column.untyped ? dictionary->find_untyped(column.text(row))
                        : dictionary->find(column.text(row));
}

UnitScale::UnitScale(double unit_seconds) {
  if (unit_seconds >= 1) {
    multiply_ = std::llround(unit_seconds);
  } else {
    divide_ = std::llround(1 / unit_seconds);
  }
}

bool UnitScale::to_seconds(int64_t count, int64_t& seconds) const {
  if (__builtin_mul_overflow(count, multiply_, &seconds)) return false;
  const int64_t rest = seconds % divide_;
  seconds = seconds / divide_ - (rest < 0 ? 1 : 0);
  return true;
}

void RowChecker::fail_at(const RawBlock& block, size_t row, RowFault fault,
                         const std::string& what) const {
  fail_row(files_[block.file].path, block.first_row + static_cast<int64_t>(row), std::move(fault),
           what);
}

void RowChecker::require(const RawBlock& block, const RawColumn& column, size_t row,
                         const std::string& name) const {
  if (column.is_valid(row)) return;
  fail_at(block, row, {name, "is empty"},
          fmt::format("column \"{}\" is empty{}", name,
                      column.untyped ? " (or null, NA, NaN or \\N, which say the same)" : ""));
}

int64_t RowChecker::seconds(const RawBlock& block, const RawColumn& column, size_t row) const {
  require(block, column, row, schema_.time);
  const UnitScale unit = column.unit_seconds > 0 ? UnitScale(column.unit_seconds) : time_unit_;
  int64_t seconds = 0;
  const bool fits = unit.to_seconds(column.integers[row], seconds);
  if (seconds < 0 || !fits || seconds > kLargestTime) {
    fail_at(block, row, {schema_.time, "is out of range"},
            fmt::format("column \"{}\" has the time {}; {}", schema_.time, column.integers[row],
                        column.integers[row] < 0
                            ? "times are 0 or later; leave such rows out, or count all times "
                              "from an earlier one"
                            : "that is later than any; is time_unit_seconds of the schema right?"));
  }
  return seconds;
}

const char* RowChecker::option_of(const std::string& name) const {
  return name == schema_.user ? "user_ids" : "item_ids";
}

void RowChecker::check_id(const RawBlock& block, const RawColumn& column, size_t row,
                          const std::string& name, const IdColumn& ids) const {
  require(block, column, row, name);
  if (column.type == RawColumn::Type::kText) {
    const std::string_view text = column.text(row);
    int64_t ignored = 0;
    if (column.untyped && is_rounded_number(text)) {
      fail_rounded(files_[block.file].path, block.first_row + static_cast<int64_t>(row), name,
                   text);
    }
    if (ids.pure_text && column.untyped && parse_whole_integer(text, ignored)) {
      fail_at(block, row, {name, "is an integer among texts"},
              fmt::format("column \"{}\" has the integer {} among texts; if all ids are texts, say "
                          "{} = \"dense\" in the schema",
                          name, text, option_of(name)));
    }
    if (text.find_first_of("\r\n") != std::string_view::npos) {
      fail_at(block, row, {name, "has a line end in it"},
              fmt::format("column \"{}\": an id with a line end in it", name));
    }
  } else if (!ids.dictionary) {
    const int64_t id = column.integers[row];
    if (id >= 0 && id <= StoreWriter::kLargestId) return;
    fail_at(
        block, row, {name, "is out of range"},
        fmt::format("column \"{}\" has the id {}; ids are from 0 to {} (or of any kind, with {} "
                    "= \"dense\" in the schema)",
                    name, id, StoreWriter::kLargestId, option_of(name)));
  }
}

int64_t RowChecker::number_of(const RawBlock& block, const RawColumn& column, size_t row,
                              const IdColumn& ids) const {
  if (!ids.dictionary) return column.integers[row];
  const int64_t number = ids.find(column, row);
  if (number >= 0) return number;
  fail(ErrorCode::kCorrupt,
       fmt::format("{}: changed while it was being read", files_[block.file].path));
}

EventNormalizer::EventNormalizer(const LogSchema& schema, const std::vector<LogFile>& files,
                                 const IdColumn& users, const IdColumn& items)
    : schema_(schema),
      check_(schema, files),
      users_(users),
      items_(items),
      length_unit_(schema.length_unit_seconds) {
  user_ = request(users.request(schema.user, text_hint("user_ids", schema.user_ids)));
  time_ = request({schema.time, ColumnRole::kTime});
  requests_.back().time_format = schema.time_format;
  if (schema.time_format.empty()) {
    requests_.back().hint = "; time_format says how other times are written, as \"%d.%m.%Y %H:%M\"";
  }
  item_ = request(items.request(schema.item, text_hint("item_ids", schema.item_ids)));
  if (!schema.kind.empty()) kind_ = request({schema.kind, ColumnRole::kKind});
  if (!schema.value.empty()) value_ = request({schema.value, ColumnRole::kNumber});
  for (const std::string& flag : schema.flags) {
    flags_.push_back(request({flag, ColumnRole::kInteger}));
  }
  if (!schema.organic.empty()) organic_ = request({schema.organic, ColumnRole::kInteger});
  if (!schema.length.empty()) length_ = request({schema.length, ColumnRole::kWhole});
  for (const NumberColumn& number : schema.numbers) {
    numbers_.push_back(request({number.log_column(), ColumnRole::kNumber}));
  }
  for (int64_t i = 0; i < kTabledKinds; ++i) kind_of_integer_.push_back(find_kind(schema.kinds, i));
}

size_t EventNormalizer::request(ColumnRequest wanted) {
  requests_.push_back(std::move(wanted));
  return requests_.size() - 1;
}

void EventNormalizer::map_kinds(const RawColumn& column) {
  kind_of_code_.clear();
  for (size_t i = 0; column.type == RawColumn::Type::kText && i < column.texts.size(); ++i) {
    const std::string_view text = column.texts[i];
    int kind = find_kind(schema_.kinds, text);
    int64_t number = 0;  // CSV files have integers as text
    if (kind < 0 && parse_canonical_integer(text, number)) kind = find_kind(schema_.kinds, number);
    kind_of_code_.push_back(kind);
  }
}

uint8_t EventNormalizer::kind(const RawBlock& block, size_t row) const {
  if (kind_ == kNone) return 0;
  const RawColumn& column = block.columns[kind_];
  check_.require(block, column, row, schema_.kind);
  const bool text = column.type == RawColumn::Type::kText;
  const int64_t number = text ? column.codes[row] : column.integers[row];
  const std::vector<int>& kinds = text ? kind_of_code_ : kind_of_integer_;
  const int kind = number >= 0 && number < static_cast<int64_t>(kinds.size())
                       ? kinds[static_cast<size_t>(number)]
                       : find_kind(schema_.kinds, number);
  if (kind < 0) {
    check_.fail_at(
        block, row, {schema_.kind, "is an unknown kind"},
        fmt::format("column \"{}\" has the unknown kind \"{}\"; known are: {}", schema_.kind,
                    text ? std::string(column.text(row)) : std::to_string(column.integers[row]),
                    fmt::join(schema_.kinds, ", ")));
  }
  return static_cast<uint8_t>(kind);
}

void EventNormalizer::take_value(const RawBlock& block, size_t row, Event& event) const {
  const RawColumn& column = block.columns[value_];
  if (!column.is_valid(row) || std::isnan(column.numbers[row])) return;
  const auto value = static_cast<float>(column.numbers[row]);
  if (!(value >= 0) || std::isinf(value)) {
    check_.fail_at(block, row, {schema_.value, "is negative or infinite"},
                   fmt::format("column \"{}\" has the value {}; values are 0 or more, and a few "
                               "numbers such as -1 and 1 may be kinds instead (kind, kinds)",
                               schema_.value, column.numbers[row]));
  }
  event.value = value + 0.f;  // no negative zero: equal values have equal bytes
}

void EventNormalizer::take_flags(const RawBlock& block, size_t row, Event& event) const {
  uint32_t bits = 0;
  for (size_t i = 0; i < flags_.size(); ++i) {
    const RawColumn& column = block.columns[flags_[i]];
    check_.require(block, column, row, schema_.flags[i]);
    const int64_t flag = column.integers[row];
    if (flag != 0 && flag != 1) {
      check_.fail_at(block, row, {schema_.flags[i], "is neither 0 nor 1"},
                     fmt::format("column \"{}\" has {}; a flag is 0 or 1", schema_.flags[i], flag));
    }
    bits |= static_cast<uint32_t>(flag) << i;
  }
  event.value = static_cast<float>(bits);  // exact: at most 24 bits
}

void EventNormalizer::take_rest(const RawBlock& block, size_t row, Event& event) const {
  if (organic_ != kNone) {
    const RawColumn& column = block.columns[organic_];
    check_.require(block, column, row, schema_.organic);
    const int64_t organic = column.integers[row];
    if (organic < 0 || organic > std::numeric_limits<int8_t>::max()) {
      check_.fail_at(
          block, row, {schema_.organic, "is neither 0 nor 1"},
          fmt::format("column \"{}\" has {}; 0 or 1 is meant", schema_.organic, organic));
    }
    event.organic = static_cast<int8_t>(organic);
  }
  if (length_ != kNone && block.columns[length_].is_valid(row)) {
    const int64_t length = block.columns[length_].integers[row];
    int64_t seconds = 0;
    if (!length_unit_.to_seconds(length, seconds) || seconds < 0 ||
        seconds > std::numeric_limits<int32_t>::max()) {
      check_.fail_at(block, row, {schema_.length, "is out of range"},
                     fmt::format("column \"{}\" has the length {}", schema_.length, length));
    }
    event.length = static_cast<int32_t>(seconds);
  }
}

void EventNormalizer::take_numbers(const RawBlock& block, size_t row, Event& event) {
  const std::span<float> kept = kept_numbers_.add(numbers_.size());
  for (size_t i = 0; i < numbers_.size(); ++i) {
    const RawColumn& column = block.columns[numbers_[i]];
    kept[i] = std::numeric_limits<float>::quiet_NaN();
    if (!column.is_valid(row) || std::isnan(column.numbers[row])) continue;
    kept[i] = static_cast<float>(column.numbers[row]) + 0.f;  // no negative zero, as for values
    if (std::isinf(kept[i])) {
      const std::string& name = schema_.numbers[i].log_column();
      check_.fail_at(block, row, {name, "is infinite"},
                     fmt::format("column \"{}\" has {}; numbers are finite, and at most 3.4e38",
                                 name, column.numbers[row]));
    }
  }
  event.set_numbers(kept);
}

void EventNormalizer::check_ids(const RawBlock& block, size_t row) const {
  check_.check_id(block, block.columns[user_], row, schema_.user, users_);
  check_.check_id(block, block.columns[item_], row, schema_.item, items_);
}

Event EventNormalizer::event(const RawBlock& block, size_t row) {
  Event event;
  event.time = check_.seconds(block, block.columns[time_], row);
  event.kind = kind(block, row);
  if (value_ != kNone) take_value(block, row, event);
  if (!flags_.empty()) take_flags(block, row, event);
  take_rest(block, row, event);
  if (!numbers_.empty()) take_numbers(block, row, event);
  return event;
}

void EventNormalizer::set_ids(const RawBlock& block, size_t row, Event& event) const {
  event.user = check_.number_of(block, block.columns[user_], row, users_);
  event.item = check_.number_of(block, block.columns[item_], row, items_);
}

void EventNormalizer::add(const RawBlock& block, std::vector<Event>& events) {
  kept_numbers_.clear();
  if (kind_ != kNone) map_kinds(block.columns[kind_]);
  for (size_t row = 0; row < block.rows; ++row) {
    check_ids(block, row);
    events.push_back(event(block, row));
    set_ids(block, row, events.back());
  }
}

size_t EventNormalizer::add_good(const RawBlock& block, std::vector<Event>& events) {
  const std::vector<BadRow> bad = find_bad(block);
  kept_numbers_.clear();
  for (size_t row = 0, next = 0; row < block.rows; ++row) {
    if (is_listed(bad, row, next)) continue;
    events.push_back(event(block, row));
    set_ids(block, row, events.back());
  }
  return bad.size();
}

std::vector<BadRow> EventNormalizer::find_bad(const RawBlock& block) {
  kept_numbers_.clear();
  if (kind_ != kNone) map_kinds(block.columns[kind_]);
  std::vector<BadRow> bad;
  for (size_t row = 0, next = 0; row < block.rows; ++row) {
    if (is_listed(block.bad, row, next)) {
      bad.push_back(block.bad[next]);
      continue;
    }
    try {
      check_ids(block, row);
      event(block, row);
    } catch (const RowError& error) {
      bad.push_back({row, error.fault()});
    }
  }
  return bad;
}

}  // namespace segue::data
