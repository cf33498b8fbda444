#include "ops/gate.h"

#include "ops/cuda_forms.h"
#include "ops/dropout_row.h"
#include "ops/gemm.h"
#include "ops/norm_rows.h"
#include "ops/row_chunks.h"
#include "ops/row_loop.h"
#include "ops/vector_math.h"

namespace segue::ops {
namespace {

void check_matrix(const Tensor& t, int64_t rows, int64_t columns, DType dtype) {
  SEGUE_ASSERT(t.rank == 2 && t.size(0) == rows && t.size(1) == columns, "gate: wrong shape");
  SEGUE_ASSERT(t.dtype == dtype && (t.stride(1) == 1 || columns <= 1),
               "gate: matrices of one type with unit column stride");
}

void check_gate(const GateParams& p, const Tensor& y) {
  const int64_t rows = p.a.size(0), width = p.a.size(1);
  check_matrix(p.a, rows, width, p.a.dtype);
  check_matrix(p.u, rows, width, p.a.dtype);
  check_matrix(y, rows, p.concat ? 3 * width : width, p.a.dtype);
}

}  // namespace

void gate_forward(const Exec& exec, const GateParams& p, const Tensor& y, const NormStats& stats) {
  if constexpr (kHasCuda) {
    if (exec.device.is_cuda()) return cuda::gate_forward(exec, p, y, stats);
  }
  require_cpu(exec, "gate_forward");
  check_gate(p, y);
  const Arena::Mark scratch(*exec.arena);
  const int64_t rows = p.a.size(0), width = p.a.size(1), y_columns = y.size(1);
  dispatch_activation(exec, p.a.dtype, [&](auto zero_value, auto round) {
    using T = decltype(zero_value);
    const NormRows<T> norm(exec, p.norm, stats, rows, width);
    const DropoutRows dropout(exec, p.dropout);
    for_rows(rows, y_columns, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const T* ur = p.u.row<T>(r);
        const T* ar = p.a.row<T>(r);
        T* yr = y.row<T>(r);
        for (int64_t g = 0; g < norm.groups(); ++g) {
          const auto s = norm.measure(r, g, ar);
          if (p.concat) {
#pragma GCC ivdep
            for (int64_t j = s.begin; j < s.end; ++j) {
              const T u = round(silu(ur[j]));
              yr[j] = u;
              yr[width + j] = ar[j];
              yr[2 * width + j] = u * norm.apply(s, ar[j], j);
            }
          } else {
#pragma GCC ivdep
            for (int64_t j = s.begin; j < s.end; ++j) {
              yr[j] = round(silu(ur[j])) * norm.apply(s, ar[j], j);
            }
          }
        }
        if (dropout.active()) {
          dropout.apply(r, y_columns, yr, yr, round);
        } else {
          for (int64_t j = 0; j < y_columns; ++j) yr[j] = round(yr[j]);
        }
      }
    });
  });
}

void gate_backward(const Exec& exec, const GateParams& p, const NormStats& stats, const Tensor& dy,
                   const Tensor& du, const Tensor& da, const GateGradients& gradients) {
  if constexpr (kHasCuda) {
    if (exec.device.is_cuda()) {
      return cuda::gate_backward(exec, p, stats, dy, du, da, gradients);
    }
  }
  require_cpu(exec, "gate_backward");
  check_gate(p, dy);
  const int64_t rows = p.a.size(0), width = p.a.size(1), y_columns = dy.size(1);
  check_matrix(du, rows, width, p.a.dtype);
  check_matrix(da, rows, width, p.a.dtype);
  const Arena::Mark scratch(*exec.arena);
  dispatch_activation(exec, p.a.dtype, [&](auto zero_value, auto round) {
    using T = decltype(zero_value);
    const NormRows<T> norm(exec, p.norm, stats, rows, width);
    const DropoutRows dropout(exec, p.dropout);
    RowChunks<T> chunks(exec, rows, 2 * width, width + y_columns);
    chunks.for_each([&](int64_t begin, int64_t end, T* sums, T* row_scratch) {
      T* dn = row_scratch;            // gradient of g = norm(a)
      T* kept = row_scratch + width;  // dy behind the dropout
      for (int64_t r = begin; r < end; ++r) {
        const T* ur = p.u.row<T>(r);
        const T* ar = p.a.row<T>(r);
        const T* dyr = dy.row<T>(r);
        T* dur = du.row<T>(r);
        if (dropout.active()) {
          dropout.apply(r, y_columns, dyr, kept, NoRounding{});
          dyr = kept;
        }
        const T* d_gated = p.concat ? dyr + 2 * width : dyr;
        for (int64_t g = 0; g < norm.groups(); ++g) {
          const auto s = norm.saved(r, g);
          const auto back = [&](int64_t j, T d_u) {
            const Silu<T> u(ur[j]);
            dn[j] = d_gated[j] * round(u.value);
            dur[j] = round((d_u + d_gated[j] * norm.apply(s, ar[j], j)) * u.derivative);
          };
          if (p.concat) {
#pragma GCC ivdep
            for (int64_t j = s.begin; j < s.end; ++j) back(j, dyr[j]);
          } else {
#pragma GCC ivdep
            for (int64_t j = s.begin; j < s.end; ++j) back(j, T(0));
          }
        }
        norm.backward(r, dn, ar, p.concat ? dyr + width : nullptr, da.row<T>(r), sums, round);
      }
    });
    norm.add_gradients(chunks.totals(), gradients.weight, gradients.bias);
  });
  if (gradients.u_bias) column_sum(exec, du, gradients.u_bias);
}

