#include "bench/attention_parts.h"

#if SEGUE_HAS_CUDA
#include "attention/backends.h"
#include "attention/cuda_plan.h"
#include "attention/sm90/sm90_kernels.h"
#endif

namespace segue::bench {

#if SEGUE_HAS_CUDA
namespace {

using attention::CudaPlan;
namespace hopper = attention::hopper;

}  // namespace

void measure_attention_parts(const Exec& exec, const Repeats& repeats,
                             const attention::HstuAttentionParams& p, const AttentionGradients& g,
                             const Result& like, Report& report) {
  if (exec.device.is_cpu() || attention::cuda::choose(exec, p) != attention::Kernel::kSm90) {
    return report.note("  backward has no parts here");
  }
  const Arena::Mark mark(*exec.arena);
  const attention::TileRows rows = hopper::tile_rows(p);
  const CudaPlan whole(exec, p);
  const Tensor spill =
      exec.arena->tensor(DType::kU8, {whole.spill_blocks() * attention::kSpillBlockBytes});
  // Work lists count down as kernels take tiles: every run needs its own.
  const auto add = [&](const char* name, double products, double bytes, auto kernel) {
    Result r = like;
    r.name = name;
    r.flop = products / 2 * like.flop;  // forward has two
    r.bytes = bytes;
    r.timing = measure(exec, repeats, [&] {
      const Arena::Mark scratch(*exec.arena);
      kernel(CudaPlan(exec, p, 0, rows));
    });
    report.add(r);
  };
  const auto spilled = static_cast<double>(spill.bytes());
  add("  dk, dv, leaving ds", 4, spilled, [&](const CudaPlan& plan) {
    hopper::backward_dkdv(exec, p, g.grad_o, g.dk, g.dv, plan, 0, spill.data);
  });
  add("  dq of ds", 1, spilled, [&](const CudaPlan& plan) {
    hopper::backward_dq_spilled(exec, p, g.dq, plan, 0, spill.data);
  });
  if (hopper::is_wide(p)) return;  // there is no other way
  add("  dk, dv alone", 4, 0, [&](const CudaPlan& plan) {
    hopper::backward_dkdv(exec, p, g.grad_o, g.dk, g.dv, plan, 0, nullptr);
  });
  add("  dq of scores anew", 3, 0,
      [&](const CudaPlan& plan) { hopper::backward_dq(exec, p, g.grad_o, g.dq, plan); });
}
#else
void measure_attention_parts(const Exec&, const Repeats&, const attention::HstuAttentionParams&,
                             const AttentionGradients&, const Result&, Report& report) {
  report.note("  backward has no parts here");
}
#endif

}  // namespace segue::bench
