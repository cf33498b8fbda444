#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/time.h"
#include "cli/commands.h"
#include "cli/facts.h"
#include "cli/output.h"
#include "report/page/trace_page.h"
#include "report/trace_reader.h"

namespace segue::cli {
namespace {

using report::TraceSummary;

constexpr double kMs = 1e3;

/// Files, or those of one window of a run folder.
std::vector<std::string> files_of(const std::vector<std::string>& named, int64_t step) {
  std::vector<std::string> files;
  for (const std::string& name : named) {
    if (std::filesystem::is_directory(name)) {
      for (std::string& file : report::traces_of_run(name, step)) files.push_back(std::move(file));
    } else {
      files.push_back(name);
    }
  }
  return files;
}

/// Several ranks count together.
report::TraceContents read_one(const std::string& path, int64_t step) {
  const std::vector<std::string> files = files_of({path}, step);
  if (files.size() == 1) return report::read_trace(files[0]);
  return report::parse_trace(report::merge_traces(files).json, path);
}

struct Arguments {
  std::vector<std::string> traces;
  std::string out, title;
  int64_t step = 0, rows = 15;
  bool json = false;
};

void merge(const Arguments& a) {
  const report::MergedTrace merged = report::merge_traces(files_of(a.traces, a.step));
  for (const std::string& warning : merged.warnings) base::log_warning(warning);
  base::write_file(a.out, merged.json);
  print(fmt::format("{}: {} files, {} events, clocks aligned to {:.1f} us\n", a.out, merged.files,
                    merged.events, merged.error_us));
}

/// Shares are those of own time in `whole`.
void add_entries(FactSheet& sheet, const char* title, const std::vector<TraceSummary::Entry>& all,
                 const TraceSummary& sum, double whole, int64_t rows) {
  if (all.empty()) return;
  FactTable& table = sheet.table(title, {"ms", "own ms", "share", "calls", "us each"});
  for (size_t i = 0; i < std::min(all.size(), static_cast<size_t>(rows)); ++i) {
    const TraceSummary::Entry& e = all[i];
    table.rows.push_back(
        {e.name,
         {Fact::real(kMs * sum.per_step(e.seconds), 3), Fact::real(kMs * sum.per_step(e.own), 3),
          Fact::share(whole > 0 ? e.own / whole : 0),
          Fact::real(sum.per_step(static_cast<double>(e.count)), 1),
          Fact::real(e.count > 0 ? 1e6 * e.seconds / static_cast<double>(e.count) : 0, 1)}});
  }
}

void top(const Arguments& a) {
  const TraceSummary sum = report::summarize(read_one(a.traces[0], a.step));
  FactSheet sheet;
  FactTable& trace = sheet.table("trace");
  trace.rows.push_back({"ranks", {sum.ranks}});
  trace.rows.push_back({"steps", {sum.ranks > 0 ? sum.steps / sum.ranks : 0}});
  trace.rows.push_back({"ms per step", {Fact::real(kMs * sum.per_step(sum.window), 3)}});
  if (sum.has_device()) {
    const auto share = [&](double s) { return Fact::share(sum.window > 0 ? s / sum.window : 0); };
    FactTable& device = sheet.table("device", {"ms per step", "share"});
    device.rows.push_back({"busy", {Fact::real(kMs * sum.per_step(sum.busy), 3), share(sum.busy)}});
    device.rows.push_back(
        {fmt::format("gaps ({})", sum.gaps),
         {Fact::real(kMs * sum.per_step(sum.gap_seconds), 3), share(sum.gap_seconds)}});
    FactTable& gaps = sheet.table("largest gaps", {"us", "after", "before"});
    for (size_t i = 0; i < sum.largest_gaps.size(); ++i) {
      const TraceSummary::Gap& gap = sum.largest_gaps[i];
      gaps.rows.push_back(
          {std::to_string(i + 1), {Fact::real(1e6 * gap.seconds, 1), gap.after, gap.before}});
    }
    add_entries(sheet, "device time per step by stage", sum.stages, sum, sum.busy, a.rows);
    add_entries(sheet, "device time per step by kernel", sum.kernels, sum, sum.busy, a.rows);
  }
  add_entries(sheet, "host time per step by stage", sum.host, sum, sum.window, a.rows);
  print(a.json ? sheet.json() : sheet.text());
}

/// Own time per step of each name in both, largest difference first.
void add_differences(FactSheet& sheet, const char* title, const TraceSummary& a,
                     const TraceSummary& b, std::vector<TraceSummary::Entry> TraceSummary::*entries,
                     int64_t rows) {
  std::map<std::string, std::pair<double, double>> both;
  for (const TraceSummary::Entry& e : a.*entries) both[e.name].first = kMs * a.per_step(e.own);
  for (const TraceSummary::Entry& e : b.*entries) both[e.name].second = kMs * b.per_step(e.own);
  if (both.empty()) return;
  std::vector<std::pair<std::string, std::pair<double, double>>> order(both.begin(), both.end());
  std::ranges::stable_sort(order, std::ranges::greater(), [](const auto& row) {
    return std::abs(row.second.second - row.second.first);
  });
  FactTable& table = sheet.table(title, {"a ms", "b ms", "difference"});
  for (size_t i = 0; i < std::min(order.size(), static_cast<size_t>(rows)); ++i) {
    const auto& [name, ms] = order[i];
    table.rows.push_back(
        {name,
         {Fact::real(ms.first, 3), Fact::real(ms.second, 3), Fact::real(ms.second - ms.first, 3)}});
  }
}

void diff(const Arguments& arguments) {
  const TraceSummary a = report::summarize(read_one(arguments.traces[0], arguments.step));
  const TraceSummary b = report::summarize(read_one(arguments.traces[1], arguments.step));
  FactSheet sheet;
  FactTable& steps = sheet.table("per step", {"a ms", "b ms", "difference"});
  const auto row = [&](const char* name, double x, double y) {
    const double in_a = kMs * a.per_step(x), in_b = kMs * b.per_step(y);
    steps.rows.push_back(
        {name, {Fact::real(in_a, 3), Fact::real(in_b, 3), Fact::real(in_b - in_a, 3)}});
  };
  row("time", a.window, b.window);
  if (a.has_device() || b.has_device()) {
    row("device busy", a.busy, b.busy);
    row("gaps", a.gap_seconds, b.gap_seconds);
  }
  add_differences(sheet, "device, by stage", a, b, &TraceSummary::stages, arguments.rows);
  add_differences(sheet, "device, by kernel", a, b, &TraceSummary::kernels, arguments.rows);
  add_differences(sheet, "host, by stage", a, b, &TraceSummary::host, arguments.rows);
  print(arguments.json ? sheet.json() : sheet.text());
}

void show(const Arguments& a) {
  const std::string title =
      a.title.empty() ? std::filesystem::path(a.traces[0]).filename().string() : a.title;
  base::write_file(
      a.out, report::trace_page(read_one(a.traces[0], a.step), title,
                                fmt::format("{} · {}", base::iso_time_now(), version_line())));
  print(a.out + "\n");
}

CLI::App* add(CLI::App& parent, const char* name, const char* what,
              const std::shared_ptr<Arguments>& arguments, void (*run)(const Arguments&)) {
  CLI::App* command = parent.add_subcommand(name, what);
  command->add_option("--step", arguments->step,
                      "of a run folder: the first step of the window; default: the last window");
  command->callback([arguments, run] { run(*arguments); });
  return command;
}

void add_tables(CLI::App& command, const std::shared_ptr<Arguments>& arguments) {
  command.add_option("--rows", arguments->rows, "rows of each table")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20));
  command.add_flag("--json", arguments->json, "the same as one JSON object");
}

}  // namespace

