#pragma once

#include "ops/dropout.cuh"
#include "ops/segments.cuh"

// Kernels of sum_rows: rows are sorted by destination, warps add chunks of them, and what goes
// beyond a chunk is finished by a second pass over partial sums.

namespace segue::ops::cuda {

inline constexpr int kMaxOrders = 4, kMaxTargets = 3 * kMaxOrders;

/// Rows in the order of their destinations. Those of an order that go nowhere come last in it,
/// under a key of their own.
struct SortedItems {
  const uint32_t* keys;
  const uint32_t* items;
};

/// Neighbouring items, cut into chunks. Groups do not go beyond a range.
struct ChunkRange {
  int64_t begin = 0, end = 0;
  int64_t first = 0;  // number of its first chunk among those of all ranges
  int length = 1;
  __host__ __device__ int64_t chunks() const { return (end - begin + length - 1) / length; }
};

struct TargetRow;
struct TargetArgs {
  using Row = TargetRow;
  struct Rows {
    void* data;
    int64_t stride;
    uint32_t end;  // one past its last destination; the first is where the one before ends
    float scale;
    bool is_bf16;
  };
  Rows rows[kMaxTargets];
};

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
  /// Columns column .. column + kW += scale * values; no thread shares an element. kInMemory: see
  /// below; of use where groups are long.
  template <bool kInMemory = true, int kW>
  __device__ void add(int64_t column, const float (&values)[kW]) const {
    if (data == nullptr) return;
    float more[kW];
    for (int j = 0; j < kW; ++j) more[j] = __fmul_rn(values[j], scale);
    const auto add_to = [&](auto* to) {
      float now[kW];
      load(to, now);
      for (int j = 0; j < kW; ++j) now[j] += more[j];
      store(to, now);
    };
    if (is_bf16) {
      add_to(static_cast<bf16*>(data) + column);
      return;
    }
    float* to = static_cast<float*>(data) + column;
#if __CUDA_ARCH__ >= 900
    // The memory adds: nobody waits for what is there. One addend an element, so no order to keep;
    // numbers below 2^-126 count as 0.
    if constexpr (kInMemory && kW == 8) {
      for (int j = 0; j < kW; j += 4) {
        asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to + j), "f"(more[j]),
                     "f"(more[j + 1]), "f"(more[j + 2]), "f"(more[j + 3])
                     : "memory");
      }
      return;
    }
#endif
    add_to(to);
  }
};

/// Everything that a sum in chunks reads and writes. Another kind of targets does with finished
/// sums what its Row::add says.
template <class T, class Targets = TargetArgs>
struct ChunkArgs {
  SortedItems sorted;
  ChunkRange range;
  Matrix<const T> from;
  DroppedRows dropped;
  int columns;
  TargetArgs targets;
  float* partials;  // [chunks of all ranges][2][columns]
};

/// Looks at rows on their way into sums. This one does not.
struct NoFusedAdder {
  __device__ void read(uint32_t, bool) {}
  __device__ void turn_to(int) {}
  template <int kW>
  __device__ void add(const float (&)[kW]) {}
};

