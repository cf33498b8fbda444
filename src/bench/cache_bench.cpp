// Tables behind a cache: how fast rows come from host memory, against a plain copy of as many
// bytes, and what rows that are there already cost. As in training, a batch is prepared while the
// rows of the one before it are on their way; alone it takes both times, one after the other.

#include <array>
#include <numeric>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/time.h"
#include "bench/bench.h"
#include "bench/workspace.h"
#include "ops/optimizer.h"
#include "sparse/tables.h"
#include "tensor/event.h"

namespace segue::bench {
namespace {

using sparse::Mode;
using sparse::Tables;
using sparse::Ticket;

constexpr sparse::TableId kTable{0};

class CacheBench {
 public:
  CacheBench(const Settings& settings, Report& report)
      : repeats_(settings.repeats),
        report_(report),
        device_(report.device()),
        stream_(device_),
        dim_(settings.layer.dim),
        batch_(batch_rows(settings, device_)),
        tables_(config(), plan(), {}, device_, DType::kF32, 1) {}

  void run() {
    copy_rate();
    visit_all();
    for (const double hit_rate : {0.0, 0.5, 1.0}) {
      add("rows are read", hit_rate, Mode::kEvaluation);
      add("rows are read and written", hit_rate, Mode::kTraining);
    }
    add("one batch at a time", 0, Mode::kEvaluation, 0);
    add("one batch at a time, written", 0, Mode::kTraining, 0);
    for (const double hit_rate : {0.0, 1.0}) host_work(hit_rate);
  }

 private:
  // The cache has room for several batches, the table for many caches.
  static constexpr int64_t kBatchesInCache = 4, kBatchesInTable = 32;

  static int64_t batch_rows(const Settings& settings, Device device) {
    if (settings.table_rows > 0) return std::max<int64_t>(1, settings.table_rows / kBatchesInTable);
    return device.is_cuda() ? int64_t{1} << 16 : int64_t{1} << 11;
  }
  int64_t table_rows() const { return kBatchesInTable * batch_; }
  int64_t row_bytes() const {
    return size_of(DType::kF32) *
           (dim_ + ops::row_state_size(ops::RowOptimizer::kRowwiseAdagrad, dim_));
  }

  sparse::TablesConfig config() const {
    sparse::TablesConfig c;
    c.tables = {{"rows", table_rows()}};
    c.dim = dim_;
    return c;
  }
  sparse::ShardPlan plan() const {
    sparse::ShardPlan p = sparse::ShardPlan::single(1);
    p.tables[0].tier = sparse::Tier::kCached;
    p.tables[0].cache_rows = kBatchesInCache * batch_;
    return p;
  }

  Result result(std::string name, double hit_rate, int64_t rows, int64_t bytes) const {
    Result r;
    r.name = std::move(name);
    if (hit_rate >= 0) r.labels = {{"hit_rate", fmt::format("{:.1f}", hit_rate)}};
    r.shape = {{"table_rows", table_rows()}, {"batch_rows", batch_}, {"dim", dim_}};
    r.items = static_cast<double>(rows);
    r.bytes = static_cast<double>(bytes);
    return r;
  }

  /// Pinned memory to the device: what results are shares of.
  void copy_rate() {
    const int64_t bytes = batch_ * row_bytes();
    const Buffer from(Device::cpu(), bytes, Purpose::kScratch, HostMemory::kPinned);
    const Buffer to(device_, bytes, Purpose::kScratch);
    Result r = result("copy to the device", -1, batch_, bytes);
    r.timing = measure(repeats_, [&] {
      copy_bytes(to.data(), device_, from.data(), Device::cpu(), static_cast<size_t>(bytes),
                 &stream_);
      stream_.synchronize();
    });
    report_.set_copy_rate(r.bytes / r.timing.median());
    report_.add(r);
  }

  /// Rows that the cache has, by now, and others that it has not.
  const std::vector<int64_t>& next_ids(double hit_rate) {
    const auto hot = static_cast<int64_t>(hit_rate * static_cast<double>(batch_));
    ids_.resize(static_cast<size_t>(batch_));
    std::iota(ids_.begin(), ids_.begin() + hot, int64_t{0});
    for (int64_t i = hot; i < batch_; ++i) {
      ids_[static_cast<size_t>(i)] = cold_;
      if (++cold_ == table_rows()) cold_ = batch_;
    }
    return ids_;
  }
  /// The host's part in the next batch.
  void queue(const std::vector<int64_t>& ids, Mode mode) {
    const sparse::Lookup lookup{kTable, "rows", ids};
    Ticket& ticket = tickets_[next_];
    ticket = tables_.begin(std::span(&lookup, 1), mode, std::move(ticket));
    tables_.stage(ticket, stream_);
    tables_.release(ticket, stream_);
    arrived_[next_].record(stream_);
    next_ = (next_ + 1) % kTickets;
  }
  /// And waits for the batch that is `ahead` batches before it.
  void bring(const std::vector<int64_t>& ids, Mode mode, size_t ahead) {
    queue(ids, mode);
    arrived_[(next_ + kTickets - 1 - ahead) % kTickets].synchronize();
  }
  /// So that all rows come from the store, and none is made.
  void visit_all() {
    cold_ = 0;
    for (int64_t b = 0; b < kBatchesInTable + kBatchesInCache; ++b) {
      bring(next_ids(0), Mode::kTraining, 0);
    }
  }

  void add(const char* name, double hit_rate, Mode mode, size_t ahead = 1) {
    for (int64_t b = 0; b < 2 * kBatchesInCache; ++b) bring(next_ids(hit_rate), mode, ahead);
    const auto misses = static_cast<int64_t>((1 - hit_rate) * static_cast<double>(batch_));
    Result r =
        result(name, hit_rate, batch_, misses * row_bytes() * (mode == Mode::kTraining ? 2 : 1));
    r.timing = measure(repeats_, [&] { bring(next_ids(hit_rate), mode, ahead); });
    report_.add(r);
  }

  /// What has to be shorter than the copy to hide behind it.
  void host_work(double hit_rate) {
    Result r = result("host's part", hit_rate, batch_, 0);
    for (int64_t run = 0; run < repeats_.warm_up + repeats_.timed; ++run) {
      const std::vector<int64_t>& ids = next_ids(hit_rate);
      const base::Stopwatch watch;
      queue(ids, Mode::kTraining);
      if (run >= repeats_.warm_up) r.timing.seconds.push_back(watch.seconds());
      stream_.synchronize();
    }
    report_.add(r);
  }

  Repeats repeats_;
  Report& report_;
  Device device_;
  Stream stream_;
  int64_t dim_, batch_, cold_ = 0;
  Tables tables_;
  static constexpr size_t kTickets = 2;
  std::array<Ticket, kTickets> tickets_;
  std::array<Event, kTickets> arrived_;
  size_t next_ = 0;
  std::vector<int64_t> ids_;
};

}  // namespace

void bench_cache(const Settings& settings, Report& report) { CacheBench(settings, report).run(); }

}  // namespace segue::bench
