#pragma once

// The private parts of a Ranker pass; included by the files that make one.

#include <span>
#include <string>
#include <vector>

#include "model/precision.h"
#include "model/ranker.h"
#include "ops/assemble.h"
#include "ops/rows.h"
#include "sparse/dedup.h"

namespace segue::model {

/// Indices that only the layout of tokens reads; memory is kept from batch to batch, since new
/// pages cost more than what is written to them.
struct Ranker::Places {
  std::vector<std::string> names;  // of the sequence features, for messages
  HostArray<int64_t> ids;          // of every event, then of every candidate
  HostArray<int64_t> attribute;    // of every event, where a batch leaves it to be made
  sparse::Distinct items;          // inverse: the item of every event, then of every candidate
  std::vector<HostArray<int64_t>> attributes;  // [additional features][items]
  /// Place of every item in the rows of each sequence feature's table.
  std::vector<std::span<const int32_t>> feature_index;
  sparse::DistinctTuples branches;   // inverse: of every item
  HostArray<int32_t> event_action;   // [events]: place among the action codes
  HostArray<int32_t> target_action;  // [candidates]
  HostArray<int64_t> timestamps;     // of a micro-batch
  sparse::DedupScratch scratch;
};

/// Part one: everything that exists once per batch, however many micro-batches follow.
struct Ranker::Rows {
  Tensor table_rows;       // [table rows, embedding dim]: distinct rows of all tables
  Tensor table_gradients;  // the same shape, float
  Tensor input_index;      // i32: see RankerBatch
  ops::SortedIndex sorted_index;
  Preprocessor::Saved saved;
  Tensor all_gradients;  // of what the preprocessor made, float
  Preprocessor::RowGradients gradients;
};

/// One micro-batch where ops can read it.
struct Ranker::Tokens {
  Sequences sequences;
  ops::AssembleParams assemble;
  int64_t count = 0;
  int64_t most_targets = 0;

  TargetTokens labelled;             // tokens that are predicted
  Tensor label_timestamps;           // i64 [labels]
  std::vector<Tensor> label_values;  // per task [labels]
  Tensor label_features;             // i32 [labels * sequence features]: table rows
  int64_t first_label = 0;           // number of the first label in the batch
};

struct Ranker::UserSide {
  Tensor x0;
  Tensor keep;  // what dropout kept of x0, where backward reads it (ops::assemble_keep_bytes)
  std::vector<StuLayer::Saved> layers;
  StuLayer::TargetSaved last;  // when the last layer runs at targets only
  bool collapsed = false;
  Postprocessor::Saved post;
  Tensor user;  // [labels, dim]
};

struct Ranker::ItemSide {
  Tensor user;       // [labels, dim]
  Tensor item_rows;  // [labels, features * embedding dim]
  Mlp::Saved item;
  Tensor product;
  Mlp::Saved head;
  Tensor logits;  // [labels, tasks]
  Tensor dlogits;
};

}  // namespace segue::model
