// Numeric features of a batch: from float columns to rows that MLPs read.

#include "base/parallel.h"
#include "model/ranker.h"
#include "model/ranker_parts.h"

namespace segue::model {

namespace {

constexpr int64_t kRowsPerTask = 1 << 12;

using Columns = std::vector<std::span<const float>>;

/// Columns side by side: row i is their element place(i).
template <class T, class Place>
void put_rows(const Columns& columns, std::span<T> rows, const Place& place) {
  const size_t width = columns.size();
  const auto count = static_cast<int64_t>(rows.size() / width);
  base::parallel_for(count, kRowsPerTask, [&](int64_t begin, int64_t end) {
    for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
      const size_t from = place(i);
      for (size_t f = 0; f < width; ++f) rows[i * width + f] = columns[f][from];
    }
  });
}

}  // namespace

void Ranker::prepare_numbers(const Batch& batch, RankerBatch& out) const {
  const bool candidates = config_.labels == LabelKind::kCandidates;
  const auto columns_of = [&](bool of_candidates) {
    Columns columns;
    for (const std::string& name : config_.numeric.columns) {
      const std::string column = of_candidates ? NumericConfig::of_candidate(name) : name;
      columns.push_back(batch.float_column(column).values.span());
    }
    return columns;
  };
  const int64_t width = config_.numeric.width();
  const bool in_double = parameters_.values().dtype == DType::kF64;
  const auto add = [&](int64_t rows) {
    RankerBatch::Numbers numbers;
    if (in_double) numbers.values_double = out.block.add<double>(rows * width);
    if (!in_double) numbers.values = out.block.add<float>(rows * width);
    return numbers;
  };
  /// Rows [first, first + count) of what was added.
  const auto put = [&](const RankerBatch::Numbers& to, int64_t first, int64_t count,
                       const Columns& columns, const auto& place) {
    const auto begin = static_cast<size_t>(first * width), n = static_cast<size_t>(count * width);
    if (in_double) put_rows(columns, out.block.span(to.values_double).subspan(begin, n), place);
    if (!in_double) put_rows(columns, out.block.span(to.values).subspan(begin, n), place);
  };
  const auto itself = [](size_t i) { return i; };
  const BatchLayout& layout = out.layout;
  const std::vector<int64_t>& labelled = layout.labelled_events;
  out.label_numbers = add(layout.labels());
  put(out.label_numbers, 0, layout.labels(), columns_of(candidates),
      [&](size_t i) { return labelled.empty() ? i : static_cast<size_t>(labelled[i]); });
  if (!config_.numeric.in_tokens()) return;
  out.token_numbers = add(layout.events() + layout.candidates());
  put(out.token_numbers, 0, layout.events(), columns_of(false), itself);
  if (candidates) {
    put(out.token_numbers, layout.events(), layout.candidates(), columns_of(true), itself);
  }
}

/// [rows, numeric features]
Tensor Ranker::place_numbers(const RankerBatch::Numbers& numbers,
                             const UploadBlock::Placed& placed) const {
  const bool in_double = parameters_.values().dtype == DType::kF64;
  const Tensor all =
      in_double ? placed.tensor(numbers.values_double) : placed.tensor(numbers.values);
  return all.reshape({all.size(0) / config_.numeric.width(), config_.numeric.width()});
}

}  // namespace segue::model
