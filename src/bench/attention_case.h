#pragma once

#include <cstdint>
#include <vector>

#include "attention/hstu_attention.h"
#include "bench/bench.h"
#include "bench/workspace.h"

namespace segue::bench {

/// Attention over packed sequences as a layer calls it, on random values in a workspace's arena,
/// which they leave with it.
class AttentionCase {
 public:
  struct Shape {
    std::vector<int64_t> offsets;
    int64_t heads = 4, head_dim = 128;
    attention::HstuMask mask = {};
    DType dtype = DType::kBf16;  // of a GPU
    attention::Kernel kernel = attention::Kernel::kAuto;
  };
  AttentionCase(Workspace& workspace, Shape shape);
  AttentionCase(const AttentionCase&) = delete;
  AttentionCase& operator=(const AttentionCase&) = delete;

  /// What tensors and scratch of such a case take on a GPU.
  static int64_t bytes(const Shape& shape);

  void forward() const { attention::hstu_attention_forward(exec_, p, o); }
  void backward(const Tensor& dbias = {}) const {
    attention::hstu_attention_backward(exec_, p, grad_o, dq, dk, dv, dbias);
  }
  /// Results without timing. FLOPs: half of every score matrix, whatever the mask, as others count;
  /// windows do much less, theirs are counted by pairs. Bytes: q, k, v in and o out, and their
  /// gradients.
  Result forward_result() const;
  Result backward_result() const;

  const Exec& exec() const { return exec_; }
  int64_t width() const { return shape_.heads * shape_.head_dim; }

  attention::HstuAttentionParams p;
  Tensor o, grad_o, dq, dk, dv;

 private:
  Result result(const char* name) const;
  int64_t visible_pairs() const;

  Arena::Mark mark_;
  Shape shape_;
  std::vector<int64_t> targets_;
  const Exec& exec_;
};

}  // namespace segue::bench
