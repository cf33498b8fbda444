#include <cub/device/device_radix_sort.cuh>

#include "ops/cuda_forms.h"
#include "ops/segments.cuh"

namespace segue::ops::cuda {
namespace {

constexpr int kMaxOrders = 4, kMaxTargets = 2 * kMaxOrders;

/// Rows in the order of their destinations, those that go nowhere last under key `destinations`.
struct SortedItems {
  const uint32_t* keys;
  const uint32_t* items;
  int64_t n;
  uint32_t destinations;
};

struct KeyArgs {
  IndexView index[kMaxOrders];
  int64_t first[kMaxOrders], count[kMaxOrders];  // destinations of each order
  int64_t rows, destinations;
};

__global__ void make_keys_kernel(KeyArgs a, uint32_t* keys, uint32_t* items) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  const int order = static_cast<int>(blockIdx.y);
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < a.rows;
       i += step) {
    const int64_t to = a.index[order][i];
    if (to != -1) require_row(to, a.count[order]);
    const int64_t at = order * a.rows + i;
    keys[at] = static_cast<uint32_t>(to == -1 ? a.destinations : a.first[order] + to);
    items[at] = static_cast<uint32_t>(i);
  }
}

struct TargetArgs {
  struct Rows {
    void* data;
    int64_t stride;
    uint32_t end;  // one past its last destination; the first is where the one before ends
    float scale;
    bool is_bf16;
  };
  Rows rows[kMaxTargets];
};

/// `load` and `store` for the widths of pieces that they have no form for.
template <int kW, class T>
__device__ void load_vector(const T* from, float (&to)[kW]) {
  if constexpr (kW == 4 && sizeof(T) == 4) {
    const float4 v = *reinterpret_cast<const float4*>(from);
    to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
  } else {
    load(from, to);
  }
}
template <int kW, class T>
__device__ void store_vector(T* to, const float (&from)[kW]) {
  if constexpr (kW == 4 && sizeof(T) == 4) {
    *reinterpret_cast<float4*>(to) = make_float4(from[0], from[1], from[2], from[3]);
  } else {
    store(to, from);
  }
}

/// Where the sums of one destination go.
struct TargetRow {
  void* data;  // null: nobody wants them
  float scale;
  bool is_bf16;

  __device__ TargetRow(const TargetArgs& targets, uint32_t destination) {
    int at = 0;
    while (destination >= targets.rows[at].end) ++at;
    const TargetArgs::Rows& t = targets.rows[at];
    const int64_t row = destination - (at == 0 ? 0 : targets.rows[at - 1].end);
    scale = t.scale;
    is_bf16 = t.is_bf16;
    data = t.data == nullptr ? nullptr
                             : static_cast<char*>(t.data) + row * t.stride * (is_bf16 ? 2 : 4);
  }
  /// Columns column .. column + kW += scale * values; no thread shares an element.
  template <int kW>
  __device__ void add(int64_t column, const float (&values)[kW]) const {
    if (data == nullptr) return;
    const auto add_to = [&](auto* to) {
      float now[kW];
      load_vector(to, now);
      for (int j = 0; j < kW; ++j) now[j] += __fmul_rn(values[j], scale);
      store_vector(to, now);
    };
    if (is_bf16) {
      add_to(static_cast<bf16*>(data) + column);
    } else {
      add_to(static_cast<float*>(data) + column);
    }
  }
};

constexpr int kAhead = 4;  // rows loaded before the first is added; divides a warp
constexpr int kMaxChunk = 2 * kWarp;

