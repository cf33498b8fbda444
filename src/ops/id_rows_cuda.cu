#include "ops/adam_step.h"
#include "ops/chunk_sums.cuh"
#include "ops/id_rows_cuda.h"
#include "ops/update_rules.cuh"

namespace segue::ops::cuda {
namespace {

struct GatherList {
  struct Part {
    Matrix<const float> table;
    int64_t table_rows;
    const int64_t* slots;
    const int32_t* places;
    int64_t first;
    Matrix<float> to;
    int64_t end;  // one past its last row, counted through all parts
  };
  Part parts[kMaxTables];
};

constexpr int kRowsAhead = 8;  // of a warp, on their way at a time

/// Lanes find the rows of a warp side by side; then the whole warp copies each. kW columns a lane.
template <int kW>
__global__ void __launch_bounds__(kThreads)
    gather_id_rows_kernel(const __grid_constant__ GatherList list, int64_t rows, int columns,
                          WireRounding wire) {
  constexpr unsigned kAll = 0xffffffffu;
  const int64_t base =
      (static_cast<int64_t>(blockIdx.x) * kWarpsPerBlock + threadIdx.x / kWarp) * kRowsAhead;
  if (base >= rows) return;
  const auto lane = static_cast<int>(threadIdx.x % kWarp);
  const float* from = nullptr;
  float* to = nullptr;
  if (lane < kRowsAhead && base + lane < rows) {
    int which = 0;
    while (base + lane >= list.parts[which].end) ++which;
    const GatherList::Part& part = list.parts[which];
    const int64_t r = base + lane - (which == 0 ? 0 : list.parts[which - 1].end);
    to = part.to.row(r);
    const int64_t place = part.places[r];
    const int64_t slot = place < 0 ? -1 : part.slots[place - part.first];
    if (slot != -1) {
      require_row(slot, part.table_rows);
      from = part.table.row(slot);
    }
  }
  const auto of_row = [&](auto* pointer, int r) {
    return reinterpret_cast<decltype(pointer)>(
        __shfl_sync(kAll, reinterpret_cast<unsigned long long>(pointer), r));
  };
  for (int first = 0; first < columns; first += kWarp * kW) {
    const int c = first + lane * kW;
    float values[kRowsAhead][kW];
#pragma unroll
    for (int r = 0; r < kRowsAhead; ++r) {
      const float* row = of_row(from, r);
#pragma unroll
      for (int j = 0; j < kW; ++j) values[r][j] = 0;
      if (row == nullptr || c >= columns) continue;
      if constexpr (kW == 4) {
        const float4 four = *reinterpret_cast<const float4*>(row + c);
        values[r][0] = four.x, values[r][1] = four.y, values[r][2] = four.z, values[r][3] = four.w;
      } else {
        values[r][0] = row[c];
      }
    }
#pragma unroll
    for (int r = 0; r < kRowsAhead; ++r) {
      float* row = of_row(to, r);
      if (row == nullptr || c >= columns) continue;
#pragma unroll
      for (int j = 0; j < kW; ++j) values[r][j] = through(wire, values[r][j]);
      if constexpr (kW == 4) {
        *reinterpret_cast<float4*>(row + c) =
            make_float4(values[r][0], values[r][1], values[r][2], values[r][3]);
      } else {
        row[c] = values[r][0];
      }
    }
  }
}

// ---- sums and updates ----

/// Rows of tables that are updated with the sums of their gradients.
template <RowOptimizer kKind>
struct UpdateTargets {
  static constexpr bool kHasState = kKind != RowOptimizer::kSgd;
  static constexpr bool kHasTwo = kKind == RowOptimizer::kAdam;

  struct Part {
    const int64_t* ids;
    Matrix<float> table;
    int64_t table_rows;
    float* states;
    uint32_t end;  // one past its last destination, counted through all parts
  };
  Part parts[kMaxTables];
  int count;
  int dim;
  float lr, eps;
  AdamStep<float> adam;
  WireRounding wire;
  Finite finite;

  /// Columns of a row with their state.
  template <int kW>
  struct Piece {
    float weight[kW], m[kW], v[kW];
  };

  struct Row {
    const UpdateTargets& of;
    float* data = nullptr;  // null: nobody wants the sum
    float* state = nullptr;

