#pragma once

#include <cstdint>

#include "attention/hstu_attention.h"
#include "attention/hstu_mask.h"
#include "tensor/exec.h"

/// Host side of the CUDA kernels: what work there is, in which order, and where it is described.
namespace segue::attention {

/// The mask as kernels read it: sequences are far shorter than 2^31 rows.
using KernelMask = BasicHstuMask<int32_t>;
KernelMask kernel_mask(const HstuMask& mask);

/// One sequence of a work list.
struct SequenceEntry {
  int32_t first_row, n, targets;
  int32_t first_tile;  // of all heads together
};

/// Tiles of all heads and sequences. The longest sequence comes first, so that no block is left
/// alone with it at the end; one sequence after the other, so that its keys and values stay in the
/// second-level cache while its tiles run.
struct WorkList {
  const SequenceEntry* table;
  int32_t sequences, tiles;
  int32_t* counter;  // next tile to take; 0 when the kernel starts
};

/// Work lists of one call in device memory, taken from the arena of `exec` (and given back by its
/// Mark). The upload is ordered on the stream and does not wait for it.
class CudaPlan {
 public:
  static constexpr int kCounters = 4;

  CudaPlan(const Exec& exec, const HstuAttentionParams& p, int tile_rows);
  /// Each launch takes a counter of its own.
  WorkList work(int counter) const;
  int32_t tiles() const { return tiles_; }

 private:
  Tensor table_;
  int32_t sequences_ = 0, tiles_ = 0;
};

}  // namespace segue::attention
