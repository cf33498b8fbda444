#include "data/store/store_verify.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <limits>
#include <memory>
#include <optional>
#include <string_view>
#include <system_error>

#include <fmt/format.h>

#include "base/error.h"
#include "base/file.h"
#include "base/file_io.h"
#include "base/npy.h"
#include "base/progress.h"
#include "data/log/event.h"
#include "data/log/log_schema.h"
#include "data/store/file_check.h"
#include "data/store/id_maps.h"
#include "data/store/index_file.h"
#include "data/store/later_check.h"
#include "data/store/segments.h"
#include "data/store/store_manifest.h"
#include "data/store/store_stage.h"

namespace segue::data {
namespace {

namespace fs = std::filesystem;

constexpr size_t kComparedBytes = 1 << 18;

std::string header(std::string_view dtype, int64_t count) {
  const int64_t shape[] = {count};
  return base::npy_header(dtype, shape);
}

/// The elements of a one-dimensional .npy file, one after the other.
template <class T>
class ElementReader {
 public:
  ElementReader(const std::string& path, std::string_view dtype) : file_(path) {
    header_bytes_ = static_cast<int64_t>(header(dtype, 0).size());
    count_ = (file_.size() - header_bytes_) / static_cast<int64_t>(sizeof(T));
    const std::string wanted = header(dtype, std::max<int64_t>(count_, 0));
    std::string found(wanted.size(), '\0');
    const bool same = file_.read_at(0, found.data(), found.size()) == found.size() &&
                      found == wanted &&
                      file_.size() == header_bytes_ + count_ * static_cast<int64_t>(sizeof(T));
    if (!same) {
      fail(ErrorCode::kCorrupt, fmt::format("{}: not a one-dimensional .npy file of '{}' with all "
                                            "of its elements",
                                            path, dtype));
    }
  }

  int64_t count() const { return count_; }
  int64_t done() const { return done_; }
  bool at_end() const { return done_ == count_; }
  T next() {
    if (next_ == buffer_.size()) fill();
    ++done_;
    return buffer_[next_++];
  }

 private:
  void fill() {
    const auto n = static_cast<size_t>(
        std::min<int64_t>(kComparedBytes / static_cast<int64_t>(sizeof(T)), count_ - done_));
    buffer_.resize(n);
    const int64_t offset = header_bytes_ + done_ * static_cast<int64_t>(sizeof(T));
    if (file_.read_at(offset, buffer_.data(), n * sizeof(T)) != n * sizeof(T)) {
      fail(ErrorCode::kIo, fmt::format("{}: became shorter while it was read", file_.path()));
    }
    next_ = 0;
  }

  base::InputFile file_;
  int64_t header_bytes_ = 0, count_ = 0, done_ = 0;
  std::vector<T> buffer_;
  size_t next_ = 0;
};

/// A column whose every element is known from others.
class DerivedColumn {
 public:
  DerivedColumn(const std::string& folder, const std::string& name,
                std::vector<std::string>& problems)
      : name_(name), problems_(problems), elements_(folder + "/" + name, "<i8") {}

  void expect(int64_t wanted) {
    if (wrong_) return;
    if (elements_.at_end()) return complain("ends too early");
    const int64_t found = elements_.next();
    if (found != wanted) complain(fmt::format("is {}, should be {}", found, wanted));
  }
  void expect_end() {
    if (!wrong_ && !elements_.at_end()) {
      complain(fmt::format("has {} elements too many", elements_.count() - elements_.done()));
    }
  }
  int64_t count() const { return elements_.count(); }

 private:
  void complain(const std::string& what) {
    wrong_ = true;
    problems_.push_back(fmt::format("{}: element {} {}", name_, elements_.done() - 1, what));
  }

  std::string name_;
  std::vector<std::string>& problems_;
  ElementReader<int64_t> elements_;
  bool wrong_ = false;
};

/// A finding that is reported once, however often it is made.
class Once {
 public:
  Once(std::vector<std::string>& problems, std::string text)
      : problems_(problems), text_(std::move(text)) {}
  void check(bool fine, int64_t position) {
    if (fine || found_) return;
    found_ = true;
    problems_.push_back(fmt::format("event {}: {}", position, text_));
  }

