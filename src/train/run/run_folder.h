#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "base/append_file.h"

namespace segue::train {

/// What a run leaves behind: config.toml (resolved, complete before the first step), metrics.jsonl
/// (one object per line, handed to the system as soon as it is known), and what other writers put
/// beside them. One process at a time.
class RunFolder {
 public:
  /// Makes the folder and takes its lock; touches nothing else. Error(kInvalidArgument) while
  /// another process holds it, and when `checkpoints` or `trace` is something else than a folder
  /// or a link to one.
  explicit RunFolder(std::string path);
  ~RunFolder();
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;

  const std::string& path() const { return path_; }
  std::string config_path() const { return path_ + "/config.toml"; }
  std::string metrics_path() const { return path_ + "/metrics.jsonl"; }
  std::string checkpoints_path() const { return path_ + "/checkpoints"; }
  std::string mlperf_path() const { return path_ + "/mlperf.log"; }
  std::string trace_path() const { return path_ + "/trace"; }

  bool holds_run() const;
  /// Error(kInvalidArgument) where there is no run, but something that a new one would remove:
  /// another program's checkpoints, or those of a run whose config.toml is gone.
  void require_free_or_run() const;

  /// A new run begins: removes what an earlier one left, and nothing else. Where `checkpoints` is a
  /// link it stays, and what an earlier run left behind it goes.
  void start(const std::string& config_toml, base::WhenFull when_full = base::WhenFull::kFail);
  /// The run goes on; metrics behind `metrics_bytes` belong to steps that will be done again.
  void resume(const std::string& config_toml, int64_t metrics_bytes,
              base::WhenFull when_full = base::WhenFull::kFail);

  void append_metrics(const nlohmann::ordered_json& line);  // Error(kIo), but see WhenFull
  /// Error(kIo) while lines wait for a full disk.
  void drain_metrics() { metrics_->drain(); }
  int64_t metrics_bytes() const { return metrics_bytes_; }  // with those that wait

 private:
  std::vector<std::filesystem::path> of_a_run() const;
  void write_config(const std::string& config_toml);

  std::string path_;
  int lock_ = -1;
  std::unique_ptr<base::AppendFile> metrics_;
  int64_t metrics_bytes_ = 0;
};

}  // namespace segue::train
