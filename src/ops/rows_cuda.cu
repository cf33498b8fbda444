#include "base/rng.h"
#include "ops/cuda_forms.h"
#include "ops/kernel.cuh"

namespace segue::ops::cuda {
namespace {

/// Equally shaped matrices seen as pieces of kW columns; contiguous ones as a single row.
struct Shape {
  int64_t rows, columns;
};

/// Columns of a piece: 16 bytes of the widest type, so that neighbouring lanes touch neighbouring
/// bytes of every matrix.
template <class... T>
inline constexpr int kPiece = ((sizeof(T) == 4) || ...) ? 4 : 8;

template <class A, class B, class To, int kW, class F>
__global__ void __launch_bounds__(kThreads)
    map_kernel(Shape shape, Matrix<const A> a, Matrix<const B> b, Matrix<To> y, F f) {
  const int64_t pieces = (shape.columns + kW - 1) / kW, n = shape.rows * pieces;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < n; i += step) {
    const int64_t r = shape.rows == 1 ? 0 : i / pieces;
    const int64_t c = (i - r * pieces) * kW;
    float x[kW], z[kW];
    load(a.row(r) + c, x);
    if (b.data != nullptr) load(b.row(r) + c, z);
    for (int j = 0; j < kW; ++j) x[j] = f(x[j], b.data != nullptr ? z[j] : 0.f);
    store(y.row(r) + c, x);
  }
}

Tensor as_rows(const Tensor& t) {
  if (!t) return t;
  if (t.is_contiguous()) return t.reshape({1, t.elements()});
  SEGUE_ASSERT(t.rank == 2 && t.stride(1) == 1, "columns must have unit stride");
  return t;
}

/// y = f(a, b), `b` may be absent; each may be strided by rows.
template <class A, class B, class To, class F>
void map(const Exec& exec, const Tensor& a, const Tensor& b, const Tensor& y, F f) {
  SEGUE_ASSERT(a.elements() == y.elements() && (!b || b.elements() == y.elements()),
               "shapes differ");
  if (y.elements() == 0) return;
  Tensor a_rows = as_rows(a), b_rows = as_rows(b), y_rows = as_rows(y);
  const bool flat = a_rows.size(0) == 1 && y_rows.size(0) == 1 && (!b_rows || b_rows.size(0) == 1);
  if (!flat) {
    SEGUE_ASSERT(a.rank == 2 && y.rank == 2 && (!b || b.rank == 2), "shapes differ");
    SEGUE_ASSERT(a.size(1) == y.size(1) && (!b || b.size(1) == y.size(1)), "shapes differ");
    a_rows = a, b_rows = b, y_rows = y;
  }
  const Shape shape{y_rows.size(0), y_rows.size(1)};
  const cudaStream_t stream = stream_of(exec);
  const auto launch = [&](auto kernel, int64_t width) {
    const int64_t pieces = shape.rows * divide_up(shape.columns, width);
    const int64_t blocks = std::min(divide_up(pieces, kThreads), kMaxBlocks);
    kernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(
        shape, input_of<A>(a_rows), input_of<B>(b_rows), matrix_of<To>(y_rows), f);
    check_launch();
  };
  if (can_vectorize(shape.columns, {a_rows, b_rows, y_rows})) {
    launch(map_kernel<A, B, To, kPiece<A, B, To>, F>, kPiece<A, B, To>);
  } else {
    launch(map_kernel<A, B, To, 1, F>, 1);
  }
}

template <class F>
void map_same_type(const Exec& exec, const Tensor& a, const Tensor& b, const Tensor& y, F f) {
  dispatch_type(y.dtype, [&](auto zero_value) {
    using T = decltype(zero_value);
    map<T, T, T>(exec, a, b, y, f);
  });
}

struct Multiply {
  __device__ float operator()(float x, float z) const { return x * z; }
};
struct Add {
  __device__ float operator()(float x, float z) const { return x + z; }
};
struct Scale {
  float factor;
  __device__ float operator()(float x, float) const { return factor * x; }
};
struct Same {
  __device__ float operator()(float x, float) const { return x; }
};
struct Relu {
  // NaN stays NaN: a run that went wrong must not look healthy.
  __device__ float operator()(float x, float) const { return x < 0.f ? 0.f : x; }
};
struct ReluBackward {
  __device__ float operator()(float gradient, float x) const { return x > 0.f ? gradient : 0.f; }
};
template <class T>
struct RoundTo {
  __device__ float operator()(float x, float) const { return rounded<T>(x); }
};

/// `da` or `db` may be absent.
template <class A, class T, int kW>
__global__ void __launch_bounds__(kThreads)
    multiply_backward_kernel(Shape shape, Matrix<const T> dy, Matrix<const A> a, Matrix<const T> b,
                             Matrix<A> da, Matrix<T> db) {
  const int64_t pieces = shape.columns / kW, n = shape.rows * pieces;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < n; i += step) {
    const int64_t r = i / pieces, c = (i - r * pieces) * kW;
    float gradient[kW], left[kW], right[kW];
    load(dy.row(r) + c, gradient);
    if (db.data != nullptr) load(a.row(r) + c, left);
    if (da.data != nullptr) {
      load(b.row(r) + c, right);
      for (int j = 0; j < kW; ++j) right[j] *= gradient[j];
      store(da.row(r) + c, right);
    }
    if (db.data != nullptr) {
      for (int j = 0; j < kW; ++j) left[j] *= gradient[j];
      store(db.row(r) + c, left);
    }
  }
}

