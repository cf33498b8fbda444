#pragma once

#include <cstdint>
#include <span>

#include "tensor/exec.h"

namespace segue::ops {

/// What a batch says of its events and candidates, column by column, and which of its samples are
/// meant. The tokens of a sample are
///   [contextual][history: one token an event, or two: its item, its action][candidates]
struct TokenColumns {
  // Of the samples that are meant, i64 [samples + 1].
  Tensor token_offsets;      // from 0
  Tensor event_offsets;      // into columns of events
  Tensor candidate_offsets;  // into columns of candidates
  Tensor sample;             // i64 [samples]: number of each in the global batch

  // Of the whole batch.
  Tensor event_time, candidate_time;  // i64
  Tensor event_action;                // i64: bits
  Tensor item;                        // i32 [events + candidates]
  Tensor row_of_item;                 // i32 [items]
  Tensor event_label;                 // i32: number of its label, -1: none; absent: all are labels

  int64_t contextual = 0;         // tokens
  int64_t first_context_row = 0;  // row of the first of them; the others follow
  bool interleaved = false;       // an event has two tokens
  bool item_with_action = false;  // the second of them is of its item too
  /// Action of an event: bit k for weight k among its bits; of a candidate: 1 << weights. Without
  /// codes: its number among all events, then all candidates.
  bool action_codes = true;
  std::span<const int64_t> action_weights;
  bool events_are_labels = false;  // what is predicted: the items of events, or the candidates
  int64_t first_label = 0;         // of event_label, the first one that is meant

  /// Positions count from the front, and times are those since the event before: nothing in a token
  /// tells what follows it.
  bool causal = false;
  int64_t position_buckets = 0;
  int64_t time_buckets = 0;  // rows of the time table; 0: there is none
  double time_bucket_seconds = 60;
};
inline constexpr size_t kMostActionWeights = 16;

/// Token by token what AssembleParams and dropout read, and for every label its token.
struct TokenArrays {
  Tensor row, action, position;  // i32 [tokens]: see AssembleParams; -1: none
  Tensor time;                   // likewise; absent without a time table
  Tensor sample, token;          // i32 [tokens]: see RowIdentity
  Tensor label_row;              // i32 [labels]: its token
  Tensor label_sample, label_token;
  Tensor label_time;  // i64 [labels]
};

/// In exec's arena.
TokenArrays take_token_arrays(const Exec& exec, int64_t tokens, int64_t labels, bool with_time);
/// Positions and times as position_indices and time_indices of assemble.h give them, unless
/// `causal`; contextual tokens have time 0.
void fill_token_arrays(const Exec& exec, const TokenColumns& columns, const TokenArrays& out);

}  // namespace segue::ops
