#include "model/layout.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/error.h"

namespace segue::model {

namespace {

/// Columns of one thing are read side by side.
[[noreturn]] void fail_lengths(const std::string& first, const std::string& column) {
  fail(ErrorCode::kInvalidArgument,
       fmt::format("column `{}` has other lengths than `{}`: the model reads both, value by value, "
                   "for the same events or candidates; name a column of the same group",
                   column, first));
}

void require_lengths_of(const std::string& first, const std::string& column, const Batch& batch) {
  if (std::ranges::equal(batch.offsets(column), batch.offsets(first))) return;
  fail_lengths(first, column);
}

void check_lengths(const ModelConfig& config, const Batch& batch) {
  const bool candidates = config.labels == LabelKind::kCandidates;
  for (const SequenceFeature& feature : config.additional) {
    for (const SequenceFeature& column : feature.columns()) {
      require_lengths_of(config.item.history, column.history, batch);
      if (candidates) require_lengths_of(config.item.candidate, column.candidate, batch);
    }
  }
  for (const ContextualFeature& feature : config.contextual) {
    const std::vector<std::string> columns = value_columns(feature.name, feature.values);
    for (const std::string& column : columns) require_lengths_of(columns.front(), column, batch);
  }
  const auto require_numbers = [&](const std::string& item, const std::string& column) {
    if (std::ranges::equal(batch.offsets(batch.float_column(column)), batch.offsets(item))) return;
    fail_lengths(item, column);
  };
  for (const std::string& column : config.numeric.columns) {
    if (config.numeric.in_tokens() || !candidates) require_numbers(config.item.history, column);
    if (candidates) {
      require_numbers(config.item.candidate, NumericConfig::of_candidate(column));
    }
  }
  for (const std::string& column : config.numeric.outcomes) {
    require_numbers(config.item.history, column);
  }
  for (const std::string& column : {config.action.history, config.history_timestamp}) {
    require_lengths_of(config.item.history, column, batch);
  }
  if (!config.event_label.empty()) {
    require_lengths_of(config.item.history, config.event_label, batch);
  }
  if (!candidates) return;
  for (const std::string& column : {config.candidate_label, config.candidate_timestamp}) {
    require_lengths_of(config.item.candidate, column, batch);
  }
}

}  // namespace

BatchLayout::BatchLayout(const ModelConfig& config, const Batch& batch) {
  check_lengths(config, batch);
  const int64_t n = batch.num_samples();
  const int64_t contextual = config.contextual_tokens();
  const int64_t per_event = config.tokens_per_event();
  const auto copy_offsets = [&](const std::string& column) {
    const std::span<const int64_t> offsets = batch.offsets(column);
    return std::vector<int64_t>(offsets.begin(), offsets.end());
  };
  history_offsets = copy_offsets(config.item.history);
  const bool at_targets = config.labels == LabelKind::kCandidates;
  candidate_offsets = at_targets ? copy_offsets(config.item.candidate)
                                 : std::vector<int64_t>(static_cast<size_t>(n) + 1, 0);
  token_offsets.assign(1, 0);
  for (int64_t b = 0; b < n; ++b) {
    const int64_t tokens = contextual + history(b) * per_event + targets(b);
    if (tokens > config.max_seq_len) {
      fail(ErrorCode::kInvalidArgument,
           fmt::format(
               "sample {} of the batch has {} tokens ({} contextual, {} history events, {} "
               "candidates), more than model.max_seq_len = {}; shorten the histories or raise it",
               b, tokens, contextual, history(b), targets(b), config.max_seq_len));
    }
    token_offsets.push_back(token_offsets.back() + tokens);
    most_before_targets = std::max(most_before_targets, tokens - targets(b));
    most_targets = std::max(most_targets, targets(b));
  }
  label_offsets = at_targets ? candidate_offsets : history_offsets;
  if (at_targets || config.event_label.empty()) return;
  const std::span<const int64_t> label = batch.column(config.event_label).values.span();
  for (int64_t b = 0; b < n; ++b) {
    const auto s = static_cast<size_t>(b);
    for (int64_t e = history_offsets[s]; e < history_offsets[s + 1]; ++e) {
      if (label[static_cast<size_t>(e)] >= 0) labelled_events.push_back(e);
    }
    label_offsets[s + 1] = std::ssize(labelled_events);
  }
}

std::vector<MicroBatch> cut_micro_batches(const BatchLayout& layout, int64_t max_tokens) {
  std::vector<MicroBatch> cuts;
  int64_t tokens = 0;
  for (int64_t b = 0; b < layout.samples(); ++b) {
    const int64_t length = layout.token_offsets[static_cast<size_t>(b) + 1] -
                           layout.token_offsets[static_cast<size_t>(b)];
    if (cuts.empty() || tokens + length > max_tokens) {
      cuts.push_back({b, 0});
      tokens = 0;
    }
    ++cuts.back().count;
    tokens += length;
  }
  return cuts;
}

}  // namespace segue::model
