#include "train/run/questions.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>

#include <fmt/format.h>

#include "base/error.h"
#include "base/log.h"
#include "data/inspect/id_ranges.h"
#include "data/log/event_normalizer.h"
#include "data/store/event_log.h"
#include "data/store/id_maps.h"

namespace segue::train {
namespace {

constexpr int64_t kAfterAll = std::numeric_limits<int64_t>::max();  // a time that was not given

/// A question, in the words of the file, so that errors can name it.
std::string row_of(const std::string& path, size_t row) {
  return fmt::format("{}: row {}", path, row + 1);
}

/// `each` gets every row of a file with these columns, whose values are all there.
template <class Each>
void read_rows(const std::string& path, const std::vector<data::ColumnRequest>& requests,
               const data::TableOptions& options, Each each) {
  const auto reader = data::open_table(path, requests, options);
  data::RawBlock block;
  while (reader->read(block)) {
    for (size_t row = 0; row < block.rows; ++row) {
      const std::string where = row_of(path, static_cast<size_t>(block.first_row) + row);
      for (size_t c = 0; c < requests.size(); ++c) {
        if (block.columns[c].is_valid(row)) continue;
        fail(ErrorCode::kCorrupt, fmt::format("{} has no {}", where, requests[c].name));
      }
      each(block, row, where);
    }
  }
}

/// Seconds since 1970, as integers say them, dates, or timestamps of any unit.
int64_t seconds_of(const data::RawColumn& column, size_t row, const std::string& where) {
  int64_t seconds = 0;
  const double unit = column.unit_seconds > 0 ? column.unit_seconds : 1;
  if (!data::UnitScale(unit).to_seconds(column.integers[row], seconds)) {
    fail(ErrorCode::kOutOfRange,
         fmt::format("{} has the time {}, which is later than any", where, column.integers[row]));
  }
  return seconds;
}

}  // namespace

Questions::Questions(const StoreScorer& scorer, const data::ParquetSupport* parquet)
    : scorer_(scorer),
      log_(scorer.store()),
      tables_{.parquet = parquet},
      users_(data::IdMaps(scorer.store().folder()), "user"),
      items_(data::IdMaps(scorer.store().folder()), "item") {
  const auto items = static_cast<int64_t>(data::items_that_occur(log_).size());
  if (items == 0) return;  // the store does not say which it has
  last_item_ = items - 1;
  for (size_t a = 0; a < scorer.store().schema().attributes.size(); ++a) {  // items to come
    const auto known = static_cast<int64_t>(scorer.store().attribute_map(a).size());
    last_item_ = std::max(last_item_, known - 1);
  }
}

int64_t Questions::require_item(int64_t item, const std::string& where) const {
  if (item >= 0 && item <= last_item_) return item;
  fail(ErrorCode::kOutOfRange,
       fmt::format("{}: item {} is none of {}{}", where, item, scorer_.store().folder(),
                   last_item_ == kAnyItem ? "" : fmt::format(", which go up to {}", last_item_)));
}

std::vector<data::CandidateQuery> Questions::read_pairs(const std::string& path) const {
  std::vector<data::ColumnRequest> requests = {users_.request("user"), items_.request("item")};
  const bool with_time = data::has_column(path, "time", tables_);
  if (with_time) requests.push_back({"time", data::ColumnRole::kTime});
  std::vector<data::CandidateQuery> questions;
  read_rows(path, requests, tables_,
            [&](const data::RawBlock& block, size_t row, const std::string& where) {
              const int64_t time = with_time ? seconds_of(block.columns[2], row, where) : kAfterAll;
              questions.push_back(
                  {.user = users_.number(block.columns[0], row, where),
                   .item = require_item(items_.number(block.columns[1], row, where), where),
                   .time = time});
            });
  return questions;
}

void Questions::read_numbers(const std::string& path,
                             std::vector<data::CandidateQuery>& questions) const {
  const data::SampleSchema& schema = scorer_.store().schema();
  const auto wanted = [&](const data::NumberConfig& number) {
    const auto in = [&](const std::vector<std::string>& names) {
      return std::ranges::find(names, number.name) != names.end();
    };
    return !number.outcome && (in(schema.candidate_numbers) || in(schema.history_numbers));
  };
  for (size_t n = 0; n < schema.numbers.size(); ++n) {
    const std::string& name = schema.numbers[n].name;
    if (!wanted(schema.numbers[n])) continue;
    if (!data::has_column(path, name, tables_)) {
      base::log_warning(fmt::format(
          "{}: has no column `{}`, which the model reads of candidates; it counts as missing", path,
          name));
      continue;
    }
    const auto reader = data::open_table(path, {{name, data::ColumnRole::kNumber}}, tables_);
    size_t row = 0;
    data::RawBlock block;
    while (reader->read(block)) {
      const data::RawColumn& column = block.columns[0];
      for (size_t r = 0; r < block.rows && row < questions.size(); ++r, ++row) {
        std::vector<float>& numbers = questions[row].numbers;
        numbers.resize(schema.numbers.size(), std::numeric_limits<float>::quiet_NaN());
        if (!column.is_valid(r)) continue;
        numbers[n] = static_cast<float>(column.numbers[r]);
        if (!std::isinf(numbers[n])) continue;
        fail(ErrorCode::kCorrupt, fmt::format("{} has {} as `{}`; numbers are finite",
                                              row_of(path, row), column.numbers[r], name));
      }
    }
  }
}

/// "After the last event" becomes a time that has an hour of day.
void Questions::settle(const std::string& where, data::CandidateQuery& q) const {
  const int64_t last = log_.last_event_of(q.user);
  if (last < 0) {
    fail(ErrorCode::kOutOfRange, fmt::format("{}: user {} has no events in {}", where,
                                             users_.text(q.user), scorer_.store().folder()));
  }
  q.organic = scorer_.organic();
  if (q.time != kAfterAll) return;
  q.time = std::min(log_.at(last, &data::EventStore::timestamps), kAfterAll - 1) + 1;
}

void Questions::doubt(const std::string& where,
                      std::span<const data::CandidateQuery> questions) const {
  constexpr int64_t kYear = 365 * 86400;
  const int64_t end = log_.last_time();
  int64_t late = 0, early = 0;
  for (const data::CandidateQuery& q : questions) {
    late += q.time > end && q.time - end > kYear ? 1 : 0;
    const int64_t first = log_.first_event_of(q.user);
    early += q.time <= log_.at(first, &data::EventStore::timestamps) ? 1 : 0;
  }
  if (late > 0) {
    base::log_warning(fmt::format(
        "{}: {} of {} times are more than a year after the log, which ends at {}; times count "
        "seconds, as the store does, and may be left out: then all that happened counts",
        where, late, questions.size(), end));
  }
  if (early > 0) {
    base::log_warning(fmt::format(
        "{}: {} of {} times are before the first event of their user, who is scored "
        "without a history; times count seconds, as the store does, whose last is {}, and "
        "may be left out: then all that happened counts",
        where, early, questions.size(), end));
  }
}

std::vector<data::CandidateQuery> Questions::pairs(const std::string& path) const {
  std::vector<data::CandidateQuery> questions = read_pairs(path);
  if (questions.empty()) {
    base::log_warning(
        fmt::format("{}: has no rows, so nothing is scored; a row is a user, an item and, if "
                    "histories are to end there, a time",
                    path));
  }
  read_numbers(path, questions);
  for (size_t i = 0; i < questions.size(); ++i) settle(row_of(path, i), questions[i]);
  doubt(path, questions);
  return questions;
}

std::vector<data::CandidateQuery> Questions::of_users(std::span<const std::string> users,
                                                      const std::string& path,
                                                      std::optional<int64_t> time) const {
  std::vector<data::CandidateQuery> questions;
  const auto add = [&](int64_t user, const std::string& where) {
    questions.push_back({.user = user, .time = time.value_or(kAfterAll)});
    settle(where, questions.back());
  };
  for (const std::string& user : users) add(users_.number(user, "--user"), "--user");
  if (!path.empty()) {
    read_rows(path, {users_.request("user")}, tables_,
              [&](const data::RawBlock& block, size_t row, const std::string& where) {
                add(users_.number(block.columns[0], row, where), where);
              });
  }
  if (questions.empty()) {
    base::log_warning(fmt::format("{}: has no rows, so nothing is scored; a row is a user", path));
  }
  doubt("--time", questions);
  return questions;
}

}  // namespace segue::train
