#include "edu/page.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "edu/micro_dlrm.h"
#include "report/page/html_report.h"

namespace segue::edu {
namespace {

using report::escape_html;

constexpr double kWide = 620, kHigh = 280, kLeft = 64, kRight = 16, kTop = 14, kBottomEdge = 44;

/// Values of one axis to places on it.
class Axis {
 public:
  Axis(bool log, double from, double to) : log_(log), from_(from), to_(to) {}
  void include(double v) {
    if (log_ && v <= 0) return;
    low_ = std::min(low_, v);
    high_ = std::max(high_, v);
  }
  void include_zero() {
    if (!log_) include(0);
  }
  double place(double v) const {
    const double a = scale(low_), b = scale(high_);
    return b > a ? from_ + (scale(v) - a) / (b - a) * (to_ - from_) : (from_ + to_) / 2;
  }
  std::vector<double> ticks() const {
    std::vector<double> out;
    if (log_) {
      const double decades = std::log10(high_ / low_);
      const double factor = decades > 4 ? 100 : decades > 1.5 ? 10 : 2;
      double t = std::pow(factor, std::ceil(std::log(low_) / std::log(factor) - 1e-9));
      for (; t <= high_ * 1.0001; t *= factor) out.push_back(t);
      return out;
    }
    const double raw = (high_ - low_) / 5,
                 power = std::pow(10, std::floor(std::log10(raw > 0 ? raw : 1)));
    const double step = power * (raw / power <= 1   ? 1
                                 : raw / power <= 2 ? 2
                                 : raw / power <= 5 ? 5
                                                    : 10);
    for (double t = std::ceil(low_ / step) * step; t <= high_ + step * 1e-6; t += step)
      out.push_back(t);
    return out;
  }

