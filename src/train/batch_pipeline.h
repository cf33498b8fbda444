#pragma once

#include <array>
#include <future>
#include <optional>

#include "batch/batch.h"
#include "data/loader.h"
#include "model/prepared_batch.h"
#include "train/source.h"
#include "train/trainer.h"

namespace segue::train {

/// Batches ready for a step. With a GPU, fetching the next batch and its host work (layout,
/// distinct ids, indices) go on in the background while the current one is trained; on the CPU,
/// which has nothing to spare, they happen when asked for. The batches are the same either way.
class BatchPipeline {
 public:
  struct Item {
    Batch batch;
    data::Delivery delivery;
    model::PreparedBatch prepared;
  };

  BatchPipeline(Source& source, Trainer& trainer);
  ~BatchPipeline() { settle(); }

  /// The batch at `from` comes next.
  void start(data::StreamPosition from);
  /// Null at the end. Valid until the next call. What went wrong in the background is thrown here.
  Item* next();
  /// Nothing goes on in the background until the next call: another batch may be prepared.
  void settle() const;

 private:
  bool fetch(Item& item);
  void fetch_ahead();

  Source& source_;
  Trainer& trainer_;
  bool ahead_ = false;
  std::array<Item, 2> items_;
  size_t current_ = 1;
  std::future<bool> pending_;  // into the item that is not current
};

}  // namespace segue::train
