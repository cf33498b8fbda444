#include <cub/device/device_radix_sort.cuh>

#include "ops/chunk_sums.cuh"
#include "ops/cuda_forms.h"
#include "ops/partial_sums.cuh"

namespace segue::ops::cuda {
namespace {

struct KeyArgs {
  IndexView index[kMaxOrders];
  int64_t first[kMaxOrders], count[kMaxOrders];  // destinations of each order
  int64_t rows;
};

__global__ void make_keys_kernel(KeyArgs a, uint32_t* keys, uint32_t* items) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  const int order = static_cast<int>(blockIdx.y);
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < a.rows;
       i += step) {
    const int64_t to = a.index[order][i];
    if (to != -1) require_row(to, a.count[order]);
    const int64_t at = order * a.rows + i;
    keys[at] = static_cast<uint32_t>(a.first[order] + (to == -1 ? a.count[order] : to));
    items[at] = static_cast<uint32_t>(i);
  }
}

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
  int64_t destinations = 0;
  for (size_t i = 0; i < orders.size(); ++i) {
    SEGUE_ASSERT(orders[i].index.size(0) == rows, "sums of rows: an index for each row");
    a.index[i] = index_of(orders[i].index);
    a.first[i] = destinations;
    a.count[i] = orders[i].first.count + orders[i].second.count;
    destinations += a.count[i] + 1;  // and one for rows that go nowhere
  }
  const int64_t n = rows * static_cast<int64_t>(orders.size());
  if (const SortedIndex& sorted = orders.front().sorted; orders.size() == 1 && sorted.keys) {
    SEGUE_ASSERT(sorted.keys.size(0) == n && sorted.items.size(0) == n, "sorted index: its size");
    return {reinterpret_cast<const uint32_t*>(device_ptr<int32_t>(sorted.keys)),
            reinterpret_cast<const uint32_t*>(device_ptr<int32_t>(sorted.items))};
  }
  SEGUE_ASSERT(n < (int64_t{1} << 31) && destinations < (int64_t{1} << 31),
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
  return {keys, items};
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
    args.rows[at++] = {nullptr, 0, ++end, 0.f, false};  // for rows that go nowhere
  }
  return args;
}

/// Adds a.range in chunks.
template <class T>
void sum_chunks(cudaStream_t stream, const ChunkArgs<T>& a, bool vectorize) {
  const auto launch = [&](auto lanes, auto drops) {
    using L = decltype(lanes);
    const dim3 grid(static_cast<unsigned>(divide_up(a.range.chunks(), kWarpsPerBlock)),
                    static_cast<unsigned>(divide_up(a.columns, L::kColumns)));
    sum_chunks_kernel<T, L, decltype(drops)::value><<<grid, kThreads, 0, stream>>>(a);
    check_launch();
  };
  const auto choose = [&](auto drops) {
    if (!vectorize) return launch(Lanes<1, 8>{}, drops);
    if (a.columns <= 256) return launch(Lanes<8, 1>{}, drops);
    launch(ChunkLanes<decltype(drops)::value>{}, drops);
  };
  if (a.dropped.dropout.active) return choose(std::true_type{});
  choose(std::false_type{});
}

/// The same with a fused sum; a.range has a chunk for each warp.
void fused_sums(const Exec& exec, const ChunkArgs<bf16>& a, const FusedSum& fused, int64_t blocks) {
  const int64_t count = fused.rows.size(0);
  const Arena::Mark mark(*exec.arena);
  PartialSums partials(exec, blocks, count * a.columns);
  const FusedArgs args{device_ptr<int32_t>(fused.index), static_cast<int>(count),
                       static_cast<float>(fused.scale), partials.data()};
  const auto kernel =
      a.dropped.dropout.active ? fused_sums_kernel<bf16, true> : fused_sums_kernel<bf16, false>;
  const auto bytes = static_cast<size_t>(kFusedWarps * count * kFusedColumns) * sizeof(float);
  allow_shared_memory(kernel, bytes);
  const dim3 grid(static_cast<unsigned>(blocks),
                  static_cast<unsigned>(divide_up(a.columns, kFusedColumns)));
  kernel<<<grid, kFusedWarps * kWarp, bytes, stream_of(exec)>>>(a, args);
  check_launch();
  partials.fold(fused.rows, 0, count * a.columns);
}

