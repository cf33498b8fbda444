#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/time.h"
#include "bench/bench.h"
#include "bench/workspace.h"
#include "model/flops.h"
#include "model/stu.h"

namespace segue::bench {
namespace {

std::vector<std::pair<std::string, int64_t>> shape_of(const LayerShape& s) {
  return {{"dim", s.dim},
          {"heads", s.heads},
          {"head_dim", s.head_dim},
          {"sequences", s.sequences},
          {"tokens", s.offsets().back()}};
}

double layer_flops(const LayerShape& s, bool backward) {
  model::ModelConfig c;
  c.dim = s.dim;
  c.heads = s.heads;
  c.qk_dim = c.v_dim = s.head_dim;
  c.layers = 1;
  c.tasks.clear();  // no head
  return model::formula_flops(c, s.offsets(), backward);
}

struct LayerTimes {
  Timing gemm, forward, backward, both;
};

/// A layer, its input and the gradient of its output.
class Setup {
 public:
  explicit Setup(const LayerShape& s)
      : layer_(parameters_, "layer.", stu_config(s)), offsets_(s.offsets()) {
    parameters_.allocate(Device::cpu(), DType::kF32, 1);
    sequences_.offsets = offsets_;
    sequences_.rows = w_.row_identity(offsets_);
    sequences_.score_scale = 1.0 / static_cast<double>(s.length);
    sequences_.training = true;
    x_ = w_.random({offsets_.back(), s.dim}, "x");
    gradient_ = w_.random({offsets_.back(), s.dim}, "gradient", 1e-3);
    dx_ = w_.zeros({offsets_.back(), s.dim});
  }

  void run(LayerTimes* times) {
    const Arena::Mark mark(*w_.exec.arena);
    parameters_.zero_grads();
    const base::Stopwatch watch;
    const model::StuLayer::Saved saved = layer_.forward(w_.exec, sequences_, x_);
    const double forward = watch.seconds();
    layer_.backward(w_.exec, sequences_, saved, gradient_, dx_);
    const double both = watch.seconds();
    if (times == nullptr) return;
    times->forward.seconds.push_back(forward);
    times->backward.seconds.push_back(both - forward);
    times->both.seconds.push_back(both);
  }

 private:
  static model::StuConfig stu_config(const LayerShape& s) {
    model::StuConfig config;
    config.dim = s.dim;
    config.heads = s.heads;
    config.qk_dim = config.v_dim = s.head_dim;
    config.dropout = s.dropout;
    config.dropout_site = 1;
    return config;
  }

  model::Parameters parameters_;
  model::StuLayer layer_;
  std::vector<int64_t> offsets_;
  Workspace w_;
  model::Sequences sequences_;
  Tensor x_, gradient_, dx_;
};

/// Layer and yardstick take turns, so that both see the same machine.
LayerTimes measure_layer(const LayerShape& s, const Repeats& repeats, GemmYardstick& yardstick) {
  Setup setup(s);
  for (int64_t i = 0; i < repeats.warm_up; ++i) {
    yardstick.run();
    setup.run(nullptr);
  }
  LayerTimes times;
  for (int64_t i = 0; i < repeats.timed; ++i) {
    const base::Stopwatch watch;
    yardstick.run();
    times.gemm.seconds.push_back(watch.seconds());
    setup.run(&times);
  }
  return times;
}

}  // namespace

void bench_layer(const Settings& settings, Report& report) {
  const LayerShape& s = settings.layer;
  GemmYardstick yardstick(settings.yardstick);
  const LayerTimes times = measure_layer(s, settings.repeats, yardstick);
  const Result gemm = yardstick.result(times.gemm);
  report.set_gemm_rate(gemm.flop / gemm.timing.median());
  report.add(gemm);

  const double all = layer_flops(s, true);
  const double forward = layer_flops(s, false);
  Result r;
  r.shape = shape_of(s);
  const auto add = [&](const char* name, const Timing& timing, double flop) {
    r.name = name;
    r.timing = timing;
    r.flop = flop;
    report.add(r);
  };
  add("layer", times.both, all);
  add("layer forward", times.forward, forward);
  add("layer backward", times.backward, all - forward);
  Timing ratios;  // turn by turn: what slows the machine down slows both
  for (size_t i = 0; i < times.both.seconds.size(); ++i) {
    ratios.seconds.push_back(all / times.both.seconds[i] / (gemm.flop / times.gemm.seconds[i]));
  }
  report.note(fmt::format("layer {:.1f} GFLOP/s, gemm {:.1f} GFLOP/s: {:.1f} %, median of {} turns",
                          all / times.both.median() / 1e9, report.gemm_rate() / 1e9,
                          100 * ratios.median(), ratios.seconds.size()));
}

}  // namespace segue::bench
