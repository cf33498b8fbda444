// Times HSTU attention on a GPU: `segue_attention_bench [filter] [runs]`. One row for each shape
// whose name contains the filter. bf16, 4 heads, causal, one target a sequence. FLOPs: forward 4
// heads dim sum(n^2) / 2, backward 2.5 times that; medians; the second-level cache is flushed
// before each run.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <cuda_runtime.h>

#include "attention/cuda_check.h"
#include "attention/cuda_plan.h"
#include "attention/hstu_attention.h"
#include "attention/jagged40.h"
#include "attention/sm90_kernels.h"
#include "base/rng.h"

namespace segue::attention {
namespace {

constexpr int64_t kHeads = 4;
constexpr int64_t kFlushBytes = int64_t{256} << 20;

struct Shape {
  std::string name;
  std::vector<int64_t> lengths;
  int64_t dim = 128;
  HstuMask mask;
};

std::vector<Shape> shapes() {
  const auto equal = [](int64_t count, int64_t length) {
    return std::vector<int64_t>(static_cast<size_t>(count), length);
  };
  return {{"d128 jagged40", jagged40_lengths()},
          {"d128 32x4096", equal(32, 4096)},
          {"d128 64x2048", equal(64, 2048)},
          {"d128 128x1024", equal(128, 1024)},
          {"d128 256x512", equal(256, 512)},
          {"d64 jagged40", jagged40_lengths(), 64},
          {"d64 32x4096", equal(32, 4096), 64},
          {"d128 jagged40 context 8", jagged40_lengths(), 128, {.contextual_len = 8}},
          {"d128 jagged40 window 512", jagged40_lengths(), 128, {.window = 512}}};
}

__global__ void fill_normal(uint16_t* x, int64_t count, uint64_t seed) {
  const auto step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += step) {
    uint64_t z = (seed << 40) + static_cast<uint64_t>(i) * 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    z ^= z >> 31;
    const float u = static_cast<float>((z >> 40) + 1) * 0x1p-24f;
    const float angle = static_cast<float>(z & 0xffffff) * 0x1p-24f * 6.2831853f;
    x[i] = bf16(sqrtf(-2 * logf(u)) * cosf(angle)).bits;
  }
}

class Bench {
 public:
  explicit Bench(int runs)
      : runs_(runs), stream_(Device::cuda()), arena_(Device::cuda(), int64_t{40} << 30) {
    exec_.arena = &arena_;
    exec_.stream = &stream_;
    exec_.device = Device::cuda();
    exec_.precision = Precision::kBf16;
    check_cuda(cudaEventCreate(&begin_));
    check_cuda(cudaEventCreate(&end_));
  }

  void run(const Shape& shape) {
    const Arena::Mark mark(arena_);
    std::vector<int64_t> offsets{0};
    double squares = 0;
    for (const int64_t n : shape.lengths) {
      offsets.push_back(offsets.back() + n);
      squares += static_cast<double>(n) * static_cast<double>(n);
    }
    const std::vector<int64_t> targets(shape.lengths.size(), 1);
    const int64_t width = kHeads * shape.dim;
    const Tensor packed = normal({offsets.back(), 4 * width}, 1);
    const Tensor grad_o = normal({offsets.back(), width}, 2);
    const Tensor grads = exec_.activation({offsets.back(), 4 * width});
    const Tensor o = exec_.activation({offsets.back(), width});
    const auto part = [&](const Tensor& t, int64_t i) {
      return t.columns(i * width, width).split_columns(kHeads);
    };
    HstuAttentionParams p;
    p.v = part(packed, 1);
    p.q = part(packed, 2);
    p.k = part(packed, 3);
    p.offsets = offsets;
    p.num_targets = targets;
    p.mask = shape.mask;
    p.alpha = 1 / std::sqrt(static_cast<double>(shape.dim));
    p.scale = 1.0 / 4096;
    const double flop = 2 * static_cast<double>(width) * squares;
    const double forward =
        milliseconds([&] { hstu_attention_forward(exec_, p, o.split_columns(kHeads)); });
    const double backward = milliseconds([&] {
      hstu_attention_backward(exec_, p, grad_o.split_columns(kHeads), part(grads, 2),
                              part(grads, 3), part(grads, 1));
    });
    std::printf("%-26s forward %8.3f ms %6.1f TFLOP/s   backward %8.3f ms %6.1f TFLOP/s\n",
                shape.name.c_str(), forward, flop / forward * 1e-9, backward,
                2.5 * flop / backward * 1e-9);
    parts(p, grad_o.split_columns(kHeads), part(grads, 2), part(grads, 3), part(grads, 1), flop);
    std::fflush(stdout);
  }

