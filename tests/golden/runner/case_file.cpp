#include "runner/case_file.h"

#include <cmath>
#include <sstream>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/config.h"
#include "base/error.h"

namespace segue::golden {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kF64 = "_f64";
constexpr int64_t kLargestSize = int64_t{1} << 31;

[[noreturn]] void corrupt(const std::string& message) { fail(ErrorCode::kCorrupt, message); }

[[noreturn]] void wrong_type(std::string_view key, std::string_view wanted, const Json& found) {
  corrupt(fmt::format("setting `{}` must be {}, not {}", key, wanted, found.dump()));
}

int64_t to_integer(std::string_view key, const Json& value) {
  if (value.is_number_integer()) return value.get<int64_t>();
  if (value.is_number_float()) {
    const double number = value.get<double>();
    if (std::abs(number) < 0x1p53 && number == std::trunc(number)) {
      return static_cast<int64_t>(number);
    }
  }
  wrong_type(key, "an integer", value);
}

double to_number(std::string_view key, const Json& value) {
  if (!value.is_number()) wrong_type(key, "a number", value);
  return value.get<double>();
}

std::string to_text(std::string_view key, const Json& value) {
  if (!value.is_string()) wrong_type(key, "a string", value);
  return value.get<std::string>();
}

template <class Convert>
auto to_list(std::string_view key, const Json& value, Convert convert) {
  std::vector<decltype(convert(key, value))> list;
  if (!value.is_array()) {
    list.push_back(convert(key, value));
  } else {
    for (const Json& item : value) list.push_back(convert(key, item));
  }
  return list;
}

const std::string& case_json(const base::SafetensorsFile& file, const std::string& name) {
  const auto found = file.metadata().find("case:" + name);
  if (found == file.metadata().end()) {
    corrupt(fmt::format("case `{}` is listed, but the metadata has no `case:{}`", name, name));
  }
  return found->second;
}

}  // namespace

Settings::Settings(const std::string& json_text) {
  try {
    auto parsed = std::make_shared<Json>(Json::parse(json_text));
    if (!parsed->is_object()) corrupt("the settings are not a JSON object");
    values_ = std::move(parsed);
  } catch (const Json::exception& error) {
    corrupt(fmt::format("the settings are not JSON: {}", error.what()));
  }
}

const Json* Settings::find(std::string_view key) const {
  const auto found = values_->find(key);
  return found == values_->end() ? nullptr : &*found;
}

const Json& Settings::get(std::string_view key) const {
  const Json* value = find(key);
  if (value == nullptr) corrupt(fmt::format("setting `{}` is missing", key));
  return *value;
}

bool Settings::has(std::string_view key) const { return find(key) != nullptr; }
int64_t Settings::integer(std::string_view key) const { return to_integer(key, get(key)); }
int64_t Settings::integer(std::string_view key, int64_t fallback) const {
  return has(key) ? integer(key) : fallback;
}
int64_t Settings::positive(std::string_view key) const {
  const int64_t value = integer(key);
  if (value <= 0 || value > kLargestSize) {
    corrupt(fmt::format("setting `{}` must be a positive size, not {}", key, value));
  }
  return value;
}
int64_t Settings::count(std::string_view key, int64_t fallback) const {
  const int64_t value = integer(key, fallback);
  if (value < 0 || value > kLargestSize) {
    corrupt(fmt::format("setting `{}` must be a size or 0, not {}", key, value));
  }
  return value;
}
bool Settings::flag(std::string_view key, bool fallback) const {
  const Json* value = find(key);
  if (value == nullptr) return fallback;
  return value->is_boolean() ? value->get<bool>() : to_integer(key, *value) != 0;
}
double Settings::number(std::string_view key) const { return to_number(key, get(key)); }
double Settings::number(std::string_view key, double fallback) const {
  return has(key) ? number(key) : fallback;
}
std::string Settings::text(std::string_view key) const { return to_text(key, get(key)); }
std::string Settings::text(std::string_view key, std::string fallback) const {
  return has(key) ? text(key) : std::move(fallback);
}
std::vector<int64_t> Settings::integers(std::string_view key) const {
  return to_list(key, get(key), to_integer);
}
std::vector<double> Settings::numbers(std::string_view key) const {
  return to_list(key, get(key), to_number);
}
std::vector<std::string> Settings::texts(std::string_view key) const {
  return to_list(key, get(key), to_text);
}

