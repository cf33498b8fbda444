#include "ops/optimizer.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <utility>

#include "ops/cuda_forms.h"
#include "ops/dense_step.h"
#include "ops/row_loop.h"

namespace segue::ops {
namespace {

/// Sum of squares in double, in eight lanes: the order is fixed, yet the loop vectorises.
template <class T>
double square_sum(const T* x, int64_t n) {
  constexpr int64_t kLanes = 8;
  double lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      const double value = static_cast<double>(x[i + lane]);
      lanes[lane] += value * value;
    }
  }
  for (int64_t lane = 0; i < n; ++i, ++lane) {
    const double value = static_cast<double>(x[i]);
    lanes[lane] += value * value;
  }
  double sum = 0;
  for (const double lane : lanes) sum += lane;
  return sum;
}

template <class T, class G>
void update_row(const RowUpdateParams& p, const AdamStep<T>& adam, int64_t dim, const G* gradient,
                const double* mean_square, T* weight, T* state) {
  switch (p.kind) {
    case RowOptimizer::kRowwiseAdagrad: {
      const double mean = mean_square != nullptr
                              ? *mean_square
                              : square_sum(gradient, dim) / static_cast<double>(dim);
      state[0] = static_cast<T>(static_cast<double>(state[0]) + mean);
      const T rate = static_cast<T>(p.lr / (std::sqrt(static_cast<double>(state[0])) + p.eps));
      for (int64_t c = 0; c < dim; ++c) weight[c] -= rate * static_cast<T>(gradient[c]);
      return;
    }
    case RowOptimizer::kAdagrad: {
      const T lr = static_cast<T>(p.lr), eps = static_cast<T>(p.eps);
      for (int64_t c = 0; c < dim; ++c) {
        const T g = static_cast<T>(gradient[c]);
        state[c] += g * g;
        weight[c] -= lr / (std::sqrt(state[c]) + eps) * g;
      }
      return;
    }
    case RowOptimizer::kSgd: {
      const T lr = static_cast<T>(p.lr);
      for (int64_t c = 0; c < dim; ++c) weight[c] -= lr * static_cast<T>(gradient[c]);
      return;
    }
    case RowOptimizer::kAdam:
      for (int64_t c = 0; c < dim; ++c) {
        adam.apply(static_cast<T>(gradient[c]), state[c], state[dim + c], weight[c]);
      }
      return;
  }
}

template <class Step, class T, size_t... kState>
void update_elements(const Step& step, T scale, const T* gradient, std::span<const Tensor> states,
                     T* parameter, int64_t n, std::index_sequence<kState...>) {
  const std::array<T*, sizeof...(kState)> kept = {states[kState].template span<T>().data()...};
  for_rows(n, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      step.apply(scale * gradient[i], parameter[i], kept[kState][i]...);
    }
  });
}

bool all_finite(const Tensor& values) {
  if (!values) return true;
  return std::ranges::all_of(values.span<double>(), [](double x) { return std::isfinite(x); });
}

}  // namespace

std::span<const std::string_view> dense_states(DenseOptimizer kind) {
  std::span<const std::string_view> names;
  dispatch_dense<float>({.kind = kind}, [&](const auto& step) { names = step.kStates; });
  return names;
}

std::string_view published_name(DenseOptimizer kind) {
  std::string_view name;
  dispatch_dense<float>({.kind = kind}, [&](const auto& step) { name = step.kName; });
  return name;
}

void dense_update(const Exec& exec, const DenseUpdateParams& p, const Tensor& gradient_squares,
                  const Tensor& gradient, std::span<const Tensor> states, const Tensor& parameter,
                  const Tensor& finite) {
  const int64_t n = parameter.elements();
  SEGUE_ASSERT(states.size() == dense_states(p.kind).size(),
               "dense_update: states of another kind");
  SEGUE_ASSERT(gradient.elements() == n, "dense_update: sizes differ");
  for (const Tensor& state : states) {
    SEGUE_ASSERT(state.elements() == n, "dense_update: sizes differ");
  }
  if constexpr (kHasCuda) {
    if (exec.device.is_cuda())
      return cuda::dense_update(exec, p, gradient_squares, gradient, states, parameter, finite);
  }
  require_cpu(exec, "dense_update");
  if (!all_finite(finite)) return;
  dispatch_real(parameter.dtype, [&](auto zero_value) {
    using T = decltype(zero_value);
    const T scale = static_cast<T>(
        gradient_squares ? clip_scale(gradient_squares.ptr<double>()[0], p.clip_norm) : 1.0);
    const T* g = gradient.span<T>().data();
    T* data = parameter.span<T>().data();
    dispatch_dense<T>(p, [&]<class Step>(const Step& step) {
      update_elements(step, scale, g, states, data, n, StateIndices<Step>());
    });
  });
}

void sum_of_squares(const Exec& exec, const Tensor& x, const Tensor& out) {
  if constexpr (kHasCuda) {
    if (exec.device.is_cuda()) return cuda::sums_of_squares(exec, {&x, 1}, out);
  }
  require_cpu(exec, "sum_of_squares");
  constexpr int64_t kChunk = 16384;
  const int64_t n = x.elements();
  const Arena::Mark mark(*exec.arena);
  const Tensor partials = exec.arena->tensor(DType::kF64, {base::num_chunks(n, kChunk)});
  dispatch_real(x.dtype, [&](auto zero_value) {
    using T = decltype(zero_value);
    const T* data = x.span<T>().data();
    base::parallel_for(n, kChunk, [&](int64_t begin, int64_t end) {
      partials.ptr<double>()[begin / kChunk] = square_sum(data + begin, end - begin);
    });
  });
  double sum = 0;
  for (const double partial : partials.span<double>()) sum += partial;
  out.ptr<double>()[0] = sum;
}

