#include "data/synth/random_batches.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "base/hash.h"
#include "base/parallel.h"
#include "base/rng.h"
#include "data/synth/draw.h"

namespace segue::data {
namespace {

using Role = RandomColumn::Role;

constexpr int64_t kMaxBits = 62;
constexpr uint64_t kGroupSeed = 1;  // a group and a column may have one name

// Time, in seconds. Events come in sessions: most gaps are minutes, some are half a day.
constexpr int64_t kFirstTime = 1'000'000;
constexpr uint64_t kStartSpread = 30 * 24 * 3600;
constexpr double kSessionShare = 0.8;
constexpr double kGapInSession = 180;
constexpr double kGapBetweenSessions = 12 * 3600;

constexpr uint64_t kItemSalt = 0x6974656dull << 32;  // leaves room for the number of a bit
constexpr uint64_t kUserSalt = 0x75736572ull << 32;

/// Uniform in [-1, 1), the same for a given id for ever.
double preference(uint64_t salt, int64_t id, int64_t bit) {
  const uint64_t mixed = base::splitmix64(base::splitmix64(salt + static_cast<uint64_t>(bit)) ^
                                          base::splitmix64(static_cast<uint64_t>(id)));
  return static_cast<double>(static_cast<int64_t>(mixed)) * 0x1p-63;
}

uint64_t mix(uint64_t key, uint64_t stream) { return base::splitmix64(key ^ stream); }

[[noreturn]] void fail_schema(const std::string& message) {
  fail(ErrorCode::kInvalidArgument, "random batches: " + message);
}

/// The id distribution as one column uses it: no id reaches beyond the vocabulary.
Distribution cut_to_vocabulary(Distribution d, const RandomColumn& column) {
  if (d.low >= column.vocabulary) {
    fail(ErrorCode::kConfig, fmt::format("ids: `low` = {} is beyond the vocabulary of column `{}`, "
                                         "which has {} ids",
                                         d.low, column.name, column.vocabulary));
  }
  if (column.vocabulary == 1) return {DistributionKind::kUniform, 0, 1};
  const bool exclusive =
      d.kind == DistributionKind::kUniform || d.kind == DistributionKind::kZipfBounded;
  const int64_t largest = exclusive ? column.vocabulary : column.vocabulary - 1;
  d.high = d.high == 0 ? largest : std::min(d.high, largest);
  return d;
}

const RandomDataConfig& validated(const RandomDataConfig& config) {
  config.validate();
  return config;
}

/// Values of one sample in a column.
template <class SomeBatch>
auto values_of(SomeBatch& batch, int column, int64_t sample) {
  auto& c = batch.columns[static_cast<size_t>(column)];
  const std::span<const int64_t> offsets = batch.offsets(c);
  const int64_t begin = offsets[static_cast<size_t>(sample)];
  const int64_t end = offsets[static_cast<size_t>(sample) + 1];
  return c.values.span().subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
}

}  // namespace

void RandomDataConfig::validate() const {
  if (batch_size <= 0) {
    fail(ErrorCode::kConfig, fmt::format("`batch_size` must be positive, not {}", batch_size));
  }
  constexpr int64_t kMostCandidates = 1000;
  if (candidates < 1 || candidates > kMostCandidates) {
    fail(ErrorCode::kConfig,
         fmt::format("`candidates` must be 1 to {}, not {}", kMostCandidates, candidates));
  }
  if (!(signal >= 0) || !std::isfinite(signal)) {
    fail(ErrorCode::kConfig, fmt::format("`signal` must be 0 or more, not {}", signal));
  }
  if (!(match >= 0) || !std::isfinite(match)) {
    fail(ErrorCode::kConfig, fmt::format("`match` must be 0 or more, not {}", match));
  }
  if (match > 0 && match_by.empty()) {
    fail(ErrorCode::kConfig,
         "`match` needs `match_by`: the table of the feature that events have in common");
  }
  lengths.validate("lengths");
  if (lengths.kind == DistributionKind::kZipf && lengths.high == 0) {
    fail(ErrorCode::kConfig,
         "lengths: zipf needs `high`; without it one sample could fill all memory");
  }
  Distribution with_end = ids;  // `high` = 0 stands for the vocabulary of each column
  if (with_end.high == 0) with_end.high = with_end.low + 1;
  with_end.validate("ids");
}

void describe(base::ConfigVisitor& v, RandomDataConfig& c) {
  v.section("lengths", c.lengths, "lengths of histories");
  v.section("ids", c.ids, "ids of every column; high = 0 stands for the column's vocabulary");
  v.field("candidates", c.candidates, "of a sample, where the model ranks candidates");
  v.field("signal", c.signal, "how strongly labels depend on ids; 0: coin flips");
  v.field("match", c.match,
          "how strongly labels depend on what was done with earlier events of the same match_by");
  v.field("match_by", c.match_by, "table of a feature in model.additional");
}

RandomBatches::RandomBatches(RandomSchema schema, const RandomDataConfig& config, uint64_t seed)
    : schema_(std::move(schema)),
      config_(validated(config)),
      seed_(seed),
      lengths_(config_.lengths) {
  plan_groups();
  plan_columns();
  if (config_.match > 0) plan_matches();
}

void RandomBatches::plan_matches() {
  for (size_t c = 0; c < columns_.size(); ++c) {
    const RandomColumn& column = schema_.columns[c];
    const auto g = static_cast<size_t>(columns_[c].group);
    if (column.role == Role::kId && column.function_name == config_.match_by) {
      groups_[g].matched = static_cast<int>(c);
    }
    const bool history = schema_.groups[g].fixed_length < 0;
    const bool bits = column.role == Role::kAction || column.role == Role::kLabel;
    if (history && bits && done_ < 0) done_ = static_cast<int>(c);
  }
  const bool found =
      done_ >= 0 &&
      groups_[static_cast<size_t>(columns_[static_cast<size_t>(done_)].group)].matched >= 0;
  if (found) return;
  fail(ErrorCode::kConfig,
       fmt::format("`match_by` = \"{}\" is the table of no feature in model.additional",
                   config_.match_by));
}

void RandomBatches::plan_groups() {
  Batch batch;
  set_schema(batch);  // finds groups and columns of equal name
  for (const RandomGroup& group : schema_.groups) {
    if (group.fixed_length < -1) {
      fail_schema(
          fmt::format("group `{}` has the fixed length {}", group.name, group.fixed_length));
    }
    groups_.push_back({base::xxh64(group.name, kGroupSeed), -1});
  }
  for (const Batch::Column& column : batch.columns) columns_.push_back({column.group});

  std::vector<bool> timed(groups_.size()), labelled(groups_.size()), acted(groups_.size());
  for (size_t c = 0; c < schema_.columns.size(); ++c) {
    const RandomColumn& column = schema_.columns[c];
    const auto g = static_cast<size_t>(columns_[c].group);
    if (column.role == Role::kTimestamp) timed[g] = true;
    if (column.role == Role::kLabel) labelled[g] = true;
    if (column.role == Role::kAction) acted[g] = true;
    if (column.role == Role::kId && column.function_of.empty() && groups_[g].item < 0) {
      groups_[g].item = static_cast<int>(c);
    }
  }
  for (size_t g = 0; g < groups_.size() && user_ < 0; ++g) {
    if (schema_.groups[g].fixed_length == 1 && !acted[g] && !labelled[g]) user_ = groups_[g].item;
  }
  for (const bool with_labels : {false, true}) {
    for (size_t g = 0; g < groups_.size(); ++g) {
      if (timed[g] && labelled[g] == with_labels) clock_.push_back(static_cast<int>(g));
    }
  }
}

void RandomBatches::plan_columns() {
  std::vector<bool> placed(columns_.size(), false);
  for (size_t c = 0; c < columns_.size(); ++c) {
    const RandomColumn& column = schema_.columns[c];
    const std::string& salt = column.function_of.empty() || column.function_name.empty()
                                  ? column.name
                                  : column.function_name;
    columns_[c].stream = base::xxh64(salt);
    Distribution unused{DistributionKind::kUniform, 0, 1};
    if (column.role == Role::kId) {
      if (column.vocabulary <= 0) {
        fail_schema(fmt::format("column `{}` has no vocabulary", column.name));
      }
      const bool drawn = column.function_of.empty();
      ids_.emplace_back(drawn ? cut_to_vocabulary(config_.ids, column) : unused);
      if (drawn) {
        id_order_.push_back(static_cast<int>(c));
        placed[c] = true;
        continue;
      }
      const auto source =
          std::ranges::find(schema_.columns, column.function_of, &RandomColumn::name);
      if (source == schema_.columns.end() || source->role != Role::kId ||
          source->group != column.group) {
        fail_schema(
            fmt::format("column `{}` is a function of `{}`, which is no id column of group `{}`",
                        column.name, column.function_of, column.group));
      }
      columns_[c].source = static_cast<int>(source - schema_.columns.begin());
    } else {
      ids_.emplace_back(unused);
      const bool bits = column.role == Role::kAction || column.role == Role::kLabel;
      if (bits && (column.bits < 1 || column.bits > kMaxBits)) {
        fail_schema(fmt::format("column `{}` has {} bits; 1 to {} are possible", column.name,
                                column.bits, kMaxBits));
      }
      placed[c] = true;
    }
  }
  // Functions of functions: place what has its source, until nothing moves.
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t c = 0; c < columns_.size(); ++c) {
      if (placed[c] || !placed[static_cast<size_t>(columns_[c].source)]) continue;
      id_order_.push_back(static_cast<int>(c));
      placed[c] = moved = true;
    }
  }
  const auto circle = std::ranges::find(placed, false);
  if (circle != placed.end()) {
    fail_schema(fmt::format("column `{}` is a function of itself",
                            schema_.columns[static_cast<size_t>(circle - placed.begin())].name));
  }
}

