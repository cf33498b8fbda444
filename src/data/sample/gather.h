#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/config.h"
#include "batch/batch.h"
#include "data/numbers/event_numbers.h"
#include "data/store/event_log.h"
#include "data/store/pool_index.h"

namespace segue::data {

enum class HistoryStrategy { kInterleaved, kLastN };

struct GatherConfig {
  int64_t history_length = 4086;
  int64_t scan_window = 20000;
  HistoryStrategy strategy = HistoryStrategy::kInterleaved;
  int64_t max_history = 0;  // newest events kept (the model's budget); 0: no limit
  bool same_time = true;    // events of the anchor's time, where they stand before it, are history
  /// Above 0: anchors are the newest events of their sample's history, marked there as what is
  /// predicted, and at most so many events lie from the first of them to the last; samples have no
  /// candidates.
  int64_t sample_events = 0;

  bool labelled_events() const { return sample_events > 0; }

  void validate() const;  // Error(kConfig)
};
void describe(base::ConfigVisitor& v, GatherConfig& c);

/// A candidate that no event of the store proposes: would `user` take to `item` at `time`?
struct CandidateQuery {
  int64_t user = 0, item = 0;
  int64_t time = 0;
  int64_t organic = 1;
  std::vector<float> numbers = {};  // as SampleSchema::numbers; NaN, or none at all: missing
};

/// An empty batch with the columns of gathered samples; see Gatherer. Attributes have no values
/// yet.
Batch sample_columns(const SampleSchema& schema, bool labelled_events = false);

/// Turns anchors into samples. History of the anchor at event a of a user starting at s: scan range
/// [max(s, a - scan_window), a), strictly earlier in store order.
///   interleaved  of every pool the last max(1, history_length / pools) positions, united,
///   ascending last_n       the last history_length positions that belong to any pool
/// then the newest max_history. Without same_time, which labelled events need, a is the first event
/// of the user at its time.
/// Cost follows the events taken, not the scan window: positions come from the pool index. A user's
/// events of earlier pieces of the log come before those of later ones.
///
/// Groups and columns of a batch:
///   context     uid, the crosses, the user's attributes, dummy_query_time       one each
///   history     item_id, action_weight, action_timestamp                        oldest first
///   candidates  item_candidate_id, item_candidate_<attribute>, item_query_time, item_action_weight
/// Both query times are the time of the newest history event, or of the anchor when there is none;
/// the hour that crosses use is the anchor's. Attributes of the history follow from its items: they
/// are Batch::attributes, whose values are the store's. Numbers (SampleSchema::history_numbers,
/// candidate_numbers) are float columns: <name> of the history, item_candidate_<name> of
/// candidates; NaN where one is missing.
///
/// With labelled events the history of a sample is that of its first anchor, cut to what leaves
/// room for sample_events, then every event of a pool up to its last anchor and the anchors
/// themselves, whatever pools they are in: which events stand before one depends on nothing that
/// comes after it. A column event_label has the label of every anchor, -1 elsewhere. Crosses are
/// then columns of the history, each event has its own.
class Gatherer {
 public:
  /// Opens the pool indexes, which are made the first time. The store must live longer.
  Gatherer(const EventStore& store, const GatherConfig& config);

  /// Replaces the samples of `batch`, which has no columns yet or those of an earlier call.
  /// Allocates only while the batch has not seen as many events before. May be called from many
  /// threads with different batches. Error(kCorrupt) names the file when an anchor or an index does
  /// not fit the events. Does not touch global_samples.
  /// Sample i has the anchors from starts[i] up to starts[i + 1], counted from the first of
  /// `starts`, all of one user and of one piece of the log; no starts: one each.
  void fill(std::span<const int64_t> anchor_positions, std::span<const int64_t> sample_index,
            Batch& batch, std::span<const int64_t> starts = {}) const;

  /// The same for candidates that are not in the log; what the user did before that time is the
  /// history, the label is 0. Error(kOutOfRange) for a user without events.
  void fill(std::span<const CandidateQuery> questions, Batch& batch) const;

  const EventStore& store() const { return store_; }
  const GatherConfig& config() const { return config_; }
  const std::vector<PoolIndex>& pools() const { return pools_; }  // of every piece of the log
  const std::optional<EventNumbers>& numbers() const {
    return numbers_;
  }  // where samples have counts

