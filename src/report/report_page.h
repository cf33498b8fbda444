#pragma once

#include <string_view>

namespace segue::report::page {

// The fixed parts of the page. They use nothing from outside the file: no fonts, no libraries.
extern const std::string_view kStyle;   // report_page_style.cpp
extern const std::string_view kCharts;  // report_page_charts.cpp: scales, axes, tooltips, zoom
extern const std::string_view kScript;  // report_page_script.cpp: which charts there are, of what

}  // namespace segue::report::page
