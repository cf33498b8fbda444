// Whole steps of embedding tables without a model: ids, a row for each of them, a gradient for each
// of them, the update. Static and dynamic tables on the device, behind a cache and in host memory.

#include "sparse/tables.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/time.h"
#include "bench/bench.h"
#include "bench/lap_timer.h"
#include "bench/workspace.h"
#include "data/synth/distribution.h"
#include "ops/optimizer.h"

namespace segue::bench {
namespace {

using sparse::Mode;
using sparse::TableKind;
using sparse::Tables;
using sparse::Ticket;
using sparse::Tier;

constexpr double kZipfOfIds = 1.05;
constexpr int64_t kBatches = 4;  // that follow each other, again and again
constexpr double kLearningRate = 1e-3;

int64_t or_default(int64_t given, Device device, int64_t on_gpu, int64_t on_cpu) {
  if (given > 0) return given;
  return device.is_cuda() ? on_gpu : on_cpu;
}

struct Shape {
  int64_t tables, rows, dim, ids;  // rows of a table; ids of a batch
};

/// One batch: as many ids of each table, by Zipf's law.
struct Ids {
  std::vector<std::vector<int64_t>> of_table;
  Tensor on_device;  // one table after the other
  std::vector<sparse::Lookup> lookups;

  Ids(const Shape& shape, int64_t number, bool leave_on_device, Workspace& w)
      : of_table(static_cast<size_t>(shape.tables)) {
    const data::Sampler sampler(
        {data::DistributionKind::kZipfBounded, 0, shape.rows, 0, 0, kZipfOfIds});
    std::vector<int64_t> all;
    for (int64_t t = 0; t < shape.tables; ++t) {
      std::vector<int64_t>& ids = of_table[static_cast<size_t>(t)];
      ids.resize(static_cast<size_t>(shape.ids / shape.tables));
      const auto key = static_cast<uint64_t>(number * shape.tables + t);
      for (size_t i = 0; i < ids.size(); ++i) ids[i] = sampler(key, i);
      all.insert(all.end(), ids.begin(), ids.end());
    }
    if (leave_on_device) on_device = w.placed<int64_t>(all);
    for (int64_t t = 0; t < shape.tables; ++t) {
      const std::vector<int64_t>& ids = of_table[static_cast<size_t>(t)];
      sparse::Lookup lookup{static_cast<sparse::TableId>(t), "ids", ids};
      if (leave_on_device) {
        lookup.on_device = on_device.narrow(0, t * std::ssize(ids), std::ssize(ids));
      }
      lookups.push_back(lookup);
    }
  }
};

/// Which tables; `cache` is a share of their rows.
struct Kind {
  TableKind kind = TableKind::kStatic;
  ops::RowOptimizer optimizer = ops::RowOptimizer::kAdam;
  Tier tier = Tier::kDevice;
  double cache = 0;

  std::string place() const {
    if (tier == Tier::kCached) return fmt::format("cache {:g}", cache);
    return tier == Tier::kHost ? "host" : "device";
  }
};

class TablesBench {
 public:
  TablesBench(const Settings& settings, Report& report, const Shape& shape, const Kind& kind)
      : repeats_(settings.repeats),
        report_(report),
        shape_(shape),
        kind_(kind),
        w_(report.device(), gpu_bytes()),
        copy_stream_(report.device()),
        tables_(config(), plan(), {}, report.device(), DType::kF32, 1),
        gradients_(
            w_.parameter({shape.ids / shape.tables * shape.tables, shape.dim}, "gradients", 1e-3)) {
    const bool on_device = report.device().is_cuda();
    for (int64_t b = 0; b < kBatches; ++b) batches_.emplace_back(shape_, b, on_device, w_);
  }

  void run() {
    steps(2 * kBatches);  // all ids have met their rows
    parts();
    whole();
  }

 private:
  const Exec& exec() const { return w_.exec; }
  int64_t state_columns() const { return ops::row_state_size(kind_.optimizer, shape_.dim); }

  sparse::TablesConfig config() const {
    sparse::TablesConfig c;
    c.dim = shape_.dim;
    c.optimizer = kind_.optimizer;
    for (int64_t t = 0; t < shape_.tables; ++t) {
      sparse::TableConfig table{.name = fmt::format("t{}", t), .rows = shape_.rows};
      table.kind = kind_.kind;
      if (table.dynamic()) table.max_rows = table.start_rows = shape_.rows;
      c.tables.push_back(table);
    }
    return c;
  }
  sparse::ShardPlan plan() const {
    sparse::ShardPlan p = sparse::ShardPlan::single(shape_.tables);
    const auto cached = static_cast<int64_t>(kind_.cache * static_cast<double>(shape_.rows));
    // Without a cache to speak of: room for the batches in flight.
    const int64_t in_flight = std::min(shape_.rows, 3 * shape_.ids / shape_.tables);
    for (sparse::TablePlacement& table : p.tables) {
      table.tier = kind_.tier;
      if (kind_.tier == Tier::kCached) table.cache_rows = std::max<int64_t>(1, cached);
      if (kind_.tier == Tier::kHost) table.cache_rows = in_flight;
    }
    return p;
  }

  /// Rows and gradients of ids, sums where they are made, and what sorts and indices take.
  int64_t gpu_bytes() const {
    constexpr int64_t kFlushAndMore = int64_t{1} << 30, kBytesPerId = 256;
    return kFlushAndMore + shape_.ids * (4 * shape_.dim * size_of(DType::kF32) + kBytesPerId);
  }