 private:
  std::vector<std::string>& problems_;
  std::string text_;
  bool found_ = false;
};

/// Where a store's parts are, with or without a manifest.
struct StoreParts {
  std::string folder, cache;
  LogSchema schema;
  int64_t history_length = 0;
  std::vector<int64_t> floors;
  std::optional<StoreManifest> manifest;
};

/// The floors for which a cache has anchors, by the names of its files.
std::vector<int64_t> find_floors(const std::string& cache, int64_t history_length) {
  std::vector<int64_t> floors;
  const std::string prefix = fmt::format("positions_L{}", history_length);
  for (const fs::directory_entry& entry : fs::directory_iterator(cache)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(prefix) || !name.ends_with(".npy")) continue;
    int64_t floor = history_length;
    if (name != prefix + ".npy") {
      if (!name.starts_with(prefix + "_m")) continue;
      const char* const begin = name.data() + prefix.size() + 2;
      if (std::from_chars(begin, name.data() + name.size(), floor).ec != std::errc()) continue;
    }
    if (floor >= 0 && name == positions_file(history_length, floor)) floors.push_back(floor);
  }
  std::sort(floors.begin(), floors.end());
  return floors;
}

StoreParts find_parts(const std::string& store) {
  StoreParts parts{.folder = store};
  if (!is_finished_store(store)) {
    fail(ErrorCode::kNotFound, fmt::format("{}: holds no finished store", store));
  }
  if (base::exists(store + "/" + kManifestFile)) {
    parts.manifest = StoreManifest::read(store);
    parts.schema = read_store_schema(store);
    parts.history_length = parts.manifest->history_length;
    parts.cache = store + "/" + parts.manifest->cache_folder();
    parts.floors = parts.manifest->min_history;
    return parts;
  }
  parts.schema = LogSchema::preset("yambda-5b");
  for (const fs::directory_entry& entry : fs::directory_iterator(store)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(kCachePrefix) || !base::exists(entry.path().string() + "/_READY")) {
      continue;
    }
    std::from_chars(name.data() + kCachePrefix.size(), name.data() + name.size(),
                    parts.history_length);
    parts.cache = entry.path().string();
  }
  parts.floors = find_floors(parts.cache, parts.history_length);
  return parts;
}

// ---- files against the manifest ----

/// Without `deep` only what takes no time: size, and the header of an array.
void check_file(const std::string& store, const base::FileRecord& wanted, bool deep,
                VerifyReport& report) {
  const auto complain = [&](const std::string& what) {
    report.problems.push_back(fmt::format("{}: {}", wanted.name, what));
  };
  std::vector<Checksum> checksums = checksums_of(wanted);
  if (!deep) checksums.pop_back();
  try {
    FileCheck check(base::InputFile(store, wanted.name), wanted.bytes, std::move(checksums));
    ++report.files;
    report.bytes += wanted.bytes;
    check.finish();
    if (!check.problem().empty()) complain(check.problem());
  } catch (const Error& error) {
    complain(error.code() == ErrorCode::kNotFound ? "is missing" : error.what());
  }
}

void check_files(const StoreParts& parts, VerifyReport& report) {
  int64_t total = 0;
  for (const base::FileRecord& file : parts.manifest->files) total += file.bytes;
  base::Progress progress("checksums", total, "bytes");
  for (const base::FileRecord& file : parts.manifest->files) {
    check_file(parts.folder, file, /*deep=*/true, report);
    progress.update(report.bytes);
  }
  progress.finish();
}

/// Files that were derived from the store and are trusted by whoever reads it.
void check_indices(const std::string& store, VerifyReport& report) {
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(store + "/segue", ignored)) {
    const std::string name = entry.path().filename().string();
    if (!name.ends_with(".idx")) continue;
    const std::string damage = IndexFile::find_damage(entry.path().string());
    if (damage.empty()) continue;
    report.problems.push_back(
        fmt::format("segue/{}: {}; remove it, it is made again when needed", name, damage));
  }
}

// ---- events ----

