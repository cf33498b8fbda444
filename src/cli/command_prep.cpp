#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <system_error>
#include <vector>

#include <fmt/format.h>
#include <sys/resource.h>

#include "base/error.h"
#include "base/file.h"
#include "base/parallel.h"
#include "base/progress.h"
#include "cli/commands.h"
#include "cli/output.h"
#include "cli/parquet.h"
#include "data/log/log_reader.h"
#include "data/prep/prep.h"
#include "data/store/event_store.h"
#include "data/store/segments.h"
#include "data/store/store_manifest.h"
#include "data/store/store_verify.h"

namespace segue::cli {
namespace {

struct PrepArguments {
  data::PrepConfig config;
  base::ConfigSources schema{.file = "", .sets = {}, .use_environment = false};
  std::string preset, skip_bad;
  bool verify = false;
  bool own_history = false, own_min_history = false;  // given, not those of --ids-from
  int threads = 0;
};

double peak_memory_bytes() {
  struct rusage usage {};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) * 1024;
}

/// The only preset whose log is in the folder.
std::string guess_preset(const std::string& raw) {
  std::vector<std::string> found;
  for (const std::string& name : data::LogSchema::preset_names()) {
    if (data::has_log(raw, data::LogSchema::preset(name))) found.push_back(name);
  }
  if (found.size() == 1) return found.front();
  fail(ErrorCode::kInvalidArgument,
       found.empty() ? fmt::format("{}: holds no log that is known by itself; describe it with "
                                   "--schema FILE (see configs/schemas) or name a --preset: {}",
                                   raw, fmt::join(data::LogSchema::preset_names(), ", "))
                     : fmt::format("{}: holds several logs; choose one with --preset: {}", raw,
                                   fmt::join(found, ", ")));
}

data::LogSchema load_schema(const PrepArguments& a) {
  base::ConfigSources sources = a.schema;
  std::string preset = a.preset;
  if (sources.file.empty() && preset.empty()) {
    const std::string beside = a.config.raw + "/schema.toml";
    const std::string& same = a.config.append ? a.config.store : a.config.ids_from;
    const std::string own = same + "/" + data::kSchemaFile;
    if (base::exists(beside)) {
      sources.file = beside;
    } else if (!same.empty() && base::exists(own)) {
      sources.file = own;
    } else {
      preset = guess_preset(a.config.raw);
    }
  }
  if (!preset.empty()) {
    sources.sets.insert(sources.sets.begin(), fmt::format("preset=\"{}\"", preset));
  }
  return data::load_log_schema(sources);
}

/// A log that is a single file: its folder, and the name in place of the schema's.
void take_single_file(PrepArguments& a) {
  const std::filesystem::path path(a.config.raw);
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return;
  a.config.raw = path.has_parent_path() ? path.parent_path().string() : ".";
  a.schema.sets.push_back("events=" + data::literal_pattern(path.filename().string()));
}

/// Lengths that are not given are those of the store that gives the ids.
void take_lengths(PrepArguments& a) {
  data::PrepConfig& config = a.config;
  const std::string manifest = config.ids_from + "/" + data::kManifestFile;
  if (config.ids_from.empty() || a.own_history || !base::exists(manifest)) return;
  const data::StoreManifest old = data::StoreManifest::read(config.ids_from);
  config.history_length = old.history_length;
  if (!a.own_min_history) config.min_history = old.min_history;
}

void verify(const std::string& store) {
  const data::VerifyReport report = data::verify_store(store);
  report.throw_if_bad(store);
  print(fmt::format("{}: verified {} events, {} users, {} anchors{}\n", store, report.events,
                    report.users, report.anchors,
                    report.has_manifest ? fmt::format("; {} files, {} bytes with good checksums",
                                                      report.files, report.bytes)
                                        : "; no manifest, so no checksums"));
}

/// Rows that are not in the store, or are twice.
void print_skipped(const std::string& store, const data::PrepResult& r) {
  constexpr size_t kShown = 3;
  if (r.rows.skipped > 0) {
    std::vector<std::string> reasons;
    for (const data::SkippedRows::Reason& reason : r.rows.reasons) {
      if (reasons.size() == kShown) {
        reasons.emplace_back("...");
        break;
      }
      reasons.push_back(fmt::format("{} ({})", reason.words(), reason.rows));
    }
    const std::string folder = r.segment > 0 ? store + "/" + data::segment_name(r.segment) : store;
    print(fmt::format("{} of {} rows left out, see {}/{}: {}\n", r.rows.skipped, r.rows.rows,
                      folder, data::kSkippedFile, fmt::join(reasons, ", ")));
  }
  if (r.rows.duplicates > 0) {
    print(
        fmt::format("{} events are equal to another in everything: {}\n", r.rows.duplicates,
                    r.rows.dropped ? "dropped" : "kept (--set duplicates=drop keeps one of each)"));
  }
}

void run(PrepArguments& a) {
  base::set_num_threads(a.threads);
  data::PrepConfig& config = a.config;
  if (!a.skip_bad.empty()) config.skip_bad = data::SkipLimit::parse(a.skip_bad);
  if (config.raw.empty()) {
    if (!a.verify) fail(ErrorCode::kInvalidArgument, "--raw is required (see `segue prep --help`)");
    return verify(config.store);
  }
  // As wherever a store is named, its cache folder will do.
  if (!config.ids_from.empty()) config.ids_from = data::store_folder(config.ids_from);
  take_single_file(a);
  config.schema = load_schema(a);
  config.parquet = parquet();
  take_lengths(a);
  const data::PrepResult r = data::prep(config);
  if (r.segment > 0) {
    print(fmt::format("{}: {} events of {} users appended as {}\n", config.store,
                      r.counts.train_events, r.counts.users, data::segment_name(r.segment)));
  } else {
    print(fmt::format("{}: {} train events of {} users in {} sessions, {} test events\n",
                      config.store, r.counts.train_events, r.counts.users, r.counts.sessions,
                      r.counts.test_events));
  }
  print_skipped(config.store, r);
  print(fmt::format("{} rows in {:.1f} s, {} rows/s, {}, peak memory {:.2f} GiB\n", r.rows.rows,
                    r.seconds, base::format_count(static_cast<double>(r.rows.rows) / r.seconds),
                    r.was_in_order
                        ? "already in order"
                        : fmt::format("sorted in {} {}", r.runs, r.runs == 1 ? "run" : "runs"),
                    peak_memory_bytes() / (1 << 30)));
  if (a.verify) verify(config.store);
}

}  // namespace

