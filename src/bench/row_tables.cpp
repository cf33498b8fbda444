#include "bench/row_tables.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <sstream>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/progress.h"

namespace segue::bench {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kBegin = "<!-- rows: ", kWithout = "; without ", kClose = " -->";
constexpr std::string_view kEnd = "<!-- end -->";

struct Line {
  std::string name;
  std::map<std::string, std::string> cells;  // by column
  std::string thing = {};                    // what was measured: name, labels and shape
  bool sustained = false;
};

/// What one file of rows says.
struct Table {
  std::string first = "what";  // heading of the names
  std::vector<std::string> columns, ceilings, commands, origins;
  std::vector<Line> lines;
};

void add_new(std::vector<std::string>& list, const std::string& text) {
  if (std::ranges::find(list, text) == list.end()) list.push_back(text);
}

void set(Table& table, Line& line, std::string column, const std::string& text) {
  std::ranges::replace(column, '_', ' ');
  add_new(table.columns, column);
  line.cells[column] = text;
}

/// Three or four digits that count: 8,192; 651.3; 35.56; 0.233.
std::string number(double value) {
  const double size = std::abs(value);
  if (value == std::floor(value) || size >= 1000) {
    return base::with_separators(fmt::format("{:.0f}", value));
  }
  return fmt::format("{:.{}f}", value, size >= 100 ? 1 : size >= 10 ? 2 : 3);
}

std::string text_of(const Json& value) {
  return value.is_number() ? number(value.get<double>()) : value.get<std::string>();
}

/// What a bench has measured of one thing. Figures of two protocols stand in columns of their own.
void set_figures(Table& table, Line& line, const Json& row) {
  const std::string suffix = line.sustained ? " sustained" : "";
  const auto figure = [&](const std::string& key, const std::string& column, double unit) {
    if (!row.contains(key)) return;
    const double value = row[key].get<double>() / unit;
    const bool percent = unit == 0.01;
    set(table, line, column + suffix, percent ? fmt::format("{:.0f} %", value) : number(value));
  };
  if (row.contains("not_run")) return set(table, line, "not run", text_of(row["not_run"]));
  if (!row.contains("speed_up")) row.at("median_s");  // what is neither measured nor reckoned
  figure("median_s", "ms", 1e-3);
  figure("spread", "spread", 0.01);
  figure("gflops_per_s", "TFLOP/s", 1e3);
  figure("share_of_gemm", "of product", 0.01);
  figure("gbytes_per_s", "GB/s", 1);
  figure("share_of_copy", "of copy", 0.01);
  for (const std::string item : {"samples", "tokens", "rows", "ids"}) {
    figure(item + "_per_s", item + "/s", 1);
  }
  figure("joules_per_item", "J each", 1);
  for (const auto& [key, column] : {std::pair("mfu", "MFU"), {"hfu", "HFU"}}) {
    if (!row.contains(key)) continue;  // what others publish to a tenth
    set(table, line, column, fmt::format("{:.1f} %", 100 * row[key].get<double>()));
  }
  figure("memory_gib", "GiB", 1);
  figure("ms_before", "ms uneven", 1);
  figure("ms_after", "ms balanced", 1);
  figure("uneven_before", "uneven", 1);
  figure("uneven_after", "balanced", 1);
  figure("speed_up", "speed-up", 1);
}

void add_origin(Table& table, const Json& row, const std::string& machine) {
  const auto word = [&](const char* key) { return row.at(key).get<std::string>(); };
  add_new(table.commands, word("command"));
  add_new(table.origins, fmt::format("{}segue {} ({}), {}", machine, word("version"),
                                     word("commit"), word("time").substr(0, 10)));
}

void add_bench_row(Table& table, const Json& row) {
  Line line{row.at("name").get<std::string>(), {}};
  add_origin(table, row,
             fmt::format("{}, {} threads, ", row.value("gpu", row.value("cpu", "")),
                         number(row.at("threads").get<double>())));
  line.sustained = row.value("protocol", "") == "sustained";
  const auto ceiling = [&](const char* rate, double unit, const char* text) {
    if (line.sustained) line.name += ", sustained,";
    add_new(table.ceilings, line.name + " " + number(row.at(rate).get<double>() / unit) + text);
  };
  if (line.name == "gemm") return ceiling("gflops_per_s", 1e3, " TFLOP/s");
  if (line.name == "copy") return ceiling("gbytes_per_s", 1, " GB/s");
  for (const auto& [key, value] : row.items()) {  // labels stand between name and shape
    if (key == "shape") break;
    if (key != "name") set(table, line, key, text_of(value));
  }
  for (const auto& [key, value] : row.at("shape").items()) set(table, line, key, text_of(value));
  line.thing = line.name;
  for (const auto& [column, text] : line.cells) line.thing += fmt::format(" {}={}", column, text);
  set_figures(table, line, row);
  // Backward goes into the line of its forward.
  constexpr std::string_view kForward = "forward";
  Line* last = table.lines.empty() ? nullptr : &table.lines.back();
  const size_t at = last == nullptr ? std::string::npos : last->name.find(kForward);
  if (at == std::string::npos ||
      line.name != std::string(last->name).replace(at, kForward.size(), "backward")) {
    return table.lines.push_back(std::move(line));
  }
  last->name.insert(at + kForward.size(), " / backward");
  for (const auto& [column, text] : line.cells) {
    if (last->cells[column] != text) last->cells[column] += " / " + text;
  }
}

void add_plan_row(Table& table, const Json& row) {
  table.first = "ranks";
  add_origin(table, row.at("made"), "");
  for (const auto& [ranks, values] : row.at("ranks").items()) {
    Line line{ranks, {}};
    for (const auto& [key, value] : values.items()) set(table, line, key, text_of(value));
    table.lines.push_back(std::move(line));
  }
}

/// What was measured in both ways becomes one line.
void join_protocols(Table& table) {
  std::vector<Line> lines;
  for (Line& line : table.lines) {
    const auto rested = std::ranges::find_if(lines, [&](const Line& other) {
      return line.sustained && !other.sustained && other.thing == line.thing;
    });
    if (rested == lines.end()) {
      lines.push_back(std::move(line));
    } else {
      rested->cells.merge(line.cells);
    }
  }
  table.lines = std::move(lines);
}

Table read_table(const std::string& path) {
  Table table;
  std::istringstream text(base::read_file(path));
  size_t count = 0;
  for (std::string line; std::getline(text, line);) {
    ++count;
    try {
      const Json row = Json::parse(line);
      row.contains("made") ? add_plan_row(table, row) : add_bench_row(table, row);
    } catch (const Json::exception& error) {
      fail(ErrorCode::kCorrupt,
           fmt::format("{}:{}: no row of `segue bench --json`: {}", path, count, error.what()));
    }
  }
  if (table.lines.empty()) fail(ErrorCode::kCorrupt, path + " has no rows");
  join_protocols(table);
  return table;
}

/// `without` is a list of columns with a comma behind each.
std::string text_of(Table table, const std::string& without) {
  std::erase_if(table.columns, [&](const std::string& column) {
    return (" " + without).find(" " + column + ",") != std::string::npos;
  });
  std::vector<std::string> everywhere;  // what is the same in all lines is no column
  std::erase_if(table.columns, [&](const std::string& column) {
    const std::string text = table.lines[0].cells[column];
    const bool same = table.lines.size() > 1 && std::ranges::all_of(table.lines, [&](Line& line) {
                        return line.cells[column] == text;
                      });
    if (same) everywhere.push_back(column + " " + text);
    return same;
  });
  std::string text =
      fmt::format("| {} | {} |\n|---|", table.first, fmt::join(table.columns, " | "));
  for (size_t c = 0; c < table.columns.size(); ++c) text += "---|";
  for (Line& line : table.lines) {
    text += fmt::format("\n| {} |", line.name);
    for (const std::string& column : table.columns)
      text += fmt::format(" {} |", line.cells[column]);
  }
  text += "\n\n";
  if (!everywhere.empty()) text += fmt::format("All: {}. ", fmt::join(everywhere, ", "));
  if (!table.ceilings.empty())
    text += fmt::format("Ceilings: {}. ", fmt::join(table.ceilings, ", "));
  return text + fmt::format("By `{}`; {}.\n", fmt::join(table.commands, "`, `"),
                            fmt::join(table.origins, "; "));
}

}  // namespace

