#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/synth/distribution.h"

namespace segue::bench {

/// Lengths from 1 to `most` as the published suites draw them:
///   uniform    all alike
///   normal     mean of half the longest, deviation a quarter of it
///   lognormal  mean of a quarter, deviation half the mean
///   zipf       exponent 1.2, clamped: most are short, and a sixth is as long as can be
/// Error(kInvalidArgument) with the known names.
data::Distribution length_distribution(const std::string& name, int64_t most);
const std::vector<std::string>& length_names();

/// How a distribution is called in rows.
std::string name_of(const data::Distribution& distribution);

/// The most that a distribution gives; 0: there is no end.
int64_t most_of(const data::Distribution& distribution);

}  // namespace segue::bench
