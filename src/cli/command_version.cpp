#include <string>
#include <string_view>

#include <fmt/format.h>

#include "base/parallel.h"
#include "base/version_generated.h"
#include "cli/commands.h"
#include "cli/output.h"
#include "ops/gemm.h"

namespace segue::cli {

std::string version_line() { return fmt::format("segue {} ({})", SEGUE_VERSION, SEGUE_GIT_COMMIT); }

void add_version(CLI::App& app) {
  CLI::App* command = app.add_subcommand("version", "Print version and what it was built with.");
  command->callback([] {
    const std::string_view gemm = ops::gemm_backend();
#if defined(__clang__)
    const char* compiler = "clang++ " __clang_version__;
#else
    const char* compiler = "g++ " __VERSION__;
#endif
    print(
        fmt::format("{}\ncompiler  {}\nCUDA      {}\noneDNN    {}\nParquet   {}\ngemm      {}\n"
                    "threads   {}\n",
                    version_line(), compiler, SEGUE_HAS_CUDA ? "yes" : "no",
                    gemm.starts_with("oneDNN") ? "yes" : "no", SEGUE_HAS_ARROW ? "yes" : "no", gemm,
                    base::num_threads()));
  });
}

}  // namespace segue::cli
