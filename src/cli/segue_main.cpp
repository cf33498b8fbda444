// The segue program.

#include <csignal>

#include "cli/app.h"
#include "cli/bus_error.h"

int main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);  // `segue ... | head` ends quietly, by a failed write
  std::signal(SIGXFSZ, SIG_IGN);  // a file beyond `ulimit -f` is a failed write, not a sudden end
  segue::cli::explain_bus_errors();
  return segue::cli::run_segue(argc, argv);
}
