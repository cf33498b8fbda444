#include "edu/lab.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/error.h"
#include "base/file.h"
#include "base/parallel.h"
#include "base/progress.h"

namespace segue::edu {
namespace {

constexpr int64_t kUniformRange = 50'000'000;  // of the published random keys
constexpr int64_t kWidestRow = 1024;
constexpr int64_t kHistory = 20;

std::string size_text(int64_t bytes) { return base::format_bytes(static_cast<double>(bytes)); }

}  // namespace

Lab::Lab(const Options& options, Sink sink) : options_(options), sink_(std::move(sink)) {
  const Device device = parse_device(options.device);
  require_available(device);
  if (!options.out.empty()) base::make_folders(options.out + "/roofline");  // before any work
  base::set_num_threads(options.threads);
  machine_ = detect_machine(device);
  // Scratch of the measurements; address space on the CPU.
  arena_ = std::make_unique<Arena>(device, device.is_cpu() ? int64_t{32} << 30 : int64_t{4} << 30);
  stream_ = std::make_unique<Stream>(device);
  exec_.arena = arena_.get();
  exec_.stream = stream_.get();
  exec_.device = device;
}

int64_t Lab::llc_bytes() const {
  return options_.quick ? kMiB : std::max(machine_.llc_bytes, ceilings_.knee_bytes);
}

void Lab::measure_machine() {
  if (memory_) return;
  const bool quick = options_.quick;
  const int64_t table =
      quick ? 16 * kMiB : choose_table_bytes(machine_.llc_bytes, machine_.available_bytes);
  memory_ = std::make_unique<TableMemory>(exec_.device, table, options_.huge_pages);
  const int64_t window = 4 * (quick ? kMiB : machine_.llc_bytes);
  lookups_ = window / (4 * 64);
  ceilings_.dispatch_floor_us = measure_dispatch_floor_us(exec_.device);
  ceilings_.flops = measure_gemm_peak(exec_);
  ceilings_.stream_bytes =
      measure_stream(exec_, *memory_, std::max(window, quick ? kMiB : 256 * kMiB), quick ? 2 : 10);
  for (int64_t pass = 0; pass < (quick ? 3 : 6); ++pass) {
    const double bytes = measure_gather_pass(exec_, *memory_, 64, lookups_, pass);
    if (pass > 0) ceilings_.gather_bytes = std::max(ceilings_.gather_bytes, bytes);
  }
  for (const int64_t bytes : table_sizes(table)) {
    curve_.emplace_back(bytes, measure_lookups(exec_, *memory_, bytes, 64, kHistory, lookups_, 3));
  }
  ceilings_.knee_bytes = find_knee(curve_);
  if (!quick && table < 4 * llc_bytes())
    choose_table_bytes(llc_bytes(), 4 * table);  // says why not
  say(fmt::format("machine   {}, {} threads, last-level cache {} (system), {} (measured)",
                  machine_.cpu, base::num_threads(), size_text(machine_.llc_bytes),
                  ceilings_.knee_bytes > 0 ? size_text(ceilings_.knee_bytes) : "no knee"));
  say(fmt::format(
      "peaks     stream {:.1f} GB/s, random rows of 256 bytes {:.1f} GB/s, products {:.1f} "
      "GFLOP/s, empty parallel region {:.1f} us",
      ceilings_.stream_bytes / 1e9, ceilings_.gather_bytes / 1e9, ceilings_.flops / 1e9,
      ceilings_.dispatch_floor_us));
  say(fmt::format("table     {}{}", size_text(table),
                  memory_->huge_pages() ? ", huge pages asked for" : ""));
}

const Dataset& Lab::data() {
  if (data_) return *data_;
  const Ratings ratings = options_.data.empty()
                              ? make_ratings(options_.seed, options_.quick ? 20'000 : 100'000)
                              : read_movielens(options_.data);
  data_ = std::make_unique<Dataset>(make_dataset(
      ratings, options_.seed, kHistory, options_.split_by_time ? Split::kByTime : Split::kRandom));
  say(fmt::format(
      "data      {}: {} ratings to train on, {} to validate, {:.1f} % of them positive{}",
      ratings.source, data_->train.count(), data_->validation.count(),
      100 * data_->validation.positive_share(),
      data_->bayes() > 0
          ? fmt::format("; who knows the truth is right on {:.2f} %", 100 * data_->bayes())
          : ""));
  return *data_;
}

Lab::Prepared Lab::prepare_micro(int64_t batch, int64_t batches) {
  const Workload workload = micro_dlrm(batch);
  const auto pool = std::make_shared<BatchPool>(workload, device());
  if (data().train.count() >= batch) {
    pool->add_epoch(data().train, options_.seed, batches);
  } else {
    pool->add_random(options_.seed, kItemRows);
  }
  return {workload, pool};
}

Lab::Prepared Lab::prepare_uniform(int64_t width, int64_t pooling, int64_t batch, double exponent,
                                   int64_t batches) {
  const Workload workload = micro_dlrm_dram(Keys::kUniform, rows_of(width), width, pooling, batch);
  return {workload, random_pool(workload, exponent, batches)};
}

Lab::Prepared Lab::prepare_faithful(Keys keys, int64_t batch) {
  Workload workload = micro_dlrm_faithful(keys, batch);
  workload.rows = std::min(workload.rows, rows_of(workload.width));
  if (keys == Keys::kUniform) return {workload, random_pool(workload, 0, 0)};
  const auto pool = std::make_shared<BatchPool>(workload, device());
  pool->add_epoch(data().train, options_.seed);
  return {workload, pool};
}

std::shared_ptr<const BatchPool> Lab::random_pool(const Workload& workload, double exponent,
                                                  int64_t batches) const {
  auto pool = std::make_shared<BatchPool>(workload, device());
  if (batches == 0) batches = warm_up() + timed_steps();  // none of them comes twice
  for (int64_t b = 0; b < batches; ++b) {
    pool->add_random(options_.seed + static_cast<uint64_t>(b), kUniformRange, exponent);
  }
  return pool;
}

Lab::Prepared Lab::prepare_dram(const std::string& variant) {
  measure_machine();
  const auto enough = static_cast<double>(4 * llc_bytes());
  const int64_t batch = options_.quick ? 256 : 2048;
  if (variant == "faithful") {
    Prepared p = prepare_faithful(Keys::kHashedIds, batch);
    if (p.workload.rows < micro_dlrm_faithful(Keys::kHashedIds, batch).rows) {
      say(fmt::format("note      a table of {} rows instead of 2,000,000, for lack of memory",
                      p.workload.rows));
    }
    return p;
  }
  if (variant == "uniform") {
    const auto per_step = 4.0 * static_cast<double>(batch * 3 * kHistory * 64);
    const auto batches = static_cast<int64_t>(1.25 * enough / per_step) + 1;
    return prepare_uniform(64, kHistory, batch, 0, std::max<int64_t>(24, batches));
  }
  if (variant != "cross") {
    fail(ErrorCode::kInvalidArgument,
         fmt::format("there is no variant `{}`; there is: cross, uniform, faithful", variant));
  }
  for (int64_t width = 64;; width *= 2) {
    const Workload workload = micro_dlrm_dram(Keys::kCross, rows_of(width), width, kHistory, batch);
    const auto pool = std::make_shared<BatchPool>(workload, device());
    pool->add_epoch(data().train, options_.seed);
    Prepared p{workload, pool};
    if (p.working_set_bytes() >= enough || 2 * width > kWidestRow) return p;
  }
}

namespace {

/// A workload being timed: a small table has memory of its own, others use the lab's as it is.
struct Timed {
  Timed(const Lab& lab, const Workload& workload)
      : memory(workload.hashed()
                   ? nullptr
                   : std::make_unique<TableMemory>(lab.device(), workload.table_bytes())),
        model(workload, memory ? *memory : lab.memory(), lab.options().seed, Precision::kF32,
              memory ? TableInit::kFresh : TableInit::kKeep) {}

