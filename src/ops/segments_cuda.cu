#include <cub/device/device_radix_sort.cuh>

#include "ops/cuda_forms.h"
#include "ops/segments.cuh"

namespace segue::ops::cuda {
namespace {

__global__ void make_keys_kernel(IndexView index, int64_t n, int64_t destinations, uint32_t* keys,
                                 uint32_t* items) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < n; i += step) {
    const int64_t to = index[i];
    if (to != -1) require_row(to, destinations);
    keys[i] = static_cast<uint32_t>(to == -1 ? destinations : to);
    items[i] = static_cast<uint32_t>(i);
  }
}

struct TargetRows {
  void* data;
  int64_t stride;
  bool is_bf16;
};

struct TargetArgs {
  TargetRows first, second;
  uint32_t split;
};

/// row of `destination` [column .. column + kW) += values; no thread shares an element.
template <int kW>
__device__ void add_to_target(const TargetArgs& targets, uint32_t destination, int64_t column,
                              const float (&values)[kW]) {
  const bool in_first = destination < targets.split;
  const TargetRows t{in_first ? targets.first.data : targets.second.data,
                     in_first ? targets.first.stride : targets.second.stride,
                     in_first ? targets.first.is_bf16 : targets.second.is_bf16};
  if (t.data == nullptr) return;
  const int64_t row = in_first ? destination : destination - targets.split;
  float now[kW];
  if (t.is_bf16) {
    bf16* at = static_cast<bf16*>(t.data) + row * t.stride + column;
    load(at, now);
    for (int j = 0; j < kW; ++j) now[j] += values[j];
    store(at, now);
  } else {
    float* at = static_cast<float*>(t.data) + row * t.stride + column;
    load(at, now);
    for (int j = 0; j < kW; ++j) now[j] += values[j];
    store(at, now);
  }
}

constexpr int kSumColumns = 512;  // of one warp
constexpr int kAhead = 4;         // rows loaded before the first is added; divides a warp
constexpr int kMaxChunk = 2 * kWarp;

/// A warp adds the items of one chunk. Groups that lie inside it are finished; the sum of one that
/// came in from the chunk before goes to partials[chunk][0], of one that goes on to the next and
/// began here to partials[chunk][1].
template <class T, int kW>
__global__ void __launch_bounds__(kThreads, 2)
    sum_chunks_kernel(SortedItems s, int chunk_length, Matrix<const T> from, DropoutArgs dropout,
                      int columns, float scale, TargetArgs targets, float* partials) {
  using L = Lanes<kW, kSumColumns / kWarp / kW>;
  const int64_t chunk = static_cast<int64_t>(blockIdx.x) * kWarpsPerBlock + threadIdx.x / kWarp;
  const int64_t begin = chunk * chunk_length;
  if (begin >= s.n) return;
  const int64_t end = begin + chunk_length < s.n ? begin + chunk_length : s.n;
  const int base = static_cast<int>(blockIdx.y) * kSumColumns;
  const int count = min(kSumColumns, columns - base);
  const bool came_in = begin > 0 && s.keys[begin - 1] == s.keys[begin];

  L sum{};
  uint32_t key = s.keys[begin];
  bool is_head = came_in;
  const auto flush = [&](bool goes_on) {
    if (key >= s.destinations) return;
    L::for_each(count, [&](int i, int c) {
      if (is_head || goes_on) {
        const int64_t slot = chunk * 2 + (is_head ? 0 : 1);
        store(partials + slot * columns + base + c, sum.v[i]);
      } else {
        for (int j = 0; j < kW; ++j) sum.v[i][j] *= scale;
        add_to_target(targets, key, base + c, sum.v[i]);
      }
    });
  };

  // A lane knows two of the chunk's items and passes them round.
  const auto lane = static_cast<int>(threadIdx.x % kWarp);
  uint32_t my_keys[2], my_items[2];
  DropoutArgs::Row my_random[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int64_t at = begin + half * kWarp + lane;
    my_keys[half] = at < end ? s.keys[at] : 0;
    my_items[half] = at < end ? s.items[at] : 0;
    my_random[half] = dropout.row(my_items[half]);
  }
  const auto length = static_cast<int>(end - begin);
  for (int at = 0; at < length; at += kAhead) {
    typename L::template Raw<T> rows[kAhead];
    const int half = at / kWarp;
    const uint32_t half_keys = half == 0 ? my_keys[0] : my_keys[1];
    const uint32_t half_items = half == 0 ? my_items[0] : my_items[1];
    const DropoutArgs::Row half_random = half == 0 ? my_random[0] : my_random[1];
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      // Beyond the end: item 0, which exists and is not added.
      const int64_t item = __shfl_sync(0xffffffffu, half_items, (at + k) % kWarp);
      rows[k].load_row(from.row(item) + base, count);
    }
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      if (at + k >= length) continue;
      const int source = (at + k) % kWarp;
      const uint32_t item_key = __shfl_sync(0xffffffffu, half_keys, source);
      if (item_key != key) {
        flush(false);
        sum = L{};
        key = item_key;
        is_head = false;
      }
      const DropoutArgs::Row random{__shfl_sync(0xffffffffu, half_random.sample, source),
                                    __shfl_sync(0xffffffffu, half_random.token, source)};
      L::for_each(count, [&](int i, int c) {
        float value[kW];
        rows[k].unpack(i, value);
        if (dropout.active) {
          dropout.apply(random, base + c, value);
          for (int j = 0; j < kW; ++j) value[j] = rounded<T>(value[j]);
        }
        for (int j = 0; j < kW; ++j) sum.v[i][j] += value[j];
      });
    }
  }
  flush(end < s.n && s.keys[end] == key);
}

