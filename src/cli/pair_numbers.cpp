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

void read_pair_numbers(const std::string& path, const data::SampleSchema& schema,
                       std::vector<data::CandidateQuery>& questions) {
  data::TableOptions options;
  options.parquet = parquet();
  const auto wanted = [&](const data::NumberConfig& number) {
    const auto in = [&](const std::vector<std::string>& names) {
      return std::ranges::find(names, number.name) != names.end();
    };
    return !number.outcome && (in(schema.candidate_numbers) || in(schema.history_numbers));
  };
  for (size_t n = 0; n < schema.numbers.size(); ++n) {
    const std::string& name = schema.numbers[n].name;
    if (!wanted(schema.numbers[n])) continue;
    if (!data::has_column(path, name, options)) {
      base::log_warning(fmt::format(
          "{}: has no column `{}`, which the model reads of candidates; it counts as missing", path,
          name));
      continue;
    }
    const std::unique_ptr<data::TableReader> reader =
        data::open_table(path, {{name, data::ColumnRole::kNumber}}, options);
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
