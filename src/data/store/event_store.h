#pragma once

#include <cstdint>
#include <deque>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/npy.h"
#include "data/sample/sample_schema.h"
#include "data/store/index_file.h"
#include "data/store/segments.h"
#include "data/store/store_manifest.h"
#include "data/store/verified_files.h"

namespace segue::data {

/// The anchors of one minimum history: events that may be predicted. Views into the store.
struct Anchors {
  std::span<const int64_t> positions;           // event index, ascending
  std::span<const int64_t> timestamps;          // of each anchor
  std::string positions_file, timestamps_file;  // for messages
};

/// The events [begin, end) of a user.
struct UserEvents {
  int64_t user = 0, begin = 0, end = 0;
};

/// A flat event cache, mapped read-only: one .npy per column, events in (user, time) order. It
/// opens what `segue prep` and `segue synth` write and, unchanged, what the public reference
/// writes. Opening checks that the files are there, have the right types and agree in length, that
/// the store was finished, and that users tile the events; Error(kCorrupt) names the files that
/// disagree. Columns of events are not looked through, that would take as long as training on them:
/// what they hold may be any number, and only owner_of() and the tables of users are safe to index
/// with. StoreVerifier compares checksums.
///
/// Layout of a store:  STORE/hstu_cache_L<history>/    the columns
///                     STORE/item_to_<attribute>.npy   maps from items, user_to_<attribute>.npy
///                                                     from users
///                     STORE/segue/                    what Segue derives from it, made when needed
///                     STORE/segue/segments/000001 ... what was appended, each a store like it
///
/// Columns, users and anchors are those of one piece: of the store without its segments(), or of a
/// segment; EventLog has them all. Maps are the newest ones.
///
/// Safe to use from several threads.
class EventStore {
 public:
  /// `path` is the store or its cache folder. `index_folder` replaces STORE/segue where the store
  /// cannot be written; one such folder serves one store.
  /// Opens the first `most_segments` segments, if there are so many.
  EventStore(const std::string& path, const SampleSchema& schema,
             const std::string& index_folder = "", VerifyMode verify = VerifyMode::kAuto,
             int64_t most_segments = kAllSegments);
  EventStore(const EventStore&) = delete;
  EventStore& operator=(const EventStore&) = delete;

  int64_t num_events() const { return static_cast<int64_t>(items_.size()); }
  int64_t num_users() const { return static_cast<int64_t>(unique_users_.size()); }
  int64_t history_length() const { return history_length_; }  // the L of the folder's name
  std::span<const std::unique_ptr<EventStore>> segments() const { return segments_; }

  /// Whose event this is. Error(kCorrupt) if there is no such event, or if flat_uid says otherwise
  /// than the tables of users.
  UserEvents owner_of(int64_t position) const;
  /// The events of any user, maybe none.
  UserEvents events_of(int64_t user) const;
  /// The newest time of all events: a look at the last event of every user.
  int64_t last_time() const;

  // Per event, as the files have it.
  std::span<const int64_t> users() const { return users_; }
  std::span<const int64_t> items() const { return items_; }
  std::span<const int64_t> timestamps() const { return timestamps_; }
  std::span<const int64_t> kinds() const { return kinds_; }
  std::span<const int8_t> organic() const { return organic_; }
  std::span<const uint8_t> in_pool(size_t pool) const { return pools_[pool]; }     // 0 or 1
  std::span<const float> number(size_t number) const { return numbers_[number]; }  // NaN: missing

  // By user id: events [start, end), -1 where there is no such user.
  std::span<const int64_t> user_start() const { return user_start_; }
  std::span<const int64_t> user_end() const { return user_end_; }
  std::span<const int64_t> unique_users() const { return unique_users_; }  // ascending

  /// Events that have at least `min_history` earlier ones of their user, in pieces before it too:
  /// positions_L<L>[_m<min>].npy and its timestamps. Made in the index folder, by
  /// schema().anchor_kinds, if the cache has none.
  Anchors anchors(int64_t min_history) const;

  /// Attribute of an item, 4 bytes each. History ids are clipped into the map; a candidate beyond
  /// it has attribute 0. All maps have num_items() entries.
  std::span<const int32_t> attribute_map(size_t attribute) const {
    return attribute_maps_[attribute];
  }
  int64_t num_items() const { return num_items_; }
  /// The same of users; 0 for one beyond the map.
  std::span<const int32_t> user_attribute_map(size_t attribute) const {
    return user_attribute_maps_[attribute];
  }
  int64_t user_attribute(size_t attribute, int64_t user) const {
    const std::vector<int32_t>& map = user_attribute_maps_[attribute];
    return user >= 0 && user < std::ssize(map) ? map[static_cast<size_t>(user)] : 0;
  }