FilledTables fill_tables(const std::string& markdown, const std::string& folder) {
  FilledTables filled;
  std::string name, before, table;  // of the table that we are in; no name: in none
  size_t count = 0;
  const auto check = [&](bool good, ErrorCode code, const std::string& what) {
    if (!good) fail(code, fmt::format("{}:{}: {}", markdown, count, what));
  };
  std::istringstream text(base::read_file(markdown));
  for (std::string line; std::getline(text, line);) {
    ++count;
    if (line.starts_with(kBegin)) {
      check(name.empty(), ErrorCode::kCorrupt, fmt::format("table `{}` has no `{}`", name, kEnd));
      check(line.ends_with(kClose), ErrorCode::kCorrupt,
            fmt::format("the marker does not end in `{}`", kClose));
      name = line.substr(kBegin.size(), line.size() - kBegin.size() - kClose.size());
      std::string without;
      if (const size_t cut = name.find(kWithout); cut != std::string::npos) {
        without = name.substr(cut + kWithout.size()) + ",";
        name.resize(cut);
      }
      const std::string rows = folder + "/" + name + ".jsonl";
      check(name.find('/') == std::string::npos && base::exists(rows), ErrorCode::kNotFound,
            fmt::format("table `{}` has no rows: there is no {}", name, rows));
      table = text_of(read_table(rows), without);
      before.clear();
      filled.text += line + "\n" + table;
    } else if (line == kEnd) {
      check(!name.empty(), ErrorCode::kCorrupt, fmt::format("`{}` ends no table", kEnd));
      if (before != table) filled.changed.push_back(name);
      name.clear();
      filled.text += line + "\n";
    } else {
      (name.empty() ? filled.text : before) += line + "\n";
    }
  }
  check(name.empty(), ErrorCode::kCorrupt, fmt::format("table `{}` has no `{}`", name, kEnd));
  return filled;
}

}  // namespace segue::bench
