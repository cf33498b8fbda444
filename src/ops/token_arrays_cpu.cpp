#include "ops/token_arrays.h"

#include <algorithm>

#include "base/error.h"
#include "ops/cuda_forms.h"
#include "ops/row_loop.h"
#include "ops/token_rules.h"

namespace segue::ops {
namespace {

constexpr int64_t kTokensPerSequence = 1024;  // about: how sequences are shared out

/// Where its values are, on whichever device.
template <class T>
T* data_of(const Tensor& t) {
  if (!t) return nullptr;
  SEGUE_ASSERT(t.dtype == kDTypeOf<T> && t.rank == 1 && t.is_contiguous(),
               "token arrays are vectors of their type");
  return static_cast<T*>(t.data);
}

TokenFill fill_of(const TokenColumns& c, const TokenArrays& out) {
  TokenFill f{};
  f.samples = c.sample.size(0);
  for (const Tensor& offsets : {c.token_offsets, c.event_offsets, c.candidate_offsets}) {
    SEGUE_ASSERT(offsets.size(0) == f.samples + 1, "token arrays: offsets of every sample");
  }
  f.token_offsets = data_of<int64_t>(c.token_offsets);
  f.event_offsets = data_of<int64_t>(c.event_offsets);
  f.candidate_offsets = data_of<int64_t>(c.candidate_offsets);
  f.sample = data_of<int64_t>(c.sample);
  f.event_time = data_of<int64_t>(c.event_time);
  f.candidate_time = data_of<int64_t>(c.candidate_time);
  f.event_action = data_of<int64_t>(c.event_action);
  f.item = data_of<int32_t>(c.item);
  f.row_of_item = data_of<int32_t>(c.row_of_item);
  f.event_label = data_of<int32_t>(c.event_label);
  f.first_label = c.first_label;
  f.events = c.event_time.size(0);
  SEGUE_ASSERT(
      c.event_action.size(0) == f.events && c.item.size(0) == f.events + c.candidate_time.size(0),
      "token arrays: columns of equal lengths");
  f.contextual = c.contextual;
  f.first_context_row = c.first_context_row;
  f.tokens_per_event = c.interleaved ? 2 : 1;
  f.action_codes = c.action_codes;
  if (c.action_codes) {
    SEGUE_ASSERT(c.action_weights.size() <= kMostActionWeights, "token arrays: too many actions");
    std::ranges::copy(c.action_weights, f.weights);
    f.num_weights = static_cast<int>(c.action_weights.size());
  }
  f.events_are_labels = c.events_are_labels;
  f.item_with_action = c.item_with_action;
  f.causal = c.causal;
  f.position_buckets = c.position_buckets;
  f.time_bucket_seconds = static_cast<float>(c.time_bucket_seconds);
  f.last_time_bucket = static_cast<float>(c.time_buckets - 1);
  f.row = data_of<int32_t>(out.row);
  f.action = data_of<int32_t>(out.action);
  f.position = data_of<int32_t>(out.position);
  f.time = data_of<int32_t>(out.time);
  f.token_sample = data_of<int32_t>(out.sample);
  f.token = data_of<int32_t>(out.token);
  f.label_row = data_of<int32_t>(out.label_row);
  f.label_sample = data_of<int32_t>(out.label_sample);
  f.label_token = data_of<int32_t>(out.label_token);
  f.label_time = data_of<int64_t>(out.label_time);
  return f;
}

}  // namespace

TokenArrays take_token_arrays(const Exec& exec, int64_t tokens, int64_t labels, bool with_time) {
  TokenArrays a;
  for (Tensor* t : {&a.row, &a.action, &a.position, &a.sample, &a.token}) *t = exec.index({tokens});
  if (with_time) a.time = exec.index({tokens});
  for (Tensor* t : {&a.label_row, &a.label_sample, &a.label_token}) *t = exec.index({labels});
  a.label_time = exec.arena->tensor(DType::kI64, {labels});
  return a;
}

void fill_token_arrays(const Exec& exec, const TokenColumns& columns, const TokenArrays& out) {
  const TokenFill fill = fill_of(columns, out);
  if constexpr (kHasCuda) {
    if (exec.device.is_cuda()) return cuda::fill_token_arrays(exec, fill);
  }
  require_cpu(exec, "fill_token_arrays");
  if (fill.samples == 0) return;
  SEGUE_ASSERT(fill.token_offsets[fill.samples] == out.row.size(0),
               "token arrays: an element for every token");
  for_rows(fill.samples, kTokensPerSequence, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      const TokenFill::Sample s = fill.sample_at(b);
      for (int64_t t = 0; t < s.length; ++t) fill.fill(s, t);
    }
  });
}

}  // namespace segue::ops
