#pragma once

#include <array>
#include <memory>

#include "balance/exchange.h"
#include "batch/batch.h"
#include "data/background.h"
#include "data/loader.h"
#include "model/prepared_batch.h"
#include "train/source.h"
#include "train/trainer.h"

namespace segue::train {

/// Batches ready for a step. Fetching the next batch, balancing it between ranks and its host work
/// (layout, distinct ids and their exchange, indices) go on in the background while the current one
/// is trained; or, with the pipeline off (on the CPU by default, which has nothing to spare), when
/// asked for. The batches are the same either way.
class BatchPipeline {
 public:
  struct Item {
    Batch batch;
    data::Delivery delivery;
    model::PreparedBatch prepared;
    balance::BalanceStats balance;
  };

  /// `balancer` may be null.
  BatchPipeline(Source& source, Trainer& trainer, balance::Balancer* balancer, Pipeline mode);

  /// The batch at `from` comes next.
  void start(data::StreamPosition from);
  /// Null at the end. Valid until the next call. What went wrong in the background is thrown here.
  /// `more`: fetch the one after it now, since it will be asked for.
  Item* next(bool more = true);
  /// Nothing goes on in the background until the next call: another batch may be prepared. Throws
  /// as next() does: the other ranks would still wait for this one in the background.
  void settle();

 private:
  bool fetch(Item& item);
  void fetch_ahead();

  Source& source_;
  Trainer& trainer_;
  balance::Balancer* balancer_;
  int64_t step_ = 0;  // that the newest batch is for
  std::array<Item, 2> items_;
  size_t current_ = 1;
  bool asked_ = false;  // there is, or will be, a batch that next() has not given out
  bool found_ = false;  // by the worker, in the item that is not current
  std::unique_ptr<data::BackgroundWorker> worker_;  // null: batches are made when asked for
};

}  // namespace segue::train
