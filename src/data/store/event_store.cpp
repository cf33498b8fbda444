#include "data/store/event_store.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <limits>
#include <optional>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/checked_json.h"
#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "data/store/cache_folder.h"
#include "data/store/store_stage.h"

namespace segue::data {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kSpotChecks = 64;  // places where columns are compared with each other

[[noreturn]] void corrupt(const std::string& message) { fail(ErrorCode::kCorrupt, message); }

/// The number behind `prefix`, if the rest of the name is one.
std::optional<int64_t> number_after(std::string_view name, std::string_view prefix) {
  if (!name.starts_with(prefix)) return std::nullopt;
  name.remove_prefix(prefix.size());
  int64_t value = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), value);
  if (error != std::errc() || end != name.data() + name.size() || value < 0) return std::nullopt;
  return value;
}

bool is_cache(const fs::path& folder) {
  return number_after(folder.filename().string(), kCachePrefix).has_value();
}

std::vector<fs::path> cache_folders_in(const fs::path& folder) {
  std::vector<fs::path> found;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    if (entry.is_directory(error) && is_cache(entry.path())) found.push_back(entry.path());
  }
  std::ranges::sort(found);
  return found;
}

fs::path without_trailing_slash(const std::string& path) {
  fs::path normal = fs::path(path).lexically_normal();
  return normal.has_filename() ? normal : normal.parent_path();
}

void require_vector(const base::NpyFile& file) {
  if (file.shape().size() != 1) {
    corrupt(
        fmt::format("{}: has {} dimensions, a column has one", file.path(), file.shape().size()));
  }
}

}  // namespace

std::string store_folder(const std::string& path) {
  const fs::path folder = without_trailing_slash(path);
  if (!is_cache(folder)) return path;
  return folder.has_parent_path() ? folder.parent_path().string() : ".";
}

std::string find_cache_folder(const std::string& path) {
  std::error_code error;
  if (!fs::is_directory(path, error)) {
    fail(
        ErrorCode::kNotFound,
        fmt::format("{}: no such folder; an event store (data.store of a config) is made by `segue "
                    "prep` from a log, or by `segue synth`",
                    path));
  }
  fs::path cache = without_trailing_slash(path);
  if (!is_cache(cache)) {
    const std::vector<fs::path> found = cache_folders_in(path);
    if (found.empty()) {
      fail(ErrorCode::kNotFound,
           fmt::format(
               "{}: no event store: there is no folder {}<history length> in it; `segue prep "
               "--raw FOLDER --out STORE` makes one of a raw log",
               path, kCachePrefix));
    }
    if (found.size() > 1) {
      std::string names;
      for (const fs::path& p : found) names += "\n  " + p.string();
      fail(ErrorCode::kInvalidArgument,
           fmt::format("{}: holds several caches; name the one you want:{}", path, names));
    }
    cache = found.front();
  }
  return cache.string();
}

EventStore::EventStore(const std::string& path, const SampleSchema& schema,
                       const std::string& index_folder, VerifyMode verify, int64_t most_segments)
    : schema_(schema), verify_(verify) {
  schema_.validate();
  find_folders(path, index_folder);
  open();
  open_segments(most_segments);
}

void EventStore::open() {
  open_manifest();
  open_columns();
  check_users();
  check_metadata();
  open_attributes();
  open_user_attributes();
}

void EventStore::find_folders(const std::string& path, const std::string& index_folder) {
  cache_folder_ = find_cache_folder(path);
  history_length_ = *number_after(fs::path(cache_folder_).filename().string(), kCachePrefix);
  folder_ = store_folder(cache_folder_);
  index_folder_ = index_folder.empty() ? folder_ + "/segue" : index_folder;
  if (!base::exists(cache_folder_ + "/_READY")) {
    corrupt(
        fmt::format("{}: the store is unfinished: {}/_READY is missing; whatever wrote it was "
                    "stopped early and must run again",
                    folder_, cache_folder_));
  }
}

std::string EventStore::column_path(std::string_view column) const {
  return fmt::format("{}/{}.npy", cache_folder_, column);
}