/// Blocks of fused_sums_kernel side by side: as many as there are multiprocessors.
int64_t fused_blocks(int64_t rows, int64_t columns) {
  constexpr int64_t kFewest = 16;  // rows worth a warp
  return std::clamp<int64_t>(kMultiprocessors / divide_up(columns, kFusedColumns), 1,
                             divide_up(rows, kFusedWarps * kFewest));
}

}  // namespace

bool can_fuse(const Tensor& from, const Tensor& rows) {
  return rows && rows.size(0) <= kMaxFusedRows && rows.size(0) > 0 && rows.is_contiguous() &&
         rows.dtype == DType::kF32 && from.dtype == DType::kBf16 &&
         can_vectorize(from.size(1), {from});
}

void sum_rows(const Exec& exec, const Tensor& from, const DroppedRows& dropped,
              std::span<const SumOrder> orders, const FusedSum& fused) {
  const int64_t rows = from.size(0), columns = from.size(1);
  if (rows == 0 || columns == 0 || orders.empty()) return;
  SEGUE_ASSERT(orders.size() <= kMaxOrders, "sums of rows: too many orders at once");
  SEGUE_ASSERT(!fused.rows || can_fuse(from, fused.rows),
               "sums of rows: too many rows to be fused");
  SEGUE_ASSERT(!dropped.dropout.active || dropped.keep.data != nullptr,
               "sums of rows: dropout without its bits");
  const cudaStream_t stream = stream_of(exec);
  const Arena::Mark mark(*exec.arena);
  const TargetArgs targets = target_args(orders, columns);
  bool vectorize = can_vectorize(columns, {from});
  for (const SumOrder& order : orders) {
    vectorize = vectorize && can_vectorize(columns, {order.first.rows, order.second.rows});
  }
  if (rows <= kFewRows && orders.size() == 1 && !dropped.dropout.active && !fused.rows) {
    const SumOrder& order = orders.front();
    SEGUE_ASSERT(order.index.size(0) == rows, "sums of rows: an index for each row");
    dispatch_type(from.dtype, [&](auto zero_value) {
      using T = decltype(zero_value);
      const auto kernel = vectorize ? sum_few_kernel<T, 8> : sum_few_kernel<T, 1>;
      kernel<<<static_cast<unsigned>(rows), kThreads, 0, stream>>>(
          input_of<T>(from), static_cast<int>(rows), static_cast<int>(columns),
          index_of(order.index), order.first.count + order.second.count, targets);
      check_launch();
    });
    return;
  }
  const SortedItems sorted = sort_items(exec, rows, orders);
  const int64_t n = rows * static_cast<int64_t>(orders.size());
  ChunkRange fused_range, plain;
  const int64_t blocks = fused_blocks(rows, columns);
  if (fused.rows) {
    SEGUE_ASSERT(fused.index && fused.index.size(0) == rows && fused.rows.size(1) == columns,
                 "sums of rows: a fused sum has an index for each row");
    fused_range = {0, rows, 0, static_cast<int>(divide_up(rows, blocks * kFusedWarps))};
  }
  plain = {fused_range.end, n, fused_range.chunks(), chunk_length(n)};
  const int64_t chunks = fused_range.chunks() + plain.chunks();
  const Tensor partials = exec.arena->tensor(DType::kF32, {chunks * 2, columns});
  dispatch_type(from.dtype, [&](auto zero_value) {
    using T = decltype(zero_value);
    ChunkArgs<T> a{sorted,
                   fused_range,
                   input_of<T>(from),
                   dropped,
                   static_cast<int>(columns),
                   targets,
                   device_ptr<float>(partials)};
    if constexpr (std::is_same_v<T, bf16>) {
      if (fused.rows) fused_sums(exec, a, fused, blocks);
    }
    a.range = plain;
    if (plain.chunks() > 0) sum_chunks(stream, a, vectorize);
  });
  const SpanArgs<> spans{sorted,
                         {fused_range, plain},
                         static_cast<int>(columns),
                         targets,
                         device_ptr<float>(partials)};
  const auto kernel = vectorize ? sum_spans_kernel<8> : sum_spans_kernel<1>;
  const dim3 grid(static_cast<unsigned>(divide_up(chunks, kWarpsPerBlock)),
                  static_cast<unsigned>(divide_up(columns, kWarp * (vectorize ? 8 : 1))));
  kernel<<<grid, kThreads, 0, stream>>>(spans);
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