  Ticket begin(int64_t step, Ticket old) {
    const Ids& ids = batches_[static_cast<size_t>(step % kBatches)];
    Ticket ticket =
        tables_.begin(ids.lookups, Mode::kTraining, std::move(old), 0, sparse::InverseAt::kDevice);
    tables_.stage(ticket, copy_stream_);
    return ticket;
  }
  void forward(Ticket& ticket) { tables_.rows_of_ids(exec(), ticket); }
  void backward(Ticket& ticket) {
    tables_.apply_to_ids(exec(), ticket, gradients_, kLearningRate, ++updates_);
    tables_.release(ticket, *exec().stream);
  }

  /// As in training: the ids of the next step are begun once this one is queued.
  void steps(int64_t count) {
    next_ = begin(step_, std::move(next_));
    for (int64_t s = 0; s < count; ++s) {
      std::swap(now_, next_);
      const Arena::Mark mark(*exec().arena);
      forward(now_);
      backward(now_);
      if (s + 1 < count) next_ = begin(++step_, std::move(next_));
    }
    ++step_;
    exec().stream->synchronize();
  }

  /// One after the other, with nothing beside them: begin() by the clock, the others by events.
  void parts() {
    std::array<Timing, 3> timings;
    LapTimer timer(exec());
    distinct_ = 0;
    for (int64_t i = 0; i < repeats_.warm_up + repeats_.timed; ++i) {
      const base::Stopwatch watch;
      now_ = begin(step_++, std::move(now_));
      const double begun = watch.seconds();
      copy_stream_.synchronize();
      for (int64_t t = 0; t < tables_.count(); ++t) {
        distinct_ += now_.distinct_rows(static_cast<sparse::TableId>(t));
      }
      const Arena::Mark mark(*exec().arena);
      timer.mark();
      forward(now_);
      timer.mark();
      backward(now_);
      timer.mark();
      const std::vector<double> laps = timer.laps();
      if (i < repeats_.warm_up) continue;
      timings[0].seconds.push_back(begun);
      timings[1].seconds.push_back(laps[0]);
      timings[2].seconds.push_back(laps[1]);
    }
    distinct_ /= repeats_.warm_up + repeats_.timed;
    add("distinct ids", timings[0], id_bytes());
    add("forward", timings[1], forward_bytes());
    add("backward", timings[2], backward_bytes());
  }

  void whole() {
    constexpr int64_t kSteps = 4 * kBatches;
    Timing timing;
    for (int64_t i = 0; i < repeats_.warm_up + repeats_.timed; ++i) {
      const base::Stopwatch watch;
      steps(kSteps);
      if (i >= repeats_.warm_up) timing.seconds.push_back(watch.seconds() / kSteps);
    }
    add("step", timing, id_bytes() + forward_bytes() + backward_bytes());
  }

  // What cannot be avoided: ids and places; rows once and as often as ids; gradients once, rows and
  // their state in and out.
  int64_t id_bytes() const { return shape_.ids * (8 + 4); }
  int64_t forward_bytes() const {
    return (shape_.ids + distinct_) * shape_.dim * size_of(DType::kF32);
  }
  int64_t backward_bytes() const {
    return (shape_.ids * shape_.dim + 2 * distinct_ * (shape_.dim + state_columns())) *
           size_of(DType::kF32);
  }

  void add(const char* name, const Timing& timing, int64_t bytes) {
    Result r;
    r.name = name;
    r.labels = {{"kind", kind_.kind == TableKind::kDynamic ? "dynamic" : "static"},
                {"rows_in", kind_.place()},
                {"optimizer", std::string(ops::published_name(kind_.optimizer))}};
    r.shape = {{"tables", shape_.tables},
               {"table_rows", shape_.rows},
               {"dim", shape_.dim},
               {"ids", shape_.ids},
               {"distinct", distinct_}};
    r.items = static_cast<double>(shape_.ids);
    r.item_name = "ids";
    r.bytes = static_cast<double>(bytes);
    r.timing = timing;
    report_.add(r);
  }

  Repeats repeats_;
  Report& report_;
  Shape shape_;
  Kind kind_;
  Workspace w_;
  Stream copy_stream_;
  Tables tables_;
  Tensor gradients_;
  std::vector<Ids> batches_;
  Ticket now_, next_;
  int64_t step_ = 0, updates_ = 0, distinct_ = 0;
};

}  // namespace

void bench_tables(const Settings& settings, Report& report) {
  report.add(measure_copy_rate(settings, report));
  const Device device = report.device();
  const Shape shape{settings.tables.tables,
                    or_default(settings.table_rows, device, int64_t{1} << 20, int64_t{1} << 14),
                    settings.tables.dim,
                    or_default(settings.tables.ids, device, int64_t{1} << 20, int64_t{1} << 13)};
  const auto run = [&](const Kind& kind) { TablesBench(settings, report, shape, kind).run(); };
  for (const TableKind kind : {TableKind::kStatic, TableKind::kDynamic}) {
    for (const auto optimizer : {ops::RowOptimizer::kSgd, ops::RowOptimizer::kAdam}) {
      run({.kind = kind, .optimizer = optimizer});
    }
  }
  for (const TableKind kind : {TableKind::kStatic, TableKind::kDynamic}) {
    for (const double share : {0.8, 1.0}) {
      run({.kind = kind, .tier = Tier::kCached, .cache = share});
    }
    run({.kind = kind, .tier = Tier::kHost});
  }
}

}  // namespace segue::bench
