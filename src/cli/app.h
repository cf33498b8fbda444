#pragma once

#include "base/error.h"

namespace segue::cli {

/// The whole program: parses, runs one command, reports what went wrong as `segue: error: ...` on
/// stderr. Nothing is thrown. Returns the exit code.
int run_segue(int argc, const char* const* argv);

/// What a shell script can tell troubles apart by.
enum ExitCode {
  kExitOk = 0,
  kExitOther = 1,
  kExitUsage = 2,       // command line or config
  kExitFile = 3,        // not found, or the system refused
  kExitCorrupt = 4,     // a file that is not what it says it is
  kExitOutOfRange = 5,  // an id beyond its table
  kExitOutOfMemory = 6,
  kExitUnsupported = 7,  // this build or machine cannot do it
  kExitNumeric = 8,      // loss or gradients not finite
  kExitPeer = 9,         // another rank is gone or does not answer
};
int exit_code(ErrorCode code);

/// Thrown by a command that has said everything: the program ends with this code.
struct ExitWith {
  int code = 0;
};

}  // namespace segue::cli
