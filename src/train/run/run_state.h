#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "data/sample/sample_stream.h"
#include "train/checkpoint/checkpoint.h"
#include "train/step/health.h"

namespace segue::train {

/// Bins of the histogram of tokens per sample: bin i holds [i * width, (i + 1) * width).
inline constexpr int64_t kLengthBins = 16;

/// Sums over the steps since the last line of metrics.
struct Interval {
  int64_t steps = 0, samples = 0, tokens = 0;
  double loss = 0, padded_flops = 0, jagged_flops = 0;
  double seconds = 0, wait_seconds = 0;
  std::vector<int64_t> lengths;  // samples by tokens, in kLengthBins bins; empty: none yet
};

/// Everything beside arrays that a run needs to go on as if it had never stopped. A checkpoint
/// holds it as JSON; numbers come back as the same bits.
struct RunState {
  int64_t step = 0;             // optimizer steps done
  data::StreamPosition next;    // the batch that comes next
  int64_t samples = 0;          // trained so far
  int64_t skipped = 0;          // batches left out because something was not finite
  int64_t window = -1;          // of the newest step
  int64_t last_eval_step = -1;  // the step that the newest evaluation followed
  bool eval_pending = false;    // the last step asked for an evaluation that has not run
  int64_t eval_window = -1;     // the window it follows
  bool finished = false;        // nothing is left to do: the end, or the target
  bool target_reached = false;
  double last_auc = 0.5;      // of the newest evaluation
  double wall_seconds = 0;    // of all processes of this run
  int64_t metrics_bytes = 0;  // length of metrics.jsonl
  int64_t window_labels = 0;  // labels that the window metrics have seen
  Interval interval;
  ZScore loss_score, gradient_score;
  std::string mllog;   // state of the MLPerf log, as its writer gives it
  std::string store;   // data::StoreIdentity of its store; empty: it has none, or 0.1 saved it
  std::string config;  // the resolved config, TOML
};
std::string to_json(const RunState& state);
/// Error(kCorrupt) when it is not one. Its counts can then be added to and its texts be parsed;
/// what depends on the data is for require_place.
RunState run_state_from_json(const std::string& text);
/// The same with the path in messages; it must be that of the checkpoint's step.
RunState run_state_of(const Checkpoint& checkpoint);

/// The values of a config by key: "model.layers", "sparse.tables.0.rows". Error(kCorrupt).
std::map<std::string, std::string> flat_config(const std::string& toml);

/// A key of two resolved configs with different values.
struct ConfigDifference {
  std::string key, before, now;
};
/// Of two resolved configs as TOML; keys that do not change what is computed are left out.
std::vector<ConfigDifference> config_differences(const std::string& before, const std::string& now);

/// A name covers the keys below it: "optimizer" allows "optimizer.lr".
bool is_allowed(const std::string& key, std::span<const std::string> allowed);
/// Error(kConfig) listing the differences that `allowed` does not name.
void require_same_config(const std::string& before, const std::string& now,
                         const std::vector<std::string>& allowed);

}  // namespace segue::train
