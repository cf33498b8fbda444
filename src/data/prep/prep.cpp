#include "data/prep/prep.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/parallel.h"
#include "base/prefetcher.h"
#include "base/progress.h"
#include "base/time.h"
#include "data/inspect/store_notes.h"
#include "data/inspect/time_span.h"
#include "data/log/attribute_reader.h"
#include "data/log/event_normalizer.h"
#include "data/log/log_reader.h"
#include "data/log/log_scan.h"
#include "data/prep/append.h"
#include "data/prep/event_pipe.h"
#include "data/prep/event_sorter.h"
#include "data/prep/known_ids.h"
#include "data/store/store_writer.h"

namespace segue::data {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr int64_t kProgramBytes = 64 * kMiB;  // code, stacks, and what Arrow keeps
constexpr size_t kBlocksAhead = 4;

/// Sorts events of equal (user, time) in a stream that is in order otherwise.
class TieSorter {
 public:
  explicit TieSorter(TieOrder ties) : ties_(ties) {}

  std::vector<Event>& buffer() { return events_; }
  /// Hands everything but the last group, which may go on, to `sink`.
  template <class Sink>
  void flush(Sink& sink, bool last) {
    size_t end = events_.size();
    if (!last && end > 0) {
      const Event& e = events_.back();
      while (end > 0 && events_[end - 1].user == e.user && events_[end - 1].time == e.time) --end;
    }
    if (ties_ == TieOrder::kFields) sort_groups(std::span(events_).first(end));
    sink.add(std::span<const Event>(events_).first(end));
    events_.erase(events_.begin(), events_.begin() + static_cast<std::ptrdiff_t>(end));
    spare_.clear();
    for (Event& e : events_) spare_.take(e);
    std::swap(numbers_, spare_);
  }

 private:
  static void sort_groups(std::span<Event> events) {
    for (size_t begin = 0, end = 0; begin < events.size(); begin = end) {
      for (end = begin + 1; end < events.size() && events[end].user == events[begin].user &&
                            events[end].time == events[begin].time;) {
        ++end;
      }
      if (end - begin > 1) sort_events(events.subspan(begin, end - begin), TieOrder::kFields);
    }
  }

  TieOrder ties_;
  std::vector<Event> events_;
  NumberArena numbers_, spare_;  // of the events that stay
};

/// One prep from beginning to end.
class Prep {
 public:
  explicit Prep(const PrepConfig& config) : config_(config) {
    plan();
    tables_.csv = {.separator = config.schema.csv_separator, .columns = config.schema.csv_columns};
    tables_.parquet = config.parquet;
    tables_.block_rows = plan_.block_rows;
    tables_.mark_bad_rows = config.skip_bad.allows_any();
  }

  PrepResult run();

 private:
  void plan() {
    plan_ = plan_memory(config_.memory_bytes, base::num_threads(), config_.ties);
    const auto numbers = static_cast<int64_t>(config_.schema.numbers.size() * sizeof(float));
    for (int64_t* const events : {&plan_.run_events, &plan_.most_waiting}) {
      *events = *events * int64_t{sizeof(Event)} / (int64_t{sizeof(Event)} + numbers);
    }
    if (config_.run_events > 0) plan_.run_events = config_.run_events;
  }
  void stream(const LogScan& scan, EventPipe& pipe);
  void sort(const LogScan& scan, const LogSplit& split, EventPipe& pipe);
  template <class Take>
  void read_rows(const LogScan& scan, const char* label, Take take);
  LogScan scan(const IdMaps* known) const;
  void read_events(const LogScan& scan, const LogSplit& split, EventPipe& pipe);
  template <class Action>
  auto or_advise(Action action) const;
  void find_files();
  void check_skipped(const LogScan& scan) const;
  void check_users(const LogScan& scan) const;
  void check_append(const LogScan& scan) const;
  void warn_if_disk_is_small(const LogScan& scan) const;
  void warn_about_content(const LogScan& scan, const StoreWriter& store) const;
  void write_maps(const LogScan& scan, const IdMaps* known, StoreWriter& store) const;
  void begin_maps(bool of_users, const IdColumn& owners, StoreWriter& store) const;
  void find_attributes_of_log();
  void warn_of_unknown(bool of_users, const IdColumn& owners) const;
  StoreOrigin origin() const;

