#include <array>
#include <utility>

#include "ops/cuda_forms.h"
#include "ops/dense_step.h"
#include "ops/kernel.cuh"
#include "ops/update_rules.cuh"

namespace segue::ops::cuda {
namespace {

template <class Step, int kW, size_t... kState>
__global__ void __launch_bounds__(kThreads)
    dense_kernel(Step step, double clip_norm, const double* squares, Finite finite, int64_t n,
                 const float* gradient, std::array<float*, sizeof...(kState)> states,
                 float* parameter) {
  if (!finite.all()) return;
  const float factor =
      squares != nullptr ? static_cast<float>(clip_scale(*squares, clip_norm)) : 1.f;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads * kW;
  for (int64_t i = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kW; i < n;
       i += stride) {
    float g[kW], kept[sizeof...(kState) + 1][kW], p[kW];  // there may be no state at all
    load(gradient + i, g);
    (load(states[kState] + i, kept[kState]), ...);
    load(parameter + i, p);
    for (int j = 0; j < kW; ++j) step.apply(factor * g[j], p[j], kept[kState][j]...);
    (store(states[kState] + i, kept[kState]), ...);
    store(parameter + i, p);
  }
}

template <class Step, size_t... kState>
void launch_dense(const Step& step, const DenseUpdateParams& p, cudaStream_t stream,
                  const Tensor& gradient_squares, const Tensor& gradient,
                  std::span<const Tensor> states, const Tensor& parameter, const Tensor& finite,
                  std::index_sequence<kState...>) {
  const int64_t n = parameter.elements();
  const auto flat = [n](const Tensor& t) { return t.reshape({n}); };
  const bool vectorize =
      can_vectorize(n, {flat(gradient), flat(parameter), flat(states[kState])...});
  const auto kernel =
      vectorize ? dense_kernel<Step, 8, kState...> : dense_kernel<Step, 1, kState...>;
  const int64_t blocks = std::min(divide_up(n, kThreads * (vectorize ? 8 : 1)), kMaxBlocks);
  kernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(
      step, p.clip_norm, device_ptr<double>(gradient_squares), Finite(finite), n,
      device_ptr<float>(gradient), {device_ptr<float>(states[kState])...},
      device_ptr<float>(parameter));
  check_launch();
}

/// Sum of one double per thread, in a fixed order; valid in thread 0.
__device__ double block_sum(double value) {
  __shared__ double sums[kWarpsPerBlock];
  value = warp_sum(value);
  if (threadIdx.x % kWarp == 0) sums[threadIdx.x / kWarp] = value;
  __syncthreads();
  double total = 0;
  for (const double sum : sums) total += sum;
  return total;
}

constexpr size_t kMaxSquares = 4;  // tensors of one launch
struct SquareList {
  const float* x[kMaxSquares];
  int64_t n[kMaxSquares];
};

/// partials[tensor][block]; the block that is done last adds them up, in order.
__global__ void __launch_bounds__(kThreads)
    squares_kernel(SquareList list, double* partials, int32_t* done, double* out) {
  const float* x = list.x[blockIdx.y];
  const int64_t n = list.n[blockIdx.y];
  double sum = 0;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
#pragma unroll 4
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < n; i += step) {
    const double value = x[i];
    sum += value * value;
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) partials[blockIdx.y * gridDim.x + blockIdx.x] = sum;
  if (!is_last_block(done, static_cast<int>(gridDim.x * gridDim.y))) return;
  for (unsigned t = 0; t < gridDim.y; ++t) {
    double total = 0;
    for (unsigned i = threadIdx.x; i < gridDim.x; i += kThreads) {
      total += __ldcg(partials + t * gridDim.x + i);
    }
    total = block_sum(total);
    if (threadIdx.x == 0) out[t] = total;
    __syncthreads();
  }
}

/// The same on all lanes of a warp.
template <class G>
__device__ double warp_square_sum(const G* row, int dim, int lane, WireRounding wire) {
  double squares = 0;
  for (int c = lane; c < dim; c += kWarp) {
    const double g = through(wire, to_float(row[c]));
    squares += g * g;
  }
  return warp_sum(squares);
}

template <class G>
__global__ void __launch_bounds__(kThreads)
    row_mean_squares_kernel(Matrix<const G> x, int64_t n, int dim, double width, double* out) {
  const int64_t warps = static_cast<int64_t>(gridDim.x) * kWarpsPerBlock;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kWarpsPerBlock + threadIdx.x / kWarp; i < n;
       i += warps) {
    const double squares = warp_square_sum(x.row(i), dim, lane, WireRounding::kNone);
    if (lane == 0) out[i] = squares / width;
  }
}

