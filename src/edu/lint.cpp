#include <algorithm>
#include <filesystem>
#include <optional>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "edu/machine.h"
#include "edu/regime.h"
#include "edu/registry.h"
#include "edu/sidecar.h"

namespace segue::edu {
namespace {

using Json = base::CheckedJson;
namespace fs = std::filesystem;

// What the published linter assumes of every machine; a block may say its own instead.
constexpr double kReferenceLlc = 12.0 * (1 << 20), kReferenceRidge = 30;

constexpr const char* kAxes[] = {"working_set", "arithmetic_intensity", "dispatch"};

/// The number of a member that may be absent.
std::optional<double> number(const Json& object, const char* name) {
  if (!object.contains(name) || object[name].is_null()) return std::nullopt;
  return base::real_number(object, name);
}

class Linter {
 public:
  explicit Linter(LintResult& out) : out_(out) {}

  void workload(const std::string& name, const Json& entry, const std::string& folder) {
    name_ = &name;
    ++out_.workloads;
    try {
      const Json& regime = base::member_of(entry, "regime");
      if (!regime.is_object()) return finding("`regime` is no mapping");
      bool complete = true;
      for (const char* axis : kAxes) complete = check_axis(regime, axis) && complete;
      if (complete) check_numbers(regime);
      if (complete && !folder.empty()) check_sidecars(regime, folder);
    } catch (const Error& error) {
      finding(error.what());
    }
  }

 private:
  void finding(const std::string& text) { out_.findings.push_back(*name_ + ": " + text); }

  static std::string value(const Json& regime, const char* axis) {
    return base::text_of(regime[axis], "value");
  }

  bool check_axis(const Json& regime, const char* axis) {
    if (!regime.contains(axis) || !regime[axis].is_object()) {
      finding(fmt::format("`regime` has no `{}`", axis));
      return false;
    }
    if (!known_axis_value(axis, value(regime, axis))) {
      finding(fmt::format("`{}` cannot be the value of {}", value(regime, axis), axis));
      return false;
    }
    return true;
  }

  void must(bool holds, const Json& regime, const char* axis, const char* what, double number) {
    if (holds) return;
    finding(fmt::format("{} is `{}`, but its {} of {:.6g} says otherwise", axis,
                        value(regime, axis), what, number));
  }

  void check_numbers(const Json& regime) {
    const Json& set = regime["working_set"];
    if (const auto bytes = number(set, "peak_bytes_per_step"); bytes) {
      const double llc = number(set, "llc_bytes").value_or(kReferenceLlc);
      const std::string says = value(regime, "working_set");
      must(says == kUnmeasured || working_set_axis(*bytes, llc) == says, regime, "working_set",
           "peak_bytes_per_step", *bytes);
    }
    const Json& intensity = regime["arithmetic_intensity"];
    if (const auto flops = number(intensity, "flops_per_byte"); flops) {
      const double ridge = number(intensity, "ridge_flops_per_byte").value_or(kReferenceRidge);
      const std::string says = value(regime, "arithmetic_intensity");
      const bool holds = says == "compute_bound"     ? *flops >= 2 * ridge
                         : says == "bandwidth_bound" ? *flops <= 0.5 * ridge
                                                     : true;
      must(holds, regime, "arithmetic_intensity", "flops_per_byte", *flops);
    }
    if (const auto used = number(regime["dispatch"], "utilization"); used) {
      const std::string says = value(regime, "dispatch");
      const bool short_steps = regime["dispatch"].contains("short_steps") &&
                               base::flag_of(regime["dispatch"], "short_steps");
      const bool holds = says == "device_saturated" ? *used >= 0.5
                         : says == "dispatch_bound" ? *used <= 0.25 || short_steps
                                                    : true;
      must(holds, regime, "dispatch", "utilization", *used);
    }
  }

  /// Newest file <workload>_*.json.
  std::optional<fs::path> newest(const std::string& folder) const {
    std::optional<fs::path> found;
    for (const auto& file : fs::directory_iterator(folder)) {
      const std::string name = file.path().filename();
      if (!name.starts_with(*name_ + "_") || !name.ends_with(".json")) continue;
      if (!found || fs::last_write_time(file) > fs::last_write_time(*found)) found = file.path();
    }
    return found;
  }

  void check_sidecars(const Json& regime, const std::string& folder) {
    const std::optional<fs::path> path = newest(folder);
    if (path) {
      ++out_.sidecars;
      const SidecarCheck check =
          check_sidecar(path->filename(), base::read_regular_file(path->string()));
      for (const std::string& problem : check.problems) {
        finding(fmt::format("{}: {}", path->filename().string(), problem));
      }
      for (const char* axis : kAxes) compare(regime, axis, check);
      compare_numbers(regime, path->filename(), check);
    }
    for (const char* axis : kAxes) check_evidence(regime[axis], folder, axis);
  }

  void compare(const Json& regime, const char* axis, const SidecarCheck& check) {
    const auto measured = check.axes.find(axis);
    if (measured == check.axes.end() || measured->second == kUnmeasured) return;
    const std::string says = value(regime, axis);
    if (says != kUnmeasured && says != measured->second) {
      finding(fmt::format("{} is `{}` here and `{}` in the newest sidecar", axis, says,
                          measured->second));
    }
  }

