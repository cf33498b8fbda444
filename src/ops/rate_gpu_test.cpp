#include <chrono>
#include <cstdio>
#include <functional>
#include <vector>

#include "ops/assemble.h"
#include "ops/gate.h"
#include "ops/gemm.h"
#include "ops/gpu_test_util.h"
#include "ops/norm.h"
#include "ops/rows.h"

namespace segue::ops {
namespace {

/// Rates of the large ops at the size of a training step, printed one line each. Only a number that
/// no working build of a Hopper card misses is demanded.
class GpuRateTest : public test::GpuTest {
 protected:
  static constexpr int64_t kTokens = 423792, kDim = 512;

  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    arena_ = std::make_unique<Arena>(Device::cuda(), int64_t{14} << 30);
    stream_ = std::make_unique<Stream>(Device::cuda());
    exec_.arena = arena_.get();
    exec_.stream = stream_.get();
    exec_.device = Device::cuda();
    exec_.precision = Precision::kBf16;
    exec_.dropout_key = base::philox_key(1, 2);
    noise_.resize(size_t{1} << 22);
    for (size_t i = 0; i < noise_.size(); ++i) {
      const uint64_t bits = base::splitmix64(i);
      noise_[i] = bf16(static_cast<float>(bits >> 40) * 0x1p-23f - 1.f);
    }
  }

  Tensor random(std::initializer_list<int64_t> shape) {
    const Tensor t = exec_.activation(shape);
    const auto period = static_cast<int64_t>(noise_.size() * sizeof(bf16));
    for (int64_t at = 0; at < t.bytes(); at += period) {
      copy_bytes(static_cast<char*>(t.data) + at, t.device, noise_.data(), Device::cpu(),
                 static_cast<size_t>(std::min(period, t.bytes() - at)), stream_.get());
    }
    stream_->synchronize();
    return t;
  }
  Tensor zeros(DType dtype, std::initializer_list<int64_t> shape) {
    const Tensor t = arena_->tensor(dtype, shape);
    zero(t, stream_.get());
    return t;
  }

  double milliseconds(const std::function<void()>& run) {
    constexpr int kRuns = 10;
    for (int i = 0; i < 2; ++i) run();
    stream_->synchronize();
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < kRuns; ++i) run();
    stream_->synchronize();
    const std::chrono::duration<double, std::milli> taken =
        std::chrono::steady_clock::now() - begin;
    return taken.count() / kRuns;
  }

  void bytes(const char* name, double columns, const std::function<void()>& run) {
    const double ms = milliseconds(run);
    const double rate = columns * sizeof(bf16) * static_cast<double>(kTokens) / ms * 1e-9;
    std::printf("RATE {\"op\": \"%s\", \"ms\": %.3f, \"tb_per_s\": %.2f, \"of_copy\": %.2f}\n",
                name, ms, rate, rate / 4.27);
    EXPECT_GT(rate, 0.2) << name;
  }
  void flops(const char* name, double inner, double outer, const std::function<void()>& run) {
    const double ms = milliseconds(run);
    const double rate = 2 * inner * outer * static_cast<double>(kTokens) / ms * 1e-9;
    std::printf("RATE {\"op\": \"%s\", \"ms\": %.3f, \"tflop_per_s\": %.0f}\n", name, ms, rate);
    EXPECT_GT(rate, 50) << name;
  }

  RowIdentity identity() {
    std::vector<int32_t> sample(kTokens), token(kTokens);
    for (int32_t t = 0; t < kTokens; ++t) {
      sample[static_cast<size_t>(t)] = t / 1655;
      token[static_cast<size_t>(t)] = t % 1655;
    }
    return {ints(sample), ints(token)};
  }
  Tensor ints(const std::vector<int32_t>& values) {
    const Tensor t = exec_.index({static_cast<int64_t>(values.size())});
    copy_bytes(t.data, t.device, values.data(), Device::cpu(), static_cast<size_t>(t.bytes()),
               stream_.get());
    stream_->synchronize();
    return t;
  }

  Exec exec_;

 private:
  std::unique_ptr<Arena> arena_;
  std::unique_ptr<Stream> stream_;
  std::vector<bf16> noise_;
};

TEST_F(GpuRateTest, NormAndGate) {
  NormParams norm;
  norm.weight = zeros(DType::kF32, {kDim});
  norm.bias = zeros(DType::kF32, {kDim});
  norm.round_weights = true;
  const Tensor dweight = zeros(DType::kF32, {kDim}), dbias = zeros(DType::kF32, {kDim});
  const NormStats stats = make_norm_stats(exec_, kTokens);
  const Tensor x = random({kTokens, kDim}), y = random({kTokens, kDim});
  bytes("norm_forward", 2 * kDim, [&] { norm_forward(exec_, norm, x, y, stats); });
  const Tensor dy = random({kTokens, kDim}), residual = random({kTokens, kDim});
  bytes("norm_backward", 4 * kDim,
        [&] { norm_backward(exec_, norm, dy, x, stats, residual, y, dweight, dbias); });

  GateParams gate;
  const Tensor uvqk = random({kTokens, 4 * kDim}), duvqk = random({kTokens, 4 * kDim});
  gate.u = uvqk.columns(0, kDim);
  gate.a = x;
  gate.norm = norm;
  const Tensor wide = random({kTokens, 3 * kDim});
  for (const float p : {0.f, 0.2f}) {
    gate.dropout.p = p;
    gate.dropout.rows = identity();
    bytes(p > 0 ? "gate_forward with dropout" : "gate_forward", 5 * kDim,
          [&] { gate_forward(exec_, gate, wide, stats); });
    bytes(p > 0 ? "gate_backward with dropout" : "gate_backward", 7 * kDim, [&] {
      gate_backward(exec_, gate, stats, wide, duvqk.columns(0, kDim), y, dweight, dbias);
    });
  }
  const Tensor sum = zeros(DType::kF32, {4 * kDim});
  bytes("column_sum 2048", 4 * kDim, [&] { column_sum(exec_, duvqk, sum); });
  bytes("add", 3 * kDim, [&] { add(exec_, x, dy, y); });
}