/// Gives an unused batch its groups and columns; another batch must have them already.
void RandomBatches::set_schema(Batch& batch) const {
  const bool fresh = batch.groups.empty() && batch.columns.empty();
  const auto group_index = [&](const auto& column) {
    const auto found = std::ranges::find(schema_.groups, column.group, &RandomGroup::name);
    if (found == schema_.groups.end()) {
      fail_schema(fmt::format("column `{}` is in group `{}`, which does not exist", column.name,
                              column.group));
    }
    return static_cast<int>(found - schema_.groups.begin());
  };
  if (fresh) {
    for (const RandomGroup& group : schema_.groups) batch.add_group(group.name);
    for (const RandomColumn& column : schema_.columns) {
      batch.add_column(column.name, group_index(column));
    }
    for (const RandomNumbers& n : schema_.numbers) batch.add_float_column(n.name, group_index(n));
    return;
  }
  const auto equal = [&](const auto& a, const auto& b) {
    return a.name == b.name && a.group == group_index(b);
  };
  const bool same = std::ranges::equal(batch.groups, schema_.groups, {}, &Batch::Group::name,
                                       &RandomGroup::name) &&
                    std::ranges::equal(batch.columns, schema_.columns, equal) &&
                    std::ranges::equal(batch.float_columns, schema_.numbers, equal);
  if (!same) fail_schema("the batch to fill has other groups or columns");
}

