#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/config.h"
#include "data/log/event.h"
#include "data/sample/sample_schema.h"

namespace segue::data {

/// Which events belong to a pool: any of `kinds`, with a value in [min_value, below_value) and, if
/// `flag` is given, with that flag set. An event without a value counts as 0.
struct PoolRule {
  std::string name;
  int64_t bit = 1;
  std::vector<std::string> kinds;  // empty: all
  double min_value = 0;
  double below_value = 0;  // 0: no upper bound
  std::string flag;        // one of the schema's flags; empty: none
};
void describe(base::ConfigVisitor& v, PoolRule& c);

/// A label that later events give: an event of `kinds` has it if one of `followed_by` comes at most
/// `within_seconds` later, of the same user and (Same::kItem) with the same item. It is known only
/// then, so it is a label and never a part of histories.
struct LaterRule {
  enum class Same { kItem, kUser };
  std::string name;
  int64_t bit = 1;
  std::vector<std::string> kinds, followed_by;
  int64_t within_seconds = 0;
  Same same = Same::kItem;
};
void describe(base::ConfigVisitor& v, LaterRule& c);

/// What the number 0 of an attribute says.
enum class ZeroMeaning { kNone, kValue };

/// Files that map items to an attribute, or users.
struct AttributeFile {
  std::string name;              // column of the samples, e.g. "artist_id"
  std::string file;              // relative to the raw folder
  std::string item = "item_id";  // column with the item, or the user
  std::string value;  // column with the attribute: integers, or text that gets numbers from 1
  ZeroMeaning zero = ZeroMeaning::kNone;  // kValue: numbers of the store are larger by one
  std::string separator;                  // between several values of one item; empty: it has one
  int64_t max_values = 1;  // that are kept of an item; more than one: columns name_1 and on
  // For a CSV file without a header line; empty: the file has one.
  std::vector<std::string> csv_columns;
  bool of_users = false;

  const char* whose() const { return of_users ? "user" : "item"; }
  bool several() const { return !separator.empty(); }
  /// Columns of the samples: the name, or genre_1 to genre_4 of an attribute of several values.
  std::vector<std::string> columns() const;
};
void describe(base::ConfigVisitor& v, AttributeFile& c);

struct UserAttributeFile : AttributeFile {
  UserAttributeFile() {
    item = "uid";
    of_users = true;
  }
};
void describe(base::ConfigVisitor& v, UserAttributeFile& c);

/// A map of the store, which is a column of the samples. The values of an attribute of several are
/// one each, with the same ids in all.
struct AttributeColumn {
  std::string name;  // artist_id, genre_1
  std::string file;  // item_to_artist.npy
  bool of_users = false;
  std::string bag;  // the attribute of several values that this is one of; empty: none
};

/// A column with a number of every event.
struct NumberColumn {
  std::string name;
  std::string column;    // of the log; empty: called like the number
  bool outcome = false;  // see NumberConfig

