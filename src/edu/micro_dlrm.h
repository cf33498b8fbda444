#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "edu/batches.h"
#include "edu/workload.h"
#include "model/config.h"
#include "model/dense_stack.h"
#include "model/parameters.h"
#include "sparse/dedup.h"
#include "tensor/exec.h"

namespace segue::edu {

/// The stages of a training step, in their order.
enum Span : size_t {
  kBottomSpan,
  kHashSpan,
  kGatherSpan,
  kConcatSpan,
  kTopSpan,
  kLossSpan,
  kBackwardMlpSpan,
  kBackwardRowsSpan,
  kUpdateMlpSpan,
  kUpdateRowsSpan,
  kSpanCount
};
inline constexpr const char* kSpanNames[kSpanCount] = {"bottom",  "hash",   "gather",  "concat",
                                                       "top_fwd", "loss",   "bwd_mlp", "bwd_emb",
                                                       "opt_mlp", "opt_emb"};
using SpanSeconds = std::array<double, kSpanCount>;

double forward_seconds(const SpanSeconds& spans);    // bottom to top_fwd
double step_seconds(const SpanSeconds& spans);       // all of them
double embedding_forward(const SpanSeconds& spans);  // hash and gather
double embedding_step(const SpanSeconds& spans);     // and what the rows cost afterwards

/// Memory of tables: one block that workloads of many shapes use in turn.
class TableMemory {
 public:
  /// On the CPU, touched by all threads, in huge pages if asked.
  TableMemory(Device device, int64_t bytes, bool huge_pages = true, DType dtype = DType::kF32);
  /// The first floats of it as a table; state of row-wise Adagrad beside it, zeroed.
  Tensor table(int64_t rows, int64_t width) const;
  Tensor state(int64_t rows) const;
  int64_t bytes() const { return weights_.bytes(); }
  Tensor flat() const { return weights_; }
  bool huge_pages() const { return huge_pages_; }

 private:
  std::unique_ptr<Arena> arena_;
  Tensor weights_, states_;
  bool huge_pages_ = false;
};

/// How rows begin: small random values where tables are separate, zeros in a hashed one; or with
/// whatever is there, for timing.
enum class TableInit { kFresh, kKeep };

/// The micro-DLRM with every stage of its step in the open. Layers, products, bags and optimizers
/// are those of the trainer; the order in which they are called is all that stands here.
class MicroDlrm {
 public:
  MicroDlrm(const Workload& workload, const TableMemory& memory, uint64_t seed,
            Precision precision = Precision::kF32, TableInit init = TableInit::kFresh);

  struct Rates {
    double dense = 1e-3, rows = 0.05;
  };
  /// One training step; returns the mean loss.
  double step(const Batch& batch, const Rates& rates);
  /// Forward only; predictions may be empty.
  void predict(const Batch& batch, std::span<float> predictions);
  double loss(const Batch& batch);  // mean

  // A step in two parts, for gradients of several batches or ranks.
  /// Adds the gradients of sum(loss) / denominator: to parameters().grads() and, row by row, to
  /// row_gradients [rows, width]. Returns the sum of losses over the denominator.
  double accumulate(const Batch& batch, double denominator, const Tensor& row_gradients);
  /// Updates everything by them. Rows whose gradient is zero stay as they are.
  void apply(const Tensor& row_gradients, const Rates& rates);

  const SpanSeconds& spans() const { return spans_; }  // of the last call
  model::Parameters& parameters() { return parameters_; }
  const Tensor& table() const { return table_; }
  const Exec& exec() const { return exec_; }

 private:
  struct Forward {
    Tensor rows;     // i64 [F, B * L]
    Tensor vectors;  // [B, concat width]
    model::DenseStack::Saved bottom, top;
  };
  struct RowGradients {
    Tensor ids, values;  // i64 [distinct], [distinct, width]
  };
  void start();
  void lap(Span span);
  Forward forward(const Batch& batch);
  double loss_of(const Batch& batch, const Forward& f, double denominator, const Tensor& dlogits,
                 const Tensor& predictions);
  RowGradients backward(const Batch& batch, const Forward& f, const Tensor& dlogits);
  void update_mlp(const Rates& rates);
  void update_rows(const RowGradients& gradients, const Rates& rates);

  Workload workload_;
  Arena arena_;
  Stream stream_;
  Exec exec_;
  model::Parameters parameters_;
  std::unique_ptr<model::DenseStack> bottom_, top_;
  Tensor table_, state_;
  int64_t steps_ = 0;
  sparse::DedupScratch dedup_;
  sparse::Distinct found_;
  SpanSeconds spans_{};
  double last_ = 0;
};

}  // namespace segue::edu