  std::unique_ptr<TableMemory> memory;
  MicroDlrm model;
  std::vector<SpanSeconds> steps;
};

}  // namespace

std::vector<StepTimes> Lab::time_in_turns(const std::vector<Prepared>& all, Passes passes) {
  constexpr int64_t kTurns = 3;
  std::vector<std::unique_ptr<Timed>> timed;
  timed.reserve(all.size());
  for (const Prepared& p : all) timed.push_back(std::make_unique<Timed>(*this, p.workload));
  const int64_t each = (timed_steps() + kTurns - 1) / kTurns;
  for (int64_t turn = 0; turn <= kTurns; ++turn) {
    for (size_t i = 0; i < all.size(); ++i) {
      // Whoever shares a pool takes other batches than the one before: caches know none of them.
      const int64_t shift = static_cast<int64_t>(i) * each;
      const int64_t first = turn == 0 ? shift : shift + warm_up() + (turn - 1) * each;
      const std::vector<SpanSeconds> steps =
          run_steps(timed[i]->model, *all[i].pool, first, turn == 0 ? warm_up() : each, passes);
      if (turn > 0) timed[i]->steps.insert(timed[i]->steps.end(), steps.begin(), steps.end());
    }
  }
  std::vector<StepTimes> out;
  out.reserve(timed.size());
  for (const auto& t : timed) out.push_back(times_of(t->steps));
  return out;
}

}  // namespace segue::edu