/// A warp adds the items of one chunk. Groups that lie inside it are finished; the sum of one that
/// came in from the chunk before goes to partials[chunk][0], of one that goes on to the next and
/// began here to partials[chunk][1].
template <class T, class L, bool kDrops>
__global__ void __launch_bounds__(kThreads, 2)
    sum_chunks_kernel(SortedItems s, int chunk_length, Matrix<const T> from, DroppedRows dropped,
                      int columns, TargetArgs targets, float* partials) {
  const int64_t chunk = static_cast<int64_t>(blockIdx.x) * kWarpsPerBlock + threadIdx.x / kWarp;
  const int64_t begin = chunk * chunk_length;
  if (begin >= s.n) return;
  const int64_t end = begin + chunk_length < s.n ? begin + chunk_length : s.n;
  if (s.keys[begin] >= s.destinations) return;  // all of these go nowhere
  const int base = static_cast<int>(blockIdx.y) * L::kColumns;
  const int count = min(L::kColumns, columns - base);
  const bool came_in = begin > 0 && s.keys[begin - 1] == s.keys[begin];

  L sum{};
  uint32_t key = s.keys[begin];
  bool is_head = came_in;
  const auto flush = [&](bool goes_on) {
    if (key >= s.destinations) return;
    if (is_head || goes_on) {
      float* to = partials + (chunk * 2 + (is_head ? 0 : 1)) * columns + base;
      sum.store_row(to, count);
    } else {
      const TargetRow to(targets, key);
      L::for_each(count, [&](int i, int c) { to.add(base + c, sum.v[i]); });
    }
  };

  // A lane knows two of the chunk's items and passes them round; where groups begin, all know.
  const auto lane = static_cast<int>(threadIdx.x % kWarp);
  uint32_t my_keys[2], my_items[2], starts[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int64_t at = begin + half * kWarp + lane;
    my_keys[half] = at < end ? s.keys[at] : 0;
    my_items[half] = at < end ? s.items[at] : 0;
    const bool starts_group = at > begin && at < end && s.keys[at - 1] != my_keys[half];
    starts[half] = __ballot_sync(0xffffffffu, starts_group);
  }
  // A row lies one product of 32 bits away from row 0.
  const int first = base + L::first(0);
  const char* const lane_rows = reinterpret_cast<const char*>(from.data + first);
  const uint8_t* const lane_bits = dropped.keep.data + first / 8;
  const auto row_bytes = static_cast<uint32_t>(from.stride * sizeof(T));
  const auto keep_bytes = static_cast<uint32_t>(dropped.keep.stride);
  const auto length = static_cast<int>(end - begin);
  for (int at = 0; at < length; at += kAhead) {
    typename L::template Raw<T> rows[kAhead];
    uint32_t bits[kAhead][L::kIters];
    const bool low_half = at < kWarp;
    const uint32_t half_items = low_half ? my_items[0] : my_items[1];
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      // Beyond the end: item 0, which exists and is not added.
      const uint64_t item = __shfl_sync(0xffffffffu, half_items, (at + k) % kWarp);
      rows[k].load_lane(reinterpret_cast<const T*>(lane_rows + item * row_bytes), count);
      if constexpr (kDrops) {
        const uint8_t* row_bits = lane_bits + item * keep_bytes;
        L::for_each(count, [&](int i, int) { bits[k][i] = row_bits[i * kWarp * L::kW / 8]; });
      }
    }
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      if (at + k >= length) continue;
      if ((low_half ? starts[0] : starts[1]) >> (at + k) % kWarp & 1u) {
        flush(false);
        sum = L{};
        key = __shfl_sync(0xffffffffu, low_half ? my_keys[0] : my_keys[1], (at + k) % kWarp);
        is_head = false;
      }
      L::for_each(count, [&](int i, int c) {
        float value[L::kW];
        rows[k].unpack(i, value);
        if constexpr (kDrops) {
          const uint32_t kept = KeepBits::unfold(bits[k][i]);
          dropped.dropout.template apply_rounded<T>(kept, base + c, value);
        }
        for (int j = 0; j < L::kW; ++j) sum.v[i][j] += value[j];
      });
    }
  }
  flush(end < s.n && s.keys[end] == key);
}

constexpr int kShortSpan = 2 * kWarpsPerBlock;

/// How many chunks the group that ends chunk `chunk`, and began there, goes on into. The same in
/// all lanes.
__device__ int64_t span_of(const SortedItems& s, int64_t chunk, int chunk_length) {
  const int64_t next = (chunk + 1) * chunk_length;
  if (next >= s.n) return 0;
  const uint32_t key = s.keys[next - 1];
  if (key >= s.destinations || s.keys[next] != key) return 0;
  if (chunk > 0 && s.keys[next - chunk_length - 1] == key) return 0;  // began earlier
  const int64_t last_chunk = (s.n - 1) / chunk_length;
  // A chunk is entered if its first item has the key; lanes ask for 32 at a time.
  for (int64_t heads = 1;; heads += kWarp) {
    const int64_t at = chunk + heads + 1 + static_cast<int64_t>(threadIdx.x % kWarp);
    const bool entered = at <= last_chunk && s.keys[at * chunk_length] == key;
    const uint32_t all = __ballot_sync(0xffffffffu, entered);
    if (all != 0xffffffffu) return heads + __ffs(static_cast<int>(~all)) - 1;
  }
}

