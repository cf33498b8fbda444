#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace segue::report {

// Reference convergence points: MLPerf compares how soon a submission reached the target with how
// soon the reference did at that batch size; converging faster than chance allows is not accepted.

/// x with P(T <= x) = p for Student's t with `freedom` degrees, 0 < p < 1.
double student_t_quantile(double p, double freedom);

double olympic_mean(std::vector<double> values);  // without the smallest and the largest
double population_stdev(const std::vector<double>& values);

/// The smallest mean of `submission_runs` that a one-sided t-test at 5 % does not tell from the
/// reference. Run counts are those left after dropping the smallest and the largest.
double smallest_acceptable_mean(double mean, double stdev, int64_t reference_runs,
                                int64_t submission_runs);

struct RcpRecord {
  std::string name;
  int64_t batch = 0;
  double mean = 0, stdev = 0;
  double smallest = 0;  // acceptable mean of a submission
};

struct RcpReference {
  std::string benchmark;
  std::vector<RcpRecord> records;  // by batch size, ascending
};

RcpRecord make_rcp_record(std::string name, int64_t batch, const std::vector<double>& points);
/// By straight lines between the records around it.
RcpRecord interpolated(int64_t batch, const RcpRecord& low, const RcpRecord& high);

/// MLPerf 6.1.0's points for dlrmv4; Error(kUnsupported) for another benchmark.
RcpReference builtin_rcp(const std::string& benchmark);
/// In MLPerf's JSON layout. Error(kCorrupt) says what is missing.
RcpReference read_rcp(const std::string& path);
RcpReference parse_rcp(const std::string& text, const std::string& path);
/// Drops records of smaller batches than the fastest, and inner ones slower than the line between
/// their neighbours.
RcpReference pruned(RcpReference reference);

struct RcpSubmission {
  std::string benchmark;
  int64_t batch = 0;
  struct Run {
    std::string file;
    std::optional<double> converged_at;  // samples (epochs for dlrm_dcnv2); nullopt: did not
  };
  std::vector<Run> runs;  // by file name
};
/// The result_*.txt of a folder, read as MLPerf's tool does: by words in lines. Error(kNotFound) if
/// there are none, Error(kCorrupt) if one cannot be understood or they disagree.
RcpSubmission read_submission(const std::string& folder);
/// Adds a run by the text of its log.
void add_run(RcpSubmission& submission, const std::string& log, const std::string& file);

struct RcpVerdict {
  bool passed = false;
  std::string reason;
  std::optional<RcpRecord> record;  // that it was compared with
  double mean = 0;                  // of the submission
  double scaling_factor = 1;        // the score is multiplied by it
};
inline constexpr int64_t kRcpSubmissionRuns = 10;  // dlrmv4 and dlrm_dcnv2
RcpVerdict judge_convergence(const RcpSubmission& submission, const RcpReference& reference);

/// Writes or removes `folder`/scaling.json, by which the result summariser corrects the score.
void write_scaling(const std::string& folder, const RcpVerdict& verdict);

}  // namespace segue::report
