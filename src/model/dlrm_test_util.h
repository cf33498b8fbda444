#pragma once

// For tests only: a DLRM that has everything, very small.

#include <string>
#include <vector>

#include "model/dlrm.h"
#include "ops/test_util.h"

namespace segue::model {

inline sparse::TablesConfig tiny_dlrm_tables() {
  sparse::TablesConfig c;
  c.dim = 4;
  c.out_of_range = sparse::OutOfRange::kZero;
  c.tables = {{.name = "user", .rows = 9}, {.name = "item", .rows = 12}};
  return c;
}

/// Two bags of one table, one of them of the history; rows are candidates.
inline ModelConfig tiny_dlrm(Interaction interaction) {
  ModelConfig c;
  c.family = Family::kDlrm;
  c.tasks = {{"like", ops::TaskKind::kBinary, 1, 1.0}, {"share", ops::TaskKind::kBinary, 4, 0.5}};
  c.dlrm.dense_features = 3;
  c.dlrm.bottom = {5, 4};
  c.dlrm.top = {6, 5};
  c.dlrm.interaction = interaction;
  c.dlrm.features = {{"user_id", "user", FeatureOf::kSample, 3},
                     {"liked", "item", FeatureOf::kEvent},
                     {"candidate", "item", FeatureOf::kCandidate}};
  return c;
}

/// Samples with given numbers of users, events and candidates; ids repeat, one has no row.
inline Batch tiny_dlrm_batch(const std::vector<std::vector<int64_t>>& counts, int64_t dense = 3) {
  Batch batch;
  const int users = batch.add_group("users"), events = batch.add_group("events");
  const int candidates = batch.add_group("candidates"), numbers = batch.add_group("numbers");
  batch.add_column("user_id", users);
  batch.add_column("liked", events);
  batch.add_column("candidate", candidates);
  batch.add_column("label", candidates);
  batch.add_float_column("dense", numbers);
  batch.add_float_column("price", candidates);
  const auto samples = static_cast<int64_t>(counts.size());
  batch.sample_index.resize(samples);
  batch.global_samples = samples;
  for (Batch::Group& g : batch.groups) g.offsets.resize(samples + 1);
  for (int64_t b = 0; b < samples; ++b) {
    const std::vector<int64_t>& of = counts[static_cast<size_t>(b)];
    batch.sample_index[b] = b;
    for (size_t g = 0; g < 3; ++g) {
      batch.groups[g].offsets[b + 1] = batch.groups[g].offsets[b] + of[g];
    }
    batch.groups[3].offsets[b + 1] = batch.groups[3].offsets[b] + dense;
  }
  int64_t at = 0;
  for (Batch::Column& c : batch.columns) {
    c.values.resize(batch.offsets(c).back());
    for (int64_t& value : c.values.span()) value = (at += 5) % (c.name == "user_id" ? 10 : 13);
  }
  uint64_t site = 5;
  for (Batch::FloatColumn& column : batch.float_columns) {
    column.values.resize(batch.offsets(column).back());
    for (int64_t i = 0; i < column.values.size(); ++i) {
      column.values[i] = static_cast<float>(ops::test::TestBed::number(site, i));
    }
    ++site;
  }
  return batch;
}

inline Batch tiny_dlrm_batch() {
  return tiny_dlrm_batch({{1, 2, 1}, {3, 0, 2}, {0, 4, 1}, {2, 1, 0}, {1, 3, 3}});
}

}  // namespace segue::model
