#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "edu/batches.h"
#include "edu/machine.h"
#include "edu/measure.h"
#include "edu/samples.h"

namespace segue::edu {

struct Options {
  std::string data;               // folder of MovieLens-100K; empty: made up
  std::string variant = "cross";  // of micro-dlrm-dram: cross, uniform or faithful
  std::string out;                // folder for sidecars, CSV files and the page; empty: none
  std::string device = "cpu";
  std::vector<std::string> experiments;  // "E1" ... "E9"; empty: all
  int threads = 0;
  int ranks = 4;  // of micro-dlrm-distributed
  uint64_t seed = 1;
  bool quick = false;  // tiny shapes: shows that everything works, judges nothing
  bool huge_pages = true;
  bool split_by_time = false;
};

/// Receives finished lines of output.
using Sink = std::function<void(const std::string& line)>;

/// The machine with what was measured of it, the memory of tables, and the data: what every
/// workload and experiment works with.
class Lab {
 public:
  Lab(const Options& options, Sink sink);

  /// Measures the machine; workloads that need no large table do without.
  void measure_machine();
  const Dataset& data();  // read or made when somebody asks

  const Options& options() const { return options_; }
  const Machine& machine() const { return machine_; }
  const Ceilings& ceilings() const { return ceilings_; }
  const TableMemory& memory() const { return *memory_; }
  const Exec& exec() const { return exec_; }
  Device device() const { return exec_.device; }
  /// The larger of what the system says and what was measured.
  int64_t llc_bytes() const;
  int64_t table_bytes() const { return memory_->bytes(); }
  /// Seconds of a fixed number of look-ups by size of the table.
  const std::vector<std::pair<int64_t, double>>& lookup_curve() const { return curve_; }
  int64_t curve_lookups() const { return lookups_; }

  int64_t timed_steps() const { return options_.quick ? 4 : 30; }
  int64_t warm_up() const { return options_.quick ? 1 : 3; }

  /// Rows for a width, in all of the table memory.
  int64_t rows_of(int64_t width) const { return table_bytes() / (4 * width); }
  /// A workload with its batches, which others of the same keys may share.
  struct Prepared {
    Workload workload;
    std::shared_ptr<const BatchPool> pool;

    double working_set_bytes() const {
      return 4.0 * static_cast<double>(pool->distinct() * workload.width);
    }
  };
  Prepared prepare_micro(int64_t batch, int64_t batches = 0);
  /// By `variant`; rows are made wider, or batches more, until the distinct rows of the pool are
  /// four times the cache.
  Prepared prepare_dram(const std::string& variant);
  /// Even keys, or those of Zipf's law; as many batches as are timed, unless told.
  Prepared prepare_uniform(int64_t width, int64_t pooling, int64_t batch, double exponent = 0,
                           int64_t batches = 0);
  /// The published shape, with its ids or with even keys; fewer rows where memory is short.
  Prepared prepare_faithful(Keys keys, int64_t batch);

  /// Times of workloads, measured in turns: what else the machine does meets all of them alike.
  std::vector<StepTimes> time_in_turns(const std::vector<Prepared>& all,
                                       Passes passes = Passes::kWhole);

  void say(const std::string& line) const { sink_(line); }

 private:
  std::shared_ptr<const BatchPool> random_pool(const Workload& workload, double exponent,
                                               int64_t batches) const;

  Options options_;
  Sink sink_;
  Machine machine_;
  Ceilings ceilings_;
  std::unique_ptr<Arena> arena_;
  std::unique_ptr<Stream> stream_;
  Exec exec_;
  std::unique_ptr<TableMemory> memory_;
  std::unique_ptr<Dataset> data_;
  std::vector<std::pair<int64_t, double>> curve_;
  int64_t lookups_ = 0;
};

}  // namespace segue::edu
