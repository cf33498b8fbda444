#include <algorithm>

#include "attention/hstu_attention.h"
#include "base/rng.h"
#include "bench/bench.h"
#include "bench/workspace.h"
#include "ops/assemble.h"
#include "ops/gate.h"
#include "ops/gemm.h"
#include "ops/loss.h"
#include "ops/norm.h"
#include "ops/optimizer.h"
#include "ops/rows.h"

namespace segue::bench {
namespace {

/// Times ops and counts the bytes that they cannot avoid moving: each large operand once. Small
/// tables that stay in the cache count nothing.
class OpsBench {
 public:
  OpsBench(const Settings& settings, Report& report)
      : repeats_(settings.repeats),
        shape_(settings.layer),
        report_(report),
        w_(report.device()),
        offsets_(shape_.offsets()),
        tokens_(offsets_.back()),
        width_(shape_.heads * shape_.head_dim),
        rows_(w_.row_identity(offsets_)) {}

  void run() {
    norm();
    gate();
    elementwise();
    gather_and_sum();
    assemble();
    target_attention();
    loss();
    adam();
  }

 private:
  /// `columns`: elements of an activation per token that one run reads or writes.
  template <class Run>
  void add(const char* name, int64_t columns, Run run) {
    add_bytes(name, columns * size_of(w_.exec.dtype()), run);
  }
  template <class Run>
  void add_bytes(const char* name, int64_t bytes_per_token, Run run) {
    Result r;
    r.name = name;
    r.shape = {{"tokens", tokens_}, {"dim", shape_.dim}, {"width", width_}};
    r.bytes = static_cast<double>(tokens_) * static_cast<double>(bytes_per_token);
    r.timing = measure(w_.exec, repeats_, run);
    report_.add(r);
  }
  Tensor activation(int64_t columns, const char* name) {
    return w_.random({tokens_, columns}, name);
  }

  void norm() {
    Arena::Mark mark(*w_.exec.arena);
    const int64_t dim = shape_.dim;
    const Tensor x = activation(dim, "x"), dy = activation(dim, "dy");
    const Tensor y = w_.zeros({tokens_, dim}), dx = w_.zeros({tokens_, dim});
    ops::NormParams p;
    p.weight = w_.parameter({dim}, "weight");
    p.bias = w_.parameter({dim}, "bias");
    const Tensor dweight = w_.zero_parameter({dim}), dbias = w_.zero_parameter({dim});
    const ops::NormStats stats = ops::make_norm_stats(w_.exec, tokens_);
    constexpr double kEps = 1e-6;
    add("norm forward", 2 * dim, [&] { ops::norm_forward(w_.exec, p, x, y, stats); });
    add("norm backward, residual", 4 * dim, [&] {
      ops::norm_backward(w_.exec, p, dy, x, stats, y, dx, {dweight, dbias});
    });
    add("swish norm forward", 2 * dim, [&] { ops::swish_norm_forward(w_.exec, p, x, y, stats); });
    add("swish norm backward", 3 * dim, [&] {
      ops::swish_norm_backward(w_.exec, p, dy, x, stats, dx, {dweight, dbias});
    });
    add("l2 normalize forward", 2 * dim, [&] { ops::l2_normalize_forward(w_.exec, x, kEps, y); });
    add("l2 normalize backward", 3 * dim,
        [&] { ops::l2_normalize_backward(w_.exec, dy, x, kEps, dx); });
  }

  void gate() {
    Arena::Mark mark(*w_.exec.arena);
    const Tensor uvqk = activation(4 * width_, "uvqk");
    const Tensor duvqk = w_.zeros({tokens_, 4 * width_});
    const Tensor y = w_.zeros({tokens_, 3 * width_});
    const Tensor dy = activation(3 * width_, "dy");
    const Tensor da = w_.zeros({tokens_, width_});
    ops::GateParams p;
    p.u = uvqk.columns(0, width_);
    p.a = activation(width_, "a");
    p.norm.weight = w_.parameter({width_}, "weight");
    p.norm.bias = w_.parameter({width_}, "bias");
    p.dropout.p = static_cast<float>(shape_.dropout);
    p.dropout.site = 1;
    p.dropout.rows = rows_;
    const Tensor dweight = w_.zero_parameter({width_}), dbias = w_.zero_parameter({width_});
    const Tensor u_sum = w_.zero_parameter({width_});
    const ops::NormStats stats = ops::make_norm_stats(w_.exec, tokens_);
    const auto backward = [&] {
      ops::gate_backward(w_.exec, p, stats, dy, duvqk.columns(0, width_), da,
                         {dweight, dbias, u_sum});
    };
    add("gate forward", 5 * width_, [&] { ops::gate_forward(w_.exec, p, y, stats); });
    add("gate backward", 7 * width_, backward);
    if (const int64_t bytes = ops::gate_keep_bytes(w_.exec, p); bytes > 0) {
      p.keep = w_.exec.arena->tensor(DType::kU8, {tokens_, bytes});
      add("gate forward, bits kept", 5 * width_, [&] { ops::gate_forward(w_.exec, p, y, stats); });
      add("gate backward, bits kept", 7 * width_, backward);
    }
    const Tensor sum = w_.zero_parameter({4 * width_});
    add("column_sum", 4 * width_, [&] { ops::column_sum(w_.exec, duvqk, sum); });
  }

