#pragma once

#include <cstdio>
#include <string>

#include "base/json_line.h"
#include "train/run_config.h"

namespace segue::train {

/// What a run leaves behind: config.toml (resolved, complete before the first step) and
/// metrics.jsonl (one object per line, handed to the system as soon as it is known).
class RunFolder {
 public:
  /// Makes the folder and touches nothing in it. One that already holds the metrics of a run is
  /// Error(kInvalidArgument) unless `overwrite`.
  RunFolder(std::string path, bool overwrite);
  ~RunFolder();
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;

  const std::string& path() const { return path_; }
  std::string config_path() const { return path_ + "/config.toml"; }
  std::string metrics_path() const { return path_ + "/metrics.jsonl"; }

  /// The run begins: replaces what an overwritten run left.
  void start(const RunConfig& config);
  void append_metrics(const base::JsonLine& line);  // Error(kIo) when it did not get out

 private:
  std::string path_;
  std::FILE* metrics_ = nullptr;
};

}  // namespace segue::train
