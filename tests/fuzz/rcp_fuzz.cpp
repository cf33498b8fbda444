// Reference convergence points, and logs of a submission that is compared with them.
// Input: the reference as JSON up to a zero byte, then logs, each up to a zero byte.

#include <cmath>

#include "fuzz.h"
#include "report/mlperf/rcp.h"

namespace {

using namespace segue;

report::RcpSubmission submission_of(fuzz::Input input) {
  report::RcpSubmission submission;
  for (int run = 0; !input.empty(); ++run) {
    add_run(submission, std::string(input.before('\0')), "result_" + std::to_string(run) + ".txt");
  }
  return submission;
}

void judge(const report::RcpSubmission& submission, const report::RcpReference& reference) {
  const report::RcpVerdict verdict = judge_convergence(submission, reference);
  fuzz::require(!verdict.reason.empty(), "a verdict has a reason");
  fuzz::require(!verdict.passed || verdict.scaling_factor >= 1, "a score is never raised");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Input input(data, size);
  const std::string text(input.before('\0'));
  const auto reference = fuzz::accepted([&] { return report::parse_rcp(text, "rcp.json"); });
  const auto submission = fuzz::accepted([&] { return submission_of(input); });
  if (reference) {
    fuzz::require(!reference->records.empty(), "a reference has records");
    fuzz::require(!pruned(*reference).records.empty(), "something is left of them");
  }
  if (!submission || submission->runs.empty()) return 0;
  static const report::RcpReference kBuiltin = report::builtin_rcp("dlrmv4");
  judge(*submission, kBuiltin);
  if (!reference) return 0;
  judge(*submission, *reference);
  judge(*submission, pruned(*reference));
  return 0;
}
