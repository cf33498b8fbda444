#pragma once

#include <array>
#include <future>
#include <optional>

#include "balance/exchange.h"
#include "batch/batch.h"
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
  bool ahead_ = false;
  std::array<Item, 2> items_;
  size_t current_ = 1;
  std::optional<bool> found_;  // what came of it, when it is settled
  std::future<bool> pending_;  // into the item that is not current; its end waits for the thread
};

}  // namespace segue::train
