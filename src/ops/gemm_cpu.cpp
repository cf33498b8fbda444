#include "ops/gemm.h"

#include <algorithm>
#include <atomic>
#include <string>

#include "base/parallel.h"
#include "ops/cuda_forms.h"
#include "ops/gemm_fallback.h"
#include "ops/row_chunks.h"
#include "ops/row_loop.h"

// A library with a thread pool of its own cannot be held to one thread; such a build takes the
// fallback. Nothing of ours is compiled for OpenMP, so _OPENMP is not defined; its calls are
// linked.
#if SEGUE_HAS_ONEDNN
#include <oneapi/dnnl/dnnl.h>
#if DNNL_CPU_RUNTIME == DNNL_RUNTIME_OMP
#include <omp.h>
#define SEGUE_USE_ONEDNN 1
#endif
#endif
#ifndef SEGUE_USE_ONEDNN
#define SEGUE_USE_ONEDNN 0
#endif

namespace segue::ops {
namespace {

std::atomic<bool> g_force_fallback{false};

#if SEGUE_USE_ONEDNN

/// Some virtual machines report AMX but offer no tiles, and oneDNN dies there with SIGILL. Products
/// in float gain nothing from AMX, so the library is kept from it everywhere. Only works before its
/// first other call.
void prepare_onednn() {
  // The answer does not matter: a library built without this switch has nothing to switch off.
  static const dnnl_status_t kOnce = dnnl_set_max_cpu_isa(dnnl_cpu_isa_avx512_core);
  (void)kOnce;
}

/// oneDNN would start a team of OpenMP threads of its own inside every call. The number set here is
/// the calling thread's own.
class SingleThreadScope {
 public:
  SingleThreadScope() : before_(omp_get_max_threads()) {
    if (before_ != 1) omp_set_num_threads(1);
  }
  ~SingleThreadScope() {
    if (before_ != 1) omp_set_num_threads(before_);
  }
  SingleThreadScope(const SingleThreadScope&) = delete;
  SingleThreadScope& operator=(const SingleThreadScope&) = delete;

