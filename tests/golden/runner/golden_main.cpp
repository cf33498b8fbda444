// segue-golden: runs golden vectors through Segue's own code and compares.

#include <cstdio>
#include <exception>
#include <iostream>
#include <string>

#include <CLI/CLI.hpp>

#include "runner/runner.h"

namespace {

int run(int argc, char** argv) {
  segue::golden::Options options;
  std::string device = "cpu";
  std::string precision = "f32";

  CLI::App app(
      "Runs every case of every golden-vector file (*.safetensors) in a folder and compares\n"
      "Segue's results with the stored ones. Model cases run with the exact rewritings\n"
      "(identities) off, on, and on with small micro-batches; each counts as a case.\n"
      "The last line is `N cases, M failed`. Exit code: 0 all passed, 1 some failed,\n"
      "2 wrong usage, broken files or nothing to run.");
  app.add_option("folder", options.folder, "folder with golden vectors")->required();
  app.add_option("--device", device, "cpu, cuda or cuda:N")->capture_default_str();
  app.add_option(
         "--precision", precision,
         "f32, f64 or bf16 (on the CPU only asked to be finite, on a GPU judged by the CPU's "
         "error)")
      ->capture_default_str();
  app.add_option("--only", options.only,
                 "regular expression, searched in `FILE/CASE OP [VARIANT]`");
  app.add_option("--threads", options.threads,
                 "CPU threads; 0: all cores (results do not depend on it)")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_flag("--json", options.json, "one JSON document instead of text");
  app.add_flag("--verbose", options.verbose, "every tensor, and what was not compared");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  options.device = segue::parse_device(device);
  options.precision = segue::golden::parse_precision(precision);
  return segue::golden::run_program(options, std::cout, std::cerr);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 2;
  }
}
