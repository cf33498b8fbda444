#include <cub/device/device_radix_sort.cuh>

#include "base/rng.h"
#include "ops/kernel.cuh"
#include "sparse/hash_index_rules.h"
#include "sparse/mixed_order_device.h"

namespace segue::sparse::cuda {
namespace {

using ops::cuda::check_cuda;
using ops::cuda::check_launch;
using ops::cuda::divide_up;
using ops::cuda::kThreads;

__device__ int list_of(const MixedLists& m, int64_t item) {
  int at = 0;
  while (at + 1 < m.count && item >= m.lists[at + 1].first) ++at;
  return at;
}
__device__ int64_t key_of(const MixedLists::List& list, int64_t item) {
  return static_cast<int64_t>(base::splitmix64(static_cast<uint64_t>(list.ids[item - list.first])));
}

/// Keys are as good as random: their first bits tell nearly all of them apart.
__global__ void make_prefixes_kernel(const __grid_constant__ MixedLists m, uint32_t* prefixes,
                                     int32_t* items) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= m.n) return;
  const int at = list_of(m, i);
  const uint64_t key = detail::unsigned_order(key_of(m.lists[at], i));
  prefixes[i] =
      static_cast<uint32_t>(static_cast<uint64_t>(at) << m.key_bits | key >> (64 - m.key_bits));
  items[i] = static_cast<int32_t>(i);
}

/// Keys whose first bits are the same find their order here.
__global__ void place_keys_kernel(const __grid_constant__ MixedLists m, const uint32_t* prefixes,
                                  const int32_t* items, MixedArrays to) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= m.n) return;
  const int32_t item = items[i];
  const MixedLists::List& list = m.lists[list_of(m, item)];
  const int64_t key = key_of(list, item);
  const uint32_t prefix = prefixes[i];
  int64_t begin = i, smaller = 0;
  for (; begin > 0 && prefixes[begin - 1] == prefix; --begin) {
    smaller += key_of(list, items[begin - 1]) < key ? 1 : 0;
  }
  for (int64_t j = i + 1; j < m.n && prefixes[j] == prefix; ++j) {
    smaller += key_of(list, items[j]) < key ? 1 : 0;
  }
  const int64_t place = list.at + (begin + smaller - list.first);
  to.keys[place] = key;
  to.place[item] = static_cast<int32_t>(place);
  if (list.uses != nullptr) to.uses[place] = list.uses[item - list.first];
  if (list.scores != nullptr) to.scores[place] = list.scores[item - list.first];
}

__global__ void put_back_kernel(const __grid_constant__ MixedLists m, MixedArrays from) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= m.n) return;
  const MixedLists::List& list = m.lists[list_of(m, i)];
  list.rows[i - list.first] = from.rows[from.place[i]];
}

unsigned blocks_for(int64_t n) { return static_cast<unsigned>(divide_up(n, kThreads)); }

}  // namespace

void sort_mixed(const MixedLists& lists, const MixedArrays& to, const Stream& stream) {
  check_cuda(cudaSetDevice(stream.device().index));
  const auto queue = static_cast<cudaStream_t>(stream.handle());
  const unsigned blocks = blocks_for(lists.n);
  cub::DoubleBuffer<uint32_t> prefixes(to.prefixes[0], to.prefixes[1]);
  cub::DoubleBuffer<int32_t> items(to.items[0], to.items[1]);
  make_prefixes_kernel<<<blocks, kThreads, 0, queue>>>(lists, prefixes.Current(), items.Current());
  check_launch();
  const auto count = static_cast<int>(lists.n);
  size_t bytes = 0;
  check_cuda(cub::DeviceRadixSort::SortPairs(nullptr, bytes, prefixes, items, count, 0, lists.bits,
                                             queue));
  SEGUE_ASSERT(static_cast<int64_t>(bytes) <= to.scratch_bytes, "mixed keys: too little scratch");
  check_cuda(cub::DeviceRadixSort::SortPairs(to.scratch, bytes, prefixes, items, count, 0,
                                             lists.bits, queue));
  count_launches(2 + divide_up(lists.bits, 8));  // a histogram, its sums and a pass per digit
  place_keys_kernel<<<blocks, kThreads, 0, queue>>>(lists, prefixes.Current(), items.Current(), to);
  check_launch();
}

void put_back(const MixedLists& lists, const MixedArrays& from, const Stream& stream) {
  check_cuda(cudaSetDevice(stream.device().index));
  put_back_kernel<<<blocks_for(lists.n), kThreads, 0, static_cast<cudaStream_t>(stream.handle())>>>(
      lists, from);
  check_launch();
}

}  // namespace segue::sparse::cuda
