#pragma once

#include <cstdint>

#include "ops/gemm_fallback.h"

// The blocked product, to be included by one .cpp file per instruction set. Everything is in an
// unnamed namespace and calls no other inline function, so that no copy compiled for a wider
// instruction set can be linked into code that runs on every CPU.
//
// Loop nest, outside in: blocks of n, of k (pack b), of m (pack a); panels of kRows rows of a,
// which stay in L1; panels of `kColumns` columns of b, which stream from L2 through the kernel.

namespace segue::ops::detail {
namespace {

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;
constexpr int kRows = 14;  // 28 of 32 registers hold sums
#else
#if defined(__AVX__)
constexpr int kVectorBytes = 32;
#else
constexpr int kVectorBytes = 16;
#endif
constexpr int kRows = 6;  // 12 of 16
#endif
static_assert(kBlockM % kRows == 0);

template <class T>
struct Simd {
  typedef T Vector __attribute__((vector_size(kVectorBytes)));
  static constexpr int kLanes = kVectorBytes / static_cast<int>(sizeof(T));
  static constexpr int kColumns = 2 * kLanes;  // of one kernel call
};

template <class T>
inline typename Simd<T>::Vector load(const T* from) {
  typename Simd<T>::Vector v;
  __builtin_memcpy(&v, from, sizeof(v));
  return v;
}

template <class T>
inline void store(T* to, const typename Simd<T>::Vector& v) {
  __builtin_memcpy(to, &v, sizeof(v));
}

inline int64_t smaller(int64_t x, int64_t y) { return x < y ? x : y; }

/// Copies `width` of up to `full` columns of a [depth, width] operand, element (p, j) at
/// from[p * row_stride + j * column_stride], to to[p * full + j]; missing columns become zero.
template <class T>
void pack_panel(const T* from, int64_t row_stride, int64_t column_stride, int64_t depth,
                int64_t width, int64_t full, T* __restrict to) {
  if (width < full) {
    for (int64_t i = 0; i < depth * full; ++i) to[i] = 0;
  }
  if (column_stride == 1) {
    for (int64_t p = 0; p < depth; ++p) {
      for (int64_t j = 0; j < width; ++j) to[p * full + j] = from[p * row_stride + j];
    }
  } else {
    for (int64_t j = 0; j < width; ++j) {
      const T* column = from + j * column_stride;
      for (int64_t p = 0; p < depth; ++p) to[p * full + j] = column[p * row_stride];
    }
  }
}

/// c [kRows, kColumns] = alpha * (panel of a)(panel of b) + beta * c.
template <class T>
inline void kernel(int64_t depth, const T* a, const T* b, T alpha, T beta, T* c, int64_t ldc) {
  using Vector = typename Simd<T>::Vector;
  constexpr int kLanes = Simd<T>::kLanes;
  Vector sum[kRows][2] = {};
  for (int64_t p = 0; p < depth; ++p) {
    const Vector b0 = load(b + p * 2 * kLanes);
    const Vector b1 = load(b + p * 2 * kLanes + kLanes);
#pragma GCC unroll 14
    for (int i = 0; i < kRows; ++i) {
      const T ai = a[p * kRows + i];
      sum[i][0] += ai * b0;
      sum[i][1] += ai * b1;
    }
  }
#pragma GCC unroll 14
  for (int i = 0; i < kRows; ++i) {
    T* row = c + i * ldc;
    if (beta == 0) {
      store(row, alpha * sum[i][0]);
      store(row + kLanes, alpha * sum[i][1]);
    } else {
      store(row, alpha * sum[i][0] + beta * load(row));
      store(row + kLanes, alpha * sum[i][1] + beta * load(row + kLanes));
    }
  }
}

/// The kernel for a panel that reaches over the edge of c: works on a copy, with the same
/// arithmetic.
template <class T>
void kernel_at_edge(int64_t depth, const T* a, const T* b, T alpha, T beta, T* c, int64_t ldc,
                    int64_t rows, int64_t columns) {
  constexpr int kColumns = Simd<T>::kColumns;
  alignas(kVectorBytes) T tile[kRows * kColumns] = {};
  if (beta != 0) {
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < columns; ++j) tile[i * kColumns + j] = c[i * ldc + j];
    }
  }
  kernel(depth, a, b, alpha, beta, tile, kColumns);
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) c[i * ldc + j] = tile[i * kColumns + j];
  }
}

