#pragma once

#include <string>

#include "report/trace_reader.h"

namespace segue::report {

/// One HTML page that shows a trace: tracks of spans to zoom and pan, details and arrows of what is
/// clicked, curves of counters. It needs nothing but itself, like the page of runs.
std::string trace_page(const TraceContents& trace, const std::string& title,
                       const std::string& made);

}  // namespace segue::report
