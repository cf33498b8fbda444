#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace segue::bench {

/// How long something takes: runs that only warm up, then runs that count.
struct Timing {
  std::vector<double> seconds;  // in the order of the runs

  double median() const;
  double fastest() const;
  double slowest() const;
  double spread() const;  // (slowest - fastest) / median
};

struct Repeats {
  int64_t warm_up = 1;
  int64_t timed = 5;
};
Timing measure(const Repeats& repeats, const std::function<void()>& run);

/// One measured thing. `flop` or `bytes` is what one run does or moves by formula; 0: not counted.
struct Result {
  std::string name;
  std::vector<std::pair<std::string, int64_t>> shape;
  Timing timing;
  double flop = 0;
  double bytes = 0;
};

/// Receives finished lines of output.
using Sink = std::function<void(const std::string& line)>;

/// Turns results into lines: a table row for people, or a JSON object with everything that is
/// needed to compare it with another machine or commit.
class Report {
 public:
  Report(Sink sink, bool json) : sink_(std::move(sink)), json_(json) {}

  /// What the machine can do, measured in this run: results are given as shares of it.
  void set_gemm_rate(double flop_per_s) { gemm_rate_ = flop_per_s; }
  void set_copy_rate(double bytes_per_s) { copy_rate_ = bytes_per_s; }
  double gemm_rate() const { return gemm_rate_; }

  void add(const Result& result);
  void note(const std::string& line);  // for people; left out of JSON

 private:
  std::string human(const Result& result) const;
  std::string json(const Result& result) const;

  Sink sink_;
  bool json_ = false;
  bool header_done_ = false;
  double gemm_rate_ = 0, copy_rate_ = 0;
};

/// The shape of one STU layer and the sequences it sees.
struct LayerShape {
  int64_t dim = 512, heads = 4, head_dim = 128;
  int64_t sequences = 32, length = 512;
  bool jagged = false;  // lengths spread evenly over 1 .. 2 * length - 1 instead of all equal
  double dropout = 0.1;

  void validate() const;                 // Error(kInvalidArgument)
  std::vector<int64_t> offsets() const;  // [sequences + 1]
};

struct Settings {
  Repeats repeats;
  LayerShape layer;
  int64_t yardstick = 2048;  // rows and columns of the product that rates are shares of
  std::string config = "configs/random.toml";  // of the bench `step`
  std::vector<std::string> sets;
  std::string preset;                              // of the bench `step`, in place of a config
  std::string device = "auto";                     // of the bench `stack`
  int64_t layers = 3;                              // likewise
  int64_t store_users = 400, store_events = 6000;  // of the bench `loader`; events of each user
};

struct Bench {
  const char* name;
  const char* help;
  void (*run)(const Settings& settings, Report& report);
};
const std::vector<Bench>& benches();

/// Error(kInvalidArgument) with the nearest name for an unknown bench.
void run_bench(const std::string& name, const Settings& settings, Report& report);

// The benches; each file has one.
void bench_gemm(const Settings& settings, Report& report);
void bench_layer(const Settings& settings, Report& report);
void bench_attention(const Settings& settings, Report& report);
void bench_ops(const Settings& settings, Report& report);
void bench_stack(const Settings& settings, Report& report);
void bench_step(const Settings& settings, Report& report);
void bench_loader(const Settings& settings, Report& report);

/// The yardstick: a float product of size^3.
class GemmYardstick {
 public:
  explicit GemmYardstick(int64_t size);
  ~GemmYardstick();
  void run();
  Result result(Timing timing) const;

 private:
  struct Product;
  std::unique_ptr<Product> product_;
};

/// Measures the yardstick and tells the report its rate.
Result measure_gemm_rate(const Settings& settings, Report& report);

}  // namespace segue::bench
