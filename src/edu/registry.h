#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/checked_json.h"

namespace segue::edu {

/// The part of YAML that registries of workloads are written in: mappings by indentation, plain
/// and quoted scalars, `- ` lists of scalars, { } and [ ] on one line, | and > texts, comments. A
/// file that begins with { is JSON. Error(kCorrupt) with the line for anything else.
base::CheckedJson read_yaml(std::string_view text, const std::string& path);

/// What is wrong with a registry, and with the sidecars that it stands on.
struct LintResult {
  std::vector<std::string> findings;  // "WORKLOAD: ..."
  int workloads = 0;
  int sidecars = 0;  // that were looked at

  /// 0 fine, 1 findings, 2 no workload.
  int exit_code() const { return workloads == 0 ? 2 : findings.empty() ? 0 : 1; }
};
/// `sidecar_folder` empty: the registry alone. Otherwise the newest sidecar of each workload is
/// computed again and compared with what the registry says; a workload without one passes.
/// A file that is not there, or is no registry, has no workloads.
LintResult lint_registry(const std::string& path, const std::string& sidecar_folder);

/// A registry of these sidecars (paths), with the evidence for each axis: JSON.
struct RegistryEntry {
  std::string workload, model, dataset, source, metric;
  int64_t parameters = 0;
  double target = 0, accuracy = 0, train_seconds = 0;
  int64_t epochs = 0;
  std::string sidecar;  // path
};
std::string registry_text(const std::vector<RegistryEntry>& entries);

}  // namespace segue::edu
