#include "train/checkpoint_manifest.h"

#include <algorithm>
#include <charconv>
#include <string_view>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"

namespace segue::train {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kFormat = "segue checkpoint";
constexpr int64_t kFormatVersion = 1;

std::string hex(uint64_t value) { return fmt::format("{:016x}", value); }

uint64_t from_hex(const std::string& text) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
  if (error != std::errc() || end != text.data() + text.size()) {
    fail(ErrorCode::kCorrupt, fmt::format("`{}` is not a checksum", text));
  }
  return value;
}

/// The last member and what closes the object; `body` is everything before it.
std::string ending(std::string_view body) {
  return fmt::format(",\n  \"checksum\": \"{}\"\n}}\n", hex(base::xxh64(body)));
}
constexpr size_t kEndingBytes = 37;

Json parse_state(const std::string& text) {
  try {
    Json state = Json::parse(text);
    if (state.is_object()) return state;
  } catch (const Json::exception& error) {
    fail(ErrorCode::kInvalidArgument,
         fmt::format("the state of a checkpoint is not JSON: {}", error.what()));
  }
  fail(ErrorCode::kInvalidArgument, "the state of a checkpoint is not a JSON object");
}

CheckpointManifest from_json(const Json& j, const std::string& path) {
  if (j.at("format") != kFormat) fail(ErrorCode::kCorrupt, path + ": not a checkpoint's manifest");
  if (j.at("version") != kFormatVersion) {
    fail(ErrorCode::kUnsupported,
         fmt::format("{}: format version {}, written by segue {}; this program knows version {}",
                     path, j.at("version").dump(), j.value("segue", "?"), kFormatVersion));
  }
  CheckpointManifest m;
  m.step = j.at("step");
  m.segue_version = j.at("segue");
  for (const Json& file : j.at("files")) {
    data::FileRecord record;
    record.name = file.at("name");
    record.bytes = file.at("bytes");
    record.xxh64 = from_hex(file.at("xxh64"));
    m.files.push_back(record);
  }
  m.state_json = j.at("state").dump();
  return m;
}

}  // namespace

int64_t CheckpointManifest::bytes() const {
  int64_t total = 0;
  for (const data::FileRecord& file : files) total += file.bytes;
  return total;
}

std::string CheckpointManifest::text() const {
  Json j;
  j["format"] = kFormat;
  j["version"] = kFormatVersion;
  j["step"] = step;
  j["segue"] = segue_version;
  Json& list = j["files"] = Json::array();
  for (const data::FileRecord& file : files) {
    list.push_back({{"name", file.name}, {"bytes", file.bytes}, {"xxh64", hex(file.xxh64)}});
  }
  j["state"] = parse_state(state_json);
  std::string body = j.dump(2);
  body.resize(body.size() - 2);  // "\n}" comes back with the ending
  const std::string end = ending(body);
  SEGUE_ASSERT(end.size() == kEndingBytes, "the ending of a manifest has another size");
  return body + end;
}

CheckpointManifest CheckpointManifest::parse(const std::string& text, const std::string& path) {
  const size_t body = text.size() - std::min(text.size(), kEndingBytes);
  if (std::string_view(text).substr(body) != ending(std::string_view(text).substr(0, body))) {
    fail(ErrorCode::kCorrupt,
         fmt::format("{}: checksum is wrong; the file was changed or cut", path));
  }
  try {
    return from_json(Json::parse(text), path);
  } catch (const Json::exception& error) {
    fail(ErrorCode::kCorrupt, fmt::format("{}: broken manifest: {}", path, error.what()));
  }
}

CheckpointManifest CheckpointManifest::read(const std::string& folder) {
  if (!base::exists(folder)) fail(ErrorCode::kNotFound, folder + ": no such checkpoint");
  const std::string path = folder + "/" + kCheckpointManifest;
  if (!base::exists(path)) {
    fail(ErrorCode::kCorrupt, fmt::format("{}: {} is missing", folder, kCheckpointManifest));
  }
  return parse(base::read_file(path), path);
}

}  // namespace segue::train
