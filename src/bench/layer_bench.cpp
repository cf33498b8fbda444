#include <fmt/format.h>

#include "bench/bench.h"
#include "bench/lap_timer.h"
#include "bench/stu_stack.h"

namespace segue::bench {

/// Layer and ceiling take turns, so that both see the same machine.
void bench_layer(const Settings& settings, Report& report) {
  StuStack layer(settings.layer, 1, report.device());
  GemmCeiling ceiling(settings, report.device());
  LapTimer timer(ceiling.exec());
  StackTimes times;
  Timing gemm;
  for (int64_t i = 0; i < settings.repeats.warm_up + settings.repeats.timed; ++i) {
    const bool timed = i >= settings.repeats.warm_up;
    timer.mark();
    ceiling.run();
    timer.mark();
    const std::vector<double> laps = timer.laps();
    if (timed) gemm.seconds.push_back(laps.front());
    layer.run(timed ? &times : nullptr);
  }
  const Result product = ceiling.result(gemm);
  report.set_gemm_rate(product.flop / gemm.median());
  report.add(product);
  report.add(measure_copy_rate(settings, report));
  layer.add_results("layer", times, report);

  const double all = layer.flops(true);
  Timing ratios;  // turn by turn: what slows the machine down slows both
  for (size_t i = 0; i < times.both.seconds.size(); ++i) {
    ratios.seconds.push_back(all / times.both.seconds[i] / (product.flop / gemm.seconds[i]));
  }
  report.note(fmt::format("layer {:.1f} GFLOP/s, gemm {:.1f} GFLOP/s: {:.1f} %, median of {} turns",
                          all / times.both.median() / 1e9, report.gemm_rate() / 1e9,
                          100 * ratios.median(), ratios.seconds.size()));
}

}  // namespace segue::bench