    __device__ Row(const UpdateTargets& targets, uint32_t destination) : of(targets) {
      if (destination >= of.parts[of.count - 1].end || !of.finite.all()) return;
      int at = 0;
      while (destination >= of.parts[at].end) ++at;
      const Part& part = of.parts[at];
      const int64_t id = part.ids[destination - (at == 0 ? 0 : of.parts[at - 1].end)];
      if (id == -1) return;
      require_row(id, part.table_rows);
      data = part.table.row(id);
      if constexpr (kHasState) state = part.states + id * of.dim * (kHasTwo ? 2 : 1);
    }

    template <int kW>
    __device__ void read(int64_t column, Piece<kW>& piece) const {
      load(data + column, piece.weight);
      if constexpr (kHasState) load(state + column, piece.m);
      if constexpr (kHasTwo) load(state + of.dim + column, piece.v);
    }
    /// A step, and back into memory.
    template <int kW>
    __device__ void finish(int64_t column, Piece<kW>& piece, const float (&sums)[kW]) const {
#pragma unroll
      for (int j = 0; j < kW; ++j) {
        const float g = through(of.wire, sums[j]);
        float& weight = piece.weight[j];
        if constexpr (kKind == RowOptimizer::kAdam) {
          of.adam.apply(g, piece.m[j], piece.v[j], weight);
        } else if constexpr (kKind == RowOptimizer::kAdagrad) {
          piece.m[j] += g * g;
          weight -= of.lr / (sqrtf(piece.m[j]) + of.eps) * g;
        } else {
          weight -= of.lr * g;
        }
      }
      if constexpr (kHasState) store(state + column, piece.m);
      if constexpr (kHasTwo) store(state + of.dim + column, piece.v);
      store(data + column, piece.weight);
    }
    /// What sum_spans_kernel asks for; no thread shares an element.
    template <int kW>
    __device__ void add(int64_t column, const float (&sums)[kW]) const {
      if (data == nullptr) return;
      Piece<kW> piece;
      read(column, piece);
      finish(column, piece, sums);
    }
  };
};

/// Gradients in the order of their destinations, cut into chunks.
template <class T>
struct SumArgs {
  SortedItems sorted;
  const int32_t* starts;  // of each destination
  int64_t rows;           // destinations
  ChunkRange range;
  Matrix<const T> from;
  int columns;
  float* partials;  // [chunks][2][columns]
};

constexpr int kColumnsEach = 4;  // of a lane
constexpr unsigned kAllLanes = 0xffffffffu;

/// The sum of gradients items[begin] ... items[end - 1], at most 64, in this order; four columns of
/// each lane from `column`. By a whole warp.
template <int kAhead, class T>
__device__ void sum_items(const SumArgs<T>& a, int64_t begin, int64_t end, int column,
                          float (&sum)[kColumnsEach]) {
  const auto lane = static_cast<int>(threadIdx.x % kWarp);
  const auto count = static_cast<int>(end - begin);
  const auto item = [&](int at) { return at < count ? a.sorted.items[begin + at] : 0; };
  const uint32_t low = item(lane), high = count > kWarp ? item(lane + kWarp) : 0;
  for (int at = 0; at < count; at += kAhead) {
    float rows[kAhead][kColumnsEach];
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      const uint32_t row = __shfl_sync(kAllLanes, at + k < kWarp ? low : high, (at + k) % kWarp);
      if (at + k < count && column < a.columns) load(a.from.row(row) + column, rows[k]);
    }
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      if (at + k >= count) continue;
#pragma unroll
      for (int j = 0; j < kColumnsEach; ++j) sum[j] += rows[k][j];
    }
  }
}

/// A warp for each destination whose gradients lie in one chunk: its row is on its way while they
/// are summed.
template <RowOptimizer kKind, class T>
__device__ void update_row(const SumArgs<T>& a, const UpdateTargets<kKind>& targets, int64_t row) {
  if (row >= a.rows) return;
  const int64_t begin = a.starts[row], end = a.starts[row + 1];
  if (begin / a.range.length != (end - 1) / a.range.length) return;
  const typename UpdateTargets<kKind>::Row to(targets, static_cast<uint32_t>(row));
  if (to.data == nullptr) return;
  const auto lane = static_cast<int>(threadIdx.x % kWarp);
  for (int first = 0; first < a.columns; first += kWarp * kColumnsEach) {
    const int column = first + lane * kColumnsEach;
    typename UpdateTargets<kKind>::template Piece<kColumnsEach> piece;
    float sum[kColumnsEach] = {};
    if (column < a.columns) to.read(column, piece);
    sum_items<4>(a, begin, end, column, sum);
    if (column < a.columns) to.finish(column, piece, sum);
  }
}

