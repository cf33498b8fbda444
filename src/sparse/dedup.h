#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "tensor/event.h"
#include "tensor/host_array.h"

namespace segue::sparse {

/// Memory that the functions below work in. Kept from call to call, so that a step does not take
/// and touch new pages; one call at a time.
struct DedupScratch {
  HostArray<uint64_t> records, other;  // of a sort; or a bit per possible id, then counts
  HostArray<int64_t> counts;
  HostArray<int64_t> keys;     // of tuples
  HostArray<int32_t> example;  // of tuples: where each occurs
};

/// Distinct values in ascending order, and for every input the place of its value (-1 stays -1 when
/// `skip_negative`).
struct Distinct {
  HostArray<int64_t> values;   // [distinct]
  HostArray<int32_t> inverse;  // [inputs]
};
void distinct(std::span<const int64_t> ids, bool skip_negative, DedupScratch& scratch,
              Distinct& out);
Distinct distinct(std::span<const int64_t> ids, bool skip_negative = false);

/// Ids that may come up, both ends included.
struct IdRange {
  int64_t smallest = std::numeric_limits<int64_t>::max();
  int64_t largest = std::numeric_limits<int64_t>::min();

  void add(int64_t id) {
    smallest = std::min(smallest, id);
    largest = std::max(largest, id);
  }
};

/// What becomes of ids outside of their range: there are none; they have no place (inverse -1); the
/// nearest id of the range stands for them.
enum class OutsideIds : uint8_t { kNever, kSkip, kClamp };

/// Neighbouring ids that are deduped by themselves.
struct IdPart {
  int64_t count = 0;
  IdRange range;
  OutsideIds outside = OutsideIds::kNever;
};

/// distinct() on a GPU, of several lists at once, with the order that sums by value go in. Work is
/// queued on a stream; only count() and part() wait. Memory is kept from call to call; one call at
/// a time.
class DeviceDedup {
 public:
  /// What find() leaves; valid until the next one. Values of a part follow those of the part
  /// before it, and places count through all of them.
  struct Found {
    Tensor values;   // i64 [inputs], of which the first count() are filled
    Tensor first;    // i32 [inputs], likewise: the first input of each value
    Tensor inverse;  // i32 [inputs]
    Tensor order;    // i32 [inputs]: inputs by value, equal ones as they come, skipped ones last
    Tensor places;   // i32 [inputs]: inverse in that order, with count() for skipped ones
    Tensor starts;   // i32 [inputs + 1]: where in `order` each value begins; then the end, once
  };
  /// What there was of one part.
  struct PartFound {
    int64_t first = 0, count = 0;  // its values among those of all
    int64_t outside = 0;           // ids outside of the range
    int64_t first_outside = -1;    // place of the first of them among all inputs
    IdRange range;                 // that would have held all of them
  };

  /// Whether these ranges can be told apart in 64 bits, which find() needs.
  static bool fits(std::span<const IdPart> parts);

  /// i64 [count]: a place for the ids of the next find(), which takes other ones as well.
  Tensor input(int64_t count, Device device);
  /// `ids` are i64 on the GPU of `stream`, part after part. The fewer bits all ranges together
  /// have, the faster.
  Found find(const Tensor& ids, std::span<const IdPart> parts, const Stream& stream);
  /// Of a single part.
  Found find(const Tensor& ids, IdRange range, bool skip_negative, const Stream& stream);
  /// How many distinct ids there were; waits for the last find().
  int64_t count() const;
  PartFound part(size_t number) const;

  /// What so many ids take, and to take it at once rather than when it is needed.
  static int64_t memory_bytes(int64_t ids);
  void reserve(Device device, int64_t bytes);

 private:
  Buffer memory_;
  HostArray<int64_t> report_;  // pinned: a DedupReport comes back to it
  std::vector<IdPart> parts_;
  int64_t inputs_ = 0;
  Event counted_;
};

/// Distinct tuples of k index columns of equal length n, in lexicographic order.
struct DistinctTuples {
  HostArray<int32_t> members;  // [k, distinct] column-major: members of column c start at c * count
  HostArray<int32_t> inverse;  // [n]
  int64_t count = 0;
  std::span<const int32_t> column(int64_t c) const {
    return members.span().subspan(static_cast<size_t>(c * count), static_cast<size_t>(count));
  }
};
void distinct_tuples(std::span<const std::span<const int32_t>> columns, DedupScratch& scratch,
                     DistinctTuples& out);
DistinctTuples distinct_tuples(std::span<const std::span<const int32_t>> columns);

}  // namespace segue::sparse
