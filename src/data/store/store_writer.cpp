#include "data/store/store_writer.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "base/background.h"
#include "base/config.h"
#include "base/error.h"
#include "base/file.h"
#include "base/file_io.h"
#include "base/version_generated.h"
#include "data/store/segments.h"

namespace segue::data {
namespace {

constexpr int64_t kSmallestBlock = 1024;  // events

/// One event per element, as the files have it.
struct EventColumns {
  std::vector<int64_t> user, item, time, kind;
  std::vector<float> value;
  std::vector<int8_t> organic;
  std::vector<std::vector<uint8_t>> pools;  // 0 or 1
  std::vector<std::vector<float>> numbers;

  EventColumns(size_t events, size_t num_pools, size_t num_numbers)
      : user(events),
        item(events),
        time(events),
        kind(events),
        value(events),
        organic(events),
        pools(num_pools, std::vector<uint8_t>(events)),
        numbers(num_numbers, std::vector<float>(events)) {}
};

/// The anchors of a block for one floor.
struct AnchorColumns {
  std::vector<int64_t> positions, times;
};

/// A block of events on its way to the disk.
struct Block {
  EventColumns events;
  std::vector<AnchorColumns> anchors;
  size_t size = 0;

  Block(size_t capacity, size_t num_pools, size_t num_numbers, size_t num_lists)
      : events(capacity, num_pools, num_numbers), anchors(num_lists) {
    for (AnchorColumns& a : anchors) {
      a.positions.reserve(capacity);
      a.times.reserve(capacity);
    }
  }
  void clear() {
    size = 0;
    for (AnchorColumns& a : anchors) {
      a.positions.clear();
      a.times.clear();
    }
  }
};

/// The files that get an element per event or per anchor.
struct EventFiles {
  base::ColumnFile *user, *item, *time, *kind, *value, *organic;
  std::vector<base::ColumnFile*> pools, numbers, positions, anchor_times;

  void write(const Block& block) const {
    const auto put = [&block](base::ColumnFile& file, const auto& column) {
      file.append(std::span(column).first(block.size));
    };
    put(*user, block.events.user);
    put(*item, block.events.item);
    put(*time, block.events.time);
    put(*kind, block.events.kind);
    put(*value, block.events.value);
    put(*organic, block.events.organic);
    for (size_t i = 0; i < pools.size(); ++i) put(*pools[i], block.events.pools[i]);
    for (size_t i = 0; i < numbers.size(); ++i) put(*numbers[i], block.events.numbers[i]);
    for (size_t i = 0; i < positions.size(); ++i) {
      positions[i]->append(std::span<const int64_t>(block.anchors[i].positions));
      anchor_times[i]->append(std::span<const int64_t>(block.anchors[i].times));
    }
  }
};

/// user_start, user_end and unique_uids, as users come by.
class UserFiles {
 public:
  UserFiles(base::ColumnFile& start, base::ColumnFile& end, base::ColumnFile& unique)
      : start_(start), end_(end), unique_(unique) {}

  void begin_user(int64_t user, int64_t position) {
    end_user(position);
    for (; next_ < user; ++next_) {
      start_.append(kAbsent);
      end_.append(kAbsent);
    }
    start_.append(position);
    unique_.append(user);
    ++next_;
    open_ = true;
    ++count_;
  }
  void end_user(int64_t position) {
    if (open_) end_.append(position);
    open_ = false;
  }
  int64_t count() const { return count_; }

 private:
  static constexpr int64_t kAbsent = -1;
  base::ColumnFile &start_, &end_, &unique_;
  int64_t next_ = 0;  // the first id that nothing was written for
  int64_t count_ = 0;
  bool open_ = false;
};

StoreWriterConfig checked(StoreWriterConfig config) {
  if (config.history_length < 1) {
    fail(ErrorCode::kInvalidArgument,
         fmt::format("history length {}: must be positive", config.history_length));
  }
  if (config.min_history.empty() && config.segment.number == 0) {
    config.min_history = {config.history_length};
  }
  std::sort(config.min_history.begin(), config.min_history.end());
  const auto last = std::unique(config.min_history.begin(), config.min_history.end());
  config.min_history.erase(last, config.min_history.end());
  if (!config.min_history.empty() && config.min_history.front() < 0) {
    fail(ErrorCode::kInvalidArgument,
         fmt::format("min history {}: must not be negative", config.min_history.front()));
  }
  if (!config.stage) {
    config.stage = std::make_shared<StoreStage>(
        config.folder, config.overwrite ? StageMode::kReplace : StageMode::kNew);
  }
  return config;
}

int64_t block_events(const StoreWriterConfig& config, size_t num_pools, size_t num_numbers) {
  constexpr int64_t kFixedBytes = 4 * sizeof(int64_t) + sizeof(float) + sizeof(int8_t);
  const auto pools = static_cast<int64_t>(num_pools + num_numbers * sizeof(float));
  const auto lists = static_cast<int64_t>(config.min_history.size());
  const int64_t event_bytes = kFixedBytes + pools + lists * int64_t{2 * sizeof(int64_t)};
  return std::max(kSmallestBlock, config.buffer_bytes / 2 / event_bytes);
}

}  // namespace

struct StoreWriter::Impl {
  Impl(const StoreWriterConfig& c, const LogSchema& s)
      : config(checked(c)),
        schema(s),
        rules(s),
        cache(fmt::format("hstu_cache_L{}/", config.history_length)),
        event_files(open_event_files()),
        users(open_column("user_start.npy", "<i8"), open_column("user_end.npy", "<i8"),
              open_column("unique_uids.npy", "<i8")),
        label(s.samples().label_place()) {
    const size_t numbers = schema.numbers.size();
    const auto capacity = static_cast<size_t>(block_events(config, rules.num_pools(), numbers));
    for (std::unique_ptr<Block>& block : blocks) {
      block =
          std::make_unique<Block>(capacity, rules.num_pools(), numbers, config.min_history.size());
    }
  }

