#include <algorithm>
#include <vector>

#include <fmt/format.h>

#include "attention/hstu_attention.h"
#include "base/error.h"
#include "runner/cases.h"

namespace segue::golden {
namespace {

/// Columns of a row-major matrix as a matrix of their own.
std::vector<double> columns_of(std::span<const double> matrix, int64_t width, int64_t begin,
                               int64_t count) {
  const int64_t rows = width > 0 ? static_cast<int64_t>(matrix.size()) / width : 0;
  std::vector<double> part;
  part.reserve(static_cast<size_t>(rows * count));
  for (int64_t r = 0; r < rows; ++r) {
    const auto row = matrix.begin() + r * width;
    part.insert(part.end(), row + begin, row + begin + count);
  }
  return part;
}

void copy_columns(std::span<const double> part, int64_t count, int64_t begin, int64_t width,
                  std::vector<double>& matrix) {
  const int64_t rows = static_cast<int64_t>(matrix.size()) / width;
  for (int64_t r = 0; r < rows; ++r) {
    std::copy_n(part.begin() + r * count, count, matrix.begin() + r * width + begin);
  }
}

class AttentionCase {
 public:
  explicit AttentionCase(const CaseContext& context) : context_(context) {
    const Settings& settings = context.golden.settings();
    if (!settings.flag("causal", true)) {
      fail(ErrorCode::kUnsupported, "attention that is not causal is not part of Segue");
    }
    heads_ = settings.positive("heads");
    qk_dim_ = settings.positive("dqk");
    v_dim_ = settings.positive("dv");
    const Shape q_shape = context.golden.shape("q");
    rows_ = q_shape.empty() ? 0 : q_shape[0];
    geometry_ = read_geometry(context.golden, rows_);
    params_.offsets = geometry_.offsets;
    params_.num_targets = geometry_.num_targets;
    params_.mask = {.contextual_len = settings.count("contextual_seq_len", 0),
                    .window = settings.count("max_attn_len", 0),
                    .min_full = settings.count("min_full_attn_seq_len", 0)};
    params_.alpha = settings.number("alpha");
    params_.scale = scale();
  }

  /// q, k, v and their gradients as tensors of their own.
  void run_contiguous() {
    Workspace& w = context_.workspace;
    params_.q = w.activation(input("q"));
    params_.k = w.activation(input("k"));
    params_.v = w.activation(input("v"));
    const Tensor dq = w.exec.activation({rows_, heads_, qk_dim_});
    const Tensor dk = w.exec.activation({rows_, heads_, qk_dim_});
    const Tensor dv = w.exec.activation({rows_, heads_, v_dim_});
    const Tensor out = run(dq, dk, dv);
    check("out", w.read(out), v_dim_, "");
    check("dq", w.read(dq), qk_dim_, "");
    check("dk", w.read(dk), qk_dim_, "");
    check("dv", w.read(dv), v_dim_, "");
  }

  /// As the STU layer has them: columns of one buffer U | V | Q | K. U belongs to others: it is
  /// full of values that would show if they were read, and must stay as it is.
  void run_packed() {
    Workspace& w = context_.workspace;
    const int64_t v_width = heads_ * v_dim_;
    const int64_t qk_width = heads_ * qk_dim_;
    const int64_t width = 2 * v_width + 2 * qk_width;
    const int64_t v_begin = v_width;
    const int64_t q_begin = 2 * v_width;
    const int64_t k_begin = q_begin + qk_width;
    constexpr double kStranger = 1e30;

    Values packed{std::vector<double>(static_cast<size_t>(rows_ * width), kStranger),
                  {rows_, width}};
    copy_columns(input("v").data, v_width, v_begin, width, packed.data);
    copy_columns(input("q").data, qk_width, q_begin, width, packed.data);
    copy_columns(input("k").data, qk_width, k_begin, width, packed.data);
    const Tensor uvqk = w.activation(packed);
    const Tensor grad = w.activation(
        {std::vector<double>(static_cast<size_t>(rows_ * width), kStranger), {rows_, width}});
    const auto part = [&](const Tensor& t, int64_t begin, int64_t count) {
      return t.columns(begin, count).split_columns(heads_);
    };
    params_.v = part(uvqk, v_begin, v_width);
    params_.q = part(uvqk, q_begin, qk_width);
    params_.k = part(uvqk, k_begin, qk_width);
    const Tensor out = run(part(grad, q_begin, qk_width), part(grad, k_begin, qk_width),
                           part(grad, v_begin, v_width));
    check("out", w.read(out), v_dim_, "packed");
    const std::vector<double> computed = w.read(grad);
    check("dq", columns_of(computed, width, q_begin, qk_width), qk_dim_, "packed");
    check("dk", columns_of(computed, width, k_begin, qk_width), qk_dim_, "packed");
    check("dv", columns_of(computed, width, v_begin, v_width), v_dim_, "packed");
    for (const double value : columns_of(computed, width, 0, v_width)) {
      if (value >= kStranger / 2) continue;
      context_.checker.fail("attention backward wrote outside the columns of dq, dk and dv");
      break;
    }
  }

 private:
  double scale() const {
    const Settings& settings = context_.golden.settings();
    if (!settings.flag("has_attn_scale", false)) {
      return 1.0 / static_cast<double>(settings.positive("max_seq_len"));
    }
    const Values stored = context_.golden.values("attn_scale");
    if (stored.data.size() != 1) {
      fail(ErrorCode::kUnsupported,
           fmt::format("attn_scale of shape {}: Segue has one scale for all "
                       "rows",
                       to_string(stored.shape)));
    }
    return stored.data[0];
  }

  Values input(const char* name) const {
    const bool has_v_dim = name == std::string_view("v") || name == std::string_view("dout");
    return context_.golden.values(name, {rows_, heads_, has_v_dim ? v_dim_ : qk_dim_});
  }

  Tensor run(const Tensor& dq, const Tensor& dk, const Tensor& dv) {
    const Exec& exec = context_.workspace.exec;
    const Tensor out = exec.activation({rows_, heads_, v_dim_});
    attention::hstu_attention_forward(exec, params_, out);
    attention::hstu_attention_backward(exec, params_, context_.workspace.activation(input("dout")),
                                       dq, dk, dv);
    return out;
  }

  void check(const char* name, const std::vector<double>& computed, int64_t dim,
             const char* note) const {
    context_.checker.check(name, name, computed, {rows_, heads_, dim}, Level::kResult, note);
  }

  const CaseContext& context_;
  int64_t rows_ = 0, heads_ = 0, qk_dim_ = 0, v_dim_ = 0;
  Geometry geometry_;
  attention::HstuAttentionParams params_;
};

}  // namespace

void run_attention(const CaseContext& context) {
  AttentionCase attention(context);
  attention.run_contiguous();
  attention.run_packed();
}

}  // namespace segue::golden
