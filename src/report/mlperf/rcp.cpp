#include "report/mlperf/rcp.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "report/mlperf/mllog_reader.h"

namespace segue::report {
namespace {

/// Largest batch size: a double still names each below it, and differences do not overflow.
constexpr int64_t kLargestExact = int64_t{1} << 53;

/// Every record must leave something when its extremes are dropped.
constexpr size_t kFewestPoints = 3;

/// Evaluation blocks (of 2,293,760 samples at all three batch sizes) after which the 20 runs of the
/// reference reached AUC 0.75, as MLPerf published them for 6.1.0.
constexpr double kBlockSamples = 2'293'760;
struct PublishedRuns {
  int64_t batch;
  std::vector<int> blocks;
};
std::vector<PublishedRuns> published_dlrmv4() {
  return {
      {8192, {29, 30, 29, 29, 31, 35, 27, 30, 30, 32, 29, 32, 29, 29, 31, 32, 29, 31, 30, 30}},
      {16384, {37, 37, 38, 40, 36, 36, 36, 40, 36, 36, 36, 34, 41, 42, 38, 39, 44, 43, 40, 36}},
      {32768, {47, 46, 49, 46, 48, 47, 49, 54, 50, 48, 50, 56, 49, 49, 53, 43, 48, 56, 49, 48}},
  };
}

void sort_records(RcpReference& reference) {
  std::ranges::sort(reference.records, {}, &RcpRecord::batch);
}

struct RunReader {
  std::string file;
  std::string benchmark;
  std::optional<int64_t> batch;
  std::optional<double> last_eval, converged_at;

  /// Error(kCorrupt) at the line.
  [[noreturn]] void refuse(const MllogLine& line, const std::string& why) const {
    fail(ErrorCode::kCorrupt, fmt::format("{}, line {}: {}", file, line.place.line, why));
  }

  void read(const MllogLine& line) {
    const auto has = [&](std::string_view word) {
      return line.json.find(word) != std::string::npos;
    };
    if (std::ranges::none_of(kMllogWords, has)) return;
    MllogFile parsed;
    parse_mllog_line(line, parsed);
    if (parsed.events.empty()) refuse(line, parsed.problems[0].text);
    const MllogEvent& event = parsed.events[0];
    if (has("global_batch_size")) {
      const std::optional<double> value = as_number(event.value);
      if (!value || !(std::abs(*value) <= static_cast<double>(kLargestExact))) {
        refuse(line, "the batch size is no number of samples");
      }
      batch = static_cast<int64_t>(*value);
    }
    if (has("submission_benchmark")) {
      const std::string* name = std::get_if<std::string>(&event.value);
      if (!name) refuse(line, "the benchmark is no text");
      benchmark = *name;
    }
    if (has("eval_accuracy") || has("eval_error")) last_eval = eval_point(line, event);
    if (event.key == "run_stop") stop(line, event);
  }

  double eval_point(const MllogLine& line, const MllogEvent& event) const {
    const bool epochs = benchmark == "dlrm_dcnv2";
    const char* name = epochs ? "epoch_num" : "samples_count";
    const MllogValue* entry = event.find(name);
    const std::optional<double> value = entry ? as_number(*entry) : std::nullopt;
    if (!value) refuse(line, fmt::format("an evaluation without the number `{}`", name));
    return epochs ? std::nearbyint(*value * 1000) / 1000 : *value;
  }

