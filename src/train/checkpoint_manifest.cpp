#include "train/checkpoint_manifest.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"

namespace segue::train {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kFormat = "segue checkpoint";
constexpr const char* kRecordFormat = "segue checkpoint of a rank";
constexpr int64_t kAlone = 1, kSeveralRanks = 2;  // format versions
// sparse::RowDeal: where a row of a part lies is computed, so the rule belongs to the format.
constexpr const char* kDeal = "splitmix64";

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

Json to_json(std::span<const data::FileRecord> files) {
  Json list = Json::array();
  for (const data::FileRecord& file : files) {
    list.push_back({{"name", file.name}, {"bytes", file.bytes}, {"xxh64", hex(file.xxh64)}});
  }
  return list;
}

std::vector<data::FileRecord> files_from(const Json& list) {
  std::vector<data::FileRecord> files;
  for (const Json& file : list) {
    data::FileRecord record;
    record.name = file.at("name");
    record.bytes = file.at("bytes");
    record.xxh64 = from_hex(file.at("xxh64"));
    files.push_back(record);
  }
  return files;
}

Json to_json(std::span<const SavedPart> parts) {
  Json list = Json::array();
  for (const SavedPart& saved : parts) {
    Json columns = Json::array();
    for (const ColumnRange& range : saved.part.columns) {
      columns.push_back(range.begin);
      columns.push_back(range.count);
    }
    list.push_back({{"rank", saved.rank},
                    {"file", saved.file},
                    {"name", saved.name},
                    {"shape", saved.part.shape},
                    {"rows_part", saved.part.part},
                    {"rows_parts", saved.part.deal.parts},
                    {"columns", std::move(columns)}});
  }
  return list;
}

std::vector<SavedPart> parts_from(const Json& list) {
  std::vector<SavedPart> parts;
  for (const Json& j : list) {
    SavedPart saved{j.at("rank"), j.at("file"), j.at("name"), {}};
    ArrayPart& part = saved.part;
    part.shape = j.at("shape").get<std::vector<int64_t>>();
    part.part = j.at("rows_part");
    part.deal = {part.shape.empty() ? 1 : part.shape[0], j.at("rows_parts")};
    const auto columns = j.at("columns").get<std::vector<int64_t>>();
    if (part.shape.empty() || part.shape[0] < 0 || part.deal.parts < 1 || part.part < 0 ||
        part.part >= part.deal.parts || columns.size() % 2 != 0) {
      fail(ErrorCode::kCorrupt,
           fmt::format("the part of {} `{}` that rank {} saved is no part of a matrix", saved.file,
                       saved.name, saved.rank));
    }
    for (size_t i = 0; i < columns.size(); i += 2) {
      part.columns.push_back({columns[i], columns[i + 1]});
    }
    parts.push_back(std::move(saved));
  }
  return parts;
}

/// With its checksum as the last member.
std::string sealed(const Json& j) {
  std::string body = j.dump(2);
  body.resize(body.size() - 2);  // "\n}" comes back with the ending
  const std::string end = ending(body);
  SEGUE_ASSERT(end.size() == kEndingBytes, "the ending of a manifest has another size");
  return body + end;
}

/// `use` gets the JSON of a text that is as it was sealed.
template <class Use>
auto unseal(const std::string& text, const std::string& path, Use use) {
  const size_t body = text.size() - std::min(text.size(), kEndingBytes);
  if (std::string_view(text).substr(body) != ending(std::string_view(text).substr(0, body))) {
    fail(ErrorCode::kCorrupt,
         fmt::format("{}: checksum is wrong; the file was changed or cut", path));
  }
  try {
    return use(Json::parse(text));
  } catch (const Json::exception& error) {
    fail(ErrorCode::kCorrupt, fmt::format("{}: broken manifest: {}", path, error.what()));
  }
}

[[noreturn]] void fail_version(const Json& j, const std::string& path, const std::string& what) {
  fail(ErrorCode::kUnsupported,
       fmt::format("{}: {}, written by segue {}; this program knows versions {} and {}", path, what,
                   j.value("segue", "?"), kAlone, kSeveralRanks));
}

CheckpointManifest from_json(const Json& j, const std::string& path) {
  if (j.at("format") != kFormat) fail(ErrorCode::kCorrupt, path + ": not a checkpoint's manifest");
  const Json& version = j.at("version");
  if (version != kAlone && version != kSeveralRanks) {
    fail_version(j, path, fmt::format("format version {}", version.dump()));
  }
  CheckpointManifest m;
  m.step = j.at("step");
  m.segue_version = j.at("segue");
  m.files = files_from(j.at("files"));
  if (version == kSeveralRanks) {
    m.ranks = j.at("ranks");
    if (j.at("deal") != kDeal) fail_version(j, path, "rows dealt by " + j.at("deal").dump());
    m.parts = parts_from(j.at("parts"));
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
  j["version"] = ranks == 1 ? kAlone : kSeveralRanks;
  j["step"] = step;
  j["segue"] = segue_version;
  j["files"] = to_json(files);
  if (ranks > 1) {
    j["ranks"] = ranks;
    j["deal"] = kDeal;
    j["parts"] = to_json(parts);
  }
  j["state"] = parse_state(state_json);
  return sealed(j);
}

CheckpointManifest CheckpointManifest::parse(const std::string& text, const std::string& path) {
  return unseal(text, path, [&](const Json& j) { return from_json(j, path); });
}

std::string RankRecord::text() const {
  Json j;
  j["format"] = kRecordFormat;
  j["step"] = step;
  j["rank"] = rank;
  j["error"] = status.message();  // empty: there is none
  j["files"] = to_json(files);
  j["parts"] = to_json(parts);
  return sealed(j);
}

RankRecord RankRecord::parse(const std::string& text, const std::string& path) {
  return unseal(text, path, [&](const Json& j) {
    if (j.at("format") != kRecordFormat) fail(ErrorCode::kCorrupt, path + ": not a rank's record");
    const std::string error = j.at("error");
    return RankRecord{j.at("step"), j.at("rank"),
                      error.empty() ? Status() : Status(ErrorCode::kIo, error),
                      files_from(j.at("files")), parts_from(j.at("parts"))};
  });
}

std::vector<std::string> part_problems(std::span<const SavedPart> parts) {
  std::map<std::pair<std::string, std::string>, std::vector<ArrayPart>> arrays;
  for (const SavedPart& saved : parts) arrays[{saved.file, saved.name}].push_back(saved.part);
  std::vector<std::string> problems;
  for (const auto& [name, of_array] : arrays) {
    const std::string problem = cover_problem(of_array);
    if (!problem.empty()) {
      problems.push_back(fmt::format("{} `{}` {}", name.first, name.second, problem));
    }
  }
  return problems;
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