uint64_t RandomBatches::sample_key(int64_t step, int64_t sample) const {
  return mix(mix(base::splitmix64(seed_), static_cast<uint64_t>(step)),
             static_cast<uint64_t>(sample));
}

void RandomBatches::fill(int64_t step, int64_t first, int64_t count, Batch& batch) const {
  SEGUE_ASSERT(first >= 0 && count >= 0, "samples count from 0");
  set_schema(batch);
  batch.clear();
  batch.global_samples = config_.batch_size;
  batch.sample_index.resize(count);
  for (int64_t i = 0; i < count; ++i) batch.sample_index[i] = first + i;
  for (size_t g = 0; g < groups_.size(); ++g) {
    HostArray<int64_t>& offsets = batch.groups[g].offsets;
    offsets.resize(count + 1);
    const int64_t fixed = schema_.groups[g].fixed_length;
    for (int64_t i = 0; i < count; ++i) {
      offsets[i + 1] =
          offsets[i] +
          (fixed >= 0 ? fixed : lengths_(mix(sample_key(step, first + i), groups_[g].stream), 0));
    }
  }
  for (Batch::Column& column : batch.columns) column.values.resize(batch.offsets(column).back());
  for (Batch::FloatColumn& column : batch.float_columns) {
    column.values.resize(batch.offsets(column).back());
  }
  base::parallel_for(count, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const uint64_t key = sample_key(step, first + i);
      fill_ids(key, i, batch);
      fill_timestamps(key, i, batch);
      fill_events(key, i, batch);
      fill_numbers(key, i, batch);
    }
  });
}

