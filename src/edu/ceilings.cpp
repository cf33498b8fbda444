#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <limits>

#include "base/parallel.h"
#include "base/time.h"
#include "bench/bench.h"
#include "edu/machine.h"
#include "ops/bags.h"
#include "ops/gemm.h"
#include "ops/initialize.h"
#include "ops/rows.h"

namespace segue::edu {
namespace {

/// Seconds of the fastest of `repeats` runs, after one that does not count.
template <class F>
double fastest(const Exec& exec, int repeats, const F& run) {
  run();
  exec.stream->synchronize();
  double best = std::numeric_limits<double>::max();
  for (int i = 0; i < repeats; ++i) {
    const base::Stopwatch watch;
    run();
    exec.stream->synchronize();
    best = std::min(best, watch.seconds());
  }
  return best;
}

/// Evenly drawn rows below `rows`; another `draw`, other rows.
std::vector<int64_t> random_rows(int64_t rows, int64_t count, int64_t draw = 0) {
  std::vector<int64_t> out(static_cast<size_t>(count));
  base::parallel_for(count, 1 << 16, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const uint64_t bits = base::splitmix64(static_cast<uint64_t>(i + draw * count));
      out[static_cast<size_t>(i)] = static_cast<int64_t>(static_cast<uint64_t>(
          (static_cast<__uint128_t>(bits) * static_cast<uint64_t>(rows)) >> 64));
    }
  });
  return out;
}

/// The same where the device reads them.
Tensor place(const Exec& exec, const std::vector<int64_t>& values) {
  const Tensor t = exec.arena->tensor(DType::kI64, {static_cast<int64_t>(values.size())});
  copy_bytes(t.data, t.device, values.data(), Device::cpu(), values.size() * sizeof(int64_t),
             exec.stream);
  exec.stream->synchronize();
  return t;
}

/// One word of every cache line of the rows: what reading alone costs. Lines are asked for ahead,
/// as pooled look-ups do it, and more of them than memory answers at once: a core by itself waits
/// for few rows at a time, and what it reaches so is no ceiling. kLines of a row are known when
/// this is compiled (0: not), since counting them takes as long as reading them.
template <int64_t kLines>
void touch_rows(const Tensor& table, std::span<const int64_t> rows) {
  constexpr int64_t kLine = 16, kLinesAhead = 128, kLeast = 1024, kTasks = 16;
  const int64_t width = kLines > 0 ? kLines * kLine : table.size(1), count = std::ssize(rows);
  const int64_t ahead = std::max<int64_t>(2, kLinesAhead * kLine / width);
  const int64_t grain =
      std::max(kLeast, count / kTasks);  // the first rows of a task are waited for
  std::atomic<uint32_t> sink{0};
  base::parallel_for(count, grain, [&](int64_t begin, int64_t end) {
    uint32_t all = 0;
    for (int64_t i = begin; i < end; ++i) {
      if (i + ahead < end) {
        const float* next = table.row<float>(rows[static_cast<size_t>(i + ahead)]);
        for (int64_t c = 0; c < width; c += kLine) __builtin_prefetch(next + c);
      }
      const float* row = table.row<float>(rows[static_cast<size_t>(i)]);
      for (int64_t c = 0; c < width; c += kLine) all ^= std::bit_cast<uint32_t>(row[c]);
    }
    sink.store(all, std::memory_order_relaxed);
  });
}

void touch_rows(const Tensor& table, std::span<const int64_t> rows) {
  switch (table.size(1)) {
    case 16:
      return touch_rows<1>(table, rows);
    case 32:
      return touch_rows<2>(table, rows);
    case 64:
      return touch_rows<4>(table, rows);
    case 128:
      return touch_rows<8>(table, rows);
    case 256:
      return touch_rows<16>(table, rows);
    default:
      return touch_rows<0>(table, rows);
  }
}

void triad(const float* a, const float* b, float* c, int64_t count) {
  constexpr int64_t kGrain = 1 << 16;
  base::parallel_for(count, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) c[i] = a[i] + 3.0F * b[i];
  });
}

}  // namespace