  void stop(const MllogLine& line, const MllogEvent& event) {
    const MllogValue* status = event.find("status");
    if (!status) refuse(line, "`run_stop` has no `status`");
    const bool success = *status == MllogValue(std::string("success"));
    if (success && !last_eval) refuse(line, "`run_stop` says success, but nothing was evaluated");
    converged_at = success ? last_eval : std::nullopt;
  }
};

RunReader read_run(const std::string& log, const std::string& path) {
  RunReader run;
  run.file = path;
  for (const MllogLine& line : split_mllog(log)) run.read(line);
  for (const auto& [found, what] : {std::pair(run.batch.has_value(), "global_batch_size"),
                                    std::pair(!run.benchmark.empty(), "submission_benchmark")}) {
    if (!found) fail(ErrorCode::kCorrupt, fmt::format("{}: the log has no `{}`", path, what));
  }
  return run;
}

const RcpRecord* exact_record(const RcpReference& reference, int64_t batch) {
  const auto found = std::ranges::find(reference.records, batch, &RcpRecord::batch);
  return found == reference.records.end() ? nullptr : &*found;
}

void compare(const RcpRecord& record, RcpVerdict& verdict) {
  verdict.record = record;
  verdict.passed = verdict.mean >= record.smallest;
  if (verdict.passed) verdict.scaling_factor = std::max(1.0, record.mean / verdict.mean);
}

}  // namespace

RcpRecord make_rcp_record(std::string name, int64_t batch, const std::vector<double>& points) {
  RcpRecord record = {std::move(name), batch, olympic_mean(points), population_stdev(points), 0};
  record.smallest = smallest_acceptable_mean(
      record.mean, record.stdev, static_cast<int64_t>(points.size()) - 2, kRcpSubmissionRuns - 2);
  return record;
}

RcpRecord interpolated(int64_t batch, const RcpRecord& low, const RcpRecord& high) {
  const double share =
      static_cast<double>(batch - low.batch) / static_cast<double>(high.batch - low.batch);
  RcpRecord record = {fmt::format("between {} and {}", low.name, high.name), batch,
                      std::lerp(low.mean, high.mean, share),
                      std::lerp(low.stdev, high.stdev, share), 0};
  // MLPerf counts twice the runs of a submission for the line, without dropping extremes.
  record.smallest = smallest_acceptable_mean(record.mean, record.stdev, 2 * kRcpSubmissionRuns,
                                             kRcpSubmissionRuns - 2);
  return record;
}

RcpReference builtin_rcp(const std::string& benchmark) {
  if (benchmark != "dlrmv4") {
    fail(ErrorCode::kUnsupported,
         fmt::format("there are no reference convergence points for `{}` here; give MLPerf's file "
                     "of them with --reference",
                     benchmark));
  }
  RcpReference reference = {benchmark, {}};
  for (const PublishedRuns& runs : published_dlrmv4()) {
    std::vector<double> points;
    for (const int blocks : runs.blocks) points.push_back(blocks * kBlockSamples);
    reference.records.push_back(
        make_rcp_record(fmt::format("dlrmv4_ref_{}", runs.batch), runs.batch, points));
  }
  return reference;
}

RcpReference read_rcp(const std::string& path) { return parse_rcp(base::read_file(path), path); }

RcpReference parse_rcp(const std::string& text, const std::string& path) {
  try {
    const auto json = nlohmann::json::parse(text);
    RcpReference reference;
    for (const auto& [name, record] : json.items()) {
      const auto benchmark = record.at("Benchmark").get<std::string>();
      if (reference.benchmark.empty()) reference.benchmark = benchmark;
      if (benchmark != reference.benchmark) {
        fail(ErrorCode::kCorrupt, fmt::format("{}: records of both `{}` and `{}`", path,
                                              reference.benchmark, benchmark));
      }
      const char* unit =
          record.contains("samples to converge") ? "samples to converge" : "Epochs to converge";
      const auto points = record.at(unit).get<std::vector<double>>();
      if (points.size() < kFewestPoints) {
        fail(ErrorCode::kCorrupt,
             fmt::format("{}: `{}` has {} convergence points, needs at least {}", path, name,
                         points.size(), kFewestPoints));
      }
      const nlohmann::json& batch = record.at("BS");
      // As a double: a comparison of 64 bits would take one of 2^63 and more for a negative number.
      if (!batch.is_number_integer() ||
          std::abs(batch.get<double>()) > static_cast<double>(kLargestExact)) {
        fail(ErrorCode::kCorrupt,
             fmt::format("{}: `BS` of `{}` is no number of samples", path, name));
      }
      reference.records.push_back(make_rcp_record(name, batch.get<int64_t>(), points));
    }
    if (reference.records.empty()) fail(ErrorCode::kCorrupt, path + ": no records");
    sort_records(reference);
    return reference;
  } catch (const nlohmann::json::exception& error) {
    fail(ErrorCode::kCorrupt,
         fmt::format("{}: not a file of reference convergence points: {}", path, error.what()));
  }
}

RcpReference pruned(RcpReference reference) {
  std::vector<RcpRecord>& records = reference.records;
  const int64_t fastest = std::ranges::min_element(records, {}, &RcpRecord::mean)->batch;
  std::erase_if(records, [&](const RcpRecord& r) { return r.batch < fastest; });
  // One pass from small to large, as MLPerf does; it is not the convex hull.
  for (size_t i = 1; i + 1 < records.size();) {
    const RcpRecord line = interpolated(records[i].batch, records[i - 1], records[i + 1]);
    if (records[i].mean > line.mean) {
      records.erase(records.begin() + static_cast<std::ptrdiff_t>(i));
    } else {
      ++i;
    }
  }
  return reference;
}

RcpSubmission read_submission(const std::string& folder) {
  std::error_code error;
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("result_") && name.ends_with(".txt"))
      files.push_back(entry.path().string());
  }
  if (files.empty()) {
    fail(ErrorCode::kNotFound, fmt::format("{}: no files result_*.txt in this folder", folder));
  }
  std::ranges::sort(files);
  RcpSubmission submission;
  for (const std::string& file : files) add_run(submission, base::read_file(file), file);
  return submission;
}