/// Finishes groups that go beyond the chunk where they begin: kV columns a lane. A warp adds the
/// few partial sums of one; where there are many, all warps of the block add pieces of them, then
/// the pieces in order.
template <int kV>
__global__ void __launch_bounds__(kThreads)
    sum_spans_kernel(SortedItems s, int chunk_length, int columns, TargetArgs targets,
                     const float* partials) {
  constexpr int kColumns = kWarp * kV;
  __shared__ __align__(16) float pieces[kWarpsPerBlock][kColumns];
  __shared__ int64_t spans[kWarpsPerBlock];
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kWarpsPerBlock;
  const int base = static_cast<int>(blockIdx.y) * kColumns, column = base + lane * kV;
  const auto key_of = [&](int64_t chunk) { return s.keys[(chunk + 1) * chunk_length - 1]; };
  // Partials from .. until of the group that began in `chunk`, several on their way at a time.
  const auto sum_part = [&](int64_t chunk, int64_t from, int64_t until, float(&sum)[kV]) {
    constexpr int kBatch = 8;
    const float* own = partials + (chunk * 2 + 1) * columns + column;  // where it began
    const float* heads = partials + chunk * 2 * columns + column;      // and where it goes on
    for (int64_t i = from; i < until; i += kBatch) {
      float values[kBatch][kV] = {};
#pragma unroll
      for (int k = 0; k < kBatch; ++k) {
        if (i + k < until) load_vector(i + k == 0 ? own : heads + (i + k) * 2 * columns, values[k]);
      }
#pragma unroll
      for (int k = 0; k < kBatch; ++k) {
        for (int j = 0; j < kV; ++j) sum[j] += values[k][j];
      }
    }
  };

  const int64_t own = span_of(s, first + warp, chunk_length);
  if (lane == 0) spans[warp] = own;
  if (own > 0 && own < kShortSpan && column < columns) {
    float sum[kV] = {};
    sum_part(first + warp, 0, own + 1, sum);
    TargetRow(targets, key_of(first + warp)).add(column, sum);
  }
  __syncthreads();
  for (int w = 0; w < kWarpsPerBlock; ++w) {
    const int64_t count = spans[w] + 1;
    if (count <= kShortSpan) continue;
    const int64_t each = (count + kWarpsPerBlock - 1) / kWarpsPerBlock;
    const int64_t from = warp * each, until = from + each < count ? from + each : count;
    if (column < columns) {
      float sum[kV] = {};
      sum_part(first + w, from, until, sum);
      store_vector(&pieces[warp][lane * kV], sum);
    }
    __syncthreads();
    for (int c = static_cast<int>(threadIdx.x); c < min(kColumns, columns - base); c += kThreads) {
      float total[1] = {0.f};
      for (int piece = 0; piece < kWarpsPerBlock; ++piece) total[0] += pieces[piece][c];
      TargetRow(targets, key_of(first + w)).add(base + c, total);
    }
    __syncthreads();
  }
}

constexpr int kFewRows = 1024;

