#include "sparse/dedup.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <limits>
#include <numeric>
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
constexpr int64_t kDedupGrain = 1 << 16;
constexpr int64_t kPlacesGrain = 4096;  // of a loop whose result is the same however it is cut
constexpr int kDigitBits = 11;  // a histogram of 2048 counters stays in the first-level cache
constexpr int64_t kDigits = 1 << kDigitBits;
constexpr int kWordBits = 64;

int bits_for(uint64_t largest) { return std::bit_width(largest); }

// ---- ids that lie close together: a bit each ----

/// With one bit for every possible id the distinct ones are the set bits in order, and the place of
/// an id is the number of bits below its own: no sort.
class BitRanks {
 public:
  /// Ids from `smallest` to `largest`.
  static bool worthwhile(uint64_t range, size_t ids) { return range / kWordBits <= ids; }

  BitRanks(uint64_t smallest, uint64_t range, DedupScratch& scratch)
      : smallest_(smallest), words_(static_cast<int64_t>(range / kWordBits) + 1) {
    scratch.records.resize(words_);
    scratch.other.resize(words_);
    bits_ = scratch.records.data();
    below_ = scratch.other.data();
    parallel_for(words_, kDedupGrain,
                 [&](int64_t begin, int64_t end) { std::fill(bits_ + begin, bits_ + end, 0); });
  }

  /// Of ids that may be absent (below 0, `skip_negative`) or all take part.
  void mark(std::span<const int64_t> ids, bool skip_negative) {
    const bool alone = std::ssize(ids) <= kDedupGrain;  // one chunk: nobody else marks
    parallel_for(std::ssize(ids), kDedupGrain, [&](int64_t begin, int64_t end) {
      const std::span<const int64_t> some =
          ids.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
      if (alone)
        return mark_all(some, skip_negative, [](uint64_t& word, uint64_t bit) { word |= bit; });
      mark_all(some, skip_negative, [](uint64_t& word, uint64_t bit) {
        const std::atomic_ref<uint64_t> shared(word);
        // Popular ids are there already: most threads only read.
        if ((shared.load(std::memory_order_relaxed) & bit) == 0) {
          shared.fetch_or(bit, std::memory_order_relaxed);
        }
      });
    });
  }

  /// After all marks: fills `values` and makes place() ready.
  void number(HostArray<int64_t>& counts, HostArray<int64_t>& values) {
    counts.resize(num_chunks(words_, kDedupGrain));
    parallel_for(words_, kDedupGrain, [&](int64_t begin, int64_t end) {
      int64_t count = 0;
      for (int64_t w = begin; w < end; ++w) count += std::popcount(bits_[w]);
      counts[begin / kDedupGrain] = count;
    });
    int64_t total = 0;
    for (int64_t& count : counts.span()) total += std::exchange(count, total);
    values.resize(total);
    parallel_for(words_, kDedupGrain, [&](int64_t begin, int64_t end) {
      int64_t place = counts[begin / kDedupGrain];
      for (int64_t w = begin; w < end; ++w) {
        below_[w] = static_cast<uint64_t>(place);
        for (uint64_t word = bits_[w]; word != 0; word &= word - 1) {
          const auto bit = static_cast<uint64_t>(std::countr_zero(word));
          values[place++] =
              static_cast<int64_t>(smallest_ + static_cast<uint64_t>(w) * kWordBits + bit);
        }
      }
    });
  }

  /// The place of each id among the distinct ones; -1 where it takes no part.
  void places(std::span<const int64_t> ids, bool skip_negative, int32_t* out) const {
    parallel_for(std::ssize(ids), kPlacesGrain, [&](int64_t begin, int64_t end) {
      const BitRanks ranks = *this;  // out of reach of what is stored
      for (int64_t i = begin; i < end; ++i) {
        const int64_t id = ids[static_cast<size_t>(i)];
        out[i] = skip_negative && id < 0 ? -1 : ranks.place(id);
      }
    });
  }

 private:
  template <class Mark>
  void mark_all(std::span<const int64_t> ids, bool skip_negative, const Mark& mark) const {
    const BitRanks ranks = *this;
    for (const int64_t id : ids) {
      if (skip_negative && id < 0) continue;
      const uint64_t key = static_cast<uint64_t>(id) - ranks.smallest_;
      mark(ranks.bits_[key / kWordBits], uint64_t{1} << (key % kWordBits));
    }
  }

  int32_t place(int64_t id) const {
    const uint64_t key = static_cast<uint64_t>(id) - smallest_;
    const uint64_t lower = (uint64_t{1} << (key % kWordBits)) - 1;
    return static_cast<int32_t>(below_[key / kWordBits]) +
           std::popcount(bits_[key / kWordBits] & lower);
  }

