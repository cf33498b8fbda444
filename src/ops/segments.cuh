#pragma once

#include "ops/kernel.cuh"

namespace segue::ops::cuda {

/// Items 0 .. n-1 in the order of their destinations (stable), by radix sort: what sums without
/// atomics are made of. Items of index -1 come last, under the key `destinations`.
struct SortedItems {
  const uint32_t* keys;
  const uint32_t* items;
  int64_t n;
  uint32_t destinations;
};
/// Memory comes from exec.arena: the caller holds the Mark.
SortedItems sort_items(const Exec& exec, const Tensor& index, int64_t destinations);

/// Where sums go: destinations below `split` are rows of `first`, the others of `second`. Either
/// may be absent; float or bf16.
struct SumTargets {
  Tensor first, second;
  int64_t split = 0;
};

/// targets[key] += scale * (sum over its items of dropout(row of `from`)), in float, in an order
/// that depends on the items alone. A dropped-out row is rounded to the type of `from` first.
void sum_sorted(const Exec& exec, const SortedItems& sorted, const Tensor& from,
                const Dropout& dropout, double scale, const SumTargets& targets);

}  // namespace segue::ops::cuda
