#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/rng.h"
#include "model/parameters.h"
#include "runner/case_file.h"
#include "runner/result.h"
#include "tensor/arena.h"
#include "tensor/exec.h"

namespace segue::golden {

/// Where the cases run: device, precision and one arena that every case takes from the beginning.
class Workspace {
 public:
  Workspace(Device device, Precision precision);

  Exec exec;

  /// From now on real inputs and parameters are changed by up to `share` of themselves, differently
  /// for every seed: what the results then do tells how much rounding alone may move them.
  void nudge_inputs(double share, uint64_t seed) {
    nudge_ = share;
    nudge_seed_ = base::splitmix64(seed);
  }

  /// Tensors in the arena. Activations are rounded in mode bf16, as real ones are.
  Tensor activation(const Values& values);
  Tensor index(std::span<const int32_t> values);
  Tensor wide_index(std::span<const int64_t> values);
  Tensor zeros(DType dtype, const Shape& shape);

  /// Copies with conversion to and from the device; contiguous tensors.
  void write(const Tensor& to, std::span<const double> values);
  std::vector<double> read(const Tensor& from) const;

 private:
  std::optional<Stream> stream_;
  Arena arena_;
  double nudge_ = 0;
  uint64_t nudge_seed_ = 0;
};

/// A contiguous view of arena memory in a shape known at run time (up to four dimensions).
Tensor allocate(Arena& arena, DType dtype, const Shape& shape);
Shape shape_of(const Tensor& t);

/// Checks that the case stores exactly these parameters, in the right shapes; stored ones whose
/// name starts with `except_prefix` are not ours.
void check_parameter_shapes(const Case& golden, model::Parameters& parameters,
                            std::string_view except_prefix = "");
/// Fills every parameter from `param.<name>`.
void load_parameters(Workspace& workspace, const Case& golden, const model::Parameters& parameters);
/// All of it for the parameters of a single layer: check, allocate, fill.
void set_up_parameters(Workspace& workspace, const Case& golden, model::Parameters& parameters);
/// Compares every gradient with `grad.<name>`.
void check_gradients(Workspace& workspace, Checker& checker, const model::Parameters& parameters,
                     std::string_view note = "");

}  // namespace segue::golden
