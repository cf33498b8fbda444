#include "data/sample/loader.h"

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <memory>
#include <numeric>
#include <system_error>

#include <fmt/format.h>
#include <unistd.h>

#include "base/rng.h"
#include "bench/bench.h"
#include "data/sample/gather.h"
#include "data/sample/sample_stream.h"
#include "data/store/store_writer.h"
#include "data/synth/distribution.h"
#include "data/synth/draw.h"

namespace segue::bench {
namespace {

constexpr int64_t kItems = 1'000'000;
constexpr int64_t kDays = 300;
constexpr int64_t kBatch = 256;  // samples; four make one of the published model
constexpr int64_t kBatchesPerRun = 32;

/// Shares of the public log: listened to, skipped, liked, anything else.
constexpr double kListened = 0.613, kSkipped = 0.359, kLiked = 0.019;

/// Removed at the end.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    static std::atomic<int> count = 0;
    path_ = std::filesystem::temp_directory_path() /
            fmt::format("segue-bench-{}-{}", ::getpid(), ++count);
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

/// Users with an equal number of events spread over the same days, items by a Zipf law.
void write_store(const std::string& folder, int64_t users, int64_t events_per_user) {
  const data::Sampler items({data::DistributionKind::kZipfBounded, 0, kItems, 0, 0, 1.05});
  data::StoreWriterConfig config;
  config.folder = folder;
  config.min_history = {0};
  const data::LogSchema schema = data::LogSchema::preset("yambda-5b");
  data::StoreWriter writer(config, schema);
  std::vector<data::Event> events;
  for (int64_t user = 0; user < users; ++user) {
    events.clear();
    for (int64_t i = 0; i < events_per_user; ++i) {
      const auto number = static_cast<uint64_t>(user * events_per_user + i);
      const data::Draw draw = data::draw(data::DrawPurpose::kEvent, 1, number, 0);
      const double kind = draw.uniform_a();
      data::Event e;
      e.user = user;
      e.time = kDays * 86400 / events_per_user * i;
      e.item = items(2, number);
      e.kind = kind < kListened + kSkipped ? 0 : kind < kListened + kSkipped + kLiked ? 1 : 2;
      if (e.kind == 0) e.value = kind < kListened ? 100.f : 10.f;
      events.push_back(e);
    }
    writer.add(events);
  }
  std::vector<int64_t> ids(kItems), values(kItems);
  std::iota(ids.begin(), ids.end(), 0);
  for (const data::AttributeFile& attribute : schema.attributes) {
    for (size_t i = 0; i < ids.size(); ++i) {
      values[i] = static_cast<int64_t>(base::splitmix64(i) % 100'000);
    }
    writer.set_attribute(attribute.name, ids, values);
  }
  writer.finish();
}

int64_t bytes_of(const Batch& batch) {
  int64_t bytes = 0;
  for (const Batch::Column& c : batch.columns) bytes += c.values.size() * 8;
  return bytes;
}

struct Counted {
  int64_t samples = 0, events = 0, bytes = 0;

  void add(const Batch& batch) {
    samples += batch.num_samples();
    events += batch.column("item_id").values.size();
    bytes += bytes_of(batch);
  }
};

void tell(Report& report, Result r, const Counted& one_run, int64_t threads) {
  r.shape = {{"samples", one_run.samples},
             {"mean_length", one_run.events / std::max<int64_t>(1, one_run.samples)},
             {"loader_threads", threads}};
  r.bytes = static_cast<double>(one_run.bytes);
  r.items = static_cast<double>(one_run.samples);
  r.item_name = "samples";
  report.add(r);
}

/// Batches from windows spread over all the days, so that histories of all ages come up; inside a
/// batch anchors are in the order of training.
data::SampleList mixed_windows(const data::SampleStream& stream) {
  std::vector<int64_t> positions;
  const int64_t windows = stream.end_window() - stream.first_window();
  for (int64_t i = 0; i < kBatchesPerRun; ++i) {
    const int64_t window = stream.first_window() + i * windows / kBatchesPerRun;
    const data::SampleList list = stream.train_window(window);
    if (list.num_batches() == 0) continue;
    const std::span<const int64_t> batch = list.batch(i % list.num_batches());
    positions.insert(positions.end(), batch.begin(), batch.end());
  }
  return {positions, {}, stream.config(), 0, 1};
}

/// One thread, one batch.
void measure_gather(const data::EventStore& store, const data::SampleList& list,
                    const Repeats& repeats, Report& report) {
  const data::Gatherer gatherer(store, {});
  Batch batch;
  std::vector<int64_t> sample_index;
  Counted one_run;
  Result r;
  r.name = "gather";
  r.timing = measure(repeats, [&] {
    one_run = {};
    for (int64_t b = 0; b < list.num_batches(); ++b) {
      sample_index.resize(list.batch(b).size());
      gatherer.fill(list.batch(b), sample_index, batch);
      one_run.add(batch);
    }
  });
  tell(report, r, one_run, 1);
}

void measure_loader(const data::EventStore& store, const data::SampleList& list, int64_t threads,
                    const Repeats& repeats, Report& report) {
  const data::Gatherer gatherer(store, {});
  data::Loader loader(gatherer, {threads, 2 * threads});
  constexpr int64_t kNoEnd = int64_t{1} << 40;
  loader.start({0, kNoEnd, 0, [&list](int64_t) { return list; }});
  Batch batch;
  Counted one_run;
  Result r;
  r.name = fmt::format("loader, {} threads", threads);
  // What was filled ahead before the clock started would flatter a first run.
  r.timing = measure({repeats.warm_up + 1, repeats.timed}, [&] {
    one_run = {};
    for (int64_t b = 0; b < list.num_batches(); ++b) {
      loader.next(batch);
      one_run.add(batch);
    }
  });
  tell(report, r, one_run, threads);
}

}  // namespace

void bench_loader(const Settings& settings, Report& report) {
  const TemporaryFolder folder;
  write_store(folder.path(), settings.store_users, settings.store_events);
  const data::EventStore store(folder.path(), data::LogSchema::preset("yambda-5b").samples());
  data::StreamConfig config;
  config.min_history = 0;
  config.batch_size = kBatch;
  const data::SampleStream stream(store, config);
  const data::SampleList list = mixed_windows(stream);
  measure_gather(store, list, settings.repeats, report);
  measure_loader(store, list, 2, settings.repeats, report);
}

}  // namespace segue::bench
