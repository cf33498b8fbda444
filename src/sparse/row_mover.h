#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "ops/initialize.h"
#include "sparse/row_store.h"
#include "sparse/table.h"
#include "tensor/buffer.h"
#include "tensor/event.h"
#include "tensor/host_array.h"
#include "tensor/upload.h"

namespace segue::sparse {

/// Rows that change places between a store and the slots of a cache before it. Slots are different.
struct RowMoves {
  using List = UploadBlock::Part<int64_t>;
  UploadBlock block;
  List slots;
  List out;  // where in the store the row goes that is in the slot; RowStore::kNone: nowhere
  List in;   // where the row lies that comes then; kNone: none does
  // Slots of rows that begin, after all that, with their initial values; numbers of those rows.
  List new_slots, new_numbers;
  int64_t rows_out = 0, rows_in = 0;
  Event done;
};

/// Moves rows, weights and optimizer state together, between a store and device memory. Where the
/// device can use the store's memory a kernel does it, and the host touches no row; otherwise host
/// threads do, through pinned memory, some MiB at a time. What it is given is done in that order,
/// on streams that the caller holds to it.
class RowMover {
 public:
  /// Initial values of columns from `first_column` on.
  RowMover(RowStore& store, const ops::RowInit& init, int64_t first_column);

  /// Where the rows of slots are.
  void set_resident(const Resident& resident) { resident_ = resident; }
  /// Empty lists, to be filled and given to move() before the next call.
  RowMoves& next_moves();
  /// What goes is in the store for later moves, and for the host after finish().
  void move(RowMoves& moves, const Stream& stream);
  /// The host may read the store.
  void finish();
  /// Initial values of rows by number, to host memory.
  void initial_rows(std::span<const int64_t> numbers, const Tensor& to, const Stream& stream);
  /// At a time: of initial rows, and of those that host threads move.
  int64_t chunk_rows() const;

  int64_t bytes_in() const { return bytes_in_; }
  int64_t bytes_out() const { return bytes_out_; }
  double stall_seconds() const { return stall_seconds_; }  // waiting for the device

  /// On the device, at most, for rows that come and go.
  static constexpr int64_t kStagingBytes = 16 << 20;

 private:
  /// Rows on their way between host and device. On the CPU both sides are one.
  struct Chunk {
    int64_t rows = 0;
    HostArray<int64_t> slots, places;
    HostArray<std::byte> weights, state;
    Event done;
    bool in_flight = false;
  };
  struct Scratch {
    Buffer index, weights, state;
  };
  struct Placed {
    Tensor index, weights, state;
  };
  static constexpr size_t kChunks = 2;
  static constexpr size_t kMoves = 4;  // that the device may be behind

  Device device() const { return resident_.weights.device; }
  DType dtype() const { return resident_.weights.dtype; }
  int64_t columns() const { return resident_.weights.size(1); }
  int64_t state_columns() const { return resident_.state.size(1); }
  int64_t weight_bytes() const { return columns() * size_of(dtype()); }
  int64_t state_bytes() const { return state_columns() * size_of(dtype()); }

  void wait(const Event& event);
  Tensor scratch(Buffer& buffer, int64_t rows, int64_t columns, DType dtype);
  void exchange(const RowMoves& moves, const UploadBlock::Placed& lists, const Stream& stream);
  void begin_rows(const RowMoves& moves, const UploadBlock::Placed& lists, const Stream& stream);
  // By host threads.
  void prepare(Chunk& chunk, std::span<const int64_t> slots, std::span<const int64_t> places);
  Placed place(Chunk& chunk, Scratch& scratch);
  void copy_rows(Chunk& chunk, bool to_store);
  void send_out(std::span<const int64_t> slots, std::span<const int64_t> places,
                const Stream& stream);
  /// What has left the cache gets into the store.
  void land(Chunk& chunk);
  void land_all();
  void bring_in(std::span<const int64_t> slots, std::span<const int64_t> places,
                const Stream& stream);

  RowStore& store_;
  ops::RowInit init_;
  int64_t first_column_ = 0;
  Resident resident_;
  std::array<RowMoves, kMoves> moves_;
  size_t next_moves_ = 0;
  Event exchanged_;  // end of the last exchange by the device
  std::array<Chunk, kChunks> in_, out_;
  size_t next_in_ = 0, next_out_ = 0;
  Scratch in_scratch_, out_scratch_;
  int64_t bytes_in_ = 0, bytes_out_ = 0;
  double stall_seconds_ = 0;
};

}  // namespace segue::sparse
