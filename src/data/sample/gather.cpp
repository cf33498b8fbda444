#include "data/sample/gather.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "base/config_checks.h"
#include "base/error.h"
#include "base/hash.h"

namespace segue::data {
namespace {

constexpr int kContextGroup = 0, kHistoryGroup = 1, kCandidateGroup = 2;
constexpr int64_t kSecondsPerHour = 3600;
constexpr int64_t kHoursPerDay = 24;

// Values that crosses are made of; attributes follow.
enum CrossValue : size_t { kUser, kItem, kHour, kOrganic, kFirstAttribute };
static_assert(std::size(kCrossKeys) == kFirstAttribute);
constexpr size_t kMaxCrossValues = kFirstAttribute + 2 * kMaxAttributes;  // items', users'

int64_t hour_of_day(int64_t timestamp) {
  // Times before the origin count down, so that an hour is the same length everywhere.
  int64_t hour = timestamp / kSecondsPerHour - (timestamp % kSecondsPerHour < 0);
  hour %= kHoursPerDay;
  return hour < 0 ? hour + kHoursPerDay : hour;
}

}  // namespace

void describe(base::ConfigVisitor& v, GatherConfig& c) {
  v.field("history_length", c.history_length,
          "events of a history; 0: what the store was made for");
  v.field("scan_window", c.scan_window, "events before the anchor that are looked at");
  v.choice("strategy", c.strategy, {"interleaved", "last_n"},
           "an equal share of every pool, or the newest events of any");
  v.field("max_history", c.max_history, "newest events kept; 0: no limit");
  v.field("same_time", c.same_time,
          "events of the same second that stand before an event are its history, as the benchmark "
          "has it; false: earlier seconds only");
}

void GatherConfig::validate() const {
  base::require_at_least("history_length", history_length, 1);
  base::require_at_least("scan_window", scan_window, 1);
  base::require_at_least("max_history", max_history, 0);
}

Gatherer::Gatherer(const EventStore& store, const GatherConfig& config)
    : store_(store),
      log_(store),
      config_((config.validate(), config)),
      num_pools_(store.schema().num_history_pools()) {
  for (size_t p = 0; p < log_.num_pieces(); ++p) {
    pools_.push_back(PoolIndex::open_or_build(log_.piece(p)));
  }
  const std::vector<PoolConfig>& pools = store.schema().pools;
  const auto num_pools = static_cast<int64_t>(num_pools_);
  const bool interleaved = config_.strategy == HistoryStrategy::kInterleaved;
  budget_.scan = config_.scan_window;
  budget_.of_pool.fill(interleaved ? std::max<int64_t>(1, config_.history_length / num_pools)
                                   : config_.history_length);
  kept_ = interleaved ? std::numeric_limits<int64_t>::max() : config_.history_length;
  if (config_.max_history > 0) kept_ = std::min(kept_, config_.max_history);
  SEGUE_ASSERT(config_.sample_events <= kept_, "samples of more events than are kept");
  SEGUE_ASSERT(config_.same_time || !config_.labelled_events(),
               "labelled events of one second stand in one history");

  for (size_t p = 0; p < pools.size(); ++p) {
    const bool labels =
        store.schema().label_pool.empty() || store.schema().label_pool == pools[p].name;
    label_pools_ |= uint64_t{labels} << p;
  }
  action_of_mask_.resize(size_t{1} << pools.size());
  for (size_t mask = 0; mask < action_of_mask_.size(); ++mask) {
    for (size_t p = 0; p < pools.size(); ++p) {
      if (mask >> p & 1) action_of_mask_[mask] |= pools[p].bit;
    }
  }
  plan_crosses();
  plan_numbers();
}

void Gatherer::plan_crosses() {
  std::vector<AttributeConfig> attributes = store_.schema().attributes;
  const std::vector<AttributeConfig>& of_users = store_.schema().user_attributes;
  attributes.insert(attributes.end(), of_users.begin(), of_users.end());
  for (const CrossConfig& config : store_.schema().crosses) {
    Cross cross;
    cross.rows = config.whole_hash ? 0 : static_cast<uint64_t>(config.rows);
    cross.salt = static_cast<uint64_t>(config.salt);
    for (const std::string& key : config.keys) {
      const auto* fixed = std::ranges::find(kCrossKeys, key);
      auto value = static_cast<size_t>(fixed - kCrossKeys);
      if (fixed == std::end(kCrossKeys)) {
        const auto found = std::ranges::find(attributes, key, &AttributeConfig::name);
        value = kFirstAttribute + static_cast<size_t>(found - attributes.begin());
      }
      cross.keys[static_cast<size_t>(cross.num_keys++)] = value;
    }
    crosses_.push_back(cross);
  }
  context_ = 0;
  const bool of_events = config_.labelled_events();
  history_items_ = context_ + (of_events ? 0 : static_cast<int>(crosses_.size())) +
                   static_cast<int>(of_users.size()) + 2;
  history_actions_ = history_items_ + 1;
  history_times_ = history_actions_ + 1;
  history_columns_ = {history_items_, history_actions_, history_times_};
  if (of_events) {
    history_columns_.push_back(history_labels_ = history_times_ + 1);
    history_crosses_ = history_labels_ + 1;
    for (size_t c = 0; c < crosses_.size(); ++c) {
      history_columns_.push_back(history_crosses_ + static_cast<int>(c));
    }
  }
  candidates_ = history_columns_.back() + 1;
}

Batch sample_columns(const SampleSchema& schema, bool labelled_events) {
  Batch batch;
  batch.add_group("context");
  batch.add_group("history");
  batch.add_group("candidates");
  batch.add_column("uid", kContextGroup);
  const auto add_crosses = [&](int group) {
    for (const CrossConfig& cross : schema.crosses) batch.add_column(cross.name, group);
  };
  if (!labelled_events) add_crosses(kContextGroup);
  for (const AttributeConfig& a : schema.user_attributes) batch.add_column(a.name, kContextGroup);
  batch.add_column("dummy_query_time", kContextGroup);
  const int item = batch.add_column("item_id", kHistoryGroup);
  for (const AttributeConfig& a : schema.attributes) batch.add_attribute(a.name, item, {});
  batch.add_column("action_weight", kHistoryGroup);
  batch.add_column("action_timestamp", kHistoryGroup);
  if (labelled_events) {
    batch.add_column("event_label", kHistoryGroup);
    add_crosses(kHistoryGroup);
  }
  batch.add_column("item_candidate_id", kCandidateGroup);
  for (const AttributeConfig& a : schema.attributes) {
    batch.add_column(candidate_column(a.name), kCandidateGroup);
  }
  batch.add_column("item_query_time", kCandidateGroup);
  batch.add_column("item_action_weight", kCandidateGroup);
  for (const std::string& name : schema.history_numbers) {
    batch.add_float_column(name, kHistoryGroup);
  }
  for (const std::string& name : schema.candidate_numbers) {
    batch.add_float_column(candidate_column(name), kCandidateGroup);
  }
  return batch;
}

void Gatherer::check_schema(const Batch& batch) const {
  const size_t columns = static_cast<size_t>(candidates_) + store_.schema().attributes.size() + 3;
  if (batch.groups.size() != 3 || batch.columns.size() != columns ||
      batch.attributes.size() != store_.schema().attributes.size() ||
      batch.float_columns.size() != history_numbers_.size() + candidate_numbers_.size() ||
      batch.columns[static_cast<size_t>(history_times_)].name != "action_timestamp") {
    fail(ErrorCode::kInvalidArgument, "the batch to fill has columns of another kind of sample");
  }
}

Gatherer::Anchor Gatherer::locate(int64_t position) const {
  const EventLog::Place at = log_.place(position);
  const UserEvents of = log_.piece(at.piece).owner_of(at.position);
  return {at.piece, at.position, of.user, of.begin};
}

Gatherer::Anchor Gatherer::locate(const CandidateQuery& q) const {
  std::optional<Anchor> found;
  for (size_t p = log_.num_pieces(); p-- > 0;) {
    const UserEvents of = log_.piece(p).events_of(q.user);
    if (of.begin == of.end) continue;
    const int64_t* const times = log_.piece(p).timestamps().data();
    const int64_t* const first_not_before =
        std::lower_bound(times + of.begin, times + of.end, q.time);
    found = {p, first_not_before - times, q.user, of.begin};
    if (found->offset() > 0) break;  // else the history is in earlier pieces
  }
  if (found) return *found;
  fail(ErrorCode::kOutOfRange, fmt::format("user {} has no events in {}", q.user, store_.folder()));
}

/// The place of the user's first event at `time` or later.
Gatherer::Anchor Gatherer::before(Anchor anchor, int64_t time) const {
  const int64_t* const times = log_.piece(anchor.piece).timestamps().data();
  anchor.position =
      std::lower_bound(times + anchor.user_start, times + anchor.position, time) - times;
  return anchor;
}

Gatherer::Candidate Gatherer::candidate_at(const Anchor& anchor) const {
  const EventStore& piece = log_.piece(anchor.piece);
  const auto at = static_cast<size_t>(anchor.position);
  const int64_t organic = piece.organic()[at];  // NOLINT(bugprone-signed-char-misuse): a number
  return {piece.items()[at], piece.timestamps()[at], organic, label_at(piece, at)};
}

/// Labels are of all pools, also of those that later events decide.
int64_t Gatherer::label_at(const EventStore& piece, size_t at) const {
  size_t mask = 0;
  for (size_t p = 0; p < store_.schema().pools.size(); ++p) {
    if (label_pools_ >> p & 1) mask |= size_t{piece.in_pool(p)[at] != 0} << p;
  }
  return action_of_mask_[mask];
}

/// A candidate that is no event becomes one, behind all others; the oldest may have to make room.
int64_t Gatherer::append_question(int64_t user, const Candidate& candidate, int64_t begin,
                                  int64_t used, Batch& batch) const {
  const int64_t excess = used - begin == kept_ ? 1 : 0;
  std::vector<int64_t> event{candidate.item, 0, candidate.time, candidate.label};
  std::array<int64_t, kMaxCrossValues> values{};
  cross_values(user, candidate, values);
  for (const Cross& cross : crosses_) event.push_back(cross_id(cross, values));
  const int64_t* value = event.data();
  for (const int number : history_columns_) {
    HostArray<int64_t>& column = batch.columns[static_cast<size_t>(number)].values;
    column.resize(used + 1);
    int64_t* const first = column.data() + begin;
    std::copy(first + excess, column.data() + used, first);
    column[used - excess] = *value++;
  }
  resize_history_numbers(used + 1, batch);
  move_history_numbers(begin + excess, used, begin, batch);
  put_history_numbers(candidate, used - excess, batch);
  return used + 1 - excess;
}

void Gatherer::put_history_crosses(int64_t user, const Candidate& of, int64_t to,
                                   Batch& batch) const {
  std::array<int64_t, kMaxCrossValues> values{};
  cross_values(user, of, values);
  for (size_t c = 0; c < crosses_.size(); ++c) {
    batch.columns[static_cast<size_t>(history_crosses_) + c].values[to] =
        cross_id(crosses_[c], values);
  }
}

void Gatherer::cross_values(int64_t user, const Candidate& of, std::span<int64_t> values) const {
  values[kUser] = user;
  values[kItem] = of.item;
  values[kHour] = hour_of_day(of.time);
  values[kOrganic] = of.organic;
  const bool known = of.item >= 0 && of.item < store_.num_items();
  for (size_t a = 0; a < store_.schema().attributes.size(); ++a) {
    values[kFirstAttribute + a] = known ? store_.attribute_map(a)[static_cast<size_t>(of.item)] : 0;
  }
  const size_t of_user = kFirstAttribute + store_.schema().attributes.size();
  for (size_t a = 0; a < store_.schema().user_attributes.size(); ++a) {
    values[of_user + a] = store_.user_attribute(a, user);
  }
}

int64_t Gatherer::cross_id(const Cross& cross, std::span<const int64_t> values) {
  std::array<int64_t, kMaxCrossKeys> words{};
  for (int k = 0; k < cross.num_keys; ++k) {
    words[static_cast<size_t>(k)] = values[cross.keys[static_cast<size_t>(k)]];
  }
  const uint64_t hash = base::xxh64_words(words.data(), cross.num_keys, cross.salt);
  return static_cast<int64_t>(cross.rows == 0 ? hash : hash % cross.rows);
}

/// Everything of a sample that is not its history.
void Gatherer::put_sample(const Anchor& anchor, const Candidate& candidate, int64_t query_time,
                          int64_t sample, Batch& batch) const {
  const size_t num_attributes = store_.schema().attributes.size();
  std::array<int64_t, kMaxCrossValues> value{};
  cross_values(anchor.user, candidate, value);
  auto put = [&batch, sample, column = static_cast<size_t>(context_)](int64_t v) mutable {
    batch.columns[column++].values[sample] = v;
  };
  put(anchor.user);
  if (!config_.labelled_events()) {
    for (const Cross& cross : crosses_) put(cross_id(cross, value));
  }
  for (size_t a = 0; a < store_.schema().user_attributes.size(); ++a) {
    put(value[kFirstAttribute + num_attributes + a]);
  }
  put(query_time);
  if (config_.labelled_events()) return;

  auto put_candidate = [&batch, sample, column = static_cast<size_t>(candidates_)](
                           int64_t v) mutable { batch.columns[column++].values[sample] = v; };
  put_candidate(value[kItem]);
  for (size_t a = 0; a < num_attributes; ++a) put_candidate(value[kFirstAttribute + a]);
  put_candidate(query_time);
  put_candidate(candidate.label);
  put_candidate_numbers(anchor, candidate, sample, batch);
}

void Gatherer::fill(std::span<const int64_t> anchor_positions,
                    std::span<const int64_t> sample_index, Batch& batch,
                    std::span<const int64_t> starts) const {
  const size_t samples = starts.empty() ? anchor_positions.size() : starts.size() - 1;
  SEGUE_ASSERT(samples == sample_index.size(), "one number per sample");
  SEGUE_ASSERT(starts.empty() || config_.labelled_events(), "a sample has one candidate");
  std::vector<uint32_t> labelled;
  fill_samples(sample_index, batch, [&](int64_t i) {
    const auto s = static_cast<size_t>(i);
    const auto begin = starts.empty() ? s : static_cast<size_t>(starts[s] - starts[0]);
    const auto end = starts.empty() ? s + 1 : static_cast<size_t>(starts[s + 1] - starts[0]);
    Anchor anchor = locate(anchor_positions[end - 1]);
    const Candidate candidate = candidate_at(anchor);
    if (!config_.labelled_events()) return std::pair(anchor, candidate);
    labelled.clear();
    for (const int64_t position : anchor_positions.subspan(begin, end - begin)) {
      const int64_t offset = position - anchor_positions[end - 1] + anchor.offset();
      SEGUE_ASSERT(offset >= 0 && offset <= anchor.offset(), "anchors of one user, by time");
      labelled.push_back(static_cast<uint32_t>(offset));
    }
    ++anchor.position;
    anchor.labelled = labelled;
    return std::pair(anchor, candidate);
  });
}

void Gatherer::fill(std::span<const CandidateQuery> questions, Batch& batch) const {
  std::vector<int64_t> numbers(questions.size());
  std::iota(numbers.begin(), numbers.end(), 0);
  EventNumbers::AskedUser asked;
  std::vector<float> counts(numbers_ ? numbers_->width() : 0);
  fill_samples(numbers, batch, [&](int64_t i) {
    const CandidateQuery& q = questions[static_cast<size_t>(i)];
    if (numbers_) {
      const CountedEvent event{.item = q.item, .time = q.time, .organic = q.organic};
      numbers_->of_candidate(asked, q.user, event, counts);
    }
    return std::pair(locate(q), Candidate{q.item, q.time, q.organic, 0, false, q.numbers, counts});
  });
}

/// `sample` gives anchor and candidate of the i-th one.
template <class Sample>
void Gatherer::fill_samples(std::span<const int64_t> sample_index, Batch& batch,
                            Sample sample) const {
  if (batch.groups.empty()) {
    const int64_t global_samples = batch.global_samples;
    batch = sample_columns(store_.schema(), config_.labelled_events());
    batch.global_samples = global_samples;
  } else {
    check_schema(batch);
    batch.clear();
  }
  for (size_t a = 0; a < batch.attributes.size(); ++a) {
    batch.attributes[a].values = store_.attribute_map(a);
  }
  const auto samples = static_cast<int64_t>(sample_index.size());
  batch.sample_index.assign(sample_index);
  for (Batch::Group& group : batch.groups) group.offsets.resize(samples + 1);
  const int64_t candidates = config_.labelled_events() ? 0 : 1;
  for (Batch::Column& column : batch.columns) {
    if (column.group == kContextGroup) column.values.resize(samples);
    if (column.group == kCandidateGroup) column.values.resize(samples * candidates);
  }
  for (Batch::FloatColumn& column : batch.float_columns) {
    if (column.group == kCandidateGroup) column.values.resize(samples * candidates);
  }
  for (int64_t i = 0; i <= samples; ++i) {
    batch.groups[kContextGroup].offsets[i] = i;
    batch.groups[kCandidateGroup].offsets[i] = i * candidates;
  }

  HostArray<int64_t>& offsets = batch.groups[kHistoryGroup].offsets;
  HostArray<int64_t>& times = batch.columns[static_cast<size_t>(history_times_)].values;
  offsets[0] = 0;
  int64_t used = 0;
  for (int64_t i = 0; i < samples; ++i) {
    const auto [anchor, candidate] = sample(i);
    const int64_t begin = used;
    used = append_history(config_.same_time ? anchor : before(anchor, candidate.time), used, batch);
    if (config_.labelled_events() && anchor.labelled.empty()) {
      used = append_question(anchor.user, candidate, begin, used, batch);
    }
    offsets[i + 1] = used;
    const int64_t query_time = used > begin ? times[used - 1] : candidate.time;
    put_sample(anchor, candidate, query_time, i, batch);
  }
  for (Batch::Column& column : batch.columns) {
    if (column.group == kHistoryGroup) column.values.resize(used);
  }
  resize_history_numbers(used, batch);
}

}  // namespace segue::data
