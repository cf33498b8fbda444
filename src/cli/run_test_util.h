#pragma once

// For tests only: a small run, and what of it must not change.

#include <cstdint>
#include <filesystem>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "base/file.h"

namespace segue::cli {

/// For a store of `segue synth`, or with `data.random.lengths.high` for random samples.
inline constexpr const char* kSmallConfig = R"(
[model]
dim = 16
heads = 2
qk_dim = 8
v_dim = 8
layers = 2
hidden = 16
item_hidden = 16
head_hidden = 16
max_seq_len = 24
position_buckets = 32
time_buckets = 32
item = { history = "item_id", candidate = "item_candidate_id", table = "item" }
additional = [
  { history = "artist_id", candidate = "item_candidate_artist_id", table = "artist" },
]
contextual = [{ name = "uid", table = "user" }, { name = "user_x_artist", table = "cross" }]
tasks = [{ name = "listen_plus", bit = 1 }]
[sparse]
dim = 8
tables = [
  { name = "item", rows = 1501 },
  { name = "artist", rows = 200 },
  { name = "user", rows = 400 },
  { name = "cross", rows = 500 },
]
[optimizer]
lr = 2e-3
sparse_lr = 0.05
[data]
batch_size = 64
[data.stream]
min_history = 20
shuffle_fraction = 1.0
[train]
log_every = 5
arena_gib = 0.5
[eval]
every_windows = 4
[checkpoint]
every_steps = 7
keep_last = 2
)";

/// Lines of metrics: losses, qualities and counts; not times, rates or memory.
inline std::vector<std::string> lasting_metrics(const std::string& run) {
  std::istringstream text(base::read_file(run + "/metrics.jsonl"));
  std::vector<std::string> lines;
  for (std::string line; std::getline(text, line);) {
    std::string kept;
    for (const char* key :
         {"event", "step", "window", "samples", "loss", "loss_window", "auc", "auc_window",
          "auc_lifetime", "normalized_entropy", "grad_norm", "loss_z", "grad_norm_z",
          "eval_samples", "samples_window", "tokens_window", "status"}) {
      const size_t at = line.find(std::string("\"") + key + "\": ");
      if (at == std::string::npos) continue;
      kept += line.substr(at, line.find_first_of(",}", at) - at) + " ";
    }
    lines.push_back(kept);
  }
  return lines;
}

/// Newest checkpoint, by file; the manifest has times in it.
inline std::map<std::string, std::string> newest_arrays(const std::string& run) {
  std::string newest;
  int64_t step = -1;
  for (const auto& e : std::filesystem::directory_iterator(run + "/checkpoints")) {
    const std::string name = e.path().filename().string();
    if (!name.starts_with("step-")) continue;
    if (const int64_t s = std::stoll(name.substr(5)); s > step) {
      step = s;
      newest = e.path().string();
    }
  }
  std::map<std::string, std::string> files;
  for (const auto& e : std::filesystem::directory_iterator(newest)) {
    const std::string name = e.path().filename().string();
    if (name != "manifest.json") files[std::to_string(step) + name] = base::read_file(e.path());
  }
  return files;
}

}  // namespace segue::cli
