#include <algorithm>
#include <cstring>

#include "base/parallel.h"
#include "base/rng.h"
#include "bench/bench.h"
#include "bench/workspace.h"
#include "ops/assemble.h"
#include "ops/gate.h"
#include "ops/norm.h"
#include "ops/optimizer.h"
#include "ops/rows.h"

namespace segue::bench {
namespace {

constexpr double kFloat = sizeof(float);

/// Times ops and counts the bytes that they cannot avoid moving: each large operand once. Small
/// tables that stay in the cache count nothing.
class OpsBench {
 public:
  OpsBench(const Settings& settings, Report& report)
      : repeats_(settings.repeats),
        shape_(settings.layer),
        report_(report),
        offsets_(shape_.offsets()),
        tokens_(offsets_.back()),
        width_(shape_.heads * shape_.head_dim),
        rows_(w_.row_identity(offsets_)) {}

  void run() {
    copy_rate();
    norm();
    gate();
    gather_and_sum();
    assemble();
    adam();
  }

 private:
  /// `columns`: floats per token that one run reads or writes.
  template <class Run>
  void add(const char* name, int64_t columns, Run run) {
    Result r;
    r.name = name;
    r.shape = {{"tokens", tokens_}, {"dim", shape_.dim}, {"width", width_}};
    r.bytes = kFloat * static_cast<double>(tokens_) * static_cast<double>(columns);
    r.timing = measure(repeats_, run);
    report_.add(r);
  }

  void copy_rate() {
    Arena::Mark mark(*w_.exec.arena);
    const Tensor from = w_.random({tokens_, 4 * width_}, "from");
    const Tensor to = w_.zeros({tokens_, 4 * width_});
    Result r;
    r.name = "copy";
    r.shape = {{"tokens", tokens_}, {"columns", 4 * width_}};
    r.bytes = 2.0 * static_cast<double>(from.bytes());
    constexpr int64_t kGrain = 1 << 20;
    r.timing = measure(repeats_, [&] {
      base::parallel_for(from.bytes(), kGrain, [&](int64_t begin, int64_t end) {
        std::memcpy(static_cast<char*>(to.data) + begin, static_cast<char*>(from.data) + begin,
                    static_cast<size_t>(end - begin));
      });
    });
    report_.set_copy_rate(r.bytes / r.timing.median());
    report_.add(r);
  }

  void norm() {
    Arena::Mark mark(*w_.exec.arena);
    const int64_t dim = shape_.dim;
    const Tensor x = w_.random({tokens_, dim}, "x"), dy = w_.random({tokens_, dim}, "dy");
    const Tensor y = w_.zeros({tokens_, dim}), dx = w_.zeros({tokens_, dim});
    ops::NormParams p;
    p.weight = w_.random({dim}, "weight");
    p.bias = w_.random({dim}, "bias");
    const Tensor dweight = w_.zeros({dim}), dbias = w_.zeros({dim});
    const ops::NormStats stats = ops::make_norm_stats(w_.exec, tokens_);
    add("norm forward", 2 * dim, [&] { ops::norm_forward(w_.exec, p, x, y, stats); });
    add("norm backward, residual", 4 * dim,
        [&] { ops::norm_backward(w_.exec, p, dy, x, stats, y, dx, dweight, dbias); });
  }

  void gate() {
    Arena::Mark mark(*w_.exec.arena);
    const Tensor uvqk = w_.random({tokens_, 4 * width_}, "uvqk");
    const Tensor duvqk = w_.zeros({tokens_, 4 * width_});
    const Tensor y = w_.zeros({tokens_, 3 * width_});
    const Tensor dy = w_.random({tokens_, 3 * width_}, "dy");
    const Tensor da = w_.zeros({tokens_, width_});
    ops::GateParams p;
    p.u = uvqk.columns(0, width_);
    p.a = w_.random({tokens_, width_}, "a");
    p.norm.weight = w_.random({width_}, "weight");
    p.norm.bias = w_.random({width_}, "bias");
    p.dropout.p = static_cast<float>(shape_.dropout);
    p.dropout.site = 1;
    p.dropout.rows = rows_;
    const Tensor dweight = w_.zeros({width_}), dbias = w_.zeros({width_});
    const ops::NormStats stats = ops::make_norm_stats(w_.exec, tokens_);
    add("gate forward", 5 * width_, [&] { ops::gate_forward(w_.exec, p, y, stats); });
    add("gate backward", 7 * width_, [&] {
      ops::gate_backward(w_.exec, p, stats, dy, duvqk.columns(0, width_), da, dweight, dbias);
    });
  }

