#include "model/dlrm_config.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/config_checks.h"

namespace segue::model {

using base::fail_config;
using base::require_size;

namespace {

constexpr int64_t kMostWidth = 1 << 16;
constexpr int64_t kMostIds = 1 << 24;
constexpr size_t kMostLayers = 64;
constexpr size_t kMostFeatures = 1 << 12;

void require_widths(const char* key, const std::vector<int64_t>& widths) {
  if (widths.size() > kMostLayers) {
    fail_config(
        fmt::format("{} has {} layers; at most {} are possible", key, widths.size(), kMostLayers));
  }
  for (const int64_t width : widths) require_size(key, width, kMostWidth);
}

}  // namespace

std::vector<std::string> value_columns(const std::string& name, int64_t values) {
  if (values == 1) return {name};
  std::vector<std::string> columns;
  for (int64_t k = 1; k <= values; ++k) columns.push_back(fmt::format("{}_{}", name, k));
  return columns;
}

std::vector<std::string> BagFeature::columns() const { return value_columns(column, values); }

void describe(base::ConfigVisitor& v, BagFeature& c) {
  v.field("column", c.column, "column of ids");
  v.field("table", c.table, "embedding table; its rows are summed");
  v.choice("of", c.of, {"sample", "event", "candidate"}, "what has the ids");
  v.field("max_length", c.max_length, "ids of a sample, at most, where `of` is \"sample\"");
  v.field("values", c.values, "of each: columns column_1 and on, whose rows are all summed");
}

void describe(base::ConfigVisitor& v, DlrmConfig& c) {
  v.field("dense", c.dense, "float column of the dense features; empty: none");
  v.field("dense_features", c.dense_features, "how many a sample has");
  v.field("numeric", c.numeric,
          "more dense features: float columns with one number of every candidate, or of every "
          "sample where no feature is of candidates");
  v.list("forms", c.forms, "how numbers of `numeric` enter; as they are where there is none");
  v.field("bottom", c.bottom, "widths of the layers that dense features pass, ReLU after each");
  v.field("top", c.top, "widths of the hidden layers behind the interaction");
  v.choice("interaction", c.interaction, {"concat", "dot"},
           "vectors side by side, or the products of all pairs of them behind the first");
  v.list("features", c.features, "bags of ids");
  v.field("label", c.label, "column with the label bits");
  v.field("max_events", c.max_events, "events of a history, at most, where a bag takes them");
}

bool DlrmConfig::has(FeatureOf of) const {
  return std::ranges::any_of(features, [&](const BagFeature& f) { return f.of == of; });
}

void DlrmConfig::validate() const {
  if (features.empty()) {
    fail_config("model.dlrm.features is empty: name at least one ([[model.dlrm.features]])");
  }
  if (features.size() > kMostFeatures) {
    fail_config(fmt::format("model.dlrm.features has more than {} entries", kMostFeatures));
  }
  for (const BagFeature& f : features) {
    require_size("model.dlrm.features.max_length", f.max_length, kMostIds);
    require_size("model.dlrm.features.values", f.values, kMostValues);
  }
  if (has_dense()) {
    if (!dense.empty()) require_size("model.dlrm.dense_features", dense_features, kMostWidth);
    if (bottom.empty()) fail_config("model.dlrm.bottom needs at least one layer");
  }
  validate_forms(forms, numeric);
  require_widths("model.dlrm.bottom", bottom);
  require_widths("model.dlrm.top", top);
  require_size("model.dlrm.max_events", max_events, kMostIds);
}

}  // namespace segue::model
