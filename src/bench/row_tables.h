#pragma once

#include <string>
#include <vector>

namespace segue::bench {

/// Markdown whose tables are made of measured rows. Between the lines `<!-- rows: NAME -->` and
/// `<!-- end -->` stands the table of FOLDER/NAME.jsonl, lines as `segue bench --json` or `segue
/// plan --simulate --json` writes them: a line for each row (forward and backward share one), a
/// column for each value that is not the same in all of them (why something was not run is one);
/// those that are, ceilings, commands, machine, version and day stand below. `<!-- rows: NAME;
/// without A, B -->` leaves columns out.
struct FilledTables {
  std::string text;                  // of the file, with every table made anew
  std::vector<std::string> changed;  // tables that were something else before
};

/// Error(kCorrupt) with file and line for a row or a marker that is none; Error(kNotFound) for a
/// table that has no rows.
FilledTables fill_tables(const std::string& markdown, const std::string& folder);

}  // namespace segue::bench