constexpr int kMaxTables = 16;  // of one launch: their list is a kernel parameter

template <class From, class To>
struct GatherList {
  struct Part {
    Matrix<const From> from;
    int64_t from_rows;
    IndexView index;
    Matrix<To> to;
    int64_t end;  // one past its last row, counted through all parts
  };
  Part parts[kMaxTables];
};

template <class From, class To, int kW, class F>
__global__ void __launch_bounds__(kThreads)
    gather_kernel(const __grid_constant__ GatherList<From, To> list, int64_t rows, int columns,
                  F f) {
  const int64_t warps = static_cast<int64_t>(gridDim.x) * kWarpsPerBlock;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kWarpsPerBlock + threadIdx.x / kWarp;
       i < rows; i += warps) {
    int which = 0;
    while (i >= list.parts[which].end) ++which;
    const auto& part = list.parts[which];
    const int64_t r = which == 0 ? i : i - list.parts[which - 1].end;
    const int64_t source = part.index[r];
    if (source != -1) require_row(source, part.from_rows);
    for (int c = static_cast<int>(threadIdx.x % kWarp) * kW; c < columns; c += kWarp * kW) {
      float value[kW] = {};
      if (source != -1) load(part.from.row(source) + c, value);
      for (int j = 0; j < kW; ++j) value[j] = f(value[j], 0.f);
      store(part.to.row(r) + c, value);
    }
  }
}

/// At most kMaxTables parts.
template <class From, class To, class F>
void gather(const Exec& exec, std::span<const TableRows> parts, F f) {
  GatherList<From, To> list{};
  const int64_t columns = parts.front().to.size(1);
  int64_t rows = 0;
  bool vectorize = true;
  for (size_t i = 0; i < parts.size(); ++i) {
    const TableRows& p = parts[i];
    SEGUE_ASSERT(
        p.to.size(0) == p.index.size(0) && p.to.size(1) == columns && p.table.size(1) == columns,
        "gather_rows: shapes differ");
    rows += p.to.size(0);
    list.parts[i] = {input_of<From>(p.table), p.table.size(0), index_of(p.index),
                     matrix_of<To>(p.to), rows};
    vectorize = vectorize && can_vectorize(columns, {p.table, p.to});
  }
  if (rows == 0 || columns == 0) return;
  const auto kernel = vectorize ? gather_kernel<From, To, 8, F> : gather_kernel<From, To, 1, F>;
  kernel<<<row_blocks(rows, 4 * kMaxBlocks), kThreads, 0, stream_of(exec)>>>(
      list, rows, static_cast<int>(columns), f);
  check_launch();
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    take_kernel(const T* from, int64_t from_count, const int32_t* index, int64_t n, T* to) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < n; i += step) {
    require_row(index[i], from_count);
    to[i] = from[index[i]];
  }
}