 private:
  struct Cross {
    std::array<size_t, kMaxCrossKeys> keys{};  // into the values of a sample
    int num_keys = 0;
    uint64_t rows = 1, salt = 0;  // 0 rows: ids are whole hashes
  };
  /// A place in a piece: between events of a user.
  struct Anchor {
    size_t piece = 0;
    int64_t position = 0, user = 0, user_start = 0;
    std::span<const uint32_t> labelled;  // events before it there that are predicted, by offset
    int64_t offset() const { return position - user_start; }  // events of the user before it there
  };
  /// What may still be taken, from the anchor backwards.
  struct Budget {
    int64_t scan = 0;
    std::array<int64_t, kMaxPools> of_pool{};
  };
  struct Candidate {
    int64_t item = 0, time = 0, organic = 0, label = 0;
    bool stored = true;                                // it is the event at the anchor
    std::span<const float> numbers = {}, counts = {};  // else: what is known of it
  };

  void plan_crosses();
  void plan_numbers();
  /// What crosses of an event or candidate are made of.
  void cross_values(int64_t user, const Candidate& of, std::span<int64_t> values) const;
  static int64_t cross_id(const Cross& cross, std::span<const int64_t> values);
  /// Of a labelled event, as event `to` of the batch.
  void put_history_crosses(int64_t user, const Candidate& of, int64_t to, Batch& batch) const;
  void check_schema(const Batch& batch) const;
  Anchor locate(int64_t position) const;
  Anchor locate(const CandidateQuery& question) const;
  Anchor before(Anchor anchor, int64_t time) const;
  Candidate candidate_at(const Anchor& anchor) const;
  int64_t label_at(const EventStore& piece, size_t at) const;
  template <class Sample>
  void fill_samples(std::span<const int64_t> sample_index, Batch& batch, Sample sample) const;
  std::span<const uint32_t> take(size_t pool, const Anchor& anchor, const Budget& budget) const;
  void complete_masks(const Anchor& anchor, std::span<int64_t> keys) const;
  void resize_history_numbers(int64_t events, Batch& batch) const;
  void move_history_numbers(int64_t begin, int64_t end, int64_t to, Batch& batch) const;
  /// Of an event of the anchor's piece, or of a question, as event `to` of the batch.
  void put_history_numbers(const Anchor& anchor, int64_t offset, int64_t to, Batch& batch) const;
  void put_history_numbers(const Candidate& question, int64_t to, Batch& batch) const;
  float number_of(const Anchor& anchor, int64_t position, size_t place) const;
  float number_of(const Candidate& question, size_t place) const;
  void put_candidate_numbers(const Anchor& anchor, const Candidate& candidate, int64_t sample,
                             Batch& batch) const;
  int64_t append_history(const Anchor& anchor, int64_t used, Batch& batch) const;
  int64_t append_newest(const Anchor& anchor, int64_t most, int64_t used, Batch& batch) const;
  int64_t append_pieces(const Anchor& anchor, const Budget& budget, int64_t used,
                        Batch& batch) const;
  int64_t append_question(int64_t user, const Candidate& candidate, int64_t begin, int64_t used,
                          Batch& batch) const;
  void put_sample(const Anchor& anchor, const Candidate& candidate, int64_t query_time,
                  int64_t sample, Batch& batch) const;

  const EventStore& store_;
  EventLog log_;
  GatherConfig config_;
  std::vector<PoolIndex> pools_;
  size_t num_pools_ = 0;                 // that histories are made of
  std::vector<int64_t> action_of_mask_;  // [2^pools]: OR of the bits of the pools in the mask
  std::vector<int> history_columns_;
  std::vector<Cross> crosses_;
  std::optional<EventNumbers> numbers_;
  // Of the float columns of history and candidates: places in a row of counts, behind which come
  // the numbers of the log.
  std::vector<size_t> history_numbers_, candidate_numbers_;
  size_t num_counts_ = 0;
  Budget budget_;     // of a whole history
  int64_t kept_ = 0;  // events kept of all together
  uint64_t label_pools_ = 0;
  // Numbers of columns.
  int history_items_ = 0, history_actions_ = 0, history_times_ = 0;
  int history_labels_ = 0, history_crosses_ = 0;  // with labelled events
  int context_ = 0, candidates_ = 0;
};

}  // namespace segue::data