 private:
  int before_;
};

bool use_onednn() { return !g_force_fallback.load(std::memory_order_relaxed); }

void onednn_tile(const GemmProblem<float>& q) {
  prepare_onednn();
  const SingleThreadScope single_thread;
  const dnnl_status_t status = dnnl_sgemm(q.trans_a ? 'T' : 'N', q.trans_b ? 'T' : 'N', q.m, q.n,
                                          q.k, q.alpha, q.a, q.lda, q.b, q.ldb, q.beta, q.c, q.ldc);
  SEGUE_ASSERT(status == dnnl_success, "dnnl_sgemm");
}

std::string describe_onednn() {
  prepare_onednn();
  const auto isa_name = [] {
    switch (dnnl_get_effective_cpu_isa()) {
      case dnnl_cpu_isa_sse41:
        return "sse41";
      case dnnl_cpu_isa_avx:
        return "avx";
      case dnnl_cpu_isa_avx2:
        return "avx2";
      case dnnl_cpu_isa_avx512_core:
        return "avx512_core";
      default:
        return "other";
    }
  };
  const dnnl_version_t* version = dnnl_version();
  return "oneDNN " + std::to_string(version->major) + '.' + std::to_string(version->minor) + '.' +
         std::to_string(version->patch) + " (" + isa_name() + ')';
}

#else

bool use_onednn() { return false; }
void onednn_tile(const GemmProblem<float>&) {}
std::string describe_onednn() { return {}; }

#endif

void run_tile(const GemmProblem<double>& q) { gemm_fallback(q); }
void run_tile(const GemmProblem<float>& q) {
  if (use_onednn() && q.m > 0 && q.n > 0 && q.k > 0) return onednn_tile(q);
  gemm_fallback(q);
}

// ---- how a product is cut ----

/// Tiles of c, and pieces of k that are computed side by side and then added in order. A function
/// of m, n and k alone: this is what makes results independent of the number of threads.
struct Cut {
  int64_t tile_m, tile_n, piece_k;
  int64_t tiles_m, tiles_n, pieces;
};

constexpr int64_t kMaxTile = 512;         // a library call reaches its full speed here
constexpr int64_t kMinTile = 64;          // ... and still most of it here
constexpr int64_t kMinPiece = 1024;       // of k: adding a piece costs little beside computing it
constexpr int64_t kWantedTasks = 32;      // enough for the cores of a laptop or a small server
constexpr double kMinTaskFlops = 32.0e6;  // below this a task is not worth a thread's attention

/// Parts of at most `largest`, nearly equal, a multiple of 16 wide.
int64_t even_part(int64_t size, int64_t largest) {
  const int64_t parts = base::num_chunks(size, largest);
  return (base::num_chunks(size, parts) + 15) / 16 * 16;
}

Cut cut_product(int64_t m, int64_t n, int64_t k) {
  int64_t largest_m = kMaxTile, largest_n = kMaxTile;
  const auto tiles = [&] {
    return base::num_chunks(m, largest_m) * base::num_chunks(n, largest_n);
  };
  // Long k first (gradients of weights): pieces keep the tiles large.
  const int64_t pieces =
      std::clamp<int64_t>(kWantedTasks / tiles(), 1, std::max<int64_t>(1, k / kMinPiece));
  const int64_t piece_k = pieces == 1 ? k : even_part(k, base::num_chunks(k, pieces));
  const auto task_flops = [&] {
    return 2.0 * static_cast<double>(std::min(m, largest_m)) *
           static_cast<double>(std::min(n, largest_n)) * static_cast<double>(piece_k);
  };
  while (tiles() * pieces < kWantedTasks && task_flops() >= 2 * kMinTaskFlops) {
    int64_t& largest = std::min(m, largest_m) >= std::min(n, largest_n) ? largest_m : largest_n;
    if (largest <= kMinTile) break;
    largest /= 2;
  }
  Cut cut{};
  cut.tile_m = even_part(m, largest_m);
  cut.tile_n = even_part(n, largest_n);
  cut.piece_k = piece_k;
  cut.tiles_m = base::num_chunks(m, cut.tile_m);
  cut.tiles_n = base::num_chunks(n, cut.tile_n);
  cut.pieces = pieces == 1 ? 1 : base::num_chunks(k, piece_k);
  return cut;
}

// ---- one product ----

/// Everything about one call of gemm<T>; a and b already rounded where the mode asks for it.
template <class T>
class Product {
 public:
  Product(const Exec& exec, Trans trans_a, const Tensor& a, Trans trans_b, const Tensor& b,
          const Tensor& c, const GemmExtra& extra)
      : exec_(exec),
        trans_a_(trans_a),
        trans_b_(trans_b),
        a_(a),
        b_(b),
        c_(c),
        extra_(extra),
        m_(c.size(0)),
        n_(c.size(1)),
        k_(a.size(trans_a == Trans::kYes ? 0 : 1)),
        cut_(cut_product(m_, n_, k_)),
        // One piece can grow in c itself, unless it must be rounded apart from what c holds.
        direct_(cut_.pieces == 1 && !(extra.accumulate && exec.rounds_to_bf16())) {}

  void run() {
    if (!direct_) partial_ = exec_.arena->tensor(c_.dtype, {cut_.pieces, m_, n_});
    const int64_t tiles = cut_.tiles_m * cut_.tiles_n;
    base::parallel_for(tiles * cut_.pieces, 1, [&](int64_t begin, int64_t end) {
      for (int64_t task = begin; task < end; ++task) {
        const Tile tile = tile_at(task % tiles);
        multiply(tile, task / tiles);
        if (cut_.pieces == 1) finish(tile);
      }
    });
    if (cut_.pieces == 1) return;
    base::parallel_for(m_, row_grain(n_ * cut_.pieces), [&](int64_t begin, int64_t end) {
      finish({begin, end, 0, n_});
    });
  }

 private:
  struct Tile {
    int64_t m0, m1, n0, n1;
  };

