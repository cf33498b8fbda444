#include "data/log/skipped_rows.h"

#include <algorithm>
#include <charconv>

#include <fmt/format.h>

#include "base/error.h"

namespace segue::data {
SkipLimit SkipLimit::parse(std::string_view text) {
  SkipLimit limit;
  limit.text = text;
  const bool per_cent = text.ends_with('%');
  const std::string_view number = text.substr(0, text.size() - (per_cent ? 1 : 0));
  const char* const end = number.data() + number.size();
  const auto [stop, error] = per_cent ? std::from_chars(number.data(), end, limit.share)
                                      : std::from_chars(number.data(), end, limit.rows);
  const bool fine = error == std::errc() && stop == end && limit.rows >= 0 && limit.share >= 0 &&
                    limit.share <= 100;
  if (!fine) {
    fail(ErrorCode::kInvalidArgument,
         fmt::format("--skip-bad {}: a share of the rows, such as 0.1%, or a number of them, such "
                     "as 25",
                     text));
  }
  limit.share /= 100;
  return limit;
}

bool SkipLimit::allows(int64_t skipped, int64_t of_rows) const {
  return skipped <= std::max(rows, static_cast<int64_t>(share * static_cast<double>(of_rows)));
}

void SkippedRows::add(const std::string& file, int64_t row, const RowFault& fault) {
  if (count_ == 0) first_ = fmt::format("{}: row {}", file, row + 1);
  if (count_ < kListed) {
    list_ += fmt::format("{},{},{},{}\n", csv_field(file), row + 1, csv_field(fault.column),
                         csv_field(fault.reason));
  }
  ++count_;
  ++rows_[{fault.column, fault.reason}];
}

std::string SkippedRows::Reason::words() const {
  return fault.column.empty() ? "the row " + fault.reason
                              : fmt::format("column \"{}\" {}", fault.column, fault.reason);
}

std::vector<SkippedRows::Reason> SkippedRows::reasons() const {
  std::vector<Reason> reasons;
  for (const auto& [key, rows] : rows_) reasons.push_back({{key.first, key.second}, rows});
  std::ranges::stable_sort(reasons, std::greater<>(), &Reason::rows);
  return reasons;
}

std::string SkippedRows::csv() const { return "file,row,column,reason\n" + list_; }

}  // namespace segue::data