  const std::string& log_column() const { return column.empty() ? name : column; }
};
void describe(base::ConfigVisitor& v, NumberColumn& c);

/// How the ids of a column become the numbers of the store.
enum class IdMapping {
  kAuto,   // integers as they are, text dense
  kAsIs,   // integers as they are
  kDense,  // 0, 1, ... in the order of the distinct values (by value if all are integers)
};

/// Events that are equal in everything that a store keeps.
enum class Duplicates { kKeep, kDrop };

/// Where the columns of a raw event log are and what they mean. Presets: yambda-50m, yambda-500m,
/// yambda-5b.
struct LogSchema {
  std::string preset_name;  // the preset that the values start from; empty: none
  std::string label;        // becomes "size" in split_meta.json
  std::string events;       // relative to the raw folder: "flat/5b/multi_event.parquet", "*.csv"
  std::string user = "uid", item = "item_id", time = "timestamp";
  std::string kind;                // column; empty: every row is kinds[0]
  std::string value;               // column; empty: none
  std::vector<std::string> flags;  // columns of 0 and 1; the value becomes sum of flag i * 2^i
  std::string organic;             // column; empty: 0
  std::string length;              // column; empty: none
  double length_unit_seconds = 1;  // 0.001 for milliseconds; fractions are cut off
  double time_unit_seconds = 1;    // 0.001 for milliseconds; fractions are cut off
  std::string time_format;         // of times that are no numbers or ISO dates, see time_format.h
  IdMapping user_ids = IdMapping::kAuto, item_ids = IdMapping::kAuto;
  std::string csv_separator = ",";       // one or more characters
  std::vector<std::string> csv_columns;  // for files without a header line; empty: they have one
  std::vector<std::string> kinds = {
      "event"};                           // names (or numbers as text) in order of their number
  std::vector<std::string> anchor_kinds;  // events of these kinds may be predicted
  std::vector<PoolRule> pools;
  std::vector<LaterRule> later;
  std::string label_pool;  // of pools or later; empty: the bits of all of them are labels
  std::vector<AttributeFile> attributes;
  std::vector<UserAttributeFile> user_attributes;
  std::vector<NumberColumn> numbers;
  std::vector<CrossConfig> crosses;
  Duplicates duplicates = Duplicates::kKeep;
  /// With the last event at t: test is [t - test_seconds, t), train the train_days before
  /// t - test_seconds - gap_seconds. train_days 0: from the first event on. test_seconds and
  /// gap_seconds both 0: no test, every event trains, the last one too. Where labels wait for
  /// later events, train ends where the last of them is known.
  int64_t test_seconds = 86400, gap_seconds = 1800, train_days = 300, session_gap_seconds = 1800;

  static LogSchema preset(std::string_view name);  // Error(kConfig) with the known names
  static const std::vector<std::string>& preset_names();
  void validate() const;  // Error(kConfig) naming every mistake
  SampleSchema samples() const;
  /// Attributes of items, then of users, and the columns that they are in a store.
  std::vector<const AttributeFile*> all_attributes() const;
  std::vector<AttributeColumn> attribute_columns() const;
  int64_t longest_wait() const;  // seconds that labels of `later` wait for
};
void describe(base::ConfigVisitor& v, LogSchema& c);

/// A schema file, on top of the preset that it names (if any), checked.
LogSchema load_log_schema(const base::ConfigSources& sources);

/// Numbers of kinds as bits; the schema is a checked one.
uint64_t kind_bits(const LogSchema& schema, const std::vector<std::string>& names);

/// The rules of a schema for events in bulk: numbers in place of names. Pools are those of the
/// schema, then its `later`.
class EventRules {
 public:
  explicit EventRules(const LogSchema& schema);
  size_t num_pools() const { return pools_.size(); }
  bool in_pool(size_t pool, const Event& e) const {
    const Pool& p = pools_[pool];
    if (p.outcome != 0) return (e.outcomes & p.outcome) != 0;
    const float value = e.has_value() ? e.value : 0.f;
    return (p.kinds >> e.kind & 1) != 0 && value >= p.min_value && value < p.below_value &&
           (p.flags == 0 || (static_cast<uint32_t>(value) & p.flags) != 0);
  }
  bool may_be_anchor(const Event& e) const { return (anchor_kinds_ >> e.kind & 1) != 0; }

 private:
  struct Pool {
    uint64_t kinds = 0;
    float min_value = 0, below_value = 0;
    uint32_t flags = 0;
    uint8_t outcome = 0;  // of a later label: its bit of Event::outcomes
  };
  std::vector<Pool> pools_;
  uint64_t anchor_kinds_ = 0;
};

/// Most kinds, flags and later labels that a schema may have: they are bits of a word, of a float
/// and of Event::outcomes.
inline constexpr size_t kMaxKinds = 64;
inline constexpr size_t kMaxFlags = 24;
inline constexpr size_t kMaxLater = 8;

}  // namespace segue::data
