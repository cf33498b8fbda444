#include "runner/runner.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <filesystem>
#include <optional>
#include <ostream>
#include <regex>
#include <span>
#include <system_error>

#include <fmt/format.h>

#include "base/error.h"
#include "base/parallel.h"
#include "runner/cases.h"

namespace segue::golden {
namespace {

struct Kind {
  std::string_view op;
  void (*run)(const CaseContext&);
  bool is_model = false;
};

constexpr Kind kKinds[] = {
    {"hstu_attention", run_attention},
    {"stu_layer", run_stu_layer},
    {"positional_encoder", run_positional_encoder},
    {"contextual_preprocessor", run_contextual_preprocessor},
    {"postprocessor", run_postprocessor},
    {"metrics", run_metrics},
    {"samples", run_samples},
    {"windows", run_windows},
    {"window_shuffle", run_window_shuffle},
    {"user_split", run_user_split},
    {"dlrm_hstu_train_step", run_train_step, /*is_model=*/true},
    {"dlrm_hstu_trajectory", run_trajectory, /*is_model=*/true},
    {"dlrm_hstu_trajectory_f32_params", run_trajectory_parameters, /*is_model=*/true},
};

const Kind* find_kind(std::string_view op) {
  const auto* found = std::ranges::find(kKinds, op, &Kind::op);
  return found == std::end(kKinds) ? nullptr : found;
}

std::span<const Variant> variants_of(const Kind* kind) {
  constexpr int64_t kSmallCut = 30;  // a sample or two of the golden models
  static const Variant kPlain[] = {{}};
  static const Variant kModel[] = {
      {"identities off", false, kWholeBatch},
      {"identities on", true, kWholeBatch},
      {fmt::format("identities on, micro-batches of {} tokens", kSmallCut), true, kSmallCut},
  };
  return kind != nullptr && kind->is_model ? std::span<const Variant>(kModel) : kPlain;
}

/// The *.safetensors files of a folder, by name.
std::vector<std::filesystem::path> list_files(const std::string& folder) {
  std::error_code error;
  std::filesystem::directory_iterator entries(folder, error);
  if (error) {
    fail(ErrorCode::kNotFound, fmt::format("cannot read folder `{}`: {}", folder, error.message()));
  }
  std::vector<std::filesystem::path> files;
  for (const std::filesystem::directory_entry& entry : entries) {
    if (entry.path().extension() == ".safetensors") files.push_back(entry.path());
  }
  std::ranges::sort(files);
  return files;
}

std::optional<std::regex> compile(const std::string& expression) {
  if (expression.empty()) return std::nullopt;
  try {
    return std::regex(expression);
  } catch (const std::regex_error& error) {
    fail(ErrorCode::kInvalidArgument,
         fmt::format("--only `{}` is not a regular expression: {}", expression, error.what()));
  }
}

class FolderRun {
 public:
  FolderRun(const Options& options, const std::function<void(const CaseResult&)>& on_case)
      : options_(options),
        on_case_(on_case),
        only_(compile(options.only)),
        workspace_(options.device, options.precision) {
    if (options.device.is_cuda() && options.precision == Precision::kBf16) {
      plain_workspace_.emplace(Device::cpu(), options.precision);
    }
  }

  Report run() {
    for (const std::filesystem::path& path : list_files(options_.folder)) {
      try {
        const CaseFile file(path.string());
        if (!file.is_golden()) {
          report_.ignored.push_back(path.filename().string());
          continue;
        }
        for (const std::string& name : file.case_names()) run_case(file, path, name);
      } catch (const Error& error) {
        report_.broken.push_back(error.what());
      }
    }
    return std::move(report_);
  }

 private:
  void run_case(const CaseFile& file, const std::filesystem::path& path, const std::string& name) {
    CaseResult result;
    result.file = path.filename().string();
    result.name = name;
    result.op = file.op_of(name);
    const Kind* kind = find_kind(result.op);
    std::optional<CaseResult> plain;
    for (const Variant& variant : variants_of(kind)) {
      CaseResult one = result;
      one.variant = variant.name;
      const std::string label =
          fmt::format("{}/{} {}{}", one.file, one.name, one.op,
                      variant.name.empty() ? "" : fmt::format(" [{}]", variant.name));
      if (only_ && !std::regex_search(label, *only_)) continue;
      run_variant(file, kind, variant, plain, one);
      if (on_case_) on_case_(one);
      report_.cases.push_back(std::move(one));
    }
  }

