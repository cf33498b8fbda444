#pragma once

namespace segue::cli {

/// A mapped file that becomes shorter, or whose disk fails, ends the process by SIGBUS at the next
/// read. From here on the file is named first, and the exit code is that of a file. Any other
/// SIGBUS ends the process as before.
void explain_bus_errors();

}  // namespace segue::cli
