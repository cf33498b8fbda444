#include "sparse/mixed_order.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <utility>

#include "base/error.h"
#include "base/parallel.h"
#include "ops/cuda_forms.h"
#include "sparse/hash_index.h"
#include "sparse/mixed_order_device.h"

namespace segue::sparse {
namespace {

constexpr int64_t kIdGrain = 1 << 14;
constexpr int64_t kBytesPerKey = 8 + 8 + 4 + 8 + 1;  // keys, rows, uses, scores, is_new
constexpr int64_t kBytesPerId = 4 + 2 * 4 + 2 * 4;   // place; prefixes and items of a sort
constexpr int64_t kArrays = 11, kArrayAlignment = 256;

int64_t aligned(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

/// Far more than a sort needs to coordinate its blocks.
int64_t scratch_bytes(int64_t ids) { return ids + (int64_t{1} << 20); }

/// As many leading bits as tell most keys apart, a whole number of passes of the sort.
void choose_bits(MixedLists& m, int64_t longest) {
  constexpr int kPass = 8, kMoreBits = 4, kPrefix = 32;
  const int list_bits = std::bit_width(static_cast<unsigned>(m.count - 1));
  const int wanted = list_bits + std::bit_width(static_cast<uint64_t>(longest)) + kMoreBits;
  m.bits = std::min(kPrefix, (wanted + kPass - 1) / kPass * kPass);
  m.key_bits = m.bits - list_bits;
}

MixedLists lists_of(std::span<const MixedOrder::List> lists) {
  MixedLists m{};
  int64_t at = 0, longest = 0;
  for (const auto& [ids, uses, scores, rows] : lists) {
    const int64_t n = ids.elements();
    m.lists[m.count++] = {static_cast<const int64_t*>(ids.data),
                          uses ? static_cast<const int32_t*>(uses.data) : nullptr,
                          scores ? static_cast<const int64_t*>(scores.data) : nullptr,
                          static_cast<int64_t*>(rows.data),
                          m.n,
                          at};
    m.n += n;
    at += aligned(n, kMixedAlignment);
    longest = std::max(longest, n);
  }
  choose_bits(m, longest);
  return m;
}

}  // namespace

MixedArrays MixedOrder::divide(int64_t ids, int64_t room) const {
  auto* next = static_cast<char*>(memory_.data());
  const auto take = [&]<class T>(T*& array, int64_t count) {
    array = reinterpret_cast<T*>(next);
    next += aligned(count * static_cast<int64_t>(sizeof(T)), kArrayAlignment);
  };
  MixedArrays a{};
  for (uint32_t*& prefixes : a.prefixes) take(prefixes, ids);
  for (int32_t*& items : a.items) take(items, ids);
  take(a.place, ids);
  take(a.keys, room);
  take(a.rows, room);
  take(a.uses, room);
  take(a.scores, room);
  take(a.is_new, room);
  a.scratch = next;
  a.scratch_bytes = memory_.bytes() - (next - static_cast<char*>(memory_.data()));
  return a;
}

void MixedOrder::reserve(const Exec& exec, int64_t ids, int64_t room) {
  const int64_t bytes =
      ids * kBytesPerId + room * kBytesPerKey + kArrays * kArrayAlignment + scratch_bytes(ids);
  if (bytes <= memory_.bytes()) return;
  done_.synchronize();
  memory_ = {};
  memory_ = Buffer(exec.device, bytes + bytes / 4, Purpose::kBatch);
}

std::vector<MixedOrder::Sorted> MixedOrder::sort(const Exec& exec, std::span<const List> lists) {
  SEGUE_ASSERT(lists.size() <= kMostLists, "mixed keys: so many lists at a time");
  lists_.assign(lists.begin(), lists.end());
  ids_ = room_ = 0;
  for (const List& list : lists) {
    ids_ += list.ids.elements();
    room_ += aligned(list.ids.elements(), kMixedAlignment);
  }
  SEGUE_ASSERT(room_ <= std::numeric_limits<int32_t>::max(), "places of keys are 32 bit");
  reserve(exec, ids_, room_);
  const MixedArrays a = divide(ids_, room_);
  std::vector<Sorted> sorted;
  int64_t at = 0;
  for (const auto& [ids, uses, scores, rows] : lists) {
    const int64_t n = ids.elements();
    const auto view = [&]<class T>(T* array) {
      return Tensor(array + at, kDTypeOf<T>, exec.device, {n});
    };
    sorted.push_back({view(a.keys), uses ? view(a.uses) : Tensor{},
                      scores ? view(a.scores) : Tensor{}, view(a.rows), view(a.is_new)});
    at += aligned(n, kMixedAlignment);
  }
  if (ids_ == 0) return sorted;
  if constexpr (ops::kHasCuda) {
    if (exec.device.is_cuda()) {
      cuda::sort_mixed(lists_of(lists_), a, *exec.stream);
      done_.record(*exec.stream);
      return sorted;
    }
  }
  int32_t* place = a.place;
  at = 0;
  for (const List& list : lists) {
    const Tensor &ids = list.ids, &uses = list.uses, &scores = list.scores;
    const int64_t n = ids.elements();
    mixed_.resize(n);
    base::parallel_for(n, kIdGrain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) mixed_[i] = key_of_id(ids.ptr<int64_t>()[i]);
    });
    distinct(std::as_const(mixed_).span(), false, scratch_, distinct_);
    std::ranges::copy(std::as_const(distinct_.values).span(), a.keys + at);
    for (int64_t i = 0; i < n; ++i) {
      const int64_t to = at + distinct_.inverse[i];
      place[i] = static_cast<int32_t>(to);
      if (uses) a.uses[to] = uses.ptr<int32_t>()[i];
      if (scores) a.scores[to] = scores.ptr<int64_t>()[i];
    }
    place += n;
    at += aligned(n, kMixedAlignment);
  }
  return sorted;
}

void MixedOrder::put_back(const Exec& exec) {
  if (ids_ == 0) return;
  const MixedArrays a = divide(ids_, room_);
  if constexpr (ops::kHasCuda) {
    if (exec.device.is_cuda()) {
      cuda::put_back(lists_of(lists_), a, *exec.stream);
      done_.record(*exec.stream);
      return;
    }
  }
  const int32_t* place = a.place;
  for (const List& list : lists_) {
    const int64_t n = list.ids.elements();
    for (int64_t i = 0; i < n; ++i) list.rows.ptr<int64_t>()[i] = a.rows[place[i]];
    place += n;
  }
}

}  // namespace segue::sparse
