#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sparse/dedup.h"
#include "tensor/buffer.h"
#include "tensor/event.h"
#include "tensor/exec.h"

namespace segue::sparse {

struct MixedArrays;

/// Ids of several lists become keys (key_of_id) in ascending order, each list by itself, and what
/// is found for the keys goes back to the order of ids. Memory is kept from call to call; one call
/// at a time.
class MixedOrder {
 public:
  static constexpr int kMostLists = 16;

  /// Where exec's device is; ids of a list are distinct.
  struct List {
    Tensor ids;           // i64 [n]
    Tensor uses, scores;  // i32 and i64 [n]; absent: nobody asks
    Tensor rows;          // i64 [n]: what put_back() fills
  };
  /// Of one list; valid until the next sort().
  struct Sorted {
    Tensor keys, uses, scores;  // in the order of keys
    Tensor rows, is_new;        // i64, u8: the caller fills them, in the same order
  };
  std::vector<Sorted> sort(const Exec& exec, std::span<const List> lists);
  /// The rows of the last sort(), in the order of ids, to where its lists said.
  void put_back(const Exec& exec);

 private:
  MixedArrays divide(int64_t ids, int64_t room) const;
  void reserve(const Exec& exec, int64_t ids, int64_t room);

  std::vector<List> lists_;
  int64_t ids_ = 0, room_ = 0;  // of the last sort(): ids; places for keys
  Buffer memory_;
  Event done_;
  // On the host.
  HostArray<int64_t> mixed_;
  DedupScratch scratch_;
  Distinct distinct_;
};

}  // namespace segue::sparse
