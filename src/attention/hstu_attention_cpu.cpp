#include "attention/hstu_attention.h"

#include <algorithm>
#include <cstdint>
#include <span>

#include "attention/backends.h"
#include "attention/cpu_blocks.h"
#include "ops/gemm.h"

// Letters: n rows of a sequence, s score, p = silu(s) * scale, d... gradient of.

namespace segue::attention {
namespace {

using detail::kKeyBlock;
using detail::kQueryBlock;
using detail::QueryBlock;
using detail::Rows;
using detail::Span;
using ops::gemm_tile;
using ops::Trans;

/// Queries of one forward task: the copies of keys and values are shared by this many.
constexpr int64_t kQueriesPerTask = 512;
constexpr int64_t kWholeSequence = INT64_MAX / 2;

struct Shape {
  int64_t heads, qk_dim, v_dim;
};

/// One head of one sequence.
struct Sequence {
  int64_t first_row, n, targets, head;
  /// Rows [0, context) see all of history, later ones nothing right of themselves. A query block
  /// never holds both kinds: it would compute for each row what only the other kind needs.
  int64_t context;
};

/// Tasks (sequence, head, piece of `piece` queries), long sequences first so that none is left over
/// for the end. Lives in the arena.
class Schedule {
 public:
  Schedule(const Exec& exec, const HstuAttentionParams& p, int64_t heads, int64_t piece)
      : p_(p), heads_(heads), piece_(piece) {
    const auto sequences = static_cast<int64_t>(p.offsets.size()) - 1;
    order_ = exec.arena->tensor(DType::kI64, {sequences}).span<int64_t>();
    first_task_ = exec.arena->tensor(DType::kI64, {sequences + 1}).span<int64_t>();
    for (int64_t b = 0; b < sequences; ++b) order_[static_cast<size_t>(b)] = b;
    std::sort(order_.begin(), order_.end(), [this](int64_t a, int64_t b) {
      return length(a) != length(b) ? length(a) > length(b) : a < b;
    });
    first_task_[0] = 0;
    for (size_t k = 0; k < order_.size(); ++k) {
      first_task_[k + 1] = first_task_[k] + heads_ * pieces(order_[k]);
    }
  }

  int64_t tasks() const { return first_task_.back(); }

  /// The sequence, head and query rows of one task.
  Sequence task(int64_t index, Span* queries) const {
    const auto after = std::upper_bound(first_task_.begin(), first_task_.end(), index);
    const auto k = static_cast<size_t>(after - first_task_.begin()) - 1;
    const int64_t b = order_[k];
    const int64_t local = index - first_task_[k];
    const int64_t n = length(b);
    const int64_t targets = p_.num_targets.empty() ? 0 : p_.num_targets[static_cast<size_t>(b)];
    SEGUE_ASSERT(targets >= 0 && targets <= n, "attention: more targets than rows");
    queries->begin = local % pieces(b) * piece_;
    queries->end = std::min(n, queries->begin + piece_);
    const int64_t context = n - targets >= p_.mask.contextual_len ? p_.mask.contextual_len : 0;
    return {p_.offsets[static_cast<size_t>(b)], n, targets, local / pieces(b), context};
  }

 private:
  int64_t length(int64_t b) const {
    return p_.offsets[static_cast<size_t>(b) + 1] - p_.offsets[static_cast<size_t>(b)];
  }
  int64_t pieces(int64_t b) const { return (length(b) + piece_ - 1) / piece_; }