template <class G>
struct UpdateList {
  struct Part {
    const int64_t* ids;
    Matrix<const G> gradients;
    Matrix<float> table;
    int64_t table_rows;
    float* states;
    const double* mean_squares;
    int64_t end;  // one past its last row, counted through all parts
  };
  Part parts[kMaxTables];
  int64_t rows;
  WireRounding wire;
  Finite finite;

  /// f(part, number of the row in its part, id) for the rows of this warp.
  template <class F>
  __device__ void for_each(F&& f) const {
    if (!finite.all()) return;
    const int64_t warps = static_cast<int64_t>(gridDim.x) * kWarpsPerBlock;
    for (int64_t i = static_cast<int64_t>(blockIdx.x) * kWarpsPerBlock + threadIdx.x / kWarp;
         i < rows; i += warps) {
      int which = 0;
      while (i >= parts[which].end) ++which;
      const Part& part = parts[which];
      const int64_t row = which == 0 ? i : i - parts[which - 1].end;
      const int64_t id = part.ids[row];
      if (id == -1) continue;
      require_row(id, part.table_rows);
      f(part, row, id);
    }
  }
};

template <class G>
__global__ void __launch_bounds__(kThreads)
    update_rows_kernel(RowUpdateParams p, AdamStep<float> adam,
                       const __grid_constant__ UpdateList<G> list, int dim, int64_t state_size) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const auto lr = static_cast<float>(p.lr), eps = static_cast<float>(p.eps);
  list.for_each([&](const auto& part, int64_t i, int64_t id) {
    const G* gradient = part.gradients.row(i);
    float* weight = part.table.row(id);
    float* state = part.states == nullptr ? nullptr : part.states + id * state_size;
    float rate = 0;
    if (p.kind == RowOptimizer::kRowwiseAdagrad) {
      const double mean = part.mean_squares != nullptr
                              ? part.mean_squares[i]
                              : warp_square_sum(gradient, dim, lane, list.wire) / dim;
      const auto sum = static_cast<float>(static_cast<double>(state[0]) + mean);
      __syncwarp();
      if (lane == 0) state[0] = sum;
      rate = static_cast<float>(p.lr / (sqrt(static_cast<double>(sum)) + p.eps));
    }
    for (int c = lane; c < dim; c += kWarp) {
      const float g = through(list.wire, to_float(gradient[c]));
      switch (p.kind) {
        case RowOptimizer::kRowwiseAdagrad:
          weight[c] -= rate * g;
          break;
        case RowOptimizer::kAdagrad:
          state[c] += g * g;
          weight[c] -= lr / (sqrtf(state[c]) + eps) * g;
          break;
        case RowOptimizer::kSgd:
          weight[c] -= lr * g;
          break;
        case RowOptimizer::kAdam:
          adam.apply(g, state[c], state[dim + c], weight[c]);
          break;
      }
    }
  });
}

/// Row-wise Adagrad of rows that lie 16 bytes aligned: gradient and weight are read once.
template <class G, class L>
__global__ void __launch_bounds__(kThreads)
    rowwise_adagrad_kernel(double lr, double eps, const __grid_constant__ UpdateList<G> list,
                           int dim) {
  list.for_each([&](const auto& part, int64_t i, int64_t id) {
    L gradient, weight;
    gradient.load_row(part.gradients.row(i), dim);
    weight.load_row(part.table.row(id), dim);
    double squares = 0;
    L::for_each(dim, [&](int k, int) {
      for (int j = 0; j < L::kW; ++j) {
        gradient.v[k][j] = through(list.wire, gradient.v[k][j]);
        squares += static_cast<double>(gradient.v[k][j]) * static_cast<double>(gradient.v[k][j]);
      }
    });
    const double mean = warp_sum(squares) / dim;
    float* state = part.states + id;
    const auto sum = static_cast<float>(static_cast<double>(*state) + mean);
    __syncwarp();
    if (threadIdx.x % kWarp == 0) *state = sum;
    const auto rate = static_cast<float>(lr / (sqrt(static_cast<double>(sum)) + eps));
    L::for_each(dim, [&](int k, int) {
      for (int j = 0; j < L::kW; ++j) weight.v[k][j] -= rate * gradient.v[k][j];
    });
    weight.store_row(part.table.row(id), dim);
  });
}