/// First position whose key is greater.
__device__ int64_t upper_bound(const uint32_t* keys, int64_t begin, int64_t end, uint32_t key) {
  while (begin < end) {
    const int64_t middle = (begin + end) / 2;
    if (keys[middle] <= key) {
      begin = middle + 1;
    } else {
      end = middle;
    }
  }
  return begin;
}

constexpr int kSpanColumns = 4 * kWarp;

/// A block finishes the group that begins in chunk blockIdx.x and goes beyond it: warps add
/// consecutive pieces of its partial sums, then the pieces are added in order.
__global__ void __launch_bounds__(kThreads)
    sum_spans_kernel(SortedItems s, int chunk_length, int columns, float scale, TargetArgs targets,
                     const float* partials) {
  __shared__ float pieces[kWarpsPerBlock][kSpanColumns];
  const int64_t chunk = blockIdx.x;
  const int64_t next = (chunk + 1) * chunk_length;
  if (next >= s.n) return;
  const uint32_t key = s.keys[next - 1];
  if (key >= s.destinations || s.keys[next] != key) return;
  const int64_t begin = next - chunk_length;
  if (begin > 0 && s.keys[begin - 1] == key) return;  // began earlier
  const int64_t end = upper_bound(s.keys, next, s.n, key);
  const int64_t heads = (end - 1) / chunk_length - chunk;  // chunks that it goes on into
  const int64_t each = (heads + 1 + kWarpsPerBlock - 1) / kWarpsPerBlock;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t from = warp * each, until = from + each < heads + 1 ? from + each : heads + 1;
  for (int base = 0; base < columns; base += kSpanColumns) {
    float sum[4] = {};
#pragma unroll 4
    for (int64_t i = from; i < until; ++i) {
      const float* row = partials + ((chunk + i) * 2 + (i == 0 ? 1 : 0)) * columns + base;
      for (int j = 0; j < 4; ++j) {
        if (base + j * kWarp + lane < columns) sum[j] += row[j * kWarp + lane];
      }
    }
    for (int j = 0; j < 4; ++j) pieces[warp][j * kWarp + lane] = sum[j];
    __syncthreads();
    const int c = static_cast<int>(threadIdx.x);
    if (c < kSpanColumns && base + c < columns) {
      float total[1] = {0.f};
      for (int w = 0; w < kWarpsPerBlock; ++w) total[0] += pieces[w][c];
      total[0] *= scale;
      add_to_target(targets, key, base + c, total);
    }
    __syncthreads();
  }
}

TargetRows target_rows(const Tensor& t) {
  if (!t) return {nullptr, 0, false};
  SEGUE_ASSERT(t.rank == 2 && (t.dtype == DType::kF32 || t.dtype == DType::kBf16),
               "sums of rows: the result is float or bf16");
  return {t.data, t.stride(0), t.dtype == DType::kBf16};
}

}  // namespace

