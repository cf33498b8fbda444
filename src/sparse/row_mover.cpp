#include "sparse/row_mover.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "base/parallel.h"
#include "base/time.h"
#include "ops/exchange.h"
#include "ops/rows.h"

namespace segue::sparse {
namespace {

constexpr int64_t kChunkBytes = RowMover::kStagingBytes / 2;  // one each way
constexpr int64_t kCopyBytes = 1 << 16;                       // of rows, per piece of parallel work

Exec exec_on(const Stream& stream) {
  Exec exec;
  exec.stream = &stream;
  exec.device = stream.device();
  return exec;
}

/// Slots and places of those that have a place.
struct Placements {
  std::vector<int64_t> slots, places;
};
Placements placements(std::span<const int64_t> slots, std::span<const int64_t> places) {
  Placements found;
  for (size_t i = 0; i < slots.size(); ++i) {
    if (places[i] == RowStore::kNone) continue;
    found.slots.push_back(slots[i]);
    found.places.push_back(places[i]);
  }
  return found;
}

}  // namespace

RowMover::RowMover(RowStore& store, const ops::RowInit& init, int64_t first_column)
    : store_(store), init_(init), first_column_(first_column) {}

int64_t RowMover::chunk_rows() const {
  return std::max<int64_t>(1, kChunkBytes / std::max<int64_t>(1, weight_bytes() + state_bytes()));
}

void RowMover::wait(const Event& event) {
  const base::Stopwatch watch;
  event.synchronize();
  stall_seconds_ += watch.seconds();
}

RowMoves& RowMover::next_moves() {
  RowMoves& moves = moves_[next_moves_++ % kMoves];
  wait(moves.done);
  moves.block.clear();
  if (device().is_cuda()) moves.block.set_memory(HostMemory::kPinned);
  moves.slots = moves.out = moves.in = moves.new_slots = moves.new_numbers = {};
  moves.rows_out = moves.rows_in = 0;
  return moves;
}

void RowMover::move(RowMoves& moves, const Stream& stream) {
  land_all();  // rows may come back that have just left
  const UploadBlock::Placed lists = moves.block.place(exec_on(stream));
  if (moves.rows_out + moves.rows_in == 0) {
    // Rows begin, and that is all.
  } else if (store_.mapped()) {
    exchange(moves, lists, stream);
  } else {
    wait(exchanged_);
    const std::span<const int64_t> slots = moves.block.span(moves.slots);
    const Placements out = placements(slots, moves.block.span(moves.out));
    const Placements in = placements(slots, moves.block.span(moves.in));
    send_out(out.slots, out.places, stream);
    bring_in(in.slots, in.places, stream);
  }
  begin_rows(moves, lists, stream);
  moves.block.release(stream);
  moves.done.record(stream);
  bytes_in_ += moves.rows_in * (weight_bytes() + state_bytes());
  bytes_out_ += moves.rows_out * (weight_bytes() + state_bytes());
}

void RowMover::finish() {
  wait(exchanged_);
  land_all();
}

void RowMover::exchange(const RowMoves& moves, const UploadBlock::Placed& lists,
                        const Stream& stream) {
  const int64_t capacity = store_.capacity();
  const ops::RowPair pairs[] = {
      {resident_.weights, Tensor(store_.weights(0), dtype(), device(), {capacity, columns()})},
      {resident_.state, Tensor(store_.state(0), dtype(), device(), {capacity, state_columns()})}};
  ops::exchange_rows(exec_on(stream),
                     {lists.tensor(moves.slots), lists.tensor(moves.out), lists.tensor(moves.in)},
                     pairs);
  exchanged_.record(stream);
}

/// On the device, for values that the stream is given next.
Tensor RowMover::scratch(Buffer& buffer, int64_t rows, int64_t columns, DType dtype) {
  const int64_t row_bytes = columns * size_of(dtype);
  if (buffer.bytes() < rows * row_bytes) {
    buffer = Buffer(device(), std::min(chunk_rows(), 2 * rows) * row_bytes, Purpose::kScratch);
  }
  return {buffer.data(), dtype, device(), {rows, columns}};
}

void RowMover::begin_rows(const RowMoves& moves, const UploadBlock::Placed& lists,
                          const Stream& stream) {
  const Exec exec = exec_on(stream);
  const Tensor slots = lists.tensor(moves.new_slots), numbers = lists.tensor(moves.new_numbers);
  const int64_t total = slots.size(0);
  for (int64_t first = 0; first < total; first += chunk_rows()) {
    const int64_t rows = std::min(chunk_rows(), total - first);
    const Tensor some = slots.narrow(0, first, rows);
    const Tensor weights = scratch(in_scratch_.weights, rows, columns(), dtype());
    ops::initialize_part(weights, init_, numbers.narrow(0, first, rows), first_column_, &stream);
    ops::scatter_rows(exec, weights, some, resident_.weights);
    if (state_columns() == 0) continue;
    const Tensor state = scratch(in_scratch_.state, rows, state_columns(), dtype());
    zero(state, &stream);
    ops::scatter_rows(exec, state, some, resident_.state);
  }
}

void RowMover::initial_rows(std::span<const int64_t> numbers, const Tensor& to,
                            const Stream& stream) {
  RowMoves& moves = next_moves();
  moves.new_numbers = moves.block.add<int64_t>(numbers);
  const Tensor values = scratch(in_scratch_.weights, to.size(0), columns(), dtype());
  ops::initialize_part(values, init_, moves.block.place(exec_on(stream)).tensor(moves.new_numbers),
                       first_column_, &stream);
  copy(to, values, &stream);
  moves.done.record(stream);
  stream.synchronize();
}

void RowMover::prepare(Chunk& chunk, std::span<const int64_t> slots,
                       std::span<const int64_t> places) {
  if (device().is_cuda()) {
    chunk.slots.set_memory(HostMemory::kPinned);
    chunk.weights.set_memory(HostMemory::kPinned);
    chunk.state.set_memory(HostMemory::kPinned);
  }
  chunk.rows = std::ssize(slots);
  chunk.slots.assign(slots);
  chunk.places.assign(places);
  chunk.weights.resize(chunk.rows * weight_bytes());
  chunk.state.resize(chunk.rows * state_bytes());
}

/// Where ops have the arrays of a chunk.
RowMover::Placed RowMover::place(Chunk& chunk, Scratch& there) {
  const int64_t rows = chunk.rows;
  if (device().is_cpu()) {
    return {chunk.slots.tensor(),
            Tensor(chunk.weights.data(), dtype(), device(), {rows, columns()}),
            Tensor(chunk.state.data(), dtype(), device(), {rows, state_columns()})};
  }
  return {scratch(there.index, rows, 1, DType::kI64).reshape({rows}),
          scratch(there.weights, rows, columns(), dtype()),
          scratch(there.state, rows, state_columns(), dtype())};
}

void RowMover::copy_rows(Chunk& chunk, bool to_store) {
  const auto one = [&](std::byte* stored, std::byte* here, int64_t bytes) {
    if (!to_store) std::swap(stored, here);
    std::memcpy(stored, here, static_cast<size_t>(bytes));
  };
  const auto each = std::max<int64_t>(1, kCopyBytes / std::max<int64_t>(1, weight_bytes()));
  base::parallel_for(chunk.rows, each, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t place = chunk.places[i];
      one(store_.weights(place), chunk.weights.data() + i * weight_bytes(), weight_bytes());
      if (state_bytes() == 0) continue;
      one(store_.state(place), chunk.state.data() + i * state_bytes(), state_bytes());
    }
  });
}

