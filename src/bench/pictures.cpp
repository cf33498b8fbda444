#include "bench/pictures.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "report/page/html_report.h"

namespace segue::bench {
namespace {

using report::escape_html;

constexpr const char* kPaper = "#ffffff";
constexpr const char* kInk = "#1a1c1f";
constexpr const char* kSoft = "#5a5f67";
constexpr const char* kNothing = "#e4e5e7";  // of a cell that was not measured

struct Colour {
  double r = 0, g = 0, b = 0;
};

/// Pale to dark: one hue, so that it is read alike by everybody and on paper.
Colour colour_of(double share) {
  constexpr Colour kStops[] = {{240, 244, 250}, {158, 202, 225}, {49, 130, 189}, {8, 48, 107}};
  const double place = std::clamp(share, 0.0, 1.0) * (std::size(kStops) - 1);
  const auto below = std::min(static_cast<size_t>(place), std::size(kStops) - 2);
  const double rest = place - static_cast<double>(below);
  const Colour &a = kStops[below], &b = kStops[below + 1];
  return {std::lerp(a.r, b.r, rest), std::lerp(a.g, b.g, rest), std::lerp(a.b, b.b, rest)};
}

std::string text_of(const Colour& c) {
  return fmt::format("rgb({:.0f},{:.0f},{:.0f})", c.r, c.g, c.b);
}

std::string text(double x, double y, const std::string& words, const char* anchor = "start",
                 const char* fill = kInk, const char* more = "") {
  return fmt::format(
      "<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\" style=\"fill:{}{}\">{}</text>\n", x, y,
      anchor, fill, more, escape_html(words));
}

std::string rectangle(double x, double y, double width, double height, const std::string& fill,
                      const std::string& hint = "") {
  const std::string title = hint.empty() ? "" : fmt::format("<title>{}</title>", escape_html(hint));
  return fmt::format(
      "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" "
      "style=\"fill:{}\">{}</rect>\n",
      x, y, width, height, fill, title);
}

std::string picture(double width, double height, const std::string& body) {
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.0f} {1:.0f}\" width=\"{0:.0f}\" "
      "height=\"{1:.0f}\" style=\"font:12px system-ui,sans-serif\" role=\"img\">\n{2}{3}</svg>\n",
      width, height, rectangle(0, 0, width, height, kPaper), body);
}

constexpr double kCellWidth = 44, kCellHeight = 22, kMargin = 16, kLabels = 52, kHead = 44;

std::string one_map(const HeatMap& map, double left, double top, double most) {
  std::string out =
      text(left + kLabels, top + 14, map.title, "start", kInk, ";font-weight:600;font-size:13px");
  for (size_t c = 0; c < map.columns.size(); ++c) {
    out += text(left + kLabels + (static_cast<double>(c) + 0.5) * kCellWidth, top + kHead - 8,
                map.columns[c], "middle", kSoft);
  }
  for (size_t r = 0; r < map.rows.size(); ++r) {
    const double y = top + kHead + static_cast<double>(r) * kCellHeight;
    out += text(left + kLabels - 6, y + 15, map.rows[r], "end", kSoft);
    for (size_t c = 0; c < map.columns.size(); ++c) {
      const HeatMap::Cell& cell = map.cells[r][c];
      const double x = left + kLabels + static_cast<double>(c) * kCellWidth;
      const double shade = cell.share.value_or(0) / most;
      out += rectangle(x, y, kCellWidth - 1, kCellHeight - 1,
                       cell.share ? text_of(colour_of(shade)) : kNothing, cell.hint);
      constexpr double kDark = 0.5;
      out += text(x + kCellWidth / 2, y + 15, cell.text, "middle", shade > kDark ? kPaper : kInk,
                  ";pointer-events:none");
    }
  }
  return out;
}

}  // namespace

std::string heat_maps(const std::vector<HeatMap>& maps, const std::string& scale, double most) {
  size_t widest = 1, tallest = 1;
  for (const HeatMap& map : maps) {
    widest = std::max(widest, map.columns.size());
    tallest = std::max(tallest, map.rows.size());
  }
  const double wide = kLabels + static_cast<double>(widest) * kCellWidth + 2 * kMargin;
  const double tall = kHead + static_cast<double>(tallest) * kCellHeight + 2 * kMargin;
  std::string out;
  for (size_t i = 0; i < maps.size(); ++i) {
    const size_t row = i / 2, column = i % 2;
    out += one_map(maps[i], kMargin + static_cast<double>(column) * wide,
                   kMargin + static_cast<double>(row) * tall, most);
  }
  const double below = kMargin + std::ceil(static_cast<double>(maps.size()) / 2) * tall;
  constexpr int kSteps = 8;
  for (int i = 0; i <= kSteps; ++i) {
    const double x = kMargin + kLabels + i * kCellWidth;
    const double share = most * i / kSteps;
    out += rectangle(x, below, kCellWidth, 12, text_of(colour_of(share / most)));
    out +=
        text(x + kCellWidth / 2, below + 28, fmt::format("{:.0f} %", 100 * share), "middle", kSoft);
  }
  out +=
      text(kMargin + kLabels + (kSteps + 1) * kCellWidth + 10, below + 11, scale, "start", kSoft);
  return picture(2 * wide + kMargin, below + 40, out);
}

std::string bars(const std::vector<Bar>& all) {
  constexpr double kRow = 26, kFront = 260, kBar = 420, kWidth = 1200;
  double most = 0;
  for (const Bar& bar : all) most = std::max(most, bar.value);
  std::string out;
  for (size_t i = 0; i < all.size(); ++i) {
    const Bar& bar = all[i];
    const double y = 8 + static_cast<double>(i) * kRow;
    const double length = most > 0 ? kBar * bar.value / most : 0;
    out += text(kFront - 10, y + 15, bar.label, "end");
    out += rectangle(kFront, y, length, kRow - 6, bar.ours ? "#0b6fb8" : "#9a9fa8");
    out += text(kFront + length + 8, y + 15, bar.text, "start", kSoft);
  }
  return picture(kWidth, 12 + static_cast<double>(all.size()) * kRow, out);
}

}  // namespace segue::bench
