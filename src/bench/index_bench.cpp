#include <algorithm>
#include <memory>
#include <vector>

#include <fmt/format.h>

#include "base/error.h"
#include "base/parallel.h"
#include "bench/bench.h"
#include "bench/workspace.h"
#include "sparse/hash_index.h"

namespace segue::bench {
namespace {

// What one key cannot avoid, in bytes: itself, the digests of its bucket, the key it is compared
// with and its row; a step, a mark and what is written of a new one; the steps of a full bucket.
constexpr int64_t kFind = 8 + 128 + 8 + 4 + 8;
constexpr int64_t kUse = kFind + 4 + 1;
constexpr int64_t kInsert = 8 + 128 + 8 + 1 + 4 + 4 + 8 + 1;
constexpr int64_t kEvict = kInsert + 128 * 4;

/// n keys, ascending: one at random in each n-th part of all that there are.
std::vector<int64_t> spread_keys(int64_t n, uint64_t seed) {
  std::vector<int64_t> keys(static_cast<size_t>(n));
  const uint64_t part = UINT64_MAX / static_cast<uint64_t>(n), mixed = base::splitmix64(seed);
  base::parallel_for(n, int64_t{1} << 16, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const uint64_t place = static_cast<uint64_t>(i) * part +
                             base::splitmix64(mixed + static_cast<uint64_t>(i)) % part;
      keys[static_cast<size_t>(i)] = static_cast<int64_t>(place ^ (uint64_t{1} << 63));
    }
  });
  return keys;
}

void shuffle(std::vector<int64_t>& keys) {
  for (size_t i = keys.size(); i > 1; --i) std::swap(keys[i - 1], keys[base::splitmix64(i) % i]);
}

class IndexBench {
 public:
  IndexBench(const Settings& settings, Report& report)
      : repeats_(settings.repeats),
        report_(report),
        slots_(size_or(settings.index.slots, int64_t{128} << 20, int64_t{1} << 20)),
        batch_(std::min(slots_, size_or(settings.index.batch, int64_t{1} << 20, 1 << 13))),
        chunk_(std::min(slots_, std::max(batch_, kChunk))),
        w_(report.device(), gpu_bytes()),
        index_(sparse::make_hash_index({.max_rows = slots_}, report.device())),
        known_(spread_keys(batch_, ++seed_)) {
    const std::vector<int64_t> keys = known_;
    known_on_device_ = w_.placed<int64_t>(keys);
    shuffle(known_);
    shuffled_on_device_ = w_.placed<int64_t>(known_);
    rows_ = w_.exec.arena->tensor(DType::kI64, {batch_});
    is_new_ = w_.exec.arena->tensor(DType::kU8, {batch_});
    use(known_on_device_);
  }

  void run(double load) {
    fill(load);
    add("find", load, kFind, [&] { index_->find(known_on_device_, rows_, stream()); });
    add("find, shuffled", load, kFind, [&] { index_->find(shuffled_on_device_, rows_, stream()); });
    add("find or insert, known", load, kUse, [&] { use(known_on_device_); });
    const Arena::Mark mark(*w_.exec.arena);
    std::vector<Tensor> fresh;
    for (int64_t i = 0; i < repeats_.warm_up + repeats_.timed; ++i) {
      fresh.push_back(w_.placed<int64_t>(spread_keys(batch_, ++seed_)));
    }
    const sparse::HashIndex::Counts before = index_->counts();
    size_t next = 0;
    add("find or insert, new", load, load < 1 ? kInsert : kEvict, [&] { use(fresh[next++]); });
    const sparse::HashIndex::Counts after = index_->counts();
    const auto per_key = 100.0 / static_cast<double>(batch_ * static_cast<int64_t>(next));
    report_.note(fmt::format(
        "  of {} slots {:.1f} % were in use; {:.1f} % of new keys took another's row, "
        "{:.1f} % were refused",
        before.slots, 100 * static_cast<double>(before.rows) / static_cast<double>(before.slots),
        per_key * static_cast<double>(after.evicted - before.evicted),
        per_key * static_cast<double>(after.refused - before.refused)));
  }

 private:
  static constexpr int64_t kChunk = int64_t{8} << 20;  // keys that fill it

  int64_t size_or(int64_t given, int64_t on_gpu, int64_t on_cpu) const {
    if (given > 0) return given;
    return report_.device().is_cuda() ? on_gpu : on_cpu;
  }
  /// Keys in, rows and marks out; of fresh keys those of all runs.
  int64_t gpu_bytes() const {
    constexpr int64_t kFlushAndMore = int64_t{1} << 29;
    const int64_t batches = 4 + repeats_.warm_up + repeats_.timed;
    return kFlushAndMore + batches * (batch_ * 8 + 256) + batch_ * 9 + chunk_ * (8 + 9);
  }
  const Stream& stream() const { return *w_.exec.stream; }

  void use(const Tensor& keys) { use(keys, rows_, is_new_); }
  void use(const Tensor& keys, const Tensor& rows, const Tensor& is_new) {
    index_->find_or_insert({.keys = keys, .step = ++step_}, {rows, is_new}, stream());
  }

  void insert(int64_t keys) {
    while (keys > 0) {
      const Arena::Mark mark(*w_.exec.arena);
      const int64_t n = std::min(keys, chunk_);
      const Tensor some = w_.placed<int64_t>(spread_keys(n, ++seed_));
      use(some, w_.exec.arena->tensor(DType::kI64, {n}), w_.exec.arena->tensor(DType::kU8, {n}));
      stream().synchronize();
      keys -= n;
    }
  }

  void fill(double load) {
    const sparse::HashIndex::Counts c = index_->counts();
    insert(static_cast<int64_t>(load * static_cast<double>(c.slots)) - c.rows);
    // Buckets are not equally full; the last slots are not found at once.
    if (load >= 1) insert(c.slots / 8);
    use(known_on_device_);
  }

  template <class Run>
  void add(const char* name, double load, int64_t bytes, Run run) {
    Result r;
    r.name = name;
    r.labels = {{"load", fmt::format("{:g}", load)}};
    r.shape = {{"slots", slots_}, {"rows", index_->counts().rows}, {"batch", batch_}};
    r.items = static_cast<double>(batch_);
    r.item_name = "keys";
    r.bytes = static_cast<double>(batch_ * bytes);
    r.timing = measure(w_.exec, repeats_, run);
    report_.add(r);
  }

  Repeats repeats_;
  Report& report_;
  int64_t slots_, batch_, chunk_;
  Workspace w_;
  std::unique_ptr<sparse::HashIndex> index_;
  uint64_t seed_ = 0;
  int64_t step_ = 0;
  std::vector<int64_t> known_;
  Tensor known_on_device_, shuffled_on_device_, rows_, is_new_;
};

}  // namespace

void bench_index(const Settings& settings, Report& report) {
  std::vector<double> loads = settings.index.loads;
  std::ranges::sort(loads);
  for (const double load : loads) {
    if (load > 0 && load <= 1) continue;
    fail(ErrorCode::kInvalidArgument, fmt::format("a load is in (0, 1], not {}", load));
  }
  report.add(measure_copy_rate(settings, report));
  IndexBench bench(settings, report);
  for (const double load : loads) bench.run(load);
}

}  // namespace segue::bench
