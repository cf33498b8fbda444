#pragma once

// For tests only: stores that are damaged, by accident or on purpose.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>
#include <sys/stat.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/test_util.h"
#include "data/store/index_file.h"
#include "data/store/store_manifest.h"

namespace segue::data {

using ManifestJson = nlohmann::ordered_json;

inline std::string hex64(uint64_t value) {
  char text[17];
  std::snprintf(text, sizeof text, "%016lx", static_cast<unsigned long>(value));
  return text;
}

/// With the checksum that belongs to what is in it now: anybody can make one.
inline std::string sealed(ManifestJson j) {
  j.erase("checksum");
  j["checksum"] =
      hex64(base::xxh64(j.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace)));
  return j.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

/// Damages files of one store, a different way each time.
class Damage {
 public:
  Damage(std::string store, uint64_t seed) : store_(std::move(store)), random_(seed) {
    namespace fs = std::filesystem;
    for (const auto& entry : fs::recursive_directory_iterator(store_)) {
      if (entry.is_regular_file() && entry.file_size() > 0) {
        files_.push_back(entry.path().lexically_relative(store_).string());
      }
    }
    std::ranges::sort(files_);
  }

  /// Returns what was done.
  std::string apply() {
    switch (below(12)) {
      case 0:
      case 1:
        return change(any_file(), "flipped", [&](std::string& bytes) { flip(bytes); });
      case 2:
        return change(any_file(), "cut",
                      [&](std::string& bytes) { bytes.resize(below(bytes.size())); });
      case 3:
        return change(any_file(), "longer",
                      [&](std::string& bytes) { bytes.append(1 + below(100), 'x'); });
      case 4:
      case 5:
        return change(any_file(), "extreme", [&](std::string& bytes) { put_extreme(bytes, 0); });
      case 6:
        return replace(any_file());
      case 7:
      case 8:
        return craft_column();
      case 9:
      case 10:
        return craft_manifest();
      default:
        return craft_index();
    }
  }

  /// A flipped byte in one of these files.
  std::string flip_in(const std::string& name) {
    return change(name, "flipped", [&](std::string& bytes) { flip(bytes); });
  }
  const std::vector<std::string>& files() const { return files_; }

 private:
  uint64_t below(uint64_t n) { return random_() % n; }
  const std::string& any_file() { return files_[below(files_.size())]; }
  std::string path(const std::string& name) const { return store_ + "/" + name; }

  int64_t extreme() {
    constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
    const int64_t values[] = {0,
                              1,
                              -1,
                              kMost,
                              -kMost - 1,
                              kMost / 2,
                              int64_t{1} << 31,
                              int64_t{1} << 32,
                              int64_t{1} << 40,
                              -5,
                              static_cast<int64_t>(below(1000)),
                              0x7ff8000000000000};
    return values[below(std::size(values))];
  }
  void flip(std::string& bytes) {
    char& byte = bytes[below(bytes.size())];
    byte = static_cast<char>(byte ^ static_cast<char>(1 + below(255)));
  }
  void put_extreme(std::string& bytes, size_t from) {
    if (bytes.size() < from + 8) return;
    const int64_t value = extreme();
    const size_t words = (bytes.size() - from) / 8;
    for (uint64_t times = 1 + below(3); times > 0; --times) {
      std::memcpy(bytes.data() + from + below(words) * 8, &value, 8);
    }
  }

  template <class Change>
  std::string change(const std::string& name, const char* what, Change action) {
    std::string bytes = base::read_file(path(name));
    action(bytes);
    base::put_file(path(name), bytes);
    return name + " " + what;
  }

  std::string replace(const std::string& name) {
    std::filesystem::remove(path(name));
    switch (below(4)) {
      case 0:
        ::mkfifo(path(name).c_str(), 0600);
        return name + " is a pipe";
      case 1:
        std::filesystem::create_symlink("/etc/passwd", path(name));
        return name + " is a link";
      case 2:
        std::filesystem::create_directory(path(name));
        return name + " is a folder";
      default:
        return name + " is missing";
    }
  }

  /// Values that are wrong, with a manifest that says they are right.
  std::string craft_column() {
    ManifestJson j = ManifestJson::parse(base::read_file(path(kManifestFile)));
    std::vector<std::string> names;
    for (const auto& [name, record] : j["files"].items()) names.push_back(name);
    const std::string name = names[below(names.size())];
    std::string bytes = base::read_file(path(name));
    ManifestJson& record = j["files"][name];
    const size_t header = record.contains("dtype") ? 128 : 0;
    if (header > 0 || bytes.size() >= 8) {
      put_extreme(bytes, header);
    } else {
      flip(bytes);
    }
    record["bytes"] = bytes.size();
    record["xxh64"] = hex64(base::xxh64(bytes.data() + header, bytes.size() - header));
    base::put_file(path(name), bytes);
    base::put_file(path(kManifestFile), sealed(j));
    return name + " crafted";
  }

  std::string craft_manifest() {
    ManifestJson j = ManifestJson::parse(base::read_file(path(kManifestFile)));
    std::vector<std::string> places;
    const ManifestJson flat = j.flatten();
    for (const auto& [place, value] : flat.items()) places.push_back(place);
    const std::string place = places[below(places.size())];
    ManifestJson& value = j[nlohmann::json_pointer<std::string>(place)];
    const ManifestJson others[] = {extreme(),
                                   -1,
                                   1e300,
                                   "",
                                   "../../../etc/passwd",
                                   "/etc/passwd",
                                   nullptr,
                                   true,
                                   ManifestJson::array(),
                                   ManifestJson::object(),
                                   ManifestJson::array({-1, 3, 3})};
    value = others[below(std::size(others))];
    if (below(4) == 0) j["min_history"] = others[below(std::size(others))];
    if (below(4) == 0) {
      j["files"][below(2) == 0 ? "../../etc/passwd" : "segue"] = {{"bytes", 3},
                                                                  {"xxh64", hex64(7)}};
    }
    base::put_file(path(kManifestFile), sealed(j));
    return "manifest " + place + " is " + value.dump();
  }

  /// Numbers in an index that make no sense, under checksums that do.
  std::string craft_index() {
    std::vector<std::string> names;
    for (const std::string& name : files_) {
      if (name.ends_with(".idx")) names.push_back(name);
    }
    if (names.empty()) return craft_manifest();
    const std::string name = names[below(names.size())];
    constexpr size_t kHeader = 4096, kFields = 560, kSealed = 16;
    std::string bytes = base::read_file(path(name));
    const int64_t value = extreme();
    const size_t payload = bytes.size() - kHeader - 8;  // small: one block
    if (below(2) == 0) {
      std::memcpy(bytes.data() + 24 + 8 * below(8), &value, 8);  // counts and sizes
    } else {
      std::memcpy(bytes.data() + kHeader + 4 * below(payload / 4 - 1), &value, 8);
    }
    const uint64_t block = base::xxh64(bytes.data() + kHeader, payload);
    std::memcpy(bytes.data() + kHeader + payload, &block, 8);
    const uint64_t blocks = base::xxh64(&block, 8);
    std::memcpy(bytes.data() + kFields - 8, &blocks, 8);
    const uint64_t whole = base::xxh64(bytes.data() + kSealed, kFields - kSealed);
    std::memcpy(bytes.data() + 8, &whole, 8);
    base::put_file(path(name), bytes);
    return name + " crafted with " + std::to_string(value);
  }

  std::string store_;
  std::mt19937_64 random_;
  std::vector<std::string> files_;
};

}  // namespace segue::data