  PrepConfig config_;
  MemoryPlan plan_;
  std::optional<AppendTarget> target_;
  std::optional<IdMaps> known_ids_;  // of ids_from
  TableOptions tables_;
  std::vector<LogFile> files_;
  std::vector<std::vector<LogFile>> attribute_files_;  // a segment need not have them
  std::shared_ptr<StoreStage> stage_;
  PrepResult result_;
};

/// `take` gets every block as a function that adds its events to a list.
template <class Take>
void Prep::read_rows(const LogScan& scan, const char* label, Take take) {
  EventNormalizer normalizer(config_.schema, files_, scan.users, scan.items);
  LogReader reader(files_, normalizer.requests(), tables_);
  base::Progress progress(label, scan.rows, "rows");
  int64_t rows = 0, skipped = 0;
  RawBlock block;
  while (reader.next(block)) {
    take([&](std::vector<Event>& events) {
      if (tables_.mark_bad_rows) {
        skipped += static_cast<int64_t>(normalizer.add_good(block, events));
      } else {
        normalizer.add(block, events);
      }
    });
    rows += static_cast<int64_t>(block.rows);
    progress.update(rows);
  }
  if (rows != scan.rows || skipped != scan.skipped.count()) {
    fail(ErrorCode::kCorrupt,
         fmt::format("{}: changed while it was being read: {} rows, then {}", config_.raw,
                     scan.rows - scan.skipped.count(), rows - skipped));
  }
  progress.finish();
}

void Prep::stream(const LogScan& scan, EventPipe& pipe) {
  TieSorter ties(config_.ties);
  read_rows(scan, "write", [&](const auto& add_to) {
    add_to(ties.buffer());
    ties.flush(pipe, false);
  });
  ties.flush(pipe, true);
}

void Prep::sort(const LogScan& scan, const LogSplit& split, EventPipe& pipe) {
  EventSorter sorter({.scratch = [this](const std::string& name) { return stage_->scratch(name); },
                      .run_events = plan_.run_events,
                      .buffers = plan_.buffers,
                      .merge_bytes = plan_.merge_bytes,
                      .ties = config_.ties,
                      .numbers = config_.schema.numbers.size()});
  int64_t used = 0;
  read_rows(scan, "sort", [&](const auto& add_to) {
    std::vector<Event>& events = sorter.buffer();
    const size_t before = events.size();
    add_to(events);
    const auto end =
        std::remove_if(events.begin() + static_cast<std::ptrdiff_t>(before), events.end(),
                       [&split](const Event& e) { return !split.needs(e); });
    events.erase(end, events.end());
    for (size_t i = before; i < events.size(); ++i) sorter.numbers().take(events[i]);
    used += static_cast<int64_t>(events.size() - before);
    sorter.added();
  });
  result_.runs = sorter.finish();

  base::Prefetcher<EventBlock> merged(kBlocksAhead,
                                      [&sorter](EventBlock& block) { return sorter.next(block); });
  base::Progress progress("write", used, "events");
  EventBlock block;
  int64_t done = 0;
  while (merged.next(block)) {
    pipe.add(block.events);
    done += static_cast<int64_t>(block.events.size());
    progress.update(done);
  }
  progress.finish();
}

/// A row that cannot be used ends a prep; the error says how to leave out such rows.
template <class Action>
auto Prep::or_advise(Action action) const {
  try {
    return action();
  } catch (const RowError& error) {
    fail(error.code(), fmt::format("{} (--skip-bad 0.1% leaves out rows that cannot be used, up to "
                                   "that share, and lists them)",
                                   error.what()));
  }
}

LogScan Prep::scan(const IdMaps* known) const {
  LogScan scan = scan_log(config_.schema, files_, tables_, plan_.dictionary_bytes,
                          target_ ? target_->last_time : -1, known);
  check_skipped(scan);
  return scan;
}

void Prep::read_events(const LogScan& scan, const LogSplit& split, EventPipe& pipe) {
  if (scan.in_order) {
    stream(scan, pipe);
  } else {
    sort(scan, split, pipe);
  }
  pipe.finish();
}

void Prep::check_skipped(const LogScan& scan) const {
  const SkippedRows& skipped = scan.skipped;
  if (config_.skip_bad.allows(skipped.count(), scan.rows) && skipped.count() < scan.rows) return;
  const SkippedRows::Reason most = skipped.reasons().front();
  fail(ErrorCode::kCorrupt,
       fmt::format("{}: {} of {} rows cannot be used, {}; most often {} ({} rows), first is {}",
                   config_.raw, skipped.count(), scan.rows,
                   skipped.count() == scan.rows
                       ? "which leaves nothing"
                       : fmt::format("more than --skip-bad {} allows", config_.skip_bad.text),
                   most.words(), most.rows, skipped.first()));
}

/// A store has tables by user id. A few users with large ids would fill a disk with them.
void Prep::check_users(const LogScan& scan) const {
  constexpr int64_t kSmallTable = int64_t{1} << 24, kEntryBytes = 16, kEntriesPerRow = 16;
  const int64_t entries = scan.largest_user + 1;
  if (config_.schema.user_ids != IdMapping::kAuto || entries <= kSmallTable ||
      entries / kEntriesPerRow <= scan.rows + (target_ ? target_->num_events : 0)) {
    return;
  }
  fail(ErrorCode::kConfig,
       fmt::format("{}: user ids reach up to {}, but there are {} rows: tables by user id would "
                   "take {} MB. Renumber the users with user_ids = \"dense\" in the schema, or "
                   "insist with \"as_is\"",
                   config_.raw, scan.largest_user, scan.rows, entries * kEntryBytes / 1000000));
}

/// Samples are those of one prep only if every event of the segment comes after all others.
void Prep::check_append(const LogScan& scan) const {
  if (scan.early_rows == 0) return;
  fail(ErrorCode::kInvalidArgument,
       fmt::format("{}: {} of {} rows are not later than {}, the newest time of {} (such as {}); "
                   "append only what came after it, or prepare the whole log anew",
                   config_.raw, scan.early_rows, scan.rows, target_->last_time, config_.store,
                   scan.first_early));
}

void Prep::warn_if_disk_is_small(const LogScan& scan) const {
  constexpr int64_t kStoreBytes = 48, kListBytes = 16, kRunBytes = 20;  // per event, about
  const auto numbers = static_cast<int64_t>(config_.schema.numbers.size() * sizeof(float));
  const auto lists = std::max<int64_t>(1, static_cast<int64_t>(config_.min_history.size()));
  const int64_t needed = scan.rows * (kStoreBytes + numbers + kListBytes * lists +
                                      (scan.in_order ? 0 : kRunBytes + numbers));
  const std::optional<base::DiskSpace> disk = base::disk_space(config_.store);
  if (disk && disk->available < needed) {
    base::log_warning(fmt::format("{}: {} MB are free, about {} MB may be needed", config_.store,
                                  disk->available / 1000000, needed / 1000000));
  }
}

/// What is no mistake in itself, but would surprise whoever trains on it.
void Prep::warn_about_content(const LogScan& scan, const StoreWriter& store) const {
  const std::string times = doubt_times(scan.first_time, scan.last_time);
  if (!times.empty() && !target_) {
    base::log_warning(
        fmt::format("{}: {} (it is {})", config_.raw, times, config_.schema.time_unit_seconds));
  }
  const StoreFacts& facts = store.facts();
  for (const std::string& note : {label_note(facts.positive, facts.predictable, config_.schema),
                                  pools_note(facts.outside_pools, store.num_events())}) {
    if (!note.empty()) base::log_warning(fmt::format("{}: {}", config_.store, note));
  }
  if (store.num_anchors() == 0 && !target_) {
    base::log_warning(fmt::format(
        "{}: no event has {} earlier ones of its user, so there is nothing to predict; prepare "
        "with a smaller --min-history, or train with one",
        config_.store,
        config_.min_history.empty() ? config_.history_length
                                    : *std::ranges::min_element(config_.min_history)));
  }
  const int64_t samples = store.num_anchors();
  if (config_.min_history.empty() && !target_ && samples > 0 && 2 * samples < facts.predictable) {
    base::log_info(fmt::format(
        "{} of {} events of the kinds to predict can be samples: those with {} earlier events of "
        "their user, as many as --history asks for; with a smaller --min-history there are more",
        samples, facts.predictable, config_.history_length));
  }
}

StoreOrigin Prep::origin() const {
  StoreOrigin origin;
  origin.command = target_ ? "prep --append" : "prep";
  origin.options = fmt::format("ties: {}", config_.ties == TieOrder::kFile ? "file" : "fields");
  for (const LogFile& file : files_) origin.sources.push_back({file.name, file.bytes});
  for (const std::vector<LogFile>& files : attribute_files_) {
    for (const LogFile& file : files) origin.sources.push_back({file.name, file.bytes});
  }
  return origin;
}

void Prep::find_files() {
  files_ = find_log_files(config_.raw, config_.schema.events);
  for (const AttributeFile* const a : config_.schema.all_attributes()) {
    attribute_files_.push_back(config_.append ? list_log_files(config_.raw, a->file)
                                              : find_log_files(config_.raw, a->file));
  }
}

/// What the log itself says of items comes with its files, whatever they are called.
void Prep::find_attributes_of_log() {
  const std::vector<const AttributeFile*> attributes = config_.schema.all_attributes();
  for (size_t i = 0; i < attributes.size(); ++i) {
    if (attributes[i]->file == target_->log_files) attribute_files_[i] = files_;
  }
}

/// New items, or users, of a segment of which no file tells anything.
void Prep::warn_of_unknown(bool of_users, const IdColumn& owners) const {
  std::vector<std::string> files;
  for (const AttributeFile* const a : config_.schema.all_attributes()) {
    if (a->of_users == of_users && std::ranges::find(files, a->file) == files.end()) {
      files.push_back(a->file);
    }
  }
  if (files.empty() || !owners.dictionary || !owners.dictionary->has_new()) return;
  base::log_warning(fmt::format(
      "{}: no row of {} is of one of the {} new {}s, which have no attributes therefore; a segment "
      "takes the files that lie beside its log",
      config_.raw, fmt::join(files, " or "), owners.dictionary->size() - owners.dictionary->kept(),
      of_users ? "user" : "item"));
}

/// Attributes of items, and which ids the numbers stand for.
void Prep::write_maps(const LogScan& scan, const IdMaps* known, StoreWriter& store) const {
  const std::vector<const AttributeFile*> attributes = config_.schema.all_attributes();
  const ScannedLog log{config_.schema, files_, tables_, scan.users, scan.items};
  for (const bool of_users : {false, true}) {
    const IdColumn& owners = of_users ? scan.users : scan.items;
    // New items that no map reaches would be taken for the last one that it does.
    bool begun = target_ && !of_users && owners.dictionary && owners.dictionary->has_new();
    if (begun) begin_maps(of_users, owners, store);
    bool told = false;
    for (size_t i = 0; i < attributes.size(); ++i) {
      if (attribute_files_[i].empty() || attributes[i]->of_users != of_users) continue;
      if (!std::exchange(begun, true)) begin_maps(of_users, owners, store);
      told = read_attribute(*attributes[i], attribute_files_[i], log, config_.skip_bad,
                            plan_.dictionary_bytes / 2, known, store) ||
             told;
    }
    if (target_ && !told) warn_of_unknown(of_users, owners);
  }
  if (scan.users.dictionary) scan.users.dictionary->save("user", store);
  if (scan.items.dictionary) scan.items.dictionary->save("item", store);
}

/// All maps of items, or of users: as long as there are numbered ones, with what is known of them.
void Prep::begin_maps(bool of_users, const IdColumn& owners, StoreWriter& store) const {
  if (owners.dictionary) {
    const std::vector<int64_t> last = {owners.dictionary->size() - 1}, unknown = {0};
    for (const AttributeColumn& a : config_.schema.attribute_columns()) {
      if (a.of_users == of_users) store.set_attribute(a.name, last, unknown);
    }
  }
  if (target_) target_->copy_maps(config_.schema, of_users, store);
}

PrepResult Prep::run() {
  const base::Stopwatch clock;
  const LogSchema& schema = config_.schema;
  find_files();
  stage_ = std::make_shared<StoreStage>(config_.store, config_.append      ? StageMode::kSegment
                                                       : config_.overwrite ? StageMode::kReplace
                                                                           : StageMode::kNew);
  if (!config_.ids_from.empty()) known_ids_ = open_known_ids(config_.ids_from, schema);
  if (config_.append) {
    target_.emplace(config_.store, schema);
    find_attributes_of_log();
    config_.ties = target_->ties;
    plan();
    config_.history_length = target_->history_length;
    config_.min_history.clear();
    result_.segment = target_->segment.number;
  }
  const IdMaps* const known = target_ ? &target_->ids : known_ids_ ? &*known_ids_ : nullptr;
  LogScan scan = or_advise([&] { return this->scan(known); });
  if (target_) check_append(scan);
  check_users(scan);
  warn_if_disk_is_small(scan);
  result_.rows = {
      .rows = scan.rows, .skipped = scan.skipped.count(), .reasons = scan.skipped.reasons()};
  result_.was_in_order = scan.in_order;

  const LogSplit split(schema, scan.first_time, scan.last_time);
  StoreWriter store({.folder = config_.store,
                     .history_length = config_.history_length,
                     .min_history = config_.min_history,
                     .buffer_bytes = plan_.writer_bytes,
                     .item_bytes = plan_.item_bytes,
                     .segment = target_ ? target_->segment : SegmentLink{},
                     .schema_text = target_ ? target_->schema_text : "",
                     .stage = stage_},
                    schema);
  std::unique_ptr<SessionWriter> sessions;
  if (config_.sessions) sessions = config_.parquet->write_sessions(*stage_);
  SplitSink sink(schema, split, store, sessions.get());
  EventPipe pipe(schema, split, config_.ties, plan_.most_waiting, sink);
  or_advise([&] { read_events(scan, split, pipe); });
  result_.rows.duplicates = pipe.duplicates();
  result_.rows.dropped = schema.duplicates == Duplicates::kDrop;
  result_.counts = sink.finish();
  if (result_.counts.train_events == 0) {
    fail(ErrorCode::kInvalidArgument,
         fmt::format(
             "{}: none of {} events is in the train part, from {} to before {}; the log "
             "ends at {} (see test_seconds, gap_seconds and train_days of the schema, and how "
             "long its later labels wait)",
             config_.raw, scan.rows, split.train_start, split.train_end, split.last_time));
  }

  or_advise([&] { write_maps(scan, known, store); });
  if (sessions) {
    for (const base::FileRecord& file : sessions->finish()) store.add_file(file);
  }
  store.add_text(kSplitMetaFile, split_meta_json(schema, split, result_.counts));
  store.add_text(kRowsFile, result_.rows.to_json());
  if (result_.rows.skipped > 0) store.add_text(kSkippedFile, scan.skipped.csv());
  store.set_origin(origin());
  store.finish();
  warn_about_content(scan, store);
  result_.seconds = clock.seconds();
  return result_;
}

}  // namespace

