#pragma once

#include <cstdint>
#include <string>

namespace segue::edu {

// Where a workload stands, on three axes. Every value is "unmeasured" in the band between two
// regimes, where numbers decide nothing.

inline constexpr const char* kUnmeasured = "unmeasured";

/// What a roofline is drawn from.
struct Roofline {
  double peak_flops = 0, peak_gbps = 0;      // of the machine
  double seconds = 0, flops = 0, bytes = 0;  // of `iterations` steps
  int64_t iterations = 0;
  double dispatch_floor_us = 0;

  double ridge() const { return peak_flops / (peak_gbps * 1e9); }
  double achieved_flops() const { return flops / seconds; }
  double achieved_gbps() const { return bytes / seconds / 1e9; }
  double intensity() const { return flops / bytes; }
  double utilization() const;  // the better of the two shares of a peak
  double step_us() const { return 1e6 * seconds / static_cast<double>(iterations); }
};

/// "compute_bound" above twice the ridge, "bandwidth_bound" below half of it.
std::string intensity_axis(double intensity, double ridge);
/// "device_saturated" from a utilization of 0.5 on, "dispatch_bound" below 0.25, and where a step
/// is shorter than 20 empty parallel regions.
std::string dispatch_axis(double utilization, double step_us, double dispatch_floor_us);
/// "cache_resident" up to half of the last-level cache, "dram_bound" from four times of it on.
std::string working_set_axis(double bytes, double llc_bytes);
/// The numbers that were compared, in a sentence.
std::string rule_text(const Roofline& roofline);

bool known_axis_value(const std::string& axis, const std::string& value);

}  // namespace segue::edu
