#include "base/checked_json.h"

#include <set>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/error.h"

namespace segue::base {
namespace {

constexpr int kMostDeep = 16;         // writing it again recurses as deep
constexpr size_t kMostMembers = 256;  // looking one up goes through all before it

[[noreturn]] void refuse(const std::string& what) { fail(ErrorCode::kCorrupt, what); }

[[noreturn]] void refuse(const char* name, const CheckedJson& value, const std::string& wanted) {
  constexpr size_t kMostShown = 40;  // enough to recognise it
  std::string shown = value.is_array() ? "a list" : "an object";
  if (!value.is_structured())
    shown = value.dump(-1, ' ', false, CheckedJson::error_handler_t::replace);
  if (shown.size() > kMostShown) shown = shown.substr(0, kMostShown) + "...";
  refuse(fmt::format("`{}`: {} is not {}", name, shown, wanted));
}

int64_t whole(const char* name, const CheckedJson& value, int64_t least, int64_t most) {
  const bool fits = value.is_number_unsigned() ? std::in_range<int64_t>(value.get<uint64_t>())
                                               : value.is_number_integer();
  if (fits) {
    const auto number = value.get<int64_t>();
    if (number >= least && number <= most) return number;
  }
  refuse(name, value, fmt::format("a whole number from {} to {}", least, most));
}

}  // namespace

CheckedJson parse_checked(std::string_view text) {
  std::vector<std::set<std::string>> open_objects;
  const auto check = [&](int depth, CheckedJson::parse_event_t event, CheckedJson& parsed) {
    if (depth > kMostDeep) refuse("nested too deeply");
    if (event == CheckedJson::parse_event_t::object_start) open_objects.emplace_back();
    if (event == CheckedJson::parse_event_t::object_end) open_objects.pop_back();
    if (event == CheckedJson::parse_event_t::key) {
      const auto& key = parsed.get_ref<const std::string&>();
      if (!open_objects.back().insert(key).second) refuse(fmt::format("`{}` is there twice", key));
      if (open_objects.back().size() > kMostMembers) refuse("an object has too many members");
    }
    return true;
  };
  try {
    return CheckedJson::parse(text.begin(), text.end(), check);
  } catch (const CheckedJson::exception& error) {
    refuse(error.what());
  }
}

const CheckedJson& member_of(const CheckedJson& object, const char* name) {
  const auto found = object.find(name);  // of what is no object, none is
  if (found == object.end()) refuse(fmt::format("`{}` is not there", name));
  return *found;
}

const CheckedJson& list_of(const CheckedJson& object, const char* name) {
  const CheckedJson& value = member_of(object, name);
  if (!value.is_array()) refuse(name, value, "a list");
  return value;
}

std::string text_of(const CheckedJson& object, const char* name) {
  const CheckedJson& value = member_of(object, name);
  if (!value.is_string()) refuse(name, value, "text");
  return value.get<std::string>();
}

bool flag_of(const CheckedJson& object, const char* name) {
  const CheckedJson& value = member_of(object, name);
  if (!value.is_boolean()) refuse(name, value, "true or false");
  return value.get<bool>();
}

int64_t whole_number(const CheckedJson& object, const char* name, int64_t least, int64_t most) {
  return whole(name, member_of(object, name), least, most);
}

std::optional<int64_t> whole_number_if_any(const CheckedJson& object, const char* name,
                                           int64_t least) {
  if (!object.contains(name)) return std::nullopt;
  return whole_number(object, name, least);
}

std::vector<int64_t> whole_numbers(const CheckedJson& object, const char* name, int64_t least) {
  std::vector<int64_t> numbers;
  for (const CheckedJson& value : list_of(object, name)) {
    numbers.push_back(whole(name, value, least, kMostCounted));
  }
  return numbers;
}

double real_number(const CheckedJson& object, const char* name, double least) {
  const CheckedJson& value = member_of(object, name);
  if (value.is_number() && value.get<double>() >= least) return value.get<double>();
  refuse(name, value, fmt::format("a number from {} on", least));
}

}  // namespace segue::base
