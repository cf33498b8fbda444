#include "data/inspect/id_ranges.h"

#include <algorithm>
#include <span>

#include "base/file.h"
#include "base/npy.h"
#include "data/store/store_manifest.h"

namespace segue::data {

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
    IdRange range{store.schema().user_attributes[a].name, "", 0};
    for (const int32_t value : store.user_attribute_map(a)) {
      range.largest = std::max<int64_t>(range.largest, value);
    }
    ranges.push_back(range);
  }
  const std::vector<bool> occur = items_that_occur(log);
  const auto last = std::find(occur.rbegin(), occur.rend(), true);
  if (last == occur.rend()) return ranges;
  ranges.push_back({"item_id", "item_candidate_id", occur.rend() - last - 1});
  for (size_t a = 0; a < store.schema().attributes.size(); ++a) {
    const std::span<const int32_t> map = store.attribute_map(a);
    const std::string& name = store.schema().attributes[a].name;
    IdRange range{name, "item_candidate_" + name, 0};
    for (size_t i = 0; i < std::min(map.size(), occur.size()); ++i) {
      if (occur[i]) range.largest = std::max<int64_t>(range.largest, map[i]);
    }
    ranges.push_back(range);
  }
  return ranges;
}

}  // namespace segue::data
