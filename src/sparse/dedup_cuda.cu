#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_scan.cuh>
#include <thrust/iterator/counting_iterator.h>
#include <thrust/iterator/transform_iterator.h>

#include "ops/kernel.cuh"
#include "sparse/dedup_device.h"

namespace segue::sparse::cuda {
namespace {

using ops::cuda::check_cuda;
using ops::cuda::check_launch;
using ops::cuda::divide_up;
using ops::cuda::kThreads;

__device__ void raise_to(uint64_t* to, uint64_t value) {
  atomicMax(reinterpret_cast<unsigned long long*>(to), static_cast<unsigned long long>(value));
}

template <class Key>
__global__ void make_keys_kernel(const int64_t* ids, int64_t n, const __grid_constant__ DedupKeys k,
                                 Key* keys, int32_t* items, DedupReport* report) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= n) return;
  int p = 0;
  while (i >= k.parts[p].end) ++p;
  const DedupKeys::Part& part = k.parts[p];
  const int64_t id = ids[i];
  const auto smallest = static_cast<int64_t>(part.smallest);
  uint64_t key = static_cast<uint64_t>(id) - part.smallest;
  bool skipped = false;
  if (key > part.width) {
    if (part.outside == OutsideIds::kNever) __trap();  // the caller promised that there are none
    DedupReport::Part& of = report->parts[p];
    atomicAdd(reinterpret_cast<unsigned long long*>(&of.outside), 1ull);
    raise_to(&of.before_end, static_cast<uint64_t>(n - i));
    if (id < smallest) {
      raise_to(&of.below, part.smallest - static_cast<uint64_t>(id));
    } else {
      raise_to(&of.above, key - part.width);
    }
    skipped = part.outside == OutsideIds::kSkip;
    key = id < smallest ? 0 : part.width;
  }
  keys[i] = static_cast<Key>(skipped ? k.skipped : part.base + key);
  items[i] = static_cast<int32_t>(i);
}

/// 1 where a run of equal keys begins.
template <class Key>
struct StartsRun {
  const Key* keys;
  __host__ __device__ int32_t operator()(int32_t i) const {
    return i == 0 || keys[i] != keys[i - 1] ? 1 : 0;
  }
};

__device__ int part_of(const DedupKeys& k, uint64_t key) {
  int p = 0;
  while (p + 1 < k.count && key >= k.parts[p + 1].base) ++p;
  return p;
}

/// `places`: of each sorted key the number of runs up to its own; then its place.
template <class Key>
__global__ void number_runs_kernel(const Key* keys, const int32_t* items, int32_t* places,
                                   int64_t n, const __grid_constant__ DedupKeys k, DedupArrays to) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= n) return;
  const auto key = static_cast<uint64_t>(keys[i]);
  const int32_t place = places[i] - 1;
  places[i] = place;
  const bool skipped = k.skips && key == k.skipped;
  to.inverse[items[i]] = skipped ? -1 : place;
  const bool starts = i == 0 || keys[i - 1] != keys[i], ends = i == n - 1 && !skipped;
  if (!starts && !ends) return;
  const int part = skipped ? k.count - 1 : part_of(k, key);
  const auto begin_parts = [&](int from, int last, int64_t at) {
    for (int p = from; p <= last; ++p) to.report->parts[p].first = at;
  };
  if (starts) {
    begin_parts(i == 0 ? 0 : part_of(k, keys[i - 1]) + 1, part, place);
    to.starts[place] = static_cast<int32_t>(i);
    if (skipped) {
      to.report->count = place;
    } else {
      to.values[place] = static_cast<int64_t>(key - k.parts[part].base + k.parts[part].smallest);
      to.first[place] = items[i];
    }
  }
  if (ends) {
    begin_parts(part + 1, k.count - 1, place + 1);
    to.starts[place + 1] = static_cast<int32_t>(n);
    to.report->count = place + 1;
  }
}

template <class Key>
DedupOrder sort_and_number(const int64_t* ids, int64_t n, const DedupKeys& k, const DedupArrays& to,
                           cudaStream_t stream) {
  cub::DoubleBuffer<Key> keys(static_cast<Key*>(to.keys[0]), static_cast<Key*>(to.keys[1]));
  cub::DoubleBuffer<int32_t> items(to.items[0], to.items[1]);
  const auto blocks = static_cast<unsigned>(divide_up(n, kThreads));
  const auto count = static_cast<int>(n);
  // A first call with no memory says how much it takes.
  const auto twice = [&](auto call) {
    size_t bytes = 0;
    check_cuda(call(nullptr, bytes));
    SEGUE_ASSERT(static_cast<int64_t>(bytes) <= to.scratch_bytes,
                 "distinct ids: too little scratch");
    check_cuda(call(to.scratch, bytes));
  };

  check_cuda(cudaMemsetAsync(to.report, 0, sizeof(DedupReport), stream));
  make_keys_kernel<<<blocks, kThreads, 0, stream>>>(ids, n, k, keys.Current(), items.Current(),
                                                    to.report);
  check_launch();
  twice([&](void* memory, size_t& bytes) {
    return cub::DeviceRadixSort::SortPairs(memory, bytes, keys, items, count, 0, k.bits, stream);
  });
  auto* const places = reinterpret_cast<int32_t*>(keys.Alternate());
  const auto starts = thrust::make_transform_iterator(thrust::make_counting_iterator<int32_t>(0),
                                                      StartsRun<Key>{keys.Current()});
  twice([&](void* memory, size_t& bytes) {
    return cub::DeviceScan::InclusiveSum(memory, bytes, starts, places, count, stream);
  });
  number_runs_kernel<<<blocks, kThreads, 0, stream>>>(keys.Current(), items.Current(), places, n, k,
                                                      to);
  check_launch();
  return {items.Current() == to.items[0] ? 0 : 1, keys.Alternate() == to.keys[0] ? 0 : 1};
}

}  // namespace

DedupOrder find_distinct(const int64_t* ids, int64_t n, const DedupKeys& keys,
                         const DedupArrays& to, const Stream& stream) {
  check_cuda(cudaSetDevice(stream.device().index));
  const auto handle = static_cast<cudaStream_t>(stream.handle());
  constexpr int kNarrow = 32;
  if (keys.bits <= kNarrow) return sort_and_number<uint32_t>(ids, n, keys, to, handle);
  return sort_and_number<uint64_t>(ids, n, keys, to, handle);
}

}  // namespace segue::sparse::cuda
