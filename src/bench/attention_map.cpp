#include "bench/attention_map.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "base/memory.h"
#include "bench/attention_case.h"
#include "bench/row_file.h"
#include "tensor/peak_flops.h"
#include "train/plan/memory_plan.h"
#include "train/run_config.h"

namespace segue::bench {
namespace {

std::vector<int64_t> doubled(int64_t from, int64_t to) {
  std::vector<int64_t> all;
  for (; from <= to; from *= 2) all.push_back(from);
  return all;
}

struct GridCell {
  int64_t sequences = 1, length = 1, head_dim = 1;
};

class AttentionMap {
 public:
  AttentionMap(const MapSettings& settings, Report& report)
      : settings_(settings), report_(report), file_(settings.out) {
    const Device device = report.device();
    const double free = train::available_bytes(device);
    constexpr double kUsable = 0.9;  // the rest is for kernels, libraries and others
    room_ = static_cast<int64_t>(kUsable * free);
    workspace_ = std::make_unique<Workspace>(device, room_);
    room_ = std::min(room_, workspace_->exec.arena->capacity());
    if (device.is_cuda()) peak_ = stated_peak_flops(cuda_facts(device.index).name);
  }

  void run(const GridCell& cell) {
    AttentionCase::Shape shape{{0}, settings_.heads, cell.head_dim, {}, dtype()};
    for (int64_t b = 0; b < cell.sequences; ++b) {
      shape.offsets.push_back(shape.offsets.back() + cell.length);
    }
    const bool has_forward = has(cell, "attention forward");
    const bool has_backward = has(cell, "attention backward");
    if (has_forward && has_backward) return;
    const int64_t bytes = AttentionCase::bytes(shape) + kFlush;
    if (bytes > room_) return leave_out(cell, bytes);
    const AttentionCase c(*workspace_, std::move(shape));
    if (!has_forward) add(cell, c, c.forward_result(), [&] { c.forward(); });
    if (!has_backward) add(cell, c, c.backward_result(), [&] { c.backward(); });
  }

 private:
  DType dtype() const { return report_.device().is_cuda() ? DType::kBf16 : DType::kF32; }

  void label(const GridCell& cell, Result& r) const {
    const attention::HeadShape head{cell.head_dim, cell.head_dim, dtype()};
    r.labels = {
        {"lengths", fmt::format("{}x{}", cell.sequences, cell.length)},
        {"heads", fmt::format("{}x{}", settings_.heads, cell.head_dim)},
        {"mask", "causal"},
        {"kernel", attention::kernel_name(attention::Kernel::kAuto, head, report_.device())}};
  }

  bool has(const GridCell& cell, const char* name) const {
    Result r;
    r.name = name;
    label(cell, r);
    return file_.has(report_.row(r));
  }

  void keep(const Result& r) {
    file_.put(report_.row(r));
    report_.add(r);
  }

  void leave_out(const GridCell& cell, int64_t bytes) {
    for (const char* name : {"attention forward", "attention backward"}) {
      Result r;
      r.name = name;
      label(cell, r);
      r.shape = {
          {"sequences", cell.sequences}, {"length", cell.length}, {"head_dim", cell.head_dim}};
      r.not_run = fmt::format("takes {:.1f} GiB of {:.1f}", static_cast<double>(bytes) / base::kGib,
                              static_cast<double>(room_) / base::kGib);
      keep(r);
    }
  }

  /// As many runs as fit the time of a cell, each with a cold second-level cache. One that is short
  /// heats nothing up, and needs no rest before.
  void add(const GridCell& cell, const AttentionCase& c, Result r,
           const std::function<void()>& work) {
    constexpr double kMostRuns = 9, kShort = 1e-3;
    const auto once = [&] { return measure(c.exec(), {0, 1, /*sustained=*/true}, work).median(); };
    double seconds = once();
    if (seconds < settings_.cell_seconds) seconds = once();  // the first may have loaded the kernel
    const double runs =
        std::clamp(settings_.cell_seconds / std::max(seconds, 1e-9), 1.0, kMostRuns);
    Repeats repeats{0, static_cast<int64_t>(runs)};
    if (seconds < kShort) repeats.rest_ms = 0;
    r.timing = measure(c.exec(), repeats, work);
    label(cell, r);
    r.shape.insert(r.shape.begin() + 1, {"length", cell.length});
    if (peak_ > 0) r.figures = {{"share_of_peak", r.flop / r.timing.median() / peak_}};
    keep(r);
  }

  static constexpr int64_t kFlush = int64_t{256} << 20;  // see measure()
  const MapSettings& settings_;
  Report& report_;
  RowFile file_;
  int64_t room_ = 0;
  std::unique_ptr<Workspace> workspace_;
  double peak_ = 0;
};

}  // namespace

void run_map(const MapSettings& settings, Report& report) {
  report.set_device(train::choose_device(settings.device));
  if (!report.card()) report.set_card(open_card(report.device()));
  const bool gpu = report.device().is_cuda();
  const auto or_default = [](const auto& given, std::vector<int64_t> standard) {
    return given.empty() ? standard : given;
  };
  const auto lengths = or_default(settings.lengths, gpu ? doubled(64, 16384) : doubled(64, 256));
  const auto sequences = or_default(settings.sequences, gpu ? doubled(1, 512) : doubled(1, 4));
  const auto dims = or_default(settings.head_dims, gpu ? doubled(64, 256) : doubled(64, 64));
  for (const auto* list : {&lengths, &sequences, &dims}) {
    if (std::ranges::all_of(*list, [](int64_t n) { return n > 0; })) continue;
    fail(ErrorCode::kInvalidArgument, "bench map: sizes must be at least 1");
  }
  Settings ceiling;
  report.add(measure_gemm_rate(ceiling, report));
  AttentionMap map(settings, report);
  for (const int64_t dim : dims) {
    for (const int64_t length : lengths) {
      for (const int64_t count : sequences) map.run({count, length, dim});
    }
  }
}

}  // namespace segue::bench