/// Few rows need no sort: the block of a row that is the first of its destination adds all of them,
/// in order.
template <class T, int kW>
__global__ void __launch_bounds__(kThreads)
    sum_few_kernel(Matrix<const T> from, int rows, int columns, IndexView index, int64_t count,
                   TargetArgs targets) {
  __shared__ uint32_t same[kFewRows / kWarp];  // a bit for each row
  const auto own = static_cast<int>(blockIdx.x);
  const int64_t to = index[own];
  if (to == -1) return;
  require_row(to, count);
  bool is_first = true;
  for (int i = static_cast<int>(threadIdx.x); i < kFewRows; i += kThreads) {
    const bool shares = i < rows && index[i] == to;
    is_first = is_first && !(shares && i < own);
    const uint32_t word = __ballot_sync(0xffffffffu, shares);
    if (i % kWarp == 0) same[i / kWarp] = word;
  }
  if (__syncthreads_and(is_first) == 0) return;
  for (int c = static_cast<int>(threadIdx.x) * kW; c < columns; c += kThreads * kW) {
    float sum[kW] = {}, value[kW];
    for (int w = own / kWarp; w < kFewRows / kWarp; ++w) {
      for (uint32_t bits = same[w]; bits != 0; bits &= bits - 1) {
        load(from.row(w * kWarp + __ffs(static_cast<int>(bits)) - 1) + c, value);
        for (int j = 0; j < kW; ++j) sum[j] += value[j];
      }
    }
    TargetRow(targets, static_cast<uint32_t>(to)).add(c, sum);
  }
}

/// Keys of all orders, sorted. Memory comes from exec.arena: the caller holds the Mark.
SortedItems sort_items(const Exec& exec, int64_t rows, std::span<const SumOrder> orders) {
  KeyArgs a{};
  a.rows = rows;
  for (size_t i = 0; i < orders.size(); ++i) {
    SEGUE_ASSERT(orders[i].index.size(0) == rows, "sums of rows: an index for each row");
    a.index[i] = index_of(orders[i].index);
    a.first[i] = a.destinations;
    a.count[i] = orders[i].first.count + orders[i].second.count;
    a.destinations += a.count[i];
  }
  const int64_t n = rows * static_cast<int64_t>(orders.size());
  if (const SortedIndex& sorted = orders.front().sorted; orders.size() == 1 && sorted.keys) {
    SEGUE_ASSERT(sorted.keys.size(0) == n && sorted.items.size(0) == n, "sorted index: its size");
    return {reinterpret_cast<const uint32_t*>(device_ptr<int32_t>(sorted.keys)),
            reinterpret_cast<const uint32_t*>(device_ptr<int32_t>(sorted.items)), n,
            static_cast<uint32_t>(a.destinations)};
  }
  SEGUE_ASSERT(n < (int64_t{1} << 31) && a.destinations < (int64_t{1} << 31),
               "too many rows for one sum");
  const cudaStream_t stream = stream_of(exec);
  const auto memory = [&] { return static_cast<uint32_t*>(exec.index({n}).data); };
  uint32_t *keys = memory(), *items = memory();
  uint32_t *keys_in = memory(), *items_in = memory();
  const dim3 grid(static_cast<unsigned>(std::min(divide_up(rows, kThreads), kMaxBlocks)),
                  static_cast<unsigned>(orders.size()));
  make_keys_kernel<<<grid, kThreads, 0, stream>>>(a, keys_in, items_in);
  check_launch();
  int bits = 1;
  while (a.destinations >> bits != 0) ++bits;
  size_t bytes = 0;
  check_cuda(cub::DeviceRadixSort::SortPairs(nullptr, bytes, keys_in, keys, items_in, items,
                                             static_cast<int>(n), 0, bits, stream));
  const Tensor scratch = exec.arena->tensor(DType::kU8, {static_cast<int64_t>(bytes)});
  check_cuda(cub::DeviceRadixSort::SortPairs(scratch.data, bytes, keys_in, keys, items_in, items,
                                             static_cast<int>(n), 0, bits, stream));
  // One kernel when all keys fit into a block, else a histogram, its sums and a pass per digit.
  constexpr int64_t kOneBlock = 4864;
  count_launches(n <= kOneBlock ? 1 : 2 + divide_up(bits, 8));
  return {keys, items, n, static_cast<uint32_t>(a.destinations)};
}

TargetArgs target_args(std::span<const SumOrder> orders, int64_t columns) {
  TargetArgs args{};
  uint32_t end = 0;
  size_t at = 0;
  for (const SumOrder& order : orders) {
    for (const SumTarget* t : {&order.first, &order.second}) {
      SEGUE_ASSERT(!t->rows || (t->rows.rank == 2 && t->rows.size(0) == t->count &&
                                t->rows.size(1) == columns &&
                                (t->rows.dtype == DType::kF32 || t->rows.dtype == DType::kBf16)),
                   "sums of rows: the result is float or bf16 [count, columns]");
      end += static_cast<uint32_t>(t->count);
      args.rows[at++] = {t->rows ? t->rows.data : nullptr, t->rows ? t->rows.stride(0) : 0, end,
                         static_cast<float>(t->scale), t->rows && t->rows.dtype == DType::kBf16};
    }
  }
  return args;
}

}  // namespace

