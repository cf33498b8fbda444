#include "bench/length_kinds.h"

#include <fmt/format.h>

#include "base/error.h"

namespace segue::bench {

using Kind = data::DistributionKind;

const std::vector<std::string>& length_names() {
  static const std::vector<std::string> kNames = {"uniform", "normal", "lognormal", "zipf"};
  return kNames;
}

data::Distribution length_distribution(const std::string& name, int64_t most) {
  const auto end = static_cast<double>(most);
  constexpr double kAlpha = 1.2;
  if (name == "uniform") return {Kind::kUniform, 1, most + 1};
  if (name == "normal") return {Kind::kNormal, 1, most, end / 2, end / 4};
  if (name == "lognormal") return {Kind::kLognormal, 1, most, end / 4, end / 8};
  if (name == "zipf") return {Kind::kZipf, 1, most, 0, 0, kAlpha};
  fail(ErrorCode::kInvalidArgument, fmt::format("there are no lengths `{}`; there is: {}", name,
                                                fmt::join(length_names(), ", ")));
}

std::string name_of(const data::Distribution& d) {
  constexpr const char* kNames[] = {"uniform", "normal", "zipf", "lognormal", "zipf_bounded"};
  if (d.kind == Kind::kUniform && d.high == d.low + 1) return "fixed";
  return kNames[static_cast<size_t>(d.kind)];
}

int64_t most_of(const data::Distribution& d) {
  const bool exclusive = d.kind == Kind::kUniform || d.kind == Kind::kZipfBounded;
  return d.high - (exclusive && d.high > 0 ? 1 : 0);
}

}  // namespace segue::bench
