#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tensor/host_array.h"

namespace segue {

/// What one rank trains on in one step: named jagged columns of int64 (ids, timestamps, action
/// bits, labels) and of float (dense features). Columns that always have equal lengths share a
/// group of offsets, whatever their type. Real samples are told by a count, never by a zero; an
/// empty batch is legal everywhere.
///
/// Memory is kept when a batch is refilled: clear() forgets values, not capacity.
class Batch {
 public:
  struct Group {
    std::string name;
    HostArray<int64_t> offsets;  // [samples + 1]
  };
  template <class T>
  struct ColumnOf {
    std::string name;
    int group = 0;
    HostArray<T> values;
  };
  using Column = ColumnOf<int64_t>;
  using FloatColumn = ColumnOf<float>;
  /// A column that is not there because another one decides it, as songs do their artists.
  struct Attribute {
    std::string name;
    int of = 0;                       // column
    std::span<const int32_t> values;  // by id; whoever fills the batch keeps them

    /// Ids outside of `values` have what the nearest one inside has.
    int64_t of_id(int64_t id) const {
      return values[static_cast<size_t>(
          std::clamp<int64_t>(id, 0, static_cast<int64_t>(values.size()) - 1))];
    }
  };

  /// Schema first: groups and columns are added once, then the batch is filled any number of times.
  int add_group(std::string name);
  /// No two columns have one name, of whichever types they are.
  int add_column(std::string name, int group);
  int add_float_column(std::string name, int group);
  void add_attribute(std::string name, int of, std::span<const int32_t> values);
  void clear();
  /// An empty batch with the same groups, columns and attributes.
  Batch schema() const;

  int64_t num_samples() const { return sample_index.size(); }
  const Group& group(std::string_view name) const;    // Error(kNotFound) names what there is
  const Column& column(std::string_view name) const;  // Error(kNotFound) names what there is
  Column& column(std::string_view name);
  const FloatColumn& float_column(std::string_view name) const;  // likewise
  FloatColumn& float_column(std::string_view name);
  Group& group(std::string_view name);
  const Column* find_column(std::string_view name) const;             // null if absent
  const FloatColumn* find_float_column(std::string_view name) const;  // likewise
  const Attribute* find_attribute(std::string_view name) const;       // likewise
  /// Values of a column or an attribute; those of an attribute are made in `memory`.
  std::span<const int64_t> values(std::string_view name, HostArray<int64_t>& memory) const;
  std::span<const int64_t> offsets(std::string_view name) const;  // of a column or an attribute
  template <class T>
  std::span<const int64_t> offsets(const ColumnOf<T>& c) const {
    return groups[static_cast<size_t>(c.group)].offsets.span();
  }

  /// Throws Error(kInvalidArgument) when offsets and values disagree: the first thing a consumer
  /// calls.
  void validate() const;

  /// Samples [begin, begin + count) as a new batch.
  Batch slice(int64_t begin, int64_t count) const;

  /// The same schema and samples, bit for bit.
  bool operator==(const Batch& other) const;

  std::vector<Group> groups;
  std::vector<Column> columns;
  std::vector<FloatColumn> float_columns;
  std::vector<Attribute> attributes;
  HostArray<int64_t> sample_index;  // number of each sample in the global batch of the step
  int64_t global_samples = 0;       // real samples of the step over all ranks

 private:
  void require_new(std::string_view name) const;
  template <class T>
  int add_to(std::vector<ColumnOf<T>>& of_type, std::string name, int group);
};

}  // namespace segue