  // Neighbours in order share rows of a.
  Tile tile_at(int64_t index) const {
    const int64_t m0 = index / cut_.tiles_n * cut_.tile_m, n0 = index % cut_.tiles_n * cut_.tile_n;
    return {m0, std::min(m0 + cut_.tile_m, m_), n0, std::min(n0 + cut_.tile_n, n_)};
  }

  T* partial_row(int64_t piece, int64_t row) const {
    return partial_.ptr<T>() + (piece * m_ + row) * n_;
  }

  /// Piece `piece` of the product, for one tile.
  void multiply(const Tile& t, int64_t piece) const {
    const int64_t k0 = piece * cut_.piece_k;
    const auto at = [](const Tensor& x, int64_t row, int64_t column) {
      return x.row<T>(row) + column;
    };
    const bool ta = trans_a_ == Trans::kYes, tb = trans_b_ == Trans::kYes;
    GemmProblem<T> q{};
    q.trans_a = ta;
    q.trans_b = tb;
    q.m = t.m1 - t.m0;
    q.n = t.n1 - t.n0;
    q.k = std::min(cut_.piece_k, k_ - k0);
    q.alpha = 1;
    q.a = ta ? at(a_, k0, t.m0) : at(a_, t.m0, k0);
    q.lda = a_.stride(0);
    q.b = tb ? at(b_, t.n0, k0) : at(b_, k0, t.n0);
    q.ldb = b_.stride(0);
    q.beta = direct_ && extra_.accumulate ? T(1) : T(0);
    q.c = direct_ ? at(c_, t.m0, t.n0) : partial_row(piece, t.m0) + t.n0;
    q.ldc = direct_ ? c_.stride(0) : n_;
    run_tile(q);
  }

  /// Adds pieces, bias and residual, rounds, and puts the result into c, which is still in cache.
  void finish(const Tile& t) const {
    const bool round = exec_.rounds_to_bf16();
    if (direct_ && !extra_.bias && !extra_.residual && !round) return;
    const int64_t count = t.n1 - t.n0;
    if (direct_ && !extra_.residual && !round && count <= kPattern / 4 && c_.stride(0) == count) {
      return add_bias_to_narrow(t);
    }
    for (int64_t row = t.m0; row < t.m1; ++row) {
      T* out = c_.row<T>(row) + t.n0;
      T* value = direct_ ? out : partial_row(0, row) + t.n0;
      for (int64_t piece = 1; piece < cut_.pieces; ++piece) {
        add_to(value, partial_row(piece, row) + t.n0, count);
      }
      if (extra_.bias) add_to(value, extra_.bias.ptr<T>() + t.n0, count);
      if (extra_.residual) add_to(value, extra_.residual.row<T>(row) + t.n0, count);
      if (round) {
        for (int64_t j = 0; j < count; ++j) value[j] = round_activation(exec_, value[j]);
      }
      if (direct_) continue;
      if (extra_.accumulate) {
        add_to(out, value, count);
      } else {
        std::copy_n(value, count, out);
      }
    }
  }

  /// Rows that lie one after another take several copies of the bias at once: a loop of its own for
  /// each row of 8 numbers takes longer than their product.
  void add_bias_to_narrow(const Tile& t) const {
    T pattern[kPattern];
    const int64_t rows = kPattern / n_;
    for (int64_t r = 0; r < rows; ++r) std::copy_n(extra_.bias.ptr<T>(), n_, pattern + r * n_);
    for (int64_t row = t.m0; row < t.m1; row += rows) {
      add_to(c_.row<T>(row), pattern, std::min(rows, t.m1 - row) * n_);
    }
  }

  static void add_to(T* to, const T* from, int64_t count) {
    for (int64_t j = 0; j < count; ++j) to[j] += from[j];
  }

  static constexpr int64_t kPattern = 256;