void add_run(RcpSubmission& submission, const std::string& log, const std::string& file) {
  const RunReader run = read_run(log, file);
  if (submission.runs.empty()) {
    submission.benchmark = run.benchmark;
    submission.batch = *run.batch;
  }
  if (run.benchmark != submission.benchmark || *run.batch != submission.batch) {
    fail(ErrorCode::kCorrupt,
         fmt::format("{}: {} with batch size {}, but {} is {} with batch size {}; the runs of a "
                     "submission must agree",
                     file, run.benchmark, *run.batch, submission.runs[0].file, submission.benchmark,
                     submission.batch));
  }
  submission.runs.push_back({file, run.converged_at});
}

RcpVerdict judge_convergence(const RcpSubmission& submission, const RcpReference& reference) {
  RcpVerdict verdict;
  std::vector<double> points;
  int64_t failed = 0;
  for (const RcpSubmission::Run& run : submission.runs) {
    points.push_back(run.converged_at.value_or(std::numeric_limits<double>::infinity()));
    failed += run.converged_at ? 0 : 1;
  }
  if (failed > 1) {
    verdict.reason = fmt::format("{} runs did not converge; one may", failed);
    return verdict;
  }
  if (points.size() < kFewestPoints) {
    verdict.reason =
        fmt::format("{} runs; without the fastest and the slowest nothing is left", points.size());
    return verdict;
  }
  verdict.mean = olympic_mean(points);
  const auto above =
      std::ranges::upper_bound(reference.records, submission.batch, {}, &RcpRecord::batch);
  if (const RcpRecord* record = exact_record(reference, submission.batch)) {
    compare(*record, verdict);
    verdict.reason = "compared with the reference at this batch size";
  } else if (above == reference.records.end()) {
    verdict.reason = fmt::format(
        "the reference has no batch size of {} or above: submit reference "
        "convergence points for it",
        submission.batch);
  } else if (above == reference.records.begin()) {
    compare(*above, verdict);
    verdict.reason = fmt::format(
        "compared with the smallest batch size of the reference, {}{}", above->batch,
        verdict.passed ? "" : ": submit reference convergence points for this batch size");
  } else {
    compare(interpolated(submission.batch, *(above - 1), *above), verdict);
    verdict.reason = fmt::format("compared with the line between batch sizes {} and {}",
                                 (above - 1)->batch, above->batch);
  }
  return verdict;
}

void write_scaling(const std::string& folder, const RcpVerdict& verdict) {
  const std::string path = folder + "/scaling.json";
  if (verdict.passed && verdict.scaling_factor > 1) {
    base::write_file(path, nlohmann::json{{"scaling_factor", verdict.scaling_factor}}.dump());
    return;
  }
  std::error_code error;
  std::filesystem::remove(path, error);
  if (error) fail(ErrorCode::kIo, fmt::format("{}: cannot remove: {}", path, error.message()));
}

}  // namespace segue::report
