#include "sparse/dedup.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/parallel.h"

namespace segue::sparse {
namespace {

using base::num_chunks;
using base::parallel_for;

// One chunk of work. The cut depends on the number of ids alone, and every pass is stable, so the
// result is the same on any number of threads.
constexpr int64_t kGrain = 1 << 15;
constexpr int kDigitBits = 11;  // a histogram of 2048 counters stays in the first-level cache
constexpr int64_t kDigits = 1 << kDigitBits;

int bits_for(uint64_t largest) { return std::bit_width(largest); }

/// An id and its place in the input, in one word when both fit: half the traffic of a pair.
struct Packed {
  uint64_t word = 0;
  static Packed make(uint64_t key, uint64_t place, int place_bits) {
    return {key << place_bits | place};
  }
  uint64_t key(int place_bits) const { return word >> place_bits; }
  int64_t place(int place_bits) const {
    return static_cast<int64_t>(word & ((uint64_t{1} << place_bits) - 1));
  }
};

struct Pair {
  uint64_t id = 0;
  int32_t at = 0;
  static Pair make(uint64_t key, uint64_t place, int) { return {key, static_cast<int32_t>(place)}; }
  uint64_t key(int) const { return id; }
  int64_t place(int) const { return at; }
};

/// Stable sort by key, least significant digit first. `other` is scratch of the same size; the
/// sorted records end up in `records`.
template <class Record>
void radix_sort(std::vector<Record>& records, std::vector<Record>& other, int key_bits,
                int place_bits) {
  const auto n = static_cast<int64_t>(records.size());
  const int passes = (key_bits + kDigitBits - 1) / kDigitBits;
  std::vector<int64_t> counts(static_cast<size_t>(num_chunks(n, kGrain) * kDigits));
  const auto counts_of = [&](int64_t begin) { return counts.data() + begin / kGrain * kDigits; };

  for (int pass = 0; pass < passes; ++pass) {
    const int shift = pass * kDigitBits;
    const auto digit = [=](const Record& r) {
      return static_cast<int64_t>(r.key(place_bits) >> shift) & (kDigits - 1);
    };
    parallel_for(n, kGrain, [&](int64_t begin, int64_t end) {
      int64_t* count = counts_of(begin);
      std::fill_n(count, kDigits, 0);
      for (int64_t i = begin; i < end; ++i) ++count[digit(records[static_cast<size_t>(i)])];
    });
    // Counts become starts: all records of a digit lie together, those of earlier chunks first.
    int64_t start = 0;
    for (int64_t d = 0; d < kDigits; ++d) {
      for (int64_t begin = 0; begin < n; begin += kGrain) {
        start += std::exchange(counts_of(begin)[d], start);
      }
    }
    parallel_for(n, kGrain, [&](int64_t begin, int64_t end) {
      int64_t* next = counts_of(begin);
      for (int64_t i = begin; i < end; ++i) {
        const Record& r = records[static_cast<size_t>(i)];
        other[static_cast<size_t>(next[digit(r)]++)] = r;
      }
    });
    records.swap(other);
  }
}

/// Numbers the runs of equal keys in sorted `records`: fills values, and inverse at every place.
template <class Record>
void number_runs(const std::vector<Record>& records, int place_bits, uint64_t smallest,
                 Distinct& out) {
  const auto n = static_cast<int64_t>(records.size());
  const auto record = [&](int64_t i) -> const Record& { return records[static_cast<size_t>(i)]; };
  const auto starts_run = [&](int64_t i) {
    return i == 0 || record(i).key(place_bits) != record(i - 1).key(place_bits);
  };
  std::vector<int64_t> first_run(static_cast<size_t>(num_chunks(n, kGrain)));
  parallel_for(n, kGrain, [&](int64_t begin, int64_t end) {
    int64_t runs = 0;
    for (int64_t i = begin; i < end; ++i) runs += starts_run(i) ? 1 : 0;
    first_run[static_cast<size_t>(begin / kGrain)] = runs;
  });
  int64_t total = 0;
  for (int64_t& runs : first_run) total += std::exchange(runs, total);

  out.values.resize(total);
  parallel_for(n, kGrain, [&](int64_t begin, int64_t end) {
    int64_t run = first_run[static_cast<size_t>(begin / kGrain)] - 1;
    for (int64_t i = begin; i < end; ++i) {
      if (starts_run(i)) {
        out.values[++run] = static_cast<int64_t>(record(i).key(place_bits) + smallest);
      }
      out.inverse[record(i).place(place_bits)] = static_cast<int32_t>(run);
    }
  });
}

struct Range {
  int64_t smallest = std::numeric_limits<int64_t>::max();
  int64_t largest = std::numeric_limits<int64_t>::min();
  int64_t count = 0;
};

/// Range of the ids that take part, and in `first` where each chunk's part of the records starts.
Range range_of(std::span<const int64_t> ids, bool skip_negative, std::vector<int64_t>& first) {
  const auto n = static_cast<int64_t>(ids.size());
  std::vector<Range> parts(static_cast<size_t>(num_chunks(n, kGrain)));
  parallel_for(n, kGrain, [&](int64_t begin, int64_t end) {
    Range r;
    for (int64_t i = begin; i < end; ++i) {
      const int64_t id = ids[static_cast<size_t>(i)];
      if (skip_negative && id < 0) continue;
      r.smallest = std::min(r.smallest, id);
      r.largest = std::max(r.largest, id);
      ++r.count;
    }
    parts[static_cast<size_t>(begin / kGrain)] = r;
  });
  Range all;
  for (const Range& part : parts) {
    first.push_back(all.count);
    all.smallest = std::min(all.smallest, part.smallest);
    all.largest = std::max(all.largest, part.largest);
    all.count += part.count;
  }
  return all;
}

template <class Record>
void sort_and_number(std::span<const int64_t> ids, bool skip_negative, const Range& range,
                     std::span<const int64_t> first, int key_bits, int place_bits, Distinct& out) {
  const auto smallest = static_cast<uint64_t>(range.smallest);
  std::vector<Record> records(static_cast<size_t>(range.count));
  parallel_for(static_cast<int64_t>(ids.size()), kGrain, [&](int64_t begin, int64_t end) {
    auto to = static_cast<size_t>(first[static_cast<size_t>(begin / kGrain)]);
    for (int64_t i = begin; i < end; ++i) {
      const int64_t id = ids[static_cast<size_t>(i)];
      if (skip_negative && id < 0) {
        out.inverse[i] = -1;
        continue;
      }
      records[to++] =
          Record::make(static_cast<uint64_t>(id) - smallest, static_cast<uint64_t>(i), place_bits);
    }
  });
  std::vector<Record> scratch(records.size());
  radix_sort(records, scratch, key_bits, place_bits);
  number_runs(records, place_bits, smallest, out);
}

}  // namespace

Distinct distinct(std::span<const int64_t> ids, bool skip_negative) {
  SEGUE_ASSERT(ids.size() <= size_t{std::numeric_limits<int32_t>::max()},
               "places among distinct ids are 32 bit");
  Distinct out;
  out.inverse.resize(static_cast<int64_t>(ids.size()));
  std::vector<int64_t> first;
  const Range range = range_of(ids, skip_negative, first);
  if (range.count == 0) {
    std::fill_n(out.inverse.data(), out.inverse.size(), -1);
    return out;
  }
  // Keys count from the smallest id; unsigned differences are right for any two signed ids.
  const int key_bits =
      bits_for(static_cast<uint64_t>(range.largest) - static_cast<uint64_t>(range.smallest));
  const int place_bits = bits_for(ids.size() - 1);
  // 63 and not 64: a shift by all bits of a word is undefined.
  if (key_bits + place_bits <= 63) {
    sort_and_number<Packed>(ids, skip_negative, range, first, key_bits, place_bits, out);
  } else {
    sort_and_number<Pair>(ids, skip_negative, range, first, key_bits, place_bits, out);
  }
  return out;
}

// Columns are packed into one 63-bit key, first column on top. When the next one does not fit, the
// key is replaced by its rank among the distinct keys, which orders tuples the same way in 31 bits.
DistinctTuples distinct_tuples(std::span<const std::span<const int32_t>> columns) {
  SEGUE_ASSERT(!columns.empty(), "tuples need at least one column");
  const size_t n = columns.front().size();
  std::vector<int64_t> keys(n, 0);
  int key_bits = 0;
  for (const std::span<const int32_t> column : columns) {
    SEGUE_ASSERT(column.size() == n, "columns of tuples have equal length");
    if (n == 0) continue;
    const auto [low, high] = std::minmax_element(column.begin(), column.end());
    const int64_t smallest = *low;
    const int column_bits = bits_for(static_cast<uint64_t>(*high - smallest));
    if (key_bits + column_bits > 63) {
      const Distinct ranks = distinct(keys);
      std::copy_n(ranks.inverse.data(), n, keys.begin());
      key_bits = bits_for(static_cast<uint64_t>(ranks.values.size() - 1));
    }
    parallel_for(static_cast<int64_t>(n), kGrain, [&](int64_t begin, int64_t end) {
      for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
        keys[i] = (keys[i] << column_bits) | (column[i] - smallest);
      }
    });
    key_bits += column_bits;
  }

  Distinct ranks = distinct(keys);
  DistinctTuples out;
  out.count = ranks.values.size();
  out.inverse = std::move(ranks.inverse);
  std::vector<size_t> example(static_cast<size_t>(out.count));  // where each tuple occurs first
  for (size_t i = n; i-- > 0;) {
    example[static_cast<size_t>(out.inverse[static_cast<int64_t>(i)])] = i;
  }
  out.members.resize(static_cast<int64_t>(columns.size()) * out.count);
  int32_t* to = out.members.data();
  for (const std::span<const int32_t> column : columns) {
    for (const size_t i : example) *to++ = column[i];
  }
  return out;
}

}  // namespace segue::sparse