  const HstuAttentionParams& p_;
  int64_t heads_, piece_;
  std::span<int64_t> order_;       // [sequences] sequences, long ones first
  std::span<int64_t> first_task_;  // [sequences + 1]
};

/// Calls body(block, keys) for the query blocks of `queries` that see something of `key_block`, in
/// ascending order.
template <class Body>
void for_each_block(const HstuMask& mask, const Sequence& seq, Span queries, Span key_block,
                    Body&& body) {
  int64_t begin = queries.begin;
  while (begin < queries.end) {
    const int64_t limit = begin < seq.context ? std::min(seq.context, queries.end) : queries.end;
    const int64_t end = std::min(begin + kQueryBlock, limit);
    const QueryBlock block(mask, begin, end, seq.n, seq.targets);
    block.for_visible(key_block, [&](Span keys) { body(block, keys); });
    begin = end;
  }
}

/// The one rounding of a finished result in mode kBf16.
template <bool kRound, class T>
void round_rows(Rows<T> to, int64_t rows, int64_t columns) {
  if constexpr (kRound) {
    for (int64_t i = 0; i < rows; ++i) {
      T* x = to.row(i);
      for (int64_t d = 0; d < columns; ++d) x[d] = detail::rounded<kRound>(x[d]);
    }
  }
}

template <bool kRound, class T>
void forward_task(const HstuAttentionParams& p, const Shape& shape, const Sequence& seq,
                  Span queries, const Tensor& out, T* scratch) {
  const int64_t qk_dim = shape.qk_dim;
  const int64_t v_dim = shape.v_dim;
  // Heads of packed buffers lie thousands of bytes apart, which no cache likes: the products work
  // on dense copies.
  const Rows<T> k_block{scratch, qk_dim};
  const Rows<T> v_block{k_block.row(kKeyBlock), v_dim};
  const Rows<T> q_block{v_block.row(kKeyBlock), qk_dim};
  const Rows<T> tile{q_block.row(kQueryBlock), kKeyBlock};

  const Rows<T> q = detail::head_rows<T>(p.q, seq.first_row, seq.head);
  const Rows<T> k = detail::head_rows<T>(p.k, seq.first_row, seq.head);
  const Rows<T> v = detail::head_rows<T>(p.v, seq.first_row, seq.head);
  const Rows<T> o = detail::head_rows<T>(out, seq.first_row + queries.begin, seq.head);
  const T alpha = static_cast<T>(p.alpha);
  const T scale = static_cast<T>(p.scale);

  detail::zero_rows(o, queries.size(), v_dim);
  for (int64_t k0 = 0; k0 < seq.n; k0 += kKeyBlock) {
    const Span key_block{k0, std::min(seq.n, k0 + kKeyBlock)};
    bool copied = false;
    for_each_block(p.mask, seq, queries, key_block, [&](const QueryBlock& block, Span keys) {
      if (!copied) {
        detail::copy_rows(k_block, {k.row(k0), k.stride}, key_block.size(), qk_dim);
        detail::copy_rows(v_block, {v.row(k0), v.stride}, key_block.size(), v_dim);
        copied = true;
      }
      const int64_t rows = block.size();
      detail::copy_rows(q_block, {q.row(block.begin), q.stride}, rows, qk_dim);
      gemm_tile(Trans::kNo, Trans::kYes, rows, keys.size(), qk_dim, alpha, q_block.data, qk_dim,
                k_block.row(keys.begin - k0), qk_dim, T{0}, tile.data, tile.stride);
      detail::score_tile<kRound>(block, keys, tile, scale);
      gemm_tile(Trans::kNo, Trans::kNo, rows, v_dim, keys.size(), T{1}, tile.data, tile.stride,
                v_block.row(keys.begin - k0), v_dim, T{1}, o.row(block.begin - queries.begin),
                o.stride);
    });
  }
  round_rows<kRound>(o, queries.size(), v_dim);
}

template <bool kRound, class T>
void backward_task(const HstuAttentionParams& p, const Shape& shape, const Sequence& seq,
                   const Tensor& grad_o, const Tensor& grad_q, const Tensor& grad_k,
                   const Tensor& grad_v, T* scratch) {
  const int64_t qk_dim = shape.qk_dim;
  const int64_t v_dim = shape.v_dim;
  const Rows<T> k_block{scratch, qk_dim};
  const Rows<T> v_block{k_block.row(kKeyBlock), v_dim};
  const Rows<T> dk_block{v_block.row(kKeyBlock), qk_dim};
  const Rows<T> dv_block{dk_block.row(kKeyBlock), v_dim};
  const Rows<T> q_block{dv_block.row(kKeyBlock), qk_dim};
  const Rows<T> do_block{q_block.row(kQueryBlock), v_dim};
  const Rows<T> tile{do_block.row(kQueryBlock), kKeyBlock};
  const Rows<T> grad_tile{tile.row(kQueryBlock), kKeyBlock};

  const Rows<T> q = detail::head_rows<T>(p.q, seq.first_row, seq.head);
  const Rows<T> k = detail::head_rows<T>(p.k, seq.first_row, seq.head);
  const Rows<T> v = detail::head_rows<T>(p.v, seq.first_row, seq.head);
  const Rows<T> d_o = detail::head_rows<T>(grad_o, seq.first_row, seq.head);
  const Rows<T> dq = detail::head_rows<T>(grad_q, seq.first_row, seq.head);
  const Rows<T> dk = detail::head_rows<T>(grad_k, seq.first_row, seq.head);
  const Rows<T> dv = detail::head_rows<T>(grad_v, seq.first_row, seq.head);
  const T alpha = static_cast<T>(p.alpha);
  const T scale = static_cast<T>(p.scale);

  detail::zero_rows(dq, seq.n, qk_dim);
  for (int64_t k0 = 0; k0 < seq.n; k0 += kKeyBlock) {
    const Span key_block{k0, std::min(seq.n, k0 + kKeyBlock)};
    detail::copy_rows(k_block, {k.row(k0), k.stride}, key_block.size(), qk_dim);
    detail::copy_rows(v_block, {v.row(k0), v.stride}, key_block.size(), v_dim);
    detail::zero_rows(dk_block, key_block.size(), qk_dim);
    detail::zero_rows(dv_block, key_block.size(), v_dim);
    for_each_block(p.mask, seq, {0, seq.n}, key_block, [&](const QueryBlock& block, Span keys) {
      const int64_t rows = block.size();
      const int64_t at = keys.begin - k0;
      detail::copy_rows(q_block, {q.row(block.begin), q.stride}, rows, qk_dim);
      detail::copy_rows(do_block, {d_o.row(block.begin), d_o.stride}, rows, v_dim);
      gemm_tile(Trans::kNo, Trans::kYes, rows, keys.size(), qk_dim, alpha, q_block.data, qk_dim,
                k_block.row(at), qk_dim, T{0}, tile.data, tile.stride);
      gemm_tile(Trans::kNo, Trans::kYes, rows, keys.size(), v_dim, T{1}, do_block.data, v_dim,
                v_block.row(at), v_dim, T{0}, grad_tile.data, grad_tile.stride);
      detail::score_gradient_tile<kRound>(block, keys, tile, grad_tile, scale);
      gemm_tile(Trans::kYes, Trans::kNo, keys.size(), v_dim, rows, T{1}, tile.data, tile.stride,
                do_block.data, v_dim, T{1}, dv_block.row(at), v_dim);
      gemm_tile(Trans::kYes, Trans::kNo, keys.size(), qk_dim, rows, alpha, grad_tile.data,
                grad_tile.stride, q_block.data, qk_dim, T{1}, dk_block.row(at), qk_dim);
      gemm_tile(Trans::kNo, Trans::kNo, rows, qk_dim, keys.size(), alpha, grad_tile.data,
                grad_tile.stride, k_block.row(at), qk_dim, T{1}, dq.row(block.begin), dq.stride);
    });
    round_rows<kRound>(dk_block, key_block.size(), qk_dim);
    round_rows<kRound>(dv_block, key_block.size(), v_dim);
    detail::copy_rows({dk.row(k0), dk.stride}, dk_block, key_block.size(), qk_dim);
    detail::copy_rows({dv.row(k0), dv.stride}, dv_block, key_block.size(), v_dim);
  }
  round_rows<kRound>(dq, seq.n, qk_dim);
}

}  // namespace

void cpu::forward(const Exec& exec, const HstuAttentionParams& p, const Tensor& o) {
  const Shape shape{p.q.size(1), p.q.size(2), p.v.size(2)};
  const Arena::Mark mark(*exec.arena);
  const Schedule schedule(exec, p, shape.heads, kQueriesPerTask);
  const int64_t scratch_elements =
      kKeyBlock * (shape.qk_dim + shape.v_dim) + kQueryBlock * (shape.qk_dim + kKeyBlock);
  dispatch_real(p.q.dtype, [&](auto zero) {
    using T = decltype(zero);
    const auto run = exec.rounds_to_bf16() ? forward_task<true, T> : forward_task<false, T>;
    detail::for_each_task<T>(exec, schedule.tasks(), scratch_elements,
                             [&](int64_t task, T* scratch) {
                               Span queries;
                               const Sequence seq = schedule.task(task, &queries);
                               run(p, shape, seq, queries, o, scratch);
                             });
  });
}

void cpu::backward(const Exec& exec, const HstuAttentionParams& p, const Tensor& grad_o,
                   const Tensor& dq, const Tensor& dk, const Tensor& dv) {
  const Shape shape{p.q.size(1), p.q.size(2), p.v.size(2)};
  const Arena::Mark mark(*exec.arena);
  // Every query adds to the same dk and dv, so a head of a sequence stays in one piece.
  const Schedule schedule(exec, p, shape.heads, kWholeSequence);
  const int64_t scratch_elements =
      (2 * kKeyBlock + kQueryBlock) * (shape.qk_dim + shape.v_dim) + 2 * kQueryBlock * kKeyBlock;
  dispatch_real(p.q.dtype, [&](auto zero) {
    using T = decltype(zero);
    const auto run = exec.rounds_to_bf16() ? backward_task<true, T> : backward_task<false, T>;
    detail::for_each_task<T>(exec, schedule.tasks(), scratch_elements,
                             [&](int64_t task, T* scratch) {
                               Span queries;
                               const Sequence seq = schedule.task(task, &queries);
                               run(p, shape, seq, grad_o, dq, dk, dv, scratch);
                             });
  });
}

}  // namespace segue::attention