  /// Numbers that name this very sidecar as their evidence are its numbers.
  void compare_numbers(const Json& regime, const std::string& file, const SidecarCheck& check) {
    const auto same = [&](const char* axis, const char* name, double measured) {
      const Json& block = regime[axis];
      if (!block.contains("evidence_sidecar") || block["evidence_sidecar"] != file) return;
      const std::optional<double> says = number(block, name);
      if (says && std::abs(*says - measured) > 1e-6 * std::abs(measured)) {
        finding(fmt::format("{}.{} is {} here and {} in its sidecar", axis, name, *says, measured));
      }
    };
    same("working_set", "peak_bytes_per_step", check.working_set_bytes);
    same("arithmetic_intensity", "flops_per_byte", check.intensity);
    same("dispatch", "utilization", check.utilization);
  }

  void check_evidence(const Json& block, const std::string& folder, const char* axis) {
    if (!block.contains("evidence_sidecar") && !block.contains("evidence_sha256_short")) return;
    const std::string file = base::text_of(block, "evidence_sidecar");
    if (!base::is_confined(file) || !base::exists(folder + "/" + file)) {
      return finding(fmt::format("{}: its evidence `{}` is not in {}", axis, file, folder));
    }
    const std::string found = sha256(base::read_regular_file(folder + "/" + file)).substr(0, 12);
    if (base::text_of(block, "evidence_sha256_short") != found) {
      finding(
          fmt::format("{}: `{}` has the SHA-256 {}..., not the recorded one", axis, file, found));
    }
  }

  LintResult& out_;
  const std::string* name_ = nullptr;
};

}  // namespace

LintResult lint_registry(const std::string& path, const std::string& folder) {
  LintResult out;
  if (!base::exists(path)) {
    out.findings.push_back(path + ": not found; name a registry of workloads");
    return out;
  }
  if (!folder.empty() && !fs::is_directory(folder)) {
    fail(ErrorCode::kNotFound, folder +
                                   ": no such folder; --verify-against-sidecars takes the one "
                                   "that `segue edu compare --out` has written sidecars to");
  }
  const Json registry = read_yaml(base::read_regular_file(path), path);
  if (!registry.is_object() || !registry.contains("suites") || !registry["suites"].is_object()) {
    out.findings.push_back(path + ": has no `suites`, so no workload");
    return out;
  }
  Linter linter(out);
  for (const auto& [division, workloads] : registry["suites"].items()) {
    if (!workloads.is_object()) continue;
    for (const auto& [name, entry] : workloads.items()) linter.workload(name, entry, folder);
  }
  if (out.workloads == 0) out.findings.push_back(path + ": `suites` are empty");
  return out;
}

std::string registry_text(const std::vector<RegistryEntry>& entries) {
  Json workloads = Json::object();
  for (const RegistryEntry& e : entries) {
    const std::string text = base::read_regular_file(e.sidecar);
    const std::string file = fs::path(e.sidecar).filename();
    const SidecarCheck check = check_sidecar(file, text);
    const Json sidecar = base::parse_checked(text);
    const Json& inference = sidecar["regime_inference"];
    const Json evidence = {{"evidence_sidecar", file},
                           {"evidence_sha256_short", sha256(text).substr(0, 12)},
                           {"measured_at", sidecar["utc"]},
                           {"platform_machine_class", sidecar["platform"]["machine_class"]},
                           {"classification_rule", inference["rule"]}};
    Json set = {{"value", sidecar["extra"]["axis_working_set"]},
                {"peak_bytes_per_step", check.working_set_bytes},
                {"llc_bytes", check.llc_bytes}};
    Json intensity = {{"value", inference["axis_arithmetic_intensity"]},
                      {"flops_per_byte", check.intensity},
                      {"ridge_flops_per_byte", check.ridge}};
    Json dispatch = {
        {"value", inference["axis_dispatch"]},
        {"utilization", check.utilization},
        {"short_steps", check.axes.at("dispatch") == "dispatch_bound" && check.utilization >= 0.25},
        {"achieved_bw_gbps", sidecar["measurement"]["achieved_BW_GBps"]},
        {"observation_source", "segue edu"}};
    for (Json* block : {&set, &intensity, &dispatch}) block->update(evidence);
    workloads[e.workload] = {
        {"model", e.model},
        {"params", e.parameters},
        {"dataset", e.dataset},
        {"dataset_source", e.source},
        {"quality_target", {{"metric", e.metric}, {"value", e.target}}},
        {"verified_baseline",
         {{"accuracy", e.accuracy}, {"epochs", e.epochs}, {"time_seconds", e.train_seconds}}},
        {"scenario", "training"},
        {"provenance", "segue edu"},
        {"regime",
         {{"working_set", set}, {"arithmetic_intensity", intensity}, {"dispatch", dispatch}}}};
  }
  return Json{{"suites", {{"edge", workloads}}}}.dump(2) + "\n";
}

}  // namespace segue::edu
