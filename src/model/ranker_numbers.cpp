// Numeric features of a batch: from float columns to rows that MLPs read.

#include <algorithm>

#include "base/parallel.h"
#include "model/ranker.h"
#include "model/ranker_parts.h"

namespace segue::model {

namespace {

constexpr int64_t kRowsPerTask = 1 << 12;

/// Numbers of a batch side by side, as rows of `width`.
struct NumberRows {
  NumberEncoder encoder;
  std::vector<std::span<const float>> columns;

  NumberRows(const Batch& batch, const std::vector<std::string>& names,
             const std::vector<NumberForm>& forms, bool of_candidates)
      : encoder(names, forms) {
    for (const std::string& name : names) {
      const std::string column = of_candidates ? NumericConfig::of_candidate(name) : name;
      columns.push_back(batch.float_column(column).values.span());
    }
  }
  /// Row i has, from number `first` on, what elements place(i) of the columns become.
  template <class T, class Place>
  void put(std::span<T> rows, int64_t width, int64_t first, const Place& place) const {
    if (columns.empty()) return;
    base::parallel_for(std::ssize(rows) / width, kRowsPerTask, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const size_t from = place(static_cast<size_t>(i));
        T* to = rows.data() + i * width + first;
        for (size_t f = 0; f < columns.size(); ++f) to = encoder.put(f, columns[f][from], to);
      }
    });
  }
};

}  // namespace

void Ranker::prepare_numbers(const Batch& batch, RankerBatch& out) const {
  const NumericConfig& numeric = config_.numeric;
  const bool candidates = config_.labels == LabelKind::kCandidates;
  const bool in_double = parameters_.values().dtype == DType::kF64;
  const auto add = [&](int64_t numbers) {
    RankerBatch::Numbers added;
    if (in_double) added.values_double = out.block.add<double>(numbers);
    if (!in_double) added.values = out.block.add<float>(numbers);
    return added;
  };
  /// f(rows [begin, end) of what was added)
  const auto with_rows = [&](const RankerBatch::Numbers& to, int64_t width, int64_t begin,
                             int64_t end, const auto& f) {
    const auto from = static_cast<size_t>(begin * width);
    const auto count = static_cast<size_t>((end - begin) * width);
    if (in_double) f(out.block.span(to.values_double).subspan(from, count));
    if (!in_double) f(out.block.span(to.values).subspan(from, count));
  };
  const auto itself = [](size_t i) { return i; };
  const BatchLayout& layout = out.layout;
  const std::vector<int64_t>& labelled = layout.labelled_events;
  const int64_t width = numeric.width();
  out.label_numbers = add(layout.labels() * width);
  with_rows(out.label_numbers, width, 0, layout.labels(), [&](auto rows) {
    NumberRows(batch, numeric.columns, numeric.forms, candidates)
        .put(rows, width, 0,
             [&](size_t i) { return labelled.empty() ? i : static_cast<size_t>(labelled[i]); });
  });
  if (!numeric.in_tokens()) return;
  const int64_t wide = numeric.token_width(), events = layout.events();
  out.token_numbers = add((events + layout.candidates()) * wide);
  with_rows(out.token_numbers, wide, 0, events, [&](auto rows) {
    NumberRows(batch, numeric.columns, numeric.forms, false).put(rows, wide, 0, itself);
    NumberRows(batch, numeric.outcomes, numeric.forms, false).put(rows, wide, width, itself);
  });
  if (!candidates) return;
  with_rows(out.token_numbers, wide, events, events + layout.candidates(), [&](auto rows) {
    std::ranges::fill(rows, 0);  // outcomes are missing
    NumberRows(batch, numeric.columns, numeric.forms, true).put(rows, wide, 0, itself);
  });
}

/// [rows, numeric features]
Tensor Ranker::place_numbers(const RankerBatch::Numbers& numbers, int64_t width,
                             const UploadBlock::Placed& placed) const {
  const bool in_double = parameters_.values().dtype == DType::kF64;
  const Tensor all =
      in_double ? placed.tensor(numbers.values_double) : placed.tensor(numbers.values);
  return all.reshape({all.size(0) / width, width});
}

}  // namespace segue::model
