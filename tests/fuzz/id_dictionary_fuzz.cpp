// The ids of a column: values get their numbers, the same whatever the order in which they came.
// Input: one value per line.

#include <set>
#include <vector>

#include "data/log/id_dictionary.h"
#include "data/log/table_reader.h"
#include "fuzz.h"

namespace {

using namespace segue;

constexpr int64_t kMemory = 1 << 20;

data::IdDictionary dictionary_of(const std::vector<std::string>& values) {
  data::IdDictionary dictionary("fuzz", kMemory);
  for (const std::string& value : values) dictionary.add(value);
  dictionary.finish();
  return dictionary;
}

/// The order that the header promises, by the plain way.
std::vector<std::string> in_order(const std::vector<std::string>& values) {
  const std::set<std::string> distinct(values.begin(), values.end());
  std::vector<std::string> order(distinct.begin(), distinct.end());
  const auto number = [](const std::string& text) {
    int64_t value = 0;
    return data::parse_canonical_integer(text, value) ? std::optional(value) : std::nullopt;
  };
  if (std::ranges::all_of(order, [&](const std::string& v) { return number(v).has_value(); })) {
    std::ranges::sort(order, {}, number);
  }
  return order;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Input input(data, size);
  std::vector<std::string> values;
  while (!input.empty()) values.emplace_back(input.before('\n'));
  const auto dictionary = fuzz::accepted([&] { return dictionary_of(values); });
  if (!dictionary) return 0;

  const std::vector<std::string> order = in_order(values);
  fuzz::require(dictionary->size() == static_cast<int64_t>(order.size()), "values count once");
  for (size_t i = 0; i < order.size(); ++i) {
    fuzz::require(dictionary->find(order[i]) == static_cast<int64_t>(i),
                  "numbers follow the order");
  }
  int64_t integer = 0;
  for (const std::string& value : values) {
    if (!data::parse_canonical_integer(value, integer)) continue;
    fuzz::require(dictionary->find(integer) == dictionary->find(value),
                  "an integer is found as its text");
  }
  std::ranges::reverse(values);
  const data::IdDictionary reversed = dictionary_of(values);
  for (const std::string& value : values) {
    fuzz::require(reversed.find(value) == dictionary->find(value), "the order does not matter");
  }
  return 0;
}
