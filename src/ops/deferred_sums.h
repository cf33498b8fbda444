#pragma once

#include <vector>

#include "tensor/exec.h"

namespace segue::ops {

/// Gradients of parameters are sums over rows, which a GPU makes in two steps: blocks of rows leave
/// partial sums, then these are added up in order. The second step of all ops that run with
/// `exec.sums` set waits here, until one kernel does it for all of them. Does nothing on the CPU.
class DeferredSums {
 public:
  /// Memory for partial sums comes from exec's arena: the caller's Mark. It is used until the last
  /// flush(); what is not flushed is lost.
  explicit DeferredSums(const Exec& exec);

  /// Gradients of parameters are complete after this.
  void flush();

  /// Bytes that the constructor takes.
  static int64_t memory_bytes(Device device);

  /// to[j] += partials[0][j] + partials[1][j] + ..., added in double in fixed pieces. `part`
  /// columns are joined into one element of `to` where a parameter belongs to several of them.
  struct Fold {
    const float* partials;
    float* to;
    int64_t rows, stride, n, part;
  };
  /// For the ops of a GPU: float [rows, columns] that stays until the next flush; absent if
  /// that is more than there is room for.
  Tensor partials(int64_t rows, int64_t columns);
  void add(const Fold& fold);

 private:
  void flush_folds();

  Exec exec_;
  Tensor memory_;
  int64_t used_ = 0;
  std::vector<Fold> folds_;
};

}  // namespace segue::ops