  base::ColumnFile& open_column(const std::string& name, const char* dtype) {
    columns.emplace_back(
        cache + name, std::make_unique<base::ColumnFile>(config.stage->path(cache + name), dtype));
    return *columns.back().second;
  }
  EventFiles open_event_files();
  void check(const Event& e);
  void fill(Block& block, std::span<const Event> events);
  void count_item(int64_t item);
  void check_maps(int64_t ids, bool of_users, const char* what) const;
  void flush();
  void write_text(const std::string& name, std::string_view text);
  void write_items(const std::string& name, std::vector<int64_t>& values, int64_t items);
  void write_items();

  StoreWriterConfig config;
  LogSchema schema;
  EventRules rules;
  std::string cache;  // folder, with a slash
  std::vector<std::pair<std::string, std::unique_ptr<base::ColumnFile>>> columns;
  EventFiles event_files;
  UserFiles users;
  StoreManifest manifest;

  std::vector<int64_t> popularity;
  std::map<std::string, std::vector<int64_t>> attributes;

  int64_t num_events = 0, num_anchors = 0;
  std::optional<size_t> label;  // pool
  StoreFacts facts;
  int64_t user = -1, time = 0;  // of the event before
  int64_t user_start = 0;
  int64_t largest_item = -1;

  std::unique_ptr<Block> blocks[2];  // one is filled while the other is written
  size_t current = 0;
  base::BackgroundWorker writer;  // last: its jobs use the rest
};

EventFiles StoreWriter::Impl::open_event_files() {
  const auto open = [this](const std::string& name, const char* dtype) {
    return &open_column(name, dtype);
  };
  EventFiles f{.user = open("flat_uid.npy", "<i8"),
               .item = open("flat_item_ids.npy", "<i8"),
               .time = open("flat_timestamps.npy", "<i8"),
               .kind = open("flat_event_types.npy", "<i8"),
               .value = open("flat_played_ratio.npy", "<f4"),
               .organic = open("flat_is_organic.npy", "|i1")};
  for (const PoolConfig& pool : schema.samples().pools) {
    f.pools.push_back(open(fmt::format("flat_is_{}.npy", pool.name), "|b1"));
  }
  for (const NumberColumn& number : schema.numbers) {
    f.numbers.push_back(open(fmt::format("flat_number_{}.npy", number.name), "<f4"));
  }
  for (const int64_t floor : config.min_history) {
    f.positions.push_back(open(positions_file(config.history_length, floor), "<i8"));
    f.anchor_times.push_back(open(anchor_ts_file(config.history_length, floor), "<i8"));
  }
  return f;
}

void StoreWriter::Impl::check(const Event& e) {
  if (e.user < user || (e.user == user && e.time < time)) {
    fail(ErrorCode::kInvalidArgument,
         fmt::format("events out of order: user {} at {} after user {} at {}", e.user, e.time, user,
                     time));
  }
  const auto check_id = [](const char* what, int64_t id) {
    if (id < 0 || id > kLargestId) {
      fail(ErrorCode::kOutOfRange,
           fmt::format("{0} id {1}: ids must be from 0 to {2}; {0}_ids = \"dense\" in the schema "
                       "renumbers them",
                       what, id, kLargestId));
    }
  };
  check_id("user", e.user);
  check_id("item", e.item);
  if (e.num_numbers != schema.numbers.size()) {
    fail(ErrorCode::kInvalidArgument, fmt::format("an event has {} numbers, but the schema {}",
                                                  e.num_numbers, schema.numbers.size()));
  }
}

/// Of users, or of items, which also have their popularity.
void StoreWriter::Impl::check_maps(int64_t ids, bool of_users, const char* what) const {
  const int64_t arrays =
      std::ranges::count(schema.attribute_columns(), of_users, &AttributeColumn::of_users) +
      (of_users ? 0 : 1);
  if (ids * arrays * int64_t{sizeof(int64_t)} > config.item_bytes) {
    fail(ErrorCode::kOutOfMemory,
         fmt::format("{1} has {0} ids up to {2}; {3} arrays of that length take more than the {4} "
                     "MiB set aside for them. Allow more memory, or renumber the {0}s with "
                     "{0}_ids = \"dense\"",
                     of_users ? "user" : "item", what, ids - 1, arrays, config.item_bytes >> 20));
  }
}

void StoreWriter::Impl::count_item(int64_t item) {
  if (item > largest_item) {
    largest_item = item;
    const auto needed = static_cast<size_t>(item) + 1;
    if (needed > popularity.size()) {
      check_maps(item + 1, false, "the log");
      popularity.resize(std::max(needed, popularity.size() + popularity.size() / 4));
    }
  }
  ++popularity[static_cast<size_t>(item)];
}

void StoreWriter::Impl::fill(Block& block, std::span<const Event> events) {
  EventColumns& c = block.events;
  size_t i = block.size;
  for (const Event& e : events) {
    check(e);
    if (e.user != user) {
      users.begin_user(e.user, num_events);
      user = e.user;
      user_start = num_events;
    }
    time = e.time;
    count_item(e.item);
    c.user[i] = e.user;
    c.item[i] = e.item;
    c.time[i] = e.time;
    c.kind[i] = e.kind;
    c.value[i] = e.has_value() ? e.value : 0.f;
    c.organic[i] = e.organic;
    for (size_t n = 0; n < c.numbers.size(); ++n) c.numbers[n][i] = e.first_number[n];
    bool in_any = false;
    for (size_t p = 0; p < c.pools.size(); ++p) {
      const bool in_pool = rules.in_pool(p, e);
      c.pools[p][i] = in_pool ? 1 : 0;
      in_any = in_any || (in_pool && p < schema.pools.size());
    }
    facts.outside_pools += in_any ? 0 : 1;
    if (rules.may_be_anchor(e)) {
      ++facts.predictable;
      facts.positive += label ? c.pools[*label][i] : 0;
      for (size_t a = 0; a < block.anchors.size(); ++a) {
        if (num_events - user_start < config.min_history[a]) break;  // floors rise
        num_anchors += a == 0;
        block.anchors[a].positions.push_back(num_events);
        block.anchors[a].times.push_back(e.time);
      }
    }
    ++i;
    ++num_events;
  }
  block.size = i;
}

void StoreWriter::Impl::flush() {
  Block& full = *blocks[current];
  writer.submit([this, &full] { event_files.write(full); });
  // The other block was handed over before this one and, the worker taking one job at a time, has
  // been written by now.
  current = 1 - current;
  blocks[current]->clear();
}

void StoreWriter::Impl::write_text(const std::string& name, std::string_view text) {
  base::OutputFile file(config.stage->path(name));
  file.write(text.data(), text.size());
  file.close();
  manifest.files.push_back(
      {.name = name, .bytes = static_cast<int64_t>(text.size()), .xxh64 = base::xxh64(text)});
}

void StoreWriter::Impl::write_items(const std::string& name, std::vector<int64_t>& values,
                                    int64_t items) {
  values.resize(static_cast<size_t>(items));
  base::ColumnFile file(config.stage->path(name), "<i8");
  file.append(std::span<const int64_t>(values));
  manifest.files.push_back(file.finish());
  manifest.files.back().name = name;
  std::vector<int64_t>().swap(values);
}

/// Attributes reach as far as their rows do, all of them equally far; popularity reaches as far as
/// the larger of them and the events.
void StoreWriter::Impl::write_items() {
  int64_t mapped[2] = {};  // of items, of users
  bool any[2] = {};
  const std::vector<AttributeColumn> maps = schema.attribute_columns();
  for (const AttributeColumn& a : maps) {
    const auto values = attributes.find(a.name);
    if (values == attributes.end()) continue;
    any[a.of_users ? 1 : 0] = true;
    int64_t& most = mapped[a.of_users ? 1 : 0];
    most = std::max(most, static_cast<int64_t>(values->second.size()));
  }
  manifest.num_items = std::max(mapped[0], largest_item + 1);
  write_items(kPopularityFile, popularity, manifest.num_items);
  // No rows at all: every item is known as unknown, and users beyond a map are.
  if (mapped[0] == 0) mapped[0] = manifest.num_items;
  if (mapped[1] == 0) mapped[1] = 1;
  for (const AttributeColumn& a : maps) {
    const size_t of = a.of_users ? 1 : 0;
    if (!any[of] && config.segment.number > 0) continue;  // those before stay in force
    write_items(a.file, attributes[a.name], mapped[of]);
  }
}

StoreWriter::StoreWriter(const StoreWriterConfig& config, const LogSchema& schema) {
  schema.validate();
  impl_ = std::make_unique<Impl>(config, schema);
}
StoreWriter::~StoreWriter() = default;

void StoreWriter::add(std::span<const Event> events) {
  while (!events.empty()) {
    Block& block = *impl_->blocks[impl_->current];
    const size_t capacity = block.events.user.size();
    const size_t n = std::min(events.size(), capacity - block.size);
    impl_->fill(block, events.first(n));
    events = events.subspan(n);
    if (block.size == capacity) impl_->flush();
  }
}

void StoreWriter::set_attribute(const std::string& name, std::span<const int64_t> ids,
                                std::span<const int64_t> values) {
  SEGUE_ASSERT(ids.size() == values.size(), "an id for every value");
  const std::vector<AttributeColumn> known = impl_->schema.attribute_columns();
  const auto of = std::ranges::find(known, name, &AttributeColumn::name);
  if (of == known.end()) {
    fail(ErrorCode::kInvalidArgument, fmt::format("the schema has no attribute \"{}\"", name));
  }
  std::vector<int64_t>& map = impl_->attributes[name];
  int64_t largest = static_cast<int64_t>(map.size()) - 1;
  for (const int64_t id : ids) {
    if (id < 0 || id > kLargestId) {
      fail(ErrorCode::kOutOfRange,
           fmt::format("attribute \"{}\": {} id {} is not from 0 to {}", name,
                       of->of_users ? "user" : "item", id, kLargestId));
    }
    largest = std::max(largest, id);
  }
  impl_->check_maps(largest + 1, of->of_users, name.c_str());
  map.resize(static_cast<size_t>(largest + 1));
  for (size_t i = 0; i < ids.size(); ++i) {
    if (values[i] < 0) {
      fail(ErrorCode::kOutOfRange, fmt::format("attribute \"{}\" of {} {} is negative: {}", name,
                                               of->of_users ? "user" : "item", ids[i], values[i]));
    }
    map[static_cast<size_t>(ids[i])] = values[i];
  }
}

void StoreWriter::add_file(const base::FileRecord& record) {
  impl_->manifest.files.push_back(record);
}
void StoreWriter::add_ids(const IdRecord& record) { impl_->manifest.ids.push_back(record); }
void StoreWriter::add_text(const std::string& name, std::string_view text) {
  impl_->write_text(name, text);
}
void StoreWriter::set_origin(StoreOrigin origin) { impl_->manifest.origin = std::move(origin); }
StoreStage& StoreWriter::stage() { return *impl_->config.stage; }
bool StoreWriter::is_segment() const { return impl_->config.segment.number > 0; }
int64_t StoreWriter::num_events() const { return impl_->num_events; }
int64_t StoreWriter::num_users() const { return impl_->users.count(); }
int64_t StoreWriter::num_anchors() const { return impl_->num_anchors; }
const StoreFacts& StoreWriter::facts() const { return impl_->facts; }

void StoreWriter::finish() {
  Impl& w = *impl_;
  if (w.num_events == 0) fail(ErrorCode::kInvalidArgument, "a store needs at least one event");
  w.flush();
  w.writer.wait();
  w.users.end_user(w.num_events);
  for (auto& [name, file] : w.columns) {
    w.manifest.files.push_back(file->finish());
    w.manifest.files.back().name = name;
  }
  w.write_items();
  // The text that Python's json.dumps gives.
  w.write_text(
      w.cache + "store_meta.json",
      fmt::format("{{\"num_users\": {}, \"total_events\": {}}}", w.users.count(), w.num_events));
  w.write_text(kSchemaFile,
               w.config.schema_text.empty() ? base::to_toml(w.schema) : w.config.schema_text);

  StoreManifest& m = w.manifest;
  m.segue_version = SEGUE_VERSION;
  m.history_length = w.config.history_length;
  m.min_history = w.config.min_history;
  m.segment = w.config.segment;
  m.num_events = w.num_events;
  m.num_users = w.users.count();
  std::sort(m.files.begin(), m.files.end(),
            [](const base::FileRecord& a, const base::FileRecord& b) { return a.name < b.name; });
  w.write_text(kManifestFile, m.to_json());
  if (m.segment.number > 0) {
    w.config.stage->commit_segment(segment_name(m.segment.number), w.cache + "_READY");
  } else {
    w.config.stage->commit(w.cache + "_READY");
  }
  w.config.stage.reset();  // the folder is free again
}

}  // namespace segue::data