/// A warp for each chunk: its part of a destination that came in from the chunk before, to
/// partials[chunk][0], and of one that begins here and goes on, to partials[chunk][1].
template <class T>
__device__ void sum_ends(const SumArgs<T>& a, int64_t chunk) {
  if (chunk >= a.range.chunks()) return;
  const int64_t begin = chunk * a.range.length, n = a.range.end;
  const int64_t end = begin + a.range.length < n ? begin + a.range.length : n;
  const uint32_t* keys = a.sorted.keys;
  const uint32_t first_key = keys[begin], last_key = keys[end - 1];
  const bool comes_in = begin > 0 && keys[begin - 1] == first_key;
  const bool goes_on = end < n && keys[end] == last_key;
  const auto lane = static_cast<int>(threadIdx.x % kWarp);
  const auto count_of = [&](uint32_t key) {
    int count = 0;
    for (int64_t at = begin; at < end; at += kWarp) {
      count += __popc(__ballot_sync(kAllLanes, at + lane < end && keys[at + lane] == key));
    }
    return count;
  };
  const auto put = [&](int64_t from, int64_t until, int place) {
    for (int first = 0; first < a.columns; first += kWarp * kColumnsEach) {
      const int column = first + lane * kColumnsEach;
      float sum[kColumnsEach] = {};
      sum_items<8>(a, from, until, column, sum);
      if (column >= a.columns) continue;
      store(a.partials + (chunk * 2 + place) * a.columns + column, sum);
    }
  };
  if (comes_in && first_key < a.rows) put(begin, begin + count_of(first_key), 0);
  if (goes_on && !(comes_in && first_key == last_key) && last_key < a.rows) {
    put(end - count_of(last_key), end, 1);
  }
}

/// Both, side by side: the first blocks have the longer work.
template <RowOptimizer kKind, class T>
__global__ void __launch_bounds__(kThreads, 4)
    update_rows_kernel(const __grid_constant__ SumArgs<T> a,
                       const __grid_constant__ UpdateTargets<kKind> targets, unsigned end_blocks) {
  const int64_t warp = threadIdx.x / kWarp;
  if (blockIdx.x < end_blocks) {
    sum_ends(a, static_cast<int64_t>(blockIdx.x) * kWarpsPerBlock + warp);
  } else {
    update_row(a, targets, static_cast<int64_t>(blockIdx.x - end_blocks) * kWarpsPerBlock + warp);
  }
}

template <RowOptimizer kKind>
UpdateTargets<kKind> targets_of(const RowUpdateParams& p, std::span<const TableUpdate> parts,
                                DType wire, const Tensor& finite) {
  const int64_t dim = parts.front().table.size(1);
  UpdateTargets<kKind> t{.parts = {},
                         .count = static_cast<int>(parts.size()),
                         .dim = static_cast<int>(dim),
                         .lr = static_cast<float>(p.lr),
                         .eps = static_cast<float>(p.eps),
                         .adam = AdamStep<float>(p.lr, p.beta1, p.beta2, p.eps, p.t),
                         .wire = rounding_of(wire),
                         .finite = Finite(finite)};
  int64_t end = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    const TableUpdate& part = parts[i];
    SEGUE_ASSERT(part.table.size(1) == dim && !part.mean_squares, "tables of one width");
    SEGUE_ASSERT(kKind == RowOptimizer::kSgd ||
                     (part.state.is_contiguous() &&
                      part.state.elements() == part.table.size(0) * row_state_size(kKind, dim)),
                 "rowwise_update: shape of the state");
    end += part.ids.size(0);
    t.parts[i] = {device_ptr<int64_t>(part.ids), matrix_of<float>(part.table), part.table.size(0),
                  kKind == RowOptimizer::kSgd ? nullptr : device_ptr<float>(part.state),
                  static_cast<uint32_t>(end)};
  }
  return t;
}

