#include "ops/cuda_forms.h"
#include "ops/exchange.h"
#include "ops/kernel.cuh"

namespace segue::ops::cuda {
namespace {

// What is on its way over the bus at once must cover its latency: some 100 KB at 55 GB/s and 2 us.
// Half of the multiprocessors, with 16 KB a block, ask for ten times that; they hold no shared
// memory and few registers, so that kernels of a step run beside them.
constexpr int64_t kBlocks = kMultiprocessors / 2;
constexpr int kWords = 4;  // of a thread, before it waits
constexpr int64_t kTile = kWords * kThreads;

struct Side {
  void *near, *far;
  int64_t near_rows, far_rows;
  int64_t row_bytes;
  bool vectors;  // rows can be moved 16 bytes at a time
};
struct Sides {
  Side side[2];
};
struct Lists {
  const int64_t *slots, *out, *in;
  int64_t n;
};

/// Neighbouring threads have neighbouring words: a warp asks for whole lines, and one thread has
/// both the word that leaves and the one that takes its place.
template <class Word>
__device__ void exchange(const Side& side, const Lists& lists) {
  const int64_t words = side.row_bytes / static_cast<int64_t>(sizeof(Word));
  const int64_t total = lists.n * words;
  auto* const near_words = static_cast<Word*>(side.near);
  auto* const far_words = static_cast<Word*>(side.far);
  for (int64_t first = blockIdx.x * kTile; first < total; first += gridDim.x * kTile) {
    Word *near[kWords] = {}, *to[kWords] = {}, *from[kWords] = {};
#pragma unroll
    for (int w = 0; w < kWords; ++w) {
      const int64_t at = first + w * kThreads + threadIdx.x;
      if (at >= total) continue;
      const int64_t i = at / words, column = at - i * words;
      const int64_t slot = lists.slots[i], out = lists.out[i], in = lists.in[i];
      require_row(slot, side.near_rows);
      near[w] = near_words + slot * words + column;
      if (out != -1) {
        require_row(out, side.far_rows);
        to[w] = far_words + out * words + column;
      }
      if (in != -1) {
        require_row(in, side.far_rows);
        from[w] = far_words + in * words + column;
      }
    }
    Word leaves[kWords], comes[kWords];
#pragma unroll
    for (int w = 0; w < kWords; ++w) {
      if (from[w] != nullptr) comes[w] = __ldcs(from[w]);
    }
#pragma unroll
    for (int w = 0; w < kWords; ++w) {
      if (to[w] != nullptr) leaves[w] = *near[w];
    }
#pragma unroll
    for (int w = 0; w < kWords; ++w) {
      if (to[w] != nullptr) __stcs(to[w], leaves[w]);
    }
#pragma unroll
    for (int w = 0; w < kWords; ++w) {
      if (from[w] != nullptr) *near[w] = comes[w];
    }
  }
}

__global__ void __launch_bounds__(kThreads)
    exchange_kernel(const __grid_constant__ Sides sides, Lists lists) {
  const Side& side = sides.side[blockIdx.y];
  if (side.vectors) {
    exchange<uint4>(side, lists);
  } else {
    exchange<uint32_t>(side, lists);
  }
}

}  // namespace

void exchange_rows(const Exec& exec, const RowExchange& rows, std::span<const RowPair> pairs) {
  Sides sides{};
  SEGUE_ASSERT(pairs.size() <= std::size(sides.side), "exchange_rows: too many pairs");
  const Lists lists{device_ptr<int64_t>(rows.slots), device_ptr<int64_t>(rows.out),
                    device_ptr<int64_t>(rows.in), rows.slots.size(0)};
  int64_t words = 0;
  unsigned count = 0;
  for (const RowPair& pair : pairs) {
    const int64_t row_bytes = pair.near.size(1) * size_of(pair.near.dtype);
    if (row_bytes == 0) continue;
    SEGUE_ASSERT(pair.near.device.is_cuda() && pair.far.device.is_cuda(), "CUDA op: host memory");
    const auto whole = [](const void* data) {
      return reinterpret_cast<uintptr_t>(data) % sizeof(uint4) == 0;
    };
    const bool vectors = row_bytes % static_cast<int64_t>(sizeof(uint4)) == 0 &&
                         whole(pair.near.data) && whole(pair.far.data);
    sides.side[count++] = {pair.near.data,   pair.far.data, pair.near.size(0),
                           pair.far.size(0), row_bytes,     vectors};
    const size_t word = vectors ? sizeof(uint4) : sizeof(uint32_t);
    words = std::max(words, lists.n * row_bytes / static_cast<int64_t>(word));
  }
  if (words == 0) return;
  const dim3 grid(static_cast<unsigned>(std::min(divide_up(words, kTile), kBlocks)), count);
  exchange_kernel<<<grid, kThreads, 0, stream_of(exec)>>>(sides, lists);
  check_launch();
}

}  // namespace segue::ops::cuda
