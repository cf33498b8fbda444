// E2, E4, E5, E7, E8, E9: what look-ups cost.

#include <algorithm>

#include <fmt/format.h>

#include "base/parallel.h"
#include "base/progress.h"
#include "edu/experiment.h"

namespace segue::edu {
namespace {

constexpr int64_t kWidth = 64, kPooling = 20;

int64_t sweep_batch(const Lab& lab) { return lab.options().quick ? 128 : 2048; }

}  // namespace

Experiment width_experiment(Lab& lab) {
  Experiment e;
  e.prediction = fmt::format(
      "a look-up waits for the row's first bytes, then streams the rest: t = a + b m. The slope b "
      "is bytes over bandwidth, so 1/b should be near the peak of random rows: {:.1f} GB/s for "
      "those of 256 bytes, more for wide ones",
      lab.ceilings().gather_bytes / 1e9);
  e.criterion = "R^2 >= 0.95, and 1/b within a factor of 2 of the random-gather peak at m = 256";
  e.columns = {"m", "ns_per_row", "GB_per_s", "peak_GBps", "share_of_peak"};
  const int64_t widths[] = {16, 32, 64, 128, 256};
  const int64_t lookups = lab.curve_lookups() / 4;
  const bool quick = lab.options().quick;
  // In turns, and the fastest of them: what else the machine does should not bend the line.
  for (int round = 0; round < (quick ? 1 : 8); ++round) {
    for (size_t i = 0; i < std::size(widths); ++i) {
      const double ns = 1e9 / static_cast<double>(lookups) *
                        measure_lookups(lab.exec(), lab.memory(), lab.table_bytes(), widths[i],
                                        kPooling, lookups, 1);
      const double peak =
          measure_gather_pass(lab.exec(), lab.memory(), widths[i], lookups, 100 + round) / 1e9;
      const auto m = static_cast<double>(widths[i]);
      if (round == 0) e.rows.push_back({m, ns, 0, peak, 0});
      std::vector<double>& row = e.rows[i];
      row[1] = std::min(row[1], ns);
      row[2] = 4 * m / row[1];
      row[3] = std::max(row[3], peak);
      row[4] = row[2] / row[3];
    }
  }
  const Line line = fit_line(e.column(0), e.column(1));
  const double slope = 4 / line.b * 1e9;  // bytes per second
  const double ratio = slope / (1e9 * e.rows.back()[3]);
  const std::vector<double> share = e.column(4);
  e.finding = fmt::format(
      "t = {:.1f} ns + {:.3f} ns * m, R^2 {:.3f}; the slope is {:.1f} GB/s, {:.2f} of the peak of "
      "the widest rows. Summed look-ups reach {:.2f} to {:.2f} of the peak of their width. Narrow "
      "rows pay the {:.0f} ns for little: that is why rows are made wide, or packed",
      line.a, line.b, line.r2, slope / 1e9, ratio, std::ranges::min(share), std::ranges::max(share),
      line.a);
  e.verdict = line.r2 >= 0.95 && ratio >= 0.5 && ratio <= 2 ? Verdict::kPass : Verdict::kFail;
  Series fit = e.curve("a + b m", 0, 0);
  for (double& m : fit.y) m = line.a + line.b * m;
  e.plot("Time of one look-up", "floats of a row", "ns", Scale::kLinear,
         {e.curve("measured", 0, 1), fit});
  return e;
}

Experiment size_experiment(Lab& lab) {
  Experiment e;
  e.prediction = fmt::format(
      "tables up to the last-level cache ({}) are read at its speed, larger ones at that of "
      "memory: the same number of look-ups, a plateau, a knee, a plateau",
      base::format_bytes(static_cast<double>(lab.llc_bytes())));
  e.criterion = "largest / smallest >= 3 (1.5 to 3: weak, below: none)";
  e.columns = {"table_MiB", "ns_per_row", "GB_per_s"};
  for (const auto& [bytes, seconds] : lab.lookup_curve()) {
    const double ns = 1e9 * seconds / static_cast<double>(lab.curve_lookups());
    e.rows.push_back({static_cast<double>(bytes) / (1 << 20), ns, 4.0 * kWidth / ns});
  }
  const double first = e.rows.front()[1], last = e.rows.back()[1], ratio = last / first;
  e.verdict = ratio >= 3 ? Verdict::kPass : ratio >= 1.5 ? Verdict::kWarn : Verdict::kFail;
  e.finding = fmt::format(
      "a row costs {:.1f} ns in the smallest table and {:.1f} ns in the largest, {:.1f} times as "
      "much; {}",
      first, last, ratio,
      lab.ceilings().knee_bytes > 0
          ? "the first table that is twice as slow as those before it has " +
                base::format_bytes(static_cast<double>(lab.ceilings().knee_bytes))
          : "there is no single step of a factor 2");
  e.plot("The same look-ups in larger and larger tables", "MiB of the table", "ns per row",
         Scale::kLogBoth, {e.curve("measured", 0, 1)});
  return e;
}

Experiment pooling_experiment(Lab& lab) {
  Experiment e;
  e.prediction =
      "a bag of L rows costs L gathers and one product: intensity falls as 1/4 + W/(2L), so the "
      "embedding's share of the forward pass rises with L";
  e.criterion = "the share rises with every L (a dip of 0.02 is noise)";
  e.columns = {"L", "FLOP_per_byte", "predicted", "share_fwd"};
  std::vector<Lab::Prepared> all;
  for (const int64_t pooling : {1, 2, 5, 10, 20, 50}) {
    // As many look-ups whatever the pooling.
    const int64_t batch = std::max<int64_t>(64, sweep_batch(lab) * 20 / pooling);
    all.push_back(lab.prepare_uniform(kWidth, pooling, batch));
  }
  const std::vector<StepTimes> times = lab.time_in_turns(all, Passes::kForward);
  bool rising = true;
  for (size_t i = 0; i < all.size(); ++i) {
    const double share = times[i].forward_share();
    const auto l = static_cast<double>(all[i].workload.pooling);
    rising = rising && (e.rows.empty() || share >= e.rows.back()[3] - 0.02);
    e.rows.push_back({l, pooled_intensity(static_cast<double>(all[i].workload.top), l),
                      predict_forward(all[i].workload, lab.ceilings()).share(), share});
  }
  const double first = e.rows.front()[3], last = e.rows.back()[3];
  e.finding = fmt::format("the share goes from {:.2f} at L = 1 to {:.2f} at L = 50", first, last);
  e.verdict = rising && last > first ? Verdict::kPass : Verdict::kFail;
  e.plot("Embedding share of the forward pass", "look-ups of a bag", "share", Scale::kLogX,
         {e.curve("measured", 0, 3), e.curve("predicted from bytes, FLOP and peaks", 0, 2)});
  return e;
}

Experiment faithful_experiment(Lab& lab) {
  Experiment e;
  e.prediction =
      "hashing 2,646 ids into 2,000,000 rows of 1 KiB touches at most 2,646 of them, 2.7 MB: the "
      "table is larger than every cache, what is used of it is not. Even keys touch all of it";
  e.criterion =
      "even keys are at least 1.5 times slower, where the cache is below 64 MiB; otherwise shown";
  e.columns = {"distinct_rows", "touched_MiB", "ns_per_row"};
  e.names = {"the published ids", "even keys"};
  const int64_t batch = lab.options().quick ? 256 : 8192;
  const std::vector<Lab::Prepared> all = {lab.prepare_faithful(Keys::kHashedIds, batch),
                                          lab.prepare_faithful(Keys::kUniform, batch)};
  const std::vector<StepTimes> times = lab.time_in_turns(all, Passes::kForward);
  for (size_t i = 0; i < 2; ++i) {
    e.rows.push_back(
        {static_cast<double>(all[i].pool->distinct()), all[i].working_set_bytes() / (1 << 20),
         1e9 * times[i].median[kGatherSpan] / static_cast<double>(all[i].workload.lookups())});
  }
  const double ratio = e.rows[1][2] / e.rows[0][2];
  e.finding = fmt::format(
      "the same table, {:.1f} times slower with even keys: a regime is decided by the rows that "
      "are touched, never by the size of the table",
      ratio);
  constexpr int64_t kJudged = int64_t{64} << 20;
  e.verdict = ratio >= 1.5                 ? Verdict::kPass
              : lab.llc_bytes() >= kJudged ? Verdict::kNote
                                           : Verdict::kFail;
  return e;
}

Experiment threads_experiment(Lab& lab) {
  Experiment e;
  e.prediction =
      "products share nothing, so their rate grows with the threads; look-ups share the memory, so "
      "theirs grows until it is busy";
  e.criterion = "shown: how far depends on the machine";
  e.columns = {"threads", "gather_GBps", "GFLOP_per_s", "gather_times", "product_times"};
  const int most = base::num_threads();
  std::vector<int> counts;
  for (int n = 1; n < most; n *= 2) counts.push_back(n);
  counts.push_back(most);
  const int64_t lookups = lab.curve_lookups() / 2;
  for (const int n : counts) {
    base::set_num_threads(n);
    const double seconds = measure_lookups(lab.exec(), lab.memory(), lab.table_bytes(), kWidth,
                                           kPooling, lookups, lab.options().quick ? 1 : 4);
    const double gather = 4.0 * kWidth * static_cast<double>(lookups) / seconds / 1e9,
                 product = measure_gemm_peak(lab.exec()) / 1e9;
    const bool first = e.rows.empty();
    e.rows.push_back({static_cast<double>(n), gather, product, first ? 1 : gather / e.rows[0][1],
                      first ? 1 : product / e.rows[0][2]});
  }
  base::set_num_threads(most);
  e.finding = fmt::format(
      "with {} threads look-ups are {:.2f} times and products {:.2f} times as fast as with one",
      most, e.rows.back()[3], e.rows.back()[4]);
  e.plot("Speed-up by threads", "threads", "times one thread", Scale::kLinear,
         {e.curve("look-ups", 0, 3), e.curve("products", 0, 4)});
  return e;
}

Experiment skew_experiment(Lab& lab) {
  Experiment e;
  e.prediction =
      "ids of Zipf's law come back: the larger the exponent, the fewer distinct rows, and the more "
      "of them the cache still has";
  e.criterion =
      "fewer distinct rows with every exponent, and a gather at 1.2 in at most 0.8 of the time at "
      "0";
  e.columns = {"exponent", "distinct_rows", "gather_GBps"};
  const std::vector<double> exponents = {0, 0.6, 0.9, 1.05, 1.2};
  std::vector<Lab::Prepared> all;
  for (const double exponent : exponents) {
    all.push_back(lab.prepare_uniform(kWidth, kPooling, sweep_batch(lab), exponent));
  }
  const std::vector<StepTimes> times = lab.time_in_turns(all, Passes::kForward);
  bool falling = true;
  for (size_t i = 0; i < all.size(); ++i) {
    const auto distinct = static_cast<double>(all[i].pool->distinct());
    falling = falling && (e.rows.empty() || distinct < e.rows.back()[1]);
    e.rows.push_back({exponents[i], distinct,
                      all[i].workload.gathered_bytes() / times[i].median[kGatherSpan] / 1e9});
  }
  const double gain = e.rows.back()[2] / e.rows.front()[2];
  e.finding = fmt::format(
      "the gather is {:.1f} times as fast at exponent 1.2 as with even ids, on {:.0f} times fewer "
      "rows: real traffic is skewed, which is why caches for tables pay",
      gain, e.rows.front()[1] / e.rows.back()[1]);
  e.verdict = falling && gain >= 1 / 0.8 ? Verdict::kPass : Verdict::kFail;
  e.plot("Skewed ids", "exponent", "GB/s, look-ups of all kinds", Scale::kLinear,
         {e.curve("measured", 0, 2)});
  return e;
}

}  // namespace segue::edu
