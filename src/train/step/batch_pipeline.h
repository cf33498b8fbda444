#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <future>
#include <limits>
#include <memory>
#include <optional>

#include "balance/exchange.h"
#include "base/background.h"
#include "batch/batch.h"
#include "data/sample/loader.h"
#include "model/model.h"
#include "train/plan/memory_plan.h"
#include "train/step/trainer.h"

namespace segue::train {

/// Batches ready for a step or a prediction, made in two stages that each have a thread. While
/// batch i is computed, batch i + 1 is prepared (layout, distinct ids and their exchange, indices,
/// the copy to a GPU) and batch i + 2 is fetched and balanced between ranks. Each stage has a group
/// of ranks of its own and takes batches in order, so that all ranks do the same in each group.
/// With the pipeline off (on the CPU by default, which has nothing to spare) both happen when a
/// batch is asked for. The batches are the same either way.
class BatchPipeline {
 public:
  struct Item {
    Batch batch;
    data::BatchInfo delivery;
    balance::BalanceStats balance;
    model::PreparedBatch* prepared = nullptr;
    double prepare_seconds = 0;  // what preparing it took, on whichever thread
  };
  static constexpr int64_t kNoEnd = std::numeric_limits<int64_t>::max();
  /// Fills the next batch, whose memory is used again; nothing at the end.
  using Fill = std::function<std::optional<data::BatchInfo>(Batch&)>;

  /// Whether batches are made in the background.
  static bool runs_ahead(Pipeline pipeline, Device device) {
    return pipeline == Pipeline::kOn || (pipeline == Pipeline::kAuto && device.is_cuda());
  }

  /// Of batches that are trained, or evaluated.
  BatchPipeline(Trainer& trainer, sparse::Mode mode, Pipeline pipeline,
                balance::Balancer* balancer = nullptr);

  /// Batches are those of `fill` from now on.
  void start(Fill fill);
  /// Null at the end. Valid until the next call. What went wrong with a batch in the background is
  /// thrown when that batch is asked for. `more`: how many will be asked for after it, at most;
  /// none beyond them is looked at.
  Item* next(int64_t more = kNoEnd);
  /// Nothing goes on in the background until the next call: another batch may be prepared. What
  /// went wrong there is thrown at once: the other ranks would still wait for this one.
  void settle();

 private:
  bool fetch(int64_t number);
  bool prepare(int64_t number);
  /// Batches before `end` are asked of a stage.
  void ask_fetched(int64_t end);
  void ask_prepared(int64_t end);
  Item& item(int64_t number) { return items_[static_cast<size_t>(number) % items_.size()]; }

  Trainer& trainer_;
  sparse::Mode mode_;
  balance::Balancer* balancer_;
  Fill fill_;
  // Batches are numbered from start(). One is computed, one prepared, one fetched; two are on a
  // GPU.
  std::array<Item, 3> items_;
  std::array<std::unique_ptr<model::PreparedBatch>, kBatchesOnDevice> prepared_;
  std::array<std::shared_future<bool>, 3> fetched_;  // whether there is such a batch
  std::array<std::shared_future<bool>, kBatchesOnDevice> ready_;
  int64_t first_step_ = 0;  // for messages about a peer
  int64_t given_ = 0, fetch_asked_ = 0, prepare_asked_ = 0;
  bool ended_ = false;  // seen by fetch()
  // Null: batches are made when asked for. The one that the other waits for is stopped first.
  std::unique_ptr<base::BackgroundWorker> preparer_, fetcher_;
};

/// For the batches of this trainer's ranks; null where there is nothing to balance.
std::unique_ptr<balance::Balancer> make_balancer(const RunConfig& config, const Trainer& trainer);

}  // namespace segue::train
