#include "train/checkpoint/checkpoint_manifest.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/checked_json.h"
#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/sealed_json.h"

namespace segue::train {
namespace {

using Json = base::CheckedJson;

constexpr int64_t kMostRanks = 1 << 20;
/// A few hundred thousand parts. What is read takes about ten times as much.
constexpr int64_t kMostManifestBytes = int64_t{256} << 20;
constexpr const char* kFormat = "segue checkpoint";
constexpr const char* kRecordFormat = "segue checkpoint of a rank";
constexpr int64_t kAlone = 1, kSeveralRanks = 2, kIncrement = 3;  // format versions
// sparse::RowPartition: where a row of a part lies is computed, so the rule belongs to the format.
constexpr const char* kDeal = "splitmix64";

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

Json to_json(std::span<const SavedPart> parts) {
  Json list = Json::array();
  for (const SavedPart& saved : parts) {
    Json columns = Json::array();
    for (const ColumnRange& range : saved.part.columns) {
      columns.push_back(range.begin);
      columns.push_back(range.count);
    }
    Json entry = {{"rank", saved.rank},
                  {"file", saved.file},
                  {"name", saved.name},
                  {"shape", saved.part.shape}};
    if (saved.part.stacked) {
      entry["stacked"] = true;
    } else {
      entry["rows_part"] = saved.part.part;
      entry["rows_parts"] = saved.part.partition.parts;
      entry["columns"] = std::move(columns);
    }
    list.push_back(std::move(entry));
  }
  return list;
}

/// False: no part of any matrix. Afterwards its numbers can be multiplied and added.
bool part_from(const Json& j, ArrayPart& part) {
  part.shape = base::whole_numbers(j, "shape");
  if (part.shape.empty() || !is_storable(part.shape)) return false;
  if (j.contains("stacked")) {
    part = ArrayPart::whole(part.shape);
    part.stacked = true;
    return base::member_of(j, "stacked") == true;
  }
  part.partition = {part.shape[0], base::whole_number(j, "rows_parts", -1)};
  part.part = base::whole_number(j, "rows_part", -1);
  if (part.partition.parts < 1 || part.partition.parts > kMostRanks || part.part < 0 ||
      part.part >= part.partition.parts) {
    return false;
  }
  const std::vector<int64_t> columns = base::whole_numbers(j, "columns");
  int64_t left = part.whole_columns();  // a part has none of them twice
  for (size_t i = 0; i + 1 < columns.size(); i += 2) {
    const ColumnRange range{columns[i], columns[i + 1]};
    if (range.count > left || range.begin > part.whole_columns() - range.count) return false;
    left -= range.count;
    part.columns.push_back(range);
  }
  return columns.size() % 2 == 0;
}

std::vector<SavedPart> parts_from(const Json& j, int64_t ranks) {
  std::vector<SavedPart> parts;
  std::set<std::tuple<std::string, std::string, int>> known;
  for (const Json& entry : base::list_of(j, "parts")) {
    SavedPart saved{static_cast<int>(base::whole_number(entry, "rank", 0, ranks - 1)),
                    base::text_of(entry, "file"),
                    base::text_of(entry, "name"),
                    {}};
    const auto refuse = [&](const char* what) {
      fail(ErrorCode::kCorrupt, fmt::format("the part of {} `{}` that rank {} saved {}", saved.file,
                                            saved.name, saved.rank, what));
    };
    if (!part_from(entry, saved.part)) refuse("is no part of a matrix");
    if (!known.insert({saved.file, saved.name, saved.rank}).second) refuse("is there twice");
    parts.push_back(std::move(saved));
  }
  return parts;
}

[[noreturn]] void fail_version(const Json& j, const std::string& path, const std::string& what) {
  fail(ErrorCode::kUnsupported,
       fmt::format("{}: {}, written by segue {}; this program knows versions {} to {}", path, what,
                   base::text_of(j, "segue"), kAlone, kIncrement));
}

IncrementOf increment_from(const Json& j, int64_t step) {
  if (step == 0) fail(ErrorCode::kCorrupt, "an increment of step 0");
  return {base::whole_number(j, "step", 0, step - 1),
          base::from_hex64(base::text_of(j, "checksum")), base::whole_number(j, "number", 1, step)};
}

CheckpointManifest from_json(const Json& j, const std::string& path) {
  if (base::text_of(j, "format") != kFormat) fail(ErrorCode::kCorrupt, "not that of a checkpoint");
  const int64_t version = base::whole_number(j, "version");
  if (version < kAlone || version > kIncrement) {
    fail_version(j, path, fmt::format("format version {}", version));
  }
  CheckpointManifest m;
  m.step = base::whole_number(j, "step");
  m.segue_version = base::text_of(j, "segue");
  m.files = base::files_from_json(j);
  if (version == kIncrement) m.increment = increment_from(base::member_of(j, "increment"), m.step);
  if (version == kSeveralRanks || j.contains("ranks")) {
    m.ranks = static_cast<int>(base::whole_number(j, "ranks", 1, kMostRanks));
    const std::string deal = base::text_of(j, "deal");
    if (deal != kDeal) fail_version(j, path, "rows partitioned by " + deal);
    m.parts = parts_from(j, m.ranks);
  }
  const Json& state = base::member_of(j, "state");
  if (!state.is_object()) fail(ErrorCode::kCorrupt, "`state` is not an object");
  m.state_json = state.dump();
  return m;
}

std::string read_bounded(const std::string& path) {
  const base::InputFile file(path);
  if (file.size() > kMostManifestBytes) {
    fail(ErrorCode::kCorrupt,
         fmt::format("{}: {} bytes are too many for a manifest", path, file.size()));
  }
  std::string text(static_cast<size_t>(file.size()), '\0');
  text.resize(file.read_at(0, text.data(), text.size()));
  return text;
}

}  // namespace

int64_t CheckpointManifest::bytes() const {
  int64_t total = 0;
  for (const base::FileRecord& file : files) total += file.bytes;
  return total;
}

std::string CheckpointManifest::text() const {
  Json j;
  j["format"] = kFormat;
  j["version"] = increment ? kIncrement : (ranks == 1 ? kAlone : kSeveralRanks);
  j["step"] = step;
  j["segue"] = segue_version;
  if (increment) {
    j["increment"] = {{"step", increment->step},
                      {"checksum", base::hex64(increment->checksum)},
                      {"number", increment->number}};
  }
  j["files"] = base::to_json(files);
  if (ranks > 1) {
    j["ranks"] = ranks;
    j["deal"] = kDeal;
    j["parts"] = to_json(parts);
  }
  j["state"] = parse_state(state_json);
  std::string all = base::seal_json(j);
  if (static_cast<int64_t>(all.size()) > kMostManifestBytes) {
    fail(ErrorCode::kUnsupported,
         fmt::format("the manifest of a checkpoint would have {} bytes, more than are read back",
                     all.size()));
  }
  return all;
}

CheckpointManifest CheckpointManifest::parse(const std::string& text, const std::string& path) {
  CheckpointManifest m;
  base::unseal_json(text, path, [&](const Json& j) { m = from_json(j, path); });
  m.checksum = base::xxh64(text);
  return m;
}

std::string RankRecord::text() const {
  Json j;
  j["format"] = kRecordFormat;
  j["step"] = step;
  j["rank"] = rank;
  j["error"] = status.message();  // empty: there is none
  j["files"] = base::to_json(files);
  j["parts"] = to_json(parts);
  return base::seal_json(j);
}

RankRecord RankRecord::parse(const std::string& text, const std::string& path) {
  RankRecord record;
  base::unseal_json(text, path, [&](const Json& j) {
    if (base::text_of(j, "format") != kRecordFormat)
      fail(ErrorCode::kCorrupt, "not a rank's record");
    const std::string error = base::text_of(j, "error");
    record = {base::whole_number(j, "step"),
              static_cast<int>(base::whole_number(j, "rank", 0, kMostRanks - 1)),
              error.empty() ? Status() : Status(ErrorCode::kIo, error), base::files_from_json(j),
              parts_from(j, kMostRanks)};
  });
  return record;
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
  return parse(read_bounded(path), path);
}

}  // namespace segue::train
