#include "data/prep/append.h"

#include <algorithm>
#include <numeric>
#include <span>
#include <sstream>
#include <vector>

#include <fmt/format.h>

#include "base/config.h"
#include "base/error.h"
#include "base/file.h"
#include "base/npy.h"
#include "data/store/event_log.h"
#include "data/store/segments.h"

namespace segue::data {
namespace {

[[noreturn]] void refuse(const std::string& store, const std::string& why) {
  fail(
      ErrorCode::kUnsupported,
      fmt::format("{}: {}; nothing can be appended to it. Prepare the whole log anew", store, why));
}

bool next_line(std::istream& text, std::string& line) {
  if (!std::getline(text, line)) line = "nothing";
  return !text.fail();
}

/// Comments of both schemas are the same: this program's.
std::string without_comment(const std::string& line) {
  return line.substr(0, std::min(line.size(), line.rfind("  # ")));
}

/// The error names the first line in which two schemas differ. What the files are called says
/// nothing of what is in them.
void require_same_schema(const std::string& store, const LogSchema& own, LogSchema given) {
  given.events = own.events;
  std::istringstream mine(base::to_toml(own)), other(base::to_toml(given));
  std::string a, b;
  bool more = true;
  while (more && a == b) {
    more = next_line(mine, a);
    more = next_line(other, b) || more;
  }
  if (a == b) return;
  fail(
      ErrorCode::kConfig,
      fmt::format("the log has another schema than {}: `{}`, there `{}`; append with the schema of "
                  "the store ({}/{})",
                  store, without_comment(b), without_comment(a), store, kSchemaFile));
}

/// A store that was split would have to be split elsewhere when its log grows.
void require_growing(const std::string& store, const LogSchema& schema) {
  if (schema.test_seconds == 0 && schema.gap_seconds == 0 && schema.train_days == 0) return;
  refuse(store, fmt::format("it was split at the end of its log (test_seconds = {}, gap_seconds = "
                            "{}, train_days = {}; all three must be 0)",
                            schema.test_seconds, schema.gap_seconds, schema.train_days));
}

}  // namespace

AppendTarget::AppendTarget(const std::string& store, const LogSchema& schema) : ids(store) {
  if (!base::exists(store + "/" + kManifestFile)) refuse(store, "it has no manifest");
  const LogSchema own = read_store_schema(store);
  log_files = own.events;
  schema_text = base::read_regular_file(store + "/" + kSchemaFile);
  require_growing(store, own);
  if (!own.later.empty()) {
    refuse(store,
           fmt::format("its label \"{}\" depends on later events, which new rows would change",
                       own.later.front().name));
  }
  require_same_schema(store, own, schema);
  const std::vector<StoreManifest>& manifests = ids.manifests();
  const StoreManifest& base = manifests.front();
  for (const base::FileRecord& file : base.files) {
    if (file.name.ends_with(".parquet")) {
      refuse(store, fmt::format("it has sessions ({})", file.name));
    }
  }
  history_length = base.history_length;
  ties = base.origin.options == "ties: file" ? TieOrder::kFile : TieOrder::kFields;
  segment = {manifests.back().segment.number + 1, manifests.back().checksum()};
  if (segment.number > kMostSegments)
    refuse(store, fmt::format("it has {} segments, no store has more", kMostSegments));
  for (const StoreManifest& m : manifests) {
    num_events += m.num_events;
    for (const AttributeColumn& attribute : schema.attribute_columns()) {
      if (m.find(attribute.file) == nullptr) continue;
      (attribute.of_users ? user_maps_folder : maps_folder) =
          m.segment.number == 0 ? store : store + "/" + segment_name(m.segment.number);
    }
  }
  const EventStore events(store, own.samples(), "", VerifyMode::kNever);
  last_time = EventLog(events).last_time();
}

void AppendTarget::copy_maps(const LogSchema& schema, bool of_users, StoreWriter& writer) const {
  constexpr size_t kTogether = 1 << 16;
  std::vector<int64_t> owners(kTogether);
  for (const AttributeColumn& attribute : schema.attribute_columns()) {
    if (attribute.of_users != of_users) continue;
    const base::NpyFile file((of_users ? user_maps_folder : maps_folder) + "/" + attribute.file);
    const std::span<const int64_t> values = file.as<int64_t>("<i8");
    for (size_t first = 0; first < values.size(); first += kTogether) {
      const auto part = values.subspan(first, std::min(kTogether, values.size() - first));
      std::iota(owners.begin(), owners.end(), static_cast<int64_t>(first));
      writer.set_attribute(attribute.name, std::span(owners).first(part.size()), part);
    }
  }
}

}  // namespace segue::data