void RandomBatches::fill_ids(uint64_t key, int64_t sample, Batch& batch) const {
  for (const int c : id_order_) {
    const ColumnPlan& plan = columns_[static_cast<size_t>(c)];
    const std::span<int64_t> values = values_of(batch, c, sample);
    if (plan.source < 0) {
      const Sampler& sampler = ids_[static_cast<size_t>(c)];
      const uint64_t stream = mix(key, plan.stream);
      for (size_t p = 0; p < values.size(); ++p) values[p] = sampler(stream, p);
    } else {
      const std::span<const int64_t> source = values_of(batch, plan.source, sample);
      const auto range = static_cast<uint64_t>(schema_.columns[static_cast<size_t>(c)].vocabulary);
      for (size_t p = 0; p < values.size(); ++p) {
        const uint64_t hash = mix(plan.stream, base::splitmix64(static_cast<uint64_t>(source[p])));
        values[p] = static_cast<int64_t>(hash % range);
      }
    }
  }
}

void RandomBatches::fill_numbers(uint64_t key, int64_t sample, Batch& batch) const {
  for (Batch::FloatColumn& column : batch.float_columns) {
    const uint64_t stream = mix(key, base::xxh64(column.name));
    const std::span<const int64_t> offsets = batch.offsets(column);
    const int64_t begin = offsets[static_cast<size_t>(sample)];
    for (int64_t i = begin; i < offsets[static_cast<size_t>(sample) + 1]; ++i) {
      const Draw d = draw(DrawPurpose::kDistribution, stream, static_cast<uint64_t>(i - begin), 0);
      column.values[i] = static_cast<float>(normals(d)[0]);
    }
  }
}

void RandomBatches::fill_timestamps(uint64_t key, int64_t sample, Batch& batch) const {
  int64_t now = kFirstTime +
                static_cast<int64_t>(scale_to(draw(DrawPurpose::kTime, key, 0, 1).a, kStartSpread));
  for (const int group : clock_) {
    const uint64_t stream = mix(key, groups_[static_cast<size_t>(group)].stream);
    const int64_t start = now;
    for (size_t c = 0; c < columns_.size(); ++c) {
      if (columns_[c].group != group || schema_.columns[c].role != Role::kTimestamp) continue;
      now = start;  // all timestamp columns of a group say the same
      uint64_t position = 0;
      for (int64_t& value : values_of(batch, static_cast<int>(c), sample)) {
        const Draw d = draw(DrawPurpose::kTime, stream, position++, 0);
        const double mean = d.uniform_a() < kSessionShare ? kGapInSession : kGapBetweenSessions;
        now += 1 + static_cast<int64_t>(-mean * std::log(d.uniform_b()));
        value = now;
      }
    }
  }
}

double RandomBatches::event_probability(int64_t item, double user, int64_t bit,
                                        double matches) const {
  const double item_preference = item < 0 ? 0 : preference(kItemSalt, item, bit);
  return 1 /
         (1 + std::exp(-config_.signal * (item_preference + 0.5 * user) - config_.match * matches));
}

