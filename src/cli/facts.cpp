#include "cli/facts.h"

#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/json_line.h"
#include "base/progress.h"

namespace segue::cli {
namespace {

std::string key_of(std::string name) {
  std::replace_if(
      name.begin(), name.end(), [](char c) { return c == ' ' || c == '-'; }, '_');
  return name;
}

/// Rows of equal width; the first column and words to the left, numbers to the right.
std::string aligned(const FactTable& table) {
  const size_t columns = std::max<size_t>(1, table.columns.size());
  size_t name_width = 0;
  std::vector<size_t> widths(columns);
  for (size_t c = 0; c < table.columns.size(); ++c) widths[c] = table.columns[c].size();
  for (const FactTable::Row& row : table.rows) {
    name_width = std::max(name_width, row.name.size());
    for (size_t c = 0; c < row.facts.size(); ++c) {
      // A lone word needs no column.
      if (table.columns.empty() && row.facts[c].is_text()) continue;
      widths[c] = std::max(widths[c], row.facts[c].text().size());
    }
  }
  std::string text;
  if (!table.columns.empty()) {
    text += fmt::format("  {:<{}}", "", name_width);
    for (size_t c = 0; c < columns; ++c)
      text += fmt::format("  {:>{}}", table.columns[c], widths[c]);
    text += "\n";
  }
  for (const FactTable::Row& row : table.rows) {
    text += fmt::format("  {:<{}}", row.name, name_width);
    for (size_t c = 0; c < row.facts.size(); ++c) {
      text += row.facts[c].is_text() ? fmt::format("  {:<{}}", row.facts[c].text(), widths[c])
                                     : fmt::format("  {:>{}}", row.facts[c].text(), widths[c]);
    }
    text.erase(text.find_last_not_of(' ') + 1);
    text += "\n";
  }
  return text;
}

}  // namespace

Fact Fact::real(double value, int decimals) {
  Fact f(int64_t{0});
  f.kind_ = Kind::kReal;
  f.real_ = value;
  f.decimals_ = decimals;
  return f;
}

Fact Fact::share(double value) {
  Fact f = real(value, 1);
  f.kind_ = Kind::kShare;
  return f;
}

Fact Fact::with_words(std::string words) const {
  Fact f = *this;
  f.text_ = std::move(words);
  return f;
}

std::string Fact::text() const {
  if (!text_.empty()) return text_;
  switch (kind_) {
    case Kind::kCount:
      return base::with_separators(std::to_string(count_));
    case Kind::kReal:
      return base::with_separators(fmt::format("{:.{}f}", real_, decimals_));
    case Kind::kShare:
      return fmt::format("{:.{}f} %", 100 * real_, decimals_);
    case Kind::kText:
      break;
  }
  return text_;
}

FactTable& FactSheet::table(std::string title, std::vector<std::string> columns) {
  tables_.push_back({.title = std::move(title), .columns = std::move(columns), .rows = {}});
  return tables_.back();
}

std::string FactSheet::text() const {
  std::string text;
  for (const FactTable& table : tables_) {
    if (!text.empty()) text += "\n";
    text += table.title + "\n" + aligned(table);
  }
  return text;
}

std::string FactSheet::json() const {
  using Json = nlohmann::ordered_json;
  const auto value = [](const Fact& fact) -> Json {
    if (fact.kind_ == Fact::Kind::kCount) return fact.count_;
    if (fact.kind_ == Fact::Kind::kText) return fact.text_;
    return fact.real_;
  };
  Json all = Json::object();
  for (const FactTable& table : tables_) {
    Json& object = all[key_of(table.title)] = Json::object();
    for (const FactTable::Row& row : table.rows) {
      if (table.columns.empty()) {
        object[key_of(row.name)] = value(row.facts[0]);
        continue;
      }
      Json& line = object[key_of(row.name)] = Json::object();
      for (size_t c = 0; c < row.facts.size(); ++c) {
        line[key_of(table.columns[c])] = value(row.facts[c]);
      }
    }
  }
  return base::json_line(all) + "\n";
}

}  // namespace segue::cli
