#include "data/sample/sample_schema.h"

#include <algorithm>
#include <functional>
#include <set>

#include <fmt/format.h>

#include "base/config_checks.h"
#include "data/numbers/user_counts.h"

namespace segue::data {
namespace {

using base::fail_config;

/// The pool of this name would have the file of another column.
constexpr const char* kOrganicColumn = "organic";

/// Columns that every batch has, besides those that are called like the keys of a cross.
constexpr const char* kOtherColumns[] = {"dummy_query_time", "action_weight",
                                         "action_timestamp", "item_candidate_id",
                                         "item_query_time",  "item_action_weight"};

/// Names become parts of file names and columns of a batch.
void require_name(const char* what, const std::string& name) {
  const auto plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
  };
  if (name.empty() || !std::ranges::all_of(name, plain)) {
    fail_config(fmt::format("{} `{}`: a name has letters, digits and underscores", what, name));
  }
}

/// A cross has one id, so it takes one value.
void validate_key(const SampleSchema& schema, const CrossConfig& cross, const std::string& key) {
  for (const std::vector<AttributeConfig>* list : {&schema.attributes, &schema.user_attributes}) {
    if (values_of(*list, key) == 0) continue;
    fail_config(fmt::format(
        "cross `{}`: key `{}` has several values; name one of its columns, such as `{}_1`",
        cross.name, key, key));
  }
}

void validate_cross(const CrossConfig& cross, const std::set<std::string>& attributes) {
  if (cross.keys.empty() || cross.keys.size() > kMaxCrossKeys) {
    fail_config(fmt::format("cross `{}` has {} keys; 1 to {} can be hashed", cross.name,
                            cross.keys.size(), kMaxCrossKeys));
  }
  if (cross.rows < 1) fail_config(fmt::format("cross `{}`: rows must be at least 1", cross.name));
  for (const std::string& key : cross.keys) {
    if (std::ranges::find(kCrossKeys, key) == std::end(kCrossKeys) && !attributes.contains(key)) {
      fail_config(fmt::format("cross `{}`: key `{}` is none of {} and no attribute", cross.name,
                              key, fmt::join(kCrossKeys, ", ")));
    }
  }
}

}  // namespace

void describe(base::ConfigVisitor& v, PoolConfig& c) {
  v.field("name", c.name, "the store's column is flat_is_<name>.npy");
  v.field("bit", c.bit, "its bit in the action column");
  v.field("known_after_seconds", c.known_after_seconds,
          "above 0: a label that later events give, no part of histories");
}

void describe(base::ConfigVisitor& v, AttributeConfig& c) {
  v.field("name", c.name, "column of the samples");
  v.field("file", c.file, "map from items, item_to_<short>.npy of the store");
}

std::string AttributeConfig::stem() const {
  constexpr std::string_view kSuffix = "_id";
  const bool has = name.size() > kSuffix.size() && name.ends_with(kSuffix);
  return name.substr(0, name.size() - (has ? kSuffix.size() : 0));
}

void describe(base::ConfigVisitor& v, NumberConfig& c) {
  v.field("name", c.name, "the store's column is flat_number_<name>.npy");
  v.field("outcome", c.outcome, "it shows only after the event");
}

void describe(base::ConfigVisitor& v, CrossConfig& c) {
  v.field("name", c.name, "column of the samples");
  v.field("keys", c.keys, "uid, item_id, hour_of_day, is_organic, or attributes of items or users");
  v.field("rows", c.rows, "ids are hashes modulo this");
  v.field("salt", c.salt, "seed of the hash");
}

void describe(base::ConfigVisitor& v, SampleSchema& c) {
  v.list("pools", c.pools, "sets of events that enter histories");
  v.field("label_pool", c.label_pool, "pool whose bit is the label; empty: the bits of all pools");
  v.list("attributes", c.attributes, "functions of the item");
  v.list("user_attributes", c.user_attributes, "functions of the user");
  v.list("numbers", c.numbers, "numbers that the log has of every event");
  v.list("crosses", c.crosses, "crossed features");
  v.field("anchor_kinds", c.anchor_kinds, "kinds of events that may be predicted");
}

SampleSchema SampleSchema::yambda() {
  SampleSchema s;
  s.pools = {{"listen_plus", 1}, {"like", 2}, {"skip", 4}};
  s.label_pool = "listen_plus";
  s.attributes = {{"artist_id", "item_to_artist.npy"}, {"album_id", "item_to_album.npy"}};
  s.crosses = {{"user_x_artist", {"uid", "artist_id"}, 100'000'000},
               {"user_x_album", {"uid", "album_id"}, 40'000'000},
               {"user_x_hour", {"uid", "hour_of_day"}, 24'000'000},
               {"item_x_hour", {"item_id", "hour_of_day"}, 40'000'000},
               {"artist_x_hour", {"artist_id", "hour_of_day"}, 32'000'000},
               {"user_x_is_organic", {"uid", "is_organic"}, 2'000'000},
               {"user_x_artist_x_hour", {"uid", "artist_id", "hour_of_day"}, 40'000'000}};
  return s;
}