void sums_of_squares(const Exec& exec, std::span<const Tensor> x, const Tensor& out) {
  SEGUE_ASSERT(out.elements() == static_cast<int64_t>(x.size()), "sums_of_squares: one each");
  if constexpr (kHasCuda) {
    if (exec.device.is_cuda()) return cuda::sums_of_squares(exec, x, out);
  }
  for (size_t i = 0; i < x.size(); ++i) {
    sum_of_squares(exec, x[i], out.narrow(0, static_cast<int64_t>(i), 1));
  }
}

std::span<const RowState> row_states(RowOptimizer kind) {
  static constexpr RowState kRowwiseAdagrad[] = {{"mean_square", /*of_whole_row=*/true}};
  static constexpr RowState kAdagrad[] = {{"square"}};
  static constexpr RowState kAdam[] = {{"m"}, {"v"}};
  switch (kind) {
    case RowOptimizer::kRowwiseAdagrad:
      return kRowwiseAdagrad;
    case RowOptimizer::kAdagrad:
      return kAdagrad;
    case RowOptimizer::kSgd:
      return {};
    case RowOptimizer::kAdam:
      return kAdam;
  }
  return {};
}

int64_t row_state_size(RowOptimizer kind, int64_t dim) {
  int64_t columns = 0;
  for (const RowState& state : row_states(kind)) columns += state.columns(dim);
  return columns;
}

std::string_view published_name(RowOptimizer kind) {
  constexpr std::string_view kNames[] = {"RowWiseAdagrad", "Adagrad", "SGD", "Adam"};
  return kNames[static_cast<size_t>(kind)];
}

void update_tables(const Exec& exec, const RowUpdateParams& p, std::span<const TableUpdate> parts,
                   DType wire, const Tensor& finite) {
  if constexpr (kHasCuda) {
    if (exec.device.is_cuda()) return cuda::update_tables(exec, p, parts, wire, finite);
  }
  for (TableUpdate part : parts) {
    const Arena::Mark mark(*exec.arena);
    if (wire != DType::kF32) {  // the caller's gradients stay as they are
      const Tensor& from = part.gradients;
      const Tensor rounded = exec.arena->tensor(from.dtype, {from.size(0), from.size(1)});
      copy(rounded, from, exec.stream);
      round_rows_to_wire(exec, wire, rounded);
      part.gradients = rounded;
    }
    rowwise_update(exec, p, part, finite);
  }
}

void rowwise_update(const Exec& exec, const RowUpdateParams& p, const TableUpdate& update,
                    const Tensor& finite) {
  if constexpr (kHasCuda) {
    if (exec.device.is_cuda()) {
      return cuda::update_tables(exec, p, {&update, 1}, DType::kF32, finite);
    }
  }
  require_cpu(exec, "rowwise_update");
  if (!all_finite(finite)) return;
  const Tensor &ids = update.ids, &gradients = update.gradients;
  const Tensor &table = update.table, &state = update.state, &mean_squares = update.mean_squares;
  const int64_t n = ids.size(0), dim = table.size(1);
  const int64_t state_size = row_state_size(p.kind, dim);
  SEGUE_ASSERT(gradients.size(0) == n && gradients.size(1) == dim, "rowwise_update: shapes differ");
  SEGUE_ASSERT(state_size == 0 || (state.size(0) == table.size(0) &&
                                   state.elements() == table.size(0) * state_size),
               "rowwise_update: shape of the state");
  SEGUE_ASSERT(!mean_squares || mean_squares.elements() == n, "rowwise_update: mean squares");
  const int64_t* rows = ids.span<int64_t>().data();
  const double* means = mean_squares ? mean_squares.span<double>().data() : nullptr;
  // All ids are looked at before any row moves: an error leaves the table as it was.
  for_rows(n, 1, [&](int64_t begin, int64_t end) {
    check_rows("rowwise_update", rows, begin, end, table.size(0));
  });
  dispatch_real(table.dtype, [&](auto table_zero) {
    dispatch_real(gradients.dtype, [&](auto gradient_zero) {
      using T = decltype(table_zero);
      using G = decltype(gradient_zero);
      const AdamStep<T> adam(p.lr, p.beta1, p.beta2, p.eps, p.t);
      for_rows(n, dim, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          if (rows[i] == -1) continue;
          T* state_row = state_size == 0 ? nullptr : state.row<T>(rows[i]);
          update_row<T, G>(p, adam, dim, gradients.row<G>(i),
                           means == nullptr ? nullptr : means + i, table.row<T>(rows[i]),
                           state_row);
        }
      });
    });
  });
}

void row_mean_squares(const Exec& exec, const Tensor& x, int64_t width, const Tensor& out) {
  if constexpr (kHasCuda) {
    if (exec.device.is_cuda()) return cuda::row_mean_squares(exec, x, width, out);
  }
  require_cpu(exec, "row_mean_squares");
  SEGUE_ASSERT(out.elements() == x.size(0), "row_mean_squares: one number per row");
  double* to = out.span<double>().data();
  dispatch_real(x.dtype, [&](auto zero_value) {
    using T = decltype(zero_value);
    for_rows(x.size(0), x.size(1), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        to[i] = square_sum(x.row<T>(i), x.size(1)) / static_cast<double>(width);
      }
    });
  });
}

}  // namespace segue::ops
