#include "batch/batch.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"

namespace segue {
namespace {

template <class Item>
auto find_by_name(std::vector<Item>& items, std::string_view name) {
  return std::find_if(items.begin(), items.end(), [&](const Item& i) { return i.name == name; });
}
template <class Item>
auto find_by_name(const std::vector<Item>& items, std::string_view name) {
  return std::find_if(items.begin(), items.end(), [&](const Item& i) { return i.name == name; });
}

template <class Item>
[[noreturn]] void fail_not_found(const char* what, std::string_view name,
                                 const std::vector<Item>& items) {
  std::string names;
  for (const Item& item : items) names += (names.empty() ? "`" : ", `") + item.name + "`";
  fail(ErrorCode::kNotFound, fmt::format("the batch has no {} `{}`; it has {}", what, name,
                                         names.empty() ? "none" : names));
}

}  // namespace

int Batch::add_group(std::string name) {
  SEGUE_ASSERT(num_samples() == 0, "the schema of a filled batch is fixed");
  if (find_by_name(groups, name) != groups.end()) {
    fail(ErrorCode::kInvalidArgument, fmt::format("the batch already has a group `{}`", name));
  }
  groups.push_back({std::move(name), {}});
  groups.back().offsets.push_back(0);
  return static_cast<int>(groups.size()) - 1;
}

void Batch::require_new(std::string_view name) const {
  if (find_column(name) == nullptr && find_float_column(name) == nullptr &&
      find_attribute(name) == nullptr) {
    return;
  }
  fail(ErrorCode::kInvalidArgument, fmt::format("the batch already has a column `{}`", name));
}

template <class T>
int Batch::add_to(std::vector<ColumnOf<T>>& of_type, std::string name, int group) {
  SEGUE_ASSERT(num_samples() == 0, "the schema of a filled batch is fixed");
  SEGUE_ASSERT(group >= 0 && group < static_cast<int>(groups.size()), "no such group");
  require_new(name);
  of_type.push_back({std::move(name), group, {}});
  return static_cast<int>(of_type.size()) - 1;
}

int Batch::add_column(std::string name, int group) {
  return add_to(columns, std::move(name), group);
}

int Batch::add_float_column(std::string name, int group) {
  return add_to(float_columns, std::move(name), group);
}

void Batch::add_attribute(std::string name, int of, std::span<const int32_t> values) {
  SEGUE_ASSERT(of >= 0 && of < static_cast<int>(columns.size()), "no such column");
  require_new(name);
  attributes.push_back({std::move(name), of, values});
}

Batch Batch::schema() const {
  Batch batch;
  for (const Group& group : groups) batch.add_group(group.name);
  for (const Column& column : columns) batch.add_column(column.name, column.group);
  for (const FloatColumn& column : float_columns) batch.add_float_column(column.name, column.group);
  batch.attributes = attributes;
  return batch;
}

void Batch::clear() {
  for (Group& group : groups) {
    group.offsets.resize(1);
    group.offsets[0] = 0;
  }
  for (Column& column : columns) column.values.resize(0);
  for (FloatColumn& column : float_columns) column.values.resize(0);
  sample_index.resize(0);
  global_samples = 0;
}

const Batch::Group& Batch::group(std::string_view name) const {
  const auto found = find_by_name(groups, name);
  if (found == groups.end()) fail_not_found("group", name, groups);
  return *found;
}

Batch::Group& Batch::group(std::string_view name) {
  return const_cast<Group&>(std::as_const(*this).group(name));
}

const Batch::Column& Batch::column(std::string_view name) const {
  const Column* found = find_column(name);
  if (found == nullptr) fail_not_found("column", name, columns);
  return *found;
}

Batch::Column& Batch::column(std::string_view name) {
  return const_cast<Column&>(std::as_const(*this).column(name));
}

const Batch::FloatColumn& Batch::float_column(std::string_view name) const {
  const FloatColumn* found = find_float_column(name);
  if (found == nullptr) fail_not_found("float column", name, float_columns);
  return *found;
}

Batch::FloatColumn& Batch::float_column(std::string_view name) {
  return const_cast<FloatColumn&>(std::as_const(*this).float_column(name));
}

const Batch::Column* Batch::find_column(std::string_view name) const {
  const auto found = find_by_name(columns, name);
  return found == columns.end() ? nullptr : &*found;
}

const Batch::FloatColumn* Batch::find_float_column(std::string_view name) const {
  const auto found = find_by_name(float_columns, name);
  return found == float_columns.end() ? nullptr : &*found;
}

const Batch::Attribute* Batch::find_attribute(std::string_view name) const {
  const auto found = find_by_name(attributes, name);
  return found == attributes.end() ? nullptr : &*found;
}

std::span<const int64_t> Batch::values(std::string_view name, HostArray<int64_t>& memory) const {
  const Attribute* const attribute = find_attribute(name);
  if (attribute == nullptr) return column(name).values.span();
  const std::span<const int64_t> ids = columns[static_cast<size_t>(attribute->of)].values.span();
  memory.resize(static_cast<int64_t>(ids.size()));
  std::ranges::transform(ids, memory.data(), [&](int64_t id) { return attribute->of_id(id); });
  return memory.span();
}

std::span<const int64_t> Batch::offsets(std::string_view name) const {
  const Attribute* const attribute = find_attribute(name);
  return offsets(attribute == nullptr ? column(name) : columns[static_cast<size_t>(attribute->of)]);
}

void Batch::validate() const {
  for (const Group& group : groups) {
    const std::span<const int64_t> offsets = group.offsets.span();
    if (group.offsets.size() != num_samples() + 1) {
      fail(ErrorCode::kInvalidArgument,
           fmt::format("group `{}` of the batch has {} offsets; {} samples need {}", group.name,
                       offsets.size(), num_samples(), num_samples() + 1));
    }
    if (offsets.front() != 0) {
      fail(ErrorCode::kInvalidArgument,
           fmt::format("the offsets of group `{}` of the batch start at {}, not at 0", group.name,
                       offsets.front()));
    }
    const auto drop = std::adjacent_find(offsets.begin(), offsets.end(), std::greater<>());
    if (drop != offsets.end()) {
      fail(ErrorCode::kInvalidArgument,
           fmt::format("the offsets of group `{}` of the batch fall from {} to {} at sample {}",
                       group.name, drop[0], drop[1], drop - offsets.begin()));
    }
  }
  const auto check = [this](const auto& column) {
    if (column.group < 0 || column.group >= static_cast<int>(groups.size())) {
      fail(ErrorCode::kInvalidArgument, fmt::format("column `{}` of the batch names group {} of {}",
                                                    column.name, column.group, groups.size()));
    }
    const int64_t expected = offsets(column).back();
    if (column.values.size() != expected) {
      fail(ErrorCode::kInvalidArgument,
           fmt::format("column `{}` of the batch has {} values; the offsets of its group `{}` end "
                       "at {}",
                       column.name, column.values.size(),
                       groups[static_cast<size_t>(column.group)].name, expected));
    }
  };
  std::ranges::for_each(columns, check);
  std::ranges::for_each(float_columns, check);
  for (const Attribute& attribute : attributes) {
    const Column& of = columns[static_cast<size_t>(attribute.of)];
    if (!attribute.values.empty() || of.values.size() == 0) continue;
    fail(ErrorCode::kInvalidArgument,
         fmt::format("attribute `{}` of the batch has no values for the ids of column `{}`",
                     attribute.name, of.name));
  }
}

Batch Batch::slice(int64_t begin, int64_t count) const {
  SEGUE_ASSERT(begin >= 0 && count >= 0 && count <= num_samples() - begin,
               "slice beyond the samples of the batch");
  const auto first = static_cast<size_t>(begin), samples = static_cast<size_t>(count);
  Batch part = schema();
  part.sample_index.assign(sample_index.span().subspan(first, samples));
  for (size_t g = 0; g < groups.size(); ++g) {
    part.groups[g].offsets.assign(groups[g].offsets.span().subspan(first, samples + 1));
    for (int64_t& offset : part.groups[g].offsets.span()) offset -= groups[g].offsets[begin];
  }
  const auto copy = [&](const auto& from, auto& to) {
    for (size_t c = 0; c < from.size(); ++c) {
      const std::span<const int64_t> of_column = offsets(from[c]);
      const auto value = static_cast<size_t>(of_column[first]);
      const auto values = static_cast<size_t>(of_column[first + samples]) - value;
      to[c].values.assign(from[c].values.span().subspan(value, values));
    }
  };
  copy(columns, part.columns);
  copy(float_columns, part.float_columns);
  part.global_samples = global_samples;
  return part;
}

bool Batch::operator==(const Batch& other) const {
  // Bytes: a value that is not a number equals itself, and zeros have signs.
  const auto equal = [](const auto& a, const auto& b) {
    return std::ranges::equal(std::as_bytes(a.span()), std::as_bytes(b.span()));
  };
  const auto same_column = [&](const auto& a, const auto& b) {
    return a.name == b.name && a.group == b.group && equal(a.values, b.values);
  };
  return global_samples == other.global_samples && equal(sample_index, other.sample_index) &&
         std::ranges::equal(groups, other.groups,
                            [&](const Group& a, const Group& b) {
                              return a.name == b.name && equal(a.offsets, b.offsets);
                            }) &&
         std::ranges::equal(columns, other.columns, same_column) &&
         std::ranges::equal(float_columns, other.float_columns, same_column) &&
         std::ranges::equal(
             attributes, other.attributes, [](const Attribute& a, const Attribute& b) {
               return a.name == b.name && a.of == b.of && std::ranges::equal(a.values, b.values);
             });
}

}  // namespace segue