  /// `plain` is filled in by the first variant that needs it.
  void run_variant(const CaseFile& file, const Kind* kind, const Variant& variant,
                   std::optional<CaseResult>& plain, CaseResult& result) {
    const auto start = std::chrono::steady_clock::now();
    const Arena::Mark mark(*workspace_.exec.arena);
    try {
      const Case golden = file.open(result.name);
      if (kind == nullptr) fail_unknown(golden.op());
      Judgement judgement{options_.precision, options_.device, nullptr};
      if (plain_workspace_) {
        if (!plain) plain = run_plain(file, result.name, *kind);
        judgement.plain = &*plain;
      }
      Checker checker(golden, judgement, result);
      kind->run({golden, variant, options_.folder, workspace_, checker});
      result.unchecked = golden.untouched();
      if (result.groups.empty()) checker.fail("nothing was compared");
      if (!result.passed() && result.failures.empty()) try_rounding(file, *kind, variant, result);
    } catch (const std::exception& error) {
      result.failures.emplace_back(error.what());
    }
    result.seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }

  /// The worst errors of all ways to run the case: they are the same mathematics, and after a few
  /// training steps which of them is the nearest is chance.
  CaseResult run_plain(const CaseFile& file, const std::string& name, const Kind& kind) {
    std::vector<CaseResult> runs;
    for (const Variant& variant : variants_of(&kind)) {
      const Arena::Mark mark(*plain_workspace_->exec.arena);
      const Case golden = file.open(name);
      Checker checker(golden, {Precision::kBf16, Device::cpu(), nullptr}, runs.emplace_back());
      kind.run({golden, variant, options_.folder, *plain_workspace_, checker});
    }
    return worst_of(runs);
  }

  /// Some problems magnify rounding: sums that nearly cancel, norms of nearly equal values, many
  /// training steps. A case that misses its tolerance in float is run again in double. If it is
  /// right there to the last digits, what is left is rounding, and as much of it is allowed as the
  /// problem makes of inputs that are one float rounding off.
  void try_rounding(const CaseFile& file, const Kind& kind, const Variant& variant,
                    CaseResult& result) {
    if (options_.precision != Precision::kF32) return;
    const auto run_in_double = [&](uint64_t seed) {
      constexpr double kFloatRounding = 0x1p-24;
      Workspace workspace(Device::cpu(), Precision::kF64);
      if (seed > 0) workspace.nudge_inputs(kFloatRounding, seed);
      const Case golden = file.open(result.name);
      CaseResult run;
      Checker checker(golden, {Precision::kF64, Device::cpu(), nullptr}, run);
      kind.run({golden, variant, options_.folder, workspace, checker});
      return run;
    };
    if (!run_in_double(0).passed()) return;
    allow_rounding(std::vector{run_in_double(1), run_in_double(2), run_in_double(3)}, result);
  }

  [[noreturn]] static void fail_unknown(const std::string& op) {
    fail(ErrorCode::kUnsupported, fmt::format("op `{}` is not known", op));
  }

  const Options& options_;
  const std::function<void(const CaseResult&)>& on_case_;
  std::optional<std::regex> only_;
  Workspace workspace_;
  std::optional<Workspace> plain_workspace_;  // for bf16 on a GPU
  Report report_;
};

}  // namespace

int64_t Report::failed() const {
  return std::ranges::count_if(cases, [](const CaseResult& c) { return !c.passed(); });
}

int Report::exit_code() const {
  if (!broken.empty() || cases.empty()) return 2;
  return failed() > 0 ? 1 : 0;
}

Report run_folder(const Options& options, const std::function<void(const CaseResult&)>& on_case) {
  require_available(options.device);
  const int threads_before = base::num_threads();
  base::set_num_threads(options.threads);
  Report report = FolderRun(options, on_case).run();
  base::set_num_threads(threads_before);
  return report;
}

int run_program(const Options& options, std::ostream& out, std::ostream& err) {
  try {
    const Report report = run_folder(options, [&](const CaseResult& result) {
      if (!options.json) print_case(out, result, options.verbose);
    });
    for (const std::string& name : report.ignored) {
      err << "note: " << name << " is ignored: its format is not " << CaseFile::kFormat << "\n";
    }
    for (const std::string& message : report.broken) err << "error: " << message << "\n";
    if (report.cases.empty()) {
      err << "error: no case to run in `" << options.folder << "`"
          << (options.only.empty() ? "" : " that --only selects") << "\n";
    }
    if (options.json) {
      print_json(out, options, report);
    }
    print_summary(options.json ? err : out, report);  // stdout is one JSON document
    return report.exit_code();
  } catch (const Error& error) {
    err << "error: " << error.what() << "\n";
    return 2;
  }
}

}  // namespace segue::golden
