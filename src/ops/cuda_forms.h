#pragma once

#include <span>
#include <string>

#include "ops/assemble.h"
#include "ops/bags.h"
#include "ops/contextual.h"
#include "ops/deferred_sums.h"
#include "ops/gate.h"
#include "ops/gemm.h"
#include "ops/head_bias.h"
#include "ops/interaction.h"
#include "ops/loss.h"
#include "ops/norm.h"
#include "ops/optimizer.h"
#include "ops/rows.h"

namespace segue::ops {

struct TokenFill;    // token_rules.h
struct RowExchange;  // exchange.h
struct RowPair;

/// An op opens with `if constexpr (kHasCuda) { if (exec.device.is_cuda()) return cuda::op(...); }`:
/// a build without CUDA never names the functions below, so it needs no stubs for them.
inline constexpr bool kHasCuda = SEGUE_HAS_CUDA != 0;

/// The CUDA form of every op: same contract, work is queued on exec.stream and nothing waits.
/// Activations are bf16 or f32, parameters and statistics f32; Error(kUnsupported) for double. What
/// the mode kBf16 of the CPU rounds more than once on the way to a float (gradients of parameters,
/// scaled sums) is kept in float here. An index outside its table stops the kernel: the next
/// synchronisation reports it.
namespace cuda {

void gemm(const Exec& exec, Trans trans_a, const Tensor& a, Trans trans_b, const Tensor& b,
          const Tensor& c, const GemmExtra& extra);
/// False if this batch must be done product by product.
bool gemm_each(const Exec& exec, Trans trans_a, const Tensor& a, Trans trans_b, const Tensor& b,
               const Tensor& c, bool accumulate);
void column_sum(const Exec& exec, const Tensor& x, const Tensor& out);
void fold_partials(const Exec& exec, std::span<const DeferredSums::Fold> folds);
std::string gemm_library();

void norm_forward(const Exec& exec, const NormParams& p, const Tensor& x, const Tensor& y,
                  const NormStats& stats, const Tensor& addend);
void norm_backward(const Exec& exec, const NormParams& p, const Tensor& dy, const Tensor& x,
                   const NormStats& stats, const Tensor& residual, const Tensor& dx,
                   const NormGradients& gradients);
void swish_norm_forward(const Exec& exec, const NormParams& p, const Tensor& x, const Tensor& y,
                        const NormStats& stats);
void swish_norm_backward(const Exec& exec, const NormParams& p, const Tensor& dy, const Tensor& x,
                         const NormStats& stats, const Tensor& dx, const NormGradients& gradients);
void l2_normalize_forward(const Exec& exec, const Tensor& x, double eps, const Tensor& y);
void l2_normalize_backward(const Exec& exec, const Tensor& dy, const Tensor& x, double eps,
                           const Tensor& dx);

void gate_forward(const Exec& exec, const GateParams& p, const Tensor& y, const NormStats& stats);
void gate_backward(const Exec& exec, const GateParams& p, const NormStats& stats, const Tensor& dy,
                   const Tensor& du, const Tensor& da, const GateGradients& gradients);
void silu_forward(const Exec& exec, const Tensor& x, const Tensor& y);
void silu_backward(const Exec& exec, const Tensor& dy, const Tensor& x, const Tensor& dx,
                   const Tensor& sums);

void gather_rows(const Exec& exec, const Tensor& from, const Tensor& index, const Tensor& to);
void scatter_rows(const Exec& exec, const Tensor& from, const Tensor& index, const Tensor& to);
void exchange_rows(const Exec& exec, const RowExchange& rows, std::span<const RowPair> pairs);
void take(const Exec& exec, const Tensor& from, const Tensor& index, const Tensor& to);
void mix(const Exec& exec, const Tensor& from, const Tensor& to);
void gather_tables(const Exec& exec, std::span<const TableRows> parts, DType wire);
void segment_sum(const Exec& exec, const Tensor& from, const Tensor& index, const Tensor& to,
                 double scale, const SortedIndex& sorted);
void convert(const Exec& exec, const Tensor& from, const Tensor& to);
void multiply_forward(const Exec& exec, const Tensor& a, const Tensor& b, const Tensor& y);
void multiply_backward(const Exec& exec, const Tensor& dy, const Tensor& a, const Tensor& b,
                       const Tensor& da, const Tensor& db);
void add(const Exec& exec, const Tensor& a, const Tensor& b, const Tensor& y);
void scale(const Exec& exec, const Tensor& x, double factor, const Tensor& y);
void relu_forward(const Exec& exec, const Tensor& x, const Tensor& y);
void relu_backward(const Exec& exec, const Tensor& dy, const Tensor& x, const Tensor& dx);
void round_rows_to_bf16(const Exec& exec, const Tensor& x);
void round_rows_to_f16(const Exec& exec, const Tensor& x);

void bag_sum_forward(const Exec& exec, const Tensor& from, const Tensor& index,
                     const Tensor& offsets, const Tensor& y);
void dot_interaction_forward(const Exec& exec, const Tensor& x, int64_t count, const Tensor& y);
void dot_interaction_backward(const Exec& exec, const Tensor& dy, const Tensor& x, int64_t count,
                              const Tensor& dx);

void assemble_forward(const Exec& exec, const AssembleParams& p, const Tensor& x,
                      const FollowingNorm& norm);
void assemble_backward(const Exec& exec, const AssembleParams& p, const Tensor& dx,
                       const AssembleGradients& gradients);

void fill_token_arrays(const Exec& exec, const TokenFill& fill);

void contextual_linear_forward(const Exec& exec, const Tensor& e, const Tensor& weight,
                               const Tensor& bias, const Tensor& y);
void contextual_linear_backward(const Exec& exec, const Tensor& dy, const Tensor& e,
                                const Tensor& weight, const Tensor& de, const Tensor& dweight,
                                const Tensor& dbias);
void action_encode_forward(const Exec& exec, const Tensor& table, const Tensor& target,
                           const Tensor& code, const Tensor& y);
void action_encode_backward(const Exec& exec, const Tensor& dy, const Tensor& code,
                            const Tensor& dtable, const Tensor& dtarget);
void cyclic_time_features(const Exec& exec, const CyclicParams& p, const Tensor& timestamps,
                          const Tensor& out);

void head_bias_gradients(const Exec& exec, std::span<const HeadBiasGradient> parts);
void head_bias_dot(const Exec& exec, const Tensor& x, double factor, const Tensor& bias,
                   const Tensor& y, const Tensor& dot);
void head_bias_add(const Exec& exec, const Tensor& x, const Tensor& weights, const Tensor& bias,
                   double factor, const Tensor& y);

void loss_forward_backward(const Exec& exec, TaskKind kind, const Tensor& logits,
                           const Tensor& labels, const Tensor& weights, double factor,
                           const Tensor& dlogits, const Tensor& predictions,
                           const Tensor& loss_sum);

void dense_update(const Exec& exec, const DenseUpdateParams& p, const Tensor& gradient_squares,
                  const Tensor& gradient, std::span<const Tensor> states, const Tensor& parameter,
                  const Tensor& finite);
void sums_of_squares(const Exec& exec, std::span<const Tensor> x, const Tensor& out);
void update_tables(const Exec& exec, const RowUpdateParams& p, std::span<const TableUpdate> parts,
                   DType wire, const Tensor& finite);
void row_mean_squares(const Exec& exec, const Tensor& x, int64_t width, const Tensor& out);

}  // namespace cuda
}  // namespace segue::ops
