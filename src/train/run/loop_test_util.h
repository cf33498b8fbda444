#pragma once

#include <filesystem>
#include <map>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/file.h"
#include "base/log.h"
#include "base/test_util.h"
#include "report/tensorboard_reader.h"

namespace segue::train {

/// A run in a folder of its own, and what it left there.
class LoopTest : public testing::Test {
 protected:
  void SetUp() override {
    folder = base::temp_path("run");
    std::filesystem::remove_all(folder);
    base::set_log_level(base::LogLevel::kWarning);
  }
  void TearDown() override {
    std::filesystem::remove_all(folder);
    base::set_log_level(base::LogLevel::kInfo);
  }

  std::vector<std::string> metrics() const { return metrics_of(folder); }
  static std::vector<std::string> metrics_of(const std::string& run) {
    std::istringstream text(base::read_file(run + "/metrics.jsonl"));
    std::vector<std::string> lines;
    for (std::string line; std::getline(text, line);) lines.push_back(line);
    return lines;
  }
  /// The text after `"key": ` up to the next comma or brace.
  static std::string value(const std::string& line, const std::string& key) {
    const size_t at = line.find("\"" + key + "\": ");
    if (at == std::string::npos) return "missing";
    const size_t begin = at + key.size() + 4;
    return line.substr(begin, line.find_first_of(",}", begin) - begin);
  }

  /// What of the metrics does not depend on the clock.
  static std::vector<std::string> lasting(const std::vector<std::string>& lines) {
    std::vector<std::string> result;
    for (const std::string& line : lines) {
      std::string kept;
      for (const char* key :
           {"event", "step", "window", "samples", "loss", "loss_window", "auc", "auc_window",
            "auc_lifetime", "normalized_entropy", "grad_norm", "loss_z", "grad_norm_z", "lr",
            "skipped_steps", "samples_window", "tokens_window", "eval_samples", "status"}) {
        kept += value(line, key) + " ";
      }
      result.push_back(kept);
    }
    return result;
  }
  /// All arrays of a checkpoint, by file.
  static std::map<std::string, std::string> checkpoint_bytes(const std::string& run, int64_t step) {
    std::map<std::string, std::string> files;
    const std::string path = run + "/checkpoints/step-" + std::to_string(step);
    for (const auto& entry : std::filesystem::directory_iterator(path)) {
      const std::string name = entry.path().filename().string();
      if (name != "manifest.json") files[name] = base::read_file(entry.path().string());
    }
    EXPECT_FALSE(files.empty());
    return files;
  }

  /// What TensorBoard shows of a run, apart from rates: values by tag and step.
  static std::multimap<std::pair<std::string, int64_t>, float> scalars_of(const std::string& run) {
    std::multimap<std::pair<std::string, int64_t>, float> scalars;
    for (const report::ScalarPoint& p : report::read_tensorboard(run)) {
      if (!p.tag.starts_with("speed/")) scalars.insert({{p.tag, p.step}, p.value});
    }
    return scalars;
  }

  std::string folder;
};

}  // namespace segue::train
