#include "runner/workspace.h"

#include <cstring>

#include <fmt/format.h>

#include "base/error.h"

namespace segue::golden {
namespace {

// Address space on the CPU, real memory on a GPU; golden problems need a few MiB.
constexpr int64_t kArenaBytes = int64_t{1} << 30;

/// Calls f with a value of the element type of a real tensor.
template <class F>
void with_real_type(DType dtype, F&& f) {
  switch (dtype) {
    case DType::kF64:
      return f(double{});
    case DType::kBf16:
      return f(bf16{});
    default:
      SEGUE_ASSERT(dtype == DType::kF32, "golden values are real");
      return f(float{});
  }
}

}  // namespace

Tensor allocate(Arena& arena, DType dtype, const Shape& shape) {
  switch (shape.size()) {
    case 1:
      return arena.tensor(dtype, {shape[0]});
    case 2:
      return arena.tensor(dtype, {shape[0], shape[1]});
    case 3:
      return arena.tensor(dtype, {shape[0], shape[1], shape[2]});
    case 4:
      return arena.tensor(dtype, {shape[0], shape[1], shape[2], shape[3]});
    default:
      fail(ErrorCode::kCorrupt, fmt::format("a tensor of shape {} where one to four dimensions are "
                                            "expected",
                                            to_string(shape)));
  }
}

Shape shape_of(const Tensor& t) { return {t.sizes.begin(), t.sizes.begin() + t.rank}; }

Workspace::Workspace(Device device, Precision precision) : arena_(device, kArenaBytes) {
  if (device.is_cuda()) stream_.emplace(device);
  exec.arena = &arena_;
  exec.stream = stream_ ? &*stream_ : nullptr;
  exec.device = device;
  exec.precision = precision;
}

Tensor Workspace::activation(const Values& values) {
  const Tensor t = allocate(arena_, exec.dtype(), values.shape);
  if (!exec.rounds_to_bf16()) {
    write(t, values.data);
    return t;
  }
  std::vector<double> rounded(values.data.size());
  for (size_t i = 0; i < rounded.size(); ++i) {
    rounded[i] = static_cast<double>(round_to_bf16(static_cast<float>(values.data[i])));
  }
  write(t, rounded);
  return t;
}

Tensor Workspace::index(std::span<const int32_t> values) {
  const Tensor t = exec.index({static_cast<int64_t>(values.size())});
  copy_bytes(t.data, t.device, values.data(), Device::cpu(), values.size_bytes(), exec.stream);
  if (exec.stream != nullptr) exec.stream->synchronize();
  return t;
}

Tensor Workspace::wide_index(std::span<const int64_t> values) {
  const Tensor t = exec.arena->tensor(DType::kI64, {static_cast<int64_t>(values.size())});
  copy(t, host_view(values), exec.stream);
  if (exec.stream != nullptr) exec.stream->synchronize();
  return t;
}

Tensor Workspace::zeros(DType dtype, const Shape& shape) {
  const Tensor t = allocate(arena_, dtype, shape);
  write(t, std::vector<double>(static_cast<size_t>(t.elements()), 0.0));
  return t;
}

void Workspace::write(const Tensor& to, std::span<const double> values) {
  SEGUE_ASSERT(to.is_contiguous() && to.elements() == static_cast<int64_t>(values.size()),
               "one value per element");
  std::vector<double> nudged;
  if (nudge_ > 0) {
    nudged.assign(values.begin(), values.end());
    for (double& value : nudged) {
      nudge_seed_ = base::splitmix64(nudge_seed_);
      value *= 1 + nudge_ * (0x1p-63 * static_cast<double>(nudge_seed_) - 1);
    }
    values = nudged;
  }
  with_real_type(to.dtype, [&]<class T>(T) {
    std::vector<T> converted(values.size());
    for (size_t i = 0; i < values.size(); ++i) {
      if constexpr (std::is_same_v<T, bf16>) {
        converted[i] = bf16(static_cast<float>(values[i]));
      } else {
        converted[i] = static_cast<T>(values[i]);
      }
    }
    copy_bytes(to.data, to.device, converted.data(), Device::cpu(), converted.size() * sizeof(T),
               exec.stream);
    if (exec.stream != nullptr) exec.stream->synchronize();
  });
}

std::vector<double> Workspace::read(const Tensor& from) const {
  SEGUE_ASSERT(from.is_contiguous(), "a strided tensor is read through the whole it belongs to");
  std::vector<double> values(static_cast<size_t>(from.elements()));
  with_real_type(from.dtype, [&]<class T>(T) {
    std::vector<T> stored(values.size());
    copy_bytes(stored.data(), Device::cpu(), from.data, from.device, stored.size() * sizeof(T),
               exec.stream);
    if (exec.stream != nullptr) exec.stream->synchronize();
    for (size_t i = 0; i < values.size(); ++i) {
      if constexpr (std::is_same_v<T, bf16>) {
        values[i] = static_cast<double>(static_cast<float>(stored[i]));
      } else {
        values[i] = static_cast<double>(stored[i]);
      }
    }
  });
  return values;
}

namespace {
constexpr std::string_view kParameterPrefix = "param.";
}

void check_parameter_shapes(const Case& golden, model::Parameters& parameters,
                            std::string_view except_prefix) {
  for (const std::string& stored : golden.names(kParameterPrefix)) {
    const std::string name = stored.substr(kParameterPrefix.size());
    if (!except_prefix.empty() && name.starts_with(except_prefix)) continue;
    parameters.get(name);  // throws when the model has no such parameter
  }
  for (const model::Parameter& p : parameters.all()) {
    golden.check_shape(fmt::format("{}{}", kParameterPrefix, p.name), p.shape);
  }
}

void load_parameters(Workspace& workspace, const Case& golden,
                     const model::Parameters& parameters) {
  for (const model::Parameter& p : parameters.all()) {
    workspace.write(p.value, golden.values(fmt::format("{}{}", kParameterPrefix, p.name)).data);
  }
}

void set_up_parameters(Workspace& workspace, const Case& golden, model::Parameters& parameters) {
  check_parameter_shapes(golden, parameters);
  parameters.allocate(workspace.exec.device, workspace.exec.parameter_dtype(), /*seed=*/1);
  load_parameters(workspace, golden, parameters);
}

void check_gradients(Workspace& workspace, Checker& checker, const model::Parameters& parameters,
                     std::string_view note) {
  for (const model::Parameter& p : parameters.all()) {
    checker.check("grad.", "grad." + p.name, workspace.read(p.grad), p.shape, Level::kResult, note);
  }
}

}  // namespace segue::golden
