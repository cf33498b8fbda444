#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "tensor/card.h"
#include "tensor/exec.h"

namespace segue::bench {

/// How long something takes: runs that only warm up, then runs that count.
struct Timing {
  std::vector<double> seconds;  // in the order of the runs
  std::string protocol = {};    // of a GPU: rested or sustained; see measure()

  double median() const;
  double mean() const;
  double fastest() const;
  double slowest() const;
  double spread() const;  // (slowest - fastest) / median
};

struct Repeats {
  int64_t warm_up = 1;
  int64_t timed = 5;
  bool sustained = false;
  int64_t rest_ms = 50;  // before the first run, unless sustained
};
/// Enough for clocks and temperature to settle.
inline constexpr Repeats kSustained{150, 100, true};
/// Work that is done when `run` returns, by the clock.
Timing measure(const Repeats& repeats, const std::function<void()>& run);
/// Work that is queued on exec's stream, by events on a GPU. There every run begins with a cold
/// second-level cache, and the first one after a short rest: a card that has just worked hard is
/// slower for a while. Sustained: one run right after the other, warm caches, no rest.
Timing measure(const Exec& exec, const Repeats& repeats, const std::function<void()>& run);

/// One measured thing. `flop`, `bytes` and `items` are what one run does, moves or handles by
/// formula; 0: not counted. One that was reckoned, not measured, has figures and no timing.
struct Result {
  std::string name;
  std::vector<std::pair<std::string, std::string>> labels;  // what a size cannot say: mask, type
  std::vector<std::pair<std::string, int64_t>> shape;
  Timing timing;
  double flop = 0;
  double bytes = 0;
  double items = 0;
  std::string item_name = "rows";
  bool runs_differ = false;  // in what they do: counts above are means, and so is the time of rates
  std::optional<double> joules_per_item = {};
  std::vector<std::pair<std::string, double>> figures = {};  // others, by name
  std::string not_run = {};  // why there is no timing and nothing of what follows from one

  /// What rates are made with: work of all runs over their time, or of one over the median.
  double rate_seconds() const { return runs_differ ? timing.mean() : timing.median(); }
};

/// The processor's own name; "unknown" where the system does not tell.
std::string cpu_name();

/// Receives finished lines of output.
using Sink = std::function<void(const std::string& line)>;

/// Turns results into lines: a table row for people, or a JSON object with everything that is
/// needed to compare it with another machine or commit.
class Report {
 public:
  /// `command` is how to measure the same again; it stands in every JSON object.
  Report(Sink sink, bool json, std::string command = {})
      : sink_(std::move(sink)), json_(json), command_(std::move(command)) {}

  /// Where the results that follow are measured.
  void set_device(Device device) { device_ = device; }
  Device device() const { return device_; }
  /// What tells of the device's state; may be null. Rows say what slows the card down, and this
  /// call does so of a card at rest.
  void set_card(std::shared_ptr<const CardSensor> card);
  const CardSensor* card() const { return card_.get(); }

  /// What the machine can do, measured in this run: results are given as shares of it.
  void set_gemm_rate(double flop_per_s) { gemm_rate_ = flop_per_s; }
  void set_copy_rate(double bytes_per_s) { copy_rate_ = bytes_per_s; }
  double gemm_rate() const { return gemm_rate_; }

  void add(const Result& result);
  void note(const std::string& line);  // for people; left out of JSON
  /// The JSON object of a result.
  std::string row(const Result& result) const;

 private:
  std::string human(const Result& result) const;
  void add_figures(nlohmann::ordered_json& line, const Result& result) const;
  void explain(const std::vector<CardWarning>& warnings);

  Sink sink_;
  bool json_ = false;
  std::string command_;
  bool header_done_ = false;
  Device device_;
  std::shared_ptr<const CardSensor> card_;
  std::vector<std::string> warned_;  // names of warnings that were given in full
  double gemm_rate_ = 0, copy_rate_ = 0;
};

/// Lengths of sequences. kAuto: jagged40 on a GPU, equal ones on the CPU.
enum class Lengths : uint8_t { kAuto, kEqual, kSpread, kJagged40 };

/// The shape of one STU layer and the sequences it sees.
struct LayerShape {
  int64_t dim = 512, heads = 4, head_dim = 128;
  int64_t sequences = 32, length = 512;
  Lengths lengths = Lengths::kAuto;  // kSpread: evenly over 1 .. 2 * length - 1
  double dropout = 0.1;