int64_t EventStore::items_end() const {
  return manifest_ ? manifest_->num_items : std::numeric_limits<int64_t>::max();
}

template <class T>
std::span<const T> EventStore::open_column(std::string_view name, std::string_view descr) {
  files_.emplace_back(column_path(name));
  note_opened(files_.back().path(), files_.back().identity());
  require_vector(files_.back());
  return files_.back().as<T>(descr);
}

void EventStore::open_columns() {
  users_ = open_column<int64_t>("flat_uid", "<i8");
  const auto agree = [&](std::string_view name, size_t rows) {
    if (rows != users_.size()) {
      corrupt(fmt::format("{} has {} events, but {} has {}", column_path(name), rows,
                          column_path("flat_uid"), users_.size()));
    }
  };
  const auto open = [&]<class T>(std::string_view name, std::string_view descr,
                                 std::span<const T>& column) {
    column = open_column<T>(name, descr);
    agree(name, column.size());
  };
  open("flat_item_ids", "<i8", items_);
  open("flat_timestamps", "<i8", timestamps_);
  open("flat_event_types", "<i8", kinds_);
  open("flat_is_organic", "|i1", organic_);
  for (const PoolConfig& pool : schema_.pools) {
    open("flat_is_" + pool.name, "|b1", pools_.emplace_back());
  }
  for (const NumberConfig& number : schema_.numbers) {
    open("flat_number_" + number.name, "<f4", numbers_.emplace_back());
  }
  user_start_ = open_column<int64_t>("user_start", "<i8");
  user_end_ = open_column<int64_t>("user_end", "<i8");
  if (user_start_.size() != user_end_.size()) {
    corrupt(fmt::format("{} has {} users, but {} has {}", column_path("user_start"),
                        user_start_.size(), column_path("user_end"), user_end_.size()));
  }
  unique_users_ = open_column<int64_t>("unique_uids", "<i8");
}

void EventStore::check_users() const {
  const std::string tables =
      fmt::format("{} and {}", column_path("user_start"), column_path("user_end"));
  int64_t next = 0;
  size_t present = 0;
  for (size_t uid = 0; uid < user_start_.size(); ++uid) {
    const int64_t start = user_start_[uid], end = user_end_[uid];
    if (start == -1 && end == -1) continue;
    if (start != next) {
      corrupt(
          fmt::format("{} do not tile the events: user {} begins at event {}, but the one "
                      "before ends at {}",
                      tables, uid, start, next));
    }
    if (end <= start || end > num_events() || end - start > std::numeric_limits<uint32_t>::max()) {
      corrupt(fmt::format("{}: user {} has events {} to {} of {}", tables, uid, start, end,
                          num_events()));
    }
    next = end;
    if (present >= unique_users_.size() || unique_users_[present] != static_cast<int64_t>(uid)) {
      corrupt(fmt::format("{} does not list user {}, which has events in {}",
                          column_path("unique_uids"), uid, tables));
    }
    ++present;
  }
  if (next != num_events()) {
    corrupt(fmt::format("{} do not tile the events: they end at {}, but {} has {}", tables, next,
                        column_path("flat_uid"), num_events()));
  }
  if (present != unique_users_.size()) {
    corrupt(fmt::format("{} lists {} users, but {} have {}", column_path("unique_uids"),
                        unique_users_.size(), tables, present));
  }
  // All of flat_uid would be a long read.
  const auto spots = std::min<int64_t>(num_users(), kSpotChecks);
  for (int64_t i = 0; i < spots; ++i) {
    const int64_t uid = unique_users_[static_cast<size_t>(i * num_users() / spots)];
    const auto first = static_cast<size_t>(user_start_[static_cast<size_t>(uid)]);
    const auto last = static_cast<size_t>(user_end_[static_cast<size_t>(uid)]) - 1;
    if (users_[first] != uid || users_[last] != uid) {
      corrupt(fmt::format(
          "{} has other users than {} say: events {} and {} belong to {} and {}, "
          "not to {}",
          column_path("flat_uid"), tables, first, last, users_[first], users_[last], uid));
    }
  }
}

