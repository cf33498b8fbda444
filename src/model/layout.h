#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "batch/batch.h"
#include "model/config.h"

namespace segue::model {

/// Where every token of a batch stands, known from lengths alone. A sample's tokens are
///   [contextual][history, oldest first, one or two tokens an event][candidates]
struct BatchLayout {
  BatchLayout() = default;  // of no samples
  BatchLayout(const ModelConfig& config, const Batch& batch);

  int64_t samples() const { return static_cast<int64_t>(token_offsets.size()) - 1; }
  int64_t events() const { return history_offsets.back(); }
  int64_t candidates() const { return candidate_offsets.back(); }
  int64_t tokens() const { return token_offsets.back(); }
  int64_t history(int64_t b) const { return difference(history_offsets, b); }
  int64_t targets(int64_t b) const { return difference(candidate_offsets, b); }
  int64_t labels() const { return label_offsets.back(); }
  int64_t labels_of(int64_t b) const { return difference(label_offsets, b); }

  std::vector<int64_t> history_offsets{0};    // events, [samples + 1]
  std::vector<int64_t> candidate_offsets{0};  // all zero when every item is a label
  std::vector<int64_t> token_offsets{0};
  std::vector<int64_t> label_offsets{0};  // what is predicted: candidates, or events
  /// Which events are, where not all of them may be; empty: the first label is the first event, or
  /// the first candidate, and so on.
  std::vector<int64_t> labelled_events;
  /// Of any one sample; their sum is the reference's N.
  int64_t most_before_targets = 0, most_targets = 0;

 private:
  static int64_t difference(const std::vector<int64_t>& offsets, int64_t b) {
    return offsets[static_cast<size_t>(b) + 1] - offsets[static_cast<size_t>(b)];
  }
};

/// Consecutive whole samples of at most `max_tokens` tokens (a longer single sample stands alone),
/// cut from the lengths alone. No samples give no micro-batches.
struct MicroBatch {
  int64_t first = 0, count = 0;
};
std::vector<MicroBatch> cut_micro_batches(const BatchLayout& layout, int64_t max_tokens);

}  // namespace segue::model