  void elementwise() {
    Arena::Mark mark(*w_.exec.arena);
    const int64_t dim = shape_.dim;
    const Tensor a = activation(dim, "a"), b = activation(dim, "b");
    const Tensor y = w_.zeros({tokens_, dim}), z = w_.zeros({tokens_, dim});
    const Exec& exec = w_.exec;
    add("silu forward", 2 * dim, [&] { ops::silu_forward(exec, a, y); });
    add("silu backward", 3 * dim, [&] { ops::silu_backward(exec, b, a, y); });
    add("relu forward", 2 * dim, [&] { ops::relu_forward(exec, a, y); });
    add("relu backward", 3 * dim, [&] { ops::relu_backward(exec, b, a, y); });
    add("add", 3 * dim, [&] { ops::add(exec, a, b, y); });
    add("scale", 2 * dim, [&] { ops::scale(exec, a, 0.5, y); });
    add("multiply forward", 3 * dim, [&] { ops::multiply_forward(exec, a, b, y); });
    add("multiply backward", 5 * dim, [&] { ops::multiply_backward(exec, a, b, b, y, z); });
    if (exec.device.is_cpu()) return;  // one type there
    const Tensor wide = exec.arena->tensor(DType::kF32, {tokens_, dim});
    add_bytes("convert", 6 * dim, [&] { ops::convert(exec, a, wide); });
  }

  /// i32 [tokens] below `rows`, skewed: low numbers come often, as popular items do.
  Tensor skewed_index(int64_t rows) {
    std::vector<int32_t> index(static_cast<size_t>(tokens_));
    for (size_t i = 0; i < index.size(); ++i) {
      const double u = static_cast<double>(base::splitmix64(i) >> 11) * 0x1p-53;
      const double place = static_cast<double>(rows) * u * u * u;
      index[i] = static_cast<int32_t>(std::min(rows - 1, static_cast<int64_t>(place)));
    }
    return w_.placed<int32_t>(index);
  }

  void gather_and_sum() {
    Arena::Mark mark(*w_.exec.arena);
    const int64_t dim = shape_.dim, element = size_of(w_.exec.dtype());
    const int64_t distinct = std::max<int64_t>(1, tokens_ / 4);
    const Tensor table = w_.random({distinct, dim}, "table");
    const Tensor sums = w_.zero_parameter({distinct, dim});
    const Tensor rows = activation(dim, "rows");
    const Tensor index = skewed_index(distinct);
    add("gather_rows", 2 * dim, [&] { ops::gather_rows(w_.exec, table, index, rows); });
    // Rows in, a quarter as many float sums in and out.
    add_bytes("segment_sum", dim * element + dim / 2 * size_of(DType::kF32),
              [&] { ops::segment_sum(w_.exec, rows, index, sums); });
  }

  void assemble() {
    Arena::Mark mark(*w_.exec.arena);
    constexpr int64_t kTimes = 2049, kCodes = 9, kDistinctShare = 8;
    const auto token_count = [&] {
      int64_t longest = 0;
      for (size_t b = 0; b + 1 < offsets_.size(); ++b) {
        longest = std::max(longest, offsets_[b + 1] - offsets_[b]);
      }
      return longest;
    };
    const int64_t positions = std::max<int64_t>(8192, token_count());
    const int64_t dim = shape_.dim, element = size_of(w_.exec.dtype());
    const int64_t distinct = std::max<int64_t>(1, tokens_ / kDistinctShare);
    ops::AssembleParams p;
    p.content = w_.random({distinct, dim}, "content");
    p.row_index = skewed_index(distinct);
    p.action_rows = w_.random({kCodes, dim}, "action");
    p.action_index = skewed_index(kCodes);
    p.scale = 22.6;
    p.position_table = w_.parameter({positions, dim}, "position");
    p.position_index = rows_.token;
    p.time_table = w_.parameter({kTimes, dim}, "time");
    p.time_index = skewed_index(kTimes);
    p.dropout.p = static_cast<float>(shape_.dropout);
    p.dropout.rows = rows_;
    const Tensor x = w_.zeros({tokens_, dim});
    ops::AssembleGradients g;
    g.content = w_.zero_parameter({distinct, dim});
    g.action = w_.zero_parameter({kCodes, dim});
    g.position = w_.zero_parameter({positions, dim});
    g.time = w_.zero_parameter({kTimes, dim});
    const auto forward = [&] { ops::assemble_forward(w_.exec, p, x); };
    const auto backward = [&] { ops::assemble_backward(w_.exec, p, x, g); };
    // Sums in four orders: the gradient cannot be read less often than once.
    const int64_t backward_bytes = dim * element + 2 * dim / kDistinctShare * size_of(DType::kF32);
    add("assemble forward", 2 * dim, forward);
    add_bytes("assemble backward", backward_bytes, backward);
    if (const int64_t bytes = ops::assemble_keep_bytes(w_.exec, p, dim); bytes > 0) {
      p.keep = w_.exec.arena->tensor(DType::kU8, {tokens_, bytes});
      add("assemble forward, bits kept", 2 * dim, forward);
      const ops::FollowingNorm norm = {
          {.weight = w_.parameter({dim}, "weight"), .bias = w_.parameter({dim}, "bias")},
          w_.zeros({tokens_, dim}),
          ops::make_norm_stats(w_.exec, tokens_)};
      add("assemble and norm forward, bits kept", 3 * dim,
          [&] { ops::assemble_forward(w_.exec, p, x, norm); });
      add_bytes("assemble backward, bits kept", backward_bytes, backward);
    }
  }

