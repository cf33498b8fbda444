#pragma once

#include <span>

#include "tensor/exec.h"

namespace segue::ops {

/// Contiguous matrices of one width and type, between which rows move.
struct RowPair {
  Tensor near, far;
};

/// Which rows: all i64 [n]. No two of `slots` are the same, and no row of `far` both comes and
/// goes.
struct RowExchange {
  Tensor slots;  // rows of `near`
  Tensor out;    // the row of `far` that gets what is in the slot; -1: none
  Tensor in;     // the row of `far` that the slot gets after that; -1: none
};

/// For all pairs (two at most) the same rows. On a GPU `far` may be host memory that is mapped
/// there (HostMapping), under the name of a tensor of that GPU: one kernel moves rows both ways
/// over the bus at once, on part of the multiprocessors, so that others find room beside it.
void exchange_rows(const Exec& exec, const RowExchange& rows, std::span<const RowPair> pairs);

}  // namespace segue::ops
