#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "edu/samples.h"
#include "edu/workload.h"
#include "ops/rows.h"
#include "tensor/arena.h"
#include "tensor/exec.h"

namespace segue::edu {

/// One batch where the model runs. On the CPU a step turns keys into rows and finds the distinct
/// ones itself; for a GPU both are done when the batch is made.
struct Batch {
  Tensor dense, labels;  // [B, kDense], [B]
  Tensor keys;           // i64 [F, B * L]; -1: none
  Tensor offsets, bag;   // i64 [B + 1], i32 [B * L]: the same for all batches of a shape

  Tensor rows, distinct;                 // of a GPU: i64 [F, B * L], i64 [distinct]
  std::vector<Tensor> inverse;           // of a GPU, per bag: i32 [B * L]
  std::vector<ops::SortedIndex> sorted;  // of a GPU, per bag
};

/// Rows of a table that keys stand for; -1 stays.
void rows_of_keys(const Workload& workload, int64_t bag, std::span<const int64_t> keys,
                  std::span<int64_t> rows);

/// Batches made beforehand, and their memory.
class BatchPool {
 public:
  BatchPool(const Workload& workload, Device device, DType dtype = DType::kF32);

  /// A batch of these samples, whose number is the workload's batch.
  void add(const Samples& samples, std::span<const int64_t> which);
  /// All whole batches of the samples in a random order; `most` 0: all.
  void add_epoch(const Samples& samples, uint64_t seed, int64_t most = 0);
  /// Random samples: keys below `range`, drawn evenly (exponent 0) or by Zipf's law.
  void add_random(uint64_t seed, int64_t range, double exponent = 0);

  size_t size() const { return batches_.size(); }
  const Batch& operator[](size_t i) const { return batches_[i % batches_.size()]; }
  const Workload& workload() const { return workload_; }

  /// Rows that a batch looks up on average: histories may be shorter than the pooling.
  double lookups_per_batch() const;
  /// Distinct rows that a batch touches on average, and all of them together.
  double distinct_per_batch() const;
  int64_t distinct() const;

 private:
  struct Host {
    std::vector<float> dense, labels;
    std::vector<int64_t> keys;  // [F, B * L]
  };
  void place(const Host& host);
  std::vector<int64_t> rows_of(const std::vector<int64_t>& keys) const;  // of a whole batch
  void place_for_gpu(const Host& host, Batch& batch);
  template <class T>
  Tensor put(std::span<const T> values);
  Tensor put_real(std::span<const float> values);

  Workload workload_;
  Device device_;
  DType dtype_;
  Stream stream_;
  std::unique_ptr<Arena> arena_;
  Tensor offsets_, bag_;
  std::vector<Batch> batches_;
  std::vector<std::vector<int64_t>> keys_;  // of each batch, for the counts
};

/// Numbers of Zipf's law: 0 is the most frequent of `range`. Exponent 0: all alike.
class ZipfDraws {
 public:
  ZipfDraws(uint64_t seed, int64_t range, double exponent);
  int64_t next();

 private:
  Draws draw_;
  int64_t range_;
  double exponent_;
};

}  // namespace segue::edu
