#pragma once

#include <string_view>

namespace segue::report::page {

// The fixed parts of the page: the files of src/report/page, which the build makes a source of.
// They use nothing from outside the page: no fonts, no libraries.

/// Runs take --c0.., stages --s0..: two orders of colours that stay apart for all common kinds of
/// colour blindness (after Okabe and Ito), darker on paper, lighter on black.
extern const std::string_view kStyle;
/// Scales, axes, tooltips, zoom. Texts reach the page through textContent and attributes only,
/// never as markup.
extern const std::string_view kCharts;
/// Which charts there are, of what.
extern const std::string_view kScript;
/// A trace on a canvas.
extern const std::string_view kTimeline;

}  // namespace segue::report::page
