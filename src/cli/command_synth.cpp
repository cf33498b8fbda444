#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <string>

#include <fmt/format.h>

#include "base/error.h"
#include "base/parallel.h"
#include "base/progress.h"
#include "base/time.h"
#include "cli/commands.h"
#include "cli/output.h"
#include "data/log/log_schema.h"
#include "data/synth/synth_output.h"
#if SEGUE_HAS_ARROW
#include "data/parquet/parquet_writers.h"
#endif

namespace segue::cli {
namespace {

enum class Format { kStore, kParquet, kCsv };

struct SynthArguments {
  data::SynthConfig log;
  data::SynthStoreConfig store;
  Format format = Format::kStore;
  int threads = 0;
};

std::unique_ptr<data::RawLogWriter> make_raw_writer(const SynthArguments& a) {
  if (a.format == Format::kCsv) return data::make_csv_log_writer(a.store.folder, a.store.size_name);
#if SEGUE_HAS_ARROW
  return data::make_parquet_log_writer(a.store.folder, a.store.size_name);
#else
  fail(ErrorCode::kUnsupported,
       "built without Parquet support; use --format csv or --format store, or run "
       "scripts/fetch_wheels.sh and rebuild");
#endif
}

/// A store looks after itself.
void refuse_to_replace(const SynthArguments& a) {
  if (a.format == Format::kStore || a.store.overwrite) return;
  const auto truth = std::filesystem::path(a.store.folder) / data::kTruthFolder;
  if (!std::filesystem::exists(truth)) return;
  fail(ErrorCode::kInvalidArgument,
       fmt::format("{}: there is a made-up log already; --overwrite replaces it, --out names "
                   "another folder",
                   a.store.folder));
}

void run(const SynthArguments& a) {
  if (a.store.folder.empty()) fail(ErrorCode::kInvalidArgument, "--out names no folder");
  base::set_num_threads(a.threads);
  data::LogSchema::preset("yambda-" + a.store.size_name);  // complains before anything is written
  refuse_to_replace(a);
  const data::SynthLog log(a.log);
  const base::Stopwatch watch;
  data::SynthSummary made;
  if (a.format == Format::kStore) {
    made = data::write_synth_store(log, a.store);
  } else {
    made = data::write_raw_log(log, *make_raw_writer(a), a.store.folder);
  }
  const double seconds = watch.seconds();
  print(fmt::format("{}: {} events of {} users, {} listens, {:.1f} % of them listen_plus\n",
                    a.store.folder, made.events, made.users, made.listens,
                    100.0 * static_cast<double>(made.listen_plus) /
                        static_cast<double>(std::max<int64_t>(1, made.listens))));
  print(fmt::format("{:.1f} s, {} events/s\n", seconds,
                    base::format_count(static_cast<double>(made.events) / seconds)));
  if (a.format == Format::kStore) print(fmt::format("next: segue inspect {}\n", a.store.folder));
}

}  // namespace

void add_synth(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "synth", "Make up an event log in the shape of Yambda, with known probabilities.");
  command->footer(
      "Formats: store is ready for training; parquet and csv are the raw files for `segue prep`.\n"
      "The same options give the same bytes, on any number of threads. docs/synth.md tells how "
      "the\n"
      "events come about.");
  const auto a = std::make_shared<SynthArguments>();
  const auto positive = CLI::Range(int64_t{1}, int64_t{1} << 31);
  command->add_option("--out", a->store.folder, "folder to write")->required();
  command->add_option("--users", a->log.users, "number of users")
      ->check(positive)
      ->capture_default_str();
  command->add_option("--items", a->log.items, "number of items")
      ->check(positive)
      ->capture_default_str();
  command->add_option("--days", a->log.days, "time span; the last day is kept for the test part")
      ->check(positive)
      ->capture_default_str();
  command->add_option("--events-per-user", a->log.events_per_user, "on average")
      ->check(positive)
      ->capture_default_str();
  command->add_option("--seed", a->log.seed, "another seed, another log")->capture_default_str();
  command->add_option("--format", a->format, "store, parquet or csv")
      ->transform(CLI::CheckedTransformer(std::map<std::string, Format>{
          {"store", Format::kStore}, {"parquet", Format::kParquet}, {"csv", Format::kCsv}}))
      ->default_str("store");
  command
      ->add_option("--size-name", a->store.size_name, "50m, 500m or 5b: which size it stands for")
      ->capture_default_str();
  command
      ->add_option("--history", a->store.history_length,
                   "store: events of a history, names the cache folder")
      ->check(positive)
      ->capture_default_str();
  command
      ->add_option(
          "--min-history", a->store.min_history,
          "store: earlier events that an anchor needs, may be repeated; default: the history "
          "length")
      ->allow_extra_args(false);
  command->add_flag("--overwrite", a->store.overwrite, "replace what an earlier run made");
  command->add_option("--threads", a->threads, "CPU threads; 0: all cores")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  command->callback([a] { run(*a); });
}

}  // namespace segue::cli
