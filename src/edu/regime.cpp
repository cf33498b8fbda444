#include "edu/regime.h"

#include <algorithm>

#include <fmt/format.h>

namespace segue::edu {

double Roofline::utilization() const {
  return std::max(achieved_flops() / peak_flops, achieved_gbps() / peak_gbps);
}

std::string intensity_axis(double intensity, double ridge) {
  if (intensity > 2 * ridge) return "compute_bound";
  return intensity < 0.5 * ridge ? "bandwidth_bound" : kUnmeasured;
}

std::string dispatch_axis(double utilization, double step_us, double dispatch_floor_us) {
  if (utilization < 0.25 || step_us < 20 * dispatch_floor_us) return "dispatch_bound";
  return utilization >= 0.5 ? "device_saturated" : kUnmeasured;
}

std::string working_set_axis(double bytes, double llc_bytes) {
  if (bytes <= 0.5 * llc_bytes) return "cache_resident";
  return bytes >= 4 * llc_bytes ? "dram_bound" : kUnmeasured;
}

std::string rule_text(const Roofline& r) {
  return fmt::format(
      "intensity {:.4g} FLOP/byte against a ridge of {:.4g} (compute above {:.4g}, bandwidth below "
      "{:.4g}); utilization {:.4g} (saturated from 0.5, dispatch below 0.25); step {:.4g} us "
      "against an empty parallel region of {:.4g} us (dispatch below 20 of them)",
      r.intensity(), r.ridge(), 2 * r.ridge(), 0.5 * r.ridge(), r.utilization(), r.step_us(),
      r.dispatch_floor_us);
}

bool known_axis_value(const std::string& axis, const std::string& value) {
  if (value == kUnmeasured) return true;
  if (axis == "working_set") return value == "cache_resident" || value == "dram_bound";
  if (axis == "arithmetic_intensity") return value == "compute_bound" || value == "bandwidth_bound";
  return value == "device_saturated" || value == "dispatch_bound";
}

}  // namespace segue::edu
