#include <memory>
#include <string>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/json_line.h"
#include "cli/commands.h"
#include "cli/output.h"
#include "comm/flight/verdict.h"

namespace segue::cli {
namespace {

struct FlightArguments {
  std::string run;
  size_t calls = 4;
  bool json = false;
};

/// A run, or the folder of records itself.
std::string folder_of_run(const std::string& path) {
  const std::string inner = path + "/flight";
  return base::exists(inner) ? inner : path;
}

void flight(const FlightArguments& arguments) {
  const comm::FlightFiles files = comm::read_flight(folder_of_run(arguments.run));
  const comm::FlightVerdict verdict = comm::judge(files);
  if (arguments.json) {
    print(base::json_line(comm::to_json(files, verdict)) + "\n");
    return;
  }
  print(fmt::format("{}\n\n{}", verdict.text, comm::flight_table(files, arguments.calls)));
}

}  // namespace

std::string flight_line(const std::string& run) {
  try {
    const comm::FlightVerdict verdict = comm::judge(comm::read_flight(run + "/flight"));
    if (verdict.kind == comm::FlightVerdict::Kind::kNothing) return "";
    return fmt::format("segue: flight records say: {} (more: segue flight {})\n", verdict.text,
                       run);
  } catch (const Error&) {
    return "";
  }
}

void add_flight(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "flight",
      "Tell from the records of a run's ranks which of them is behind, and in which call.");
  const auto arguments = std::make_shared<FlightArguments>();
  command->add_option("run", arguments->run, "folder of a run, or of flight records")->required();
  command->add_option("--calls", arguments->calls, "how many calls of each group to show")
      ->check(CLI::Range(size_t{1}, comm::FlightRing::kCalls))
      ->capture_default_str();
  command->add_flag("--json", arguments->json, "verdict and records as one JSON object");
  command->callback([arguments] { flight(*arguments); });
}

}  // namespace segue::cli
