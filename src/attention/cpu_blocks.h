#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>

#include "attention/hstu_mask.h"
#include "base/bf16.h"
#include "base/parallel.h"
#include "ops/vector_math.h"
#include "tensor/exec.h"

/// What the blocked CPU kernels of this room share: scratch and tasks, blocks of the mask, and the
/// element-wise step between the matrix products.
namespace segue::attention::detail {

/// Score tiles are kQueryBlock x kKeyBlock. Keys and values of one key block, their gradients and
/// two tiles fit into 1 MiB of second-level cache at head size 128. Fewer queries per block waste
/// less work on the diagonal, more of them make the products faster.
inline constexpr int64_t kQueryBlock = 64;
inline constexpr int64_t kKeyBlock = 512;

/// Columns [begin, end) of one sequence.
struct Span {
  int64_t begin = 0, end = 0;

  int64_t size() const { return end - begin; }
  bool empty() const { return end <= begin; }
  int64_t clamp(int64_t j) const { return std::clamp(j, begin, end); }
};

/// Rows [begin, end) of one sequence, at most kQueryBlock, and what each of them sees.
class QueryBlock {
 public:
  QueryBlock(const HstuMask& mask, int64_t first, int64_t last, int64_t n, int64_t targets)
      : begin(first), end(last) {
    for (int64_t i = begin; i < end; ++i) {
      const HstuMask::Row r = mask.row(i, n, targets);
      rows_[static_cast<size_t>(i - begin)] = r;
      if (r.lo < r.hi) {
        first_part_ = first_part_.empty() ? Span{r.lo, r.hi}
                                          : Span{std::min(first_part_.begin, r.lo),
                                                 std::max(first_part_.end, r.hi)};
      }
      own_part_.begin = std::min(own_part_.begin, r.group_lo);
      prefix_end_ = std::max(prefix_end_, r.prefix);
    }
    own_part_.end = end;
  }

  int64_t size() const { return end - begin; }
  const HstuMask::Row& row(int64_t r) const { return rows_[static_cast<size_t>(r)]; }

  /// Calls body(run) for the smallest runs of columns of `keys` outside of which no row sees
  /// anything: of a global prefix, and of the rest.
  template <class Body>
  void for_visible(Span keys, Body&& body) const {
    const Span a{keys.clamp(first_part_.begin), keys.clamp(first_part_.end)};
    const Span b{keys.clamp(own_part_.begin), keys.clamp(own_part_.end)};
    Span rest{std::min(a.begin, b.begin), std::max(a.end, b.end)};
    if (a.empty()) rest = b;
    if (b.empty()) rest = a;
    const int64_t prefix_end = keys.clamp(prefix_end_);
    const Span prefix{keys.begin, rest.empty() ? prefix_end : std::min(prefix_end, rest.begin)};
    if (!prefix.empty()) body(prefix);
    if (!rest.empty()) body(rest);
  }

  /// Calls shown(begin, end) for the runs of columns inside `keys` that row r of the block sees and
  /// hidden(begin, end) for those between, counted from keys.begin: no test per element.
  template <class Shown, class Hidden>
  void split(int64_t r, Span keys, Shown&& shown, Hidden&& hidden) const {
    const HstuMask::Row& see = row(r);
    const int64_t a_begin = keys.clamp(see.lo) - keys.begin;
    const int64_t a_end = keys.clamp(see.hi) - keys.begin;
    const int64_t b_begin = keys.clamp(see.group_lo) - keys.begin;
    const int64_t b_end = std::max(b_begin, keys.clamp(begin + r + 1) - keys.begin);
    const int64_t prefix_end = keys.clamp(see.prefix) - keys.begin;
    shown(0, prefix_end);
    hidden(prefix_end, a_begin);
    if (a_end == b_begin) {  // history rows: one run up to the diagonal
      shown(a_begin, b_end);
    } else {
      shown(a_begin, a_end);
      hidden(a_end, b_begin);
      shown(b_begin, b_end);
    }
    hidden(b_end, keys.size());
  }

  int64_t begin, end;

