#include "runner/result.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "base/error.h"

namespace segue::golden {
namespace {

/// The larger one; NaN, which stands for what is not finite, is larger than anything. (std::max
/// drops it or keeps it by the order of its arguments.)
double worse_error(double a, double b) {
  return std::isnan(a) || std::isnan(b) ? std::numeric_limits<double>::quiet_NaN() : std::max(a, b);
}

}  // namespace

double tolerance_of(Level level, const Judgement& judgement, bool f64_reference) {
  if (level == Level::kExact) return 0;
  if (level == Level::kDoubleSum) return 1e-9;
  if (level == Level::kFloatSum) return 1e-6;
  if (judgement.precision == Precision::kBf16) return std::numeric_limits<double>::infinity();
  if (judgement.precision == Precision::kF64 && f64_reference) return 1e-9;
  return level == Level::kAfterTraining || judgement.device.is_cuda() ? 1e-4 : 1e-5;
}

bool GroupResult::passed() const {
  return std::ranges::all_of(tensors, [](const TensorResult& t) { return t.passed; });
}

const TensorResult& GroupResult::worst() const {
  const auto badness = [](const TensorResult& t) {
    if (!t.passed) return std::isnan(t.error) ? std::numeric_limits<double>::infinity() : t.error;
    if (t.tolerance == 0) return 0.0;
    // Without a tolerance the errors themselves are compared.
    return std::isinf(t.tolerance) ? t.error : t.error / t.tolerance;
  };
  return *std::ranges::max_element(tensors, [&](const TensorResult& a, const TensorResult& b) {
    if (a.passed != b.passed) return a.passed;
    return badness(a) < badness(b);
  });
}

bool CaseResult::passed() const {
  return failures.empty() && !groups.empty() && std::ranges::all_of(groups, &GroupResult::passed);
}

std::string CaseResult::title() const {
  return variant.empty() ? name : fmt::format("{} [{}]", name, variant);
}

CaseResult worst_of(std::span<const CaseResult> runs) {
  CaseResult worst = runs.front();
  for (const CaseResult& run : runs.subspan(1)) {
    for (const GroupResult& group : run.groups) {
      const auto place = std::ranges::find(worst.groups, group.name, &GroupResult::name);
      if (place == worst.groups.end()) {
        worst.groups.push_back(group);
        continue;
      }
      for (const TensorResult& tensor : group.tensors) {
        const auto same = std::ranges::find(place->tensors, tensor.name, &TensorResult::name);
        if (same == place->tensors.end()) {
          place->tensors.push_back(tensor);
        } else {
          same->error = worse_error(same->error, tensor.error);
          same->passed = same->passed && tensor.passed;
        }
      }
    }
  }
  return worst;
}

void allow_rounding(std::span<const CaseResult> nudged, CaseResult& result) {
  for (GroupResult& group : result.groups) {
    for (TensorResult& tensor : group.tensors) {
      if (tensor.passed || tensor.tolerance == 0) continue;
      double moved = 0;
      for (const CaseResult& run : nudged) {
        const auto same = std::ranges::find(run.groups, group.name, &GroupResult::name);
        if (same == run.groups.end()) continue;
        for (const TensorResult& t : same->tensors) {
          if (t.name == tensor.name) moved = std::max(moved, t.error);
        }
      }
      tensor.tolerance = std::max(tensor.tolerance, kRoundings * moved);
      tensor.passed = tensor.error <= tensor.tolerance;  // false for NaN
    }
  }
}

/// Twice the error of the plain run for what goes forward, three times for gradients and what was
/// trained with them, and 2^-10 of the largest value for its own roundings. A handful of numbers is
/// often right by luck, and after many steps luck is all there is: there the worst tensor of the
/// group stands for all of them. NaN, which nothing passes, where a plain run was not finite.
double Checker::tolerance(std::string_view group, std::string_view name, Level level,
                          const Values& reference) const {
  const bool rounded = level == Level::kResult || level == Level::kAfterTraining;
  if (judgement_.plain == nullptr || !rounded) {
    return tolerance_of(level, judgement_, reference.is_f64);
  }
  const auto place = std::ranges::find(judgement_.plain->groups, group, &GroupResult::name);
  if (place == judgement_.plain->groups.end()) return 0;
  constexpr size_t kFewValues = 16;
  const bool by_group = level == Level::kAfterTraining || reference.data.size() < kFewValues;
  double error = 0;
  for (const TensorResult& tensor : place->tensors) {
    if (by_group || tensor.name == name) error = worse_error(error, tensor.error);
  }
  const bool backward =
      level == Level::kAfterTraining || group.starts_with('d') || group.starts_with("grad");
  return (backward ? 3 : 2) * error + 0x1p-10;
}

void Checker::check(std::string_view group, std::string_view name, std::span<const double> computed,
                    const Shape& shape, Level level, std::string_view note) {
  Values reference;
  try {
    reference = golden_.reference(name);
  } catch (const Error& error) {
    fail(error.what());
    return;
  }
  if (reference.shape != shape) {
    fail(fmt::format("tensor `{}` has shape {}, but the result has {}", name,
                     to_string(reference.shape), to_string(shape)));
    return;
  }
  check_against(note.empty() ? std::string(group) : fmt::format("{} ({})", group, note), name,
                computed, reference, level);
}

void Checker::check_ints(std::string_view group, std::string_view name,
                         std::span<const int64_t> computed, const Shape& shape) {
  const std::vector<double> numbers(computed.begin(), computed.end());
  check(group, name, numbers, shape, Level::kExact);
}

void Checker::check_against(std::string_view group, std::string_view name,
                            std::span<const double> computed, const Values& reference,
                            Level level) {
  if (computed.size() != reference.data.size()) {
    fail(fmt::format("tensor `{}` has {} values, but the result has {}", name,
                     reference.data.size(), computed.size()));
    return;
  }
  double difference = 0;
  double largest = 0;
  for (size_t i = 0; i < computed.size(); ++i) {
    const double expected = reference.data[i];
    if (!std::isfinite(computed[i]) || !std::isfinite(expected)) {
      difference = std::numeric_limits<double>::quiet_NaN();
      fail(fmt::format("{} `{}` is not finite: element {} is {}",
                       std::isfinite(expected) ? "the result" : "the stored tensor", name, i,
                       std::isfinite(expected) ? computed[i] : expected));
      break;
    }
    difference = std::max(difference, std::abs(computed[i] - expected));
    largest = std::max(largest, std::abs(expected));
  }
  TensorResult outcome{std::string(name)};
  outcome.error = difference / (largest > 0 ? largest : kZeroScale);
  outcome.tolerance = tolerance(group, name, level, reference);
  outcome.passed = outcome.error <= outcome.tolerance;  // false for NaN

  auto place = std::ranges::find(result_.groups, group, &GroupResult::name);
  if (place == result_.groups.end()) {
    result_.groups.push_back({std::string(group), {}});
    place = result_.groups.end() - 1;
  }
  place->tensors.push_back(std::move(outcome));
}

}  // namespace segue::golden
