#include "cli/score_table.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/json_line.h"
#include "cli/parquet.h"

namespace segue::cli {
namespace {

std::string field_of(const data::TableColumn& column, size_t row) {
  if (column.is_text()) return data::csv_field(column.texts[row]);
  return column.is_real() ? fmt::format("{}", column.reals[row])
                          : std::to_string(column.integers[row]);
}

std::string jsonl_text(const ScoreTable& table) {
  std::string text;
  for (size_t row = 0; row < table.front().size(); ++row) {
    nlohmann::ordered_json line;
    for (const data::TableColumn& c : table) {
      if (c.is_text()) {
        line[c.name] = c.texts[row];
      } else if (c.is_real()) {
        line[c.name] = static_cast<double>(c.reals[row]);
      } else {
        line[c.name] = c.integers[row];
      }
    }
    text += base::json_line(line) + "\n";
  }
  return text;
}

}  // namespace

std::string csv_text(const ScoreTable& table) {
  std::string text;
  for (const data::TableColumn& c : table)
    text += (text.empty() ? "" : ",") + data::csv_field(c.name);
  text += '\n';
  for (size_t row = 0; row < table.front().size(); ++row) {
    for (size_t c = 0; c < table.size(); ++c) {
      if (c > 0) text += ',';
      text += field_of(table[c], row);
    }
    text += '\n';
  }
  return text;
}

void require_table_format(const std::string& path) {
  if (path.ends_with(".csv") || path.ends_with(".jsonl")) return;
  if (!path.ends_with(".parquet")) {
    fail(ErrorCode::kInvalidArgument,
         fmt::format("--out {}: scores are written as .csv, .jsonl or .parquet", path));
  }
  if (parquet() == nullptr) {
    fail(ErrorCode::kUnsupported,
         "this segue was built without Parquet; write .csv or .jsonl instead");
  }
}

void write_table(const std::string& path, const ScoreTable& table) {
  require_table_format(path);
  const data::ParquetSupport* support = path.ends_with(".parquet") ? parquet() : nullptr;
  if (support != nullptr) return support->write_table(path, table);
  base::write_file(path, path.ends_with(".csv") ? csv_text(table) : jsonl_text(table));
}

}  // namespace segue::cli
