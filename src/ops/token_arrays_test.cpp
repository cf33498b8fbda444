#include "ops/token_arrays.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/parallel.h"
#include "base/rng.h"
#include "ops/assemble.h"
#include "ops/gpu_test_util.h"

namespace segue::ops {
namespace {

using test::ModeBed;
using Longs = std::vector<int64_t>;
using Ints = std::vector<int32_t>;

struct Lengths {
  Longs events, candidates;
};

Longs offsets_of(const Longs& lengths) {
  Longs offsets{0};
  for (const int64_t n : lengths) offsets.push_back(offsets.back() + n);
  return offsets;
}

/// What a case is, but for the samples it has.
struct Variant {
  std::string name;
  bool interleaved = false, events_are_labels = false, action_codes = true;
  bool paired = false, causal = false;
  bool some_labels = false;  // events of even number alone
  int64_t contextual = 2;
  int64_t time_buckets = 7;
  int64_t first = 0, count = -1;  // samples of a micro-batch; -1: all
};

struct Results {
  std::vector<Ints> tokens, labels;
  Longs label_time;
  bool operator==(const Results&) const = default;
};

/// Columns with numbers that depend on their place alone.
class Case {
 public:
  Case(Lengths lengths, Variant variant) : lengths_(std::move(lengths)), v_(std::move(variant)) {
    if (v_.events_are_labels) std::ranges::fill(lengths_.candidates, 0);
    if (v_.count < 0) v_.count = std::ssize(lengths_.events);
    events_ = offsets_of(lengths_.events);
    candidates_ = offsets_of(lengths_.candidates);
    const int64_t items = 5, places = events_.back() + candidates_.back();
    for (int64_t i = 0; i < places; ++i) item_.push_back(static_cast<int32_t>(draw(1, i, items)));
    for (int64_t i = 0; i < items; ++i) row_.push_back(static_cast<int32_t>((3 * i + 1) % items));
    for (int64_t e = 0; e < events_.back(); ++e) {
      action_.push_back(draw(2, e, 16));
      time_.push_back(1'000'000'000 + 1000 * e + draw(3, e, 900));
    }
    for (int64_t c = 0; c < candidates_.back(); ++c) {
      candidate_time_.push_back(2'000'000'000 + draw(4, c, 90));
    }
    for (size_t b = 0; b < lengths_.events.size(); ++b) {
      sample_.push_back(100 + 3 * static_cast<int64_t>(b));
    }
    tokens_.push_back(0);
    for (int64_t b = v_.first; b < v_.first + v_.count; ++b) {
      const auto s = static_cast<size_t>(b);
      tokens_.push_back(tokens_.back() + v_.contextual +
                        lengths_.events[s] * (v_.interleaved ? 2 : 1) + lengths_.candidates[s]);
    }
  }

  Results run(ModeBed& bed) const {
    const auto part = [&](const Longs& values, int64_t more) {
      return bed.longs({values.begin() + v_.first, values.begin() + v_.first + v_.count + more});
    };
    TokenColumns c;
    c.token_offsets = bed.longs(tokens_);
    c.event_offsets = part(events_, 1);
    c.candidate_offsets = part(candidates_, 1);
    c.sample = part(sample_, 0);
    c.event_time = bed.longs(time_);
    c.candidate_time = bed.longs(candidate_time_);
    c.event_action = bed.longs(action_);
    c.item = bed.ints(item_);
    c.row_of_item = bed.ints(row_);
    c.contextual = v_.contextual;
    c.first_context_row = 50 + v_.first * v_.contextual;
    c.interleaved = v_.interleaved;
    c.item_with_action = v_.paired;
    c.causal = v_.causal;
    c.action_codes = v_.action_codes;
    c.action_weights = kWeights;
    c.events_are_labels = v_.events_are_labels;
    c.position_buckets = 6;
    c.time_buckets = v_.time_buckets;
    const Longs& labels = v_.events_are_labels ? events_ : candidates_;
    const auto first = static_cast<size_t>(v_.first),
               end = static_cast<size_t>(v_.first + v_.count);
    int64_t count = labels[end] - labels[first];
    if (v_.some_labels) {
      Ints number;
      for (int64_t e = 0; e < events_.back(); ++e) {
        number.push_back(e % 2 == 0 ? static_cast<int32_t>(e / 2) : -1);
      }
      c.event_label = bed.ints(number);
      c.first_label = (events_[first] + 1) / 2;
      count = (events_[end] + 1) / 2 - c.first_label;
    }
    const TokenArrays a = take_token_arrays(bed.exec, tokens_.back(), count, v_.time_buckets > 0);
    fill_token_arrays(bed.exec, c, a);
    Results r;
    for (const Tensor& t : {a.row, a.action, a.position, a.sample, a.token, a.time}) {
      if (t) r.tokens.push_back(fetch<int32_t>(bed, t));
    }
    for (const Tensor& t : {a.label_row, a.label_sample, a.label_token}) {
      r.labels.push_back(fetch<int32_t>(bed, t));
    }
    r.label_time = fetch<int64_t>(bed, a.label_time);
    return r;
  }

  /// The same, sample after sample.
  Results expected() const {
    Ints row, action, sample, token;
    Ints label_row, label_sample, label_token;
    Longs time, targets, gap;
    Results r;
    const int64_t all_events = events_.back();
    for (int64_t b = v_.first; b < v_.first + v_.count; ++b) {
      const auto s = static_cast<size_t>(b);
      const auto number = static_cast<int32_t>(sample_[s]);
      int32_t at = 0;
      const auto put = [&](int64_t from, int64_t code, int64_t when) {
        row.push_back(static_cast<int32_t>(from));
        action.push_back(static_cast<int32_t>(code));
        sample.push_back(number);
        token.push_back(at++);
        time.push_back(when);
      };
      const auto label = [&](int64_t when) {
        label_row.push_back(static_cast<int32_t>(row.size()));
        label_sample.push_back(number);
        label_token.push_back(at);
        r.label_time.push_back(when);
      };
      for (int64_t k = 0; k < v_.contextual; ++k) {
        put(50 + b * v_.contextual + k, -1, 0);
        gap.push_back(0);
      }
      for (int64_t e = events_[s]; e < events_[s + 1]; ++e) {
        // A merged token that is asked for its action has that of the event before.
        const int64_t done = v_.events_are_labels && !v_.interleaved ? e - 1 : e;
        const int64_t bits = done < 0 ? 0 : action_[static_cast<size_t>(done)];
        int64_t code = v_.action_codes ? ((bits & 8) > 0 ? 1 : 0) + ((bits & 3) > 0 ? 2 : 0) : done;
        if (done < events_[s]) code = -1;
        const int64_t from = row_[static_cast<size_t>(item_[static_cast<size_t>(e)])];
        const int64_t when = time_[static_cast<size_t>(e)];
        if (v_.events_are_labels && (!v_.some_labels || e % 2 == 0)) label(when);
        const int64_t before = e > events_[s] ? time_[static_cast<size_t>(e - 1)] : when;
        put(from, v_.interleaved ? -1 : code, when);
        gap.push_back(when - before);
        if (v_.interleaved) put(v_.paired ? from : -1, code, when);
        if (v_.interleaved) gap.push_back(when - before);
      }
      for (int64_t c = candidates_[s]; c < candidates_[s + 1]; ++c) {
        const int64_t code = v_.action_codes ? 4 : all_events + c;
        const auto place = static_cast<size_t>(all_events + c);
        const int64_t when = candidate_time_[static_cast<size_t>(c)];
        label(when);
        put(row_[static_cast<size_t>(item_[place])], v_.interleaved ? -1 : code, when);
      }
      targets.push_back(lengths_.candidates[s]);
    }
    PositionParams p{.offsets = tokens_,
                     .num_targets = targets,
                     .contextual_len = v_.contextual,
                     .position_buckets = 6,
                     .time_buckets = v_.time_buckets};
    if (v_.events_are_labels) p.num_targets = {};
    Ints position(row.size()), bucket(row.size());
    position_indices(p, position);
    if (v_.time_buckets > 0) time_indices(p, time, bucket);
    for (size_t i = 0; i < row.size() && v_.causal; ++i) {
      position[i] = std::min(token[i], 5);
      const auto root = static_cast<int32_t>(std::sqrt(static_cast<double>(gap[i]) / 60));
      bucket[i] = std::min(root, static_cast<int32_t>(v_.time_buckets - 1));
    }
    r.tokens = {row, action, position, sample, token};
    if (v_.time_buckets > 0) r.tokens.push_back(bucket);
    r.labels = {label_row, label_sample, label_token};
    return r;
  }

 private:
  static constexpr std::array<int64_t, 2> kWeights = {8, 3};

  static int64_t draw(uint64_t site, int64_t i, int64_t n) {
    return static_cast<int64_t>(base::splitmix64(site * 100'000 + static_cast<uint64_t>(i)) %
                                static_cast<uint64_t>(n));
  }
  template <class T>
  static std::vector<T> fetch(const ModeBed& bed, const Tensor& t) {
    std::vector<T> values(static_cast<size_t>(t.elements()));
    copy_bytes(values.data(), Device::cpu(), t.data, t.device, values.size() * sizeof(T),
               bed.exec.stream);
    bed.exec.stream->synchronize();
    return values;
  }

  Lengths lengths_;
  Variant v_;
  Longs events_, candidates_, tokens_, sample_;
  Longs time_, candidate_time_, action_;
  Ints item_, row_;
};

/// Samples without events, without candidates, without either, and a long one.
Lengths mixed() { return {{3, 0, 700, 0, 5, 1}, {1, 2, 3, 0, 0, 1}}; }

std::vector<Variant> variants() {
  std::vector<Variant> all = {
      {.name = "merged"},
      {.name = "interleaved", .interleaved = true},
      {.name = "every item", .events_are_labels = true, .time_buckets = 0},
      {.name = "every item, interleaved", .interleaved = true, .events_are_labels = true},
      {.name = "an action per event", .action_codes = false},
      {.name = "paired", .interleaved = true, .paired = true},
      {.name = "causal", .events_are_labels = true, .causal = true},
      {.name = "an action before each event",
       .events_are_labels = true,
       .action_codes = false,
       .causal = true},
      {.name = "some events of pairs",
       .interleaved = true,
       .events_are_labels = true,
       .paired = true,
       .causal = true,
       .some_labels = true,
       .first = 2,
       .count = 3},
      {.name = "no contextual tokens", .contextual = 0},
      {.name = "first samples", .first = 0, .count = 2},
      {.name = "last samples", .interleaved = true, .first = 2, .count = 4},
      {.name = "every item, samples between", .events_are_labels = true, .first = 1, .count = 3},
      {.name = "an empty sample", .contextual = 0, .first = 3, .count = 1},
      {.name = "no samples", .first = 2, .count = 0}};
  return all;
}

TEST(TokenArraysTest, EqualALoopOverSamples) {
  const int before = base::num_threads();
  for (const int threads : {1, 2}) {
    base::set_num_threads(threads);
    for (const Variant& v : variants()) {
      SCOPED_TRACE(v.name);
      ModeBed bed(Device::cpu(), Precision::kF32);
      const Case c(mixed(), v);
      EXPECT_EQ(c.run(bed), c.expected());
    }
  }
  base::set_num_threads(before);
}

class GpuTokenArraysTest : public test::GpuTest {};

TEST_F(GpuTokenArraysTest, EqualThoseOfTheCpu) {
  Lengths many;
  for (int64_t b = 0; b < 3000; ++b) {
    many.events.push_back(b % 7 == 0 ? 0 : (b * 37) % 120);
    many.candidates.push_back(b % 3);
  }
  for (const Variant& v : variants()) {
    SCOPED_TRACE(v.name);
    for (const Lengths& lengths : {mixed(), many}) {
      ModeBed cpu(Device::cpu(), Precision::kF32), gpu(Device::cuda(), Precision::kF32);
      const Case c(lengths, v);
      EXPECT_EQ(c.run(gpu), c.run(cpu));
    }
  }
}

}  // namespace
}  // namespace segue::ops
