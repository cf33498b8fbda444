#pragma once

#include <string>

namespace segue::bench {

// What rows of a folder give beside tables; see row_tables.h. Error(kCorrupt) with file and line
// for what is no row, Error(kNotFound) for a file that is needed and not there.

/// Heat maps of the rows of `segue bench map`, as SVG and as comma-separated values.
std::string map_picture(const std::string& rows_file);
std::string map_csv(const std::string& rows_file);

/// A page that needs nothing but itself: the rows of `segue bench suite`
/// (FOLDER/experiments.jsonl), ours beside figures that others have published (published.jsonl) and
/// the map (map.jsonl), as far as they are there. A line of published.jsonl is a topic, a figure
/// that somebody has published, or one of ours that stands beside it:
///   {"topic": T, "unit": U, "text": what is compared, "differs": what is not the same}
///   {"topic": T, "system": S, "hardware": H, "value": V, "source": where, "date": D, "note": N}
///   {"topic": T, "rows": NAME, "where": {key: value, ...}, "figure": F, "scale": X, "note": N}
std::string comparison_page(const std::string& folder, const std::string& made);

}  // namespace segue::bench