 private:
  std::array<HstuMask::Row, kQueryBlock> rows_;
  int64_t prefix_end_ = 0;
  Span first_part_;
  Span own_part_{INT64_MAX, 0};
};

/// Mode kBf16 rounds where the GPU feeds a tensor core; elsewhere this is the identity.
template <bool kRound, class T>
inline T rounded(T value) {
  if constexpr (kRound) {
    return static_cast<T>(round_to_bf16(static_cast<float>(value)));
  } else {
    return value;
  }
}

/// Some rows of one head as a matrix: unit column stride, any row stride.
template <class T>
struct Rows {
  T* data = nullptr;
  int64_t stride = 0;

  T* row(int64_t i) const { return data + i * stride; }
};

/// s -> p = mask * silu(s) * scale, in place, for a tile of scores. Each query of the block has
/// `per_query` consecutive rows in it.
template <bool kRound, class T>
void score_tile(const QueryBlock& block, Span keys, Rows<T> tile, T scale, int64_t per_query = 1) {
  for (int64_t r = 0; r < block.size() * per_query; ++r) {
    T* s = tile.row(r);
    const auto shown = [s, scale](int64_t begin, int64_t end) {
      for (int64_t j = begin; j < end; ++j) s[j] = rounded<kRound>(ops::silu(s[j]) * scale);
    };
    const auto hidden = [s](int64_t begin, int64_t end) { std::fill(s + begin, s + end, T{0}); };
    block.split(r / per_query, keys, shown, hidden);
  }
}

/// (s, dp) -> (p, ds) in place: ds = mask * dp * silu'(s) * scale.
template <bool kRound, class T>
void score_gradient_tile(const QueryBlock& block, Span keys, Rows<T> tile, Rows<T> grad_tile,
                         T scale, int64_t per_query = 1) {
  for (int64_t r = 0; r < block.size() * per_query; ++r) {
    T* __restrict s = tile.row(r);
    T* __restrict ds = grad_tile.row(r);
    const auto shown = [s, ds, scale](int64_t begin, int64_t end) {
      for (int64_t j = begin; j < end; ++j) {
        const ops::Silu<T> silu(s[j]);
        ds[j] = rounded<kRound>(ds[j] * silu.derivative * scale);
        s[j] = rounded<kRound>(silu.value * scale);
      }
    };
    const auto hidden = [s, ds](int64_t begin, int64_t end) {
      std::fill(s + begin, s + end, T{0});
      std::fill(ds + begin, ds + end, T{0});
    };
    block.split(r / per_query, keys, shown, hidden);
  }
}

template <class T>
Rows<T> head_rows(const Tensor& t, int64_t first_row, int64_t head) {
  return {t.row<T>(first_row) + head * t.stride(1), t.stride(0)};
}

template <class T>
void copy_rows(Rows<T> to, Rows<T> from, int64_t rows, int64_t columns) {
  for (int64_t i = 0; i < rows; ++i) {
    std::memcpy(to.row(i), from.row(i), static_cast<size_t>(columns) * sizeof(T));
  }
}

template <class T>
void zero_rows(Rows<T> to, int64_t rows, int64_t columns) {
  for (int64_t i = 0; i < rows; ++i) std::fill_n(to.row(i), columns, T{0});
}

/// Calls body(task, scratch) for every task, in parallel. Each worker has its own
/// `scratch_elements` from the arena, taken once; which worker does which task is left to chance,
/// so a task must be complete in itself.
template <class T, class Body>
void for_each_task(const Exec& exec, int64_t tasks, int64_t scratch_elements, Body&& body) {
  if (tasks == 0) return;
  constexpr int64_t kLine = 64 / static_cast<int64_t>(sizeof(T));
  const int64_t share = (scratch_elements + kLine - 1) / kLine * kLine;
  const int64_t workers = std::min<int64_t>(base::num_threads(), tasks);
  const Arena::Mark mark(*exec.arena);
  T* scratch = exec.arena->tensor(kDTypeOf<T>, {workers, share}).template ptr<T>();
  std::atomic<int64_t> next{0};
  base::parallel_for(workers, 1, [&](int64_t worker, int64_t) {
    for (;;) {
      const int64_t task = next.fetch_add(1, std::memory_order_relaxed);
      if (task >= tasks) break;
      body(task, scratch + worker * share);
    }
  });
}

}  // namespace segue::attention::detail
