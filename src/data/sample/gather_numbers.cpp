// Numbers of events and candidates on their way into a batch.

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "data/sample/gather.h"

namespace segue::data {

void Gatherer::plan_numbers() {
  const SampleSchema& schema = store_.schema();
  std::vector<std::string> names = count_names(schema);
  num_counts_ = names.size();
  for (const NumberConfig& number : schema.numbers) names.push_back(number.name);
  bool counts = false;
  const auto places = [&](const std::vector<std::string>& wanted) {
    std::vector<size_t> found;
    for (const std::string& name : wanted) {
      const auto at = std::ranges::find(names, name);
      SEGUE_ASSERT(at != names.end(), "a number that samples do not have");
      found.push_back(static_cast<size_t>(at - names.begin()));
      counts = counts || found.back() < num_counts_;
    }
    return found;
  };
  history_numbers_ = places(schema.history_numbers);
  candidate_numbers_ = places(schema.candidate_numbers);
  for (const size_t place : candidate_numbers_) {
    SEGUE_ASSERT(place < num_counts_ || !schema.numbers[place - num_counts_].outcome,
                 "an outcome is not known of a candidate");
  }
  if (counts) numbers_.emplace(log_);
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
  for (size_t f = 0; f < history_numbers_.size(); ++f) {
    batch.float_columns[f].values[to] =
        number_of(anchor, anchor.user_start + offset, history_numbers_[f]);
  }
}

void Gatherer::put_history_numbers(const Candidate& question, int64_t to, Batch& batch) const {
  for (size_t f = 0; f < history_numbers_.size(); ++f) {
    batch.float_columns[f].values[to] = number_of(question, history_numbers_[f]);
  }
}

float Gatherer::number_of(const Anchor& anchor, int64_t position, size_t place) const {
  if (place < num_counts_) return numbers_->of_event(anchor.piece, position)[place];
  return log_.piece(anchor.piece).number(place - num_counts_)[static_cast<size_t>(position)];
}

/// Of a candidate that no event proposes; its outcomes are not known.
float Gatherer::number_of(const Candidate& question, size_t place) const {
  if (place < num_counts_) return question.counts[place];
  const size_t number = place - num_counts_;
  const bool known = number < question.numbers.size() && !store_.schema().numbers[number].outcome;
  return known ? question.numbers[number] : std::numeric_limits<float>::quiet_NaN();
}

void Gatherer::put_candidate_numbers(const Anchor& anchor, const Candidate& candidate,
                                     int64_t sample, Batch& batch) const {
  for (size_t f = 0; f < candidate_numbers_.size(); ++f) {
    const size_t place = candidate_numbers_[f];
    batch.float_columns[history_numbers_.size() + f].values[sample] =
        candidate.stored ? number_of(anchor, anchor.position, place) : number_of(candidate, place);
  }
}

}  // namespace segue::data
