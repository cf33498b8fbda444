// Numeric features of a batch: from float columns to rows that MLPs read.

#include "base/parallel.h"
#include "model/ranker.h"
#include "model/ranker_parts.h"

namespace segue::model {

namespace {

constexpr int64_t kRowsPerTask = 1 << 12;

/// Columns side by side, from row `first` on.
template <class T>
void put_rows(const std::vector<std::span<const float>>& columns, int64_t first,
              std::span<T> rows) {
  const size_t width = columns.size();
  base::parallel_for(std::ssize(columns.front()), kRowsPerTask, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      T* const row = rows.data() + static_cast<size_t>(first + i) * width;
      for (size_t f = 0; f < width; ++f) row[f] = columns[f][static_cast<size_t>(i)];
    }
  });
}

}  // namespace

void Ranker::prepare_numbers(const Batch& batch, RankerBatch& out) const {
  const bool candidates = config_.labels == LabelKind::kCandidates;
  const bool events = config_.numeric.in_tokens() || !candidates;
  const int64_t num_events = events ? out.layout.events() : 0;
  const int64_t rows = num_events + (candidates ? out.layout.candidates() : 0);
  out.first_label_number = candidates ? num_events : 0;
  const bool in_double = parameters_.values().dtype == DType::kF64;
  const int64_t total = rows * config_.numeric.width();
  if (in_double) out.numbers_double = out.block.add<double>(total);
  if (!in_double) out.numbers = out.block.add<float>(total);
  const auto put = [&](bool of_candidates, int64_t first) {
    std::vector<std::span<const float>> columns;
    for (const std::string& name : config_.numeric.columns) {
      columns.push_back(batch.float_column(of_candidates ? NumericConfig::of_candidate(name) : name)
                            .values.span());
    }
    if (in_double) put_rows(columns, first, out.block.span(out.numbers_double));
    if (!in_double) put_rows(columns, first, out.block.span(out.numbers));
  };
  if (events) put(false, 0);
  if (candidates) put(true, num_events);
}

/// [rows, numeric features]
Tensor Ranker::place_numbers(const RankerBatch& batch, const UploadBlock::Placed& placed) const {
  const bool in_double = parameters_.values().dtype == DType::kF64;
  const Tensor all = in_double ? placed.tensor(batch.numbers_double) : placed.tensor(batch.numbers);
  return all.reshape({all.size(0) / config_.numeric.width(), config_.numeric.width()});
}

}  // namespace segue::model