/// At most kMaxTables parts.
template <class G>
void update_some(const Exec& exec, const RowUpdateParams& p, std::span<const TableUpdate> parts,
                 WireRounding wire, const Tensor& finite) {
  const int64_t dim = parts.front().table.size(1), state_size = row_state_size(p.kind, dim);
  UpdateList<G> list{.parts = {}, .rows = 0, .wire = wire, .finite = Finite(finite)};
  bool in_registers = p.kind == RowOptimizer::kRowwiseAdagrad && dim <= 512;
  for (size_t i = 0; i < parts.size(); ++i) {
    const auto& [ids, gradients, table, state, mean_squares] = parts[i];
    const int64_t n = ids.size(0);
    SEGUE_ASSERT(gradients.size(0) == n && gradients.size(1) == dim && table.size(1) == dim,
                 "rowwise_update: shapes differ");
    SEGUE_ASSERT(state_size == 0 || (state.size(0) == table.size(0) && state.is_contiguous() &&
                                     state.elements() == table.size(0) * state_size),
                 "rowwise_update: shape of the state");
    list.rows += n;
    list.parts[i] = {device_ptr<int64_t>(ids),
                     input_of<G>(gradients),
                     matrix_of<float>(table),
                     table.size(0),
                     state_size == 0 ? nullptr : device_ptr<float>(state),
                     device_ptr<double>(mean_squares),
                     list.rows};
    in_registers = in_registers && !mean_squares && can_vectorize(dim, {gradients, table});
  }
  if (list.rows == 0 || dim == 0) return;
  const cudaStream_t stream = stream_of(exec);
  const unsigned blocks = row_blocks(list.rows, 4 * kMaxBlocks);
  if (in_registers) {
    const auto kernel = dim <= 256 ? rowwise_adagrad_kernel<G, Lanes<8, 1>>
                                   : rowwise_adagrad_kernel<G, Lanes<8, 2>>;
    kernel<<<blocks, kThreads, 0, stream>>>(p.lr, p.eps, list, static_cast<int>(dim));
  } else {
    const AdamStep<float> adam(p.lr, p.beta1, p.beta2, p.eps, p.t);
    update_rows_kernel<G>
        <<<blocks, kThreads, 0, stream>>>(p, adam, list, static_cast<int>(dim), state_size);
  }
  check_launch();
}

}  // namespace

void dense_update(const Exec& exec, const DenseUpdateParams& p, const Tensor& gradient_squares,
                  const Tensor& gradient, std::span<const Tensor> states, const Tensor& parameter,
                  const Tensor& finite) {
  if (parameter.elements() == 0) return;
  const cudaStream_t stream = stream_of(exec);
  dispatch_dense<float>(p, [&]<class Step>(const Step& step) {
    launch_dense(step, p, stream, gradient_squares, gradient, states, parameter, finite,
                 StateIndices<Step>());
  });
}

void sums_of_squares(const Exec& exec, std::span<const Tensor> x, const Tensor& out) {
  SEGUE_ASSERT(x.size() <= kMaxSquares, "sums_of_squares: too many at once");
  SquareList list{};
  int64_t most = 1;
  for (size_t i = 0; i < x.size(); ++i) {
    SEGUE_ASSERT(x[i].is_contiguous(), "sum_of_squares: strided tensor");
    list.x[i] = device_ptr<float>(x[i]);
    list.n[i] = x[i].elements();
    most = std::max(most, list.n[i]);
  }
  const cudaStream_t stream = stream_of(exec);
  const auto tensors = static_cast<unsigned>(x.size());
  const auto blocks =
      static_cast<unsigned>(std::clamp<int64_t>(divide_up(most, kThreads), 1, kPartialBlocks * 4));
  const Arena::Mark mark(*exec.arena);
  const Tensor partials = exec.arena->tensor(DType::kF64, {tensors, blocks});
  const Tensor done = exec.index({1});
  zero(done, exec.stream);
  squares_kernel<<<dim3(blocks, tensors), kThreads, 0, stream>>>(
      list, device_ptr<double>(partials), device_ptr<int32_t>(done), device_ptr<double>(out));
  check_launch();
}

void update_tables(const Exec& exec, const RowUpdateParams& p, std::span<const TableUpdate> parts,
                   DType wire, const Tensor& finite) {
  const WireRounding rounding = rounding_of(wire);
  while (!parts.empty()) {
    const auto some = parts.first(std::min<size_t>(parts.size(), kMaxTables));
    parts = parts.subspan(some.size());
    dispatch_type(some.front().gradients.dtype, [&](auto zero_value) {
      update_some<decltype(zero_value)>(exec, p, some, rounding, finite);
    });
  }
}

void row_mean_squares(const Exec& exec, const Tensor& x, int64_t width, const Tensor& out) {
  const int64_t n = x.size(0);
  if (n == 0) return;
  dispatch_type(x.dtype, [&](auto zero_value) {
    using G = decltype(zero_value);
    row_mean_squares_kernel<G><<<row_blocks(n, 4 * kMaxBlocks), kThreads, 0, stream_of(exec)>>>(
        input_of<G>(x), n, static_cast<int>(x.size(1)), static_cast<double>(width),
        device_ptr<double>(out));
    check_launch();
  });
}

}  // namespace segue::ops::cuda
