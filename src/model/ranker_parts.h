#pragma once

// The private parts of a Ranker pass; included by the two files that make one.

#include <vector>

#include "model/ranker.h"
#include "ops/assemble.h"

namespace segue::model {

/// Part one: everything that exists once per batch, however many micro-batches follow.
struct Ranker::Rows {
  std::vector<Tensor> table_rows;  // per table [distinct, embedding dim]; absent if not looked up
  std::vector<Tensor> table_gradients;  // the same shape, float

  /// Place of every event, then of every candidate, in the rows of each sequence feature's table.
  std::vector<HostArray<int32_t>> feature_index;
  /// Branch rows: one per distinct tuple (or per event and candidate), which table rows they are
  /// made of, and which one an event or candidate uses.
  std::vector<Tensor> branch_index;    // per feature i32 [branch rows]
  HostArray<int32_t> branch_of_event;  // [events + candidates]
  sparse::DistinctTuples tuples;       // owns branch_index when ids are deduplicated

  HostArray<int32_t> action_code;       // codes the action branch runs on
  HostArray<int32_t> action_of_event;   // [events]: index into action_code
  HostArray<int32_t> action_of_target;  // [candidates]

  std::vector<HostArray<int32_t>> context_index;  // per slot [samples]

  Preprocessor::Saved saved;
  Preprocessor::RowGradients gradients;
};

/// One micro-batch, laid out token by token.
struct Ranker::Tokens {
  std::vector<int64_t> offsets;  // tokens, from 0
  std::vector<int64_t> num_targets;
  Sequences sequences;
  ops::AssembleParams assemble;
  int64_t count = 0;
  int64_t most_targets = 0;

  TargetTokens labelled;  // tokens that are predicted
  std::vector<int64_t> label_timestamps;
  std::vector<int64_t> label_values;   // bits, or the value of a regression
  std::vector<Tensor> label_features;  // per sequence feature i32: row in its table
  int64_t first_label = 0;             // number of the first label in the batch
};

struct Ranker::UserSide {
  Tensor x0;
  std::vector<StuLayer::Saved> layers;
  StuLayer::TargetSaved last;  // when the last layer runs at targets only
  bool collapsed = false;
  Postprocessor::Saved post;
  Tensor user;  // [labels, dim]
};

struct Ranker::ItemSide {
  Tensor item_rows;  // [labels, features * embedding dim]
  Mlp::Saved item;
  Tensor product;
  Mlp::Saved head;
  Tensor logits;  // [labels, tasks]
  Tensor dlogits;
};

/// The item path and the head run in float even when the user path is bf16.
inline Exec wide_exec(const Exec& exec) {
  return exec.rounds_to_bf16() ? exec.with(Precision::kF32) : exec;
}

}  // namespace segue::model
