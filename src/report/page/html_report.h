#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "report/run_reader.h"

namespace segue::report {

/// One HTML page about one run or several side by side: headline figures, charts, settings. It
/// needs nothing but itself: no network (a content policy forbids it), no other file. `made` says
/// when and by what it was made.
std::string html_report(const std::vector<Run>& runs, const std::string& title,
                        const std::string& made);

/// How a page begins, up to the heading in its body.
std::string page_head(const std::string& title, const std::string& made);

/// Safe as text and inside a quoted attribute.
std::string escape_html(std::string_view text);

}  // namespace segue::report