double measure_stream(const Exec& exec, const TableMemory& memory, int64_t array_bytes,
                      int repeats) {
  const int64_t count = std::min(array_bytes, memory.bytes() / 3) / 4 / 1024 * 1024;
  const Tensor a = memory.flat().narrow(0, 0, count), b = memory.flat().narrow(0, count, count),
               c = memory.flat().narrow(0, 2 * count, count);
  const double seconds = fastest(exec, repeats, [&] {
    if (exec.device.is_cuda()) return ops::add(exec, a, b, c);
    triad(a.ptr<float>(), b.ptr<float>(), c.ptr<float>(), count);
  });
  zero(c, exec.stream);  // a table again
  exec.stream->synchronize();
  return 12.0 * static_cast<double>(count) / seconds;
}

double measure_gather_pass(const Exec& exec, const TableMemory& memory, int64_t width,
                           int64_t lookups, int64_t draw) {
  const Tensor table = memory.table(memory.bytes() / (4 * width), width);
  const std::vector<int64_t> rows = random_rows(table.size(0), lookups, draw);
  const double bytes = 4.0 * static_cast<double>(lookups * width);
  if (exec.device.is_cpu()) {
    // Other rows first, for nothing: threads that sleep take a third of a short pass to wake up.
    touch_rows(table, random_rows(table.size(0), lookups, ~draw));
    const base::Stopwatch watch;
    touch_rows(table, rows);
    return bytes / watch.seconds();
  }
  const Arena::Mark mark(*exec.arena);
  const Tensor index = place(exec, rows), to = exec.activation({lookups, width});
  const base::Stopwatch watch;
  ops::gather_rows(exec, table, index, to);
  exec.stream->synchronize();
  return 2 * bytes / watch.seconds();
}

double measure_gemm_peak(const Exec& exec) {
  const int64_t n = exec.device.is_cuda() ? 4096 : 1024;
  const Arena::Mark mark(*exec.arena);
  const Tensor x = exec.activation({n, n}), y = exec.activation({n, n}),
               z = exec.activation({n, n});
  for (const Tensor& t : {x, y}) ops::initialize(t, ops::Init::kUniform, 1, 1, "product");
  const double seconds =
      fastest(exec, 5, [&] { ops::gemm(exec, ops::Trans::kNo, x, ops::Trans::kNo, y, z); });
  return 2 * std::pow(static_cast<double>(n), 3) / seconds;
}

double measure_dispatch_floor_us(Device device) {
  if (device.is_cuda()) {  // an empty queue, asked whether it is empty
    const Stream stream(device);
    const bench::Timing t =
        bench::measure({.warm_up = 10, .timed = 101}, [&] { stream.synchronize(); });
    return 1e6 * t.median();
  }
  const int64_t threads = base::num_threads();
  const bench::Timing t = bench::measure({.warm_up = 20, .timed = 201}, [&] {
    base::parallel_for(threads, 1, [](int64_t, int64_t) {});
  });
  return 1e6 * t.median();
}

double measure_lookups(const Exec& exec, const TableMemory& memory, int64_t table_bytes,
                       int64_t width, int64_t pooling, int64_t lookups, int repeats) {
  const int64_t rows = std::max<int64_t>(1, table_bytes / (4 * width));
  const int64_t bags = lookups / pooling;
  const Arena::Mark mark(*exec.arena);
  std::vector<int64_t> ends(static_cast<size_t>(bags) + 1);
  for (size_t b = 0; b < ends.size(); ++b) ends[b] = static_cast<int64_t>(b) * pooling;
  const Tensor offsets = place(exec, ends), y = exec.activation({bags, width});
  const Tensor table = memory.table(rows, width);
  double best = std::numeric_limits<double>::max();
  // Other rows each time: a cache should not know them from the time before.
  for (int draw = 0; draw <= repeats; ++draw) {
    const Arena::Mark of_draw(*exec.arena);
    const Tensor index = place(exec, random_rows(rows, bags * pooling, draw));
    const base::Stopwatch watch;
    ops::bag_sum_forward(exec, table, index, offsets, y);
    exec.stream->synchronize();
    if (draw > 0) best = std::min(best, watch.seconds());  // the first one only warms up
  }
  return best;
}

}  // namespace segue::edu