  /// i32 [tokens] below `rows`, skewed: low numbers come often, as popular items do.
  Tensor skewed_index(int64_t rows) {
    const Tensor index = w_.exec.index({tokens_});
    for (int64_t i = 0; i < tokens_; ++i) {
      const uint64_t bits = base::splitmix64(static_cast<uint64_t>(i));
      const double u = static_cast<double>(bits >> 11) * 0x1p-53;
      const double place = static_cast<double>(rows) * u * u * u;
      index.ptr<int32_t>()[i] =
          static_cast<int32_t>(std::min(rows - 1, static_cast<int64_t>(place)));
    }
    return index;
  }

  void gather_and_sum() {
    Arena::Mark mark(*w_.exec.arena);
    const int64_t dim = shape_.dim;
    const int64_t distinct = std::max<int64_t>(1, tokens_ / 4);
    const Tensor table = w_.random({distinct, dim}, "table");
    const Tensor sums = w_.zeros({distinct, dim});
    const Tensor rows = w_.random({tokens_, dim}, "rows");
    const Tensor index = skewed_index(distinct);
    add("gather_rows", 2 * dim, [&] { ops::gather_rows(w_.exec, table, index, rows); });
    add("segment_sum", dim + dim / 2,
        [&] { ops::segment_sum(w_.exec, rows, index, sums); });  // rows in, sums in and out
  }

  void assemble() {
    Arena::Mark mark(*w_.exec.arena);
    constexpr int64_t kTimes = 2049, kCodes = 9;
    const int64_t positions = std::max<int64_t>(8192, 2 * shape_.length);
    const int64_t dim = shape_.dim;
    const int64_t distinct = std::max<int64_t>(1, tokens_ / 4);
    ops::AssembleParams p;
    p.content = w_.random({distinct, dim}, "content");
    p.row_index = skewed_index(distinct);
    p.action_rows = w_.random({kCodes, dim}, "action");
    p.action_index = skewed_index(kCodes);
    p.scale = 22.6;
    p.position_table = w_.random({positions, dim}, "position");
    p.position_index = rows_.token;
    p.time_table = w_.random({kTimes, dim}, "time");
    p.time_index = skewed_index(kTimes);
    p.dropout.p = static_cast<float>(shape_.dropout);
    p.dropout.rows = rows_;
    const Tensor x = w_.zeros({tokens_, dim});
    ops::AssembleGradients g;
    g.content = w_.zeros({distinct, dim});
    g.action = w_.zeros({kCodes, dim});
    g.position = w_.zeros({positions, dim});
    g.time = w_.zeros({kTimes, dim});
    add("assemble forward", 2 * dim, [&] { ops::assemble_forward(w_.exec, p, x); });
    add("assemble backward", dim + dim / 2, [&] { ops::assemble_backward(w_.exec, p, x, g); });
  }

  void adam() {
    Arena::Mark mark(*w_.exec.arena);
    const int64_t n = tokens_ * shape_.dim;
    const Tensor gradient = w_.random({n}, "gradient"), value = w_.random({n}, "value");
    const Tensor m = w_.zeros({n}), v = w_.zeros({n});
    const ops::AdamParams p;
    add("adam_update", 7 * shape_.dim,
        [&] { ops::adam_update(w_.exec, p, {}, gradient, m, v, value); });
  }

  Repeats repeats_;
  LayerShape shape_;
  Report& report_;
  Workspace w_;
  std::vector<int64_t> offsets_;
  int64_t tokens_ = 0, width_ = 0;
  ops::RowIdentity rows_;
};

}  // namespace

void bench_ops(const Settings& settings, Report& report) { OpsBench(settings, report).run(); }

}  // namespace segue::bench