struct EventColumnReaders {
  ElementReader<int64_t> user, item, time, kind;
  ElementReader<float> value;
  ElementReader<int8_t> organic;
  std::vector<std::unique_ptr<ElementReader<uint8_t>>> pools;
  std::vector<std::unique_ptr<ElementReader<float>>> numbers;

  EventColumnReaders(const std::string& cache, const LogSchema& schema)
      : user(cache + "/flat_uid.npy", "<i8"),
        item(cache + "/flat_item_ids.npy", "<i8"),
        time(cache + "/flat_timestamps.npy", "<i8"),
        kind(cache + "/flat_event_types.npy", "<i8"),
        value(cache + "/flat_played_ratio.npy", "<f4"),
        organic(cache + "/flat_is_organic.npy", "|i1") {
    for (const PoolConfig& pool : schema.samples().pools) {
      const std::string path = fmt::format("{}/flat_is_{}.npy", cache, pool.name);
      pools.push_back(std::make_unique<ElementReader<uint8_t>>(path, "|b1"));
    }
    for (const NumberColumn& number : schema.numbers) {
      const std::string path = fmt::format("{}/flat_number_{}.npy", cache, number.name);
      numbers.push_back(std::make_unique<ElementReader<float>>(path, "<f4"));
    }
    bool same = true;
    for (const int64_t n :
         {item.count(), time.count(), kind.count(), value.count(), organic.count()}) {
      same = same && n == user.count();
    }
    for (const auto& pool : pools) same = same && pool->count() == user.count();
    for (const auto& number : numbers) same = same && number->count() == user.count();
    if (!same) fail(ErrorCode::kCorrupt, fmt::format("{}: columns differ in length", cache));
  }
};

/// Goes over all events once and derives everything that a store says about them again.
class EventVerifier {
 public:
  EventVerifier(const StoreParts& parts, VerifyReport& report)
      : parts_(parts),
        report_(report),
        rules_(parts.schema),
        columns_(parts.cache, parts.schema),
        user_start_(parts.cache, "user_start.npy", report.problems),
        user_end_(parts.cache, "user_end.npy", report.problems),
        unique_users_(parts.cache, "unique_uids.npy", report.problems),
        order_(report.problems, "users or times go back"),
        ids_(report.problems, "a negative id, time or flag"),
        kinds_(report.problems, "a kind that the schema does not have"),
        items_(report.problems, fmt::format("an item that {} does not have", kPopularityFile)),
        pools_(report.problems, "in other pools than its kind and value say"),
        numbers_(report.problems, "a number that is infinite"),
        outcomes_(report.problems, "a later label that no event explains, or lacks one"),
        later_(parts.schema) {
    if (parts.manifest || base::exists(parts.folder + "/" + kPopularityFile)) {
      known_items_.emplace(parts.folder, kPopularityFile, report.problems);
      popularity_.resize(static_cast<size_t>(known_items_->count()));
    }
    for (const int64_t floor : parts.floors) {
      positions_.push_back(std::make_unique<DerivedColumn>(
          parts.cache, positions_file(parts.history_length, floor), report.problems));
      anchor_times_.push_back(std::make_unique<DerivedColumn>(
          parts.cache, anchor_ts_file(parts.history_length, floor), report.problems));
    }
  }

  /// Returns the newest time; all must be after `after`.
  int64_t run(int64_t after) {
    const int64_t events = columns_.user.count();
    base::Progress progress("events", events, "events");
    for (int64_t i = 0; i < events; ++i) {
      check_event(i);
      if ((i & 0xfffff) == 0) progress.update(i);
    }
    progress.finish();
    end_user(events);
    note_later(later_.finish(last_time_));
    for (DerivedColumn* column : {&user_start_, &user_end_, &unique_users_}) column->expect_end();
    for (size_t a = 0; a < positions_.size(); ++a) {
      positions_[a]->expect_end();
      anchor_times_[a]->expect_end();
      report_.anchors += positions_[a]->count();
    }
    report_.events += events;
    check_items();
    check_metadata();
    if (first_time_ <= after) {
      report_.problems.push_back(
          fmt::format("flat_timestamps.npy: begins at {}, but what it was appended to ends at {}",
                      first_time_, after));
    }
    return std::max(after, last_time_);
  }