void add_trace(CLI::App& app) {
  CLI::App* command = app.add_subcommand("trace", "Traces of a run: merge, top, diff, view.");
  command->require_subcommand(1);
  command->footer("A run folder stands for the files of all ranks of one window in RUN/trace.");

  auto arguments = std::make_shared<Arguments>();
  CLI::App* sub = add(*command, "merge", "Stitch the files of several ranks, clocks aligned.",
                      arguments, &merge);
  sub->add_option("trace", arguments->traces, "run folder, or files")->required();
  sub->add_option("--out", arguments->out, "the merged file")->required();

  arguments = std::make_shared<Arguments>();
  sub = add(*command, "top", "Where the time went: stages, kernels, gaps.", arguments, &top);
  sub->add_option("trace", arguments->traces, "run folder, or file")->required()->expected(1);
  add_tables(*sub, arguments);

  arguments = std::make_shared<Arguments>();
  sub = add(*command, "diff", "What takes longer in one trace than in another.", arguments, &diff);
  sub->add_option("traces", arguments->traces, "two run folders, or files: A B")
      ->required()
      ->expected(2);
  add_tables(*sub, arguments);

  arguments = std::make_shared<Arguments>();
  sub = add(*command, "view", "Draw a trace as one HTML page that needs no network.", arguments,
            &show);
  sub->add_option("trace", arguments->traces, "run folder, or file")->required()->expected(1);
  sub->add_option("--out", arguments->out, "the page")->required();
  sub->add_option("--title", arguments->title, "heading of the page");
}

}  // namespace segue::cli
