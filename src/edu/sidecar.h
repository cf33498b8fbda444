#pragma once

#include <map>
#include <string>
#include <vector>

#include "edu/machine.h"
#include "edu/measure.h"
#include "edu/regime.h"

namespace segue::edu {

inline constexpr const char* kSidecarSchema = "mlperf-edu-roofline/1.0";

/// Everything a sidecar tells: what was measured, where, and what follows.
struct SidecarFacts {
  std::string workload;  // "micro-dlrm-cpp-train"
  std::string utc;       // "2026-01-31T23-59-59Z", as it stands in the file's name
  Machine machine;
  Ceilings ceilings;
  Workload shape;
  StepTimes times;
  double lookups_per_step = 0, distinct_per_step = 0;
  int64_t distinct_per_epoch = 0;
  bool huge_pages = false;
  uint64_t seed = 0;
  int threads = 0;

  Roofline roofline() const;
  /// Bytes per second, counting every row that was looked up.
  double gather_rate() const;
};

/// The text of a sidecar: the documented schema, and beyond it only the member `extra`.
std::string sidecar_text(const SidecarFacts& facts);
/// <workload>_<utc>_<fingerprint>.json
std::string sidecar_name(const SidecarFacts& facts);
std::string utc_for_names();  // now

/// What is wrong with a sidecar; empty: nothing. All that follows from other numbers in it is
/// computed again.
struct SidecarCheck {
  std::vector<std::string> problems;
  std::map<std::string, std::string> axes;  // working_set, arithmetic_intensity, dispatch
  double intensity = 0, utilization = 0, ridge = 0, llc_bytes = 0, working_set_bytes = 0;
};
SidecarCheck check_sidecar(const std::string& file_name, const std::string& text);

/// Shares of time in the embedding, by names of spans.
double embedding_share(const std::map<std::string, double>& spans_ms, bool forward_only);

}  // namespace segue::edu
