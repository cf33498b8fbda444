#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "sparse/dedup.h"
#include "sparse/table.h"
#include "tensor/event.h"
#include "tensor/upload.h"

namespace segue::sparse {

/// Where a batch's inverse is wanted. kDevice: Tables::places() has it, Ticket::inverse() may not.
enum class InverseAt { kHost, kDevice };

class Tables;

/// What a Ticket has.
struct TicketParts {
  int64_t distinct_rows(TableId table) const { return part(table).rows; }
  /// i32 [ids of the lookup]: place of each id among the distinct rows of its table, -1 for a zero
  /// row.
  std::span<const int32_t> inverse(int64_t lookup) const;  // of InverseAt::kHost
  /// Slots of this rank's storage that the batch uses, each once: on one rank those of the distinct
  /// rows in their order, otherwise of the rows that all ranks together ask this one for.
  std::span<const int64_t> slots(TableId table) const;
  /// One rank: a copy of slots() where ops can read it, valid as long as the ticket is used.
  /// Without one rows() and apply() make their own.
  void place_slots(TableId table, const Tensor& slots) { part(table).placed_slots = slots; }

  // What Tables and its exchange keep from call to call.

  /// With several ranks: which of the distinct rows come from whom, and which rows of this rank's
  /// part of the table the others (and itself) ask for.
  struct Requests {
    /// Some of the distinct rows, as far as one owner has them.
    struct Segment {
      int64_t first = 0, count = 0;
      ColumnBlock columns;
    };
    std::vector<Segment> from;    // [ranks] what each has of what this rank needs
    std::vector<int64_t> served;  // [ranks] rows that each gets from this rank
    // Of tables that resolve late, keys instead of slots.
    UploadBlock::Part<int64_t> slots;           // [sum of served], by asking rank
    UploadBlock::Part<int64_t> distinct_slots;  // the same, each once
    UploadBlock::Part<int32_t> place;           // [sum of served] place among the distinct ones
    UploadBlock::Part<int32_t> uses;            // of the distinct ones; where they are counted
    UploadBlock::Part<int64_t> scores;          // likewise; where they are kept
  };
  /// Of one table.
  struct Part {
    int64_t rows = 0;     // distinct ones
    Distinct distinct;    // slots, on one rank; inverse of its lookups one after the other
    Tensor placed_slots;  // absent: not placed
    Requests requests;    // with several ranks
    // Of tables that resolve late. Until then their keys stand where slots do.
    HostArray<int32_t> uses;    // of the distinct rows, on one rank; where they are counted
    HostArray<int64_t> scores;  // likewise; where they are kept
    Buffer memory;              // of the next two
    Tensor slots;               // of the distinct rows, or of the distinct requests
    Tensor request_slots;       // with several ranks: by asking rank
    HeldRows held;              // of those that the host resolves
  };
  struct LookupPlace {
    TableId table{};
    int64_t at = 0, size = 0;  // in the inverse of the table
  };

  Part& part(TableId table) { return parts[static_cast<size_t>(table)]; }
  const Part& part(TableId table) const { return parts[static_cast<size_t>(table)]; }

  Mode mode = Mode::kTraining;
  bool shared = false;                // by several ranks
  bool staged = false, held = false;  // since begin(); until release()
  bool resolved = false;              // since begin()
  std::weak_ptr<Tables*> tables;      // that it is of; gone with them
  int64_t time = 0;                   // of the batch, latest of all ranks
  std::vector<Part> parts;            // per table
  std::vector<LookupPlace> lookups;
  UploadBlock block;  // arrays of the requests
  UploadBlock::Placed placed;
  Event arrived;  // of what tables staged

  // Deduped by the device.
  bool on_device = false;
  HostArray<int64_t> ids;  // on their way there
  DeviceDedup dedup;
  DeviceDedup::Found found;
  Event last_use;
  // Otherwise, what Tables::places() makes once.
  bool has_places = false;
  HostArray<int32_t> all_places;
  Buffer places_memory;
  Event places_sent;
};

/// One batch's distinct rows, and the slots that its tables keep them in: made by Tables::begin(),
/// used by the calls after it, may exist a step ahead. Keeps its memory when it is made again. One
/// that goes without having been used gives back what it holds; one that was used and not released
/// cannot, for the device may still be at it.
struct Ticket : TicketParts {
  Ticket() = default;
  Ticket(Ticket&& other) noexcept;
  Ticket& operator=(Ticket&& other) noexcept;
  ~Ticket();

 private:
  void drop() noexcept;
};

}  // namespace segue::sparse
