#include "model/parameters.h"

#include <cmath>
#include <numeric>

#include <fmt/format.h>

#include "base/config.h"
#include "base/error.h"
#include "ops/rows.h"

namespace segue::model {

namespace {

int64_t elements_of(const std::vector<int64_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

Tensor view(const Tensor& flat, int64_t begin, const std::vector<int64_t>& shape) {
  const Tensor slice = flat.narrow(0, begin, elements_of(shape));
  switch (shape.size()) {
    case 1:
      return slice;
    case 2:
      return slice.reshape({shape[0], shape[1]});
    default:
      return slice.reshape({shape[0], shape[1], shape[2]});
  }
}

}  // namespace

Parameter* Parameters::add(std::string name, std::vector<int64_t> shape, ops::Init init,
                           double bound) {
  SEGUE_ASSERT(!values_, "parameters are added before allocate()");
  SEGUE_ASSERT(!shape.empty() && shape.size() <= 3, "parameters have one to three dimensions");
  all_.push_back({std::move(name), std::move(shape), init, bound, {}, {}, {}, {}});
  return &all_.back();
}

void Parameters::allocate(Device device, DType dtype, uint64_t seed) {
  const auto padded = [&](const Parameter& p) {
    const int64_t alignment = device.is_cuda() ? 256 / size_of(dtype) : 1;
    return (elements_of(p.shape) + alignment - 1) / alignment * alignment;
  };
  int64_t total = 0;
  for (const Parameter& p : all_) total += padded(p);
  const auto flat = [&](Buffer& memory) {
    memory = Buffer(device, total * size_of(dtype), Purpose::kParameter);
    return Tensor(memory.data(), dtype, device, {total});
  };
  values_ = flat(value_memory_);
  grads_ = flat(grad_memory_);
  int64_t begin = 0;
  for (Parameter& p : all_) {
    p.value = view(values_, begin, p.shape);
    p.grad = view(grads_, begin, p.shape);
    begin += padded(p);
    const Tensor matrix =
        p.shape.size() == 3 ? p.value.reshape({p.shape[0] * p.shape[1], p.shape[2]}) : p.value;
    ops::initialize(matrix, p.init, p.bound, seed, p.name);
    for (int64_t r = 0; p.copied.width > 0 && r < p.shape[0]; ++r) {
      const Tensor row = matrix.select(r);
      copy(row.narrow(0, p.copied.to, p.copied.width),
           row.narrow(0, p.copied.from, p.copied.width));
    }
  }
  allocate_states(ops::DenseOptimizer::kAdam);
}

void Parameters::allocate_states(ops::DenseOptimizer optimizer) {
  SEGUE_ASSERT(all_.empty() || values_, "states are allocated after the parameters");
  state_names_ = ops::dense_states(optimizer);
  states_.clear();
  state_memory_.clear();
  for (size_t s = 0; s < state_names_.size(); ++s) {
    const Buffer& memory =
        state_memory_.emplace_back(values_.device, values_.bytes(), Purpose::kOptimizer);
    states_.emplace_back(memory.data(), values_.dtype, values_.device,
                         std::initializer_list<int64_t>{values_.elements()});
  }
  for (Parameter& p : all_) {
    p.states.clear();
    const auto begin = static_cast<const char*>(p.value.data) - static_cast<char*>(values_.data);
    for (const Tensor& state : states_) {
      p.states.push_back(view(state, begin / size_of(values_.dtype), p.shape));
    }
  }
}

Parameter& Parameters::get(std::string_view name) {
  for (Parameter& p : all_) {
    if (p.name == name) return p;
  }
  std::vector<std::string> names;
  for (const Parameter& p : all_) names.push_back(p.name);
  const std::string near = base::nearest_name(name, names);
  fail(ErrorCode::kNotFound,
       fmt::format("the model has no parameter `{}`{}", name,
                   near.empty() ? "" : fmt::format("; nearest is `{}`", near)));
}

int64_t Parameters::count(size_t first, size_t end) const {
  int64_t total = 0;
  for (size_t i = first; i < end; ++i) total += elements_of(all_[i].shape);
  return total;
}

TypedCopy Parameters::rounded(const Exec& exec) const {
  if (values_.dtype == exec.dtype()) return {};
  const TypedCopy copy{values_, exec.activation({values_.elements()})};
  ops::convert(exec, copy.from, copy.to);
  return copy;
}

double xavier_uniform_bound(int64_t fan_in, int64_t fan_out) {
  return std::sqrt(6.0 / static_cast<double>(fan_in + fan_out));
}

double xavier_normal_std(int64_t fan_in, int64_t fan_out) {
  return std::sqrt(2.0 / static_cast<double>(fan_in + fan_out));
}

}  // namespace segue::model
