#include "publish/publish.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/checked_json.h"
#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/stage.h"
#include "base/time.h"
#include "base/version_generated.h"
#include "data/store/event_store.h"
#include "data/store/store_identity.h"
#include "data/store/store_stage.h"
#include "publish/chain.h"
#include "publish/difference.h"
#include "publish/table_file.h"
#include "publish/version_writer.h"
#include "train/checkpoint/checkpoint_model.h"
#include "train/run_config.h"

namespace segue::publish {
namespace {

std::string manifest_path(const train::Checkpoint& checkpoint) {
  return fmt::format("{}/{}", checkpoint.path(), train::kCheckpointManifest);
}

/// What the version will be, as far as that is known before its tables.
VersionManifest begun(const PublishConfig& config, const train::Checkpoint& checkpoint,
                      const VersionManifest* newest) {
  VersionManifest m;
  m.number = newest == nullptr ? 1 : newest->number + 1;
  m.base = newest == nullptr || config.base ? m.number : newest->base;
  m.previous = newest == nullptr ? 0 : newest->number;
  m.previous_checksum = newest == nullptr ? 0 : newest->checksum;
  m.step = checkpoint.step();
  m.segue_version = SEGUE_VERSION;
  m.checkpoint = checkpoint.manifest().checksum;
  const base::CheckedJson state = base::parse_checked(checkpoint.state_json());
  // Counts that the state of a run has; other checkpoints need not have them.
  m.samples = base::whole_number_if_any(state, "samples", -1);
  m.window = base::whole_number_if_any(state, "window", -1);
  if (state.contains("store")) m.store = base::text_of(state, "store");
  m.format = config.format.value_or(newest ? newest->format : FileFormat::kSafetensors);
  m.dtype = config.dtype.value_or(newest ? newest->dtype : RowType::kF32);
  std::vector<std::string> names = config.tables;
  if (names.empty() && newest != nullptr) {
    for (const PublishedTable& table : newest->tables) names.push_back(table.name);
  }
  if (names.empty()) names = tables_of(checkpoint);
  std::ranges::sort(names);
  for (std::string& name : names) m.tables.push_back({.name = std::move(name)});
  return m;
}

void require_same_options(const VersionManifest& wanted, const VersionManifest& newest) {
  const auto refuse = [&](const char* option, const std::string& given, const std::string& has) {
    fail(ErrorCode::kConfig,
         fmt::format("--{} {}: {} has {}; leave the option out, or start a new base with --base",
                     option, given, version_name(newest.number), has));
  };
  if (wanted.format != newest.format) {
    refuse("format", to_string(wanted.format), to_string(newest.format));
  }
  if (wanted.dtype != newest.dtype) {
    refuse("dtype", to_string(wanted.dtype), to_string(newest.dtype));
  }
  const auto names = [](const VersionManifest& m) {
    std::string all;
    for (const PublishedTable& table : m.tables) all += (all.empty() ? "" : ",") + table.name;
    return all;
  };
  if (names(wanted) != names(newest)) refuse("tables", names(wanted), names(newest));
}

/// Rows of an increment replace rows of the same ids; ids that came since have rows of their own.
void require_same_ids(const VersionManifest& next, const VersionManifest& newest,
                      const train::Checkpoint& checkpoint) {
  if (next.store.empty() || newest.store.empty()) return;
  const auto recorded = data::StoreIdentity::from_json(newest.store);
  if (recorded.ids == data::StoreIdentity::from_json(next.store).ids) return;
  const base::CheckedJson state = base::parse_checked(checkpoint.state_json());
  const std::string config = base::text_of(state, "config");
  const std::string store = data::store_folder(train::recorded_config(config).data.store);
  const std::string problem = data::is_finished_store(store)
                                  ? data::ids_problem(recorded, data::IdMaps(store))
                                  : store + ", which could tell, is not there";
  if (problem.empty()) return;
  fail(ErrorCode::kConfig,
       fmt::format("{}: its rows stand for other ids than those of {}: {}. Serving would take rows "
                   "for those of others. Train on a store that was made with `segue prep "
                   "--ids-from`, publish a new base with --base, or choose another folder",
                   checkpoint.path(), version_name(newest.number), problem));
}

/// Two tables may not have one file, nor any that of the dense weights.
void require_file_names(const VersionManifest& m) {
  std::vector<std::string> names = {kDenseFile};
  for (const PublishedTable& table : m.tables) {
    if (table.name.find('/') != std::string::npos || !base::is_confined(table.name)) {
      fail(ErrorCode::kUnsupported,
           fmt::format("table `{}` cannot be published: no file can have its name", table.name));
    }
    names.push_back(table_file_name(table.name, m.format));
    if (m.format == FileFormat::kParquet) names.push_back(removed_file_name(table.name));
  }
  std::ranges::sort(names);
  const auto twice = std::ranges::adjacent_find(names);
  if (twice == names.end()) return;
  fail(ErrorCode::kUnsupported, fmt::format("two tables, or one and the dense weights, would both "
                                            "be in {}; choose others with --tables",
                                            *twice));
}

/// Where a publisher was killed between the rename and the switch, this is the switch.
void settle_current(const OwnedFolder& owned, const std::string& folder, int64_t newest) {
  const std::string problem = current_problem(folder, newest);
  if (!problem.empty()) fail(ErrorCode::kCorrupt, problem);
  if (current_version(folder) != newest) owned.switch_to(newest);
}

/// Bytes of rows and ids, whatever the format makes of them.
struct Payload {
  int64_t version = 0, full = 0;
};

Payload write_tables(const PublishConfig& config, const train::Checkpoint& checkpoint,
                     const Chain& chain, const std::string& path, VersionManifest& m) {
  Payload payload;
  for (size_t t = 0; t < m.tables.size(); ++t) {
    PublishedTable& table = m.tables[t];
    CheckpointTable rows(checkpoint, table.name, m.dtype);
    RowCodec codec = rows.codec();
    Difference difference;
    if (m.is_base()) {
      difference.changed.resize(rows.ids().size());
      std::iota(difference.changed.begin(), difference.changed.end(), size_t{0});
    } else {
      difference = difference_of(config.folder, chain, t, config.parquet, rows,
                                 changed_keys(checkpoint, table.name, chain.back().checkpoint));
    }
    std::vector<int64_t> ids;
    ids.reserve(difference.changed.size());
    for (const size_t i : difference.changed) ids.push_back(rows.ids()[i]);
    WrittenTable written = write_table_file(
        path, table.name, m.format, codec, ids, difference.removed,
        [&](const VisitRow& visit) {
          for (const size_t i : difference.changed) visit(rows.ids()[i], rows.row(i));
        },
        config.parquet);
    table.dim = codec.dim();
    table.rows = std::ssize(rows.ids());
    table.in_file = std::ssize(ids);
    table.removed = std::ssize(difference.removed);
    table.content =
        (m.is_base() ? 0 : chain.back().tables[t].content) - difference.outdated + written.digest;
    std::ranges::move(written.files, std::back_inserter(m.files));
    payload.version +=
        table.in_file * codec.row_bytes() + table.removed * static_cast<int64_t>(sizeof(int64_t));
    payload.full += table.rows * codec.row_bytes();
  }
  return payload;
}

bool has_all_of(const VersionManifest& newest, const VersionManifest& next) {
  const auto nothing = [](const PublishedTable& t) { return t.in_file == 0 && t.removed == 0; };
  return next.step == newest.step && std::ranges::all_of(next.tables, nothing) &&
         next.files.front().xxh64 == newest.files.front().xxh64;
}

double seconds_since_saved(const train::Checkpoint& checkpoint) {
  const base::FileIdentity saved = base::InputFile(manifest_path(checkpoint)).identity();
  return static_cast<double>(base::unix_time_ms()) * 1e-3 -
         static_cast<double>(saved.modified_ns) * 1e-9;
}

}  // namespace

PublishResult publish(const PublishConfig& config, const train::Checkpoint& checkpoint) {
  const base::Stage stage("publish");
  const OwnedFolder owned(config.folder);
  const std::vector<int64_t> numbers = list_versions(config.folder);
  std::optional<VersionManifest> newest;
  if (!numbers.empty()) {
    newest = read_version(config.folder, numbers.back());
    settle_current(owned, config.folder, numbers.back());
  } else if (current_version(config.folder)) {
    fail(ErrorCode::kCorrupt,
         fmt::format("{}: there is a link `{}`, but no version; remove it to start anew",
                     config.folder, kCurrent));
  }
  PublishResult result;
  VersionManifest next = begun(config, checkpoint, newest ? &*newest : nullptr);
  require_format(next.format, config.parquet);
  require_file_names(next);
  Chain chain;
  if (!next.is_base()) {
    require_same_options(next, *newest);
    require_same_ids(next, *newest, checkpoint);
    if (next.checkpoint == newest->checkpoint) {
      result.version = *std::move(newest);
      return result;
    }
    chain = open_chain(config.folder, newest->number);
  }
  VersionWriter writer(owned, config.folder, next.number);
  const std::string dense = fmt::format("{}/{}", writer.path(), kDenseFile);
  train::export_weights(checkpoint, dense, /*tables=*/false);
  next.files.push_back(base::record_of(base::InputFile(dense)));
  next.files.back().name = kDenseFile;
  Payload payload = write_tables(config, checkpoint, chain, writer.path(), next);
  if (!next.is_base() && has_all_of(*newest, next)) {
    result.version = *std::move(newest);
    return result;
  }
  writer.commit(next);
  payload.version += next.files.front().bytes;
  payload.full += next.files.front().bytes;
  result.published = true;
  result.share = static_cast<double>(payload.version) / static_cast<double>(payload.full);
  result.lag_seconds = seconds_since_saved(checkpoint);
  result.version = std::move(next);
  return result;
}

}  // namespace segue::publish
