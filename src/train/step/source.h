#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "batch/batch.h"
#include "data/sample/gather.h"
#include "data/sample/loader.h"
#include "data/sample/sample_stream.h"
#include "data/store/event_store.h"
#include "data/store/store_verifier.h"
#include "train/run_config.h"
#include "train/step/held_out.h"

namespace segue::train {

/// Where the loop gets its batches: an event store in time order, or random samples. Positions name
/// batches, so that a run can begin anywhere; the same position always gives the same batch.
class Source {
 public:
  virtual ~Source() = default;

  virtual data::StreamPosition first() const = 0;
  /// The batch at `from` comes next.
  virtual void start(data::StreamPosition from) = 0;
  /// Behind the last batch.
  virtual data::StreamPosition end() const = 0;
  /// Nothing at the end. `batch` is exchanged: its memory is used again.
  virtual std::optional<data::BatchInfo> next(Batch& batch) = 0;

  /// Samples to evaluate on after (or while) training window `after`. prefetch_evaluation() says
  /// early that start_evaluation() will ask for them.
  virtual void prefetch_evaluation(int64_t after) = 0;
  virtual void start_evaluation(int64_t after) = 0;
  virtual std::optional<data::BatchInfo> next_evaluation(Batch& batch) = 0;

  /// Training samples from the first to the last window, wherever a run was resumed; 0: no end.
  virtual int64_t train_samples() const = 0;
  /// Samples of one evaluation; 0: not known before.
  virtual int64_t eval_samples() const = 0;
  /// True when everything that is read has been compared with its checksums, as far as that is this
  /// rank's to do. Error(kCorrupt) when something differs. Works on it for about so many `seconds`;
  /// 0 looks only.
  virtual bool verified(double /*seconds*/) { return true; }
  /// Of a store that grows: how many segments are open, and how many there are by now.
  virtual int64_t segments() const { return 0; }
  virtual int64_t segments_there() const { return 0; }
  /// Opens the data again, with so many segments; batches of before are gone.
  virtual void reopen(int64_t /*segments*/) {}
  /// What a person should know of these data and the config before training: see doubts_about().
  virtual std::vector<std::string> doubts() { return {}; }
  /// AUC of the true probabilities of the last evaluation's labels, where they are known.
  virtual std::optional<double> oracle_auc() { return std::nullopt; }
  /// What is known of the labels of that evaluation; null where nothing is, or nobody wants to
  /// know. prefetch_facts() says early that it will be asked for after `after`; they are found out
  /// in the background. facts() waits for that, facts_ready() so many seconds at most.
  virtual void prefetch_facts(int64_t /*after*/) {}
  virtual bool facts_ready(double /*seconds*/) { return true; }
  virtual const HeldOutFacts* facts() { return nullptr; }
  /// Whether all evaluations are on the same samples.
  virtual bool evaluates_the_same() const { return true; }
};

/// As `config.data` says. Opens the store, and makes its indexes when they are missing. A rank of
/// several gets its share of every batch. One rank of a machine verifies the store. Of its segments
/// the first `segments` are opened.
std::unique_ptr<Source> make_source(const RunConfig& config, int rank = 0, int ranks = 1,
                                    bool verifies = true, int64_t segments = data::kAllSegments);

/// The store of a run with its samples as the model wants them: every feature has a column, crosses
/// fit their tables, ids have rows, histories are cut to what the model takes. Makes indexes that
/// are missing.
struct RunStore {
  explicit RunStore(const RunConfig& config, int rank = 0, int ranks = 1, bool verifies = true,
                    int64_t segments = data::kAllSegments);

  data::EventStore events;
  data::Gatherer gatherer;
  data::SampleStream stream;
  /// Compare what samples are made from with its checksums, from now on: one for every piece of the
  /// log. None: another rank does.
  std::vector<std::unique_ptr<data::StoreVerifier>> verifiers;
};

}  // namespace segue::train
