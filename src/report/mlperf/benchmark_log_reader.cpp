#include <algorithm>
#include <cmath>
#include <set>
#include <string_view>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "report/run_reader.h"

namespace segue::report::detail {
namespace {

using nlohmann::json;

constexpr std::string_view kToken = ":::MLLOG";

double number(const json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_number() ? found->get<double>() : kAbsent;
}

/// Reads the events that a report shows; what else a log has becomes its parameters.
class LogReader {
 public:
  LogReader(Run& run, bool points) : run_(run), points_(points) {}

  /// False: not an event.
  bool add(const json& line) {
    if (!line.is_object()) return false;
    const auto key = line.find("key");
    const auto value = line.find("value");
    if (key == line.end() || !key->is_string() || value == line.end()) return false;
    const auto found = line.find("metadata");
    const json none = json::object();
    const json& metadata = found != line.end() && found->is_object() ? *found : none;
    event(key->get_ref<const std::string&>(), *value, metadata, number(line, "time_ms") / 1000.0);
    return true;
  }

 private:
  void event(const std::string& key, const json& value, const json& metadata, double time_s) {
    if (origin_s_ != origin_s_) origin_s_ = time_s;  // until run_start says it better
    if (key == "run_start" && !started_) {           // a resumed run may say it again
      origin_s_ = time_s;
      started_ = true;
    }
    const RunPoint at = place(metadata, time_s);
    if (key == "eval_accuracy") {
      if (points_ && value.is_number()) put_eval(at, value.get<double>());
    } else if (key == "train_loss") {
      if (points_) put_train(at, value, metadata);
    } else if (key == "tracked_stats") {
      if (points_) put_stats(at, value);
    } else if (key == "run_stop") {
      const auto status = metadata.find("status");
      if (points_ && status != metadata.end() && status->is_string()) {
        run_.status = status->get<std::string>();
      }
    } else if (key == "block_start" || key == "eval_stop") {
      mark_ = at;  // the clock of the throughput runs while the system trains
    } else if (key == "block_stop") {
      if (points_) put_rate(at);
    } else if (!key.ends_with("_start") && !key.ends_with("_stop")) {
      parameter(key, value);
    }
  }

  RunPoint place(const json& metadata, double time_s) const {
    RunPoint at;
    at.wall_s = std::max(0.0, time_s - origin_s_);
    at.samples = number(metadata, "samples_count");
    if (std::isnan(at.samples)) at.samples = number(metadata, "epoch_num") * train_samples_;
    double step = number(metadata, "step_num");
    if (std::isnan(step)) step = at.samples / batch_;
    at.step = step >= 0 && step < 9e15 ? std::llround(step) : 0;
    return at;
  }

  void put_eval(const RunPoint& at, double accuracy) {
    EvalPoint p;
    p.at = at;
    p.auc = accuracy;
    if (!run_.eval.empty() && run_.eval.back().at.samples == at.samples) run_.eval.pop_back();
    run_.eval.push_back(std::move(p));
  }

  void put_train(const RunPoint& at, const json& value, const json& metadata) {
    TrainPoint p;
    p.at = at;
    p.loss = value.is_number() ? value.get<double>() : kNotFinite;
    p.lr = number(metadata, "lr");
    p.samples_per_s = rate(at);
    mark_ = at;
    run_.train.push_back(std::move(p));
  }

  void put_stats(const RunPoint& at, const json& value) {
    if (!value.is_object()) return;
    TrainPoint p;
    p.at = at;
    p.samples_per_s = number(value, "throughput");
    p.loss = number(value, "train_loss");
    if (p.samples_per_s == p.samples_per_s || p.loss == p.loss) run_.train.push_back(std::move(p));
  }

  void put_rate(const RunPoint& at) {
    TrainPoint p;
    p.at = at;
    p.samples_per_s = rate(at);
    mark_ = at;
    if (p.samples_per_s == p.samples_per_s) run_.train.push_back(std::move(p));
  }

  /// Samples per second since the mark; absent when either end is unknown.
  double rate(const RunPoint& at) const {
    const double samples = at.samples - mark_.samples, seconds = at.wall_s - mark_.wall_s;
    return samples > 0 && seconds > 0 ? samples / seconds : kAbsent;
  }

  void parameter(const std::string& key, const json& value) {
    if (value.is_structured() || value.is_null() || !seen_.insert(key).second) return;
    if (key == "global_batch_size" && value.is_number()) batch_ = value.get<double>();
    if (key == "train_samples" && value.is_number()) train_samples_ = value.get<double>();
    run_.mlperf.emplace_back(key, value.is_string() ? value.get<std::string>() : value.dump());
  }

  Run& run_;
  bool points_;
  bool started_ = false;
  double origin_s_ = kAbsent, batch_ = kAbsent, train_samples_ = kAbsent;
  RunPoint mark_;
  std::set<std::string> seen_;
};

}  // namespace

int64_t read_mlperf_log(const std::string& text, const std::string& place, bool points, Run& run) {
  Warnings warnings(run);
  LogReader reader(run, points);
  int64_t line_number = 0, lines = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const bool whole = end < text.size();
    const std::string_view raw(text.data() + begin, end - begin);
    begin = end + 1;
    ++line_number;
    const size_t token = raw.rfind(kToken);  // launchers put their own text before it
    if (token == std::string_view::npos) continue;
    ++lines;
    const json line = json::parse(raw.substr(token + kToken.size()), nullptr, false);
    if (!reader.add(line) && whole) warnings.add(place, line_number, "not an MLPerf event");
  }
  std::sort(run.mlperf.begin(), run.mlperf.end());
  return lines;
}

}  // namespace segue::report::detail
