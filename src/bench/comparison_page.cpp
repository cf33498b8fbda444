#include "bench/comparison_page.h"

#include <algorithm>
#include <map>
#include <set>
#include <sstream>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "bench/pictures.h"
#include "report/page/html_report.h"

namespace segue::bench {
namespace {

using Json = nlohmann::ordered_json;
using report::escape_html;

std::vector<Json> read_rows(const std::string& path) {
  if (!base::exists(path)) fail(ErrorCode::kNotFound, path + ": there is no such file of rows");
  std::vector<Json> rows;
  std::istringstream text(base::read_file(path));
  for (std::string line; std::getline(text, line);) {
    rows.push_back(Json::parse(line, nullptr, false));
    if (rows.back().is_object()) continue;
    fail(ErrorCode::kCorrupt, fmt::format("{}:{}: no JSON object", path, rows.size()));
  }
  return rows;
}

/// What goes wrong with one line is said with its place.
template <class Work>
void for_rows(const std::string& path, const Work& work) {
  size_t count = 0;
  for (const Json& row : read_rows(path)) {
    ++count;
    try {
      work(row);
    } catch (const Json::exception& error) {
      fail(ErrorCode::kCorrupt,
           fmt::format("{}:{}: not the row that was expected: {}", path, count, error.what()));
    }
  }
}

std::string word(const Json& row, const char* key) { return row.at(key).get<std::string>(); }

// ---- the map ----

struct MapCell {
  int64_t sequences = 0, length = 0, head_dim = 0;
  double seconds = 0, tflops = 0, of_peak = 0, of_product = 0;
  std::string not_run = {};
};
struct MapRows {
  // [head width, direction] -> [length, sequences]
  std::map<std::pair<int64_t, std::string>, std::map<std::pair<int64_t, int64_t>, MapCell>> parts;
  std::string machine;
};

MapRows read_map(const std::string& path) {
  MapRows all;
  for_rows(path, [&](const Json& row) {
    const Json& shape = row.at("shape");
    MapCell cell{shape.at("sequences"), shape.at("length"), shape.at("head_dim")};
    if (row.contains("not_run")) {
      cell.not_run = word(row, "not_run");
    } else {
      cell.seconds = row.at("median_s");
      cell.tflops = row.at("gflops_per_s").get<double>() / 1e3;
      cell.of_peak = row.value("share_of_peak", 0.0);
      cell.of_product = row.value("share_of_gemm", 0.0);
    }
    constexpr size_t kName = std::string_view("attention ").size();
    all.parts[{cell.head_dim, word(row, "name").substr(kName)}][{cell.length, cell.sequences}] =
        cell;
    all.machine = row.value("gpu", row.value("cpu", ""));
  });
  return all;
}

HeatMap::Cell shown(const MapCell& cell) {
  if (!cell.not_run.empty()) return {"–", "not run: " + cell.not_run};
  return {
      fmt::format("{:.{}f}", cell.tflops, cell.tflops < 10 ? 1 : 0),
      fmt::format("{} x {}, heads of {}: {:.4g} ms, {:.1f} TFLOP/s, {:.1f} % of peak, {:.1f} % of "
                  "a product",
                  cell.sequences, cell.length, cell.head_dim, 1e3 * cell.seconds, cell.tflops,
                  100 * cell.of_peak, 100 * cell.of_product),
      cell.of_peak > 0 ? cell.of_peak : cell.of_product};
}

// ---- the page ----

std::string section(const std::string& title, const std::string& text, const std::string& body) {
  return fmt::format(
      "<h2>{}</h2>\n<p class=\"soft\">{}</p>\n<div class=\"scroll\" "
      "style=\"max-height:none\">{}</div>\n",
      escape_html(title), escape_html(text), body);
}

Bar experiment_bar(const Json& row) {
  const std::string name = word(row, "name");
  if (row.contains("not_run")) return {name, "not run: " + word(row, "not_run"), 0};
  const double tflops = row.at("gflops_per_s").get<double>() / 1e3;
  std::string text = fmt::format("{:.4g} TFLOP/s", tflops);
  if (row.contains("mfu")) text += fmt::format(", MFU {:.1f} %", 100 * row["mfu"].get<double>());
  if (row.contains("samples_per_s")) {
    text += fmt::format(", {:.0f} samples/s", row["samples_per_s"].get<double>());
  }
  if (row.contains("speed_up")) text += fmt::format(", {:.2f}x", row["speed_up"].get<double>());
  if (row.contains("memory_gib"))
    text += fmt::format(", {:.1f} GiB", row["memory_gib"].get<double>());
  return {name, text, tflops};
}

std::string experiments_part(const std::string& path) {
  std::vector<std::pair<std::string, std::vector<Bar>>> workloads;
  for_rows(path, [&](const Json& row) {
    const std::string title =
        fmt::format("{}: lengths {}, ids {}, {} rank(s), {}",
                    row.value("preset", row.value("config", "")), word(row, "lengths"),
                    word(row, "ids"), word(row, "ranks"), row.value("gpu", row.value("cpu", "")));
    if (workloads.empty() || workloads.back().first != title) workloads.push_back({title, {}});
    workloads.back().second.push_back(experiment_bar(row));
  });
  std::string out;
  for (const auto& [title, all] : workloads) {
    out += section(title,
                   "Each line adds one thing to those above it; TFLOP/s of real, jagged work by "
                   "formula, all ranks together.",
                   bars(all));
  }
  return out;
}

struct Topic {
  std::string unit, text, differs;
  std::vector<Bar> all;
  std::vector<std::string> sources;
};

/// The figure of the first row that has all the values asked for, at its top or in its shape.
const Json* matching(const std::vector<Json>& rows, const Json& where) {
  const auto fits = [&](const Json& row) {
    return !row.contains("not_run") && std::ranges::all_of(where.items(), [&](const auto& item) {
      const Json& place = row.contains(item.key()) ? row : row.at("shape");
      return place.contains(item.key()) && place[item.key()] == item.value();
    });
  };
  const auto row = std::ranges::find_if(rows, fits);
  return row == rows.end() ? nullptr : &*row;
}

std::string figure_text(double value, const std::string& unit, const Json& line) {
  const std::string text = fmt::format("{:.4g} {}", value, unit);
  return line.contains("note") ? text + ": " + word(line, "note") : text;
}

void add_ours(const std::string& folder, const Json& line, Topic& topic) {
  const std::string file = folder + "/" + word(line, "rows") + ".jsonl";
  const std::vector<Json> rows = base::exists(file) ? read_rows(file) : std::vector<Json>();
  const Json* const row = matching(rows, line.at("where"));
  if (row == nullptr) {
    topic.all.push_back({"Segue", "not measured: " + file + " has no such row", 0});
    return;
  }
  const double value = row->at(word(line, "figure")).get<double>() * line.value("scale", 1.0);
  topic.all.push_back({"Segue, 1 x " + row->value("gpu", row->value("cpu", "")),
                       figure_text(value, topic.unit, line), value});
  topic.sources.push_back(fmt::format("Segue: {} ({}), {}", word(*row, "command"),
                                      word(*row, "commit"), word(*row, "time").substr(0, 10)));
}

void add_published(const Json& line, Topic& topic) {
  const double value = line.at("value");
  topic.all.push_back({fmt::format("{}, {}", word(line, "system"), word(line, "hardware")),
                       fmt::format("{:.4g} {} {}", value, topic.unit, line.value("note", "")),
                       value,
                       /*ours=*/false});
  topic.sources.push_back(
      fmt::format("{}: {}, {}", word(line, "system"), word(line, "source"), word(line, "date")));
}

std::string published_part(const std::string& folder, const std::string& path) {
  std::vector<std::pair<std::string, Topic>> topics;
  for_rows(path, [&](const Json& line) {
    const std::string name = word(line, "topic");
    if (line.contains("unit")) {
      topics.push_back(
          {name, {word(line, "unit"), word(line, "text"), word(line, "differs"), {}, {}}});
      return;
    }
    const auto topic = std::ranges::find(topics, name, [](const auto& t) { return t.first; });
    if (topic == topics.end()) {
      fail(ErrorCode::kCorrupt,
           fmt::format("{}: topic `{}` is not introduced by a line with its unit", path, name));
    }
    line.contains("rows") ? add_ours(folder, line, topic->second)
                          : add_published(line, topic->second);
  });
  std::string out;
  for (const auto& [name, topic] : topics) {
    out += section(name, topic.text, bars(topic.all));
    out += fmt::format("<p><b>What differs.</b> {}</p>\n<details><summary>Sources</summary><ul>",
                       escape_html(topic.differs));
    std::set<std::string> said;
    for (const std::string& source : topic.sources) {
      if (said.insert(source).second) out += fmt::format("<li>{}</li>", escape_html(source));
    }
    out += "</ul></details>\n";
  }
  return out;
}

}  // namespace

std::string map_picture(const std::string& rows_file) {
  const MapRows all = read_map(rows_file);
  std::vector<HeatMap> maps;
  double most = 0.01;
  // Forward stands left of backward.
  std::vector<std::pair<int64_t, std::string>> order;
  for (const auto& [part, cells] : all.parts) order.push_back(part);
  std::ranges::sort(order, [](const auto& a, const auto& b) {
    return a.first != b.first ? a.first < b.first : a.second > b.second;
  });
  for (const auto& part : order) {
    const auto& cells = all.parts.at(part);
    std::set<int64_t> lengths, sequences;
    for (const auto& [at, cell] : cells) {
      lengths.insert(at.first);
      sequences.insert(at.second);
    }
    HeatMap map;
    map.title = fmt::format("{}, heads of {}, TFLOP/s", part.second, part.first);
    for (const int64_t n : sequences) map.columns.push_back(std::to_string(n));
    for (const int64_t n : lengths) {
      map.rows.push_back(std::to_string(n));
      auto& line = map.cells.emplace_back();
      for (const int64_t count : sequences) {
        const auto found = cells.find({n, count});
        line.push_back(found == cells.end() ? HeatMap::Cell{} : shown(found->second));
        most = std::max(most, line.back().share.value_or(0));
      }
    }
    maps.push_back(std::move(map));
  }
  return heat_maps(maps, "sequences", "tokens",
                   fmt::format("of the stated peak, or of a measured product; {}", all.machine),
                   most);
}

std::string map_csv(const std::string& rows_file) {
  std::string out =
      "head_dim,direction,sequences,length,ms,tflops_per_s,share_of_peak,share_of_product,not_"
      "run\n";
  for (const auto& [part, cells] : read_map(rows_file).parts) {
    for (const auto& [at, c] : cells) {
      out += fmt::format("{},{},{},{},", part.first, part.second, c.sequences, c.length);
      out += c.not_run.empty() ? fmt::format("{:.6g},{:.6g},{:.4g},{:.4g},\n", 1e3 * c.seconds,
                                             c.tflops, c.of_peak, c.of_product)
                               : fmt::format(",,,,\"{}\"\n", c.not_run);
    }
  }
  return out;
}

std::string comparison_page(const std::string& folder, const std::string& made) {
  const std::string experiments = folder + "/experiments.jsonl";
  const std::string published = folder + "/published.jsonl", map = folder + "/map.jsonl";
  std::string out = report::page_head("Segue, measured and beside published figures", made);
  out += "<main>\n";
  if (base::exists(published)) out += published_part(folder, published);
  if (base::exists(experiments)) out += experiments_part(experiments);
  if (base::exists(map)) {
    out += section("Attention by number of sequences, length and width of heads",
                   "TFLOP/s; half of every score matrix counts, backward 2.5 times as much as "
                   "forward. A pointer on a cell shows more.",
                   map_picture(map));
  }
  return out +
         "<footer>Bars of other systems are grey. Figures are those of the rows and sources "
         "named; nothing is converted unless a note says so.</footer>\n</main></body></html>\n";
}

}  // namespace segue::bench
