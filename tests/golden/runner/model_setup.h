#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "batch/batch.h"
#include "model/config.h"
#include "model/ranker.h"
#include "runner/cases.h"
#include "sparse/tables.h"

namespace segue::golden {

inline constexpr int64_t kMostEvents = int64_t{1} << 31;  // of one sample; more is nonsense
inline constexpr std::string_view kTablePrefix = "_embedding_collection.embeddings.";
std::string table_parameter(const std::string& table);  // its name among the stored parameters

/// The ranker of a model case: settings give sizes and features, `params` (the case that stores
/// `param.*`) gives rows of tables and all values.
class GoldenModel {
 public:
  /// `longest` is the length of the longest sample that will be run, in tokens.
  GoldenModel(Workspace& workspace, const Case& golden, const Case& params, bool identities,
              int64_t longest);

  sparse::Tables& tables() { return tables_; }
  model::Ranker& ranker() { return ranker_; }
  const model::ModelConfig& config() const { return ranker_.config(); }
  const std::vector<sparse::TableConfig>& table_configs() const { return tables_.config().tables; }

 private:
  sparse::Tables tables_;
  model::Ranker ranker_;
};

/// The columns of a batch and where their values come from.
model::ModelConfig model_config(const Case& golden, bool identities, int64_t longest);

/// Lengths of a batch whose contextual features have one value per sample.
struct BatchLengths {
  std::vector<int64_t> history, candidates;
};
/// `values(column, count)` gives the values of one column; the batch checks their number.
using ColumnSource = std::function<std::vector<int64_t>(const std::string& column, int64_t count)>;
Batch make_batch(const model::ModelConfig& config, const BatchLengths& lengths,
                 const ColumnSource& values);

}  // namespace segue::golden