__global__ void __launch_bounds__(kThreads)
    mix_kernel(const int64_t* from, int64_t n, int64_t* to) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < n; i += step) {
    to[i] = static_cast<int64_t>(base::splitmix64(static_cast<uint64_t>(from[i])));
  }
}

/// Rows of `words` words each; a warp per row.
template <class Word>
__global__ void __launch_bounds__(kThreads)
    scatter_kernel(const Word* from, int64_t from_stride, const int64_t* index, int64_t rows,
                   int words, Word* to, int64_t to_stride, int64_t to_rows) {
  const int64_t warps = static_cast<int64_t>(gridDim.x) * kWarpsPerBlock;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kWarpsPerBlock + threadIdx.x / kWarp;
       i < rows; i += warps) {
    const int64_t row = index[i];
    require_row(row, to_rows);
    for (int c = static_cast<int>(threadIdx.x % kWarp); c < words; c += kWarp) {
      to[row * to_stride + c] = from[i * from_stride + c];
    }
  }
}

unsigned element_blocks(int64_t n) {
  return static_cast<unsigned>(std::min(divide_up(n, kThreads), kMaxBlocks));
}

}  // namespace

void scatter_rows(const Exec& exec, const Tensor& from, const Tensor& index, const Tensor& to) {
  const int64_t rows = from.size(0), columns = from.size(1);
  if (rows == 0 || columns == 0) return;
  const auto launch = [&](auto word) {
    using Word = decltype(word);
    const auto words = [&](int64_t values) {
      return values * size_of(from.dtype) / static_cast<int64_t>(sizeof(Word));
    };
    scatter_kernel<Word><<<row_blocks(rows, 4 * kMaxBlocks), kThreads, 0, stream_of(exec)>>>(
        static_cast<const Word*>(from.data), words(from.stride(0)), device_ptr<int64_t>(index),
        rows, static_cast<int>(words(columns)), static_cast<Word*>(to.data), words(to.stride(0)),
        to.size(0));
    check_launch();
  };
  const auto whole = [&](const Tensor& t, int64_t bytes) {
    return reinterpret_cast<uintptr_t>(t.data) % static_cast<uintptr_t>(bytes) == 0 &&
           t.stride(0) * size_of(t.dtype) % bytes == 0;
  };
  const bool vectors = whole(from, sizeof(float4)) && whole(to, sizeof(float4)) &&
                       columns * size_of(from.dtype) % static_cast<int64_t>(sizeof(float4)) == 0;
  if (vectors) return launch(float4{});
  if (columns * size_of(from.dtype) % static_cast<int64_t>(sizeof(uint32_t)) == 0 &&
      whole(from, sizeof(uint32_t)) && whole(to, sizeof(uint32_t))) {
    return launch(uint32_t{});
  }
  launch(uint16_t{});
}

void take(const Exec& exec, const Tensor& from, const Tensor& index, const Tensor& to) {
  const int64_t n = to.elements();
  if (n == 0) return;
  const auto launch = [&](auto zero_value) {
    using T = decltype(zero_value);
    take_kernel<T><<<element_blocks(n), kThreads, 0, stream_of(exec)>>>(
        device_ptr<T>(from), from.elements(), device_ptr<int32_t>(index), n, device_ptr<T>(to));
    check_launch();
  };
  if (from.dtype == DType::kI64) return launch(int64_t{});
  launch(int32_t{});
}

void mix(const Exec& exec, const Tensor& from, const Tensor& to) {
  const int64_t n = to.elements();
  if (n == 0) return;
  mix_kernel<<<element_blocks(n), kThreads, 0, stream_of(exec)>>>(device_ptr<int64_t>(from), n,
                                                                  device_ptr<int64_t>(to));
  check_launch();
}

void gather_rows(const Exec& exec, const Tensor& from, const Tensor& index, const Tensor& to) {
  const TableRows part{from, index, to};
  gather_tables(exec, {&part, 1}, DType::kF32);
}