  /// The last layer's pass over all rows, with one target in each sequence; on a GPU the norm
  /// before it is a part of it.
  void target_attention() {
    Arena::Mark mark(*w_.exec.arena);
    const int64_t dim = shape_.dim, heads = shape_.heads;
    const int64_t targets = static_cast<int64_t>(offsets_.size()) - 1;
    const std::vector<int64_t> num_targets(static_cast<size_t>(targets), 1);
    const Exec wide = w_.exec.with(Precision::kF32);
    attention::TargetAttentionParams p;
    p.h = activation(dim, "h");
    p.offsets = offsets_;
    p.num_targets = num_targets;
    p.device_offsets = w_.placed<int64_t>(offsets_);
    p.device_num_targets = w_.placed<int64_t>(num_targets);
    p.plan = attention::target_attention_plan(w_.exec, p);
    p.key_query = w_.parameter({targets, heads, dim}, "key_query", 0.05);
    p.key_bias = w_.parameter({targets, heads}, "key_bias");
    p.scale = 1 / static_cast<double>(shape_.length);
    const auto by_head = [&] { return w_.zero_parameter({targets, heads, dim}); };
    const Tensor dz = w_.parameter({targets, heads, dim}, "dz");
    const Tensor dp_sum = w_.parameter({targets, heads}, "dp_sum");
    const Tensor sums = by_head(), weights = w_.zero_parameter({targets, heads});
    const Tensor p_sum = w_.zero_parameter({targets, heads}), dh = w_.zeros({tokens_, dim});
    if (!attention::target_attention_norms(w_.exec, p.h)) {
      add("target attention forward", dim,
          [&] { attention::target_attention_forward(wide, p, sums, weights); });
      add("target attention backward", 2 * dim,
          [&] { attention::target_attention_backward(wide, p, dz, dp_sum, dh, sums, weights); });
      return;
    }
    attention::TargetNorm norm;
    norm.params.weight = w_.parameter({dim}, "weight");
    norm.params.bias = w_.parameter({dim}, "bias");
    norm.stats = ops::make_norm_stats(w_.exec, tokens_);
    norm.xhat_sums = by_head();
    const ops::NormGradients dnorm{w_.zero_parameter({dim}), w_.zero_parameter({dim}), {}};
    add("norm + target attention forward", dim,
        [&] { attention::target_attention_forward(w_.exec, p, norm, sums, p_sum); });
    add("norm + target attention backward", 2 * dim, [&] {
      attention::target_attention_backward(w_.exec, p, norm, p_sum, dz, dp_sum, dh, sums, weights,
                                           dnorm);
    });
  }

  void loss() {
    Arena::Mark mark(*w_.exec.arena);
    const Exec wide = w_.exec.with(Precision::kF32);
    const Tensor logits = w_.parameter({tokens_}, "logits"), labels = w_.zero_parameter({tokens_});
    const Tensor gradients = w_.zero_parameter({tokens_});
    const Tensor predictions = w_.zero_parameter({tokens_});
    const Tensor sum = w_.exec.arena->tensor(DType::kF64, {1});
    zero(sum, w_.exec.stream);
    add_bytes("loss", 4 * size_of(DType::kF32), [&] {
      ops::loss_forward_backward(wide, ops::TaskKind::kBinary, logits, labels, {}, 1, gradients,
                                 predictions, sum);
    });
  }

  void adam() {
    Arena::Mark mark(*w_.exec.arena);
    const int64_t n = tokens_ * shape_.dim, parameter = size_of(w_.exec.parameter_dtype());
    const Tensor gradient = w_.parameter({n}, "gradient"), value = w_.parameter({n}, "value");
    const Tensor moments[] = {w_.zero_parameter({n}), w_.zero_parameter({n})};
    const ops::DenseUpdateParams p;
    add_bytes("adam_update", 7 * shape_.dim * parameter,
              [&] { ops::dense_update(w_.exec, p, {}, gradient, moments, value); });
    const Tensor sum = w_.exec.arena->tensor(DType::kF64, {1});
    add_bytes("sum_of_squares", shape_.dim * parameter,
              [&] { ops::sum_of_squares(w_.exec, gradient, sum); });
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

void bench_ops(const Settings& settings, Report& report) {
  add_ceilings(settings, report);
  OpsBench(settings, report).run();
}

}  // namespace segue::bench
