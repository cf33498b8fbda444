#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "train/run_config.h"
#include "train/step/metrics.h"
#include "train/step/source.h"
#include "train/step/trainer.h"

namespace segue::train {

/// A trained model: the config of its run and the state of one of its checkpoints.
struct TrainedModel {
  RunConfig config;
  std::unique_ptr<Trainer> trainer;
  int64_t step = 0;
  std::string checkpoint;  // path
  /// The newest window that was trained; -1 where none was, or where `sets` say that samples come
  /// from elsewhere or are cut in other windows.
  int64_t trained_window = -1;
  bool new_ids = false;  // its store may have ids that it does not know, which are without rows
};

/// `path` is a checkpoint, or a run, of which the newest good checkpoint is taken. `sets` are
/// overrides such as "data.store=PATH"; the model itself cannot change. Error(kConfig) where ids
/// have other numbers in the store than when the checkpoint was saved: see store_record.h. Ids that
/// came since and are beyond the rows of a static table read as zeros.
TrainedModel open_model(const std::string& path, const std::vector<std::string>& sets = {});

/// Samples of an event store for a trained model.
class StoreScorer {
 public:
  /// Error(kInvalidArgument) for a config that names no store.
  explicit StoreScorer(const RunConfig& config);
  /// The store of the model; warns of new ids without rows.
  explicit StoreScorer(const TrainedModel& model);

  const data::EventStore& store() const { return data_.events; }
  int64_t num_events() const { return data::EventLog(store()).num_events(); }
  /// The flag of a question, as events have it: 0 where the log has no such column, else 1, for an
  /// item that its user chose.
  int64_t organic() const { return organic_; }

  /// Anchors of a window, or of what the run evaluates on at its end, by event position.
  /// Error(kOutOfRange) for a window that does not exist.
  std::vector<int64_t> anchors(std::optional<int64_t> window = {}) const;

  /// How many of the anchors of a window the model was trained on.
  int64_t trained(const TrainedModel& model, int64_t window,
                  std::span<const int64_t> positions) const;

  /// What is known of events beside their predictions.
  HeldOutFacts facts(std::span<const model::TaskConfig> tasks,
                     std::span<const int64_t> positions) const;
  /// AUC of the true probabilities at these anchors, from data::read_truth, where they are known.
  std::optional<double> oracle_auc(std::span<const int64_t> positions,
                                   const std::string& raw_folder = "") const;

  /// Calls `each` with the predictions of every batch, in order; batches are cut as in training.
  /// Returns when what was read is known to be as it was written; Error(kCorrupt) if it is not.
  using Each = std::function<void(const model::Pass& pass)>;
  void score(Trainer& trainer, std::span<const int64_t> positions, const Each& each) const;
  void score(Trainer& trainer, std::span<const data::CandidateQuery> questions,
             const Each& each) const;

 private:
  using Fill = std::function<void(size_t first, size_t count, Batch& batch)>;
  void score(Trainer& trainer, size_t samples, const Fill& fill, const Each& each) const;

  int64_t batch_size_ = 0, organic_ = 1;
  Pipeline pipeline_;
  RunStore data_;
};

/// Quality of the model's predictions at these anchors; `facts` of theirs may be null.
Evaluation evaluate(TrainedModel& model, const StoreScorer& scorer,
                    std::span<const int64_t> positions, const HeldOutFacts* facts = nullptr);

}  // namespace segue::train
