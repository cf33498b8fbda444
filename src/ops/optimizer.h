#pragma once

#include <cmath>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/rng.h"
#include "tensor/exec.h"

namespace segue::ops {

enum class DenseOptimizer { kAdam, kAdamW };
inline constexpr DenseOptimizer kDenseOptimizers[] = {DenseOptimizer::kAdam,
                                                      DenseOptimizer::kAdamW};

struct DenseUpdateParams {
  DenseOptimizer kind = DenseOptimizer::kAdam;
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
  double weight_decay = 0;
  double clip_norm = 0;  // longest gradient that is used as it is; 0: none is too long
  int64_t t = 1;         // number of this update, counting from 1
};
/// Names of the arrays that an optimizer keeps beside the parameters, each as long as they are and
/// 0 at first.
std::span<const std::string_view> dense_states(DenseOptimizer kind);
/// The name that papers and logs use.
std::string_view published_name(DenseOptimizer kind);

/// One update of all parameters, with g scaled first by what clip_scale says of `gradient_squares`
/// (f64 [1] on exec's device, which the host never has to see; absent: 1):
///   Adam:  g += weight_decay * p;  m, v are means of g and g^2 that decay by beta1 and beta2;
///          p -= lr / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + eps)
///   AdamW: p -= lr * weight_decay * p, then as Adam with g as it was
/// `states` are what dense_states names. All flat and contiguous, of equal type. Unless all values
/// of `finite` (flat f64 on exec's device; absent: none) are finite, nothing changes.
void dense_update(const Exec& exec, const DenseUpdateParams& p, const Tensor& gradient_squares,
                  const Tensor& gradient, std::span<const Tensor> states, const Tensor& parameter,
                  const Tensor& finite = {});

/// min(1, clip_norm / (sqrt(sum_of_squares) + 1e-6)), or 1 if clip_norm is 0.
SEGUE_HOST_DEVICE inline double clip_scale(double sum_of_squares, double clip_norm) {
  constexpr double kClipEps = 1e-6;  // as PyTorch's clip_grad_norm_
  const double ratio = clip_norm / (sqrt(sum_of_squares) + kClipEps);
  // Written so that a norm that is not a number does not become a harmless factor.
  return clip_norm > 0 ? (1.0 < ratio ? 1.0 : ratio) : 1.0;
}

/// out (f64 [1]) = sum of squares of a flat tensor, in double, fixed chunks added in order.
void sum_of_squares(const Exec& exec, const Tensor& x, const Tensor& out);
/// The same of several flat float tensors at once: out (f64 [tensors]).
void sums_of_squares(const Exec& exec, std::span<const Tensor> x, const Tensor& out);

enum class RowOptimizer { kRowwiseAdagrad, kAdagrad, kSgd, kAdam };

struct RowUpdateParams {
  RowOptimizer kind = RowOptimizer::kRowwiseAdagrad;
  double lr = 0, eps = 1e-8, beta1 = 0.9, beta2 = 0.999;
  int64_t t = 1;  // kAdam: bias correction of this step
};

/// What an optimizer keeps of a row beside its weights: a number for every column, or one that all
/// columns of the row make together.
struct RowState {
  std::string_view name;
  bool of_whole_row = false;
  int64_t columns(int64_t dim) const { return of_whole_row ? 1 : dim; }
};
/// In the order in which they lie side by side; either all or none are of the whole row.
std::span<const RowState> row_states(RowOptimizer kind);
/// Their columns together.
int64_t row_state_size(RowOptimizer kind, int64_t dim);
/// The name that papers and logs use.
std::string_view published_name(RowOptimizer kind);

/// Updates rows `ids` (distinct; -1: none) of `table` [rows, dim] with one summed gradient each
/// [n, dim]:
///   row-wise Adagrad: acc += mean(g^2); w -= lr / (sqrt(acc) + eps) * g    (eps outside the root)
///   Adagrad:          the same per element
///   SGD:              w -= lr * g
///   Adam:             m, v per element; only touched rows move
/// state [rows, row_state_size], in the type of the table; gradients may be float
/// or double. ids i64. Row addresses are 64 bit. Error(kOutOfRange) leaves the table as it was, and
/// so does a value of `finite` that is not (as in dense_update). `mean_squares` (f64 [n],
/// row-wise Adagrad only) stands for mean(g^2) where the table holds some columns of wider rows.
struct TableUpdate {
  Tensor ids, gradients, table, state;
  Tensor mean_squares = {};
};
void rowwise_update(const Exec& exec, const RowUpdateParams& p, const TableUpdate& update,
                    const Tensor& finite = {});
/// Several tables of one width and type: on a GPU one launch. Gradients are used as they are after
/// a trip over `wire` (kF16 or kBf16; kF32: as they are).
void update_tables(const Exec& exec, const RowUpdateParams& p, std::span<const TableUpdate> parts,
                   DType wire, const Tensor& finite = {});

/// out[i] (f64) = sum of squares of row i of x, divided by `width`: the part that these columns
/// have in the mean square of a row of that width.
void row_mean_squares(const Exec& exec, const Tensor& x, int64_t width, const Tensor& out);

}  // namespace segue::ops