/// Earlier events of the history that have in common with the event at `position` of the column's
/// group what match_by says: those with the bit, less those without.
double RandomBatches::matches(const Batch& batch, int64_t sample, int column, int64_t position,
                              int64_t bit) const {
  if (done_ < 0) return 0;
  const int group = columns_[static_cast<size_t>(column)].group;
  const int history = columns_[static_cast<size_t>(done_)].group;
  const int own = groups_[static_cast<size_t>(group)].matched;
  const int theirs = groups_[static_cast<size_t>(history)].matched;
  const bool labels = schema_.columns[static_cast<size_t>(column)].role == Role::kLabel;
  if (own < 0 || !labels) return 0;
  const int64_t key = values_of(batch, own, sample)[static_cast<size_t>(position)];
  const std::span<const int64_t> keys = values_of(batch, theirs, sample);
  const std::span<const int64_t> bits = values_of(batch, done_, sample);
  const size_t end = group == history ? static_cast<size_t>(position) : keys.size();
  double count = 0;
  for (size_t p = 0; p < end; ++p) {
    if (keys[p] == key) count += (bits[p] >> bit & 1) != 0 ? 1 : -1;
  }
  return count;
}

double RandomBatches::user_preference(const Batch& batch, int64_t sample, int64_t bit) const {
  if (user_ < 0) return 0;
  const Batch::Column& user = batch.columns[static_cast<size_t>(user_)];
  return preference(kUserSalt, user.values[batch.offsets(user)[static_cast<size_t>(sample)]], bit);
}

void RandomBatches::fill_events(uint64_t key, int64_t sample, Batch& batch) const {
  std::vector<size_t> order;  // the history first: what is matched must be there
  for (const bool history : {true, false}) {
    for (size_t c = 0; c < columns_.size(); ++c) {
      const RandomColumn& column = schema_.columns[c];
      if (column.role != Role::kAction && column.role != Role::kLabel) continue;
      const int group = columns_[c].group;
      if ((schema_.groups[static_cast<size_t>(group)].fixed_length < 0) == history) {
        order.push_back(c);
      }
    }
  }
  for (const size_t c : order) {
    const RandomColumn& column = schema_.columns[c];
    const GroupPlan& group = groups_[static_cast<size_t>(columns_[c].group)];
    // The numbers belong to the event, not to the column: labels of an event equal its actions.
    const uint64_t stream = mix(key, group.stream);
    const std::span<int64_t> values = values_of(batch, static_cast<int>(c), sample);
    std::span<const int64_t> items;
    if (group.item >= 0) items = values_of(batch, group.item, sample);
    std::array<double, kMaxBits> user{};
    for (int64_t bit = 0; bit < column.bits; ++bit) {
      user[static_cast<size_t>(bit)] = user_preference(batch, sample, bit);
    }
    for (size_t p = 0; p < values.size(); ++p) {
      const int64_t item = items.empty() ? -1 : items[p];
      int64_t bits = 0;
      Draw d;
      for (int64_t bit = 0; bit < column.bits; ++bit) {
        if (bit % 4 == 0) d = draw(DrawPurpose::kEvent, stream, p, static_cast<uint32_t>(bit / 4));
        const double u = (static_cast<double>(d.word(bit % 4)) + 0.5) * 0x1p-32;
        const double matched =
            matches(batch, sample, static_cast<int>(c), static_cast<int64_t>(p), bit);
        if (u < event_probability(item, user[static_cast<size_t>(bit)], bit, matched)) {
          bits |= int64_t{1} << bit;
        }
      }
      values[p] = bits;
    }
  }
}

double RandomBatches::probability(const Batch& batch, int64_t sample, int64_t position,
                                  int64_t bit) const {
  const auto label = std::ranges::find(schema_.columns, Role::kLabel, &RandomColumn::role);
  SEGUE_ASSERT(label != schema_.columns.end(), "no labels, no probability");
  const auto c = static_cast<size_t>(label - schema_.columns.begin());
  const int item_column = groups_[static_cast<size_t>(columns_[c].group)].item;
  int64_t item = -1;
  if (item_column >= 0) {
    const Batch::Column& items = batch.columns[static_cast<size_t>(item_column)];
    item = items.values[batch.offsets(items)[static_cast<size_t>(sample)] + position];
  }
  return event_probability(item, user_preference(batch, sample, bit), bit,
                           matches(batch, sample, static_cast<int>(c), position, bit));
}

}  // namespace segue::data
