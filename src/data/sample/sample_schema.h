#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/config.h"

namespace segue::data {

/// A set of events that enters histories, e.g. "listened to at least half". An event may be in
/// several.
struct PoolConfig {
  std::string name;  // column flat_is_<name>.npy of the store
  int64_t bit = 1;   // its bit in the action column
  /// Above 0: later events decide, up to so much later, so it is a label and no part of histories.
  int64_t known_after_seconds = 0;
};
void describe(base::ConfigVisitor& v, PoolConfig& c);

/// A property that is a function of the item: artist, album, category.
struct AttributeConfig {
  std::string name;      // column of the batch, e.g. "artist_id"
  std::string file;      // item_to_<short>.npy of the store, e.g. item_to_artist.npy
  std::string bag = {};  // the attribute of several values that this is one of; empty: none

  std::string stem() const;  // artist of artist_id
};
void describe(base::ConfigVisitor& v, AttributeConfig& c);

/// A number that the log has of every event: its price, its place on the page, how long it took.
struct NumberConfig {
  std::string name;      // column flat_number_<name>.npy of the store, of floats; NaN: missing
  bool outcome = false;  // shows only after the event: histories have it, what is predicted has not
};
void describe(base::ConfigVisitor& v, NumberConfig& c);

/// A crossed feature: XXH64 over the named keys, modulo rows.
struct CrossConfig {
  std::string name;
  // uid, item_id, hour_of_day, is_organic, or the name of an attribute of items or users
  std::vector<std::string> keys;
  int64_t rows = 0;
  int64_t salt = 0;
  bool whole_hash = false;  // not cut to rows: the table that is looked up takes any id
};
void describe(base::ConfigVisitor& v, CrossConfig& c);

/// What a sample made from an event store looks like.
struct SampleSchema {
  std::vector<PoolConfig> pools;
  std::string label_pool;  // the candidate's label is that pool's bit; empty: the bits of all pools
  std::vector<AttributeConfig> attributes;
  std::vector<AttributeConfig> user_attributes;  // functions of the user: user_to_<short>.npy
  std::vector<NumberConfig> numbers;
  std::vector<CrossConfig> crosses;
  /// Kinds of events that may be predicted; asked only when a store comes without the anchor list
  /// that is wanted.
  std::vector<int64_t> anchor_kinds = {0};
  /// Numeric features that samples carry, by names of numbers/user_counts.h or of `numbers`: of
  /// every event of the history, of the candidates. Whoever reads samples says which.
  std::vector<std::string> history_numbers = {}, candidate_numbers = {};

  /// Pools that histories are made of: the first ones.
  size_t num_history_pools() const;
  /// Of label_pool among the pools; none where the bits of all are labels.
  std::optional<size_t> label_place() const;

  static SampleSchema yambda();  // the benchmark's
  void validate() const;         // Error(kConfig)
};
void describe(base::ConfigVisitor& v, SampleSchema& c);

/// Values that an attribute of several has at most: its columns are bag_1 and on; 0: it is none.
int64_t values_of(const std::vector<AttributeConfig>& attributes, std::string_view bag);
/// Columns from `first` on that are values of one attribute.
size_t columns_of(const std::vector<AttributeConfig>& attributes, size_t first);

/// What a candidate's column is called, given that of an event.
inline std::string candidate_column(const std::string& event) { return "item_candidate_" + event; }

/// Columns that every batch has, which no feature may be called like.
std::set<std::string> reserved_columns();

/// Names that a cross may use besides those of attributes, in the order in which values are kept.
inline constexpr const char* kCrossKeys[] = {"uid", "item_id", "hour_of_day", "is_organic"};
inline constexpr size_t kMaxPools = 16;       // a pool is a bit of a merge key
inline constexpr size_t kMaxAttributes = 24;  // columns of items, and of users
inline constexpr size_t kMaxNumbers = 64;
inline constexpr size_t kMaxCrossKeys = 3;  // the hash takes its short path below 32 bytes

}  // namespace segue::data