  uint64_t smallest_;
  int64_t words_;
  uint64_t *bits_, *below_;
};

// ---- few ids, of no more possible ones than there are ids: a number each ----

/// A table has an entry for every possible id: first whether it occurs, then its place. What is
/// stored need not be read before, as words of bits are, and places are not counted: half the time
/// where one thread marks.
void number_in_table(std::span<const int64_t> ids, bool skip_negative, int64_t smallest,
                     int64_t entries, DedupScratch& scratch, Distinct& out) {
  scratch.example.resize(entries);
  int32_t* const table = scratch.example.data();
  std::fill_n(table, entries, 0);
  for (const int64_t id : ids) {
    if (!skip_negative || id >= 0) table[id - smallest] = 1;
  }
  out.values.resize(entries);
  int32_t place = 0;
  for (int64_t k = 0; k < entries; ++k) {
    out.values[place] = smallest + k;  // replaced unless it occurs
    place += std::exchange(table[k], place);
  }
  out.values.resize(place);
  int32_t* const inverse = out.inverse.data();
  parallel_for(std::ssize(ids), kPlacesGrain, [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t id = ids[static_cast<size_t>(i)];
      inverse[i] = skip_negative && id < 0 ? -1 : table[id - smallest];
    }
  });
}

// ---- ids that lie anywhere: a sort ----

/// An id and its place in the input, in one word when both fit: half the traffic of a pair.
struct Packed {
  uint64_t word;
  static Packed make(uint64_t key, uint64_t place, int place_bits) {
    return {key << place_bits | place};
  }
  uint64_t key(int place_bits) const { return word >> place_bits; }
  int64_t place(int place_bits) const {
    return static_cast<int64_t>(word & ((uint64_t{1} << place_bits) - 1));
  }
};

struct Pair {
  uint64_t id;
  uint64_t at;
  static Pair make(uint64_t key, uint64_t place, int) { return {key, place}; }
  uint64_t key(int) const { return id; }
  int64_t place(int) const { return static_cast<int64_t>(at); }
};

/// `n` records in memory that is kept.
template <class Record>
Record* records_in(HostArray<uint64_t>& memory, int64_t n) {
  memory.resize(n * static_cast<int64_t>(sizeof(Record) / sizeof(uint64_t)));
  return reinterpret_cast<Record*>(memory.data());
}

/// Stable sort by key, least significant digit first. `other` is scratch of the same size; returns
/// the one of the two that the sorted records end up in.
template <class Record>
Record* radix_sort(Record* records, Record* other, int64_t n, int key_bits, int place_bits,
                   HostArray<int64_t>& counts) {
  const int passes = (key_bits + kDigitBits - 1) / kDigitBits;
  counts.resize(num_chunks(n, kDedupGrain) * kDigits);
  const auto counts_of = [&](int64_t begin) {
    return counts.data() + begin / kDedupGrain * kDigits;
  };

  for (int pass = 0; pass < passes; ++pass) {
    const int shift = pass * kDigitBits;
    const auto digit = [=](const Record& r) {
      return static_cast<int64_t>(r.key(place_bits) >> shift) & (kDigits - 1);
    };
    parallel_for(n, kDedupGrain, [&](int64_t begin, int64_t end) {
      int64_t* count = counts_of(begin);
      std::fill_n(count, kDigits, 0);
      for (int64_t i = begin; i < end; ++i) ++count[digit(records[i])];
    });
    // Counts become starts: all records of a digit lie together, those of earlier chunks first.
    int64_t start = 0;
    for (int64_t d = 0; d < kDigits; ++d) {
      for (int64_t begin = 0; begin < n; begin += kDedupGrain) {
        start += std::exchange(counts_of(begin)[d], start);
      }
    }
    parallel_for(n, kDedupGrain, [&](int64_t begin, int64_t end) {
      int64_t* next = counts_of(begin);
      for (int64_t i = begin; i < end; ++i) other[next[digit(records[i])]++] = records[i];
    });
    std::swap(records, other);
  }
  return records;
}

/// Numbers the runs of equal keys in sorted `records`: fills values, and inverse at every place.
template <class Record>
void number_runs(const Record* records, int64_t n, int place_bits, uint64_t smallest,
                 HostArray<int64_t>& first_run, Distinct& out) {
  const auto starts_run = [&](int64_t i) {
    return i == 0 || records[i].key(place_bits) != records[i - 1].key(place_bits);
  };
  first_run.resize(num_chunks(n, kDedupGrain));
  parallel_for(n, kDedupGrain, [&](int64_t begin, int64_t end) {
    int64_t runs = 0;
    for (int64_t i = begin; i < end; ++i) runs += starts_run(i) ? 1 : 0;
    first_run[begin / kDedupGrain] = runs;
  });
  int64_t total = 0;
  for (int64_t& runs : first_run.span()) total += std::exchange(runs, total);

  out.values.resize(total);
  parallel_for(n, kDedupGrain, [&](int64_t begin, int64_t end) {
    int64_t run = first_run[begin / kDedupGrain] - 1;
    for (int64_t i = begin; i < end; ++i) {
      if (starts_run(i)) {
        out.values[++run] = static_cast<int64_t>(records[i].key(place_bits) + smallest);
      }
      out.inverse[records[i].place(place_bits)] = static_cast<int32_t>(run);
    }
  });
}