/// The calling warp adds the items of chunk `chunk` of the range. Groups that lie inside it are
/// finished; the sum of one that came in from the chunk before goes to partials[chunk][0], of one
/// that goes on to the next and began here to partials[chunk][1]. kAhead rows are on their way at
/// any time; it divides a warp.
template <class L, bool kDrops, int kAhead, class T, class Adder>
__device__ void add_chunk(const ChunkArgs<T>& a, int64_t chunk, Adder& adder) {
  const ChunkRange& range = a.range;
  const uint32_t *keys = a.sorted.keys, *items = a.sorted.items;
  const int64_t begin = range.begin + chunk * range.length;
  const int64_t end = begin + range.length < range.end ? begin + range.length : range.end;
  const int base = static_cast<int>(blockIdx.y) * L::kColumns;
  const int count = min(L::kColumns, a.columns - base);

  L sum{};
  uint32_t key = keys[begin];
  bool is_head = begin > range.begin && keys[begin - 1] == key;
  const auto flush = [&](bool goes_on) {
    if (is_head || goes_on) {
      const int64_t slot = (range.first + chunk) * 2 + (is_head ? 0 : 1);
      sum.store_row(a.partials + slot * a.columns + base, count);
    } else {
      const TargetRow to(a.targets, key);
      L::for_each(count, [&](int i, int c) { to.template add<kDrops>(base + c, sum.v[i]); });
    }
  };

  // A row lies one product of 32 bits away from row 0.
  const int first = base + L::first(0);
  const char* const lane_rows = reinterpret_cast<const char*>(a.from.data + first);
  const uint8_t* const lane_bits = a.dropped.keep.data + first / 8;
  const auto row_bytes = static_cast<uint32_t>(a.from.stride * sizeof(T));
  const auto keep_bytes = static_cast<uint32_t>(a.dropped.keep.stride);

  typename L::template Raw<T> rows[kAhead];
  uint32_t bits[kAhead][L::kIters];
  const auto load_row = [&](int k, uint64_t item) {
    rows[k].load_lane(reinterpret_cast<const T*>(lane_rows + item * row_bytes), count);
    if constexpr (kDrops) {
      const uint8_t* row_bits = lane_bits + item * keep_bytes;
      L::for_each(count, [&](int i, int) { bits[k][i] = row_bits[i * kWarp * L::kW / 8]; });
    }
  };
  // 32 items at a time: a lane knows one and passes it round.
  const auto lane = static_cast<int>(threadIdx.x % kWarp);
  struct Item {
    uint32_t row;
    bool starts_group;
  };
  const auto fetch = [&](int64_t block) -> Item {
    const int64_t at = block + lane;
    if (at >= end) return {0, false};
    return {items[at], at > begin && keys[at] != keys[at - 1]};
  };
  Item mine = fetch(begin);
  int left = static_cast<int>(end - begin);  // items of the chunk from this block on
#pragma unroll
  for (int k = 0; k < kAhead; ++k) {
    const uint32_t item = __shfl_sync(0xffffffffu, mine.row, k);
    if (k < left) load_row(k, item);
  }
  for (int64_t block = begin; block < end; block += kWarp, left -= kWarp) {
    const uint32_t starts = __ballot_sync(0xffffffffu, mine.starts_group);
    const Item next = fetch(block + kWarp);
    adder.read(mine.row, lane < left);
    for (int at = 0; at < min(left, kWarp); at += kAhead) {
      const uint32_t ahead = at + kAhead < kWarp ? mine.row : next.row;
      // The place of a row that was added is free for one that comes kAhead later. Dropout takes
      // long enough to hide a load after each row; without it loads go out together.
      const auto load_later = [&](int k) {
        const uint32_t item = __shfl_sync(0xffffffffu, ahead, (at + kAhead + k) % kWarp);
        if (at + kAhead + k < left) load_row(k, item);
      };
#pragma unroll
      for (int k = 0; k < kAhead; ++k) {
        if (at + k < left) {
          if (starts >> (at + k) & 1u) {
            flush(false);
            sum = L{};
            key = keys[block + at + k];
            is_head = false;
          }
          adder.turn_to(at + k);
          L::for_each(count, [&](int i, int c) {
            float value[L::kW];
            rows[k].unpack(i, value);
            if constexpr (kDrops) {
              a.dropped.dropout.template apply_rounded<T>(KeepBits::masks_of(bits[k][i]), c, value);
            }
            adder.add(value);
            for (int j = 0; j < L::kW; ++j) sum.v[i][j] += value[j];
          });
        }
        if constexpr (kDrops) load_later(k);
      }
      if constexpr (!kDrops) {
#pragma unroll
        for (int k = 0; k < kAhead; ++k) load_later(k);
      }
    }
    mine = next;
  }
  flush(end < range.end && keys[end] == key);
}

/// Items of a chunk. Short chunks keep a small sum parallel, long ones keep partial sums few.
inline int chunk_length(int64_t items) {
  constexpr int kShort = 16, kLong = 64;
  constexpr int64_t kFew = 16384;
  return items <= kFew ? kShort : kLong;
}
/// So few rows need no sort, and no chunks.
inline constexpr int kFewRows = 1024;

// With dropout there is more to do for a row, so that it pays to let fewer warps have more of it.
template <bool kDrops>
using ChunkLanes = Lanes<8, kDrops ? 2 : 1>;

