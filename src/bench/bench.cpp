#include "bench/bench.h"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <thread>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "attention/jagged40.h"
#include "base/config.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json_line.h"
#include "base/parallel.h"
#include "base/progress.h"
#include "base/time.h"
#include "base/version_generated.h"
#include "bench/lap_timer.h"
#include "ops/gemm.h"
#include "train/run_config.h"

namespace segue::bench {
namespace {

constexpr double kGiga = 1e9;
constexpr int64_t kFlushBytes = int64_t{256} << 20;  // several times a second-level cache

std::string shape_text(const Result& r) {
  std::string text;
  for (const auto& [name, value] : r.labels) text += fmt::format(" {}={}", name, value);
  for (const auto& [name, size] : r.shape) text += fmt::format(" {}={}", name, size);
  return text;
}

/// Work per second in the unit that people say: 412.3 G..., or 4.12 T...
std::string rate_text(double per_second, const char* unit) {
  constexpr double kTera = 1e12;
  return per_second < kTera ? fmt::format("{:>8.1f} G{}/s", per_second / kGiga, unit)
                            : fmt::format("{:>8.3g} T{}/s", per_second / kTera, unit);
}

nlohmann::ordered_json card_json(const CardState& s) {
  std::vector<std::string> slowed_by;
  for (const CardWarning& w : card_warnings(s, /*under_load=*/true)) slowed_by.push_back(w.name);
  return {{"sm_mhz", s.sm_mhz},
          {"most_sm_mhz", s.most_sm_mhz},
          {"watts", s.watts},
          {"celsius", s.celsius},
          {"slowed_by", slowed_by}};
}

std::string milliseconds(double seconds) { return fmt::format("{:.3f} ms", seconds * 1e3); }

}  // namespace

std::string cpu_name() {
  const std::string path = "/proc/cpuinfo";
  if (!base::exists(path)) return "unknown";
  const std::string text = base::read_file(path);
  const size_t at = text.find("model name");
  if (at == std::string::npos) return "unknown";
  const size_t begin = text.find(':', at) + 2;
  return text.substr(begin, text.find('\n', begin) - begin);
}

double Timing::median() const {
  if (seconds.empty()) return 0;
  std::vector<double> sorted = seconds;
  std::ranges::sort(sorted);
  const size_t n = sorted.size();
  return n % 2 == 1 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
}
double Timing::mean() const {
  if (seconds.empty()) return 0;
  return std::accumulate(seconds.begin(), seconds.end(), 0.0) / static_cast<double>(seconds.size());
}
double Timing::fastest() const { return seconds.empty() ? 0 : *std::ranges::min_element(seconds); }
double Timing::slowest() const { return seconds.empty() ? 0 : *std::ranges::max_element(seconds); }
double Timing::spread() const {
  const double middle = median();
  return middle > 0 ? (slowest() - fastest()) / middle : 0;
}

Timing measure(const Repeats& repeats, const std::function<void()>& run) {
  for (int64_t i = 0; i < repeats.warm_up; ++i) run();
  Timing timing;
  for (int64_t i = 0; i < repeats.timed; ++i) {
    const base::Stopwatch watch;
    run();
    timing.seconds.push_back(watch.seconds());
  }
  return timing;
}

namespace {

Timing measure_sustained(const Exec& exec, const Repeats& repeats,
                         const std::function<void()>& run) {
  LapTimer timer(exec);
  for (int64_t i = 0; i < repeats.warm_up; ++i) run();
  timer.mark();
  for (int64_t i = 0; i < repeats.timed; ++i) {
    run();
    timer.mark();
  }
  return {timer.laps(), "sustained"};
}

}  // namespace

Timing measure(const Exec& exec, const Repeats& repeats, const std::function<void()>& run) {
  const bool on_gpu = exec.device.is_cuda();
  const Arena::Mark mark(*exec.arena);
  Tensor flush;
  if (repeats.sustained) return measure_sustained(exec, repeats, run);
  if (on_gpu) {
    flush = exec.arena->tensor(DType::kU8, {kFlushBytes});
    exec.stream->synchronize();
    std::this_thread::sleep_for(std::chrono::milliseconds(repeats.rest_ms));
  }
  LapTimer timer(exec);
  Timing timing;
  if (on_gpu) timing.protocol = "rested";
  for (int64_t i = 0; i < repeats.warm_up + repeats.timed; ++i) {
    if (on_gpu) zero(flush, exec.stream);
    timer.mark();
    run();
    timer.mark();
    const std::vector<double> laps = timer.laps();
    if (i >= repeats.warm_up) timing.seconds.push_back(laps.front());
  }
  return timing;
}

void Report::add(const Result& result) {
  if (json_) {
    sink_(row(result));
    return;
  }
  if (!header_done_) {
    sink_(fmt::format("segue {} ({}), {}{}, {} threads, gemm {}", SEGUE_VERSION, SEGUE_GIT_COMMIT,
                      device_.is_cuda() ? describe(device_) + ", " : "", cpu_name(),
                      base::num_threads(), device_.is_cuda() ? "cuBLASLt" : ops::gemm_backend()));
    header_done_ = true;
  }
  std::string line = human(result);
  std::vector<CardWarning> warnings;
  if (card_) warnings = card_warnings(card_->state(), /*under_load=*/true);
  for (const CardWarning& w : warnings) line += fmt::format(" [{}]", w.name);
  sink_(line);
  explain(warnings);
}

/// In full, each once.
void Report::explain(const std::vector<CardWarning>& warnings) {
  for (const CardWarning& w : warnings) {
    if (std::ranges::find(warned_, w.name) != warned_.end()) continue;
    warned_.push_back(w.name);
    note(fmt::format("[{}] {}", w.name, w.text));
  }
}

void Report::set_card(std::shared_ptr<const CardSensor> card) {
  card_ = std::move(card);
  if (card_) explain(card_warnings(card_->state(), /*under_load=*/false));
}

void Report::note(const std::string& line) {
  if (!json_) sink_(line);
}

std::string Report::human(const Result& r) const {
  if (!r.not_run.empty()) {
    return fmt::format("{:<28} not run: {} {}", r.name, r.not_run, shape_text(r));
  }
  const double seconds = r.rate_seconds();
  std::string line = fmt::format("{:<28}", r.name);
  if (!r.timing.seconds.empty()) {
    line +=
        fmt::format(" {:>12} +-{:>3.0f}%", milliseconds(r.timing.median()), 50 * r.timing.spread());
    if (r.runs_differ) line += fmt::format("  mean {}", milliseconds(seconds));
  }
  if (r.flop > 0) {
    const double rate = r.flop / seconds;
    line += fmt::format("  {:>8.1f} GFLOP {}", r.flop / kGiga, rate_text(rate, "FLOP"));
    if (gemm_rate_ > 0) line += fmt::format(" {:>4.0f}% of gemm", 100 * rate / gemm_rate_);
  }
  if (r.bytes > 0) {
    const double rate = r.bytes / seconds;
    line += fmt::format("  {:>8.3f} GB {}", r.bytes / kGiga, rate_text(rate, "B"));
    if (copy_rate_ > 0) line += fmt::format(" {:>4.0f}% of copy", 100 * rate / copy_rate_);
  }
  if (r.items > 0) {
    line += fmt::format("  {:>6} {}/s", base::format_count(r.items / seconds), r.item_name);
  }
  if (r.joules_per_item) line += fmt::format("  {:.3g} J each", *r.joules_per_item);
  for (const auto& [name, value] : r.figures) line += fmt::format("  {} {:.4g}", name, value);
  if (!r.timing.protocol.empty()) line += "  " + r.timing.protocol;
  return line + " " + shape_text(r);
}

std::string Report::row(const Result& r) const {
  nlohmann::ordered_json line;
  line["name"] = r.name;
  for (const auto& [name, value] : r.labels) line[name] = value;
  auto& shape = line["shape"] = nlohmann::ordered_json::object();
  for (const auto& [name, size] : r.shape) shape[name] = size;
  if (r.not_run.empty()) {
    add_figures(line, r);
  } else {
    line["not_run"] = r.not_run;
  }
  if (card_) line["card"] = card_json(card_->state());
  line["device"] = to_string(device_);
  if (device_.is_cuda()) line["gpu"] = cuda_facts(device_.index).name;
  line["cpu"] = cpu_name();
  line["threads"] = base::num_threads();
  line["gemm"] = device_.is_cuda() ? "cuBLASLt" : ops::gemm_backend();
  line["version"] = SEGUE_VERSION;
  line["commit"] = SEGUE_GIT_COMMIT;
  line["time"] = base::iso_time_now();
  line["command"] = command_;
  return base::json_line(line);
}

void Report::add_figures(nlohmann::ordered_json& line, const Result& r) const {
  const double seconds = r.rate_seconds();
  if (!r.timing.seconds.empty()) {
    line["median_s"] = r.timing.median();
    if (r.runs_differ) line["mean_s"] = seconds;
    line["fastest_s"] = r.timing.fastest();
    line["slowest_s"] = r.timing.slowest();
    line["spread"] = r.timing.spread();
    line["repeats"] = r.timing.seconds.size();
  }
  if (!r.timing.protocol.empty()) line["protocol"] = r.timing.protocol;
  if (r.flop > 0) {
    line["gflop"] = r.flop / kGiga;
    line["gflops_per_s"] = r.flop / seconds / kGiga;
    if (gemm_rate_ > 0) {
      line["gemm_gflops_per_s"] = gemm_rate_ / kGiga;
      line["share_of_gemm"] = r.flop / seconds / gemm_rate_;
    }
  }
  if (r.bytes > 0) {
    line["gbytes"] = r.bytes / kGiga;
    line["gbytes_per_s"] = r.bytes / seconds / kGiga;
    if (copy_rate_ > 0) {
      line["copy_gbytes_per_s"] = copy_rate_ / kGiga;
      line["share_of_copy"] = r.bytes / seconds / copy_rate_;
    }
  }
  if (r.items > 0) line[r.item_name + "_per_s"] = r.items / seconds;
  if (r.joules_per_item) line["joules_per_item"] = *r.joules_per_item;
  for (const auto& [name, value] : r.figures) line[name] = value;
}

void LayerShape::validate() const {
  if (dim < 1 || heads < 1 || head_dim < 1 || sequences < 1 || length < 1) {
    fail(ErrorCode::kInvalidArgument, "sizes of a layer must be at least 1");
  }
  if (!(dropout >= 0 && dropout < 1)) {
    fail(ErrorCode::kInvalidArgument, fmt::format("dropout must be in [0, 1), not {}", dropout));
  }
}

std::vector<int64_t> LayerShape::offsets() const {
  std::vector<int64_t> offsets = {0};
  if (lengths == Lengths::kJagged40) {
    for (const int64_t n : attention::jagged40_lengths()) offsets.push_back(offsets.back() + n);
    return offsets;
  }
  for (int64_t b = 0; b < sequences; ++b) {
    // Evenly spread, but not sorted: neighbours differ as they do in real batches.
    const int64_t place = (b * 7 + 3) % sequences;
    const int64_t spread = 1 + place * (2 * length - 2) / std::max<int64_t>(1, sequences - 1);
    offsets.push_back(offsets.back() + (lengths == Lengths::kSpread ? spread : length));
  }
  return offsets;
}

const std::vector<Bench>& benches() {
  static const std::vector<Bench> kBenches = {
      {"gemm", "matrix products: a large cube, and the shapes of a layer", bench_gemm},
      {"layer", "one STU layer, forward and backward, against the gemm rate", bench_layer},
      {"attention", "HSTU attention alone, forward and backward, one shape or a grid",
       bench_attention},
      {"ops", "every op that moves memory, against a plain copy", bench_ops},
      {"embedding", "distinct ids, gather of rows, sum of gradients, update", bench_embedding},
      {"cache", "rows that come from host memory and go back, at several hit rates", bench_cache},
      {"index", "keys of a batch found in a hash index of rows, and inserted", bench_index},
      {"tables", "steps of several tables: ids, a row and a gradient for each, the update",
       bench_tables},
      {"stack", "STU layers without the identities", bench_stack},
      {"step", "whole training steps of a config, with and without the identities", bench_step},
      {"prepare", "host work of a batch of a config, with nothing beside it", bench_prepare},
      {"balance", "steps of a config by length: what a token and a pair cost on this device",
       bench_balance},
      {"lengths",
       "attention on lengths by several laws, and what balancing gains then, reckoned from it",
       bench_lengths},
      {"loader", "samples gathered from an event store, and batches through the loader",
       bench_loader, false},
  };
  return kBenches;
}

void run_bench(const std::string& name, Settings settings, Report& report) {
  if (settings.repeats.timed < 1) {
    fail(ErrorCode::kInvalidArgument, "a bench needs at least one timed run");
  }
  settings.layer.validate();
  std::vector<std::string> names;
  for (const Bench& bench : benches()) {
    names.emplace_back(bench.name);
    if (name != bench.name) continue;
    if (name != "attention" && (settings.grid.kernel != "auto" || settings.grid.sustained)) {
      fail(ErrorCode::kInvalidArgument,
           "--kernel and --sustained are of the bench `attention` alone; for a step, --set "
           "model.attention.kernel=NAME");
    }
    if (bench.on_gpu) {
      report.set_device(train::choose_device(settings.device));
      if (!report.card()) report.set_card(open_card(report.device()));
    }
    if (settings.layer.lengths == Lengths::kAuto) {
      settings.layer.lengths = report.device().is_cuda() ? Lengths::kJagged40 : Lengths::kEqual;
    }
    return bench.run(settings, report);
  }
  const std::string nearest = base::nearest_name(name, names);
  fail(ErrorCode::kInvalidArgument,
       fmt::format("{}; {}",
                   name.empty() ? "the name of a bench or a subcommand is missing"
                                : fmt::format("there is no bench `{}`", name),
                   nearest.empty() ? fmt::format("there is: {}", fmt::join(names, ", "))
                                   : fmt::format("did you mean `{}`?", nearest)));
}

}  // namespace segue::bench
