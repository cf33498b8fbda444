#pragma once

#include <cuda.h>

#include "attention/cuda_plan.h"
#include "attention/hstu_attention.h"

/// The kernels for Hopper (sm_90a) and what their launches share. bf16 or f16, heads of 8 to 256
/// columns in eights, for both queries and values, in tiles of 64, 128 or 256 columns, of which
/// those that a head does not have are zeros; 16-byte aligned rows.
namespace segue::attention::hopper {

/// Scratch that backward cannot do without (wide heads have no kernel that computes scores twice,
/// so that of one sequence all score gradients must fit), and how much of it there is.
struct BackwardRoom {
  int64_t needed = 0, free = 0;
  bool suffices() const { return needed <= free; }
};
BackwardRoom backward_room(const Exec& exec, const HstuAttentionParams& p);

/// Heads that have kernels of their own, or none: their results take too many registers.
inline bool is_wide(const HstuAttentionParams& p) { return p.q.size(2) > 128; }

/// Of the plan that backward wants.
inline TileRows tile_rows(const HstuAttentionParams& p) {
  return is_wide(p) ? TileRows{64, 128} : TileRows{128, 256};
}

void forward(const Exec& exec, const HstuAttentionParams& p, const Tensor& o);
void backward(const Exec& exec, const HstuAttentionParams& p, const Tensor& grad_o,
              const Tensor& dq, const Tensor& dk, const Tensor& dv, const Tensor& dbias);

/// Sums over runs of rows of each gradient, as it is stored: float [CudaPlan::sum_rows(), heads *
/// dim], rows may be strided; absent: nobody wants them.
struct AttentionSums {
  Tensor q, k, v;
};

/// The parts of backward. Every sum is made by one thread in one order. dq comes either from the
/// score gradients that backward_dkdv spilled, or, where there is no room for those, from scores
/// computed once more.
void backward_dkdv(const Exec& exec, const HstuAttentionParams& p, const Tensor& grad_o,
                   const Tensor& dk, const Tensor& dv, const CudaPlan& plan, int chunk, void* spill,
                   const AttentionSums& sums = {});
void backward_dq_spilled(const Exec& exec, const HstuAttentionParams& p, const Tensor& dq,
                         const CudaPlan& plan, int chunk, const void* spill,
                         const Tensor& sums = {});
void backward_dq(const Exec& exec, const HstuAttentionParams& p, const Tensor& grad_o,
                 const Tensor& dq, const CudaPlan& plan, const Tensor& sums = {});

/// Of a block: dynamic shared memory, and the registers that one thread of each of so many
/// warpgroups have together. A launch gives every thread as many, in eights; who asks for more than
/// these together waits for ever.
inline constexpr int kMaxSharedBytes = 232448;
constexpr int shared_registers(int warpgroups) { return 512 / warpgroups / 8 * 8 * warpgroups; }

/// [rows, heads, dim] for load_tile in boxes of `box_rows` rows and a panel of one head. Rows from
/// `rows` on and columns from `dim` on read as zero.
CUtensorMap tile_map(const Tensor& t, int64_t rows, int box_rows);

/// One block for each multiprocessor, at most one for each tile.
void launch_kernel(const Exec& exec, const void* kernel, int tiles, int threads, int shared_bytes,
                   void** args);

template <class... Args>
void launch_persistent(const Exec& exec, const void* kernel, int tiles, int threads,
                       int shared_bytes, Args... args) {
  void* pointers[] = {&args...};
  launch_kernel(exec, kernel, tiles, threads, shared_bytes, pointers);
}

}  // namespace segue::attention::hopper