MemoryPlan plan_memory(int64_t memory_bytes, int threads, TieOrder ties) {
  if (memory_bytes < PrepConfig::kLeastMemory) {
    fail(ErrorCode::kInvalidArgument,
         fmt::format("prep needs at least {} MiB of memory, and {} bytes were given; sizes have "
                     "units, such as --memory 4GiB",
                     PrepConfig::kLeastMemory / kMiB, memory_bytes));
  }
  constexpr int kMostBuffers = 9;
  constexpr int64_t kWaitingBytes = 3 * sizeof(Event) + 64;  // two lists, and a table of times
  const int64_t bytes = memory_bytes - kProgramBytes;
  MemoryPlan plan;
  plan.dictionary_bytes = bytes / 4;
  plan.item_bytes = bytes / 4;
  plan.writer_bytes = std::clamp(bytes / 32, 2 * kMiB, 128 * kMiB);
  plan.merge_bytes = std::min(bytes / 4, 1024 * kMiB);
  plan.buffers = std::clamp(threads + 1, 2, kMostBuffers);
  int64_t run_bytes = std::min(bytes * 3 / 8 / plan.buffers, 256 * kMiB);
  if (ties == TieOrder::kFile)
    run_bytes = run_bytes * 2 / 3;  // a stable sort needs half as much again
  plan.run_events = std::max<int64_t>(1 << 12, run_bytes / int64_t{sizeof(Event)});
  plan.most_waiting = std::max<int64_t>(1 << 12, bytes / 16 / kWaitingBytes);
  plan.block_rows = bytes < 512 * kMiB ? 1 << 12 : 1 << 15;
  return plan;
}

bool has_log(const std::string& raw, const LogSchema& schema) {
  return base::exists(raw + "/" + schema.events);
}

PrepResult prep(const PrepConfig& config) {
  config.schema.validate();
  if (config.append && (config.overwrite || config.sessions)) {
    fail(ErrorCode::kInvalidArgument, "--append goes with neither --overwrite nor --sessions");
  }
  if (config.append && !config.ids_from.empty()) {
    fail(ErrorCode::kInvalidArgument,
         "--append keeps the numbers of the store's own ids; leave --ids-from out");
  }
  if (config.sessions && config.parquet == nullptr) {
    fail(ErrorCode::kUnsupported,
         "--sessions writes Parquet files: built without Parquet support; run "
         "scripts/fetch_wheels.sh and rebuild");
  }
  return Prep(config).run();
}

}  // namespace segue::data