void add_prep(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("prep", "Make an event store for training from a raw event log.");
  command->footer(
      "The log is Parquet or CSV; its columns are described by a preset (yambda-50m, yambda-500m,\n"
      "yambda-5b) or a schema file (configs/schemas has examples). Without either, "
      "RAW/schema.toml\n"
      "is taken, or the preset whose files are there. The same rows give the same bytes, in any\n"
      "order and any number of files. `segue prep --out STORE --verify` checks a finished store.\n"
      "`segue prep --raw NEW --out STORE --append` adds rows that came later. With --ids-from a "
      "store\n"
      "of the whole log, old days and new, fits models that were trained on the old one.");
  const auto a = std::make_shared<PrepArguments>();
  data::PrepConfig& c = a->config;
  command->add_option("--raw", c.raw, "folder with the raw log, or its only file");
  command->add_option("--out", c.store, "folder of the store")->required();
  CLI::Option* schema =
      command->add_option("--schema", a->schema.file, "TOML file that describes the log");
  command->add_option("--preset", a->preset, "known log: yambda-50m, yambda-500m or yambda-5b")
      ->excludes(schema);
  command
      ->add_option("--set", a->schema.sets,
                   "override one value of the schema, for example --set train_days=30; may be "
                   "repeated")
      ->allow_extra_args(false);
  command->add_option("--memory", c.memory_bytes, "peak memory, such as 4GiB or 512MiB")
      ->transform(CLI::AsSizeValue(false))
      ->default_str("4GiB");
  CLI::Option* append = command->add_flag(
      "--append", c.append,
      "add a log that is later than everything in the store, with the store's schema");
  command
      ->add_option("--ids-from", c.ids_from,
                   "store whose ids keep their numbers; new ids get those behind them")
      ->excludes(append);
  const CLI::Option* history =
      command
          ->add_option("--history", c.history_length,
                       "history length, by default that of --ids-from; names the cache folder")
          ->capture_default_str()
          ->excludes(append);
  const CLI::Option* min_history =
      command
          ->add_option("--min-history", c.min_history,
                       "earlier events that an anchor needs, may be repeated; default: the history "
                       "length")
          ->allow_extra_args(false)
          ->excludes(append);
  command
      ->add_option("--ties", c.ties,
                   "order of a user's events at one time: fields (any input order gives the same "
                   "store) or file (as in the log)")
      ->transform(CLI::CheckedTransformer(std::map<std::string, data::TieOrder>{
          {"fields", data::TieOrder::kFields}, {"file", data::TieOrder::kFile}}))
      ->default_str("fields")
      ->excludes(append);
  command
      ->add_flag("--sessions", c.sessions, "also write sessions and test events as Parquet files")
      ->excludes(append);
  command->add_option("--skip-bad", a->skip_bad,
                      "leave out rows that cannot be used, at most this share (0.1%) or number of "
                      "them; they are listed in STORE/segue/skipped.csv");
  command->add_flag("--verify", a->verify, "read the finished store again and check everything");
  command
      ->add_flag("--overwrite", c.overwrite,
                 "replace a finished store, once the new one is complete")
      ->excludes(append);
  command->add_option("--threads", a->threads, "CPU threads; 0: all cores")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  command->callback([a, history, min_history] {
    a->own_history = history->count() > 0;
    a->own_min_history = min_history->count() > 0;
    run(*a);
  });
}

}  // namespace segue::cli