template <class T, class L, bool kDrops>
__global__ void __launch_bounds__(kThreads, kDrops || L::kW == 1 ? 2
                                            : sizeof(T) == 2     ? 4
                                                                 : 3)
    sum_chunks_kernel(const __grid_constant__ ChunkArgs<T> a) {
  const int64_t chunk = static_cast<int64_t>(blockIdx.x) * kWarpsPerBlock + threadIdx.x / kWarp;
  if (chunk >= a.range.chunks()) return;
  const int64_t begin = a.range.begin + chunk * a.range.length;
  const int64_t last = min(begin + a.range.length, a.range.end) - 1;
  const uint32_t key = a.sorted.keys[begin];
  if (key == a.sorted.keys[last] && TargetRow(a.targets, key).data == nullptr) return;
  NoFusedAdder none;
  add_chunk<L, kDrops, 4>(a, chunk, none);
}

// ---- a sum by few destinations beside another one ----

// There are so few of them that every warp keeps all their sums in shared memory: 256 columns of
// each.
inline constexpr int kFusedColumns = 8 * kWarp;
inline constexpr int kFusedWarps = 16;
inline constexpr int kMaxFusedRows = 13;  // what fits into the shared memory of a multiprocessor

struct FusedArgs {
  const int32_t* index;
  int count;
  float scale;
  float* partials;  // [gridDim.x][count][columns]
};

/// Adds rows to the sums of this warp, [count][half of 8 columns][lane][4].
struct FusedAdder {
  static constexpr int kHalf = kFusedColumns / 2;
  const FusedArgs& args;
  float* own;
  int32_t mine = -1, to = -1;  // of this lane's item, and of the row whose turn it is

  __device__ FusedAdder(const FusedArgs& a, float* sums) : args(a) {
    const int warp = static_cast<int>(threadIdx.x) / kWarp;
    own = sums + warp * a.count * kFusedColumns + threadIdx.x % kWarp * 4;
    for (int i = 0; i < 2 * a.count; ++i) {
      *reinterpret_cast<float4*>(own + i * kHalf) = make_float4(0, 0, 0, 0);
    }
  }
  __device__ void read(uint32_t item, bool exists) {
    mine = exists ? args.index[item] : -1;
    if (mine != -1) require_row(mine, args.count);
  }
  __device__ void turn_to(int place) { to = __shfl_sync(0xffffffffu, mine, place); }
  __device__ void add(const float (&value)[8]) {
    if (to == -1) return;
    float4* low = reinterpret_cast<float4*>(own + 2 * to * kHalf);
    float4* high = reinterpret_cast<float4*>(own + (2 * to + 1) * kHalf);
    const float4 a = *low, b = *high;
    *low = make_float4(a.x + value[0], a.y + value[1], a.z + value[2], a.w + value[3]);
    *high = make_float4(b.x + value[4], b.y + value[5], b.z + value[6], b.w + value[7]);
  }
};

/// sum_chunks_kernel, a warp for each chunk, and fused.partials[blockIdx.x] = the sums of this
/// block's rows by the fused index, warps added in order.
template <class T, bool kDrops>
__global__ void __launch_bounds__(kFusedWarps* kWarp, 1)
    fused_sums_kernel(const __grid_constant__ ChunkArgs<T> a,
                      const __grid_constant__ FusedArgs fused) {
  extern __shared__ __align__(16) float sums[];
  FusedAdder adder(fused, sums);
  const int64_t chunk = static_cast<int64_t>(blockIdx.x) * kFusedWarps + threadIdx.x / kWarp;
  if (chunk < a.range.chunks()) add_chunk<Lanes<8, 1>, kDrops, 8>(a, chunk, adder);
  __syncthreads();
  const int all = fused.count * kFusedColumns;
  for (int i = static_cast<int>(threadIdx.x); i < all; i += kFusedWarps * kWarp) {
    float total = 0;
    for (int w = 0; w < kFusedWarps; ++w) total += sums[w * all + i];
    const int place = i % kFusedColumns;
    const int c = static_cast<int>(blockIdx.y) * kFusedColumns + place % FusedAdder::kHalf / 4 * 8 +
                  place / FusedAdder::kHalf * 4 + place % 4;
    if (c < a.columns) {
      const int64_t row = static_cast<int64_t>(blockIdx.x) * fused.count + i / kFusedColumns;
      fused.partials[row * a.columns + c] = total * fused.scale;
    }
  }
}

// ---- groups of several chunks ----

struct Span {
  uint32_t key;
  int64_t chunks;  // that the group goes on into
};

