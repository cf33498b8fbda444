#include "cli/pair_numbers.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>

#include <fmt/format.h>

#include "base/error.h"
#include "base/log.h"
#include "cli/parquet.h"

namespace segue::cli {
namespace {

/// Null: the file has no such column.
std::unique_ptr<data::TableReader> open_number(const std::string& path, const std::string& name) {
  data::TableOptions options;
  options.parquet = parquet();
  try {
    return data::open_table(path, {{name, data::ColumnRole::kNumber}}, options);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kConfig) throw;
    return nullptr;
  }
}

}  // namespace

void read_pair_numbers(const std::string& path, const data::SampleSchema& schema,
                       std::vector<data::CandidateQuery>& questions) {
  const auto wanted = [&](const data::NumberConfig& number) {
    const auto in = [&](const std::vector<std::string>& names) {
      return std::ranges::find(names, number.name) != names.end();
    };
    return !number.outcome && (in(schema.candidate_numbers) || in(schema.history_numbers));
  };
  for (size_t n = 0; n < schema.numbers.size(); ++n) {
    const std::string& name = schema.numbers[n].name;
    if (!wanted(schema.numbers[n])) continue;
    const std::unique_ptr<data::TableReader> reader = open_number(path, name);
    if (!reader) {
      base::log_warning(fmt::format(
          "{}: has no column `{}`, which the model reads of candidates; it counts as missing", path,
          name));
      continue;
    }
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
        fail(ErrorCode::kCorrupt,
             fmt::format("{}: row {} has {} as `{}`; numbers are finite", path,
                         block.first_row + static_cast<int64_t>(r) + 1, column.numbers[r], name));
      }
    }
  }
}

}  // namespace segue::cli
