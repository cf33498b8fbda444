// E1, E3, E6: whole steps.

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "edu/experiment.h"

namespace segue::edu {
namespace {

/// A workload being timed.
struct Timed {
  Timed(Lab& lab, Lab::Prepared given)
      : prepared(std::move(given)),
        memory(prepared.workload.hashed()
                   ? nullptr
                   : std::make_unique<TableMemory>(lab.device(), prepared.workload.table_bytes())),
        model(prepared.workload, memory ? *memory : lab.memory(), lab.options().seed,
              Precision::kF32, memory ? TableInit::kFresh : TableInit::kKeep) {
    StepTimer warm;
    warm.train(model, *prepared.pool, lab.warm_up());
  }
  void run(int64_t steps) { timer.train(model, *prepared.pool, steps); }

  Lab::Prepared prepared;
  std::unique_ptr<TableMemory> memory;  // of its own, where it is small
  MicroDlrm model;
  StepTimer timer;
};

/// Times all of them in turns.
void time_in_turns(Lab& lab, std::vector<std::unique_ptr<Timed>>& all) {
  constexpr int64_t kTurns = 3;
  const int64_t steps = (lab.timed_steps() + kTurns - 1) / kTurns;
  for (int64_t turn = 0; turn < kTurns; ++turn) {
    for (const auto& timed : all) timed->run(steps);
  }
}

/// FLOP of a step over what products do in its time.
double product_share(const Lab& lab, const Lab::Prepared& p, const StepTimes& t) {
  return p.workload.step_flops(p.pool->distinct_per_batch()) / t.step() / lab.ceilings().flops;
}

}  // namespace

Experiment pair_experiment(Lab& lab) {
  lab.measure_machine();
  Experiment e;
  e.criterion = "embedding share of the forward pass <= 0.35 cached and >= 0.70 from memory";
  e.columns = {"bytes/sample", "FLOP/sample", "predicted_fwd", "share_fwd",
               "share_step",   "fwd_ms",      "step_ms"};
  std::vector<std::unique_ptr<Timed>> pair;
  pair.push_back(std::make_unique<Timed>(lab, lab.prepare_micro(lab.options().quick ? 256 : 2048)));
  pair.push_back(std::make_unique<Timed>(lab, lab.prepare_dram("cross")));
  time_in_turns(lab, pair);
  double shares[2] = {};
  Chart chart{"Where a step's time goes", "stage", "ms", false, false, {}};
  for (size_t i = 0; i < 2; ++i) {
    const Lab::Prepared& p = pair[i]->prepared;
    const StepTimes t = pair[i]->timer.times();
    shares[i] = t.forward_share();
    e.names.push_back(p.workload.name);
    e.rows.push_back({p.workload.gathered_bytes() / static_cast<double>(p.workload.batch),
                      p.workload.forward_flops(),
                      predict_forward(p.workload, lab.ceilings()).share(), t.forward_share(),
                      t.step_share(), 1e3 * t.forward(), 1e3 * t.step()});
    Series series{p.workload.name, {}, {}};
    for (size_t s = 0; s < kSpanCount; ++s) {
      series.x.push_back(static_cast<double>(s));
      series.y.push_back(1e3 * t.median[s]);
    }
    chart.series.push_back(series);
  }
  e.charts = {chart};
  e.prediction = fmt::format(
      "a cached sample gathers {:.0f} bytes for {:.0f} FLOP, the other one {:.0f} bytes for "
      "{:.0f}. With {:.1f} GB/s "
      "and {:.1f} GFLOP/s the gather takes {:.2f} of the forward pass from memory and {:.2f} "
      "cached, where what a "
      "look-up costs is not its bytes but the instructions around it",
      e.rows[0][0], e.rows[0][1], e.rows[1][0], e.rows[1][1], lab.ceilings().gather_bytes / 1e9,
      lab.ceilings().flops / 1e9, e.rows[1][2], e.rows[0][2]);
  e.finding = fmt::format(
      "hash and gather take {:.2f} of the forward pass cached and {:.2f} from memory ({:.2f} and "
      "{:.2f} of "
      "the whole step). The model code is the same: the bytes are not",
      shares[0], shares[1], e.rows[0][4], e.rows[1][4]);
  e.verdict = shares[0] <= 0.35 && shares[1] >= 0.70 ? Verdict::kPass : Verdict::kFail;
  return e;
}

Experiment mlp_experiment(Lab& lab) {
  lab.measure_machine();
  Experiment e;
  const double ridge = lab.ceilings().ridge();
  e.prediction = fmt::format(
      "where memory is the limit, a wider MLP is nearly free until W/(2L) nears the ridge of "
      "{:.1f} FLOP/byte; "
      "where there is no waiting for memory, it is paid for",
      ridge);
  e.criterion = "step(W=64) / step(W=16) <= 1.3 from memory and >= 2 cached, at a batch of 8192";
  e.columns = {"W", "dram_step_ms", "cached_step_ms"};
  const bool quick = lab.options().quick;
  const std::vector<int64_t> widths = {16, 32, 64, 128, 256};
  std::vector<std::unique_ptr<Timed>> dram, cached;
  const int64_t batches = quick ? 2 : 12;
  for (const int64_t top : widths) {
    dram.push_back(std::make_unique<Timed>(
        lab,
        lab.prepare_uniform(64, 20, top, quick ? 128 : 2048, lab.warm_up() + lab.timed_steps())));
    Lab::Prepared p = lab.prepare_micro(quick ? 256 : 8192, batches);
    p.workload.top = top;
    cached.push_back(std::make_unique<Timed>(lab, std::move(p)));
  }
  time_in_turns(lab, dram);
  time_in_turns(lab, cached);
  Series of_dram{"from memory", {}, {}}, of_cache{"cached", {}, {}};
  for (size_t i = 0; i < widths.size(); ++i) {
    const double d = dram[i]->timer.times().step(), c = cached[i]->timer.times().step();
    e.rows.push_back({static_cast<double>(widths[i]), 1e3 * d, 1e3 * c});
    of_dram.x.push_back(e.rows[i][0]), of_dram.y.push_back(d / (e.rows[0][1] * 1e-3));
    of_cache.x.push_back(e.rows[i][0]), of_cache.y.push_back(c / (e.rows[0][2] * 1e-3));
  }
  e.finding = fmt::format(
      "four times the width costs {:.2f} times the step from memory and {:.2f} times cached",
      of_dram.y[2], of_cache.y[2]);
  e.verdict = of_dram.y[2] <= 1.3 && of_cache.y[2] >= 2 ? Verdict::kPass : Verdict::kFail;
  e.charts = {{"Step time over that of W = 16",
               "width of the top MLP",
               "times",
               true,
               false,
               {of_dram, of_cache}}};
  return e;
}

Experiment batch_experiment(Lab& lab) {
  lab.measure_machine();
  Experiment e;
  e.prediction = fmt::format(
      "a step calls some forty parallel regions and small products whatever the batch; an empty "
      "region "
      "alone takes {:.1f} us here. Samples cost little until their work outweighs that",
      lab.ceilings().dispatch_floor_us);
  e.criterion =
      "below 0.25 of the products' peak for a sample alone; large batches cross it, or stay "
      "dispatch_bound";
  e.columns = {"batch", "step_us", "us_per_sample", "utilization"};
  Series curve{"measured", {}, {}};
  for (int64_t batch = 1; batch <= (lab.options().quick ? 256 : 16384); batch *= 4) {
    Timed timed(lab, lab.prepare_micro(batch, 24));
    timed.run(std::max<int64_t>(4, lab.timed_steps()));
    const StepTimes t = timed.timer.times();
    const auto b = static_cast<double>(batch);
    e.rows.push_back(
        {b, 1e6 * t.step(), 1e6 * t.step() / b, product_share(lab, timed.prepared, t)});
    curve.x.push_back(b), curve.y.push_back(1e6 * t.step() / b);
  }
  const double least = e.rows.front()[3], most = e.rows.back()[3];
  e.finding = fmt::format(
      "a sample costs {:.1f} us alone and {:.2f} us in a batch of {:.0f}; utilization goes from "
      "{:.4f} to {:.2f}{}",
      curve.y.front(), curve.y.back(), curve.x.back(), least, most,
      most < 0.25 ? ": rows of 8 floats and layers of 32 never fill the machine, so every batch is "
                    "dispatch_bound"
                  : "");
  e.verdict = least < 0.25 ? Verdict::kPass : Verdict::kFail;
  e.charts = {{"Cost of a sample", "batch", "us", true, true, {curve}}};
  return e;
}

}  // namespace segue::edu
