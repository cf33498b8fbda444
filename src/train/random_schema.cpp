#include "train/random_schema.h"

#include <algorithm>
#include <bit>
#include <set>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"

namespace segue::train {
namespace {

using Role = data::RandomColumn::Role;

constexpr const char* kHistory = "history";
constexpr const char* kCandidates = "candidates";

int64_t bits_of(int64_t value) {
  return static_cast<int64_t>(std::bit_width(static_cast<uint64_t>(value)));
}

int64_t rows_of(const sparse::TablesConfig& tables, const std::string& name) {
  const auto found = std::ranges::find(tables.tables, name, &sparse::TableConfig::name);
  return found == tables.tables.end() ? 0 : found->rows;
}

/// Collects columns; a name may be used once.
class Builder {
 public:
  Builder(const model::ModelConfig& model, const sparse::TablesConfig& tables)
      : model_(model), tables_(tables) {}

  data::RandomSchema build() {
    schema_.groups.push_back({kHistory, -1});
    add_events(kHistory, &model::SequenceFeature::history);
    add(model_.history_timestamp, kHistory, Role::kTimestamp);
    const bool candidates = model_.labels == model::LabelKind::kCandidates;
    data::RandomColumn& action =
        add(model_.action.history, kHistory, candidates ? Role::kAction : Role::kLabel);
    for (const int64_t w : model_.action.weights) action.bits = std::max(action.bits, bits_of(w));

    if (candidates) {
      schema_.groups.push_back({kCandidates, kRandomCandidates});
      add_events(kCandidates, &model::SequenceFeature::candidate);
      add(model_.candidate_timestamp, kCandidates, Role::kTimestamp);
      add(model_.candidate_label, kCandidates, Role::kLabel).bits = label_bits(model_);
    }
    for (const model::ContextualFeature& f : model_.contextual) {
      schema_.groups.push_back({f.name, f.max_length});
      add(f.name, f.name, Role::kId).vocabulary = rows_of(tables_, f.table);
    }
    return std::move(schema_);
  }

 private:
  /// The item and what is a function of it, in one group.
  void add_events(const char* group, std::string model::SequenceFeature::*column) {
    const std::string& item = model_.item.*column;
    add(item, group, Role::kId).vocabulary = rows_of(tables_, model_.item.table);
    for (const model::SequenceFeature& f : model_.additional) {
      data::RandomColumn& attribute = add(f.*column, group, Role::kId);
      attribute.vocabulary = rows_of(tables_, f.table);
      attribute.function_of = item;
      attribute.function_name = f.table;  // an item has one artist, played or proposed
    }
  }

  data::RandomColumn& add(const std::string& name, const std::string& group, Role role) {
    if (name.empty())
      fail(ErrorCode::kConfig,
           fmt::format("a feature of the model has no column name, in group `{}`: see the "
                       "names under [model]",
                       group));
    if (!names_.insert(name).second) {
      fail(
          ErrorCode::kConfig,
          fmt::format("column `{}` is read by two features of the model; give each its own", name));
    }
    data::RandomColumn& column = schema_.columns.emplace_back();
    column.name = name;
    column.group = group;
    column.role = role;
    return column;
  }

  const model::ModelConfig& model_;
  const sparse::TablesConfig& tables_;
  data::RandomSchema schema_;
  std::set<std::string> names_;
};

}  // namespace

data::RandomSchema random_schema(const model::ModelConfig& model,
                                 const sparse::TablesConfig& tables) {
  return Builder(model, tables).build();
}

int64_t label_bits(const model::ModelConfig& model) {
  int64_t bits = 1;
  for (const model::TaskConfig& task : model.tasks) bits = std::max(bits, bits_of(task.bit));
  return bits;
}

int64_t longest_history(const data::Distribution& lengths) {
  using data::DistributionKind;
  const bool half_open =
      lengths.kind == DistributionKind::kUniform || lengths.kind == DistributionKind::kZipfBounded;
  if (half_open) return std::max(lengths.low, lengths.high - 1);
  return lengths.high > 0 ? lengths.high : -1;
}

}  // namespace segue::train
