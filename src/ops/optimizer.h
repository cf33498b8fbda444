#pragma once

#include <cstdint>
#include <span>

#include "tensor/exec.h"

namespace segue::ops {

struct AdamParams {
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
  double weight_decay = 0;  // times the parameter, added to the scaled gradient
  int64_t t = 1;            // number of this update, counting from 1
};
/// p -= lr / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + eps), with g scaled by
/// `gradient_scale` (f64 [1] on exec's device; absent: 1) first. All others flat and contiguous, of
/// equal type. Where `enabled` (f64 [1] on exec's device; absent: 1) is 0 nothing changes.
void adam_update(const Exec& exec, const AdamParams& p, const Tensor& gradient_scale,
                 const Tensor& gradient, const Tensor& m, const Tensor& v, const Tensor& parameter,
                 const Tensor& enabled = {});

/// out (f64 [1]) = sum of squares of a flat tensor, in double, fixed chunks added in order.
void sum_of_squares(const Exec& exec, const Tensor& x, const Tensor& out);

/// out (f64 [1]) = 1 if all values (flat f64) are finite, else 0: what updates are enabled by when
/// the host has not seen the values yet.
void all_finite(const Exec& exec, const Tensor& values, const Tensor& out);

/// scale = min(1, clip_norm / (sqrt(sum_of_squares) + 1e-6)), or 1 if clip_norm is 0; both f64 [1].
/// The norm never has to visit the host.
void clip_scale(const Exec& exec, const Tensor& sum_of_squares, double clip_norm,
                const Tensor& scale);

enum class RowOptimizer { kRowwiseAdagrad, kAdagrad, kSgd, kAdam };

struct RowUpdateParams {
  RowOptimizer kind = RowOptimizer::kRowwiseAdagrad;
  double lr = 0, eps = 1e-8, beta1 = 0.9, beta2 = 0.999;
  int64_t t = 1;  // kAdam: bias correction of this step
};
/// Number of state values a row of width `dim` needs: 1, dim, 0, 2 * dim.
int64_t row_state_size(RowOptimizer kind, int64_t dim);

/// Updates rows `ids` (distinct) of `table` [rows, dim] with one summed gradient each [n, dim]:
///   row-wise Adagrad: acc += mean(g^2); w -= lr / (sqrt(acc) + eps) * g    (eps outside the root)
///   Adagrad:          the same per element
///   SGD:              w -= lr * g
///   Adam:             m, v per element; only touched rows move
/// state [rows, row_state_size] (Adam: m, then v), in the type of the table; gradients may be float
/// or double. ids i64. Row addresses are 64 bit. Error(kOutOfRange) leaves the table as it was, and
/// so does `enabled` (f64 [1] on exec's device; absent: 1) where it is 0. `mean_squares` (f64 [n],
/// row-wise Adagrad only) stands for mean(g^2) where the table holds some columns of wider rows.
struct TableUpdate {
  Tensor ids, gradients, table, state;
  Tensor mean_squares = {};
};
void rowwise_update(const Exec& exec, const RowUpdateParams& p, const TableUpdate& update,
                    const Tensor& enabled = {});
/// Several tables of one width and type: on a GPU one launch. Gradients are used as they are after
/// a trip over `wire` (kF16 or kBf16; kF32: as they are).
void update_tables(const Exec& exec, const RowUpdateParams& p, std::span<const TableUpdate> parts,
                   DType wire, const Tensor& enabled = {});

/// out[i] (f64) = sum of squares of row i of x, divided by `width`: the part that these columns
/// have in the mean square of a row of that width.
void row_mean_squares(const Exec& exec, const Tensor& x, int64_t width, const Tensor& out);

}  // namespace segue::ops
