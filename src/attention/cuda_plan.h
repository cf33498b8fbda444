#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "attention/hstu_attention.h"
#include "attention/hstu_mask.h"
#include "tensor/exec.h"

/// Host side of the CUDA kernels: what work there is, in which order, and where it is described.
namespace segue::attention {

/// The mask as kernels read it: sequences are far shorter than 2^31 rows.
using KernelMask = BasicHstuMask<int32_t>;
KernelMask kernel_mask(const HstuMask& mask);

/// Rows of the tiles that work lists have, by who uses them: of keys (and of queries in forward),
/// and of queries in backward.
struct TileRows {
  int32_t keys = 128, queries = 256;
};

/// Score gradients that one kernel leaves for the next: blocks of 64 keys x 64 queries. A sequence
/// has those on and below the diagonal, then, for each block of queries that holds context, a
/// whole row of blocks.
inline constexpr int kSpillBlock = 64;
inline constexpr int64_t kSpillBlockBytes = kSpillBlock * kSpillBlock * 2;
/// Blocks of one head of a sequence of n rows.
inline int64_t spill_blocks_of(const HstuMask& mask, int64_t n) {
  const int64_t blocks = (n + kSpillBlock - 1) / kSpillBlock;
  const int64_t context =
      (std::min(mask.contextual_len, n) + kSpillBlock - 1) / kSpillBlock * blocks;
  return blocks * (blocks + 1) / 2 + context;
}

/// Scratch of backward for them, and what is left of the arena for its work lists. More scratch
/// means fewer chunks, each of which ends with idle multiprocessors.
inline constexpr int64_t kMostSpillBytes = int64_t{4} << 30;
inline constexpr int64_t kWorkListBytes = int64_t{8} << 20;

/// Rows of one sequence whose results are added up where they are made; see CudaPlan::sum_rows.
inline constexpr int kSummedRows = 64;
/// The most runs of them that sequences of so many rows together can have.
inline int64_t most_sum_rows(int64_t rows, int64_t sequences) {
  return rows / kSummedRows + sequences;
}

/// One sequence of a work list; what is `first` counts from the start of its chunk.
struct SequenceEntry {
  int32_t first_row, n, targets;
  int32_t first_key_tile, first_query_tile;  // of all heads together
  int32_t first_spill, spill;                // blocks: where head 0 begins, and how many a head has
  int32_t sum_row;                           // of its first rows, in the whole call
};

/// Tiles of all heads and sequences of a chunk. The longest sequence comes first, so that no block
/// is left alone with it at the end; one sequence after the other, so that its keys and values stay
/// in the second-level cache while its tiles run. The last sequences, as far as they have one
/// length, are the tail: of all their heads together the longest tiles come first, and what is left
/// at the very end is short.
/// Blocks begin with the tile of their own number, then take what comes next.
struct WorkList {
  const SequenceEntry* table;  // in device memory; null: they come as FewSequences
  int32_t sequences, tiles;
  bool queries;      // which tiles of a sequence count
  int32_t* counter;  // of tiles after the first of each block; 0 when the kernel starts
  int32_t heads;
  int32_t tail, tail_tile;  // sequences of the tail, and its first tile
};

/// A batch whose tiles all run at once is an argument of the kernel: no copy to wait for, no search
/// in memory. There is no counter then; blocks, should they be fewer than tiles, take these in
/// turn.
inline constexpr int kFewSequences = 32, kFewTiles = 132;
struct FewSequences {
  SequenceEntry entries[kFewSequences];
};

/// Work lists of one call, those of large batches in device memory, taken from the arena of `exec`
/// (and given back by its Mark). The upload is ordered on the stream and does not wait for it.
class CudaPlan {
 public:
  /// Sequences are cut into chunks so that the spilled blocks of one need `spill_bytes` at most; 0:
  /// one chunk.
  CudaPlan(const Exec& exec, const HstuAttentionParams& p, int64_t spill_bytes = 0,
           TileRows tile_rows = {});

  int chunks() const { return static_cast<int>(chunks_.size()); }
  /// Each launch takes a counter of its own: 0 or 1.
  WorkList key_tiles(int chunk, int counter) const;
  WorkList query_tiles(int chunk, int counter) const;
  const FewSequences& few() const { return few_; }
  /// Most blocks that a chunk spills.
  int64_t spill_blocks() const { return spill_blocks_; }
  TileRows tile_rows() const { return tile_rows_; }
  /// Runs of kSummedRows rows or less, of all sequences. Each has a row of sums of its own, whoever
  /// makes it and whenever, so that adding these up has one order.
  int64_t sum_rows() const { return sum_rows_; }

 private:
  struct Chunk {
    int32_t begin = 0, end = 0;  // sequences
    int32_t key_tiles = 0, query_tiles = 0;
    int64_t spill = 0;
    int32_t tail = 0, tail_key_tile = 0, tail_query_tile = 0;
  };
  void close(Chunk& chunk, const std::vector<SequenceEntry>& entries);
  WorkList list(int chunk, bool queries, int counter) const;

  TileRows tile_rows_;
  int32_t heads_;
  Tensor table_;
  FewSequences few_{};
  std::vector<Chunk> chunks_;
  int64_t spill_blocks_ = 0, sum_rows_ = 0;
};

/// What the longest sequence would spill, all heads: less cannot be asked for.
int64_t least_spill_bytes(const HstuAttentionParams& p);

}  // namespace segue::attention