/// Sum of x[p] * y[p]: 32 interleaved sums, then pairwise, whatever the width of a vector.
template <class T>
T dot_product(const T* x, const T* y, int64_t count) {
  constexpr int64_t kSums = 32;
  T sum[kSums] = {};
  int64_t p = 0;
  for (; p + kSums <= count; p += kSums) {
    for (int64_t i = 0; i < kSums; ++i) sum[i] += x[p + i] * y[p + i];
  }
  for (int64_t i = 0; i < count - p; ++i) sum[i] += x[p + i] * y[p + i];
  for (int64_t width = kSums / 2; width > 0; width /= 2) {
    for (int64_t i = 0; i < width; ++i) sum[i] += sum[i + width];
  }
  return sum[0];
}

/// One row or one column of results from operands that are contiguous along k: packing would cost
/// more than the product.
template <class T>
void thin_gemm(const GemmProblem<T>& q, int64_t a_m, int64_t b_n) {
  for (int64_t i = 0; i < q.m; ++i) {
    for (int64_t j = 0; j < q.n; ++j) {
      T& c = q.c[i * q.ldc + j];
      const T product = q.alpha * dot_product(q.a + i * a_m, q.b + j * b_n, q.k);
      c = q.beta == 0 ? product : product + q.beta * c;
    }
  }
}

template <class T>
void blocked_gemm(const GemmProblem<T>& q, const GemmWorkspace<T>& work) {
  constexpr int64_t kColumns = Simd<T>::kColumns;
  constexpr int64_t kWidth = kBlockN<T>;
  static_assert(kWidth % kColumns == 0);
  // Strides of op(a) and op(b) along k and along the kept dimension.
  const int64_t a_k = q.trans_a ? q.lda : 1, a_m = q.trans_a ? 1 : q.lda;
  const int64_t b_k = q.trans_b ? 1 : q.ldb, b_n = q.trans_b ? q.ldb : 1;
  if ((q.m == 1 || q.n == 1) && (a_k == 1 || q.k == 1) && (b_k == 1 || q.k == 1)) {
    thin_gemm(q, a_m, b_n);
    return;
  }

  for (int64_t n0 = 0; n0 < q.n; n0 += kWidth) {
    const int64_t n1 = smaller(n0 + kWidth, q.n);
    for (int64_t k0 = 0; k0 < q.k; k0 += kBlockK) {
      const int64_t depth = smaller(kBlockK, q.k - k0);
      const T beta = k0 == 0 ? q.beta : T(1);
      for (int64_t j = n0; j < n1; j += kColumns) {
        pack_panel(q.b + k0 * b_k + j * b_n, b_k, b_n, depth, smaller(kColumns, n1 - j), kColumns,
                   work.b + (j - n0) * depth);
      }
      for (int64_t m0 = 0; m0 < q.m; m0 += kBlockM) {
        const int64_t m1 = smaller(m0 + kBlockM, q.m);
        for (int64_t i = m0; i < m1; i += kRows) {
          pack_panel(q.a + k0 * a_k + i * a_m, a_k, a_m, depth, smaller(kRows, m1 - i), kRows,
                     work.a + (i - m0) * depth);
        }
        for (int64_t i = m0; i < m1; i += kRows) {
          const T* a = work.a + (i - m0) * depth;
          for (int64_t j = n0; j < n1; j += kColumns) {
            const T* b = work.b + (j - n0) * depth;
            T* c = q.c + i * q.ldc + j;
            const int64_t rows = smaller(kRows, m1 - i), columns = smaller(kColumns, n1 - j);
            if (rows == kRows && columns == kColumns) {
              kernel(depth, a, b, q.alpha, beta, c, q.ldc);
            } else {
              kernel_at_edge(depth, a, b, q.alpha, beta, c, q.ldc, rows, columns);
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace segue::ops::detail
