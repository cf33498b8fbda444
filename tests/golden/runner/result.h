#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runner/case_file.h"
#include "tensor/exec.h"

namespace segue::golden {

/// How far a result may be from the reference: largest |x - reference| over largest |reference| of
/// the tensor. A reference that is zero everywhere counts as if its largest value were kZeroScale.
enum class Level {
  kResult,         // activations, gradients, losses: f32 1e-5 (on a GPU 1e-4); f64 1e-9 where a
                   // float64 run exists
  kAfterTraining,  // parameters, tables and accumulators after steps: f32 1e-4; f64 as above
  kExact,          // integers, indices: 0
  kDoubleSum,      // sums and rates that the reference keeps in double: 1e-9
  kFloatSum,       // metrics that it computes or adds up in float32: 1e-6
};
inline constexpr double kZeroScale = 0.1;

/// How the results of a case were computed. For bf16 on a GPU the same case has been run on the CPU
/// before, rounding where the GPU stores, in all its variants; the worst errors of those runs are
/// what is allowed.
struct CaseResult;
struct Judgement {
  Precision precision = Precision::kF32;
  Device device;
  const CaseResult* plain = nullptr;
};

/// Infinity where there is none (mode bf16 on the CPU, which is only asked to be finite).
double tolerance_of(Level level, const Judgement& judgement, bool f64_reference);

struct TensorResult {
  std::string name;
  double error = 0;  // NaN when something is not finite
  double tolerance = 0;
  bool passed = false;
};

/// Tensors of one kind: out, dx, all gradients of parameters, ...
struct GroupResult {
  std::string name;
  std::vector<TensorResult> tensors;

  bool passed() const;
  const TensorResult& worst() const;  // by error over tolerance; a failed one first
};

struct CaseResult {
  std::string file;  // name without folder
  std::string name;
  std::string op;
  std::string variant;  // which way a model case was run; empty for the others
  std::vector<GroupResult> groups;
  std::vector<std::string> failures;   // what is not a matter of tolerance
  std::vector<std::string> unchecked;  // stored tensors that nothing was compared with
  double seconds = 0;

  bool passed() const;
  /// name, or name [variant]
  std::string title() const;
};

/// The largest error of every tensor over several runs of one case; one that is not finite in any
/// run stays so.
CaseResult worst_of(std::span<const CaseResult> runs);

/// Tensors of `result` that missed their tolerance may err kRoundings times as much as the same
/// tensor does in the worst of `nudged`, runs in double whose inputs were off by a float's
/// rounding.
inline constexpr double kRoundings = 16;
void allow_rounding(std::span<const CaseResult> nudged, CaseResult& result);

/// Compares what Segue computed with the tensors of one case and writes down the outcome.
class Checker {
 public:
  Checker(const Case& golden, const Judgement& judgement, CaseResult& result)
      : golden_(golden), judgement_(judgement), result_(result) {}

  /// `computed` against tensor `name` of the case, which must have `shape`. `note` tells apart
  /// several ways of computing the same thing and ends the group's name.
  void check(std::string_view group, std::string_view name, std::span<const double> computed,
             const Shape& shape, Level level = Level::kResult, std::string_view note = "");
  void check_ints(std::string_view group, std::string_view name, std::span<const int64_t> computed,
                  const Shape& shape);
  /// Against given values, made from stored or other tensors; their number is checked, no shape.
  void check_against(std::string_view group, std::string_view name,
                     std::span<const double> computed, const Values& reference, Level level);
  void fail(std::string message) { result_.failures.push_back(std::move(message)); }

 private:
  double tolerance(std::string_view group, std::string_view name, Level level,
                   const Values& reference) const;

  const Case& golden_;
  Judgement judgement_;
  CaseResult& result_;
};

}  // namespace segue::golden
