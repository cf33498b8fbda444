// E1, E3, E6: whole steps.

#include <algorithm>

#include <fmt/format.h>

#include "edu/experiment.h"
#include "edu/regime.h"

namespace segue::edu {

Experiment pair_experiment(Lab& lab) {
  Experiment e;
  e.criterion = "embedding share of the forward pass <= 0.35 cached and >= 0.70 from memory";
  e.columns = {"bytes/sample", "FLOP/sample", "predicted_fwd", "share_fwd",
               "share_step",   "fwd_ms",      "step_ms"};
  const std::vector<Lab::Prepared> pair = {lab.prepare_micro(lab.options().quick ? 256 : 2048),
                                           lab.prepare_dram("cross")};
  const std::vector<StepTimes> times = lab.time_in_turns(pair);
  std::vector<Series> stages;
  for (size_t i = 0; i < 2; ++i) {
    const Workload& w = pair[i].workload;
    const StepTimes& t = times[i];
    e.names.push_back(w.name);
    e.rows.push_back({w.gathered_bytes() / static_cast<double>(w.batch), w.forward_flops(),
                      predict_forward(w, lab.ceilings()).share(), t.forward_share(), t.step_share(),
                      1e3 * t.forward(), 1e3 * t.step()});
    Series series{w.name, {}, {}};
    for (size_t s = 0; s < kSpanCount; ++s) {
      series.x.push_back(static_cast<double>(s));
      series.y.push_back(1e3 * t.median[s]);
    }
    stages.push_back(series);
  }
  e.plot("Where a step's time goes", "stage", "ms", Scale::kLinear, stages);
  const std::vector<double> share = e.column(3), of_step = e.column(4);
  e.prediction = fmt::format(
      "a cached sample gathers {:.0f} bytes for {:.0f} FLOP, the other one {:.0f} bytes for "
      "{:.0f}. With {:.1f} GB/s and {:.1f} GFLOP/s the gather takes {:.2f} of the forward pass "
      "from memory and {:.2f} cached, where what a look-up costs is not its bytes but the "
      "instructions around it",
      e.rows[0][0], e.rows[0][1], e.rows[1][0], e.rows[1][1], lab.ceilings().gather_bytes / 1e9,
      lab.ceilings().flops / 1e9, e.rows[1][2], e.rows[0][2]);
  e.finding = fmt::format(
      "hash and gather take {:.2f} of the forward pass cached and {:.2f} from memory ({:.2f} and "
      "{:.2f} of the whole step). The model code is the same: the bytes are not",
      share[0], share[1], of_step[0], of_step[1]);
  e.verdict = share[0] <= 0.35 && share[1] >= 0.70 ? Verdict::kPass : Verdict::kFail;
  return e;
}

Experiment mlp_experiment(Lab& lab) {
  Experiment e;
  e.prediction = fmt::format(
      "where memory is the limit, a wider MLP is nearly free until W/(2L) nears the ridge of "
      "{:.1f} FLOP/byte; where there is no waiting for memory, it is paid for",
      lab.ceilings().ridge());
  e.criterion = "step(W=64) / step(W=16) <= 1.3 from memory and >= 2 cached, at a batch of 8192";
  e.columns = {"W", "dram_step_ms", "cached_step_ms", "dram_times", "cached_times"};
  const bool quick = lab.options().quick;
  const std::vector<int64_t> widths = {16, 32, 64, 128, 256};
  const auto step_ms = [&](Lab::Prepared p) {
    std::vector<Lab::Prepared> all;
    for (const int64_t top : widths) {
      p.workload.top = top;
      all.push_back(p);
    }
    std::vector<double> out;
    for (const StepTimes& t : lab.time_in_turns(all)) out.push_back(1e3 * t.step());
    return out;
  };
  const std::vector<double> dram = step_ms(lab.prepare_uniform(64, 20, quick ? 128 : 2048)),
                            cached = step_ms(lab.prepare_micro(quick ? 256 : 8192));
  for (size_t i = 0; i < widths.size(); ++i) {
    e.rows.push_back({static_cast<double>(widths[i]), dram[i], cached[i], dram[i] / dram[0],
                      cached[i] / cached[0]});
  }
  const double of_dram = e.rows[2][3], of_cache = e.rows[2][4];
  e.finding = fmt::format(
      "four times the width costs {:.2f} times the step from memory and {:.2f} times cached",
      of_dram, of_cache);
  e.verdict = of_dram <= 1.3 && of_cache >= 2 ? Verdict::kPass : Verdict::kFail;
  e.plot("Step time over that of W = 16", "width of the top MLP", "times", Scale::kLogX,
         {e.curve("from memory", 0, 3), e.curve("cached", 0, 4)});
  return e;
}

Experiment batch_experiment(Lab& lab) {
  Experiment e;
  e.prediction = fmt::format(
      "a step calls some forty parallel regions and small products whatever the batch; an empty "
      "region alone takes {:.1f} us here. Samples cost little until their work outweighs that",
      lab.ceilings().dispatch_floor_us);
  e.criterion =
      "a sample alone is dispatch_bound and large batches are not; weaker: all of them stay so";
  e.columns = {"batch", "step_us", "us_per_sample", "utilization"};
  std::vector<Lab::Prepared> all;
  for (int64_t batch = 1; batch <= (lab.options().quick ? 256 : 16384); batch *= 4) {
    all.push_back(lab.prepare_micro(batch, 24));
  }
  const std::vector<StepTimes> times = lab.time_in_turns(all);
  for (size_t i = 0; i < all.size(); ++i) {
    const Workload& w = all[i].workload;
    const auto batch = static_cast<double>(w.batch);
    const double us = 1e6 * times[i].step();
    // Of the products' peak: nothing that is cached has to come from memory.
    const double used =
        w.step_flops(all[i].pool->distinct_per_batch()) / times[i].step() / lab.ceilings().flops;
    e.names.push_back(dispatch_axis(used, us, lab.ceilings().dispatch_floor_us));
    e.rows.push_back({batch, us, us / batch, used});
  }
  const std::vector<double> each = e.column(2), used = e.column(3);
  const auto best = static_cast<size_t>(std::ranges::min_element(each) - each.begin());
  const bool starts = e.names.front() == "dispatch_bound";
  const auto leaves = std::ranges::find_if(
      e.names, [](const std::string& label) { return label != "dispatch_bound"; });
  e.finding = fmt::format(
      "a sample costs {:.1f} us alone and {:.2f} us in a batch of {:.0f}{}; products run at {:.3f} "
      "of their peak alone and at {:.2f} at best. {}",
      each.front(), each[best], e.rows[best][0],
      each.back() > 1.1 * each[best]
          ? fmt::format(", but {:.2f} us in one of {:.0f}, whose activations leave the caches of a "
                        "core",
                        each.back(), e.rows.back()[0])
          : "",
      used.front(), std::ranges::max(used),
      leaves == e.names.end()
          ? "Rows of 8 floats and layers of 32 and 16 do not fill the machine, whatever the batch"
          : fmt::format("From {:.0f} samples on a step is no longer dispatch_bound",
                        e.rows[static_cast<size_t>(leaves - e.names.begin())][0]));
  e.verdict = !starts ? Verdict::kFail : leaves == e.names.end() ? Verdict::kWarn : Verdict::kPass;
  e.plot("Cost of a sample", "batch", "us", Scale::kLogBoth, {e.curve("measured", 0, 2)});
  return e;
}

}  // namespace segue::edu
