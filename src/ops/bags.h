#pragma once

#include <cstdint>
#include <span>

#include "ops/rows.h"
#include "tensor/exec.h"

namespace segue::ops {

/// Sum pooling: y[b] = sum of from[index[i]] over i in [offsets[b], offsets[b + 1]), added in the
/// order of i and rounded once in mode kBf16. Index -1 reads a zero row, and a bag may be empty.
/// from [rows, dim], index [n], offsets [bags + 1] (each i32 or i64), y [bags, dim]; rows may be
/// strided, so y may be some columns of an interaction's input. Types of from and y may differ as
/// those of gather_rows. That offsets ascend from 0 to n is for the caller to see to: indices are
/// checked, offsets are not.
void bag_sum_forward(const Exec& exec, const Tensor& from, const Tensor& index,
                     const Tensor& offsets, const Tensor& y);

/// dfrom[index[i]] += dy[bag[i]], where bag [n] (i32 or i64) is the bag of each id, ascending, as
/// bag_of_each gives it. Ids that occur often are summed in order before they are added (see
/// segment_sum, also for `sorted`). Scratch: a few numbers for each id on the CPU, n rows of dy's
/// type on a GPU.
void bag_sum_backward(const Exec& exec, const Tensor& dy, const Tensor& index, const Tensor& bag,
                      const Tensor& dfrom, const SortedIndex& sorted = {});

/// bag[i] = b for i in [offsets[b], offsets[b + 1]). Host work.
void bag_of_each(std::span<const int64_t> offsets, std::span<int32_t> bag);

}  // namespace segue::ops
