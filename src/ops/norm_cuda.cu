#include "ops/cuda_forms.h"
#include "ops/norm_rows.cuh"
#include "ops/wide_lanes.cuh"

namespace segue::ops::cuda {
namespace {

/// y = norm(x), or x * sigmoid(norm(x)).
template <class T, class L, bool kSwish>
__global__ void __launch_bounds__(kThreads, L::kIters <= 2 ? 4 : 1)
    norm_forward_kernel(NormArgs a, int64_t rows, Matrix<const T> x, Matrix<const T> addend,
                        Matrix<T> y) {
  extern __shared__ __align__(16) float parameters[];
  a.template stage<L::kW>(parameters);
  const BlockRows block(rows, L::kTeam);
  typename L::template Raw<T> next;
  if (block.begin < block.end) next.load_row(x.row(block.begin), a.columns);
  for (int64_t r = block.begin; r < block.end; r += L::kTeams) {
    L value;
    value.unpack(next, a.columns);
    if (r + L::kTeams < block.end) next.load_row(x.row(r + L::kTeams), a.columns);
    T* to = y.row(r);
    normalize_row(a, r, parameters, value, [&](int i, int c, float(&out)[L::kW]) {
      if constexpr (kSwish) {
        for (int j = 0; j < L::kW; ++j) out[j] = value.v[i][j] * sigmoid<T>(out[j]);
      } else if (addend.data != nullptr) {
        float more[L::kW];
        load(addend.row(r) + c, more);
        round_all<T>(out);
        for (int j = 0; j < L::kW; ++j) out[j] += more[j];
      }
      store(to + c, out);
    });
  }
}

template <class T, class L, bool kSwish>
__global__ void __launch_bounds__(kThreads,
                                  L::kIters <= 2 && sizeof(T) == 2 ? kPartialBlocksEach : 1)
    norm_backward_kernel(NormArgs a, int64_t rows, Matrix<const T> dy, Matrix<const T> x,
                         Matrix<const T> residual, Matrix<T> dx, int kinds, float* partials) {
  extern __shared__ __align__(16) float shared[];
  float* parameters = shared;
  a.template stage<L::kW>(parameters);
  float* team_sums = shared + 2 * a.columns;
  TeamSums<L> sums{team_sums + threadIdx.x / L::kTeam * kinds * a.columns, a.columns};
  sums.clear(kinds);
  const BlockRows block(rows, L::kTeam);
  constexpr bool kKeepSlope = sizeof(T) == 4;
  const bool adds = !kSwish && residual.data != nullptr;
  for (int64_t r = block.begin; r < block.end; r += L::kTeams) {
    typename L::template Raw<T> raw_x, raw_dy, raw_add;
    raw_x.load_row(x.row(r), a.columns);
    raw_dy.load_row(dy.row(r), a.columns);
    if (adds) raw_add.load_row(residual.row(r), a.columns);
    const NormSpan s = saved_group(a, r, 0);
    T* to = dx.row(r);
    L gate;   // swish: what x is multiplied by, of which everything else follows
    L slope;  // of float, though, also its derivative
    if constexpr (kSwish) {
      L::for_each(a.columns, [&](int i, int c) {
        float w[L::kW], b[L::kW], value[L::kW];
        SharedRow<L::kW>::load(parameters, a.columns, c, w);
        SharedRow<L::kW>::load(parameters + a.columns, a.columns, c, b);
        raw_x.unpack(i, value);
        for (int j = 0; j < L::kW; ++j) {
          const Sigmoid<T> sigmoid((value[j] - s.mean) * s.rstd * w[j] + b[j]);
          gate.v[i][j] = sigmoid.value;
          if constexpr (kKeepSlope) slope.v[i][j] = sigmoid.derivative;
        }
      });
    }
    const auto x_at = [&](int i, float(&v)[L::kW]) { raw_x.unpack(i, v); };
    const auto dn_at = [&](int i, float(&v)[L::kW]) {
      raw_dy.unpack(i, v);
      if constexpr (kSwish) {
        float value[L::kW];
        raw_x.unpack(i, value);
        for (int j = 0; j < L::kW; ++j) {
          const float g = gate.v[i][j];
          v[j] *= value[j] * (kKeepSlope ? slope.v[i][j] : g * (1.f - g));
        }
      }
    };
    norm_backward_row(a, r, s, parameters, x_at, dn_at, sums,
                      [&](int i, int c, float(&gradient)[L::kW]) {
                        float add[L::kW] = {};
                        if constexpr (kSwish) {
                          raw_dy.unpack(i, add);
                          for (int j = 0; j < L::kW; ++j) add[j] *= gate.v[i][j];
                        } else if (adds) {
                          raw_add.unpack(i, add);
                        }
                        for (int j = 0; j < L::kW; ++j) gradient[j] += add[j];
                        store(to + c, gradient);
                        if (kinds < 3) return;
                        round_all<T>(gradient);
                        sums.add_to(2, c, gradient);
                      });
  }
  write_partials<L>(a.columns, kinds, team_sums, partials);
}

/// y = x / max(|x|, eps).
template <class T, class L>
__global__ void __launch_bounds__(kThreads)
    l2_forward_kernel(int64_t rows, int columns, float eps, Matrix<const T> x, Matrix<T> y) {
  const BlockRows block(rows, L::kTeam);
  for (int64_t r = block.begin; r < block.end; r += L::kTeams) {
    L value;
    value.load_row(x.row(r), columns);
    float squares = 0;
    L::for_each(columns, [&](int i, int) {
      for (int j = 0; j < L::kW; ++j) squares += value.v[i][j] * value.v[i][j];
    });
    const auto place = static_cast<int>(r / L::kTeams & 1);
    const float length = fmaxf(sqrtf(team_sum<L>(squares, place)), eps);
    L::for_each(columns, [&](int i, int) {
      for (int j = 0; j < L::kW; ++j) value.v[i][j] /= length;
    });
    value.store_row(y.row(r), columns);
  }
}

template <class T, class L>
__global__ void __launch_bounds__(kThreads)
    l2_backward_kernel(int64_t rows, int columns, float eps, Matrix<const T> dy, Matrix<const T> x,
                       Matrix<T> dx) {
  const BlockRows block(rows, L::kTeam);
  for (int64_t r = block.begin; r < block.end; r += L::kTeams) {
    L value, gradient;
    value.load_row(x.row(r), columns);
    gradient.load_row(dy.row(r), columns);
    float squares = 0, products = 0;
    L::for_each(columns, [&](int i, int) {
      for (int j = 0; j < L::kW; ++j) {
        squares += value.v[i][j] * value.v[i][j];
        products += value.v[i][j] * gradient.v[i][j];
      }
    });
    const float length = sqrtf(team_sum<L>(squares, 0));
    products = team_sum<L>(products, 1);
    const float divisor = fmaxf(length, eps);
    // Below eps the divisor is a constant, and nothing flows back through it.
    const float inner = length < eps ? 0.f : products / (length * length);
    L::for_each(columns, [&](int i, int) {
      for (int j = 0; j < L::kW; ++j) {
        value.v[i][j] = (gradient.v[i][j] - value.v[i][j] * inner) / divisor;
      }
    });
    value.store_row(dx.row(r), columns);
  }
}

void check_same_shape(const Tensor& x, const Tensor& y) {
  SEGUE_ASSERT(x.rank == 2 && y.rank == 2 && x.size(0) == y.size(0) && x.size(1) == y.size(1),
               "norm: matrices of one shape");
  SEGUE_ASSERT(x.dtype == y.dtype, "norm: matrices of one type");
}

template <bool kSwish>
void forward(const Exec& exec, const NormParams& p, const Tensor& x, const Tensor& y,
             const NormStats& stats, const Tensor& addend) {
  check_same_shape(x, y);
  if (addend) check_same_shape(x, addend);
  SEGUE_ASSERT(!kSwish || p.groups == 1, "swish_norm: layer norm only");
  const int64_t rows = x.size(0), columns = x.size(1);
  if (rows == 0 || columns == 0) return;
  const NormArgs a(exec, p, stats, rows, columns);
  const cudaStream_t stream = stream_of(exec);
  const bool vectorize = can_vectorize(columns, {x, y, addend}) && a.can_vectorize_groups();
  dispatch_type(x.dtype, [&](auto zero_value) {
    dispatch_lanes(columns, vectorize, [&](auto lanes) {
      using T = decltype(zero_value);
      using L = decltype(lanes);
      const auto kernel = norm_forward_kernel<T, L, kSwish>;
      allow_shared_memory(kernel, a.parameter_bytes());
      kernel<<<row_blocks<L>(rows), kThreads, a.parameter_bytes(), stream>>>(
          a, rows, input_of<T>(x), input_of<T>(addend), matrix_of<T>(y));
      check_launch();
    });
  });
}

template <bool kSwish>
void backward(const Exec& exec, const NormParams& p, const Tensor& dy, const Tensor& x,
              const NormStats& stats, const Tensor& residual, const Tensor& dx,
              const NormGradients& gradients) {
  check_same_shape(x, dy);
  check_same_shape(x, dx);
  if (residual) check_same_shape(x, residual);
  SEGUE_ASSERT(!kSwish || p.groups == 1, "swish_norm: layer norm only");
  const int64_t rows = x.size(0), columns = x.size(1);
  if (rows == 0 || columns == 0) return;
  const NormArgs a(exec, p, stats, rows, columns);
  const cudaStream_t stream = stream_of(exec);
  const Arena::Mark mark(*exec.arena);
  const int kinds = gradients.input_bias ? 3 : 2;
  const bool vectorize = can_vectorize(columns, {x, dy, residual, dx}) && a.can_vectorize_groups();
  dispatch_type(x.dtype, [&](auto zero_value) {
    dispatch_lanes(columns, vectorize, [&](auto lanes) {
      using T = decltype(zero_value);
      using L = decltype(lanes);
      const auto kernel = norm_backward_kernel<T, L, kSwish>;
      const size_t bytes = a.backward_bytes<L>(kinds);
      const unsigned blocks = row_blocks<L>(rows, blocks_at_once(kPartialBlocksEach, bytes));
      PartialSums partials(exec, blocks, kinds * columns);
      allow_shared_memory(kernel, bytes);
      kernel<<<blocks, kThreads, bytes, stream>>>(a, rows, input_of<T>(dy), input_of<T>(x),
                                                  input_of<T>(residual), matrix_of<T>(dx), kinds,
                                                  partials.data());
      check_launch();
      fold_norm_gradients(a, partials, gradients.weight, gradients.bias);
      partials.fold(gradients.input_bias, 2 * columns, columns);
    });
  });
}

}  // namespace

void norm_forward(const Exec& exec, const NormParams& p, const Tensor& x, const Tensor& y,
                  const NormStats& stats, const Tensor& addend) {
  forward<false>(exec, p, x, y, stats, addend);
}

void norm_backward(const Exec& exec, const NormParams& p, const Tensor& dy, const Tensor& x,
                   const NormStats& stats, const Tensor& residual, const Tensor& dx,
                   const NormGradients& gradients) {
  backward<false>(exec, p, dy, x, stats, residual, dx, gradients);
}

void swish_norm_forward(const Exec& exec, const NormParams& p, const Tensor& x, const Tensor& y,
                        const NormStats& stats) {
  forward<true>(exec, p, x, y, stats, {});
}

void swish_norm_backward(const Exec& exec, const NormParams& p, const Tensor& dy, const Tensor& x,
                         const NormStats& stats, const Tensor& dx, const NormGradients& gradients) {
  backward<true>(exec, p, dy, x, stats, {}, dx, gradients);
}

void l2_normalize_forward(const Exec& exec, const Tensor& x, double eps, const Tensor& y) {
  check_same_shape(x, y);
  const int64_t rows = x.size(0), columns = x.size(1);
  if (rows == 0 || columns == 0) return;
  const cudaStream_t stream = stream_of(exec);
  dispatch_type(x.dtype, [&](auto zero_value) {
    dispatch_lanes(columns, can_vectorize(columns, {x, y}), [&](auto lanes) {
      using T = decltype(zero_value);
      using L = decltype(lanes);
      l2_forward_kernel<T, L><<<row_blocks<L>(rows), kThreads, 0, stream>>>(
          rows, static_cast<int>(columns), static_cast<float>(eps), input_of<T>(x),
          matrix_of<T>(y));
      check_launch();
    });
  });
}

void l2_normalize_backward(const Exec& exec, const Tensor& dy, const Tensor& x, double eps,
                           const Tensor& dx) {
  check_same_shape(x, dy);
  check_same_shape(x, dx);
  const int64_t rows = x.size(0), columns = x.size(1);
  if (rows == 0 || columns == 0) return;
  const cudaStream_t stream = stream_of(exec);
  dispatch_type(x.dtype, [&](auto zero_value) {
    dispatch_lanes(columns, can_vectorize(columns, {x, dy, dx}), [&](auto lanes) {
      using T = decltype(zero_value);
      using L = decltype(lanes);
      l2_backward_kernel<T, L><<<row_blocks<L>(rows), kThreads, 0, stream>>>(
          rows, static_cast<int>(columns), static_cast<float>(eps), input_of<T>(dy), input_of<T>(x),
          matrix_of<T>(dx));
      check_launch();
    });
  });
}

}  // namespace segue::ops::cuda
