#pragma once

#include <CLI/CLI.hpp>

namespace segue::cli {

// Subcommands of `segue bench` with options of their own.
void add_bench_suite(CLI::App& bench);
void add_bench_map(CLI::App& bench);

}  // namespace segue::cli