  const Exec& exec_;
  Trans trans_a_, trans_b_;
  const Tensor &a_, &b_, &c_;
  const GemmExtra& extra_;
  int64_t m_, n_, k_;
  Cut cut_;
  bool direct_;
  Tensor partial_;  // [pieces, m, n], unless direct
};

void check_operands(Trans trans_a, const Tensor& a, Trans trans_b, const Tensor& b, const Tensor& c,
                    const GemmExtra& extra) {
  const auto is_matrix = [&](const Tensor& t) {
    return t.rank == 2 && t.dtype == c.dtype && (t.stride(1) == 1 || t.size(1) <= 1);
  };
  SEGUE_ASSERT(is_matrix(a) && is_matrix(b) && is_matrix(c),
               "gemm: matrices of one type, unit column stride");
  const bool ta = trans_a == Trans::kYes, tb = trans_b == Trans::kYes;
  SEGUE_ASSERT(a.size(ta ? 1 : 0) == c.size(0), "gemm: rows of op(a) and c differ");
  SEGUE_ASSERT(b.size(tb ? 0 : 1) == c.size(1), "gemm: columns of op(b) and c differ");
  SEGUE_ASSERT(a.size(ta ? 0 : 1) == b.size(tb ? 1 : 0),
               "gemm: inner sizes of op(a) and op(b) differ");
  if (extra.bias) {
    SEGUE_ASSERT(extra.bias.dtype == c.dtype && extra.bias.is_contiguous() &&
                     extra.bias.elements() == c.size(1),
                 "gemm: bias must be a vector of n");
  }
  if (extra.residual) {
    SEGUE_ASSERT(is_matrix(extra.residual) && extra.residual.size(0) == c.size(0) &&
                     extra.residual.size(1) == c.size(1),
                 "gemm: residual must have the shape of c");
    SEGUE_ASSERT(c.elements() == 0 || extra.residual.data != c.data,
                 "gemm: residual must not be c itself");
  }
}

/// A copy of `t` rounded to bf16, in the arena.
Tensor rounded_copy(const Exec& exec, const Tensor& t) {
  const Tensor from = as_matrix(t);
  const int64_t columns = from.size(1);
  const Tensor to = exec.arena->tensor(DType::kF32, {from.size(0), columns});
  for_rows(from.size(0), columns, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float* x = from.row<float>(r);
      float* y = to.row<float>(r);
      for (int64_t j = 0; j < columns; ++j) y[j] = round_to_bf16(x[j]);
    }
  });
  return to;
}

}  // namespace

void gemm(const Exec& exec, Trans trans_a, const Tensor& a, Trans trans_b, const Tensor& b,
          const Tensor& c, const GemmExtra& extra) {
  if constexpr (kHasCuda) {
    if (exec.device.is_cuda()) return cuda::gemm(exec, trans_a, a, trans_b, b, c, extra);
  }
  require_cpu(exec, "gemm");
  check_operands(trans_a, a, trans_b, b, c, extra);
  if (c.elements() == 0) return;
  const Arena::Mark scratch(*exec.arena);
  if (!exec.rounds_to_bf16()) {
    dispatch_real(c.dtype, [&](auto zero_value) {
      Product<decltype(zero_value)>(exec, trans_a, a, trans_b, b, c, extra).run();
    });
    return;
  }
  SEGUE_ASSERT(c.dtype == DType::kF32, "gemm: mode bf16 computes in float");
  const Tensor a_rounded = rounded_copy(exec, a);
  const Tensor b_rounded = rounded_copy(exec, b);
  GemmExtra extra_rounded = extra;
  if (extra.bias) extra_rounded.bias = rounded_copy(exec, extra.bias);
  const Exec of_result = extra.wide ? exec.with(Precision::kF32) : exec;
  Product<float>(of_result, trans_a, a_rounded, trans_b, b_rounded, c, extra_rounded).run();
}

void gemm_each(const Exec& exec, Trans trans_a, const Tensor& a, Trans trans_b, const Tensor& b,
               const Tensor& c, bool accumulate) {
  SEGUE_ASSERT(a.rank == 3 && b.rank == 3 && c.rank == 3, "gemm_each: a matrix for each index");
  SEGUE_ASSERT(a.size(0) == c.size(0) && b.size(0) == c.size(0), "gemm_each: batches differ");
  if (c.elements() == 0) return;
  if constexpr (kHasCuda) {
    if (exec.device.is_cuda() && cuda::gemm_each(exec, trans_a, a, trans_b, b, c, accumulate)) {
      return;
    }
  }
  for (int64_t i = 0; i < c.size(0); ++i) {
    gemm(exec, trans_a, a.select(i), trans_b, b.select(i), c.select(i), {.accumulate = accumulate});
  }
}