std::vector<std::pair<std::string, std::string>> Settings::pairs(std::string_view key) const {
  const Json& object = get(key);
  if (!object.is_object()) wrong_type(key, "an object", object);
  std::vector<std::pair<std::string, std::string>> list;
  for (const auto& item : object.items()) list.emplace_back(item.key(), to_text(key, item.value()));
  return list;
}

std::string Settings::json(std::string_view key) const { return get(key).dump(); }

double Settings::product(std::string_view key, double fallback) const {
  const Json* value = find(key);
  if (value == nullptr) return fallback;
  if (value->is_number()) return value->get<double>();
  std::istringstream factors(to_text(key, *value));
  double result = 1;
  std::string factor;
  while (std::getline(factors, factor, '*')) {
    std::istringstream text(factor);
    double number = 0;
    if (!(text >> number) || !(text >> std::ws).eof()) {
      wrong_type(key, "a number or a product of numbers", *value);
    }
    result *= number;
  }
  return result;
}

void Settings::require_number(std::string_view key, double built_in) const {
  const double value = number(key, built_in);
  if (value != built_in) {
    fail(ErrorCode::kUnsupported,
         fmt::format("setting `{}` is {}, but Segue has {} built in", key, value, built_in));
  }
}

void Settings::require_text(std::string_view key, std::string_view built_in) const {
  const std::string value = text(key, std::string(built_in));
  if (value != built_in) {
    fail(
        ErrorCode::kUnsupported,
        fmt::format("setting `{}` is `{}`, but this runner knows `{}` only", key, value, built_in));
  }
}