 private:
  double scale(double v) const { return log_ ? std::log10(std::max(v, low_)) : v; }
  bool log_;
  double from_, to_;
  double low_ = std::numeric_limits<double>::max(), high_ = std::numeric_limits<double>::lowest();
};

std::string legend(const Chart& chart) {
  std::string out = "<p class=\"note\">";
  for (size_t i = 0; i < chart.series.size(); ++i) {
    out += fmt::format("<span style=\"color:var(--c{})\">&#9632;</span> {} &nbsp; ", i % 8,
                       escape_html(chart.series[i].name));
  }
  return out + "</p>";
}

std::string svg_start(const std::string& title) {
  return fmt::format(
      "<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\" "
      "style=\"width:100%;max-width:{}px\" font-size=\"12\" fill=\"var(--soft)\">",
      kWide, kHigh, escape_html(title), kWide);
}

std::string line_chart(const Chart& chart) {
  Axis x(chart.scale != Scale::kLinear, kLeft, kWide - kRight),
      y(chart.scale == Scale::kLogBoth, kHigh - kBottomEdge, kTop);
  for (const Series& s : chart.series) {
    for (const double v : s.x) x.include(v);
    for (const double v : s.y) y.include(v);
  }
  y.include_zero();
  std::string out = svg_start(chart.title);
  for (const double t : y.ticks()) {
    out += fmt::format(
        "<line x1=\"{0}\" x2=\"{1}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\" stroke=\"var(--grid)\"/>"
        "<text x=\"{3}\" y=\"{4:.1f}\" text-anchor=\"end\">{5:.4g}</text>",
        kLeft, kWide - kRight, y.place(t), kLeft - 6, y.place(t) + 4, t);
  }
  for (const double t : x.ticks()) {
    out += fmt::format("<text x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">{:.4g}</text>",
                       x.place(t), kHigh - kBottomEdge + 16, t);
  }
  out += fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>", kWide - kRight,
                     kHigh - 8, escape_html(chart.x_label));
  for (size_t i = 0; i < chart.series.size(); ++i) {
    const Series& s = chart.series[i];
    std::string points, dots;
    for (size_t k = 0; k < s.x.size(); ++k) {
      points += fmt::format("{:.1f},{:.1f} ", x.place(s.x[k]), y.place(s.y[k]));
      dots += fmt::format(
          "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\" fill=\"var(--c{})\"><title>{:.5g}: "
          "{:.5g}</title></circle>",
          x.place(s.x[k]), y.place(s.y[k]), i % 8, s.x[k], s.y[k]);
    }
    out += fmt::format(
        "<polyline points=\"{}\" fill=\"none\" stroke=\"var(--c{})\" stroke-width=\"2\"/>{}",
        points, i % 8, dots);
  }
  return out + "</svg>";
}

/// The stages of a step, as bars that make up the whole.
std::string stage_bars(const Chart& chart) {
  std::string out = svg_start(chart.title);
  for (size_t i = 0; i < chart.series.size(); ++i) {
    double sum = 0, at = 0;
    for (const double v : chart.series[i].y) sum += v;
    const double top = 24 + 90 * static_cast<double>(i);
    out += fmt::format("<text x=\"0\" y=\"{}\">{}: {:.3g} ms</text>", top,
                       escape_html(chart.series[i].name), sum);
    for (size_t s = 0; s < kSpanCount; ++s) {
      const double width = (kWide - kRight) * chart.series[i].y[s] / sum;
      out += fmt::format(
          "<rect x=\"{:.1f}\" y=\"{}\" width=\"{:.1f}\" height=\"36\" "
          "fill=\"var(--s{})\"><title>{}: {:.4g} ms</title></rect>",
          at, top + 8, width, s, kSpanNames[s], chart.series[i].y[s]);
      at += width;
    }
  }
  double at = 0;
  for (size_t s = 0; s < kSpanCount; ++s) {
    out += fmt::format(
        "<text x=\"{:.0f}\" y=\"{}\"><tspan fill=\"var(--s{})\">&#9632;</tspan> {}</text>", at,
        kHigh - 40 + 20 * static_cast<double>(s / 5), s, kSpanNames[s]);
    at = s == 4 ? 0 : at + 110;
  }
  return out + "</svg>";
}

std::string table(const Experiment& e) {
  std::string out = "<div class=\"scroll\" tabindex=\"0\"><table><thead><tr>";
  if (!e.names.empty()) out += "<th></th>";
  for (const std::string& c : e.columns)
    out += fmt::format("<th scope=\"col\">{}</th>", escape_html(c));
  out += "</tr></thead><tbody>\n";
  for (size_t r = 0; r < e.rows.size(); ++r) {
    out += "<tr>";
    if (!e.names.empty()) out += fmt::format("<th scope=\"row\">{}</th>", escape_html(e.names[r]));
    for (const double v : e.rows[r]) out += fmt::format("<td>{:.4g}</td>", v);
    out += "</tr>\n";
  }
  return out + "</tbody></table></div>\n";
}

}  // namespace

std::string lesson_page(const std::string& title, const std::string& made,
                        const std::vector<PageSection>& sections,
                        const std::vector<Experiment>& experiments) {
  std::string out = report::page_head(title, made) +
                    "<style>.lesson{padding:14px 16px;margin-bottom:10px}"
                    ".lesson p{margin:6px 0}</style>\n<main>\n";
  for (const PageSection& s : sections) {
    out += fmt::format("<h2>{}</h2>\n<div class=\"card lesson\">", escape_html(s.title));
    for (const std::string& p : s.paragraphs) out += fmt::format("<p>{}</p>", escape_html(p));
    out += "</div>\n";
  }
  for (const Experiment& e : experiments) {
    out += fmt::format("<h2>{} {}</h2>\n<div class=\"card lesson\"><p><b>Prediction.</b> {}.</p>\n",
                       e.id, escape_html(e.title), escape_html(e.prediction));
    for (const Chart& c : e.charts) {
      const bool stages = c.x_label == "stage";
      out += fmt::format("<h3>{}{}</h3>{}{}\n", escape_html(c.title),
                         stages ? "" : escape_html(", " + c.y_label),
                         stages ? stage_bars(c) : line_chart(c), stages ? "" : legend(c));
    }
    out += table(e);
    const char* tone = e.verdict == Verdict::kPass   ? "good"
                       : e.verdict == Verdict::kNote ? "soft"
                                                     : "bad";
    out +=
        fmt::format("<p><b>Measured.</b> {}.</p><p class=\"status {}\">{}: {}</p></div>\n",
                    escape_html(e.finding), tone, to_string(e.verdict), escape_html(e.criterion));
  }
  return out + "</main></body></html>\n";
}

}  // namespace segue::edu