template <RowOptimizer kKind>
void run(const Exec& exec, const RowUpdateParams& p, const Tensor& gradients, const IdOrder& order,
         std::span<const TableUpdate> parts, DType wire, const Tensor& finite) {
  const UpdateTargets<kKind> targets = targets_of<kKind>(p, parts, wire, finite);
  const int64_t n = gradients.size(0), columns = gradients.size(1);
  const int64_t rows = targets.parts[parts.size() - 1].end;
  SEGUE_ASSERT(order.sorted.keys.size(0) == n && order.sorted.items.size(0) == n &&
                   order.starts.size(0) > rows,
               "sorted index: its size");
  const ChunkRange range{0, n, 0, chunk_length(n)};
  const SortedItems sorted{
      reinterpret_cast<const uint32_t*>(device_ptr<int32_t>(order.sorted.keys)),
      reinterpret_cast<const uint32_t*>(device_ptr<int32_t>(order.sorted.items))};
  const cudaStream_t stream = stream_of(exec);
  const Arena::Mark mark(*exec.arena);
  const Tensor partials = exec.arena->tensor(DType::kF32, {range.chunks() * 2, columns});
  const auto blocks = [](int64_t warps) {
    return static_cast<unsigned>(divide_up(warps, kWarpsPerBlock));
  };
  dispatch_type(gradients.dtype, [&](auto zero_value) {
    using T = decltype(zero_value);
    const SumArgs<T> a{sorted,
                       device_ptr<int32_t>(order.starts),
                       rows,
                       range,
                       input_of<T>(gradients),
                       static_cast<int>(columns),
                       device_ptr<float>(partials)};
    const unsigned end_blocks = blocks(range.chunks());
    update_rows_kernel<kKind, T>
        <<<end_blocks + blocks(rows), kThreads, 0, stream>>>(a, targets, end_blocks);
    check_launch();
  });
  const SpanArgs<UpdateTargets<kKind>> spans{sorted,
                                             {range, {n, n, range.chunks(), 1}},
                                             static_cast<int>(columns),
                                             targets,
                                             device_ptr<float>(partials)};
  constexpr int kW = 8;
  const dim3 grid(blocks(range.chunks()), static_cast<unsigned>(divide_up(columns, kWarp * kW)));
  sum_spans_kernel<kW><<<grid, kThreads, 0, stream>>>(spans);
  check_launch();
}

}  // namespace

void gather_id_rows(const Exec& exec, std::span<const IdRows> parts, DType wire) {
  while (!parts.empty()) {
    const auto some = parts.first(std::min<size_t>(parts.size(), kMaxTables));
    parts = parts.subspan(some.size());
    GatherList list{};
    const int64_t columns = some.front().to.size(1);
    int64_t rows = 0;
    bool vectors = true;
    for (size_t i = 0; i < some.size(); ++i) {
      const auto& [table, slots, places, first, to] = some[i];
      SEGUE_ASSERT(to.size(1) == columns, "gather_id_rows: tables of one width");
      rows += to.size(0);
      list.parts[i] = {input_of<float>(table),
                       table.size(0),
                       device_ptr<int64_t>(slots),
                       device_ptr<int32_t>(places),
                       first,
                       matrix_of<float>(to),
                       rows};
      vectors = vectors && can_vectorize(columns, {table, to});
    }
    if (rows == 0 || columns == 0) continue;
    const auto kernel = vectors ? gather_id_rows_kernel<4> : gather_id_rows_kernel<1>;
    const auto blocks = static_cast<unsigned>(divide_up(rows, kWarpsPerBlock * kRowsAhead));
    kernel<<<blocks, kThreads, 0, stream_of(exec)>>>(list, rows, static_cast<int>(columns),
                                                     rounding_of(wire));
    check_launch();
  }
}

bool update_tables_by_sums(const Exec& exec, const RowUpdateParams& p, const Tensor& gradients,
                           const IdOrder& order, std::span<const TableUpdate> parts, DType wire,
                           const Tensor& finite) {
  const int64_t n = gradients.size(0), columns = gradients.size(1);
  bool vectors = can_vectorize(columns, {gradients});
  for (const TableUpdate& part : parts) {
    vectors = vectors && can_vectorize(columns, {part.table, part.state});
  }
  if (n <= kFewRows || !order.starts || parts.size() > kMaxTables || !vectors) return false;
  switch (p.kind) {
    case RowOptimizer::kRowwiseAdagrad:
      return false;
    case RowOptimizer::kAdagrad:
      run<RowOptimizer::kAdagrad>(exec, p, gradients, order, parts, wire, finite);
      return true;
    case RowOptimizer::kSgd:
      run<RowOptimizer::kSgd>(exec, p, gradients, order, parts, wire, finite);
      return true;
    case RowOptimizer::kAdam:
      run<RowOptimizer::kAdam>(exec, p, gradients, order, parts, wire, finite);
      return true;
  }
  return false;
}

}  // namespace segue::ops::cuda