int64_t gate_keep_bytes(const Exec& exec, const GateParams& p) {
  constexpr int64_t kWordBytes = 4, kColumns = 8, kGroups = 4, kWidest = 8192;
  const int64_t width = p.a.size(1);
  if (!exec.device.is_cuda() || p.dropout.p <= 0) return 0;
  if (width % (kColumns * p.norm.groups) != 0 || width > kWidest) return 0;
  // As rows are dealt out on a GPU (wide_lanes.cuh): 32, 64, 128 or 256 lanes take 1, 2 or 4 groups
  // of 8 columns each from every part of y; a word holds four groups.
  int64_t lanes = 32, groups = width <= kColumns * lanes ? 1 : 2;
  while (lanes < 256 && lanes * groups * kColumns < width) lanes *= 2;
  while (lanes * groups * kColumns < width) groups *= 2;
  groups *= p.concat ? 3 : 1;
  return (groups + kGroups - 1) / kGroups * kWordBytes * lanes;
}

void silu_forward(const Exec& exec, const Tensor& x, const Tensor& y) {
  if constexpr (kHasCuda) {
    if (exec.device.is_cuda()) return cuda::silu_forward(exec, x, y);
  }
  require_cpu(exec, "silu_forward");
  const int64_t rows = x.size(0), columns = x.size(1);
  check_matrix(x, rows, columns, x.dtype);
  check_matrix(y, rows, columns, x.dtype);
  dispatch_activation(exec, x.dtype, [&](auto zero_value, auto round) {
    using T = decltype(zero_value);
    for_rows(rows, columns, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const T* xr = x.row<T>(r);
        T* yr = y.row<T>(r);
#pragma GCC ivdep
        for (int64_t j = 0; j < columns; ++j) yr[j] = round(silu(xr[j]));
      }
    });
  });
}

void silu_backward(const Exec& exec, const Tensor& dy, const Tensor& x, const Tensor& dx,
                   const Tensor& sums) {
  if constexpr (kHasCuda) {
    if (exec.device.is_cuda()) return cuda::silu_backward(exec, dy, x, dx, sums);
  }
  require_cpu(exec, "silu_backward");
  const int64_t rows = x.size(0), columns = x.size(1);
  check_matrix(x, rows, columns, x.dtype);
  check_matrix(dy, rows, columns, x.dtype);
  check_matrix(dx, rows, columns, x.dtype);
  dispatch_activation(exec, x.dtype, [&](auto zero_value, auto round) {
    using T = decltype(zero_value);
    for_rows(rows, columns, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const T* xr = x.row<T>(r);
        const T* dyr = dy.row<T>(r);
        T* dxr = dx.row<T>(r);
#pragma GCC ivdep
        for (int64_t j = 0; j < columns; ++j) dxr[j] = round(dyr[j] * silu_derivative(xr[j]));
      }
    });
  });
  if (sums) column_sum(exec, dx, sums);
}

}  // namespace segue::ops
