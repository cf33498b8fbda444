#pragma once

#include <span>

#include "tensor/exec.h"

namespace segue::ops {

/// to[i] = from[index[i]] for i32 or i64 `index` [n]; index -1 gives a zero row. Types may differ
/// between float and double. Any rank-2 strides with unit columns.
void gather_rows(const Exec& exec, const Tensor& from, const Tensor& index, const Tensor& to);

/// to[i] = from[index[i]]: i32 or i64 by i32 `index`, which has no -1.
void take(const Exec& exec, const Tensor& from, const Tensor& index, const Tensor& to);
/// to[i] = base::splitmix64(from[i]): i64.
void mix(const Exec& exec, const Tensor& from, const Tensor& to);

/// gather_rows from several tables at once, all of one width and type: on a GPU one launch. Values
/// pass through `wire` (kF16 or kBf16; kF32: as they are) on the way.
struct TableRows {
  Tensor table, index, to;
};
void gather_tables(const Exec& exec, std::span<const TableRows> parts, DType wire = DType::kF32);

/// to[index[i]] += from[i] (-1: nothing), duplicates summed in order of i (in fixed pieces) before
/// they are added, times `scale`. No atomics: work is split by destination, so the result does not
/// depend on threads or skew. Types may differ as above.
/// A GPU sorts the index first, unless that was done before (`sorted`, made by sort_index).
struct SortedIndex {
  Tensor keys, items;  // i32 [n]
};
void segment_sum(const Exec& exec, const Tensor& from, const Tensor& index, const Tensor& to,
                 double scale = 1, const SortedIndex& sorted = {});
/// items: 0 .. n-1 in the order of their destinations, equal ones as they come, -1 last; keys: the
/// destination of each, `destinations` for -1. Host work.
void sort_index(std::span<const int32_t> index, int64_t destinations, std::span<int32_t> keys,
                std::span<int32_t> items);

/// y = a * b; backward: da = dy * b, db = dy * a (either may be absent; both overwritten, neither
/// may be dy). Rounded once in mode kBf16. On a GPU a and da may have another type than the rest.
void multiply_forward(const Exec& exec, const Tensor& a, const Tensor& b, const Tensor& y);
void multiply_backward(const Exec& exec, const Tensor& dy, const Tensor& a, const Tensor& b,
                       const Tensor& da, const Tensor& db);

/// y = a + b, rounded once in mode kBf16; y may alias a or b.
void add(const Exec& exec, const Tensor& a, const Tensor& b, const Tensor& y);

/// to = from where the types differ: equally shaped, rows may be strided, rounded to nearest. The
/// border between float and bf16 activations on a GPU.
void convert(const Exec& exec, const Tensor& from, const Tensor& to);

/// y = factor * x, rounded once in mode kBf16; y may alias x. On a GPU types may differ.
void scale(const Exec& exec, const Tensor& x, double factor, const Tensor& y);

/// y = max(x, 0), NaN stays NaN; dx = dy where x > 0. y may be x, dx may be dy.
void relu_forward(const Exec& exec, const Tensor& x, const Tensor& y);
void relu_backward(const Exec& exec, const Tensor& dy, const Tensor& x, const Tensor& dx);

/// Rounds in place to the activation type (mode kBf16; nothing to do in the others), or, in every
/// mode, through IEEE half as a 16-bit wire would, or through any wire (kF32: not at all).
void round_rows_to_bf16(const Exec& exec, const Tensor& x);
void round_rows_to_f16(const Exec& exec, const Tensor& x);
void round_rows_to_wire(const Exec& exec, DType wire, const Tensor& x);

}  // namespace segue::ops