void EventStore::check_metadata() const {
  const std::string path = cache_folder_ + "/store_meta.json";
  const std::string text = base::read_regular_file(path);
  int64_t num_users_said = 0, num_events_said = 0;
  try {
    const base::CheckedJson meta = base::parse_checked(text);
    num_users_said = base::whole_number(meta, "num_users");
    num_events_said = base::whole_number(meta, "total_events");
  } catch (const Error& error) {
    corrupt(fmt::format("{}: {}", path, error.what()));
  }
  if (num_users_said != num_users() || num_events_said != num_events()) {
    corrupt(fmt::format("{} says {} users and {} events, but {} has {} and {} has {}", path,
                        num_users_said, num_events_said, column_path("unique_uids"), num_users(),
                        column_path("flat_uid"), num_events()));
  }
}

UserEvents EventStore::owner_of(int64_t position) const {
  if (position < 0 || position >= num_events()) {
    corrupt(fmt::format("{}: an anchor at event {} of {}", cache_folder_, position, num_events()));
  }
  const int64_t user = users_[static_cast<size_t>(position)];
  const auto u = static_cast<size_t>(user);
  if (u >= user_start_.size() || position < user_start_[u] || position >= user_end_[u]) {
    corrupt(fmt::format("{} gives event {} to user {}, {} does not", column_path("flat_uid"),
                        position, user, column_path("user_start")));
  }
  return {user, user_start_[u], user_end_[u]};
}

UserEvents EventStore::events_of(int64_t user) const {
  const auto u = static_cast<size_t>(user);
  if (user < 0 || u >= user_start_.size() || user_start_[u] < 0) return {user, 0, 0};
  return {user, user_start_[u], user_end_[u]};
}

int64_t EventStore::last_time() const {
  int64_t last = 0;
  for (const int64_t user : unique_users_) {
    last = std::max(last, timestamps_[static_cast<size_t>(events_of(user).end) - 1]);
  }
  return last;
}

std::vector<size_t> EventStore::user_runs(int64_t events_per_run) const {
  std::vector<size_t> runs = {0};
  int64_t events = 0;
  for (size_t i = 0; i < unique_users_.size(); ++i) {
    const auto uid = static_cast<size_t>(unique_users_[i]);
    events += user_end_[uid] - user_start_[uid];
    if (events >= events_per_run || i + 1 == unique_users_.size()) {
      runs.push_back(i + 1);
      events = 0;
    }
  }
  return runs;
}

// ---- attributes --------------------------------------------------------------------------------

namespace {

int32_t narrow(int64_t value, const std::string& file) {
  if (value < 0 || value > std::numeric_limits<int32_t>::max()) {
    corrupt(fmt::format("{}: attribute {} does not fit into 31 bits", file, value));
  }
  return static_cast<int32_t>(value);
}

/// Mapping rows in the order of their file: several per item are allowed, the last one counts.
struct MappingFiles {
  base::NpyFile items, values;

  MappingFiles(const std::string& items_path, const std::string& values_path)
      : items(items_path), values(values_path) {
    if (items.elements() != values.elements()) {
      corrupt(fmt::format("{} has {} rows, but {} has {}", items_path, items.elements(),
                          values_path, values.elements()));
    }
  }
  int64_t num_items() const {
    const std::span<const int64_t> ids = items.as<int64_t>("<i8");
    const auto last = std::ranges::max_element(ids);
    if (ids.empty()) return 0;
    if (*std::ranges::min_element(ids) < 0 || *last >= std::numeric_limits<int32_t>::max()) {
      corrupt(fmt::format("{}: item ids must be in [0, 2^31)", items.path()));
    }
    return *last + 1;
  }
  std::vector<int32_t> dense(int64_t num_items_of_all) const {
    std::vector<int32_t> map(static_cast<size_t>(num_items_of_all), 0);
    const std::span<const int64_t> ids = items.as<int64_t>("<i8");
    const std::span<const int64_t> of = values.as<int64_t>("<i8");
    for (size_t i = 0; i < ids.size(); ++i) {
      map[static_cast<size_t>(ids[i])] = narrow(of[i], values.path());
    }
    return map;
  }
};

/// item_to_artist.npy -> artist_map_
std::string rows_prefix(const AttributeConfig& attribute) {
  constexpr std::string_view kDense = "item_to_";
  std::string_view stem = attribute.file;
  stem.remove_suffix(std::string_view(".npy").size());
  if (stem.starts_with(kDense)) stem.remove_prefix(kDense.size());
  return fmt::format("{}_map_", stem);
}

}  // namespace

