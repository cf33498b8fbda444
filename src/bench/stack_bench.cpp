#include <deque>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "attention/jagged40.h"
#include "base/error.h"
#include "base/time.h"
#include "bench/bench.h"
#include "model/flops.h"
#include "model/stu.h"
#include "ops/initialize.h"
#include "ops/rows.h"
#include "tensor/upload.h"
#include "train/run_config.h"

namespace segue::bench {
namespace {

constexpr int64_t kArenaBytes = int64_t{40} << 30;
constexpr double kBudget = 4096;  // tokens that scores are divided by

/// Layers one after the other, every token through all of them: what other kernels are compared by.
class Stack {
 public:
  Stack(const Settings& settings, Device device) : arena_(device, kArenaBytes), stream_(device) {
    exec_.arena = &arena_;
    exec_.stream = &stream_;
    exec_.device = device;
    exec_.precision = device.is_cuda() ? Precision::kBf16 : Precision::kF32;
    exec_.dropout_key = base::philox_key(1, 1);
    const LayerShape& s = settings.layer;
    for (int64_t l = 0; l < settings.layers; ++l) {
      model::StuConfig config;
      config.dim = s.dim;
      config.heads = s.heads;
      config.qk_dim = config.v_dim = s.head_dim;
      config.dropout = s.dropout;
      config.dropout_site = static_cast<uint32_t>(l + 1);
      layers_.emplace_back(parameters_, fmt::format("layer.{}.", l), config);
    }
    parameters_.allocate(device, DType::kF32, 1);
    offsets_ = s.offsets();
    if (device.is_cuda()) {
      offsets_ = {0};
      for (const int64_t n : attention::jagged40_lengths()) {
        offsets_.push_back(offsets_.back() + n);
      }
    }
    place_sequences();
    x_ = random("x", 1);
    gradient_ = random("gradient", 1e-3);
    dx_ = exec_.activation({offsets_.back(), s.dim});
  }

  void run(Timing* forward, Timing* both) {
    const Arena::Mark mark(arena_);
    parameters_.zero_grads(&stream_);
    stream_.synchronize();
    const base::Stopwatch watch;
    std::vector<model::StuLayer::Saved> saved;
    Tensor x = x_;
    for (const model::StuLayer& layer : layers_) {
      saved.push_back(layer.forward(exec_, sequences_, x));
      x = saved.back().x_out;
    }
    stream_.synchronize();
    const double forward_seconds = watch.seconds();
    Tensor dx = gradient_;
    for (size_t l = layers_.size(); l-- > 0;) {
      const Arena::Mark scratch(arena_);
      layers_[l].backward(exec_, sequences_, saved[l], dx, dx_);
      dx = dx_;
    }
    stream_.synchronize();
    if (forward == nullptr) return;
    forward->seconds.push_back(forward_seconds);
    both->seconds.push_back(watch.seconds());
  }

  std::span<const int64_t> offsets() const { return offsets_; }

 private:
  void place_sequences() {
    const auto sample = block_.add<int32_t>(offsets_.back());
    const auto token = block_.add<int32_t>(offsets_.back());
    for (size_t b = 0; b + 1 < offsets_.size(); ++b) {
      for (int64_t r = offsets_[b]; r < offsets_[b + 1]; ++r) {
        block_.span(sample)[static_cast<size_t>(r)] = static_cast<int32_t>(b);
        block_.span(token)[static_cast<size_t>(r)] = static_cast<int32_t>(r - offsets_[b]);
      }
    }
    targets_.assign(offsets_.size() - 1, 1);
    const auto offsets = block_.add<int64_t>(std::span<const int64_t>(offsets_));
    const auto targets = block_.add<int64_t>(std::span<const int64_t>(targets_));
    const UploadBlock::Placed placed = block_.place(exec_);
    sequences_.offsets = offsets_;
    sequences_.num_targets = targets_;
    sequences_.device_offsets = placed.tensor(offsets);
    sequences_.device_num_targets = placed.tensor(targets);
    sequences_.rows = {placed.tensor(sample), placed.tensor(token)};
    sequences_.score_scale = 1 / kBudget;
    sequences_.training = true;
  }

  Tensor random(const char* name, double deviation) {
    const int64_t rows = offsets_.back(), columns = parameters_.all().front().shape.front();
    Buffer host(Device::cpu(), rows * columns * 4, Purpose::kScratch);
    const Tensor values(host.data(), DType::kF32, Device::cpu(), {rows, columns});
    ops::initialize(values, ops::Init::kNormal, deviation, 1, name);
    const Tensor result = exec_.activation({rows, columns});
    if (exec_.device.is_cpu()) {
      copy(result, values);
      return result;
    }
    const Arena::Mark scratch(arena_);
    const Tensor wide = arena_.tensor(DType::kF32, {rows, columns});
    copy(wide, values, &stream_);
    ops::convert(exec_, wide, result);
    stream_.synchronize();
    return result;
  }

  Arena arena_;
  Stream stream_;
  Exec exec_;
  model::Parameters parameters_;
  std::deque<model::StuLayer> layers_;
  std::vector<int64_t> offsets_, targets_;
  UploadBlock block_;
  model::Sequences sequences_;
  Tensor x_, gradient_, dx_;
};

}  // namespace

void bench_stack(const Settings& settings, Report& report) {
  Stack stack(settings, train::choose_device(settings.device));
  for (int64_t i = 0; i < settings.repeats.warm_up; ++i) stack.run(nullptr, nullptr);
  Timing forward, both;
  for (int64_t i = 0; i < settings.repeats.timed; ++i) stack.run(&forward, &both);

  model::ModelConfig c;
  c.dim = settings.layer.dim;
  c.heads = settings.layer.heads;
  c.qk_dim = c.v_dim = settings.layer.head_dim;
  c.layers = settings.layers;
  c.tasks.clear();  // no head
  Result r;
  r.shape = {{"layers", c.layers}, {"dim", c.dim}, {"tokens", stack.offsets().back()}};
  r.name = "stack";
  r.timing = both;
  r.flop = model::formula_flops(c, stack.offsets(), true);
  report.add(r);
  const double all = r.flop;
  r.name = "stack forward";
  r.timing = forward;
  r.flop = model::formula_flops(c, stack.offsets(), false);
  report.add(r);
  r.name = "stack backward";
  for (size_t i = 0; i < both.seconds.size(); ++i) {
    r.timing.seconds[i] = both.seconds[i] - forward.seconds[i];
  }
  r.flop = all - r.flop;
  report.add(r);
}

}  // namespace segue::bench