  const SampleSchema& schema() const { return schema_; }
  const std::string& folder() const { return folder_; }
  const std::string& cache_folder() const { return cache_folder_; }
  const std::string& index_folder() const { return index_folder_; }
  /// Path of a column's file: "flat_uid" and the like.
  std::string column_path(std::string_view column) const;
  /// No event of this piece has an item from there on, says the manifest; without one any may.
  int64_t items_end() const;

  /// fingerprint() of what was read of a file; of a large array also with the checksums that the
  /// store has of the file, so that no change is overlooked.
  uint64_t fingerprint_of_file(const std::string& path, std::span<const std::byte> bytes,
                               uint64_t seed) const;
  template <class T>
  uint64_t fingerprint_of_file(const std::string& path, std::span<const T> items,
                               uint64_t seed) const {
    return fingerprint_of_file(path, std::as_bytes(items), seed);
  }
  template <class T>
  uint64_t fingerprint_of_column(std::string_view column, std::span<const T> items,
                                 uint64_t seed) const {
    return fingerprint_of_file(column_path(column), std::as_bytes(items), seed);
  }

  /// What has been read so far and has checksums, in the manifest or (anchors made here) of its
  /// own; nothing with VerifyMode::kNever.
  std::vector<CheckedFile> checked_files() const;
  /// What has been read so far and is not in the manifest.
  std::vector<std::string> unlisted_files() const;
  VerifyMode verify_mode() const { return verify_; }
  bool has_manifest() const { return manifest_.has_value(); }
  VerifiedFiles& verified() const { return *verified_; }  // not with VerifyMode::kNever
  /// Compares opened files with their checksums, those that have not been compared before. What is
  /// derived from a store must not outlive a damage of it: call this before. Error(kCorrupt).
  void require_intact(std::span<const std::string> paths) const;
  [[noreturn]] void fail_damaged(const std::string& path, const std::string& problem) const;

  /// Runs of whole users, about `events_per_run` events each: numbers of first users in
  /// unique_users(), ending with num_users(). What a builder hands to its threads.
  std::vector<size_t> user_runs(int64_t events_per_run) const;

 private:
  struct AnchorFiles;

  /// Segment `number` of `base`, whose earlier ones are open.
  EventStore(const EventStore& base, int64_t number);
  void open();
  void open_segments(int64_t most);
  int64_t first_anchor(const UserEvents& events, int64_t min_history) const;
  void find_folders(const std::string& path, const std::string& index_folder);
  void open_manifest();
  void note_opened(const std::string& path, const base::FileIdentity& identity) const;
  void open_columns();
  void check_users() const;
  void check_metadata() const;
  void open_attributes();
  void open_user_attributes();
  std::vector<int32_t> open_map(const AttributeConfig& attribute, std::string& source) const;
  template <class T>
  std::span<const T> open_column(std::string_view name, std::string_view descr);
  std::unique_ptr<AnchorFiles> open_anchors(int64_t min_history) const;
  std::unique_ptr<AnchorFiles> derive_anchors(int64_t min_history) const;
  void make_anchors(int64_t min_history, const std::string& path, uint64_t key) const;
  void check_anchors(const Anchors& anchors) const;

  SampleSchema schema_;
  std::string folder_, cache_folder_, index_folder_;
  int64_t history_length_ = 0;
  VerifyMode verify_ = VerifyMode::kAuto;
  std::optional<StoreManifest> manifest_;
  std::unique_ptr<VerifiedFiles> verified_;
  mutable std::mutex opened_mutex_;
  mutable std::vector<CheckedFile> opened_;
  mutable std::vector<std::string> unlisted_;

  std::deque<base::NpyFile> files_;
  std::span<const int64_t> users_, items_, timestamps_, kinds_;
  std::span<const int8_t> organic_;
  std::vector<std::span<const uint8_t>> pools_;
  std::vector<std::span<const float>> numbers_;
  std::span<const int64_t> user_start_, user_end_, unique_users_;
  std::vector<const EventStore*> earlier_;  // of a segment: the pieces before it
  uint64_t previous_ = 0;                   // likewise: what its manifest says of them
  std::vector<std::unique_ptr<EventStore>> segments_;
  std::vector<std::vector<int32_t>> attribute_maps_, user_attribute_maps_;
  int64_t num_items_ = 0;

  struct AnchorFiles {
    std::vector<base::NpyFile> npy;
    std::vector<IndexFile> derived;
    Anchors anchors;
  };
  mutable std::mutex anchors_mutex_;
  mutable std::map<int64_t, std::unique_ptr<AnchorFiles>> anchors_;
};

/// The store that a path means: itself, or the folder around it if it is a cache.
std::string store_folder(const std::string& path);

}  // namespace segue::data