std::vector<int32_t> EventStore::open_map(const AttributeConfig& attribute,
                                          std::string& source) const {
  source = folder_ + "/" + attribute.file;
  const base::NpyFile file(source);
  note_opened(source, file.identity());
  require_vector(file);
  const std::span<const int64_t> values = file.as<int64_t>("<i8");
  std::vector<int32_t> map(values.size());
  std::ranges::transform(values, map.begin(), [&](int64_t v) { return narrow(v, source); });
  return map;
}

void EventStore::open_attributes() {
  const size_t count = schema_.attributes.size();
  // A segment without maps leaves those before it in force.
  if (!earlier_.empty() &&
      (count == 0 || !base::exists(folder_ + "/" + schema_.attributes[0].file)))
    return;
  std::vector<std::string> sources(count);
  std::vector<std::unique_ptr<MappingFiles>> rows(count);
  attribute_maps_.resize(count);
  for (size_t i = 0; i < count; ++i) {
    const AttributeConfig& attribute = schema_.attributes[i];
    if (base::exists(folder_ + "/" + attribute.file)) {
      attribute_maps_[i] = open_map(attribute, sources[i]);
      num_items_ = std::max(num_items_, static_cast<int64_t>(attribute_maps_[i].size()));
      continue;
    }
    const std::string prefix = folder_ + "/" + rows_prefix(attribute);
    sources[i] = prefix + attribute.name + ".npy";
    if (!base::exists(sources[i])) {
      fail(ErrorCode::kNotFound,
           fmt::format("{}/{}: no such file, and no mapping rows {}item_id.npy and {} to make it "
                       "from; `segue prep` writes it",
                       folder_, attribute.file, prefix, sources[i]));
    }
    rows[i] = std::make_unique<MappingFiles>(prefix + "item_id.npy", sources[i]);
    for (const base::NpyFile* file : {&rows[i]->items, &rows[i]->values}) {
      note_opened(file->path(), file->identity());
    }
    num_items_ = std::max(num_items_, rows[i]->num_items());
  }
  for (size_t i = 0; i < count; ++i) {
    if (rows[i]) attribute_maps_[i] = rows[i]->dense(num_items_);
    // A history id is clipped to the last item of all maps, so they must agree on it.
    if (static_cast<int64_t>(attribute_maps_[i].size()) != num_items_) {
      const auto longest = std::ranges::find_if(attribute_maps_, [&](const auto& map) {
        return static_cast<int64_t>(map.size()) == num_items_;
      });
      const auto other = static_cast<size_t>(longest - attribute_maps_.begin());
      corrupt(fmt::format("{} maps {} items, but {} maps {}", sources[i], attribute_maps_[i].size(),
                          other < count ? sources[other] : folder_, num_items_));
    }
  }
  if (count > 0 && num_items_ == 0) corrupt(fmt::format("{}: maps no item", sources[0]));
  const std::string popularity = folder_ + "/item_popularity.npy";
  if (count > 0 && base::exists(popularity)) {
    const int64_t known = base::NpyFile(popularity).elements();
    if (known > num_items_) {
      base::log_warning(
          fmt::format("{} knows {} items, the attribute maps {}: items beyond them "
                      "get the last item's attributes in histories, 0 as candidates",
                      popularity, known, num_items_));
    }
  }
}

void EventStore::open_user_attributes() {
  const std::vector<AttributeConfig>& attributes = schema_.user_attributes;
  // As with those of items.
  if (attributes.empty() ||
      (!earlier_.empty() && !base::exists(folder_ + "/" + attributes[0].file))) {
    return;
  }
  for (const AttributeConfig& attribute : attributes) {
    std::string source;
    user_attribute_maps_.push_back(open_map(attribute, source));
  }
}

}  // namespace segue::data
