#include "data/store/store_identity.h"

#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/checked_json.h"
#include "base/hash.h"
#include "base/sealed_json.h"

namespace segue::data {
namespace {

using Json = base::CheckedJson;

/// Neither sources nor the version that wrote it: equal files are equal stores.
uint64_t content_of(const StoreManifest& manifest) {
  std::vector<std::string> lines;
  for (const base::FileRecord& f : manifest.files) {
    lines.push_back(fmt::format("{} {} {:016x}\n", f.name, f.bytes, f.xxh64));
  }
  std::ranges::sort(lines);
  base::Xxh64Stream hash;
  for (const std::string& line : lines) hash.update(line.data(), line.size());
  return hash.digest();
}

IdRecord record_of(const IdMaps& store, const std::string& column) {
  if (store.is_numbered(column)) return store.record(column);
  return {.column = column, .count = StoreIdentity::kAsTheyAre};
}

}  // namespace

StoreIdentity identity_of(const IdMaps& store) {
  StoreIdentity identity;
  if (const std::vector<StoreManifest>& manifests = store.manifests(); !manifests.empty()) {
    identity.content = content_of(manifests.front());
    identity.segments = static_cast<int64_t>(manifests.size()) - 1;
    if (identity.segments > 0) identity.newest_segment = manifests.back().checksum();
  }
  for (const std::string& column : store.columns()) {
    identity.ids.push_back(record_of(store, column));
  }
  return identity;
}

std::string StoreIdentity::to_json() const {
  Json j;
  j["content"] = base::hex64(content);
  j["segments"] = segments;
  j["newest_segment"] = base::hex64(newest_segment);
  j["ids"] = Json::array();
  for (const IdRecord& r : ids) {
    j["ids"].push_back({{"column", r.column}, {"count", r.count}, {"xxh64", base::hex64(r.xxh64)}});
  }
  return j.dump();
}

StoreIdentity StoreIdentity::from_json(const std::string& text) {
  const Json j = base::parse_checked(text);
  StoreIdentity identity;
  identity.content = base::from_hex64(base::text_of(j, "content"));
  identity.segments = base::whole_number(j, "segments", 0, kMostSegments);
  identity.newest_segment = base::from_hex64(base::text_of(j, "newest_segment"));
  for (const Json& r : base::list_of(j, "ids")) {
    identity.ids.push_back({base::text_of(r, "column"), base::whole_number(r, "count", kAsTheyAre),
                            base::from_hex64(base::text_of(r, "xxh64"))});
  }
  return identity;
}

bool is_same_store(const StoreIdentity& recorded, const IdMaps& store) {
  const std::vector<StoreManifest>& manifests = store.manifests();
  if (manifests.empty()) return recorded.content == 0;
  const auto newest = static_cast<size_t>(recorded.segments);
  return recorded.content == content_of(manifests.front()) && newest < manifests.size() &&
         (newest == 0 || recorded.newest_segment == manifests[newest].checksum());
}

std::string ids_problem(const StoreIdentity& recorded, const IdMaps& store) {
  for (const IdRecord& before : recorded.ids) {
    if (!store.has_column(before.column)) continue;  // whoever reads it will miss it
    const IdRecord now = record_of(store, before.column);
    if (now == before) continue;
    const bool as_they_were = before.count == StoreIdentity::kAsTheyAre;
    if (as_they_were || now.count == StoreIdentity::kAsTheyAre) {
      return fmt::format("ids of `{}` {}", before.column,
                         as_they_were ? "were integers that stayed as they are, and have got "
                                        "numbers there"
                                      : "had got numbers, and are integers as they are there");
    }
    if (now.count < before.count) {
      return fmt::format("ids of `{}` were {}, there they are {}", before.column, before.count,
                         now.count);
    }
    if (store.hash_of_first(before.column, before.count) != before.xxh64) {
      return fmt::format("the {} ids of `{}` have other numbers there", before.count,
                         before.column);
    }
  }
  return {};
}

bool has_new_ids(const StoreIdentity& recorded, const IdMaps& store) {
  return std::ranges::any_of(recorded.ids, [&](const IdRecord& before) {
    return store.has_column(before.column) && record_of(store, before.column).count > before.count;
  });
}

}  // namespace segue::data