/// The group that ends chunk `chunk` of a range, and began there. The same in all lanes.
__device__ inline Span span_of(const SortedItems& s, const ChunkRange& range, int64_t chunk) {
  const int64_t next = range.begin + (chunk + 1) * range.length;
  if (next >= range.end) return {0, 0};
  // A chunk is entered if its first item has the key; lanes ask for 32 at a time. What is read
  // first does not wait for each other.
  const auto first_key = [&](int64_t of) {
    const int64_t at = range.begin + of * range.length;
    return at < range.end ? s.keys[at] : ~0u;
  };
  const auto lane = static_cast<int64_t>(threadIdx.x % kWarp);
  const uint32_t key = s.keys[next - 1], after = s.keys[next];
  const uint32_t before = chunk > 0 ? s.keys[next - range.length - 1] : ~0u;
  uint32_t entered = first_key(chunk + 2 + lane);
  if (after != key || before == key) return {key, 0};  // ends here, or began earlier
  for (int64_t heads = 1;; heads += kWarp) {
    const uint32_t all = __ballot_sync(0xffffffffu, entered == key);
    if (all != 0xffffffffu) return {key, heads + __ffs(static_cast<int>(~all)) - 1};
    entered = first_key(chunk + heads + kWarp + 1 + lane);
  }
}

/// Another kind of targets does with finished sums what its Row::add says.
template <class Targets = TargetArgs>
struct SpanArgs {
  SortedItems sorted;
  ChunkRange ranges[2];  // the second may be empty
  int columns;
  Targets targets;
  const float* partials;
};

inline constexpr int kShortSpan = 2 * kWarpsPerBlock;

/// Finishes groups that go beyond the chunk where they begin: kW columns a lane. A warp adds the
/// few partial sums of one; where there are many, all warps of the block add pieces of them, then
/// the pieces in order.
template <int kW, class Targets = TargetArgs>
__global__ void __launch_bounds__(kThreads)
    sum_spans_kernel(const __grid_constant__ SpanArgs<Targets> a) {
  constexpr int kColumns = kWarp * kW;
  __shared__ __align__(16) float pieces[kWarpsPerBlock][kColumns];
  __shared__ Span spans[kWarpsPerBlock];
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kWarpsPerBlock;  // chunk of this block
  const int base = static_cast<int>(blockIdx.y) * kColumns, column = base + lane * kW;
  // Partials from .. until of the group that began in `chunk`, several on their way at a time.
  const auto sum_part = [&](int64_t chunk, int64_t from, int64_t until, float(&sum)[kW]) {
    constexpr int kBatch = 4;
    const float* own = a.partials + (chunk * 2 + 1) * a.columns + column;  // where it began
    const float* heads = a.partials + chunk * 2 * a.columns + column;      // and where it goes on
    for (int64_t i = from; i < until; i += kBatch) {
      float values[kBatch][kW] = {};
#pragma unroll
      for (int k = 0; k < kBatch; ++k) {
        if (i + k < until) load(i + k == 0 ? own : heads + (i + k) * 2 * a.columns, values[k]);
      }
#pragma unroll
      for (int k = 0; k < kBatch; ++k) {
        for (int j = 0; j < kW; ++j) sum[j] += values[k][j];
      }
    }
  };

  const ChunkRange& range = a.ranges[first + warp < a.ranges[1].first ? 0 : 1];
  const Span own = span_of(a.sorted, range, first + warp - range.first);
  if (lane == 0) spans[warp] = own;
  if (own.chunks > 0 && own.chunks < kShortSpan && column < a.columns) {
    float sum[kW] = {};
    sum_part(first + warp, 0, own.chunks + 1, sum);
    typename Targets::Row(a.targets, own.key).add(column, sum);
  }
  __syncthreads();
  for (int w = 0; w < kWarpsPerBlock; ++w) {
    const int64_t count = spans[w].chunks + 1;
    if (count <= kShortSpan) continue;
    const int64_t each = (count + kWarpsPerBlock - 1) / kWarpsPerBlock;
    const int64_t from = warp * each, until = from + each < count ? from + each : count;
    if (column < a.columns) {
      float sum[kW] = {};
      sum_part(first + w, from, until, sum);
      store(&pieces[warp][lane * kW], sum);
    }
    __syncthreads();
    for (int c = static_cast<int>(threadIdx.x); c < min(kColumns, a.columns - base);
         c += kThreads) {
      float total[1] = {0.f};
      for (int piece = 0; piece < kWarpsPerBlock; ++piece) total[0] += pieces[piece][c];
      typename Targets::Row(a.targets, spans[w].key).add(base + c, total);
    }
    __syncthreads();
  }
}

}  // namespace segue::ops::cuda
