#pragma once

#include <cmath>
#include <cstdint>

#include "base/bf16.h"
#include "base/error.h"
#include "ops/token_arrays.h"

// What CPU and GPU do alike with one token, so that the indices are the same.

namespace segue::ops {

/// See position_indices; `high` is the first target, or the length.
SEGUE_HOST_DEVICE inline int32_t position_of(int64_t t, int64_t high, int64_t contextual,
                                             int64_t buckets) {
  const int64_t position = t < contextual ? t : high - (t < high ? t : high) + contextual;
  return static_cast<int32_t>(position < buckets ? position : buckets - 1);
}

/// Counted from the front: the same whatever follows.
SEGUE_HOST_DEVICE inline int32_t front_position_of(int64_t t, int64_t buckets) {
  return static_cast<int32_t>(t < buckets ? t : buckets - 1);
}

/// See time_indices.
SEGUE_HOST_DEVICE inline int32_t time_bucket_of(int64_t age, float bucket_seconds, float last) {
  const auto seconds = static_cast<float>(age);
  const float root = std::sqrt((seconds < 1e-6f ? 1e-6f : seconds) / bucket_seconds);
  // Clamped before the conversion: no age overflows an int32.
  return static_cast<int32_t>(last < root ? last : root);
}

/// TokenColumns and TokenArrays as pointers.
struct TokenFill {
  const int64_t *token_offsets, *event_offsets, *candidate_offsets, *sample;
  const int64_t *event_time, *candidate_time, *event_action;
  const int32_t *item, *row_of_item, *event_label;
  int64_t samples, events, first_label;
  int64_t contextual, first_context_row, tokens_per_event;
  int64_t weights[kMostActionWeights];
  int num_weights;
  bool action_codes, events_are_labels, item_with_action, causal;
  int64_t position_buckets;
  float time_bucket_seconds, last_time_bucket;
  int32_t *row, *action, *position, *time, *token_sample, *token;
  int32_t *label_row, *label_sample, *label_token;
  int64_t* label_time;

  /// Where the tokens of one sample come from.
  struct Sample {
    int64_t number;  // among those that are meant
    int64_t first, length;
    int64_t first_event, first_candidate;
    int64_t targets_at;  // its first target
    int64_t query;       // time of its last token
  };

  SEGUE_HOST_DEVICE Sample sample_at(int64_t b) const {
    Sample s{};
    s.number = b;
    s.first = token_offsets[b];
    s.length = token_offsets[b + 1] - s.first;
    s.first_event = event_offsets[b];
    s.first_candidate = candidate_offsets[b];
    s.targets_at = contextual + (event_offsets[b + 1] - s.first_event) * tokens_per_event;
    s.query = s.length > 0 ? time_of(s, s.length - 1) : 0;
    return s;
  }

  SEGUE_HOST_DEVICE int64_t time_of(const Sample& s, int64_t t) const {
    if (t < contextual) return 0;
    if (t < s.targets_at) return event_time[s.first_event + (t - contextual) / tokens_per_event];
    return candidate_time[s.first_candidate + t - s.targets_at];
  }

  SEGUE_HOST_DEVICE int32_t code_of(int64_t bits) const {
    int32_t code = 0;
    for (int k = 0; k < num_weights; ++k) code |= (bits & weights[k]) > 0 ? 1 << k : 0;
    return code;
  }

  /// Seconds between the event of token `t`, which is at `when`, and the one before it.
  SEGUE_HOST_DEVICE int64_t since_last_event(const Sample& s, int64_t t, int64_t when) const {
    const int64_t before = t - tokens_per_event;
    return before < contextual ? 0 : when - time_of(s, before);
  }

  /// Token `t` of its sample.
  SEGUE_HOST_DEVICE void fill(const Sample& s, int64_t t) const {
    const int64_t to = s.first + t;
    const int64_t when = time_of(s, t);
    const auto number = static_cast<int32_t>(sample[s.number]);
    int64_t label = -1;
    int32_t row_index = -1, action_index = -1;
    if (t < contextual) {
      row_index = static_cast<int32_t>(first_context_row + s.number * contextual + t);
    } else if (t < s.targets_at) {
      const int64_t e = s.first_event + (t - contextual) / tokens_per_event;
      const bool is_item = (t - contextual) % tokens_per_event == 0;
      if (is_item || item_with_action) row_index = row_of_item[item[e]];
      // A token that is asked for an action must not carry it: it has the one before.
      const int64_t done = tokens_per_event == 1 && events_are_labels ? e - 1 : e;
      if ((tokens_per_event == 1 || !is_item) && done >= s.first_event) {
        action_index = action_codes ? code_of(event_action[done]) : static_cast<int32_t>(done);
      }
      if (events_are_labels && is_item) {
        label = event_label == nullptr ? e - event_offsets[0]
                : event_label[e] < 0   ? -1
                                       : event_label[e] - first_label;
      }
    } else {
      const int64_t c = s.first_candidate + t - s.targets_at;
      row_index = row_of_item[item[events + c]];
      if (tokens_per_event == 1) {
        action_index = action_codes ? 1 << num_weights : static_cast<int32_t>(events + c);
      }
      if (!events_are_labels) label = c - candidate_offsets[0];
    }
    row[to] = row_index;
    action[to] = action_index;
    position[to] = causal ? front_position_of(t, position_buckets)
                          : position_of(t, s.targets_at, contextual, position_buckets);
    if (time != nullptr) {
      const int64_t age = causal ? since_last_event(s, t, when) : s.query - when;
      time[to] = time_bucket_of(age, time_bucket_seconds, last_time_bucket);
    }
    token_sample[to] = number;
    token[to] = static_cast<int32_t>(t);
    if (label < 0) return;
    label_row[label] = static_cast<int32_t>(to);
    label_sample[label] = number;
    label_token[label] = static_cast<int32_t>(t);
    label_time[label] = when;
  }
};

}  // namespace segue::ops