SortedItems sort_items(const Exec& exec, const Tensor& index, int64_t destinations) {
  const int64_t n = index.size(0);
  SEGUE_ASSERT(n < (int64_t{1} << 31) && destinations < (int64_t{1} << 31),
               "too many rows for one sum");
  if (n == 0) return {nullptr, nullptr, 0, static_cast<uint32_t>(destinations)};
  const cudaStream_t stream = stream_of(exec);
  const auto memory = [&] { return static_cast<uint32_t*>(exec.index({n}).data); };
  uint32_t *keys = memory(), *items = memory();
  uint32_t *keys_in = memory(), *items_in = memory();
  make_keys_kernel<<<static_cast<unsigned>(std::min(divide_up(n, kThreads), kMaxBlocks)), kThreads,
                     0, stream>>>(index_of(index), n, destinations, keys_in, items_in);
  check_launch();
  int bits = 1;
  while (destinations >> bits != 0) ++bits;
  size_t bytes = 0;
  check_cuda(cub::DeviceRadixSort::SortPairs(nullptr, bytes, keys_in, keys, items_in, items,
                                             static_cast<int>(n), 0, bits, stream));
  const Tensor scratch = exec.arena->tensor(DType::kU8, {static_cast<int64_t>(bytes)});
  check_cuda(cub::DeviceRadixSort::SortPairs(scratch.data, bytes, keys_in, keys, items_in, items,
                                             static_cast<int>(n), 0, bits, stream));
  // One kernel when all keys fit into a block, else a histogram, its sums and a pass per digit.
  constexpr int64_t kOneBlock = 4864;
  count_launches(n <= kOneBlock ? 1 : 2 + divide_up(bits, 8));
  return {keys, items, n, static_cast<uint32_t>(destinations)};
}

void sum_sorted(const Exec& exec, const SortedItems& sorted, const Tensor& from,
                const Dropout& dropout, double scale, const SumTargets& targets) {
  const int64_t columns = from.size(1);
  if (sorted.n == 0 || columns == 0) return;
  const cudaStream_t stream = stream_of(exec);
  // Short chunks keep a small sum parallel, long ones keep partial sums few.
  const int chunk_length = sorted.n <= 16384 ? 16 : kMaxChunk;
  const int64_t chunks = divide_up(sorted.n, chunk_length);
  const Arena::Mark mark(*exec.arena);
  const Tensor partials = exec.arena->tensor(DType::kF32, {chunks * 2, columns});
  const TargetArgs to{target_rows(targets.first), target_rows(targets.second),
                      static_cast<uint32_t>(targets.split)};
  const DropoutArgs drop(exec, dropout);
  const dim3 grid(static_cast<unsigned>(divide_up(chunks, kWarpsPerBlock)),
                  static_cast<unsigned>(divide_up(columns, kSumColumns)));
  dispatch_type(from.dtype, [&](auto zero_value) {
    using T = decltype(zero_value);
    const auto launch = [&](auto kernel) {
      kernel<<<grid, kThreads, 0, stream>>>(sorted, chunk_length, input_of<T>(from), drop,
                                            static_cast<int>(columns), static_cast<float>(scale),
                                            to, device_ptr<float>(partials));
      check_launch();
    };
    if (can_vectorize(columns, {from, targets.first, targets.second})) {
      launch(sum_chunks_kernel<T, 8>);
    } else {
      launch(sum_chunks_kernel<T, 1>);
    }
  });
  sum_spans_kernel<<<static_cast<unsigned>(chunks), kThreads, 0, stream>>>(
      sorted, chunk_length, static_cast<int>(columns), static_cast<float>(scale), to,
      device_ptr<float>(partials));
  check_launch();
}

void segment_sum(const Exec& exec, const Tensor& from, const Tensor& index, const Tensor& to,
                 double scale) {
  SEGUE_ASSERT(from.size(0) == index.size(0) && to.size(1) == from.size(1),
               "segment_sum: shapes differ");
  const Arena::Mark mark(*exec.arena);
  const SortedItems sorted = sort_items(exec, index, to.size(0));
  sum_sorted(exec, sorted, from, {}, scale, {to, {}, to.size(0)});
}

}  // namespace segue::ops::cuda
