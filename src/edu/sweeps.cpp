// E2, E4, E5, E7, E8, E9: what look-ups cost.

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "base/parallel.h"
#include "base/progress.h"
#include "edu/experiment.h"

namespace segue::edu {
namespace {

constexpr int64_t kWidth = 64, kPooling = 20;

/// Median times of forward passes over a pool.
StepTimes forward_times(Lab& lab, const Lab::Prepared& p) {
  MicroDlrm model(p.workload, lab.memory(), lab.options().seed, Precision::kF32, TableInit::kKeep);
  StepTimer warm, timer;
  warm.predict(model, *p.pool, lab.warm_up());
  timer.predict(model, *p.pool, lab.timed_steps());
  return timer.times();
}

double gather_rate(const Lab::Prepared& p, const StepTimes& t) {
  return p.workload.gathered_bytes() / t.median[kGatherSpan];
}

int64_t sweep_batch(const Lab& lab) { return lab.options().quick ? 128 : 2048; }
/// None of them comes twice.
int64_t sweep_batches(const Lab& lab) { return lab.warm_up() + lab.timed_steps(); }

}  // namespace

Experiment width_experiment(Lab& lab) {
  lab.measure_machine();
  Experiment e;
  e.prediction = fmt::format(
      "a look-up waits for the row's first bytes, then streams the rest: t = a + b m. The slope b "
      "is "
      "bytes over bandwidth, so 1/b should be near the random-gather peak of {:.1f} GB/s",
      lab.ceilings().gather_bytes / 1e9);
  e.criterion = "R^2 >= 0.95, and 1/b within a factor of 2 of the random-gather peak";
  e.columns = {"m", "ns_per_row", "GB_per_s"};
  std::vector<int64_t> widths = {16, 32, 64, 128, 256};
  std::vector<double> x, t(widths.size(), 1e9);
  const int64_t lookups = lab.curve_lookups() / 4;
  // In turns, and the fastest of them: what else the machine does should not bend the line.
  for (int round = 0; round < (lab.options().quick ? 1 : 5); ++round) {
    for (size_t i = 0; i < widths.size(); ++i) {
      const double seconds = measure_lookups(lab.exec(), lab.memory(), lab.table_bytes(), widths[i],
                                             kPooling, lookups, lab.options().quick ? 1 : 2);
      t[i] = std::min(t[i], seconds);
    }
  }
  for (size_t i = 0; i < widths.size(); ++i) {
    const double ns = 1e9 * t[i] / static_cast<double>(lookups);
    x.push_back(static_cast<double>(widths[i]));
    t[i] = ns;
    e.rows.push_back({x[i], ns, 4 * x[i] / ns});
  }
  const Line line = fit_line(x, t);
  const double slope = 4 / line.b * 1e9;  // bytes per second
  const double ratio = slope / lab.ceilings().gather_bytes;
  e.finding = fmt::format(
      "t = {:.1f} ns + {:.3f} ns * m, R^2 {:.3f}; the slope is {:.1f} GB/s, {:.2f} of the "
      "random-gather "
      "peak. Narrow rows pay the {:.0f} ns for little: that is why rows are made wide, or packed",
      line.a, line.b, line.r2, slope / 1e9, ratio, line.a);
  e.verdict = line.r2 >= 0.95 && ratio >= 0.5 && ratio <= 2 ? Verdict::kPass : Verdict::kFail;
  Series fit{"a + b m", {}, {}};
  for (const double m : x) fit.x.push_back(m), fit.y.push_back(line.a + line.b * m);
  e.charts = {
      {"Time of one look-up", "floats of a row", "ns", false, false, {{"measured", x, t}, fit}}};
  return e;
}

Experiment size_experiment(Lab& lab) {
  lab.measure_machine();
  Experiment e;
  e.prediction = fmt::format(
      "tables up to the last-level cache ({}) are read at its speed, larger ones at that of "
      "memory: "
      "the same number of look-ups, a plateau, a knee, a plateau",
      base::format_bytes(static_cast<double>(lab.llc_bytes())));
  e.criterion = "largest / smallest >= 3 (1.5 to 3: weak, below: none)";
  e.columns = {"table_MiB", "ns_per_row", "GB_per_s"};
  Series curve{"measured", {}, {}};
  for (const auto& [bytes, seconds] : lab.lookup_curve()) {
    const double ns = 1e9 * seconds / static_cast<double>(lab.curve_lookups());
    e.rows.push_back({static_cast<double>(bytes) / (1 << 20), ns, 4.0 * kWidth / ns});
    curve.x.push_back(static_cast<double>(bytes) / (1 << 20));
    curve.y.push_back(ns);
  }
  const double ratio = curve.y.back() / curve.y.front();
  e.verdict = ratio >= 3 ? Verdict::kPass : ratio >= 1.5 ? Verdict::kWarn : Verdict::kFail;
  e.finding = fmt::format(
      "a row costs {:.1f} ns in the smallest table and {:.1f} ns in the largest, {:.1f} "
      "times as much; {}",
      curve.y.front(), curve.y.back(), ratio,
      lab.ceilings().knee_bytes > 0
          ? "the first table that is twice as slow as those before it has " +
                base::format_bytes(static_cast<double>(lab.ceilings().knee_bytes))
          : "there is no single step of a factor 2");
  e.charts = {{"The same look-ups in larger and larger tables",
               "MiB of the table",
               "ns per row",
               true,
               true,
               {curve}}};
  return e;
}

Experiment pooling_experiment(Lab& lab) {
  lab.measure_machine();
  Experiment e;
  e.prediction =
      "a bag of L rows costs L gathers and one product: intensity falls as 1/4 + W/(2L), so the "
      "embedding's share of the forward pass rises with L";
  e.criterion = "the share rises with every L (a dip of 0.02 is noise)";
  e.columns = {"L", "FLOP_per_byte", "predicted", "share_fwd"};
  Series measured{"measured", {}, {}}, predicted{"predicted from bytes, FLOP and peaks", {}, {}};
  bool rising = true;
  for (const int64_t pooling : {1, 2, 5, 10, 20, 50}) {
    // As many look-ups whatever the pooling.
    const int64_t batch = std::max<int64_t>(64, sweep_batch(lab) * 20 / pooling);
    const Lab::Prepared p = lab.prepare_uniform(kWidth, pooling, 32, batch, sweep_batches(lab));
    const double share = forward_times(lab, p).forward_share();
    const double expected = predict_forward(p.workload, lab.ceilings()).share();
    const auto l = static_cast<double>(pooling);
    rising = rising && (measured.y.empty() || share >= measured.y.back() - 0.02);
    e.rows.push_back({l, pooled_intensity(32, l), expected, share});
    measured.x.push_back(l), measured.y.push_back(share);
    predicted.x.push_back(l), predicted.y.push_back(expected);
  }
  e.finding = fmt::format("the share goes from {:.2f} at L = 1 to {:.2f} at L = 50",
                          measured.y.front(), measured.y.back());
  e.verdict = rising && measured.y.back() > measured.y.front() ? Verdict::kPass : Verdict::kFail;
  e.charts = {{"Embedding share of the forward pass",
               "look-ups of a bag",
               "share",
               true,
               false,
               {measured, predicted}}};
  return e;
}

Experiment faithful_experiment(Lab& lab) {
  lab.measure_machine();
  Experiment e;
  const int64_t batch = lab.options().quick ? 256 : 8192;
  e.prediction =
      "hashing 2,646 ids into 2,000,000 rows of 1 KiB touches at most 2,646 of them, 2.7 MB: the "
      "table "
      "is larger than every cache, what is used of it is not. Even keys touch all of it";
  e.criterion =
      "even keys are at least 1.5 times slower, where the cache is below 64 MiB; otherwise shown";
  e.columns = {"distinct_rows", "touched_MiB", "ns_per_row"};
  double ns[2] = {};
  for (const bool even : {false, true}) {
    Lab::Prepared p{.workload =
                        micro_dlrm_faithful(even ? Keys::kUniform : Keys::kHashedIds, batch)};
    p.workload.rows = std::min(p.workload.rows, lab.rows_of(p.workload.width));
    p.pool = std::make_unique<BatchPool>(p.workload, lab.device());
    if (even) {
      for (int64_t s = 0; s < sweep_batches(lab); ++s) {
        p.pool->add_random(lab.options().seed + static_cast<uint64_t>(s), 50'000'000);
      }
    } else {
      p.pool->add_epoch(lab.data().train, lab.options().seed);
    }
    p.distinct = p.pool->distinct();
    const StepTimes t = forward_times(lab, p);
    ns[even ? 1 : 0] = 1e9 * t.median[kGatherSpan] / static_cast<double>(p.workload.lookups());
    e.names.emplace_back(even ? "even keys" : "the published ids");
    e.rows.push_back(
        {static_cast<double>(p.distinct), p.working_set_bytes() / (1 << 20), ns[even ? 1 : 0]});
  }
  const double ratio = ns[1] / ns[0];
  e.finding = fmt::format(
      "the same table, {:.1f} times slower with even keys: a regime is decided by the rows "
      "that are touched, never by the size of the table",
      ratio);
  constexpr int64_t kJudged = int64_t{64} << 20;
  e.verdict = ratio >= 1.5                 ? Verdict::kPass
              : lab.llc_bytes() >= kJudged ? Verdict::kNote
                                           : Verdict::kFail;
  return e;
}

Experiment threads_experiment(Lab& lab) {
  lab.measure_machine();
  Experiment e;
  e.prediction =
      "products share nothing, so their rate grows with the threads; look-ups share the memory, so "
      "theirs grows until it is busy";
  e.criterion = "shown: how far depends on the machine";
  e.columns = {"threads", "gather_GBps", "GFLOP_per_s"};
  const int most = base::num_threads();
  std::vector<int> counts;
  for (int n = 1; n < most; n *= 2) counts.push_back(n);
  counts.push_back(most);
  Series gather{"gather GB/s over one thread", {}, {}}, product{"products over one thread", {}, {}};
  for (const int n : counts) {
    base::set_num_threads(n);
    const int64_t lookups = lab.curve_lookups() / 2;
    const double seconds = measure_lookups(lab.exec(), lab.memory(), lab.table_bytes(), kWidth,
                                           kPooling, lookups, lab.options().quick ? 1 : 4);
    e.rows.push_back({static_cast<double>(n),
                      4.0 * kWidth * static_cast<double>(lookups) / seconds / 1e9,
                      measure_gemm_peak(lab.exec()) / 1e9});
    gather.x.push_back(n), gather.y.push_back(e.rows.back()[1] / e.rows.front()[1]);
    product.x.push_back(n), product.y.push_back(e.rows.back()[2] / e.rows.front()[2]);
  }
  base::set_num_threads(most);
  e.finding = fmt::format(
      "with {} threads look-ups are {:.2f} times and products {:.2f} times as fast as with one",
      most, gather.y.back(), product.y.back());
  e.charts = {
      {"Speed-up by threads", "threads", "times one thread", false, false, {gather, product}}};
  return e;
}

Experiment skew_experiment(Lab& lab) {
  lab.measure_machine();
  Experiment e;
  e.prediction =
      "ids of Zipf's law come back: the larger the exponent, the fewer distinct rows, and the more "
      "of "
      "them the cache still has";
  e.criterion =
      "fewer distinct rows with every exponent, and a gather at 1.2 in at most 0.8 of the time at "
      "0";
  e.columns = {"exponent", "distinct_rows", "gather_GBps"};
  Series curve{"measured", {}, {}};
  bool falling = true;
  for (const double exponent : {0.0, 0.6, 0.9, 1.05, 1.2}) {
    const Lab::Prepared p =
        lab.prepare_uniform(kWidth, kPooling, 32, sweep_batch(lab), sweep_batches(lab), exponent);
    const double rate = gather_rate(p, forward_times(lab, p)) / 1e9;
    falling = falling && (e.rows.empty() || static_cast<double>(p.distinct) < e.rows.back()[1]);
    e.rows.push_back({exponent, static_cast<double>(p.distinct), rate});
    curve.x.push_back(exponent), curve.y.push_back(rate);
  }
  const double gain = curve.y.back() / curve.y.front();
  e.finding = fmt::format(
      "the gather is {:.1f} times as fast at exponent 1.2 as with even ids, on {:.0f} times "
      "fewer rows: real traffic is skewed, which is why caches for tables pay",
      gain, e.rows.front()[1] / e.rows.back()[1]);
  e.verdict = falling && gain >= 1 / 0.8 ? Verdict::kPass : Verdict::kFail;
  e.charts = {{"Skewed ids", "exponent", "GB/s, look-ups of all kinds", false, false, {curve}}};
  return e;
}

}  // namespace segue::edu