struct Range {
  int64_t smallest = std::numeric_limits<int64_t>::max();
  int64_t largest = std::numeric_limits<int64_t>::min();
  int64_t count = 0;
};

/// Of some of the values. As unsigned numbers those below 0 are the largest, unless a flipped sign
/// puts them first: no branch for each value, so that the loop is vector code.
template <class T>
Range range_of_chunk(std::span<const T> values, bool skip_negative) {
  const uint64_t flip = skip_negative ? 0 : uint64_t{1} << 63;
  uint64_t smallest = std::numeric_limits<uint64_t>::max();
  int64_t largest = std::numeric_limits<int64_t>::min(), negative = 0;
  for (const T v : values) {
    const int64_t value = v;
    smallest = std::min(smallest, static_cast<uint64_t>(value) ^ flip);
    largest = std::max(largest, value);
    negative += value < 0 ? 1 : 0;
  }
  const int64_t count = std::ssize(values) - (skip_negative ? negative : 0);
  if (count == 0) return {};
  return {static_cast<int64_t>(smallest ^ flip), largest, count};
}

/// Range of the values that take part, and in `first` how many of them come before each chunk.
template <class T>
Range range_of(std::span<const T> values, bool skip_negative, std::vector<int64_t>& first) {
  const auto n = static_cast<int64_t>(values.size());
  std::vector<Range> parts(static_cast<size_t>(num_chunks(n, kDedupGrain)));
  parallel_for(n, kDedupGrain, [&](int64_t begin, int64_t end) {
    parts[static_cast<size_t>(begin / kDedupGrain)] =
        range_of_chunk(values.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin)),
                       skip_negative);
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
                     std::span<const int64_t> first, int key_bits, int place_bits,
                     DedupScratch& scratch, Distinct& out) {
  const auto smallest = static_cast<uint64_t>(range.smallest);
  auto* records = records_in<Record>(scratch.records, range.count);
  auto* other = records_in<Record>(scratch.other, range.count);
  parallel_for(static_cast<int64_t>(ids.size()), kDedupGrain, [&](int64_t begin, int64_t end) {
    Record* to = records + first[static_cast<size_t>(begin / kDedupGrain)];
    for (int64_t i = begin; i < end; ++i) {
      const int64_t id = ids[static_cast<size_t>(i)];
      if (skip_negative && id < 0) {
        out.inverse[i] = -1;
        continue;
      }
      *to++ =
          Record::make(static_cast<uint64_t>(id) - smallest, static_cast<uint64_t>(i), place_bits);
    }
  });
  const Record* sorted =
      radix_sort(records, other, range.count, key_bits, place_bits, scratch.counts);
  number_runs(sorted, range.count, place_bits, smallest, scratch.counts, out);
}

void mark_and_number(std::span<const int64_t> ids, bool skip_negative, const Range& range,
                     uint64_t width, DedupScratch& scratch, Distinct& out) {
  BitRanks ranks(static_cast<uint64_t>(range.smallest), width, scratch);
  ranks.mark(ids, skip_negative);
  ranks.number(scratch.counts, out.values);
  ranks.places(ids, skip_negative, out.inverse.data());
}

}  // namespace

void distinct(std::span<const int64_t> ids, bool skip_negative, DedupScratch& scratch,
              Distinct& out) {
  SEGUE_ASSERT(ids.size() <= size_t{std::numeric_limits<int32_t>::max()},
               "places among distinct ids are 32 bit");
  out.inverse.resize(static_cast<int64_t>(ids.size()));
  const bool ascending = std::ranges::adjacent_find(ids, std::ranges::greater_equal()) == ids.end();
  if (ascending && !ids.empty() && (!skip_negative || ids.front() >= 0)) {
    out.values.assign(ids);  // found before, as those of a table often are
    std::iota(out.inverse.data(), out.inverse.data() + out.inverse.size(), 0);
    return;
  }
  std::vector<int64_t> first;
  const Range range = range_of(ids, skip_negative, first);
  if (range.count == 0) {
    out.values.resize(0);
    std::ranges::fill(out.inverse.span(), -1);
    return;
  }
  // Keys count from the smallest id; unsigned differences are right for any two signed ids.
  const uint64_t width =
      static_cast<uint64_t>(range.largest) - static_cast<uint64_t>(range.smallest);
  if (std::ssize(ids) <= kDedupGrain && width < ids.size()) {
    const auto entries = static_cast<int64_t>(width) + 1;
    return number_in_table(ids, skip_negative, range.smallest, entries, scratch, out);
  }
  if (BitRanks::worthwhile(width, ids.size())) {
    return mark_and_number(ids, skip_negative, range, width, scratch, out);
  }
  const int key_bits = bits_for(width);
  const int place_bits = bits_for(ids.size() - 1);
  // 63 and not 64: a shift by all bits of a word is undefined.
  if (key_bits + place_bits <= 63) {
    sort_and_number<Packed>(ids, skip_negative, range, first, key_bits, place_bits, scratch, out);
  } else {
    sort_and_number<Pair>(ids, skip_negative, range, first, key_bits, place_bits, scratch, out);
  }
}

