#include "train/checkpoint/checkpoint_part.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "base/parallel.h"

namespace segue::train {
namespace {

constexpr int64_t kChunkBytes = 1 << 20;

/// What keeps `ranges` from being [0, columns), each column once.
std::string column_problem(std::vector<ColumnRange> ranges, int64_t columns) {
  std::ranges::sort(ranges, {}, &ColumnRange::begin);
  int64_t end = 0;
  for (const ColumnRange& range : ranges) {
    if (range.count <= 0) return "has a column range without columns";
    if (range.begin < end) return fmt::format("has column {} twice", range.begin);
    if (range.begin > end) return fmt::format("lacks columns from {} on", end);
    if (range.count > columns - range.begin) {
      return fmt::format("has more than {} columns", columns);
    }
    end += range.count;
  }
  return end == columns ? std::string() : fmt::format("lacks columns from {} on", end);
}

}  // namespace

bool is_storable(std::span<const int64_t> shape) {
  constexpr int64_t kMostElements = int64_t{1} << 56;
  int64_t elements = 1;
  for (const int64_t size : shape) {
    if (size < 0 || __builtin_mul_overflow(elements, std::max<int64_t>(1, size), &elements) ||
        elements > kMostElements) {
      return false;
    }
  }
  return true;
}

std::string cover_problem(std::span<const ArrayPart> parts) {
  if (parts.empty()) return "is not there";
  const ArrayPart& first = parts.front();
  if (first.stacked) {
    const bool alike = std::ranges::all_of(parts, [&](const ArrayPart& part) {
      return part.stacked && part.shape.size() == first.shape.size() &&
             std::equal(part.shape.begin() + 1, part.shape.end(), first.shape.begin() + 1);
    });
    return alike ? std::string() : "has parts that belong to different wholes";
  }
  const int64_t row_parts = first.partition.parts;
  const int64_t rows = first.shape.empty() ? 1 : first.shape[0];
  if (row_parts < 1 || row_parts > static_cast<int64_t>(parts.size())) {
    return fmt::format("lacks some of {} parts of its rows", row_parts);
  }
  std::vector<std::vector<ColumnRange>> ranges(static_cast<size_t>(row_parts));
  for (const ArrayPart& part : parts) {
    if (part.stacked || part.shape != first.shape || part.partition.parts != row_parts ||
        part.partition.rows != rows || part.part < 0 || part.part >= row_parts) {
      return "has parts that belong to different wholes";
    }
    std::vector<ColumnRange>& of_rows = ranges[static_cast<size_t>(part.part)];
    of_rows.insert(of_rows.end(), part.columns.begin(), part.columns.end());
  }
  for (size_t p = 0; p < ranges.size(); ++p) {
    const std::string problem = column_problem(ranges[p], first.whole_columns());
    if (problem.empty()) continue;
    return fmt::format("{} (in part {} of {} of its rows)", problem, p, row_parts);
  }
  return {};
}

PartReader::PartReader(std::span<const StoredPart> from, const ArrayPart& to, int64_t element_bytes)
    : to_(to), row_bytes_(to.width() * element_bytes), partition_(from.front().part.partition) {
  sources_.resize(static_cast<size_t>(partition_.parts));
  for (const StoredPart& stored : from) {
    const ArrayPart& part = stored.part;
    if (part.partition.parts == to.partition.parts && part.part == to.part &&
        part.columns == to.columns) {
      same_ = &stored;
    }
    Source source{&stored, part.width() * element_bytes, {}};
    int64_t from_column = 0;
    for (const ColumnRange& have : part.columns) {
      int64_t to_column = 0;
      for (const ColumnRange& want : to.columns) {
        const int64_t begin = std::max(have.begin, want.begin);
        const int64_t end = std::min(have.begin + have.count, want.begin + want.count);
        if (begin < end) {
          source.moves.push_back({(from_column + begin - have.begin) * element_bytes,
                                  (to_column + begin - want.begin) * element_bytes,
                                  (end - begin) * element_bytes});
        }
        to_column += want.count;
      }
      from_column += have.count;
    }
    if (!source.moves.empty()) {
      sources_[static_cast<size_t>(part.part)].push_back(std::move(source));
    }
  }
}

void PartReader::copy_row(int64_t slot, std::byte* out) const {
  const int64_t row = to_.partition.row_of(to_.part, slot);
  const int64_t stored_slot = partition_.slot_of(row);
  for (const Source& source : sources_[static_cast<size_t>(partition_.part_of(row))]) {
    const std::vector<StoredPart::Run>& runs = source.stored->runs;
    const auto after =
        std::ranges::upper_bound(runs, stored_slot, {}, &StoredPart::Run::first_slot);
    const StoredPart::Run& run = *std::prev(after);
    const std::byte* const in =
        run.bytes.data() + (stored_slot - run.first_slot) * source.row_bytes;
    for (const Move& move : source.moves) {
      std::memcpy(out + move.to, in + move.from, static_cast<size_t>(move.bytes));
    }
  }
}

void PartReader::read(int64_t first, int64_t count, std::byte* out) const {
  SEGUE_ASSERT(first >= 0 && count >= 0 && first + count <= to_.rows(), "rows outside of the part");
  if (row_bytes_ == 0) return;
  const int64_t grain = std::max<int64_t>(1, kChunkBytes / row_bytes_);
  base::parallel_for(count, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) copy_row(first + i, out + i * row_bytes_);
  });
}

WholeReader::WholeReader(std::span<const StoredPart> from, const std::vector<int64_t>& shape,
                         int64_t element_bytes)
    : whole_(ArrayPart::whole(shape)),
      from_(from),
      element_bytes_(element_bytes),
      row_bytes_(whole_.width() * element_bytes) {
  if (from.empty() || !from.front().part.stacked) return;
  int64_t first = 0;
  for (const StoredPart& stored : from) {
    for (const StoredPart::Run& run : stored.runs) {
      if (run.bytes.empty()) continue;
      runs_.push_back({first + run.first_slot, run.bytes});
    }
    first += stored.part.rows();
  }
}

void WholeReader::read(int64_t first, int64_t count, std::byte* out) const {
  SEGUE_ASSERT(first >= 0 && count >= 0 && first + count <= rows(), "rows outside of the array");
  if (row_bytes_ == 0 || count == 0) return;
  if (!from_.front().part.stacked) {
    PartReader(from_, whole_, element_bytes_).read(first, count, out);
    return;
  }
  auto run = std::prev(std::ranges::upper_bound(runs_, first, {}, &StoredPart::Run::first_slot));
  while (count > 0) {
    const int64_t skip = first - run->first_slot;
    const int64_t some = std::min(count, std::ssize(run->bytes) / row_bytes_ - skip);
    std::memcpy(out, run->bytes.data() + skip * row_bytes_, static_cast<size_t>(some * row_bytes_));
    out += some * row_bytes_;
    first += some;
    count -= some;
    ++run;
  }
}

}  // namespace segue::train