 private:
  void check_event(int64_t i) {
    Event e;
    e.user = columns_.user.next();
    e.item = columns_.item.next();
    e.time = columns_.time.next();
    const int64_t kind = columns_.kind.next();
    e.value = columns_.value.next();
    e.organic = columns_.organic.next();
    ids_.check(e.user >= 0 && e.item >= 0 && e.time >= 0 && e.organic >= 0, i);
    order_.check(e.user > user_ || (e.user == user_ && e.time >= time_), i);
    const bool known = kind >= 0 && kind < static_cast<int64_t>(parts_.schema.kinds.size());
    kinds_.check(known, i);
    e.kind = known ? static_cast<uint8_t>(kind) : 0;
    const size_t pools = parts_.schema.pools.size();
    for (size_t p = 0; p < columns_.pools.size(); ++p) {
      const uint8_t in_pool = columns_.pools[p]->next();
      if (p >= pools) e.outcomes = static_cast<uint8_t>(e.outcomes | (in_pool != 0) << (p - pools));
      pools_.check(in_pool == (known && rules_.in_pool(p, e) ? 1 : 0), i);
    }
    for (const auto& number : columns_.numbers) numbers_.check(!std::isinf(number->next()), i);
    if (columns_.pools.size() > pools) note_later(later_.add(e));
    if (e.user > user_) begin_user(e.user, i);
    time_ = e.time;
    first_time_ = std::min(first_time_, e.time);
    last_time_ = std::max(last_time_, e.time);
    if (known && rules_.may_be_anchor(e)) {
      for (size_t a = 0; a < positions_.size() && i - user_start_position_ >= parts_.floors[a];
           ++a) {
        positions_[a]->expect(i);
        anchor_times_[a]->expect(e.time);
      }
    }
    count_item(e.item, i);
  }

  void note_later(int64_t wrong) { outcomes_.check(wrong < 0, wrong); }

  void begin_user(int64_t user, int64_t position) {
    end_user(position);
    for (int64_t absent = user_ + 1; absent < user && absent < user_start_.count(); ++absent) {
      user_start_.expect(-1);
      user_end_.expect(-1);
    }
    user_start_.expect(position);
    unique_users_.expect(user);
    user_ = user;
    user_start_position_ = position;
    ++num_users_;
  }
  void end_user(int64_t position) {
    if (user_ >= 0) user_end_.expect(position);
  }

  void count_item(int64_t item, int64_t position) {
    if (!known_items_ || item < 0) return;
    const bool known = item < known_items_->count();
    items_.check(known, position);
    if (known) ++popularity_[static_cast<size_t>(item)];
  }

  /// Popularity is derived; attributes have one length and no negative values.
  void check_items() {
    // Others, and segments, need not have attributes.
    const bool all = parts_.manifest && parts_.manifest->segment.number == 0;
    for (const int64_t count : popularity_) known_items_->expect(count);
    std::optional<int64_t> lengths[2];  // of items' maps, of users'
    for (const AttributeColumn& a : parts_.schema.attribute_columns()) {
      const std::string path = parts_.folder + "/" + a.file;
      if (!all && !base::exists(path)) continue;
      ElementReader<int64_t> values(path, "<i8");
      std::optional<int64_t>& mapped = lengths[a.of_users ? 1 : 0];
      if (mapped.value_or(values.count()) != values.count()) {
        report_.problems.push_back(fmt::format("{}: {} elements, another attribute has {}", a.file,
                                               values.count(), *mapped));
      }
      mapped = values.count();
      bool fine = true;
      while (!values.at_end()) fine = values.next() >= 0 && fine;
      if (!fine) report_.problems.push_back(a.file + ": has negative values");
    }
  }