Distinct distinct(std::span<const int64_t> ids, bool skip_negative) {
  DedupScratch scratch;
  Distinct out;
  distinct(ids, skip_negative, scratch, out);
  return out;
}

namespace {

using Columns = std::span<const std::span<const int32_t>>;

/// Notes in `example` some input of every key; keys are below `range`, and each occurs. Which one
/// is chance, so only what all inputs of a key have in common may be read there.
template <class Key>
void find_examples(int64_t n, int64_t range, Key&& key, HostArray<int32_t>& example) {
  example.resize(range);
  parallel_for(n, kDedupGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      std::atomic_ref(example[key(i)]).store(static_cast<int32_t>(i), std::memory_order_relaxed);
    }
  });
}

void copy_members(Columns columns, std::span<const int32_t> example, DistinctTuples& out) {
  out.members.resize(static_cast<int64_t>(columns.size()) * out.count);
  for (size_t c = 0; c < columns.size(); ++c) {
    int32_t* to = out.members.data() + static_cast<int64_t>(c) * out.count;
    parallel_for(out.count, kDedupGrain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        to[i] = columns[c][static_cast<size_t>(example[static_cast<size_t>(i)])];
      }
    });
  }
}

}  // namespace

// Columns are packed into one 63-bit key, first column on top. When the next one does not fit, the
// key is replaced by its rank among the distinct keys, which orders tuples the same way in 31 bits.
void distinct_tuples(Columns columns, DedupScratch& scratch, DistinctTuples& out) {
  SEGUE_ASSERT(!columns.empty(), "tuples need at least one column");
  const auto n = static_cast<int64_t>(columns.front().size());
  for (const std::span<const int32_t> column : columns) {
    SEGUE_ASSERT(static_cast<int64_t>(column.size()) == n, "columns of tuples have equal length");
  }
  if (n == 0) {
    out.count = 0;
    out.inverse.resize(0);
    out.members.resize(0);
    return;
  }
  const std::span<const int32_t> leading = columns.front();
  if (std::ranges::adjacent_find(leading, std::ranges::greater_equal()) == leading.end()) {
    // In order already, each once.
    out.count = n;
    out.inverse.resize(n);
    std::iota(out.inverse.data(), out.inverse.data() + n, 0);
    copy_members(columns, out.inverse.span(), out);
    return;
  }

  HostArray<int64_t>& keys = scratch.keys;
  keys.resize(n);
  Distinct ranks;
  ranks.inverse = std::move(out.inverse);
  int key_bits = 0;
  std::vector<int64_t> first;
  for (size_t c = 0; c < columns.size(); ++c) {
    const std::span<const int32_t> column = columns[c];
    const Range range = range_of(column, false, first);
    const int column_bits = bits_for(static_cast<uint64_t>(range.largest - range.smallest));
    if (key_bits + column_bits > 63) {
      distinct(keys.span(), false, scratch, ranks);
      std::ranges::copy(ranks.inverse.span(), keys.data());
      key_bits = bits_for(static_cast<uint64_t>(ranks.values.size() - 1));
    }
    parallel_for(n, kDedupGrain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t value = column[static_cast<size_t>(i)] - range.smallest;
        keys[i] = c == 0 ? value : (keys[i] << column_bits) | value;
      }
    });
    key_bits += column_bits;
  }
  distinct(keys.span(), false, scratch, ranks);
  out.count = ranks.values.size();
  out.inverse = std::move(ranks.inverse);
  find_examples(
      n, out.count, [&](int64_t i) { return out.inverse[i]; }, scratch.example);
  copy_members(columns, scratch.example.span(), out);
}

DistinctTuples distinct_tuples(Columns columns) {
  DedupScratch scratch;
  DistinctTuples out;
  distinct_tuples(columns, scratch, out);
  return out;
}

}  // namespace segue::sparse
