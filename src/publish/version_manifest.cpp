#include "publish/version_manifest.h"

#include <algorithm>
#include <set>
#include <span>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/sealed_json.h"
#include "data/store/store_identity.h"

namespace segue::publish {
namespace {

using Json = base::CheckedJson;

constexpr const char* kFormat = "segue version";
constexpr int64_t kFormatVersion = 1;
constexpr int64_t kMostManifestBytes = int64_t{64} << 20;
// Products of these, and bytes of elements, fit 64 bits.
constexpr int64_t kMostRows = int64_t{1} << 40, kMostDim = int64_t{1} << 20;

/// A file is called by the table: the name may not lead anywhere else.
bool is_file_name(const std::string& name) {
  return base::is_confined(name) && name.find('/') == std::string::npos;
}

PublishedTable table_from(const Json& j) {
  PublishedTable table;
  table.name = base::text_of(j, "name");
  table.dim = base::whole_number(j, "dim", 1, kMostDim);
  table.rows = base::whole_number(j, "rows", 0, kMostRows);
  table.in_file = base::whole_number(j, "in_file", 0, table.rows);
  table.removed = base::whole_number(j, "removed", 0, kMostRows);
  table.content = base::from_hex64(base::text_of(j, "content"));
  return table;
}

/// Words of a manifest; what there is none of is damage, not somebody's mistake.
template <class Parse>
auto word_of(const Json& j, const char* name, Parse parse) {
  const std::string word = base::text_of(j, name);
  try {
    return parse(word);
  } catch (const Error& error) {
    fail(ErrorCode::kCorrupt, fmt::format("`{}`: {}", name, error.what()));
  }
}

VersionManifest from_json(const Json& j, const std::string& path) {
  if (base::text_of(j, "format") != kFormat) fail(ErrorCode::kCorrupt, "not that of a version");
  const int64_t version = base::whole_number(j, "version");
  if (version != kFormatVersion) {
    fail(ErrorCode::kUnsupported,
         fmt::format("{}: format version {}, written by segue {}; this program knows version {}",
                     path, version, base::text_of(j, "segue"), kFormatVersion));
  }
  VersionManifest m;
  m.number = base::whole_number(j, "number", 1);
  m.base = base::whole_number(j, "base", 1, m.number);
  m.previous = base::whole_number(j, "previous", 0, m.number - 1);
  m.previous_checksum = base::from_hex64(base::text_of(j, "previous_checksum"));
  if (base::text_of(j, "kind") != (m.is_base() ? "base" : "increment")) {
    fail(ErrorCode::kCorrupt, "`kind` and `base` contradict each other");
  }
  m.step = base::whole_number(j, "step");
  m.segue_version = base::text_of(j, "segue");
  m.checkpoint = base::from_hex64(base::text_of(j, "checkpoint"));
  m.samples = base::whole_number_if_any(j, "samples", -1);
  m.window = base::whole_number_if_any(j, "window", -1);
  if (j.contains("store")) {
    m.store = base::text_of(j, "store");
    data::StoreIdentity::from_json(m.store);
  }
  m.format = word_of(j, "table_format", file_format_of);
  m.dtype = word_of(j, "dtype", row_type_of);
  for (const Json& table : base::list_of(j, "tables")) m.tables.push_back(table_from(table));
  m.files = base::files_from_json(j);

  std::set<std::string> wanted, found;
  for (const PublishedTable& table : m.tables) {
    if (!is_file_name(table.name)) {
      fail(ErrorCode::kCorrupt, fmt::format("`{}` is no name of a table", table.name));
    }
    if (m.is_base() && (table.removed != 0 || table.in_file != table.rows)) {
      fail(ErrorCode::kCorrupt,
           fmt::format("table `{}` of a base is not all in its file", table.name));
    }
  }
  for (const std::string& name : m.file_names()) {
    if (!wanted.insert(name).second) {
      fail(ErrorCode::kCorrupt, fmt::format("two tables have the file `{}`", name));
    }
  }
  for (const base::FileRecord& file : m.files) found.insert(file.name);
  if (wanted != found) fail(ErrorCode::kCorrupt, "`files` are not those of its tables");
  return m;
}

}  // namespace

const char* to_string(FileFormat format) {
  return format == FileFormat::kSafetensors ? "safetensors" : "parquet";
}

FileFormat file_format_of(std::string_view name) {
  for (const FileFormat format : {FileFormat::kSafetensors, FileFormat::kParquet}) {
    if (name == to_string(format)) return format;
  }
  fail(ErrorCode::kInvalidArgument,
       fmt::format("`{}` is no format of tables; there is: safetensors, parquet", name));
}

std::string table_file_name(const std::string& table, FileFormat format) {
  return fmt::format("{}.{}", table, to_string(format));
}

std::string removed_file_name(const std::string& table) { return table + ".removed.parquet"; }

int64_t VersionManifest::bytes() const {
  int64_t total = 0;
  for (const base::FileRecord& file : files) total += file.bytes;
  return total;
}

std::vector<std::string> VersionManifest::file_names() const {
  std::vector<std::string> names = {kDenseFile};
  for (const PublishedTable& table : tables) {
    names.push_back(table_file_name(table.name, format));
    if (format == FileFormat::kParquet && table.removed > 0) {
      names.push_back(removed_file_name(table.name));
    }
  }
  return names;
}

std::string VersionManifest::text() const {
  Json j;
  j["format"] = kFormat;
  j["version"] = kFormatVersion;
  j["number"] = number;
  j["kind"] = is_base() ? "base" : "increment";
  j["base"] = base;
  j["previous"] = previous;
  j["previous_checksum"] = base::hex64(previous_checksum);
  j["step"] = step;
  j["segue"] = segue_version;
  j["checkpoint"] = base::hex64(checkpoint);
  if (samples) j["samples"] = *samples;
  if (window) j["window"] = *window;
  if (!store.empty()) j["store"] = store;
  j["table_format"] = to_string(format);
  j["dtype"] = to_string(dtype);
  j["tables"] = Json::array();
  for (const PublishedTable& table : tables) {
    j["tables"].push_back({{"name", table.name},
                           {"dim", table.dim},
                           {"rows", table.rows},
                           {"in_file", table.in_file},
                           {"removed", table.removed},
                           {"content", base::hex64(table.content)}});
  }
  j["files"] = base::to_json(files);
  return base::seal_json(j);
}

VersionManifest VersionManifest::parse(const std::string& text, const std::string& path) {
  VersionManifest manifest;
  base::unseal_json(text, path, [&](const Json& j) { manifest = from_json(j, path); });
  manifest.checksum = base::seal_of(text);
  return manifest;
}

VersionManifest VersionManifest::read(const std::string& folder) {
  if (!base::exists(fmt::format("{}/{}", folder, kVersionManifest))) {
    fail(ErrorCode::kCorrupt, fmt::format("{}: {} is missing", folder, kVersionManifest));
  }
  const base::InputFile file(folder, kVersionManifest);
  if (file.size() > kMostManifestBytes) {
    fail(ErrorCode::kCorrupt,
         fmt::format("{}: {} bytes are too many for a manifest", file.path(), file.size()));
  }
  std::string text(static_cast<size_t>(file.size()), '\0');
  text.resize(file.read_at(0, text.data(), text.size()));
  return parse(text, file.path());
}

}  // namespace segue::publish
