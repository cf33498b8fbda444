// Numbers of events and candidates on their way into a batch.

#include <algorithm>

#include "base/error.h"
#include "data/sample/gather.h"

namespace segue::data {

void Gatherer::plan_numbers() {
  const SampleSchema& schema = store_.schema();
  if (schema.history_numbers.empty() && schema.candidate_numbers.empty()) return;
  const std::vector<std::string> names = count_names(schema);
  const auto places = [&](const std::vector<std::string>& wanted) {
    std::vector<size_t> found;
    for (const std::string& name : wanted) {
      const auto at = std::ranges::find(names, name);
      SEGUE_ASSERT(at != names.end(), "a number that samples do not have");
      found.push_back(static_cast<size_t>(at - names.begin()));
    }
    return found;
  };
  history_numbers_ = places(schema.history_numbers);
  candidate_numbers_ = places(schema.candidate_numbers);
  numbers_.emplace(log_);
}

void Gatherer::resize_history_numbers(int64_t events, Batch& batch) const {
  for (size_t f = 0; f < history_numbers_.size(); ++f) batch.float_columns[f].values.resize(events);
}

void Gatherer::move_history_numbers(int64_t begin, int64_t end, int64_t to, Batch& batch) const {
  for (size_t f = 0; f < history_numbers_.size(); ++f) {
    float* const values = batch.float_columns[f].values.data();
    std::copy(values + begin, values + end, values + to);
  }
}

void Gatherer::put_history_numbers(const Anchor& anchor, int64_t offset, int64_t to,
                                   Batch& batch) const {
  if (history_numbers_.empty()) return;
  const std::span<const float> row = numbers_->of_event(anchor.piece, anchor.user_start + offset);
  for (size_t f = 0; f < history_numbers_.size(); ++f) {
    batch.float_columns[f].values[to] = row[history_numbers_[f]];
  }
}

void Gatherer::put_history_numbers(int64_t user, const Candidate& question, int64_t to,
                                   Batch& batch) const {
  if (history_numbers_.empty()) return;
  const std::vector<float> row = numbers_of(user, question);
  for (size_t f = 0; f < history_numbers_.size(); ++f) {
    batch.float_columns[f].values[to] = row[history_numbers_[f]];
  }
}

/// Of a candidate that no event proposes.
std::vector<float> Gatherer::numbers_of(int64_t user, const Candidate& question) const {
  CountedEvent event;
  event.item = question.item;
  event.time = question.time;
  event.organic = question.organic;
  std::vector<float> row(numbers_->width());
  numbers_->of_candidate(user, event, row);
  return row;
}

void Gatherer::put_candidate_numbers(const Anchor& anchor, const Candidate& candidate,
                                     int64_t sample, Batch& batch) const {
  if (candidate_numbers_.empty()) return;
  std::vector<float> made;
  if (!candidate.stored) made = numbers_of(anchor.user, candidate);
  const std::span<const float> row =
      candidate.stored ? numbers_->of_event(anchor.piece, anchor.position) : made;
  for (size_t f = 0; f < candidate_numbers_.size(); ++f) {
    batch.float_columns[history_numbers_.size() + f].values[sample] = row[candidate_numbers_[f]];
  }
}

}  // namespace segue::data
