#include "base/memory.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>
#include <string_view>

namespace segue::base {
namespace {

/// The number behind `name` in a file of lines "name number"; nullopt: there is none.
std::optional<int64_t> number_in(const std::string& path, std::string_view name) {
  std::ifstream file(path);
  std::string word;
  int64_t value = 0;
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(name)) continue;
    const size_t at = line.find_first_of("0123456789", name.size());
    if (at == std::string::npos) return std::nullopt;
    value = std::strtoll(line.c_str() + at, nullptr, 10);
    return value;
  }
  return std::nullopt;
}

/// Of the control group of this process (version 2), where it has a limit.
std::optional<int64_t> left_in_group() {
  std::ifstream groups("/proc/self/cgroup");
  std::string folder;
  for (std::string line; std::getline(groups, line);) {
    if (line.starts_with("0::")) folder = "/sys/fs/cgroup" + line.substr(3);
  }
  if (folder.empty()) return std::nullopt;
  const std::optional<int64_t> most = number_in(folder + "/memory.max", "");
  const std::optional<int64_t> used = number_in(folder + "/memory.current", "");
  if (!most || !used) return std::nullopt;  // "max" is no number
  // Pages of files go when memory is wanted.
  const int64_t files = number_in(folder + "/memory.stat", "inactive_file ").value_or(0);
  return std::max<int64_t>(0, *most - *used + files);
}

}  // namespace

std::optional<int64_t> available_memory() {
  constexpr int64_t kKib = 1024;
  std::optional<int64_t> bytes = number_in("/proc/meminfo", "MemAvailable:");
  if (bytes) *bytes *= kKib;
  const std::optional<int64_t> group = left_in_group();
  if (bytes && group) return std::min(*bytes, *group);
  return bytes ? bytes : group;
}

}  // namespace segue::base