std::string to_string(const Shape& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

Case::Case(const base::SafetensorsFile& file, std::string name)
    : file_(&file),
      name_(std::move(name)),
      settings_(case_json(file, name_)),
      op_(settings_.text("op")),
      touched_(std::make_shared<std::set<std::string>>()) {}

bool Case::has(std::string_view tensor) const {
  return file_->find(fmt::format("{}/{}", name_, tensor)) != nullptr;
}

const base::SafetensorsEntry& Case::entry(std::string_view tensor) const {
  const std::string full_name = fmt::format("{}/{}", name_, tensor);
  touched_->insert(full_name);
  return file_->get(full_name);
}

Shape Case::shape(std::string_view tensor) const { return entry(tensor).shape; }

void Case::check_shape(std::string_view tensor, const Shape& expected_shape) const {
  const Shape& found = entry(tensor).shape;
  if (found != expected_shape) {
    corrupt(fmt::format("tensor `{}` has shape {}, but the settings ask for {}", tensor,
                        to_string(found), to_string(expected_shape)));
  }
}

Values Case::read(std::string_view tensor) const {
  const base::SafetensorsEntry& stored = entry(tensor);
  return {stored.to_doubles(), stored.shape, stored.dtype == "F64"};
}

Values Case::values(std::string_view tensor) const {
  Values stored = read(tensor);
  for (size_t i = 0; i < stored.data.size(); ++i) {
    if (!std::isfinite(stored.data[i])) {
      corrupt(fmt::format("tensor `{}`, an input, is not finite: element {} is {}", tensor, i,
                          stored.data[i]));
    }
  }
  return stored;
}

Values Case::values(std::string_view tensor, const Shape& expected_shape) const {
  check_shape(tensor, expected_shape);
  return values(tensor);
}

std::vector<int64_t> Case::ints(std::string_view tensor) const { return entry(tensor).to_ints(); }

std::vector<int64_t> Case::int_list(std::string_view tensor) const {
  const Shape& found = entry(tensor).shape;
  if (found.size() != 1) {
    corrupt(
        fmt::format("tensor `{}` has shape {}, but a list is expected", tensor, to_string(found)));
  }
  return ints(tensor);
}

std::vector<int64_t> Case::ints(std::string_view tensor, const Shape& expected_shape) const {
  check_shape(tensor, expected_shape);
  return ints(tensor);
}

Values Case::reference(std::string_view tensor) const {
  const std::string wide = fmt::format("{}{}", tensor, kF64);
  if (!has(wide)) return read(tensor);
  touched_->insert(fmt::format("{}/{}", name_, tensor));  // the float32 twin
  return read(wide);
}

std::vector<std::string> Case::names(std::string_view prefix) const {
  const std::string full_prefix = fmt::format("{}/{}", name_, prefix);
  std::set<std::string> found;
  for (const auto& [full_name, stored] : file_->tensors()) {
    if (!full_name.starts_with(full_prefix)) continue;
    std::string_view name = std::string_view(full_name).substr(name_.size() + 1);
    if (name.ends_with(kF64)) name.remove_suffix(kF64.size());
    found.emplace(name);
  }
  return {found.begin(), found.end()};
}

Case Case::sharing(std::string_view key) const {
  constexpr std::string_view kPhrase = "same as case ";
  Case other = *this;
  const std::string where = settings_.text(key, "");
  if (where.empty()) return other;
  if (!where.starts_with(kPhrase)) {
    corrupt(fmt::format("setting `{}` is `{}`; expected `{}NAME`", key, where, kPhrase));
  }
  other.name_ = where.substr(kPhrase.size());
  return other;
}

std::vector<std::string> Case::untouched() const {
  std::vector<std::string> left;
  const std::string prefix = name_ + "/";
  for (const auto& [full_name, stored] : file_->tensors()) {
    if (full_name.starts_with(prefix) && !touched_->contains(full_name)) {
      left.push_back(full_name.substr(prefix.size()));
    }
  }
  return left;
}

bool CaseFile::is_golden() const {
  const auto format = file_.metadata().find("format");
  return format != file_.metadata().end() && format->second == kFormat;
}

std::vector<std::string> CaseFile::case_names() const {
  const auto list = file_.metadata().find("cases");
  if (list == file_.metadata().end()) {
    corrupt(fmt::format("{}: the metadata has no `cases`, the list of case names", path()));
  }
  std::istringstream words(list->second);
  std::vector<std::string> names;
  for (std::string word; words >> word;) names.push_back(word);
  return names;
}

std::string CaseFile::op_of(const std::string& name) const {
  try {
    return Settings(case_json(file_, name)).text("op", "?");
  } catch (const Error&) {
    return "?";
  }
}

void check_offsets(std::span<const int64_t> offsets, int64_t rows) {
  if (offsets.empty() || offsets.front() != 0 || offsets.back() != rows) {
    corrupt(fmt::format("offsets must lead from 0 to {} rows", rows));
  }
  for (size_t b = 1; b < offsets.size(); ++b) {
    if (offsets[b] < offsets[b - 1]) corrupt(fmt::format("offsets fall at sequence {}", b - 1));
  }
}

void check_targets(std::span<const int64_t> offsets, std::span<const int64_t> num_targets) {
  if (num_targets.size() + 1 != offsets.size()) {
    corrupt(fmt::format("{} numbers of targets for {} sequences", num_targets.size(),
                        offsets.size() - 1));
  }
  for (size_t b = 0; b < num_targets.size(); ++b) {
    if (num_targets[b] < 0 || num_targets[b] > offsets[b + 1] - offsets[b]) {
      corrupt(fmt::format("sequence {} has {} targets but {} rows", b, num_targets[b],
                          offsets[b + 1] - offsets[b]));
    }
  }
}

Geometry read_geometry(const Case& golden, int64_t rows) {
  Geometry g;
  g.offsets = golden.int_list("seq_offsets");
  check_offsets(g.offsets, rows);
  const Settings& settings = golden.settings();
  const bool listed = settings.has("num_targets") && !settings.integers("num_targets").empty();
  if (settings.flag("has_num_targets", listed || golden.has("num_targets"))) {
    g.num_targets = golden.int_list("num_targets");
    check_targets(g.offsets, g.num_targets);
  }
  return g;
}

Shape token_shape(const Case& golden, int64_t dim) {
  Shape shape = golden.shape("x");
  if (shape.size() != 2 || shape[1] != dim) {
    corrupt(fmt::format("tensor `x` has shape {}, expected [tokens, {}]", to_string(shape), dim));
  }
  return shape;
}

}  // namespace segue::golden
