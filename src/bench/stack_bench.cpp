#include "bench/bench.h"
#include "bench/stu_stack.h"

namespace segue::bench {

void bench_stack(const Settings& settings, Report& report) {
  add_ceilings(settings, report);
  StuStack stack(settings.layer, settings.layers, report.device());
  for (int64_t i = 0; i < settings.repeats.warm_up; ++i) stack.run(nullptr);
  StackTimes times;
  for (int64_t i = 0; i < settings.repeats.timed; ++i) stack.run(&times);
  stack.add_results("stack", times, report);
}

}  // namespace segue::bench
