#include "data/synth/synth_output.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/error.h"
#include "base/file.h"
#include "base/file_io.h"
#include "base/progress.h"
#include "data/log/log_schema.h"
#include "data/log/log_split.h"
#include "data/store/store_writer.h"

namespace segue::data {
namespace {

void count(SynthSummary& summary, std::span<const Event> events) {
  summary.users += events.empty() ? 0 : 1;
  summary.events += static_cast<int64_t>(events.size());
  for (const Event& e : events) {
    if (e.kind != kListen) continue;
    ++summary.listens;
    summary.listen_plus += e.value >= 50 ? 1 : 0;
  }
}

/// Calls `user(log)` for every user, with a progress line.
template <class PerUser>
void for_each_user(const SynthLog& log, PerUser user) {
  base::Progress progress("generating", log.config().users, "users");
  int64_t events = 0;
  log.for_each_block([&](int64_t first, std::span<const UserLog> block) {
    for (const UserLog& u : block) {
      user(u);
      events += static_cast<int64_t>(u.events.size());
    }
    progress.update(first + static_cast<int64_t>(block.size()),
                    base::format_count(static_cast<double>(events)) + " events");
  });
  progress.finish(base::format_count(static_cast<double>(events)) + " events");
}

/// Listens of a raw log with the probability they were made with.
class RawTruth {
 public:
  explicit RawTruth(const std::string& folder)
      : user_(folder + "/uid.npy", "<u4"),
        time_(folder + "/timestamp.npy", "<u4"),
        probability_(folder + "/listen_probability.npy", "<f4") {}
  void add(const UserLog& log) {
    for (size_t i = 0; i < log.events.size(); ++i) {
      const Event& e = log.events[i];
      if (e.kind != kListen) continue;
      user_.append(static_cast<uint32_t>(e.user));
      time_.append(static_cast<uint32_t>(e.time));
      probability_.append(log.listen_probability[i]);
    }
  }
  void finish() {
    user_.finish();
    time_.finish();
    probability_.finish();
  }

 private:
  base::ColumnFile user_, time_, probability_;
};

/// Popularity and the attributes, with room to grow.
int64_t item_bytes(const SynthConfig& c, const LogSchema& schema) {
  const auto arrays = static_cast<int64_t>(1 + schema.attributes.size());
  return 2 * c.items * arrays * static_cast<int64_t>(sizeof(int64_t));
}

std::string options_of(const SynthConfig& c) {
  return fmt::format("--users {} --items {} --days {} --events-per-user {} --seed {}", c.users,
                     c.items, c.days, c.events_per_user, c.seed);
}

/// The train part with its truth, and split_meta.json.
SynthSummary write_train_events(const SynthLog& log, const LogSchema& schema, StoreWriter& writer) {
  // The last event is known beforehand, the first one only afterwards; the split needs the last.
  const int64_t last = log.config().end_time() - SynthConfig::kTick;
  const LogSplit split(schema, 0, last);
  SplitSink sink(schema, split, writer, nullptr);
  base::ColumnFile truth(writer.stage().path(kTruthFile), "<f4");
  SynthSummary summary;
  int64_t first = last;
  std::vector<Event> train;
  for_each_user(log, [&](const UserLog& user) {
    sink.add(user.events);
    train.clear();
    for (size_t i = 0; i < user.events.size(); ++i) {
      if (!split.trains(user.events[i])) continue;
      train.push_back(user.events[i]);
      truth.append(user.listen_probability[i]);
    }
    count(summary, train);
    if (!user.events.empty()) first = std::min(first, user.events.front().time);
  });
  const SplitCounts counts = sink.finish();
  if (counts.train_events == 0) {
    fail(ErrorCode::kInvalidArgument,
         fmt::format("synth: no event lies in the train part; {} days less one for the test leave "
                     "too little: use more days, users or events per user",
                     log.config().days));
  }
  base::FileRecord record = truth.finish();
  record.name = kTruthFile;
  writer.add_file(record);
  writer.add_text(kSplitMetaFile, split_meta_json(schema, LogSplit(schema, first, last), counts));
  return summary;
}

}  // namespace

SynthSummary write_raw_log(const SynthLog& log, RawLogWriter& writer, const std::string& folder) {
  const std::string truth_folder = folder + "/" + kTruthFolder;
  base::make_folders(truth_folder);
  RawTruth truth(truth_folder);
  SynthSummary summary;
  for_each_user(log, [&](const UserLog& user) {
    writer.add(user.events);
    truth.add(user);
    count(summary, user.events);
  });
  writer.add_mapping("artist", log.artist_rows());
  writer.add_mapping("album", log.album_rows());
  truth.finish();
  writer.finish();
  return summary;
}

SynthSummary write_synth_store(const SynthLog& log, const SynthStoreConfig& config) {
  const LogSchema schema = LogSchema::preset("yambda-" + config.size_name);
  StoreWriter writer({.folder = config.folder,
                      .history_length = config.history_length,
                      .min_history = config.min_history,
                      .buffer_bytes = config.buffer_bytes,
                      .item_bytes = item_bytes(log.config(), schema),
                      .overwrite = config.overwrite},
                     schema);
  writer.set_origin({.command = "synth", .options = options_of(log.config()), .sources = {}});
  const SynthSummary summary = write_train_events(log, schema, writer);
  const auto set = [&](const char* name, const AttributeRows& rows) {
    writer.set_attribute(name, rows.items, rows.values);
  };
  set("artist_id", log.artist_rows());
  set("album_id", log.album_rows());
  writer.finish();
  return summary;
}

}  // namespace segue::data
