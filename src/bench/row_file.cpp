#include "bench/row_file.h"

#include <algorithm>
#include <sstream>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"

namespace segue::bench {
namespace {

using Json = nlohmann::ordered_json;

}  // namespace

RowFile::Kept RowFile::parse(const std::string& text) {
  const Json row = Json::parse(text);
  Kept kept{row.value("gpu", row.at("cpu").get<std::string>()), text, !row.contains("not_run")};
  for (const auto& [key, value] : row.items()) {  // name and labels stand before the shape
    if (key == "shape") return kept;
    kept.thing += fmt::format("\n{}={}", key, value.get<std::string>());
  }
  return kept;
}

RowFile::RowFile(std::string path) : path_(std::move(path)) {
  if (path_.empty() || !base::exists(path_)) return;
  std::istringstream text(base::read_file(path_));
  size_t count = 0;
  for (std::string line; std::getline(text, line);) {
    ++count;
    try {
      rows_.push_back(parse(line));
    } catch (const Json::exception& error) {
      fail(
          ErrorCode::kCorrupt,
          fmt::format("{}:{}: no row of `segue bench --json`: {}; remove the line, or name another "
                      "file",
                      path_, count, error.what()));
    }
  }
}

const RowFile::Kept* RowFile::find(const std::string& row) const {
  const auto same = std::ranges::find(rows_, parse(row).thing, &Kept::thing);
  return same == rows_.end() ? nullptr : &*same;
}

bool RowFile::has(const std::string& row) const {
  const Kept* const kept = find(row);
  return kept != nullptr && kept->measured;
}

std::optional<double> RowFile::figure(const std::string& row, const std::string& name) const {
  const Kept* const kept = find(row);
  if (kept == nullptr) return std::nullopt;
  const Json json = Json::parse(kept->text);
  return json.contains(name) ? std::optional(json[name].get<double>()) : std::nullopt;
}

void RowFile::put(const std::string& row) {
  Kept made = parse(row);
  const auto same = std::ranges::find(rows_, made.thing, &Kept::thing);
  if (same == rows_.end()) {
    rows_.push_back(std::move(made));
  } else {
    *same = std::move(made);
  }
  if (path_.empty()) return;
  std::string text;
  for (const Kept& kept : rows_) text += kept.text + "\n";
  base::write_file(path_, text);
}

}  // namespace segue::bench
