#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "attention/hstu_attention.h"

// The definition of correct: every pair (i, j) is asked for, every sum is a plain loop in double,
// and nothing is shared with the fast kernels. In particular the mask is written down from its rule
// with position ids, not through HstuMask::row, so that the two can be held against each other.

namespace segue::attention {
namespace {

/// Element access in double, whatever real type the tensor has.
double get(const Tensor& t, int64_t row, int64_t head, int64_t d) {
  const int64_t at = row * t.stride(0) + head * t.stride(1) + d * t.stride(2);
  return dispatch_real(t.dtype,
                       [&](auto zero) { return static_cast<double>(t.ptr<decltype(zero)>()[at]); });
}

void set(const Tensor& t, int64_t row, int64_t head, int64_t d, double value) {
  const int64_t at = row * t.stride(0) + head * t.stride(1) + d * t.stride(2);
  dispatch_real(t.dtype, [&](auto zero) {
    t.ptr<decltype(zero)>()[at] = static_cast<decltype(zero)>(value);
  });
}

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

/// Calls visit(head, i, j, s) with absolute rows and s = alpha q_i.k_j for every allowed pair.
template <class Visit>
void for_each_pair(const HstuAttentionParams& p, Visit&& visit) {
  for (size_t b = 0; b + 1 < p.offsets.size(); ++b) {
    const int64_t first = p.offsets[b];
    const int64_t n = p.offsets[b + 1] - first;
    const int64_t targets = p.num_targets.empty() ? 0 : p.num_targets[b];
    for (int64_t head = 0; head < p.q.size(1); ++head) {
      for (int64_t i = 0; i < n; ++i) {
        for (int64_t j = 0; j < n; ++j) {
          if (!hstu_mask_reference(p.mask, i, j, n, targets)) continue;
          double s = 0;
          for (int64_t d = 0; d < p.q.size(2); ++d) {
            s += get(p.q, first + i, head, d) * get(p.k, first + j, head, d);
          }
          visit(head, first + i, first + j, p.alpha * s);
        }
      }
    }
  }
}

/// Double sums for a tensor of any real type; rows of no sequence are never written.
class Sums {
 public:
  explicit Sums(const Tensor& t) : t_(t), values_(static_cast<size_t>(t.elements())) {}

  double& at(int64_t row, int64_t head, int64_t d) {
    return values_[static_cast<size_t>((row * t_.size(1) + head) * t_.size(2) + d)];
  }
  void store(std::span<const int64_t> offsets) {
    for (int64_t row = offsets.front(); row < offsets.back(); ++row) {
      for (int64_t head = 0; head < t_.size(1); ++head) {
        for (int64_t d = 0; d < t_.size(2); ++d) set(t_, row, head, d, at(row, head, d));
      }
    }
  }

 private:
  Tensor t_;
  std::vector<double> values_;
};

}  // namespace

// Position ids: the context prefix shares id 0, all targets share the id after the last of
/// history.
bool hstu_mask_reference(const HstuMask& mask, int64_t i, int64_t j, int64_t n, int64_t targets) {
  const int64_t c = mask.contextual_len;
  const int64_t end_id = n - targets + (c > 0 ? 1 - c : 0);
  const auto id_of = [&](int64_t row) {
    const int64_t id = c > 0 ? std::max<int64_t>(row - c + 1, 0) : row;
    return targets > 0 ? std::min(id, end_id) : id;
  };
  const int64_t a_i = id_of(i);
  const int64_t a_j = id_of(j);
  bool valid = i == j || a_i > a_j;
  if (mask.window > 0) {
    const bool full = mask.min_full > 0 && a_i >= end_id - mask.min_full;
    valid = valid && (full || j < mask.global_prefix || a_i - a_j <= mask.window);
  }
  if (c > 0) valid = valid || (a_i == 0 && a_j < end_id);
  const int64_t first_target = n - targets;
  if (i >= first_target && j >= first_target && j < i) {
    const int64_t group_i = (i - first_target) / mask.target_group;
    const int64_t group_j = (j - first_target) / mask.target_group;
    valid = valid || group_i == group_j;
  }
  return valid;
}

void hstu_attention_reference(const HstuAttentionParams& p, const Tensor& o) {
  Sums out(o);
  for_each_pair(p, [&](int64_t head, int64_t i, int64_t j, double s) {
    const double weight = s * sigmoid(s) * p.scale;
    for (int64_t d = 0; d < o.size(2); ++d) out.at(i, head, d) += weight * get(p.v, j, head, d);
  });
  out.store(p.offsets);
}

void hstu_attention_backward_reference(const HstuAttentionParams& p, const Tensor& grad_o,
                                       const Tensor& dq, const Tensor& dk, const Tensor& dv) {
  Sums sum_q(dq), sum_k(dk), sum_v(dv);
  for_each_pair(p, [&](int64_t head, int64_t i, int64_t j, double s) {
    const double sigma = sigmoid(s);
    const double weight = s * sigma * p.scale;
    double dp = 0;
    for (int64_t d = 0; d < dv.size(2); ++d) {
      dp += get(grad_o, i, head, d) * get(p.v, j, head, d);
      sum_v.at(j, head, d) += weight * get(grad_o, i, head, d);
    }
    const double ds = dp * sigma * (1 + s * (1 - sigma)) * p.scale;
    for (int64_t d = 0; d < dq.size(2); ++d) {
      sum_q.at(i, head, d) += p.alpha * ds * get(p.k, j, head, d);
      sum_k.at(j, head, d) += p.alpha * ds * get(p.q, i, head, d);
    }
  });
  sum_q.store(p.offsets);
  sum_k.store(p.offsets);
  sum_v.store(p.offsets);
}

}  // namespace segue::attention