void sum_rows(const Exec& exec, const Tensor& from, const DroppedRows& dropped,
              std::span<const SumOrder> orders) {
  const int64_t columns = from.size(1);
  if (from.size(0) == 0 || columns == 0 || orders.empty()) return;
  SEGUE_ASSERT(orders.size() <= kMaxOrders, "sums of rows: too many orders at once");
  SEGUE_ASSERT(!dropped.dropout.active || dropped.keep.data != nullptr,
               "sums of rows: dropout without its bits");
  const cudaStream_t stream = stream_of(exec);
  const Arena::Mark mark(*exec.arena);
  const TargetArgs targets = target_args(orders, columns);
  bool vectorize = can_vectorize(columns, {from});
  for (const SumOrder& order : orders) {
    vectorize = vectorize && can_vectorize(columns, {order.first.rows, order.second.rows});
  }
  if (from.size(0) <= kFewRows && orders.size() == 1 && !dropped.dropout.active) {
    const SumOrder& order = orders.front();
    SEGUE_ASSERT(order.index.size(0) == from.size(0), "sums of rows: an index for each row");
    dispatch_type(from.dtype, [&](auto zero_value) {
      using T = decltype(zero_value);
      const auto kernel = vectorize ? sum_few_kernel<T, 8> : sum_few_kernel<T, 1>;
      kernel<<<static_cast<unsigned>(from.size(0)), kThreads, 0, stream>>>(
          input_of<T>(from), static_cast<int>(from.size(0)), static_cast<int>(columns),
          index_of(order.index), order.first.count + order.second.count, targets);
      check_launch();
    });
    return;
  }
  const SortedItems sorted = sort_items(exec, from.size(0), orders);
  // Short chunks keep a small sum parallel, long ones keep partial sums few.
  const int chunk_length = sorted.n <= 16384 ? 16 : kMaxChunk;
  const int64_t chunks = divide_up(sorted.n, chunk_length);
  const Tensor partials = exec.arena->tensor(DType::kF32, {chunks * 2, columns});
  const auto blocks = static_cast<unsigned>(divide_up(chunks, kWarpsPerBlock));
  const auto grid_of = [&](int columns_each) {
    return dim3(blocks, static_cast<unsigned>(divide_up(columns, columns_each)));
  };
  dispatch_type(from.dtype, [&](auto zero_value) {
    const auto launch = [&](auto lanes) {
      using T = decltype(zero_value);
      using L = decltype(lanes);
      const auto kernel =
          dropped.dropout.active ? sum_chunks_kernel<T, L, true> : sum_chunks_kernel<T, L, false>;
      kernel<<<grid_of(L::kColumns), kThreads, 0, stream>>>(sorted, chunk_length, input_of<T>(from),
                                                            dropped, static_cast<int>(columns),
                                                            targets, device_ptr<float>(partials));
      check_launch();
    };
    if (!vectorize) return launch(Lanes<1, 8>{});
    if (columns <= 256) return launch(Lanes<8, 1>{});
    launch(Lanes<8, 2>{});
  });
  const auto finish = vectorize ? sum_spans_kernel<4> : sum_spans_kernel<1>;
  finish<<<grid_of(kWarp * (vectorize ? 4 : 1)), kThreads, 0, stream>>>(
      sorted, chunk_length, static_cast<int>(columns), targets, device_ptr<float>(partials));
  check_launch();
}

void segment_sum(const Exec& exec, const Tensor& from, const Tensor& index, const Tensor& to,
                 double scale, const SortedIndex& sorted) {
  SEGUE_ASSERT(from.size(0) == index.size(0) && to.size(1) == from.size(1),
               "segment_sum: shapes differ");
  const SumOrder order{index, {to, to.size(0), scale}, {}, sorted};
  sum_rows(exec, from, {}, {&order, 1});
}

}  // namespace segue::ops::cuda
