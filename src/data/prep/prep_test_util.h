#pragma once

// For tests only: small raw logs, and the bytes of a store.

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <map>
#include <random>
#include <span>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/npy.h"
#include "base/test_util.h"
#include "data/log/event.h"
#include "data/prep/prep.h"
#include "data/store/store_manifest.h"

namespace segue::data {

using Ints = std::vector<int64_t>;

/// The values of a .npy file of 64-bit integers.
inline Ints integers(const std::string& path) {
  const base::NpyFile file(path);
  const std::span<const int64_t> data = file.as<int64_t>("<i8");
  return {data.begin(), data.end()};
}

inline const std::vector<std::string>& yambda_kinds() {
  static const std::vector<std::string> kKinds = LogSchema::preset("yambda-50m").kinds;
  return kKinds;
}

/// A log in the shape of Yambda, in no particular order, with many events at equal times.
inline std::vector<Event> random_log(size_t rows, uint64_t seed, int64_t users = 40) {
  std::mt19937_64 random(seed);
  std::vector<Event> events(rows);
  for (Event& e : events) {
    e.user = static_cast<int64_t>(random() % static_cast<uint64_t>(users)) * 3 + 1;
    e.time = static_cast<int64_t>(random() % (4 * 86400) / 600) * 600;
    e.item = static_cast<int64_t>(random() % 200);
    e.kind = static_cast<uint8_t>(random() % 3 != 0 ? 0 : random() % 5);
    if (e.kind == 0 && random() % 10 != 0) e.value = static_cast<float>(random() % 120);
    if (random() % 8 != 0) e.length = static_cast<int32_t>(random() % 400);
    e.organic = static_cast<int8_t>(random() % 2);
  }
  return events;
}

/// Values of random_log() are whole.
inline std::string csv_row(const Event& e) {
  std::string row;
  for (const int64_t value : {e.user, e.time, e.item, int64_t{e.organic}}) {
    row += std::to_string(value) + ",";
  }
  row += (e.has_value() ? std::to_string(static_cast<int64_t>(e.value)) : "") + ",";
  row += (e.length >= 0 ? std::to_string(e.length) : "") + ",";
  return row + yambda_kinds()[e.kind] + "\n";
}
inline constexpr const char* kCsvHeader =
    "uid,timestamp,item_id,is_organic,played_ratio_pct,track_length_seconds,event_type\n";

/// Writes raw folders and prepares them.
class RawLog {
 public:
  explicit RawLog(const std::string& name) : folder(base::temp_path(name)) {
    base::make_folders(folder);
    schema = LogSchema::preset("yambda-50m");
    schema.events = "events*.csv";
    schema.attributes = {{.name = "artist_id", .file = "artists.csv", .value = "artist_id"}};
    schema.crosses.clear();
    put("artists.csv", "artist_id,item_id\n7,3\n9,199\n8,3\n5,0\n");
  }

  void put(const std::string& name, const std::string& text) const {
    base::put_file(folder + "/" + name, text);
  }
  void put_events(const std::string& name, const std::vector<Event>& events) const {
    std::string text = kCsvHeader;
    for (const Event& e : events) text += csv_row(e);
    put(name, text);
  }

  PrepConfig config(const std::string& store) const {
    PrepConfig c;
    c.raw = folder;
    c.store = folder + "/" + store;
    c.schema = schema;
    c.memory_bytes = PrepConfig::kLeastMemory;
    c.history_length = 20;
    c.min_history = {20, 0};
    return c;
  }

  std::string folder;
  LogSchema schema;
};

using StoreBytes = std::map<std::string, std::string>;

/// All files of a folder by name. The manifest without its sources, which may differ.
inline StoreBytes store_bytes(const std::string& folder) {
  StoreBytes files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file()) continue;
    const std::string name = entry.path().lexically_relative(folder).string();
    std::string text = base::read_file(entry.path().string());
    if (name == kManifestFile) {
      auto manifest = nlohmann::ordered_json::parse(text);
      manifest["origin"].erase("sources");
      manifest.erase("checksum");
      text = manifest.dump();
    }
    files[name] = text;
  }
  return files;
}

/// Equal files; names the first that differs.
inline testing::AssertionResult same_store(const StoreBytes& a, const StoreBytes& b) {
  for (const auto& [name, bytes] : a) {
    if (!b.contains(name)) return testing::AssertionFailure() << name << " is missing";
    if (b.at(name) != bytes) return testing::AssertionFailure() << name << " differs";
  }
  for (const auto& [name, bytes] : b) {
    if (!a.contains(name)) return testing::AssertionFailure() << name << " is new";
  }
  return testing::AssertionSuccess();
}

}  // namespace segue::data
