#pragma once

// For tests only.

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/file.h"
#include "train/checkpoint/checkpoint.h"
#include "train/checkpoint/checkpoint_writer.h"

namespace segue::train {

/// A small state with every element type of interest, an array without rows and one cut by rows.
struct TestState {
  explicit TestState(int64_t table_rows = 40) : table(static_cast<size_t>(table_rows * 8)) {}

  std::vector<float> weights = std::vector<float>(7 * 5);
  std::vector<double> moments = std::vector<double>(11);
  std::vector<float> table;  // [rows, 8]
  std::vector<int64_t> counts = std::vector<int64_t>(3);
  std::vector<uint8_t> flags = std::vector<uint8_t>(5);

  /// Every value is a function of `version`.
  void fill(int64_t version) {
    int64_t next = version * 1000003;
    for (float& x : weights) x = static_cast<float>(next++ % 16777213);
    for (double& x : moments) x = static_cast<double>(next++) / 7;
    for (float& x : table) x = static_cast<float>(next++ % 16777213);
    for (int64_t& x : counts) x = next++ << 20;
    for (uint8_t& x : flags) x = static_cast<uint8_t>(next++);
  }

  std::vector<CheckpointArray> arrays() {
    const Device cpu = Device::cpu();
    const auto rows = static_cast<int64_t>(table.size()) / 8;
    return {{"dense", "param/w", Tensor(weights.data(), DType::kF32, cpu, {7, 5})},
            {"dense", "adam_m/w", Tensor(moments.data(), DType::kF64, cpu, {11})},
            {"dense", "flags", Tensor(flags.data(), DType::kU8, cpu, {5})},
            {"tables", "weight/item", Tensor(table.data(), DType::kF32, cpu, {rows, 8})},
            {"tables", "state/item", Tensor(nullptr, DType::kF32, cpu, {0, 3})},
            {"metrics", "counts", Tensor(counts.data(), DType::kI64, cpu, {3})}};
  }

  bool operator==(const TestState&) const = default;
};

inline std::string test_json(int64_t step) {
  return "{\"samples\":" + std::to_string(step * 64) + "}";
}

/// Saves `versions` one after the other, each as the step of that number.
inline void save_all(const std::string& folder, const CheckpointConfig& config,
                     const std::vector<int64_t>& versions, int64_t shard_bytes = kShardBytes) {
  CheckpointWriter writer(folder, config, shard_bytes);
  TestState state;
  for (const int64_t version : versions) {
    state.fill(version);
    writer.save(version, state.arrays(), test_json(version));
  }
  writer.wait().throw_if_failed();
}

/// The checkpoint holds exactly what `step` was filled with.
inline testing::AssertionResult is_whole(const Checkpoint& checkpoint, int64_t table_rows = 40) {
  TestState wanted(table_rows), found(table_rows);
  wanted.fill(checkpoint.step());
  checkpoint.read(found.arrays());
  if (!(found == wanted)) {
    return testing::AssertionFailure() << checkpoint.path() << " has other values";
  }
  if (checkpoint.state_json() != test_json(checkpoint.step())) {
    return testing::AssertionFailure() << checkpoint.path() << " has " << checkpoint.state_json();
  }
  return testing::AssertionSuccess();
}

inline std::vector<int64_t> steps_in(const std::string& folder) {
  std::vector<int64_t> steps;
  for (const CheckpointEntry& entry : list_checkpoints(folder)) steps.push_back(entry.step);
  return steps;
}

/// Name to content of all files of a folder; no folder in it is looked into.
inline std::map<std::string, std::string> files_in(const std::string& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    files[entry.path().filename().string()] =
        entry.is_directory() ? "a folder" : base::read_file(entry.path().string());
  }
  return files;
}

}  // namespace segue::train
