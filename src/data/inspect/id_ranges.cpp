#include "data/inspect/id_ranges.h"

#include <algorithm>
#include <span>

#include "base/file.h"
#include "base/npy.h"
#include "data/store/store_manifest.h"

namespace segue::data {

namespace {

/// Of an attribute, or of the one of several values that it is the next one of.
IdRange& range_of(const AttributeConfig& a, const std::string& candidate,
                  std::vector<IdRange>& ranges) {
  if (!a.bag.empty() && ranges.back().column == a.bag) {
    ++ranges.back().values;
    return ranges.back();
  }
  const std::string& name = a.bag.empty() ? a.name : a.bag;
  ranges.push_back({name, candidate.empty() ? "" : candidate + name, 0});
  return ranges.back();
}

}  // namespace

bool IdRange::has(std::string_view name) const {
  for (const std::string& of : {column, candidate_column}) {
    if (of.empty() || !name.starts_with(of)) continue;
    if (values == 1 && name == of) return true;
    for (int64_t k = 1; k <= values && values > 1; ++k) {
      if (name == of + "_" + std::to_string(k)) return true;
    }
  }
  return false;
}

std::vector<bool> items_that_occur(const EventLog& log) {
  std::vector<bool> occur;
  for (size_t p = 0; p < log.num_pieces(); ++p) {
    const std::string path = log.piece(p).folder() + "/" + kPopularityFile;
    if (!base::exists(path)) return {};
    const base::NpyFile file(path);
    const std::span<const int64_t> counts = file.as<int64_t>("<i8");
    if (counts.size() > occur.size()) occur.resize(counts.size());
    for (size_t i = 0; i < counts.size(); ++i) {
      if (counts[i] > 0) occur[i] = true;
    }
  }
  return occur;
}

std::vector<IdRange> id_ranges(const EventStore& store) {
  const EventLog log(store);
  IdRange users{"uid", "", 0};
  for (size_t p = 0; p < log.num_pieces(); ++p) {
    const std::span<const int64_t> known = log.piece(p).unique_users();
    if (!known.empty()) users.largest = std::max(users.largest, known.back());
  }
  std::vector<IdRange> ranges = {users};
  for (size_t a = 0; a < store.schema().user_attributes.size(); ++a) {
    IdRange& range = range_of(store.schema().user_attributes[a], "", ranges);
    for (const int32_t value : store.user_attribute_map(a)) {
      range.largest = std::max<int64_t>(range.largest, value);
    }
  }
  const std::vector<bool> occur = items_that_occur(log);
  const auto last = std::find(occur.rbegin(), occur.rend(), true);
  if (last == occur.rend()) return ranges;
  ranges.push_back({"item_id", "item_candidate_id", occur.rend() - last - 1});
  for (size_t a = 0; a < store.schema().attributes.size(); ++a) {
    const std::span<const int32_t> map = store.attribute_map(a);
    IdRange& range = range_of(store.schema().attributes[a], "item_candidate_", ranges);
    for (size_t i = 0; i < std::min(map.size(), occur.size()); ++i) {
      if (occur[i]) range.largest = std::max<int64_t>(range.largest, map[i]);
    }
  }
  return ranges;
}

}  // namespace segue::data
