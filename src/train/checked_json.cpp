#include "train/checked_json.h"

#include <set>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"

namespace segue::train {
namespace {

using Json = nlohmann::json;

[[noreturn]] void refuse(const std::string& what) { fail(ErrorCode::kCorrupt, what); }

/// Enough of a value to recognise it.
std::string shown(const Json& value) {
  constexpr size_t kMostShown = 40;
  if (value.is_structured()) return value.is_array() ? "a list" : "an object";
  std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  if (text.size() > kMostShown) text = text.substr(0, kMostShown) + "...";
  return text;
}

}  // namespace

Json parse_checked(std::string_view text) {
  constexpr int kMostDeep = 16;  // writing it again recurses as deep
  std::vector<std::set<std::string>> open_objects;
  const auto check = [&](int depth, Json::parse_event_t event, Json& parsed) {
    if (depth > kMostDeep) refuse("nested too deeply");
    if (event == Json::parse_event_t::object_start) open_objects.emplace_back();
    if (event == Json::parse_event_t::object_end) open_objects.pop_back();
    if (event == Json::parse_event_t::key) {
      const auto& key = parsed.get_ref<const std::string&>();
      if (!open_objects.back().insert(key).second) {
        refuse(fmt::format("`{}` is there twice", key));
      }
    }
    return true;
  };
  return Json::parse(text.begin(), text.end(), check);
}

int64_t whole_number(const Json& value, int64_t least, int64_t most) {
  const bool fits = value.is_number_unsigned() ? std::in_range<int64_t>(value.get<uint64_t>())
                                               : value.is_number_integer();
  if (fits) {
    const auto number = value.get<int64_t>();
    if (number >= least && number <= most) return number;
  }
  refuse(fmt::format("{} is not a whole number from {} to {}", shown(value), least, most));
}

std::vector<int64_t> whole_numbers(const Json& list) {
  if (!list.is_array()) refuse(shown(list) + " is not a list of whole numbers");
  std::vector<int64_t> numbers;
  for (const Json& value : list) numbers.push_back(whole_number(value));
  return numbers;
}

double real_number(const Json& value, double least) {
  if (value.is_number() && value.get<double>() >= least) return value.get<double>();
  refuse(fmt::format("{} is not a number from {} on", shown(value), least));
}

const Json& list_in(const Json& object, const char* name) {
  const Json& list = object.at(name);
  if (!list.is_array()) refuse(fmt::format("`{}` is not a list", name));
  return list;
}

}  // namespace segue::train
