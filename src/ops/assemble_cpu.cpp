#include "ops/assemble.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "ops/cuda_forms.h"
#include "ops/dropout_row.h"
#include "ops/row_loop.h"
#include "ops/segments.h"
#include "ops/token_rules.h"

namespace segue::ops {
namespace {

/// One table that tokens may read: row index[token], or nothing where that is -1 or the table is
/// absent.
template <class T>
class Source {
 public:
  Source(const char* name, const Tensor& table, const Tensor& index, int64_t tokens, int64_t dim)
      : name_(name), table_(table) {
    if (!table) return;
    SEGUE_ASSERT(table.rank == 2 && table.size(1) == dim, "assemble: width of a table");
    SEGUE_ASSERT(index.rank == 1 && index.size(0) == tokens, "assemble: one index per token");
    index_ = index.ptr<int32_t>();
  }

  const T* row(int64_t token) const {
    if (index_ == nullptr || index_[token] == -1) return nullptr;
    check_row(name_, token, index_[token], table_.size(0));
    return table_.row<T>(index_[token]);
  }

 private:
  const char* name_;
  const Tensor& table_;
  const int32_t* index_ = nullptr;
};

// Sequences are shared out as if they had this length; the real ones vary.
constexpr int64_t kTokensPerSequence = 1024;

int64_t rows_or_zero(const Tensor& t) { return t ? t.size(0) : 0; }

/// The row of content or context that `row_index` names.
template <class T>
const T* content_row(const AssembleParams& p, int64_t token) {
  const int64_t row = p.row_index.ptr<int32_t>()[token];
  if (row == -1) return nullptr;
  const int64_t content_rows = rows_or_zero(p.content);
  check_row("assemble: row_index", token, row, content_rows + rows_or_zero(p.context));
  return row < content_rows ? p.content.row<T>(row) : p.context.row<T>(row - content_rows);
}

}  // namespace

int64_t assemble_keep_bytes(const Exec& exec, const AssembleParams& p, int64_t dim) {
  if (!exec.device.is_cuda() || p.dropout.p <= 0) return 0;
  return (dim + 7) / 8;  // a byte for 8 columns; a CPU draws again
}

void assemble_forward(const Exec& exec, const AssembleParams& p, const Tensor& x,
                      const FollowingNorm& norm) {
  if constexpr (kHasCuda) {
    if (exec.device.is_cuda()) return cuda::assemble_forward(exec, p, x, norm);
  }
  require_cpu(exec, "assemble_forward");
  const int64_t tokens = x.size(0), dim = x.size(1);
  SEGUE_ASSERT(p.row_index.rank == 1 && p.row_index.size(0) == tokens,
               "assemble: one row_index per token");
  SEGUE_ASSERT(!p.content || p.content.size(1) == dim, "assemble: width of content");
  SEGUE_ASSERT(!p.context || p.context.size(1) == dim, "assemble: width of context");
  const DropoutRows dropout(exec, p.dropout);
  dispatch_activation(exec, x.dtype, [&](auto zero_value, auto round) {
    using T = decltype(zero_value);
    const Source<T> actions("assemble: action_index", p.action_rows, p.action_index, tokens, dim);
    const Source<T> positions("assemble: position_index", p.position_table, p.position_index,
                              tokens, dim);
    const Source<T> times("assemble: time_index", p.time_table, p.time_index, tokens, dim);
    const T scale = static_cast<T>(p.scale);
    for_rows(tokens, dim, [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        T* out = x.row<T>(t);
        const T* row = content_row<T>(p, t);
        const T* action = actions.row(t);
        const T* position = positions.row(t);
        const T* time = times.row(t);
        if (row != nullptr) {
          std::copy_n(row, dim, out);
        } else {
          std::fill_n(out, dim, T{0});
        }
        if (action != nullptr) {
          for (int64_t c = 0; c < dim; ++c) out[c] = round(out[c] + action[c]);
        }
        for (int64_t c = 0; c < dim; ++c) out[c] = round(out[c] * scale);
        if (position != nullptr && time != nullptr) {
          for (int64_t c = 0; c < dim; ++c) out[c] = round(out[c] + round(position[c] + time[c]));
        } else if (position != nullptr || time != nullptr) {
          const T* encoding = position != nullptr ? position : time;
          for (int64_t c = 0; c < dim; ++c) out[c] = round(out[c] + round(encoding[c]));
        }
        if (dropout.active()) dropout.apply(t, dim, out, out, round);
      }
    });
  });
  if (norm.y) norm_forward(exec, norm.params, x, norm.y, norm.stats);
}