 private:
  void parts(const HstuAttentionParams& p, const Tensor& grad_o, const Tensor& dq, const Tensor& dk,
             const Tensor& dv, double flop) {
    const Arena::Mark mark(arena_);
    const CudaPlan whole(exec_, p);
    const Tensor spill = arena_.tensor(DType::kU8, {whole.spill_blocks() * kSpillBlockBytes});
    const double keys = milliseconds([&] {
      const Arena::Mark scratch(arena_);
      hopper::backward_dkdv(exec_, p, grad_o, dk, dv, CudaPlan(exec_, p), 0, spill.data);
    });
    const double no_spill = milliseconds([&] {
      const Arena::Mark scratch(arena_);
      hopper::backward_dkdv(exec_, p, grad_o, dk, dv, CudaPlan(exec_, p), 0, nullptr);
    });
    const double queries = milliseconds([&] {
      const Arena::Mark scratch(arena_);
      hopper::backward_dq_spilled(exec_, p, dq, CudaPlan(exec_, p), 0, spill.data);
    });
    const double recompute = milliseconds([&] {
      const Arena::Mark scratch(arena_);
      hopper::backward_dq(exec_, p, grad_o, dq, CudaPlan(exec_, p));
    });
    std::printf(
        "      dk, dv %7.3f ms (%5.1f), without spill %7.3f (%5.1f); dq of %5.2f GB %7.3f ms "
        "(%4.2f "
        "TB/s), recomputed %7.3f (%5.1f)\n",
        keys, 2 * flop / keys * 1e-9, no_spill, 2 * flop / no_spill * 1e-9,
        static_cast<double>(spill.bytes()) * 1e-9, queries,
        static_cast<double>(spill.bytes()) / queries * 1e-9, recompute,
        1.5 * flop / recompute * 1e-9);
  }

  Tensor normal(std::initializer_list<int64_t> sizes, uint64_t seed) {
    const Tensor t = exec_.activation(sizes);
    fill_normal<<<1024, 256, 0, handle()>>>(static_cast<uint16_t*>(t.data), t.elements(), seed);
    check_cuda(cudaGetLastError());
    return t;
  }
  cudaStream_t handle() const { return static_cast<cudaStream_t>(stream_.handle()); }

  double milliseconds(const std::function<void()>& body) {
    std::vector<float> times;
    const Arena::Mark mark(arena_);
    check_cuda(cudaStreamSynchronize(handle()));
    // A card that has just worked hard is slower for a while: let everything start alike.
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    const Tensor flush = arena_.tensor(DType::kU8, {kFlushBytes});
    for (int i = 0; i < runs_ + 2; ++i) {
      check_cuda(cudaMemsetAsync(flush.data, i, static_cast<size_t>(kFlushBytes), handle()));
      check_cuda(cudaEventRecord(begin_, handle()));
      body();
      check_cuda(cudaEventRecord(end_, handle()));
      check_cuda(cudaEventSynchronize(end_));
      float ms = 0;
      check_cuda(cudaEventElapsedTime(&ms, begin_, end_));
      if (i >= 2) times.push_back(ms);
    }
    std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
    return double{times[times.size() / 2]};
  }

  int runs_;
  Stream stream_;
  Arena arena_;
  Exec exec_;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

}  // namespace
}  // namespace segue::attention

int main(int argc, char** argv) try {
  const std::string filter = argc > 1 ? argv[1] : "";
  const int runs = argc > 2 ? std::max(1, std::atoi(argv[2])) : 9;
  std::printf("%s, %d runs\n", segue::describe(segue::Device::cuda()).c_str(), runs);
  segue::attention::Bench bench(runs);
  for (const auto& shape : segue::attention::shapes()) {
    if (shape.name.find(filter) != std::string::npos) bench.run(shape);
  }
  return 0;
} catch (const segue::Error& error) {
  std::fprintf(stderr, "segue_attention_bench: %s\n", error.what());
  return 1;
}