void linear_forward(const Exec& exec, const Tensor& x, const Tensor& weight, const Tensor& bias,
                    const Tensor& y) {
  GemmExtra extra;
  extra.bias = bias;
  gemm(exec, Trans::kNo, x, Trans::kYes, weight, y, extra);
}

void linear_backward(const Exec& exec, const Tensor& dy, const Tensor& x, const Tensor& weight,
                     const Tensor& dx, const Tensor& dweight, const Tensor& dbias) {
  if (dx) gemm(exec, Trans::kNo, dy, Trans::kNo, weight, dx);
  GemmExtra extra;
  extra.accumulate = true;
  gemm(exec, Trans::kYes, dy, Trans::kNo, x, dweight, extra);
  if (dbias) column_sum(exec, dy, dbias);
}

void column_sum(const Exec& exec, const Tensor& x, const Tensor& out) {
  if constexpr (kHasCuda) {
    if (exec.device.is_cuda()) return cuda::column_sum(exec, x, out);
  }
  require_cpu(exec, "column_sum");
  SEGUE_ASSERT(
      x.rank == 2 && out.dtype == x.dtype && out.is_contiguous() && out.elements() == x.size(1),
      "column_sum: out must be a vector of the columns of x");
  const Arena::Mark scratch(*exec.arena);
  dispatch_real(x.dtype, [&](auto zero_value) {
    using T = decltype(zero_value);
    const int64_t columns = x.size(1);
    RowChunks<T> chunks(exec, x.size(0), columns);
    chunks.for_each([&](int64_t begin, int64_t end, T* sums, T*) {
      for_column_blocks(columns, [&](auto width, int64_t first) {
        const T* row = x.row<T>(begin) + first;
        T sum[width] = {};
        for (int64_t r = begin; r < end; ++r, row += x.stride(0)) {
          for (int64_t j = 0; j < width; ++j) sum[j] += row[j];
        }
        for (int64_t j = 0; j < width; ++j) sums[first + j] = sum[j];
      });
    });
    const T* totals = chunks.totals();
    T* to = out.ptr<T>();
    for (int64_t j = 0; j < columns; ++j) to[j] += round_activation(exec, totals[j]);
  });
}

void gemm_tile(Trans trans_a, Trans trans_b, int64_t m, int64_t n, int64_t k, float alpha,
               const float* a, int64_t lda, const float* b, int64_t ldb, float beta, float* c,
               int64_t ldc) {
  run_tile(GemmProblem<float>{trans_a == Trans::kYes, trans_b == Trans::kYes, m, n, k, alpha, a,
                              lda, b, ldb, beta, c, ldc});
}

void gemm_tile(Trans trans_a, Trans trans_b, int64_t m, int64_t n, int64_t k, double alpha,
               const double* a, int64_t lda, const double* b, int64_t ldb, double beta, double* c,
               int64_t ldc) {
  run_tile(GemmProblem<double>{trans_a == Trans::kYes, trans_b == Trans::kYes, m, n, k, alpha, a,
                               lda, b, ldb, beta, c, ldc});
}

const char* gemm_backend() {
  if (use_onednn()) {
    static const std::string kOnednn = describe_onednn();
    return kOnednn.c_str();
  }
  static const std::string kFallback = std::string("fallback (") + to_string(best_gemm_isa()) + ')';
  return kFallback.c_str();
}

std::string gemm_gpu_backend() {
  if constexpr (kHasCuda) return cuda::gemm_library();
  return "not in this build";
}

void force_gemm_fallback(bool fallback) {
  g_force_fallback.store(fallback, std::memory_order_relaxed);
}

}  // namespace segue::ops
