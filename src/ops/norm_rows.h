#pragma once

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "ops/norm.h"
#include "ops/row_loop.h"
#include "ops/vector_math.h"
#include "tensor/exec.h"

namespace segue::ops {

/// The arithmetic of a norm, row by row, for the CPU ops that contain one. Holds weight and bias as
/// they are used: one value per column, whatever the grouping, rounded if the mode says so. The
/// copies live in the arena, under the caller's Mark.
template <class T>
class NormRows {
 public:
  NormRows(const Exec& exec, const NormParams& p, const NormStats& stats, int64_t rows,
           int64_t columns)
      : groups_(p.groups),
        columns_(columns),
        width_(columns / p.groups),
        columns_per_weight_(p.weight.elements() == p.groups ? width_ : 1),
        eps_(static_cast<T>(p.eps)),
        round_weights_(p.round_weights && exec.rounds_to_bf16()),
        mean_(stats.mean.ptr<T>()),
        rstd_(stats.rstd.ptr<T>()),
        weight_(expand(exec, p.weight)),
        bias_(expand(exec, p.bias)) {
    SEGUE_ASSERT(columns % groups_ == 0, "norm: groups must divide the columns");
    SEGUE_ASSERT(stats.mean.elements() >= rows * groups_ && stats.rstd.elements() >= rows * groups_,
                 "norm: statistics too short");
  }

  /// A group of one row: its columns and their statistics.
  struct Span {
    int64_t begin, end;
    T mean, rstd;
  };
  int64_t groups() const { return groups_; }

  /// Computes the statistics of a group of row `row`, whose columns are `x`, and saves them.
  Span measure(int64_t row, int64_t group, const T* x) const {
    const T* part = x + group * width_;
    const T count = static_cast<T>(width_);
    const T mean = lane_sum<T>(width_, [&](int64_t j) { return part[j]; }) / count;
    const T variance =
        lane_sum<T>(width_, [&](int64_t j) { return (part[j] - mean) * (part[j] - mean); }) / count;
    mean_[row * groups_ + group] = mean;
    rstd_[row * groups_ + group] = T(1) / std::sqrt(variance + eps_);
    return saved(row, group);
  }
  /// The same group with the statistics that measure() saved.
  Span saved(int64_t row, int64_t group) const {
    const int64_t at = row * groups_ + group;
    return {group * width_, (group + 1) * width_, mean_[at], rstd_[at]};
  }

  /// Value of the norm at column `j` of the span, where the input is `x`.
  T apply(const Span& s, T x, int64_t j) const {
    return (x - s.mean) * s.rstd * weight_[j] + bias_[j];
  }

  /// dx = round(gradient of the input + add), given the gradient `dn` of the norm's value; `add`
  /// may be null. dx may be any of the inputs. Adds what dweight and dbias get per column to sums
  /// [2 * columns].
  template <class Rounding>
  void backward(int64_t row, const T* dn, const T* x, const T* add, T* dx, T* sums,
                Rounding round) const {
    for (int64_t group = 0; group < groups_; ++group) {
      const Span s = saved(row, group);
      const auto xhat = [&](int64_t j) { return (x[j] - s.mean) * s.rstd; };
      const T* weight = weight_;
      T* dweight = sums;
      T* dbias = sums + columns_;
#pragma GCC ivdep
      for (int64_t j = s.begin; j < s.end; ++j) {
        dweight[j] += dn[j] * xhat(j);
        dbias[j] += dn[j];
      }
      const T count = static_cast<T>(width_);
      const T mean1 = lane_sum<T>(width_,
                                  [&](int64_t i) {
                                    const int64_t j = s.begin + i;
                                    return weight[j] * dn[j];
                                  }) /
                      count;
      const T mean2 = lane_sum<T>(width_,
                                  [&](int64_t i) {
                                    const int64_t j = s.begin + i;
                                    return weight[j] * dn[j] * xhat(j);
                                  }) /
                      count;
      const auto value = [&](int64_t j) {
        return s.rstd * (weight[j] * dn[j] - mean1 - xhat(j) * mean2);
      };
      if (add != nullptr) {
#pragma GCC ivdep
        for (int64_t j = s.begin; j < s.end; ++j) dx[j] = round(value(j) + add[j]);
      } else {
#pragma GCC ivdep
        for (int64_t j = s.begin; j < s.end; ++j) dx[j] = round(value(j));
      }
    }
  }

  /// dweight, dbias += the totals [2 * columns] over all rows; either may be absent.
  void add_gradients(const T* totals, const Tensor& dweight, const Tensor& dbias) const {
    if (dweight) add_gradient(totals, dweight);
    if (dbias) add_gradient(totals + columns_, dbias);
  }

 private:
  T used(T value) const {
    if constexpr (std::is_same_v<T, float>) {
      if (round_weights_) return round_to_bf16(value);
    }
    return value;
  }

  const T* expand(const Exec& exec, const Tensor& parameter) const {
    SEGUE_ASSERT(parameter.is_contiguous() && parameter.elements() == weights(),
                 "norm: one weight and bias per column, or per group");
    const T* from = parameter.ptr<T>();
    T* to = exec.arena->tensor(parameter.dtype, {columns_}).template ptr<T>();
    for (int64_t j = 0; j < columns_; ++j) to[j] = used(from[j / columns_per_weight_]);
    return to;
  }

  void add_gradient(const T* totals, const Tensor& gradient) const {
    SEGUE_ASSERT(gradient.elements() == weights(), "norm: gradient of another shape");
    T* to = gradient.ptr<T>();
    for (int64_t i = 0; i < gradient.elements(); ++i) {
      const T* part = totals + i * columns_per_weight_;
      to[i] += used(lane_sum<T>(columns_per_weight_, [&](int64_t j) { return part[j]; }));
    }
  }

  /// One group may have a weight per column (layer norm) or one for all (group norm of one head).
  int64_t weights() const { return groups_ == 1 && columns_per_weight_ == 1 ? columns_ : groups_; }

  int64_t groups_, columns_, width_, columns_per_weight_;
  T eps_;
  bool round_weights_;
  T *mean_, *rstd_;
  const T *weight_, *bias_;
};

}  // namespace segue::ops
