#pragma once

#include <cstdint>
#include <span>

#include "ops/dropout.h"
#include "ops/norm.h"
#include "tensor/exec.h"

namespace segue::ops {

/// Builds the input of the STU stack, token by token, from rows computed once per distinct id:
///   x = rows[row_index] (+ action_rows[action_index]); x *= scale; x += position + time; dropout
/// An index of -1 means "no such row" (a contextual token has no action). Rows come from two
/// places: row_index < content rows -> `content`, otherwise -> `context[row_index - content rows]`.
/// Rounding in mode kBf16, as the reference does it: after + action, after * scale, the float sum
/// position + time once, after adding it, after dropout.
struct AssembleParams {
  Tensor content;       // [distinct, dim]; absent if there are no such tokens
  Tensor context;       // [context rows, dim]; absent if there are none
  Tensor row_index;     // i32 [tokens]
  Tensor action_rows;   // [codes, dim]; absent: none
  Tensor action_index;  // i32 [tokens]
  double scale = 1;
  Tensor position_table;  // [buckets, dim]; absent: none
  Tensor position_index;  // i32 [tokens]
  Tensor time_table;      // [buckets, dim]; absent: none
  Tensor time_index;      // i32 [tokens]
  Dropout dropout;
  Tensor keep;  // bytes [tokens, assemble_keep_bytes], written by forward; absent: drawn again
};
/// Forward may leave what dropout decided for backward, as gate_forward does: see gate_keep_bytes.
/// 0: of no use for this device, width or dropout. `p` needs nothing but its dropout.
int64_t assemble_keep_bytes(const Exec& exec, const AssembleParams& p, int64_t dim);

/// `norm`, if it has a result, is made of x in the same pass.
void assemble_forward(const Exec& exec, const AssembleParams& p, const Tensor& x,
                      const FollowingNorm& norm = {});

/// Gradients of everything that assemble reads, each += and summed in token order, float
/// throughout: dcontent, dcontext, daction (with the factor `scale`), dposition, dtime (without).
/// Any may be absent. In mode kBf16 the per-token gradient is rounded after dropout and after the
/// scale.
struct AssembleGradients {
  Tensor content, context, action, position, time;
};
void assemble_backward(const Exec& exec, const AssembleParams& p, const Tensor& dx,
                       const AssembleGradients& gradients);

/// Geometry of the encoders for packed sequences.
struct PositionParams {
  std::span<const int64_t> offsets;      // [sequences + 1] tokens
  std::span<const int64_t> num_targets;  // target TOKENS per sequence; empty: no target notion
  int64_t contextual_len = 0;            // leading tokens that keep their own index
  int64_t position_buckets = 0;
  int64_t time_buckets = 0;  // rows of the time table
  double time_bucket_seconds = 60.0;
};
/// Position of token t of a sequence of length n: t < contextual_len -> t; otherwise, with
/// high = n - num_targets (n without a notion of targets): high - min(t, high) + contextual_len.
/// Both are clamped to buckets - 1.
void position_indices(const PositionParams& p, std::span<int32_t> out);
/// Bucket of age: trunc(sqrt(max(float(query - timestamp), 1e-6) / bucket_seconds)) clamped to the
/// table, query = timestamp of the sequence's last token. Float arithmetic exactly as written.
void time_indices(const PositionParams& p, std::span<const int64_t> timestamps,
                  std::span<int32_t> out);

}  // namespace segue::ops