void gather_tables(const Exec& exec, std::span<const TableRows> parts, DType wire) {
  while (!parts.empty()) {
    const auto some = parts.first(std::min<size_t>(parts.size(), kMaxTables));
    parts = parts.subspan(some.size());
    if (wire == DType::kF16) {
      gather<float, float>(exec, some, RoundTo<f16>{});
    } else if (wire == DType::kBf16) {
      gather<float, float>(exec, some, RoundTo<bf16>{});
    } else {
      dispatch_storage(some.front().table.dtype, [&](auto from_zero) {
        dispatch_storage(some.front().to.dtype, [&](auto to_zero) {
          gather<decltype(from_zero), decltype(to_zero)>(exec, some, Same{});
        });
      });
    }
  }
}

void convert(const Exec& exec, const Tensor& from, const Tensor& to) {
  dispatch_storage(from.dtype, [&](auto from_zero) {
    dispatch_storage(to.dtype, [&](auto to_zero) {
      using From = decltype(from_zero);
      map<From, From, decltype(to_zero)>(exec, from, {}, to, Same{});
    });
  });
}

void multiply_forward(const Exec& exec, const Tensor& a, const Tensor& b, const Tensor& y) {
  dispatch_type(a.dtype, [&](auto a_zero) {
    dispatch_type(b.dtype, [&](auto b_zero) {
      dispatch_type(y.dtype, [&](auto y_zero) {
        map<decltype(a_zero), decltype(b_zero), decltype(y_zero)>(exec, a, b, y, Multiply{});
      });
    });
  });
}

void multiply_backward(const Exec& exec, const Tensor& dy, const Tensor& a, const Tensor& b,
                       const Tensor& da, const Tensor& db) {
  const Shape shape{dy.size(0), dy.size(1)};
  for (const Tensor* t : {&a, &b, &da, &db}) {
    SEGUE_ASSERT(!*t || (t->size(0) == shape.rows && t->size(1) == shape.columns), "shapes differ");
  }
  if (dy.elements() == 0) return;
  dispatch_type(a.dtype, [&](auto a_zero) {
    dispatch_type(dy.dtype, [&](auto zero_value) {
      using A = decltype(a_zero);
      using T = decltype(zero_value);
      const auto launch = [&](auto kernel, int64_t width) {
        const int64_t blocks = std::min(divide_up(dy.elements() / width, kThreads), kMaxBlocks);
        kernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream_of(exec)>>>(
            shape, input_of<T>(dy), input_of<A>(a), input_of<T>(b), matrix_of<A>(da),
            matrix_of<T>(db));
        check_launch();
      };
      constexpr int kWide = kPiece<A, T>;
      if (can_vectorize(shape.columns, {dy, a, b, da, db})) {
        launch(multiply_backward_kernel<A, T, kWide>, kWide);
      } else {
        launch(multiply_backward_kernel<A, T, 1>, 1);
      }
    });
  });
}

void add(const Exec& exec, const Tensor& a, const Tensor& b, const Tensor& y) {
  map_same_type(exec, a, b, y, Add{});
}

void scale(const Exec& exec, const Tensor& x, double factor, const Tensor& y) {
  dispatch_type(x.dtype, [&](auto x_zero) {
    dispatch_type(y.dtype, [&](auto y_zero) {
      using From = decltype(x_zero);
      map<From, From, decltype(y_zero)>(exec, x, {}, y, Scale{static_cast<float>(factor)});
    });
  });
}

void relu_forward(const Exec& exec, const Tensor& x, const Tensor& y) {
  map_same_type(exec, x, {}, y, Relu{});
}

void relu_backward(const Exec& exec, const Tensor& dy, const Tensor& x, const Tensor& dx) {
  map_same_type(exec, dy, x, dx, ReluBackward{});
}

void round_rows_to_bf16(const Exec& exec, const Tensor& x) {
  if (!exec.rounds_to_bf16() || x.dtype == DType::kBf16) return;
  map_same_type(exec, x, {}, x, RoundTo<bf16>{});
}

void round_rows_to_f16(const Exec& exec, const Tensor& x) {
  map_same_type(exec, x, {}, x, RoundTo<f16>{});
}

}  // namespace segue::ops::cuda
