#pragma once

#include <optional>
#include <string>
#include <vector>

namespace segue::bench {

// Pictures as SVG that need nothing but themselves, as a file or inside a page. Texts are escaped.

/// Numbers over two sizes; colours follow `share`, from 0 to `most`.
struct HeatMap {
  struct Cell {
    std::string text, hint;            // in the cell; what a pointer on it shows
    std::optional<double> share = {};  // none: not measured
  };
  std::string title;
  std::vector<std::string> columns, rows;
  std::vector<std::vector<Cell>> cells;  // [row][column]
};
/// Several side by side, two in a row, with one scale of colours below.
std::string heat_maps(const std::vector<HeatMap>& maps, const std::string& columns,
                      const std::string& rows, const std::string& scale, double most);

struct Bar {
  std::string label, text;  // in front of the bar; behind it
  double value = 0;
  bool ours = true;  // others have another colour
};
std::string bars(const std::vector<Bar>& all);

}  // namespace segue::bench