int64_t values_of(const std::vector<AttributeConfig>& attributes, std::string_view bag) {
  return bag.empty() ? 0 : std::ranges::count(attributes, bag, &AttributeConfig::bag);
}

std::set<std::string> reserved_columns() {
  std::set<std::string> columns(std::begin(kCrossKeys), std::end(kCrossKeys));
  columns.insert(std::begin(kOtherColumns), std::end(kOtherColumns));
  return columns;
}

size_t columns_of(const std::vector<AttributeConfig>& attributes, size_t first) {
  return static_cast<size_t>(std::max<int64_t>(1, values_of(attributes, attributes[first].bag)));
}

size_t SampleSchema::num_history_pools() const {
  return static_cast<size_t>(std::ranges::count(pools, 0, &PoolConfig::known_after_seconds));
}

std::optional<size_t> SampleSchema::label_place() const {
  const auto found = std::ranges::find(pools, label_pool, &PoolConfig::name);
  if (found == pools.end()) return std::nullopt;
  return static_cast<size_t>(found - pools.begin());
}

void SampleSchema::validate() const {
  if (pools.empty() || pools.size() > kMaxPools) {
    fail_config(fmt::format("{} pools; samples need 1 to {}", pools.size(), kMaxPools));
  }
  std::set<std::string> pool_names;
  for (const PoolConfig& pool : pools) {
    require_name("pool", pool.name);
    if (!pool_names.insert(pool.name).second)
      fail_config(fmt::format("pool `{}` is twice", pool.name));
    if (pool.name == kOrganicColumn) {
      fail_config(
          fmt::format("pool `{}`: the store's column flat_is_{} is the organic flag; choose "
                      "another name",
                      pool.name, pool.name));
    }
    if (pool.bit < 1) fail_config(fmt::format("pool `{}`: bit must be positive", pool.name));
    if (pool.known_after_seconds < 0) {
      fail_config(fmt::format("pool `{}`: known_after_seconds must not be negative", pool.name));
    }
  }
  const auto waits = [](const PoolConfig& pool) { return pool.known_after_seconds > 0; };
  if (waits(pools.front()) || !std::ranges::is_partitioned(pools, std::not_fn(waits))) {
    fail_config("pools that histories are made of come first, and there is at least one");
  }
  if (!label_pool.empty() && !pool_names.contains(label_pool)) {
    fail_config(fmt::format("label_pool `{}` is none of the pools", label_pool));
  }
  std::set<std::string> columns = reserved_columns();
  std::set<std::string> attribute_names;
  for (const std::vector<AttributeConfig>* list : {&attributes, &user_attributes}) {
    if (list->size() > kMaxAttributes) {
      fail_config(
          fmt::format("{} attributes of {}; samples hold at most {}, and one of several values "
                      "counts as many times as its max_values says: lower one, or leave one out",
                      list->size(), list == &attributes ? "items" : "users", kMaxAttributes));
    }
    for (const AttributeConfig& attribute : *list) {
      require_name("attribute", attribute.name);
      if (!columns.insert(attribute.name).second ||
          (list == &attributes && !columns.insert(candidate_column(attribute.name)).second)) {
        fail_config(fmt::format("attribute `{}` has a name that is taken", attribute.name));
      }
      attribute_names.insert(attribute.name);
      if (!attribute.file.ends_with(".npy") || attribute.file.find('/') != std::string::npos) {
        fail_config(fmt::format("attribute `{}`: file `{}` is not the name of an .npy file",
                                attribute.name, attribute.file));
      }
    }
  }
  const std::vector<std::string> counts = count_names(*this);
  if (numbers.size() > kMaxNumbers) {
    fail_config(fmt::format("{} numbers; an event has at most {}", numbers.size(), kMaxNumbers));
  }
  for (const NumberConfig& number : numbers) {
    require_name("number", number.name);
    if (std::ranges::find(counts, number.name) != counts.end() ||
        !columns.insert(number.name).second ||
        !columns.insert(candidate_column(number.name)).second) {
      fail_config(fmt::format("number `{}` has a name that is taken", number.name));
    }
  }
  for (const CrossConfig& cross : crosses) {
    require_name("cross", cross.name);
    if (!columns.insert(cross.name).second) {
      fail_config(fmt::format("cross `{}` has a name that is taken", cross.name));
    }
    for (const std::string& key : cross.keys) validate_key(*this, cross, key);
    validate_cross(cross, attribute_names);
  }
  for (const int64_t kind : anchor_kinds) {
    if (kind < 0 || kind > 255) fail_config("anchor_kinds are numbers of kinds, 0 to 255");
  }
}

}  // namespace segue::data
