#pragma once

#include <cstdint>
#include <vector>

#include "model/head_group.h"
#include "model/layout.h"
#include "model/model.h"

namespace segue::model {

/// A batch as the ranker prepares it: where tokens stand, and what they are made of.
struct RankerBatch final : PreparedBatch {
  /// One micro-batch, token by token.
  struct Tokens {
    int64_t first_sample = 0;
    std::vector<int64_t> offsets;  // tokens, from 0
    std::vector<int64_t> num_targets;
    int64_t count = 0;
    int64_t labels = 0;
    int64_t first_label = 0;   // number of the first label in the batch
    int64_t most_targets = 0;  // of the group, where attention is shared
    GroupSequences group;      // likewise

    /// The same for layers that work on the newest tokens only; empty without such layers.
    struct Truncated {
      std::vector<int64_t> offsets;
      GroupSequences group;
      Part<int64_t> device_offsets;
      Part<int64_t> kept;        // [tokens left]: which they are
      Part<int32_t> kept_short;  // the same
      Part<int32_t> label_rows;  // [labels]: where they are now
    } truncated;

    Part<int64_t> device_offsets, device_num_targets;
    Part<int32_t> label_features;                   // [labels, columns of features]: table row
    std::vector<Part<float>> label_values;          // per task
    std::vector<Part<double>> label_values_double;  // instead, for models in double
  };

  BatchLayout layout;
  /// What tokens are made from when the batch runs: see ops::TokenColumns.
  Part<int64_t> event_offsets, candidate_offsets, sample_number;
  Part<int64_t> event_time, candidate_time, event_action;
  Part<int32_t> item;         // of every event, then of every candidate
  Part<int32_t> event_label;  // number of an event's label, -1: none; empty: see BatchLayout
  Part<int32_t> row_of_item;  // branch row
  bool action_codes = false;  // action codes are patterns of bits, not events and candidates
  /// Branch rows: one per distinct tuple (or per event and candidate), and which table rows they
  /// are made of.
  int64_t branch_rows = 0;
  /// Table rows that the branches read, one after the other: content [branch rows], additional
  /// [branch rows, columns of additional features], context [contextual slots, samples, columns]
  /// (-1: absent).
  Part<int32_t> input_index;
  /// Which of them, and of label_features, are values of one feature, to be summed; empty where
  /// all features have one. Those of labels are as many as the largest micro-batch needs.
  struct Bags {
    Part<int64_t> offsets;  // [features + 1]
    Part<int32_t> bag;      // of every row
  };
  Bags input_bags, label_bags;
  Part<int32_t> sorted_keys, sorted_items;  // the same sorted, for a GPU: see ops::sort_index
  Part<int32_t> action_code;                // codes the action branch runs on
  /// Numeric features, row by row.
  struct Numbers {
    Part<float> values;
    Part<double> values_double;  // instead, for models in double
  };
  Numbers label_numbers;  // of every label
  Numbers token_numbers;  // of every event, then of every candidate, where tokens get them
  std::vector<Tokens> micro_batches;
};

}  // namespace segue::model
