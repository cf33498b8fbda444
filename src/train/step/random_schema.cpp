#include "train/step/random_schema.h"

#include <algorithm>
#include <string>
#include <utility>

namespace segue::train {
namespace {

using model::ColumnDemand;
using Role = data::RandomColumn::Role;

Role role_of(const ColumnDemand& d) {
  switch (d.role) {
    case ColumnDemand::Role::kTimestamp:
      return Role::kTimestamp;
    case ColumnDemand::Role::kAction:
      return Role::kAction;
    case ColumnDemand::Role::kLabel:
      return Role::kLabel;
    default:
      return Role::kId;
  }
}

data::RandomGroup group_of(const ColumnDemand& d, int64_t candidates) {
  if (d.of == ColumnDemand::Of::kEvent) return {"history", -1};
  if (d.of == ColumnDemand::Of::kCandidate) return {"candidates", candidates};
  return {d.column, d.length};
}

}  // namespace

data::RandomSchema random_schema(const model::Model& model, const sparse::TablesConfig& tables,
                                 int64_t candidates) {
  data::RandomSchema schema;
  for (const ColumnDemand& d : model.demands()) {
    const data::RandomGroup group = group_of(d, candidates);
    if (std::ranges::find(schema.groups, group.name, &data::RandomGroup::name) ==
        schema.groups.end()) {
      schema.groups.push_back(group);
    }
    if (d.role == ColumnDemand::Role::kNumber) {
      schema.numbers.push_back({d.column, group.name});
      continue;
    }
    data::RandomColumn column;
    column.name = d.column;
    column.group = group.name;
    column.role = role_of(d);
    column.bits = d.bits;
    if (d.role == ColumnDemand::Role::kId) {
      const sparse::TableConfig& table = tables.tables[static_cast<size_t>(tables.id(d.table))];
      column.vocabulary = table.rows > 0 ? table.rows : tables.rows_of(table);
    }
    if (!d.item.empty()) {
      column.function_of = d.item;
      // An item has one artist, played or proposed, and several values have one each.
      column.function_name = d.value == 1 ? d.table : d.table + std::to_string(d.value);
    }
    schema.columns.push_back(std::move(column));
  }
  return schema;
}

int64_t longest_history(const data::Distribution& lengths) {
  using data::DistributionKind;
  const bool half_open =
      lengths.kind == DistributionKind::kUniform || lengths.kind == DistributionKind::kZipfBounded;
  if (half_open) return std::max(lengths.low, lengths.high - 1);
  return lengths.high > 0 ? lengths.high : -1;
}

}  // namespace segue::train