void RowMover::send_out(std::span<const int64_t> slots, std::span<const int64_t> places,
                        const Stream& stream) {
  const Exec exec = exec_on(stream);
  for (int64_t first = 0; first < std::ssize(slots); first += chunk_rows()) {
    const auto rows = std::min<size_t>(static_cast<size_t>(chunk_rows()),
                                       slots.size() - static_cast<size_t>(first));
    Chunk& chunk = out_[next_out_++ % kChunks];
    land(chunk);
    prepare(chunk, slots.subspan(static_cast<size_t>(first), rows),
            places.subspan(static_cast<size_t>(first), rows));
    const Placed placed = place(chunk, out_scratch_);
    const bool copies = device().is_cuda();
    if (copies) copy(placed.index, chunk.slots.tensor(), &stream);
    ops::gather_rows(exec, resident_.weights, placed.index, placed.weights);
    if (state_bytes() > 0) ops::gather_rows(exec, resident_.state, placed.index, placed.state);
    if (copies) {
      copy_bytes(chunk.weights.data(), Device::cpu(), placed.weights.data, device(),
                 static_cast<size_t>(chunk.weights.size()), &stream);
      copy_bytes(chunk.state.data(), Device::cpu(), placed.state.data, device(),
                 static_cast<size_t>(chunk.state.size()), &stream);
    }
    chunk.done.record(stream);
    chunk.in_flight = true;
  }
}

void RowMover::land(Chunk& chunk) {
  if (!chunk.in_flight) return;
  wait(chunk.done);
  copy_rows(chunk, true);
  chunk.in_flight = false;
}

void RowMover::land_all() {
  // Oldest first: a row may be among several.
  for (size_t i = 0; i < kChunks; ++i) land(out_[(next_out_ + i) % kChunks]);
}

void RowMover::bring_in(std::span<const int64_t> slots, std::span<const int64_t> places,
                        const Stream& stream) {
  const Exec exec = exec_on(stream);
  for (int64_t first = 0; first < std::ssize(slots); first += chunk_rows()) {
    const auto rows = std::min<size_t>(static_cast<size_t>(chunk_rows()),
                                       slots.size() - static_cast<size_t>(first));
    Chunk& chunk = in_[next_in_++ % kChunks];
    if (chunk.in_flight) wait(chunk.done);
    prepare(chunk, slots.subspan(static_cast<size_t>(first), rows),
            places.subspan(static_cast<size_t>(first), rows));
    copy_rows(chunk, false);
    const Placed placed = place(chunk, in_scratch_);
    if (device().is_cuda()) {
      copy(placed.index, chunk.slots.tensor(), &stream);
      copy_bytes(placed.weights.data, device(), chunk.weights.data(), Device::cpu(),
                 static_cast<size_t>(chunk.weights.size()), &stream);
      copy_bytes(placed.state.data, device(), chunk.state.data(), Device::cpu(),
                 static_cast<size_t>(chunk.state.size()), &stream);
    }
    ops::scatter_rows(exec, placed.weights, placed.index, resident_.weights);
    if (state_bytes() > 0) ops::scatter_rows(exec, placed.state, placed.index, resident_.state);
    chunk.done.record(stream);
    chunk.in_flight = true;
  }
}

}  // namespace segue::sparse
