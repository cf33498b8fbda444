// What `segue trace` reads, sums up and draws.
// Input: a trace file.

#include "fuzz.h"
#include "report/page/trace_page.h"
#include "report/trace_reader.h"

using namespace segue;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  const auto trace = fuzz::accepted([&] { return report::parse_trace(text, "trace.json"); });
  if (!trace) return 0;
  for (const report::TraceContents::Track& track : trace->tracks) {
    for (size_t i = 0; i < track.spans.size(); ++i) {
      fuzz::require(track.spans[i].parent < static_cast<int>(i), "outer spans come first");
      fuzz::require(i == 0 || track.spans[i - 1].start_ns <= track.spans[i].start_ns,
                    "spans are ordered");
    }
  }
  const report::TraceSummary sum = report::summarize(*trace);
  fuzz::require(sum.busy <= sum.window * (1 + 1e-9) + 1e-9, "no device is busier than time passes");
  const std::string page = report::trace_page(*trace, "fuzz", "now");
  fuzz::require(page.find("<script>alert") == std::string::npos, "names are no markup");
  return 0;
}
