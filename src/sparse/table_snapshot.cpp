#include "sparse/table_snapshot.h"

#include <utility>

#include <fmt/format.h>

#include "base/error.h"

namespace segue::sparse {

std::vector<int64_t> saved_integers(const SavedArrays& saved, const std::string& name,
                                    int64_t columns) {
  const std::optional<std::vector<int64_t>> shape = saved.shape(name);
  if (!shape) return {};
  const bool fits =
      columns == 1 ? shape->size() == 1 : shape->size() == 2 && (*shape)[1] == columns;
  if (!fits) {
    fail(ErrorCode::kCorrupt, fmt::format("`{}` of a table was saved as [{}], not as rows of {}",
                                          name, fmt::join(*shape, ", "), columns));
  }
  std::vector<int64_t> values(static_cast<size_t>(shape->front() * columns));
  saved.read(name, DType::kI64, 0, shape->front(), values.data());
  return values;
}

ArrayPart ArrayPart::whole(std::vector<int64_t> shape) {
  ArrayPart part;
  part.shape = std::move(shape);
  part.partition = {part.shape.empty() ? 1 : part.shape[0], 1};
  const int64_t columns = part.whole_columns();
  if (columns > 0) part.columns = {{0, columns}};
  return part;
}

ArrayPart ArrayPart::stack(const Tensor& value, int rank) {
  ArrayPart part = whole({value.sizes.begin(), value.sizes.begin() + value.rank});
  part.stacked = true;
  part.part = rank;
  return part;
}

int64_t ArrayPart::width() const {
  int64_t total = 0;
  for (const ColumnRange& range : columns) total += range.count;
  return total;
}

int64_t ArrayPart::whole_columns() const {
  int64_t count = 1;
  for (size_t i = 1; i < shape.size(); ++i) count *= shape[i];
  return count;
}

}  // namespace segue::sparse
