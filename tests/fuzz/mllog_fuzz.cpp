// An MLPerf log: its events read, judged by a ruleset, written again.

#include <cmath>

#include "fuzz.h"
#include "report/mlperf/mllog_lint.h"
#include "report/mlperf/mllog_reader.h"
#include "report/mlperf/mllog_run.h"

namespace {

using namespace segue;

bool is_finite(const report::MllogValue& value) {
  const double* real = std::get_if<double>(&value);
  return real == nullptr || std::isfinite(*real);
}

std::string line_of(const report::MllogEvent& event) {
  const auto text = [](const report::MllogValue& value) { return report::mllog_text(value); };
  std::string metadata;
  for (const auto& [name, value] : event.metadata.value_or(report::MllogMetadata{})) {
    metadata += (metadata.empty() ? "" : ", ") + text(name) + ": " + text(value);
  }
  return std::string(report::kMllogToken) + "{\"time_ms\": " + text(event.time_ms) +
         ", \"key\": " + text(event.key) + ", \"value\": " + text(event.value) +
         ", \"metadata\": {" + metadata + "}}\n";
}

/// Values that JSON has come back as they were.
void check_round_trip(const report::MllogEvent& event) {
  if (!event.metadata || !std::isfinite(event.time_ms) || !is_finite(event.value)) return;
  for (const auto& entry : *event.metadata) {
    if (!is_finite(entry.second)) return;
  }
  const std::string line = line_of(event);
  if (line.rfind(report::kMllogToken) != 0)
    return;  // a text of it has the token: not ours to write
  report::MllogFile again;
  for (const report::MllogLine& part : report::split_mllog(line)) {
    report::parse_mllog_line(part, again);
  }
  fuzz::require(again.events.size() == 1 && again.problems.empty(), "one event is one line");
  const report::MllogEvent& other = again.events[0];
  fuzz::require(other.time_ms == event.time_ms && other.key == event.key &&
                    other.value == event.value && other.metadata == event.metadata,
                "what was written is what was read");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  report::MllogFile file;
  for (const report::MllogLine& line : report::split_mllog(text)) {
    report::parse_mllog_line(line, file);
  }
  // Which one is decided by the input, as all of them at each would take four times as long.
  const auto ruleset = size % 2 == 0 ? report::kDefaultRuleset : report::kReleasedRuleset;
  const report::LintReport judged = lint_mllog(file, {std::string(ruleset), size % 4 < 2, false});
  fuzz::require(!lint_text(judged).empty() && !lint_json(judged).empty(),
                "there is a verdict on any text");
  for (const report::MllogEvent& event : file.events) check_round_trip(event);
  fuzz::touch(report::is_whole_mllog_line(text));
  if (const auto state = fuzz::accepted([&] { return report::mllog_state_from_json(text); })) {
    fuzz::require(report::mllog_state_from_json(report::to_json(*state)) == *state,
                  "the state of a log comes back");
  }
  return 0;
}
