#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/config.h"
#include "model/number_forms.h"

namespace segue::model {

enum class Interaction { kConcat, kDot };
enum class FeatureOf { kSample, kEvent, kCandidate };

/// Values of a feature of several, at most.
inline constexpr int64_t kMostValues = 1 << 10;

/// The columns of a feature: its name, or of one with several values name_1 and on, each with one
/// of them. 0 there is none; the rows of the others are summed.
std::vector<std::string> value_columns(const std::string& name, int64_t values);

/// Ids that are looked up and summed: of the sample, of its whole history, or of a candidate.
struct BagFeature {
  std::string column;
  std::string table;
  FeatureOf of = FeatureOf::kSample;
  int64_t max_length = 1;  // of a sample's ids; those of events and candidates count themselves
  int64_t values = 1;      // of each of them: columns column_1 and on, where 0 is none

  std::vector<std::string> columns() const;
};
void describe(base::ConfigVisitor& v, BagFeature& c);

/// Dense features through the bottom MLP, a sum of rows for every bag, their interaction, the top
/// MLP. The defaults are those of the published micro-DLRM.
struct DlrmConfig {
  std::string dense = "dense";  // float column; empty: no dense features, no bottom MLP
  int64_t dense_features = 16;
  /// More of them: float columns with one number for every row that is predicted.
  std::vector<std::string> numeric;
  std::vector<NumberForm> forms;         // of those
  std::vector<int64_t> bottom = {8, 8};  // widths of its layers, ReLU after each
  std::vector<int64_t> top = {32, 16};   // of its hidden layers; one output per task follows
  Interaction interaction = Interaction::kConcat;
  std::vector<BagFeature> features;
  std::string label = "label";  // column; one value a sample, or one a candidate
  int64_t max_events = 128;     // of a history, where a bag takes it

  /// Numbers that the bottom MLP reads.
  int64_t dense_width() const {
    return (dense.empty() ? 0 : dense_features) + numbers_width(numeric, forms);
  }
  bool has_dense() const { return dense_width() > 0; }
  bool has(FeatureOf of) const;
  void validate() const;  // Error(kConfig)
};
void describe(base::ConfigVisitor& v, DlrmConfig& c);

}  // namespace segue::model