TEST_F(GpuRateTest, Products) {
  const Tensor x = random({kTokens, kDim}), uvqk = random({kTokens, 4 * kDim});
  const Tensor weight = zeros(DType::kF32, {kDim, 4 * kDim});
  convert(exec_, random({kDim, 4 * kDim}), weight);
  const Tensor bias = zeros(DType::kF32, {4 * kDim});
  GemmExtra with_bias;
  with_bias.bias = bias;
  flops("uvqk", kDim, 4 * kDim,
        [&] { gemm(exec_, Trans::kNo, x, Trans::kNo, weight, uvqk, with_bias); });
  GemmExtra accumulate;
  accumulate.accumulate = true;
  const Tensor dweight = zeros(DType::kF32, {kDim, 4 * kDim});
  flops("uvqk dweight", kDim, 4 * kDim,
        [&] { gemm(exec_, Trans::kYes, x, Trans::kNo, uvqk, dweight, accumulate); });
  const Tensor dx = random({kTokens, kDim});
  flops("uvqk dx", kDim, 4 * kDim, [&] { gemm(exec_, Trans::kNo, uvqk, Trans::kYes, weight, dx); });
  const Tensor y = random({kTokens, 3 * kDim});
  const Tensor output = zeros(DType::kF32, {3 * kDim, kDim});
  convert(exec_, random({3 * kDim, kDim}), output);
  GemmExtra residual;
  residual.residual = x;
  flops("output", kDim, 3 * kDim, [&] { gemm(exec_, Trans::kNo, y, Trans::kNo, output, dx); });
  flops("output + residual", kDim, 3 * kDim,
        [&] { gemm(exec_, Trans::kNo, y, Trans::kNo, output, dx, residual); });
  flops("output dy", kDim, 3 * kDim, [&] { gemm(exec_, Trans::kNo, dx, Trans::kYes, output, y); });
  const Tensor doutput = zeros(DType::kF32, {3 * kDim, kDim});
  flops("output dweight", kDim, 3 * kDim,
        [&] { gemm(exec_, Trans::kYes, y, Trans::kNo, dx, doutput, accumulate); });
}

TEST_F(GpuRateTest, AssembleAndSums) {
  constexpr int64_t kContent = 52718, kContext = 2048, kPositions = 8192, kTimes = 2049;
  const auto draw = [&](uint64_t seed, int64_t rows) {
    std::vector<int32_t> index(kTokens);
    for (size_t i = 0; i < index.size(); ++i) {
      index[i] = static_cast<int32_t>(base::splitmix64(seed + i) % static_cast<uint64_t>(rows));
    }
    return ints(index);
  };
  AssembleParams p;
  p.content = random({kContent, kDim});
  p.context = random({kContext, kDim});
  p.row_index = draw(1 << 20, kContent + kContext);
  p.action_rows = random({9, kDim});
  p.action_index = draw(2 << 20, 9);
  p.position_table = zeros(DType::kF32, {kPositions, kDim});
  p.position_index = draw(3 << 20, 4096);
  p.time_table = zeros(DType::kF32, {kTimes, kDim});
  p.time_index = draw(4 << 20, kTimes);
  p.dropout.p = 0.2f;
  p.dropout.rows = identity();
  const Tensor x = random({kTokens, kDim});
  bytes("assemble_forward", 2 * kDim, [&] { assemble_forward(exec_, p, x); });
  const auto backward = [&](const char* name, const AssembleGradients& g) {
    bytes(name, kDim, [&] { assemble_backward(exec_, p, x, g); });
  };
  AssembleGradients all;
  all.content = zeros(DType::kF32, {kContent, kDim});
  all.context = zeros(DType::kF32, {kContext, kDim});
  all.action = zeros(DType::kF32, {9, kDim});
  all.position = zeros(DType::kF32, {kPositions, kDim});
  all.time = zeros(DType::kF32, {kTimes, kDim});
  AssembleGradients one;
  one.content = all.content;
  one.context = all.context;
  backward("assemble_backward rows", one);
  one = {};
  one.action = all.action;
  backward("assemble_backward actions", one);
  one = {};
  one.position = all.position;
  backward("assemble_backward positions", one);
  backward("assemble_backward all", all);
  const Tensor gathered = random({kTokens, kDim});
  bytes("gather_rows bf16", 2 * kDim, [&] { gather_rows(exec_, x, p.row_index, gathered); });
}

}  // namespace
}  // namespace segue::ops
