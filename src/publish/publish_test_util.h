#pragma once

// For tests only.

#include <cstdint>
#include <filesystem>
#include <iterator>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/file.h"
#include "data/log/vector_table.h"
#include "sparse/hash_index.h"
#include "train/checkpoint/checkpoint.h"
#include "train/checkpoint/checkpoint_writer.h"

#if SEGUE_HAS_ARROW
#include "data/parquet/parquet.h"
#endif

namespace segue::publish {

/// Null in a build without Arrow.
inline const data::VectorFiles* parquet() {
#if SEGUE_HAS_ARROW
  return &data::parquet_vectors();
#else
  return nullptr;
#endif
}

/// A model with a table of each kind: `all` is saved whole, `touched` as far as it was touched,
/// `hashed` is dynamic.
class TestModel {
 public:
  using Rows = std::map<int64_t, std::vector<float>>;
  static constexpr int64_t kAllDim = 4, kTouchedDim = 3, kHashedDim = 5;

  explicit TestModel(uint32_t seed = 1, int64_t rows = 40) : random_(seed), rows_(rows) {
    for (int64_t id = 0; id < rows_; ++id) all_[id] = row(kAllDim);
    for (int64_t id = 3; id < 90; id += 4) touched_[id] = row(kTouchedDim);
    for (int i = 0; i < 60; ++i) hashed_[some_id()] = row(kHashedDim);
  }

  Rows& all() { return all_; }
  Rows& touched() { return touched_; }
  Rows& hashed() { return hashed_; }

  /// A few rows change, ids come and, of the dynamic table, go.
  void train() {
    for (float& x : dense_) x += number();
    for (int i = 0; i < 5; ++i) {
      all_[below(rows_)] = row(kAllDim);
      touched_[below(200)] = row(kTouchedDim);
      hashed_[some_id()] = row(kHashedDim);
      std::next(hashed_.begin(), below(std::ssize(hashed_)))->second = row(kHashedDim);
      hashed_.erase(std::next(hashed_.begin(), below(std::ssize(hashed_))));
    }
  }

  /// As `<folder>/step-<step>`; the checkpoints before it stay.
  train::Checkpoint save(const std::string& folder, int64_t step) {
    train::CheckpointConfig config;
    config.keep_last = 0;
    std::vector<int64_t> rows, keys;
    Rows by_key;
    for (const auto& [id, row] : hashed_) by_key[sparse::key_of_id(id)] = row;
    std::vector<float> all = numbers(all_), touched = numbers(touched_, &rows),
                       hashed = numbers(by_key, &keys);
    const auto matrix = [](std::vector<float>& of, int64_t dim) {
      return Tensor(of.data(), DType::kF32, Device::cpu(), {std::ssize(of) / dim, dim});
    };
    const auto list = [](std::vector<int64_t>& of) {
      return Tensor(of.data(), DType::kI64, Device::cpu(), {std::ssize(of)});
    };
    std::vector<train::CheckpointArray> arrays;
    const auto add = [&](const char* file, const char* name, const Tensor& value) {
      arrays.push_back({.file = file, .name = name, .value = value});
    };
    add("dense", "param/w", matrix(dense_, 3));
    add("tables", "weight/all", matrix(all, kAllDim));
    add("tables", "weight/touched", matrix(touched, kTouchedDim));
    add("tables", "row/touched", list(rows));
    add("tables", "weight/hashed", matrix(hashed, kHashedDim));
    add("tables", "key/hashed", list(keys));
    train::CheckpointWriter writer(folder, config);
    writer.save(step, arrays, "{\"samples\":" + std::to_string(step * 64) + ",\"window\":-1}");
    writer.wait().throw_if_failed();
    return train::Checkpoint(train::checkpoint_path(folder, step));
  }

 private:
  static std::vector<float> numbers(const Rows& rows, std::vector<int64_t>* ids = nullptr) {
    std::vector<float> all;
    for (const auto& [id, row] : rows) {
      all.insert(all.end(), row.begin(), row.end());
      if (ids != nullptr) ids->push_back(id);
    }
    return all;
  }
  int64_t below(int64_t most) {
    return std::uniform_int_distribution<int64_t>(0, most - 1)(random_);
  }
  int64_t some_id() {
    return static_cast<int64_t>(random_()) << 20 ^ static_cast<int64_t>(random_());
  }
  float number() { return std::normal_distribution<float>()(random_); }
  std::vector<float> row(int64_t dim) {
    std::vector<float> row(static_cast<size_t>(dim));
    for (float& x : row) x = number();
    return row;
  }

  std::mt19937_64 random_;
  int64_t rows_;
  std::vector<float> dense_ = std::vector<float>(6);
  Rows all_, touched_, hashed_;
};

/// Name below `folder` to content, of all files and links; without the lock.
inline std::map<std::string, std::string> tree_of(const std::string& folder) {
  namespace fs = std::filesystem;
  std::map<std::string, std::string> files;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder)) {
    const std::string name = entry.path().lexically_relative(folder).string();
    if (name == ".lock") continue;
    if (entry.is_symlink()) {
      files[name] = fs::read_symlink(entry.path()).string();
    } else if (entry.is_regular_file()) {
      files[name] = base::read_file(entry.path().string());
    }
  }
  return files;
}

}  // namespace segue::publish
