#include "data/log/log_schema.h"

#include <algorithm>
#include <limits>

#include <fmt/format.h>

#include "base/config_checks.h"
#include "base/error.h"

namespace segue::data {
namespace {

int64_t index_of(const std::vector<std::string>& names, std::string_view name) {
  const auto found = std::find(names.begin(), names.end(), name);
  return found == names.end() ? -1 : found - names.begin();
}

LogSchema yambda(std::string_view size) {
  LogSchema c;
  c.preset_name = fmt::format("yambda-{}", size);
  c.label = size;
  c.events = fmt::format("flat/{}/multi_event.parquet", size);
  c.kind = "event_type";
  c.value = "played_ratio_pct";
  c.organic = "is_organic";
  c.length = "track_length_seconds";
  c.kinds = {"listen", "like", "dislike", "unlike", "undislike"};
  c.anchor_kinds = {"listen"};
  c.pools = {{.name = "listen_plus", .bit = 1, .kinds = {"listen"}, .min_value = 50},
             {.name = "like", .bit = 2, .kinds = {"like"}},
             {.name = "skip", .bit = 4, .kinds = {"listen"}, .below_value = 50}};
  c.label_pool = "listen_plus";
  c.attributes = {
      {.name = "artist_id", .file = "artist_item_mapping.parquet", .value = "artist_id"},
      {.name = "album_id", .file = "album_item_mapping.parquet", .value = "album_id"}};
  c.crosses = SampleSchema::yambda().crosses;
  return c;
}

}  // namespace

void describe(base::ConfigVisitor& v, PoolRule& c) {
  v.field("name", c.name, "column flat_is_<name>.npy of the store");
  v.field("bit", c.bit, "its bit in the action column, a power of two");
  v.field("kinds", c.kinds, "kinds of events in the pool; empty: all");
  v.field("min_value", c.min_value, "smallest value of an event in the pool");
  v.field("below_value", c.below_value, "values are below this; 0: no upper bound");
  v.field("flag", c.flag, "flag that must be set; empty: none");
}

void describe(base::ConfigVisitor& v, LaterRule& c) {
  v.field("name", c.name, "as that of a pool");
  v.field("bit", c.bit, "its bit in labels, a power of two that no pool has");
  v.field("kinds", c.kinds, "kinds of events that it is told of");
  v.field("followed_by", c.followed_by, "kinds of later events that make it true");
  v.field("within_seconds", c.within_seconds, "how much later at most");
  v.choice("same", c.same, {"item", "user"}, "item: the later event has the same item");
}

std::vector<std::string> AttributeFile::columns() const {
  if (!several()) return {name};
  std::vector<std::string> all;
  // Far more than there may be say that, one by one they would only take memory.
  for (int64_t k = 1; k <= std::min(max_values, int64_t{kMaxAttributes}); ++k) {
    all.push_back(fmt::format("{}_{}", name, k));
  }
  return all;
}

void describe(base::ConfigVisitor& v, AttributeFile& c) {
  v.field("name", c.name, "column of the samples, for example artist_id");
  v.field("file", c.file, "file with the rows, relative to the raw folder");
  v.field("item", c.item, "column with the item");
  v.field("value", c.value, "column with the attribute: integers, or text (numbered from 1)");
  v.choice("zero", c.zero, {"none", "value"},
           "what 0 says: no value, or one like others (the store's numbers are larger by one)");
  v.field("separator", c.separator, "between several values of an item; empty: it has one");
  v.field("max_values", c.max_values, "with a separator: the first values of an item are kept");
  v.field("csv_columns", c.csv_columns, "names of the columns of a CSV file without header line");
}

void describe(base::ConfigVisitor& v, UserAttributeFile& c) {
  v.field("name", c.name, "column of the samples, for example country");
  v.field("file", c.file, "file with the rows, relative to the raw folder");
  v.field("user", c.item, "column with the user");
  v.field("value", c.value, "column with the attribute: integers, or text (numbered from 1)");
  v.choice("zero", c.zero, {"none", "value"}, "as that of an attribute of items");
  v.field("separator", c.separator, "between several values of a user; empty: one has one");
  v.field("max_values", c.max_values, "with a separator: the first values of a user are kept");
  v.field("csv_columns", c.csv_columns, "names of the columns of a CSV file without header line");
}

void describe(base::ConfigVisitor& v, NumberColumn& c) {
  v.field("name", c.name, "what it is called: letters, digits and underscores");
  v.field("column", c.column, "column of the log; empty: called like the number");
  v.field("outcome", c.outcome,
          "true: it shows only after the event, as how long it was watched; what is predicted does "
          "not see it");
}

void describe(base::ConfigVisitor& v, LogSchema& c) {
  v.field("preset", c.preset_name, "start from yambda-50m, yambda-500m or yambda-5b");
  v.field("label", c.label, "name of the log; \"size\" in split_meta.json");
  v.field("events", c.events,
          "Parquet or CSV file, or a pattern such as \"*.csv\", in the raw folder");
  v.field("user", c.user, "column with the user");
  v.field("item", c.item, "column with the item");
  v.field("time", c.time, "column with the time");
  v.field("kind", c.kind, "column with the kind of event; empty: every row is the first kind");
  v.field("value", c.value, "column with a strength of 0 and more; empty: none");
  v.field("flags", c.flags, "columns of 0 and 1 that make the value, flag i counting 2^i");
  v.field("organic", c.organic, "column: 1 when the user chose the item unprompted; empty: 0");
  v.field("length", c.length, "column with the length of the item; empty: none");
  v.field("length_unit_seconds", c.length_unit_seconds, "unit of that column; 0.001: milliseconds");
  v.field("time_unit_seconds", c.time_unit_seconds, "unit of the time column; 0.001: milliseconds");
  v.field("time_format", c.time_format,
          "how times are written, such as \"%d.%m.%Y %H:%M\"; empty: numbers or ISO 8601");
  v.choice(
      "user_ids", c.user_ids, {"auto", "as_is", "dense"},
      "auto: integers as they are, text dense; dense: 0, 1, ... by order of the distinct values");
  v.choice("item_ids", c.item_ids, {"auto", "as_is", "dense"}, "as user_ids");
  v.field("csv_separator", c.csv_separator, "between the fields of a CSV line, such as \"::\"");
  v.field("csv_columns", c.csv_columns, "names of the columns of CSV files without header line");
  v.field("kinds", c.kinds, "kinds of events; the position is the number");
  v.field("anchor_kinds", c.anchor_kinds, "kinds of events to predict");
  v.list("pools", c.pools, "sets of events that make up histories");
  v.list("later", c.later, "labels that later events give; never part of histories");
  v.field("label_pool", c.label_pool,
          "pool or later that the label tells of; empty: the bits of all");
  v.list("attributes", c.attributes, "files that map items to attributes");
  v.list("user_attributes", c.user_attributes, "files that map users to attributes");
  v.list("numbers", c.numbers, "columns with numbers of events");
  v.list("crosses", c.crosses, "crossed features");
  v.choice("duplicates", c.duplicates, {"keep", "drop"},
           "events that are equal in everything: keep all, or one of them");
  v.field("test_seconds", c.test_seconds, "length of the test part at the end of the log");
  v.field("gap_seconds", c.gap_seconds, "left out between train and test");
  v.field("train_days", c.train_days, "length of the train part; 0: from the first event on");
  v.field("session_gap_seconds", c.session_gap_seconds, "a longer pause begins a session");
}

LogSchema LogSchema::preset(std::string_view name) {
  constexpr std::string_view kPrefix = "yambda-";
  if (index_of(preset_names(), name) < 0) {
    const std::string nearest = base::nearest_name(name, preset_names());
    fail(ErrorCode::kConfig,
         fmt::format("there is no event log preset \"{}\"; {}", name,
                     nearest.empty() ? fmt::format("there are: {}", fmt::join(preset_names(), ", "))
                                     : fmt::format("did you mean \"{}\"?", nearest)));
  }
  return yambda(name.substr(kPrefix.size()));
}

const std::vector<std::string>& LogSchema::preset_names() {
  static const std::vector<std::string> kNames = {"yambda-50m", "yambda-500m", "yambda-5b"};
  return kNames;
}

SampleSchema LogSchema::samples() const {
  SampleSchema result;
  result.pools.clear();
  result.attributes.clear();
  for (const PoolRule& pool : pools) result.pools.push_back({.name = pool.name, .bit = pool.bit});
  for (const LaterRule& rule : later) {
    result.pools.push_back(
        {.name = rule.name, .bit = rule.bit, .known_after_seconds = rule.within_seconds});
  }
  result.label_pool = label_pool;
  for (const AttributeColumn& a : attribute_columns()) {
    (a.of_users ? result.user_attributes : result.attributes)
        .push_back({.name = a.name, .file = a.file, .bag = a.bag});
  }
  for (const NumberColumn& n : numbers) {
    result.numbers.push_back({.name = n.name, .outcome = n.outcome});
  }
  result.crosses = crosses;
  result.anchor_kinds.clear();
  for (const std::string& name : anchor_kinds) {
    result.anchor_kinds.push_back(index_of(kinds, name));
  }
  std::sort(result.anchor_kinds.begin(), result.anchor_kinds.end());
  return result;
}

std::vector<const AttributeFile*> LogSchema::all_attributes() const {
  std::vector<const AttributeFile*> all;
  for (const AttributeFile& a : attributes) all.push_back(&a);
  for (const UserAttributeFile& a : user_attributes) all.push_back(&a);
  return all;
}

std::vector<AttributeColumn> LogSchema::attribute_columns() const {
  std::vector<AttributeColumn> all;
  for (const AttributeFile* const a : all_attributes()) {
    for (const std::string& name : a->columns()) {
      const std::string stem = AttributeConfig{.name = name}.stem();
      all.push_back({name, fmt::format("{}_to_{}.npy", a->whose(), stem), a->of_users,
                     a->several() ? a->name : ""});
    }
  }
  return all;
}

int64_t LogSchema::longest_wait() const {
  int64_t longest = 0;
  for (const LaterRule& rule : later) longest = std::max(longest, rule.within_seconds);
  return longest;
}

LogSchema load_log_schema(const base::ConfigSources& sources) {
  if (base::has_key(sources, "model") || base::has_key(sources, "sparse")) {
    fail(ErrorCode::kConfig,
         fmt::format("{} is the config of a run, which `segue train` takes; this takes the schema "
                     "of a log: see configs/schemas and docs/prep.md",
                     sources.file));
  }
  LogSchema schema;
  if (const auto name = base::peek_string(sources, "preset"); name && !name->empty()) {
    schema = LogSchema::preset(*name);
  }
  base::load_config(schema, sources);
  schema.validate();
  return schema;
}

uint64_t kind_bits(const LogSchema& schema, const std::vector<std::string>& names) {
  uint64_t bits = 0;
  for (const std::string& name : names) {
    const int64_t kind = index_of(schema.kinds, name);
    SEGUE_ASSERT(kind >= 0 && kind < static_cast<int64_t>(kMaxKinds), "an unchecked schema");
    bits |= uint64_t{1} << kind;
  }
  return bits;
}

EventRules::EventRules(const LogSchema& schema) {
  for (const PoolRule& rule : schema.pools) {
    Pool pool;
    pool.kinds = rule.kinds.empty() ? ~uint64_t{0} : kind_bits(schema, rule.kinds);
    // Values are float, and so are the thresholds: as a double 0.7 is more than as a float.
    pool.min_value = static_cast<float>(rule.min_value);
    pool.below_value = rule.below_value == 0 ? std::numeric_limits<float>::infinity()
                                             : static_cast<float>(rule.below_value);
    if (!rule.flag.empty()) {
      const int64_t flag = index_of(schema.flags, rule.flag);
      SEGUE_ASSERT(flag >= 0 && flag < static_cast<int64_t>(kMaxFlags), "an unchecked schema");
      pool.flags = uint32_t{1} << flag;
    }
    pools_.push_back(pool);
  }
  for (size_t i = 0; i < schema.later.size(); ++i) {
    Pool pool;
    pool.outcome = static_cast<uint8_t>(1U << i);
    pools_.push_back(pool);
  }
  anchor_kinds_ = kind_bits(schema, schema.anchor_kinds);
}

}  // namespace segue::data
