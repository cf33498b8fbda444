#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "base/file.h"
#include "base/log.h"
#include "base/time.h"
#include "cli/commands.h"
#include "cli/output.h"
#include "report/page/html_report.h"
#include "report/run_reader.h"

namespace segue::cli {
namespace {

struct ReportArguments {
  std::vector<std::string> runs;
  std::string out, title;
};

/// A run is called by its folder, which is often just `run`: its store tells more.
std::string title_of(const std::vector<report::Run>& runs) {
  if (runs.size() > 1) return fmt::format("{} runs", runs.size());
  const std::string store = runs[0].setting("data.store");
  return store.empty() ? runs[0].name : fmt::format("{} on {}", runs[0].name, store);
}

void run(const ReportArguments& arguments) {
  const std::vector<report::Run> runs = report::read_runs(arguments.runs);
  for (const report::Run& r : runs) {
    for (const std::string& warning : r.warnings) base::log_warning(warning);
  }
  std::string out = arguments.out;
  if (out.empty()) {
    const bool in_folder = runs.size() == 1 && std::filesystem::is_directory(runs[0].path);
    out =
        in_folder ? (std::filesystem::path(runs[0].path) / "report.html").string() : "report.html";
  }
  const std::string made = fmt::format("{} · {}", base::iso_time_now(), version_line());
  base::write_file(
      out,
      report::html_report(runs, arguments.title.empty() ? title_of(runs) : arguments.title, made));
  print(out + "\n");
}

}  // namespace

void add_report(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("report", "Draw runs as one HTML page that needs no network.");
  command->footer("Prints the path of the page. Several runs are laid over each other.");
  const auto arguments = std::make_shared<ReportArguments>();
  command->add_option("run", arguments->runs, "run folders, or MLPerf logs of any system")
      ->required();
  command->add_option("--out", arguments->out,
                      "the page; default: report.html, in the folder if it is one run");
  command->add_option("--title", arguments->title, "heading of the page");
  command->callback([arguments] { run(*arguments); });
}

}  // namespace segue::cli
