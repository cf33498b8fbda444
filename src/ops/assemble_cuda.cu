#include "ops/cuda_forms.h"
#include "ops/segments.cuh"

namespace segue::ops::cuda {
namespace {

/// A table that tokens may read, in its own type; -1 and an absent table mean: no row.
template <class T>
struct Source {
  Matrix<const T> table;
  int64_t rows = 0;
  const int32_t* index = nullptr;

  Source() = default;
  Source(const Tensor& t, const Tensor& indices, int64_t tokens, int64_t dim) {
    if (!t) return;
    SEGUE_ASSERT(t.rank == 2 && t.size(1) == dim, "assemble: width of a table");
    SEGUE_ASSERT(indices.rank == 1 && indices.size(0) == tokens, "assemble: one index per token");
    table = input_of<T>(t);
    rows = t.size(0);
    index = device_ptr<int32_t>(indices);
  }

  __device__ const T* row(int64_t token) const {
    if (index == nullptr || index[token] == -1) return nullptr;
    require_row(index[token], rows);
    return table.row(index[token]);
  }
};

template <class T>
struct AssembleArgs {
  Matrix<const T> content, context;
  int64_t content_rows, context_rows;
  const int32_t* row_index;
  Source<T> action;
  float scale;
  Source<float> position, time;
  DropoutArgs dropout;

  __device__ const T* row(int64_t token) const {
    const int64_t row = row_index[token];
    if (row == -1) return nullptr;
    require_row(row, content_rows + context_rows);
    return row < content_rows ? content.row(row) : context.row(row - content_rows);
  }
};

/// Rounds where the CPU's mode does, so that bf16 results are equal bit by bit; products and sums
/// are kept apart for the same reason in float.
template <class T, int kW>
__global__ void __launch_bounds__(kThreads, 4)
    assemble_kernel(AssembleArgs<T> a, int64_t tokens, int dim, Matrix<T> x) {
  const BlockRows block(tokens);
  for (int64_t t = block.begin; t < block.end; t += kWarpsPerBlock) {
    const T* row = a.row(t);
    const T* action = a.action.row(t);
    const float* position = a.position.row(t);
    const float* time = a.time.row(t);
    const DropoutArgs::Row random = a.dropout.row(t);
    T* to = x.row(t);
#pragma unroll 2
    for (int c = static_cast<int>(threadIdx.x % kWarp) * kW; c < dim; c += kWarp * kW) {
      float value[kW] = {}, other[kW], encoding[kW] = {}, more[kW];
      if (row != nullptr) load(row + c, value);
      if (action != nullptr) load(action + c, other);
      if (position != nullptr) load(position + c, encoding);
      if (time != nullptr) load(time + c, more);
      for (int j = 0; j < kW; ++j) {
        if (action != nullptr) value[j] = rounded<T>(value[j] + other[j]);
        value[j] = rounded<T>(__fmul_rn(value[j], a.scale));
        if (time != nullptr) encoding[j] = position != nullptr ? encoding[j] + more[j] : more[j];
        if (position != nullptr || time != nullptr) {
          value[j] = rounded<T>(__fadd_rn(value[j], rounded<T>(encoding[j])));
        }
      }
      a.dropout.apply(random, c, value);
      store(to + c, value);
    }
  }
}

int64_t rows_or_zero(const Tensor& t) { return t ? t.size(0) : 0; }

}  // namespace

void assemble_forward(const Exec& exec, const AssembleParams& p, const Tensor& x) {
  const int64_t tokens = x.size(0), dim = x.size(1);
  SEGUE_ASSERT(p.row_index.rank == 1 && p.row_index.size(0) == tokens,
               "assemble: one row_index per token");
  SEGUE_ASSERT(!p.content || p.content.size(1) == dim, "assemble: width of content");
  SEGUE_ASSERT(!p.context || p.context.size(1) == dim, "assemble: width of context");
  if (tokens == 0 || dim == 0) return;
  const cudaStream_t stream = stream_of(exec);
  dispatch_type(x.dtype, [&](auto zero_value) {
    using T = decltype(zero_value);
    AssembleArgs<T> a{};
    a.content = input_of<T>(p.content);
    a.context = input_of<T>(p.context);
    a.content_rows = rows_or_zero(p.content);
    a.context_rows = rows_or_zero(p.context);
    a.row_index = device_ptr<int32_t>(p.row_index);
    a.action = Source<T>(p.action_rows, p.action_index, tokens, dim);
    a.scale = static_cast<float>(p.scale);
    a.position = Source<float>(p.position_table, p.position_index, tokens, dim);
    a.time = Source<float>(p.time_table, p.time_index, tokens, dim);
    a.dropout = DropoutArgs(exec, p.dropout);
    const auto launch = [&](auto kernel) {
      kernel<<<row_blocks(tokens), kThreads, 0, stream>>>(a, tokens, static_cast<int>(dim),
                                                          matrix_of<T>(x));
      check_launch();
    };
    if (can_vectorize(dim,
                      {p.content, p.context, p.action_rows, p.position_table, p.time_table, x})) {
      launch(assemble_kernel<T, 8>);
    } else {
      launch(assemble_kernel<T, 1>);
    }
  });
}

void assemble_backward(const Exec& exec, const AssembleParams& p, const Tensor& dx,
                       const AssembleGradients& gradients) {
  const int64_t tokens = dx.size(0), dim = dx.size(1);
  // Every sum applies the dropout itself: a pass over dx is cheaper than a copy of it.
  const auto sum_into = [&](const Tensor& table, const Tensor& index, double scale) {
    if (!table) return;
    SEGUE_ASSERT(index && index.size(0) == tokens && table.size(1) == dim,
                 "assemble: gradient without its index");
    const Arena::Mark mark(*exec.arena);
    const SortedItems sorted = sort_items(exec, index, table.size(0));
    sum_sorted(exec, sorted, dx, p.dropout, scale, {table, {}, table.size(0)});
  };
  sum_into(gradients.position, p.position_index, 1);
  sum_into(gradients.time, p.time_index, 1);
  sum_into(gradients.action, p.action_index, p.scale);
  if (!gradients.content && !gradients.context) return;
  const Arena::Mark mark(*exec.arena);
  const int64_t content_rows = rows_or_zero(p.content);
  const SortedItems sorted = sort_items(exec, p.row_index, content_rows + rows_or_zero(p.context));
  sum_sorted(exec, sorted, dx, p.dropout, p.scale,
             {gradients.content, gradients.context, content_rows});
}

}  // namespace segue::ops::cuda