  void validate() const;                 // Error(kInvalidArgument)
  std::vector<int64_t> offsets() const;  // [sequences + 1]
};

/// What the bench `attention` runs over: the shapes that kernels are compared by, or, if any of the
/// lists is given, every combination of them.
struct AttentionGrid {
  std::vector<int64_t> sequences, lengths, head_dims;
  std::vector<std::string>
      masks;           // "causal", "context8", "window512+full64", "prefix128+window512", ...
  std::string only;    // of the shapes compared by: those whose name contains this
  bool parts = false;  // the kernels of backward one by one, too (Hopper)
  std::string kernel = "auto";  // of a GPU
  bool sustained = false;       // everything once more, without rest

  bool given() const {
    return !sequences.empty() || !lengths.empty() || !head_dims.empty() || !masks.empty();
  }
};

/// The hash index of the bench `index`. 0: by device.
struct IndexShape {
  int64_t slots = 0, batch = 0;
  std::vector<double> loads = {0.5, 0.75, 1};
};

/// The tables of the bench `tables`.
struct TablesShape {
  int64_t tables = 10, dim = 128;
  int64_t ids = 0;  // of all tables in a step; 0: by device
};

struct Settings {
  Repeats repeats;
  std::string device = "auto";  // auto, cpu or cuda:N
  LayerShape layer;
  AttentionGrid grid;
  IndexShape index;
  TablesShape tables;
  int64_t ceiling = 0;     // rows and columns of the product that rates are shares of; 0: by device
  int64_t table_rows = 0;  // of the benches `embedding`, `cache`, `tables`; 0: by device
  std::string config = "configs/random.toml";  // of the benches `step`, `prepare` and `balance`
  std::vector<std::string> sets;
  std::string preset;                              // of `step` and `prepare`, in place of a config
  std::string store;                               // of both: batches of this one, not random ones
  int64_t layers = 3;                              // of the bench `stack`
  int64_t store_users = 400, store_events = 6000;  // of the bench `loader`; events of each user
};

struct Bench {
  const char* name;
  const char* help;
  void (*run)(const Settings& settings, Report& report);
  bool on_gpu = true;
};
const std::vector<Bench>& benches();

/// Chooses the device, then runs. Error(kInvalidArgument) with the nearest name for an unknown
/// bench.
void run_bench(const std::string& name, Settings settings, Report& report);

// The benches; each file has one.
void bench_gemm(const Settings& settings, Report& report);
void bench_layer(const Settings& settings, Report& report);
void bench_attention(const Settings& settings, Report& report);
void bench_ops(const Settings& settings, Report& report);
void bench_embedding(const Settings& settings, Report& report);
void bench_cache(const Settings& settings, Report& report);
void bench_index(const Settings& settings, Report& report);
void bench_tables(const Settings& settings, Report& report);
void bench_stack(const Settings& settings, Report& report);
void bench_step(const Settings& settings, Report& report);
void bench_prepare(const Settings& settings, Report& report);
void bench_loader(const Settings& settings, Report& report);
void bench_balance(const Settings& settings, Report& report);
void bench_lengths(const Settings& settings, Report& report);

/// The ceiling: a product of size^3 in the type of activations, float or bf16.
class GemmCeiling {
 public:
  GemmCeiling(const Settings& settings, Device device);
  ~GemmCeiling();
  void run();
  const Exec& exec() const;
  Result result(Timing timing) const;

 private:
  struct Product;
  std::unique_ptr<Product> product_;
};

/// Each measures one ceiling and tells the report its rate.
Result measure_gemm_rate(const Settings& settings, Report& report);
Result measure_copy_rate(const Settings& settings, Report& report);
/// Both, reported.
void add_ceilings(const Settings& settings, Report& report);

}  // namespace segue::bench
