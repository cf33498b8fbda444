#include <cmath>
#include <ostream>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "runner/runner.h"

namespace segue::golden {
namespace {

using Json = nlohmann::ordered_json;

std::string tolerance_text(double tolerance) {
  if (std::isinf(tolerance)) return "no tolerance: must be finite";
  return tolerance == 0 ? "must be equal" : fmt::format("tolerance {:.0e}", tolerance);
}

void print_line(std::ostream& out, const char* indent, const std::string& name,
                const TensorResult& tensor, const std::string& remark) {
  out << fmt::format("{}{:<24} {:>8.1e}  {}{}\n", indent, name, tensor.error,
                     tolerance_text(tensor.tolerance), remark);
}

Json number(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

Json to_json(const TensorResult& t) {
  return {{"name", t.name},
          {"error", number(t.error)},
          {"tolerance", number(t.tolerance)},
          {"passed", t.passed}};
}

Json to_json(const GroupResult& group) {
  Json json = {{"name", group.name},
               {"error", number(group.worst().error)},
               {"tolerance", number(group.worst().tolerance)},
               {"worst_tensor", group.worst().name},
               {"passed", group.passed()},
               {"tensors", Json::array()}};
  for (const TensorResult& t : group.tensors) json["tensors"].push_back(to_json(t));
  return json;
}

Json to_json(const CaseResult& result) {
  Json json = {{"file", result.file},
               {"case", result.name},
               {"variant", result.variant},
               {"op", result.op},
               {"verdict", result.passed() ? "PASS" : "FAIL"},
               {"seconds", result.seconds},
               {"failures", result.failures},
               {"groups", Json::array()},
               {"not_compared", result.unchecked}};
  for (const GroupResult& group : result.groups) json["groups"].push_back(to_json(group));
  return json;
}

}  // namespace

Precision parse_precision(const std::string& text) {
  if (text == "f32") return Precision::kF32;
  if (text == "f64") return Precision::kF64;
  if (text == "bf16") return Precision::kBf16;
  fail(ErrorCode::kInvalidArgument,
       fmt::format("precision `{}` is not known; use f32, f64 or bf16", text));
}

const char* to_string(Precision precision) {
  switch (precision) {
    case Precision::kF32:
      return "f32";
    case Precision::kF64:
      return "f64";
    case Precision::kBf16:
      break;
  }
  return "bf16";
}

void print_case(std::ostream& out, const CaseResult& result, bool verbose) {
  out << fmt::format("{}: {} ({})\n", result.file, result.title(), result.op);
  for (const GroupResult& group : result.groups) {
    const TensorResult& worst = group.worst();
    const bool several = group.tensors.size() > 1;
    std::string remark;
    if (several) remark = fmt::format("  worst of {}: {}", group.tensors.size(), worst.name);
    if (!group.passed()) remark += "  <- FAIL";
    print_line(out, "  ", group.name, worst, remark);
    if (!verbose || !several) continue;
    for (const TensorResult& t : group.tensors) {
      print_line(out, "      ", t.name, t, t.passed ? "" : "  <- FAIL");
    }
  }
  for (const std::string& failure : result.failures) out << "  " << failure << "\n";
  if (verbose && !result.unchecked.empty()) {
    out << fmt::format("  not compared: {}\n", fmt::join(result.unchecked, " "));
  }
  out << "  " << (result.passed() ? "PASS" : "FAIL") << "\n" << std::flush;
}

void print_summary(std::ostream& out, const Report& report) {
  out << fmt::format("{} cases, {} failed\n", report.cases.size(), report.failed()) << std::flush;
}

void print_json(std::ostream& out, const Options& options, const Report& report) {
  Json json = {{"folder", options.folder},
               {"device", segue::to_string(options.device)},
               {"precision", to_string(options.precision)},
               {"cases", Json::array()},
               {"num_cases", report.cases.size()},
               {"num_failed", report.failed()},
               {"broken_files", report.broken},
               {"ignored_files", report.ignored},
               {"exit_code", report.exit_code()}};
  for (const CaseResult& result : report.cases) json["cases"].push_back(to_json(result));
  // Names come from files: what is not UTF-8 there must not end the program.
  out << json.dump(2, ' ', false, Json::error_handler_t::replace) << "\n" << std::flush;
}

}  // namespace segue::golden
