#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace segue::report {

struct ScalarPoint {
  std::string tag;
  int64_t step = 0;
  float value = 0;
};

/// The scalars in `folder` as TensorBoard shows them, from step `from` on: files in the order of
/// their names, each up to its first torn record; a restart takes back what was read before it of
/// its step and later ones. Error(kIo) when a file cannot be read.
std::vector<ScalarPoint> read_tensorboard(const std::string& folder, int64_t from = 0);

}  // namespace segue::report
