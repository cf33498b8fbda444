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

template <class Key>
__global__ void make_keys_kernel(const int64_t* ids, int64_t n, DedupKeys k, Key* keys,
                                 int32_t* items) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= n) return;
  const int64_t id = ids[i];
  const bool skipped = k.skip_negative && id < 0;
  const uint64_t key = static_cast<uint64_t>(id) - k.smallest;
  if (!skipped && key > k.width) __trap();  // outside of the range that the caller promised
  keys[i] = static_cast<Key>(skipped ? k.width + 1 : key);
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

/// `rank`: of each sorted key, the number of runs up to its own.
template <class Key>
__global__ void number_runs_kernel(const Key* keys, const int32_t* items, const int32_t* rank,
                                   int64_t n, DedupKeys k, DedupArrays to) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= n) return;
  const auto key = static_cast<uint64_t>(keys[i]);
  const int32_t place = rank[i] - 1;
  const bool skipped = k.skip_negative && key > k.width;
  to.inverse[items[i]] = skipped ? -1 : place;
  if (i == 0 || keys[i - 1] != keys[i]) {
    to.starts[place] = static_cast<int32_t>(i);
    if (skipped) {
      *to.count = place;
    } else {
      to.values[place] = static_cast<int64_t>(key + k.smallest);
      to.first[place] = items[i];
    }
  }
  if (i == n - 1 && !skipped) {
    to.starts[place + 1] = static_cast<int32_t>(n);
    *to.count = place + 1;
  }
}

template <class Key>
int sort_and_number(const int64_t* ids, int64_t n, const DedupKeys& k, const DedupArrays& to,
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

  make_keys_kernel<<<blocks, kThreads, 0, stream>>>(ids, n, k, keys.Current(), items.Current());
  check_launch();
  twice([&](void* memory, size_t& bytes) {
    return cub::DeviceRadixSort::SortPairs(memory, bytes, keys, items, count, 0, k.bits, stream);
  });
  auto* const rank = reinterpret_cast<int32_t*>(keys.Alternate());
  const auto starts = thrust::make_transform_iterator(thrust::make_counting_iterator<int32_t>(0),
                                                      StartsRun<Key>{keys.Current()});
  twice([&](void* memory, size_t& bytes) {
    return cub::DeviceScan::InclusiveSum(memory, bytes, starts, rank, count, stream);
  });
  number_runs_kernel<<<blocks, kThreads, 0, stream>>>(keys.Current(), items.Current(), rank, n, k,
                                                      to);
  check_launch();
  return items.Current() == to.items[0] ? 0 : 1;
}

}  // namespace

int find_distinct(const int64_t* ids, int64_t n, const DedupKeys& keys, const DedupArrays& to,
                  const Stream& stream) {
  check_cuda(cudaSetDevice(stream.device().index));
  const auto handle = static_cast<cudaStream_t>(stream.handle());
  constexpr int kNarrow = 32;
  if (keys.bits <= kNarrow) return sort_and_number<uint32_t>(ids, n, keys, to, handle);
  return sort_and_number<uint64_t>(ids, n, keys, to, handle);
}

}  // namespace segue::sparse::cuda