  void check_metadata() {
    const std::string wanted = fmt::format("{{\"num_users\": {}, \"total_events\": {}}}",
                                           num_users_, columns_.user.count());
    if (base::read_regular_file(parts_.cache + "/store_meta.json") != wanted) {
      report_.problems.push_back("store_meta.json: is not " + wanted);
    }
    const auto& manifest = parts_.manifest;
    if (manifest &&
        (manifest->num_events != columns_.user.count() || manifest->num_users != num_users_ ||
         manifest->num_items != known_items_->count())) {
      report_.problems.push_back("the manifest counts other events, users or items");
    }
  }

  const StoreParts& parts_;
  VerifyReport& report_;
  EventRules rules_;
  EventColumnReaders columns_;
  DerivedColumn user_start_, user_end_, unique_users_;
  std::vector<std::unique_ptr<DerivedColumn>> positions_, anchor_times_;
  Once order_, ids_, kinds_, items_, pools_, numbers_, outcomes_;
  LaterCheck later_;
  int64_t user_ = -1, time_ = 0, user_start_position_ = 0, num_users_ = 0;
  int64_t first_time_ = std::numeric_limits<int64_t>::max(), last_time_ = 0;
  std::optional<DerivedColumn> known_items_;  // how often each occurs
  std::vector<int64_t> popularity_;           // the same, counted
};

// ---- pieces: the store itself, then its segments ----

std::string piece_folder(const std::string& store, size_t piece) {
  return piece == 0 ? store
                    : fmt::format("{}/{}", store, segment_name(static_cast<int64_t>(piece)));
}

/// At least the store's own; what is wrong with segments becomes a problem.
std::vector<StoreManifest> manifests_of(const std::string& store, VerifyReport& report) {
  try {
    return read_manifests(store);
  } catch (const Error& error) {
    report.problems.emplace_back(error.what());
    return read_manifests(store, 0);
  }
}

void add_users(const std::string& cache, std::vector<int64_t>& users) {
  const base::NpyFile file(cache + "/unique_uids.npy");
  std::vector<int64_t> all;
  std::ranges::set_union(users, file.as<int64_t>("<i8"), std::back_inserter(all));
  users.swap(all);
}

/// Returns the newest time; `after` is that of the pieces before.
int64_t verify_piece(const StoreParts& parts, int64_t after, std::vector<int64_t>& users,
                     VerifyReport& report) {
  const size_t before = report.problems.size();
  if (parts.manifest) check_files(parts, report);
  if (report.problems.size() == before) {
    after = EventVerifier(parts, report).run(after);
    add_users(parts.cache, users);
  }
  check_indices(parts.folder, report);
  return after;
}

}  // namespace

void VerifyReport::throw_if_bad(const std::string& store) const {
  if (ok()) return;
  fail(ErrorCode::kCorrupt,
       fmt::format("{}: {} {}:\n{}", store, problems.size(),
                   problems.size() == 1 ? "problem" : "problems", fmt::join(problems, "\n")));
}

VerifyReport compare_sizes(const std::string& store) {
  VerifyReport report;
  report.has_manifest = base::exists(store + "/" + kManifestFile);
  if (!report.has_manifest) return report;
  const std::vector<StoreManifest> manifests = manifests_of(store, report);
  for (size_t piece = 0; piece < manifests.size(); ++piece) {
    for (const base::FileRecord& file : manifests[piece].files) {
      check_file(piece_folder(store, piece), file, /*deep=*/false, report);
    }
  }
  return report;
}

VerifyReport verify_store(const std::string& store) {
  VerifyReport report;
  report.has_manifest = find_parts(store).manifest.has_value();
  const size_t pieces = report.has_manifest ? manifests_of(store, report).size() : 1;
  std::vector<int64_t> users;
  int64_t last_time = std::numeric_limits<int64_t>::min();
  for (size_t piece = 0; piece < pieces; ++piece) {
    const size_t before = report.problems.size();
    last_time = verify_piece(find_parts(piece_folder(store, piece)), last_time, users, report);
    if (piece == 0) continue;
    const std::string name = segment_name(static_cast<int64_t>(piece));
    for (size_t i = before; i < report.problems.size(); ++i)
      report.problems[i].insert(0, name + "/");
  }
  report.users = static_cast<int64_t>(users.size());
  if (report.ok()) report.problems = IdMaps(store).problems();
  return report;
}

}  // namespace segue::data
