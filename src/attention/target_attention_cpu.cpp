#include <algorithm>
#include <cstdint>
#include <span>

#include "attention/cpu_blocks.h"
#include "attention/hstu_attention.h"
#include "ops/gemm.h"
#include "ops/vector_math.h"
#if SEGUE_HAS_CUDA
#include "attention/target_attention_cuda.h"
#endif

// A block of targets times its heads are the rows of a score tile, rows of h its columns. With many
// targets the products are real matrix products, with one target a pass over h.

namespace segue::attention {
namespace {

using detail::kKeyBlock;
using detail::kQueryBlock;
using detail::QueryBlock;
using detail::Rows;
using detail::Span;
using ops::gemm_tile;
using ops::Trans;

struct Shape {
  int64_t rows, targets, heads, dim;

  /// Targets per block, so that a tile has about kQueryBlock rows.
  int64_t block_targets() const { return std::max<int64_t>(1, kQueryBlock / heads); }
  int64_t tile_elements() const { return block_targets() * heads * kKeyBlock; }
};

Shape check(const Exec& exec, const TargetAttentionParams& p) {
  require_cpu(exec, "target_attention");
  SEGUE_ASSERT(exec.arena != nullptr, "target attention: needs an arena for scratch");
  SEGUE_ASSERT(p.mask.target_group == 1, "target attention: targets must not see each other");
  SEGUE_ASSERT(p.num_targets.size() + 1 == p.offsets.size(),
               "target attention: one number of targets per sequence");
  SEGUE_ASSERT(p.h.rank == 2 && p.h.stride(1) == 1, "target attention: h is [rows, dim]");
  SEGUE_ASSERT(p.h.size(0) >= p.offsets.back(), "target attention: h ends too early");
  SEGUE_ASSERT(p.key_query.rank == 3, "target attention: key_query is [targets, heads, dim]");
  return {p.h.size(0), p.key_query.size(0), p.key_query.size(1), p.h.size(1)};
}

/// A contiguous [targets, heads, dim] as the matrix with rows target * heads + head.
template <class T>
Rows<T> per_head(const Tensor& t, const Shape& shape) {
  SEGUE_ASSERT(t.rank == 3 && t.size(0) == shape.targets && t.size(1) == shape.heads &&
                   t.size(2) == shape.dim && t.is_contiguous(),
               "target attention: operand is not a dense [targets, heads, dim]");
  return {t.ptr<T>(), shape.dim};
}

/// A contiguous [targets, heads] as the vector with the same rows.
template <class T>
T* per_head_scalar(const Tensor& t, const Shape& shape) {
  SEGUE_ASSERT(
      t.rank == 2 && t.size(0) == shape.targets && t.size(1) == shape.heads && t.is_contiguous(),
      "target attention: operand is not a dense [targets, heads]");
  return t.ptr<T>();
}

/// One sequence: its rows of h and where its targets stand among all targets.
struct Sequence {
  int64_t first_row, n, targets, first_target;
};

/// Calls body(sequence, scratch) for all sequences, in parallel.
template <class T, class Body>
void for_each_sequence(const Exec& exec, const TargetAttentionParams& p, const Shape& shape,
                       int64_t scratch_elements, Body&& body) {
  const Arena::Mark mark(*exec.arena);
  const auto sequences = static_cast<int64_t>(p.num_targets.size());
  const auto first_target = exec.arena->tensor(DType::kI64, {sequences}).span<int64_t>();
  int64_t sum = 0;
  for (size_t b = 0; b < first_target.size(); ++b) {
    SEGUE_ASSERT(p.num_targets[b] >= 0 && p.num_targets[b] <= p.offsets[b + 1] - p.offsets[b],
                 "target attention: more targets than rows");
    first_target[b] = sum;
    sum += p.num_targets[b];
  }
  SEGUE_ASSERT(sum == shape.targets, "target attention: key_query has another number of targets");
  detail::for_each_task<T>(exec, sequences, scratch_elements, [&](int64_t task, T* scratch) {
    const auto b = static_cast<size_t>(task);
    const Sequence seq{p.offsets[b], p.offsets[b + 1] - p.offsets[b], p.num_targets[b],
                       first_target[b]};
    body(seq, scratch);
  });
}

/// Calls body(block, at, keys) for the blocks of targets and the runs of rows they see; `at` is the
/// block's first row in a [targets * heads, dim] matrix.
template <class Body>
void for_each_block(const HstuMask& mask, const Shape& shape, const Sequence& seq, Body&& body) {
  const int64_t history_end = seq.n - seq.targets;
  for (int64_t begin = history_end; begin < seq.n; begin += shape.block_targets()) {
    const int64_t end = std::min(seq.n, begin + shape.block_targets());
    const QueryBlock block(mask, begin, end, seq.n, seq.targets);
    const int64_t at = (seq.first_target + begin - history_end) * shape.heads;
    for (int64_t k0 = 0; k0 < seq.n; k0 += kKeyBlock) {
      block.for_visible({k0, std::min(seq.n, k0 + kKeyBlock)},
                        [&](Span keys) { body(block, at, keys); });
    }
  }
}

/// tile [rows, keys] = x h^T + bias.
template <class T>
void product_with_rows(const T* x, const T* bias, int64_t rows, int64_t dim, Rows<T> h, Span keys,
                       Rows<T> tile) {
  gemm_tile(Trans::kNo, Trans::kYes, rows, keys.size(), dim, T{1}, x, dim, h.row(keys.begin),
            h.stride, T{0}, tile.data, tile.stride);
  for (int64_t r = 0; r < rows; ++r) {
    T* s = tile.row(r);
    for (int64_t j = 0; j < keys.size(); ++j) s[j] += bias[r];
  }
}

/// sum [rows] += the sums of the rows of a tile.
template <class T>
void add_row_sums(Rows<T> tile, int64_t rows, int64_t columns, T* sum) {
  for (int64_t r = 0; r < rows; ++r) {
    const T* x = tile.row(r);
    sum[r] += ops::lane_sum<T>(columns, [x](int64_t j) { return x[j]; });
  }
}

}  // namespace

Tensor target_attention_plan([[maybe_unused]] const Exec& exec,
                             [[maybe_unused]] const TargetAttentionParams& p) {
#if SEGUE_HAS_CUDA
  if (exec.device.is_cuda()) return cuda::target_attention_plan(exec, p);
#endif
  return {};
}

void target_attention_forward(const Exec& exec, const TargetAttentionParams& p, const Tensor& z,
                              const Tensor& p_sum) {
#if SEGUE_HAS_CUDA
  if (exec.device.is_cuda()) return cuda::target_attention_forward(exec, p, z, p_sum);
#endif
  const Shape shape = check(exec, p);
  const int64_t dim = shape.dim;
  dispatch_real(p.h.dtype, [&](auto zero) {
    using T = decltype(zero);
    const Rows<T> query = per_head<T>(p.key_query, shape);
    const T* bias = per_head_scalar<T>(p.key_bias, shape);
    const Rows<T> out = per_head<T>(z, shape);
    T* sum = per_head_scalar<T>(p_sum, shape);
    detail::zero_rows(out, shape.targets * shape.heads, dim);
    std::fill_n(sum, shape.targets * shape.heads, T{0});

    const auto run = [&](const Sequence& seq, T* scratch) {
      const Rows<T> h{p.h.row<T>(seq.first_row), p.h.stride(0)};
      const Rows<T> tile{scratch, kKeyBlock};
      for_each_block(p.mask, shape, seq, [&](const QueryBlock& block, int64_t at, Span keys) {
        const int64_t rows = block.size() * shape.heads;
        product_with_rows<T>(query.row(at), bias + at, rows, dim, h, keys, tile);
        detail::score_tile<false>(block, keys, tile, static_cast<T>(p.scale), shape.heads);
        add_row_sums(tile, rows, keys.size(), sum + at);
        gemm_tile(Trans::kNo, Trans::kNo, rows, dim, keys.size(), T{1}, tile.data, tile.stride,
                  h.row(keys.begin), h.stride, T{1}, out.row(at), dim);
      });
    };
    for_each_sequence<T>(exec, p, shape, shape.tile_elements(), run);
  });
}

void target_attention_backward(const Exec& exec, const TargetAttentionParams& p, const Tensor& dz,
                               const Tensor& dp_sum, const Tensor& dh, const Tensor& dkey_query,
                               const Tensor& dkey_bias) {
#if SEGUE_HAS_CUDA
  if (exec.device.is_cuda()) {
    return cuda::target_attention_backward(exec, p, dz, dp_sum, dh, dkey_query, dkey_bias);
  }
#endif
  const Shape shape = check(exec, p);
  const int64_t dim = shape.dim;
  SEGUE_ASSERT(dh.rank == 2 && dh.stride(1) == 1 && dh.size(0) == shape.rows && dh.size(1) == dim,
               "target attention: dh is not [rows, dim]");
  dispatch_real(p.h.dtype, [&](auto zero) {
    using T = decltype(zero);
    const Rows<T> query = per_head<T>(p.key_query, shape);
    const T* bias = per_head_scalar<T>(p.key_bias, shape);
    const Rows<T> grad_z = per_head<T>(dz, shape);
    const T* grad_sum = per_head_scalar<T>(dp_sum, shape);
    const Rows<T> grad_query = per_head<T>(dkey_query, shape);
    T* grad_bias = per_head_scalar<T>(dkey_bias, shape);
    detail::zero_rows(grad_query, shape.targets * shape.heads, dim);
    std::fill_n(grad_bias, shape.targets * shape.heads, T{0});

    const auto run = [&](const Sequence& seq, T* scratch) {
      const Rows<T> h{p.h.row<T>(seq.first_row), p.h.stride(0)};
      const Rows<T> grad_h{dh.row<T>(seq.first_row), dh.stride(0)};
      const Rows<T> tile{scratch, kKeyBlock};
      const Rows<T> grad_tile{scratch + shape.tile_elements(), kKeyBlock};
      detail::zero_rows(grad_h, seq.n, dim);
      for_each_block(p.mask, shape, seq, [&](const QueryBlock& block, int64_t at, Span keys) {
        const int64_t rows = block.size() * shape.heads;
        product_with_rows<T>(query.row(at), bias + at, rows, dim, h, keys, tile);
        product_with_rows<T>(grad_z.row(at), grad_sum + at, rows, dim, h, keys, grad_tile);
        detail::score_gradient_tile<false>(block, keys, tile, grad_tile, static_cast<T>(p.scale),
                                           shape.heads);
        add_row_sums(grad_tile, rows, keys.size(), grad_bias + at);
        gemm_tile(Trans::kYes, Trans::kNo, keys.size(), dim, rows, T{1}, grad_tile.data,
                  grad_tile.stride, query.row(at), dim, T{1}, grad_h.row(keys.begin),
                  grad_h.stride);
        gemm_tile(Trans::kYes, Trans::kNo, keys.size(), dim, rows, T{1}, tile.data, tile.stride,
                  grad_z.row(at), dim, T{1}, grad_h.row(keys.begin), grad_h.stride);
        gemm_tile(Trans::kNo, Trans::kNo, rows, dim, keys.size(), T{1}, grad_tile.data,
                  grad_tile.stride, h.row(keys.begin), h.stride, T{1}, grad_query.row(at), dim);
      });
    };
    for_each_sequence<T>(exec, p, shape, 2 * shape.tile_elements(), run);
  });
}

bool target_attention_norms([[maybe_unused]] const Exec& exec, [[maybe_unused]] const Tensor& x) {
#if SEGUE_HAS_CUDA
  if (exec.device.is_cuda()) return cuda::target_attention_norms(x);
#endif
  return false;
}

void target_attention_forward(const Exec& exec, const TargetAttentionParams& p,
                              const TargetNorm& norm, const Tensor& z, const Tensor& p_sum) {
  SEGUE_ASSERT(target_attention_norms(exec, p.h), "target attention: no norm for these rows");
#if SEGUE_HAS_CUDA
  cuda::target_attention_forward(exec, p, norm, z, p_sum);
#else
  (void)norm, (void)z, (void)p_sum;
#endif
}

void target_attention_backward(const Exec& exec, const TargetAttentionParams& p,
                               const TargetNorm& norm, const Tensor& p_sum, const Tensor& dz,
                               const Tensor& dp_sum, const Tensor& dx, const Tensor& dkey_query,
                               const Tensor& dkey_bias, const ops::NormGradients& gradients) {
  SEGUE_ASSERT(target_attention_norms(exec, p.h), "target attention: no norm for these rows");
#if SEGUE_HAS_CUDA
  cuda::target_attention_backward(exec, p, norm, p_sum, dz, dp_sum, dx, dkey_query, dkey_bias,
                                  gradients);
#else
  (void)norm, (void)p_sum, (void)dz, (void)dp_sum, (void)dx, (void)dkey_query, (void)dkey_bias;
  (void)gradients;
#endif
}

}  // namespace segue::attention
