#include "data/store/store_manifest.h"

#include <algorithm>
#include <functional>
#include <limits>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/checked_json.h"
#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/npy.h"
#include "base/sealed_json.h"

namespace segue::data {
namespace {

using Json = base::CheckedJson;

constexpr const char* kFormat = "segue event store";
constexpr int64_t kFormatVersion = 1;

uint64_t from_hex(const std::string& text) { return std::stoull(text, nullptr, 16); }

/// Names of raw files need not be UTF-8; JSON must.
std::string dump(const Json& j, int indent = -1) {
  return j.dump(indent, ' ', false, Json::error_handler_t::replace);
}

Json without_checksum(const StoreManifest& m) {
  Json j;
  j["format"] = kFormat;
  j["version"] = kFormatVersion;
  j["segue"] = m.segue_version;
  j["history_length"] = m.history_length;
  j["min_history"] = m.min_history;
  j["num_events"] = m.num_events;
  j["num_users"] = m.num_users;
  j["num_items"] = m.num_items;
  j["cache"] = m.cache_folder();
  j["schema"] = kSchemaFile;
  if (m.segment.number > 0) {
    j["segment"] = {{"number", m.segment.number}, {"previous", base::hex64(m.segment.previous)}};
  }
  j["origin"]["command"] = m.origin.command;
  j["origin"]["options"] = m.origin.options;
  Json sources = Json::array();
  for (const SourceFile& s : m.origin.sources) {
    sources.push_back({{"name", s.name}, {"bytes", s.bytes}});
  }
  j["origin"]["sources"] = sources;
  for (const IdRecord& ids : m.ids) {
    j["ids"][ids.column] = {{"count", ids.count}, {"xxh64", base::hex64(ids.xxh64)}};
  }
  Json& files = j["files"] = Json::object();
  for (const base::FileRecord& f : m.files) {
    Json& file = files[f.name];
    file["bytes"] = f.bytes;
    file["xxh64"] = base::hex64(f.xxh64);
    if (!f.dtype.empty()) {
      file["dtype"] = f.dtype;
      file["count"] = f.count;
    }
  }
  return j;
}

bool is_array(const base::FileRecord& file) {
  int64_t elements = 0;
  const int64_t shape[] = {file.count};
  return file.count >= 0 && base::element_bytes(file.dtype) > 0 &&
         !__builtin_mul_overflow(file.count, base::element_bytes(file.dtype), &elements) &&
         file.bytes - elements == static_cast<int64_t>(base::npy_header(file.dtype, shape).size());
}

constexpr int64_t kLeast = std::numeric_limits<int64_t>::min();

/// As written; problem() says whether it makes sense.
int64_t number(const Json& object, const char* name) {
  return base::whole_number(object, name, kLeast, std::numeric_limits<int64_t>::max());
}

StoreManifest members_of(const Json& j) {
  StoreManifest m;
  m.segue_version = j.at("segue");
  m.history_length = number(j, "history_length");
  m.min_history = base::whole_numbers(j, "min_history", kLeast);
  m.num_events = number(j, "num_events");
  m.num_users = number(j, "num_users");
  m.num_items = number(j, "num_items");
  if (j.contains("segment")) {
    m.segment = {number(j.at("segment"), "number"), from_hex(j.at("segment").at("previous"))};
    if (m.segment.number < 1) {
      fail(ErrorCode::kCorrupt, fmt::format("no segment has the number {}", m.segment.number));
    }
  }
  m.origin.command = j.at("origin").at("command");
  m.origin.options = j.at("origin").at("options");
  for (const Json& s : j.at("origin").at("sources")) {
    m.origin.sources.push_back({s.at("name"), number(s, "bytes")});
  }
  if (j.contains("ids")) {
    for (const auto& [column, ids] : j.at("ids").items()) {
      m.ids.push_back({column, base::whole_number(ids, "count"), from_hex(ids.at("xxh64"))});
    }
  }
  for (const auto& [name, file] : j.at("files").items()) {
    base::FileRecord record{.name = name, .bytes = number(file, "bytes")};
    record.xxh64 = from_hex(file.at("xxh64"));
    record.dtype = file.value("dtype", "");
    record.count = file.contains("count") ? number(file, "count") : 0;
    m.files.push_back(record);
  }
  return m;
}

std::string anchor_suffix(int64_t history_length, int64_t min_history) {
  return min_history == history_length ? fmt::format("L{}", history_length)
                                       : fmt::format("L{}_m{}", history_length, min_history);
}

}  // namespace

std::string StoreManifest::cache_folder() const {
  return fmt::format("hstu_cache_L{}", history_length);
}

const base::FileRecord* StoreManifest::find(const std::string& name) const {
  const auto found = std::find_if(files.begin(), files.end(),
                                  [&name](const base::FileRecord& f) { return f.name == name; });
  return found == files.end() ? nullptr : &*found;
}

uint64_t StoreManifest::checksum() const { return base::xxh64(dump(without_checksum(*this))); }

std::string StoreManifest::to_json() const {
  Json j = without_checksum(*this);
  j["checksum"] = base::hex64(checksum());
  return dump(j, 2) + "\n";
}

std::string StoreManifest::problem() const {
  if (history_length < 1) return fmt::format("a history length of {}", history_length);
  const bool lists =
      segment.number == 0 ? !min_history.empty() && min_history.front() >= 0 : min_history.empty();
  if (!lists ||
      std::ranges::adjacent_find(min_history, std::greater_equal<>()) != min_history.end()) {
    return fmt::format("minimum histories [{}]", fmt::join(min_history, ", "));
  }
  if (num_users < 1 || num_events < num_users || num_items < 0) {
    return fmt::format("{} events of {} users with {} items", num_events, num_users, num_items);
  }
  for (const base::FileRecord& file : files) {
    if (!base::is_confined(file.name)) return "a file whose name is not one below the store";
    if (file.bytes < 0 || !(file.dtype.empty() ? file.count == 0 : is_array(file))) {
      return fmt::format("{} of {} bytes: {} elements of '{}'", file.name, file.bytes, file.count,
                         file.dtype);
    }
  }
  return {};
}

StoreManifest StoreManifest::from_json(const std::string& text, const std::string& path) {
  try {
    const Json j = Json::parse(text);
    if (j.at("format") != kFormat) fail(ErrorCode::kCorrupt, "not a store's manifest");
    if (const int64_t version = number(j, "version"); version != kFormatVersion) {
      fail(ErrorCode::kUnsupported,
           fmt::format("format version {}; this program knows {}", version, kFormatVersion));
    }
    StoreManifest m = members_of(j);
    if (from_hex(j.at("checksum")) != m.checksum()) {
      fail(ErrorCode::kCorrupt, "checksum is wrong; it was changed");
    }
    if (const std::string problem = m.problem(); !problem.empty()) {
      fail(ErrorCode::kCorrupt, "no store has " + problem);
    }
    return m;
  } catch (const Error& error) {
    fail(error.code(), fmt::format("{}: {}", path, error.what()));
  } catch (const Json::exception& error) {
    fail(ErrorCode::kCorrupt, fmt::format("{}: damaged manifest: {}", path, error.what()));
  } catch (const std::logic_error& error) {  // of from_hex
    fail(ErrorCode::kCorrupt, fmt::format("{}: damaged manifest: {}", path, error.what()));
  }
}

StoreManifest StoreManifest::read(const std::string& store) {
  const std::string path = store + "/" + kManifestFile;
  return from_json(base::read_regular_file(path), path);
}

LogSchema read_store_schema(const std::string& store) {
  const std::string path = store + "/" + kSchemaFile;
  try {
    // With a line end the text is never empty, which would be no text at all.
    return load_log_schema({.file = path,
                            .text = base::read_regular_file(path) + "\n",
                            .sets = {},
                            .use_environment = false});
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kConfig) throw;
    fail(ErrorCode::kCorrupt, error.what());  // a program wrote it
  }
}

std::string positions_file(int64_t history_length, int64_t min_history) {
  return fmt::format("positions_{}.npy", anchor_suffix(history_length, min_history));
}
std::string anchor_ts_file(int64_t history_length, int64_t min_history) {
  return fmt::format("anchor_ts_{}.npy", anchor_suffix(history_length, min_history));
}

}  // namespace segue::data