void assemble_backward(const Exec& exec, const AssembleParams& p, const Tensor& dx,
                       const AssembleGradients& gradients) {
  if constexpr (kHasCuda) {
    if (exec.device.is_cuda()) return cuda::assemble_backward(exec, p, dx, gradients);
  }
  require_cpu(exec, "assemble_backward");
  const int64_t tokens = dx.size(0), dim = dx.size(1);
  const DropoutRows dropout(exec, p.dropout);
  const Arena::Mark mark(*exec.arena);
  dispatch_activation(exec, dx.dtype, [&](auto zero_value, auto round) {
    using T = decltype(zero_value);

    // Gradient of each token before dropout. Without dropout it is dx, and no copy is needed.
    const bool rounds = exec.rounds_to_bf16();
    Tensor g = dx;
    if (dropout.active() || rounds) {
      g = exec.arena->tensor(dx.dtype, {tokens, dim});
      for_rows(tokens, dim, [&](int64_t begin, int64_t end) {
        for (int64_t t = begin; t < end; ++t) {
          if (dropout.active()) {
            dropout.apply(t, dim, dx.row<T>(t), g.row<T>(t), round);
          } else {
            std::transform(dx.row<T>(t), dx.row<T>(t) + dim, g.row<T>(t), round);
          }
        }
      });
    }

    const auto sum_into = [&](const Tensor& table, const Tensor& index, double scale,
                              const char* name) {
      if (!table) return;
      SEGUE_ASSERT(index && index.size(0) == tokens && table.size(1) == dim,
                   "assemble: gradient without its index");
      const Arena::Mark scratch(*exec.arena);
      const Segments segments = make_segments(exec, index, table.size(0), name);
      sum_segments<T, T>(exec, segments, g, scale, [&table](int32_t d) { return table.row<T>(d); });
    };
    sum_into(gradients.position, p.position_index, 1, "assemble: position_index");
    sum_into(gradients.time, p.time_index, 1, "assemble: time_index");

    // The rest sees g * scale. Where every token's product is rounded it is made in place;
    // otherwise the factor is applied once to each sum.
    double scale = p.scale;
    if (rounds) {
      const T factor = static_cast<T>(p.scale);
      for_rows(tokens, dim, [&](int64_t begin, int64_t end) {
        for (int64_t t = begin; t < end; ++t) {
          T* row = g.row<T>(t);
          for (int64_t c = 0; c < dim; ++c) row[c] = round(row[c] * factor);
        }
      });
      scale = 1;
    }
    sum_into(gradients.action, p.action_index, scale, "assemble: action_index");
    if (!gradients.content && !gradients.context) return;
    const int64_t content_rows = rows_or_zero(p.content);
    const Segments segments = make_segments(
        exec, p.row_index, content_rows + rows_or_zero(p.context), "assemble: row_index");
    sum_segments<T, T>(exec, segments, g, scale, [&](int32_t d) -> T* {
      if (d < content_rows) return gradients.content ? gradients.content.row<T>(d) : nullptr;
      return gradients.context ? gradients.context.row<T>(d - content_rows) : nullptr;
    });
  });
}

void position_indices(const PositionParams& p, std::span<int32_t> out) {
  SEGUE_ASSERT(!p.offsets.empty(), "position_indices: offsets start with a zero");
  const auto sequences = static_cast<int64_t>(p.offsets.size()) - 1;
  const int64_t origin = p.offsets.front();
  SEGUE_ASSERT(static_cast<int64_t>(out.size()) == p.offsets.back() - origin,
               "position_indices: one index per token");
  SEGUE_ASSERT(p.num_targets.empty() || static_cast<int64_t>(p.num_targets.size()) == sequences,
               "position_indices: one number of targets per sequence");
  SEGUE_ASSERT(p.position_buckets > 0, "position_indices: the table has no rows");
  for_rows(sequences, kTokensPerSequence, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      const auto s = static_cast<size_t>(b);
      const int64_t length = p.offsets[s + 1] - p.offsets[s];
      const int64_t high = length - (p.num_targets.empty() ? 0 : p.num_targets[s]);
      int32_t* index = out.data() + (p.offsets[s] - origin);
      for (int64_t t = 0; t < length; ++t) {
        index[t] = position_of(t, high, p.contextual_len, p.position_buckets);
      }
    }
  });
}

void time_indices(const PositionParams& p, std::span<const int64_t> timestamps,
                  std::span<int32_t> out) {
  SEGUE_ASSERT(!p.offsets.empty(), "time_indices: offsets start with a zero");
  const auto sequences = static_cast<int64_t>(p.offsets.size()) - 1;
  const int64_t origin = p.offsets.front();
  SEGUE_ASSERT(static_cast<int64_t>(out.size()) == p.offsets.back() - origin &&
                   timestamps.size() == out.size(),
               "time_indices: one timestamp and one index per token");
  SEGUE_ASSERT(p.time_buckets > 0 && p.time_bucket_seconds > 0, "time_indices: no buckets");
  const auto seconds = static_cast<float>(p.time_bucket_seconds);
  const auto last = static_cast<float>(p.time_buckets - 1);
  for_rows(sequences, kTokensPerSequence, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      const int64_t first = p.offsets[static_cast<size_t>(b)] - origin;
      const int64_t length = p.offsets[static_cast<size_t>(b) + 1] - origin - first;
      if (length == 0) continue;
      const int64_t* time = timestamps.data() + first;
      int32_t* index = out.data() + first;
      const int64_t query = time[length - 1];
      for (int64_t t = 0; t < length; ++t)
        index[t] = time_bucket_of(query - time[t], seconds, last);
    }
  });
}

}  // namespace segue::ops
