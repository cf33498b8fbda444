#include "base/config_checks.h"

#include <cmath>
#include <vector>

#include <fmt/format.h>

#include "base/config_tree.h"
#include "base/error.h"

// Comparisons are written so that NaN fails them.

namespace segue::base {

void fail_config(const std::string& message) { fail(ErrorCode::kConfig, message); }

void require_at_least(const char* key, int64_t value, int64_t least) {
  if (value < least) fail_config(fmt::format("{} must be at least {}, not {}", key, least, value));
}

void require_size(const char* key, int64_t value, int64_t most, int64_t least) {
  if (value >= least && value <= most) return;
  fail_config(fmt::format("{} must be between {} and {}, not {}", key, least, most, value));
}

void require_number(const char* key, double value) {
  if (value >= 0 && std::isfinite(value)) return;
  fail_config(fmt::format("{} must be a number and not negative, not {}", key, value));
}

void require_between(const char* key, double value, double least, double most) {
  if (value >= least && value <= most) return;
  fail_config(fmt::format("{} must be between {} and {}, not {}", key, least, most, value));
}

void require_share(const char* key, double value) {
  if (value >= 0 && value < 1) return;
  fail_config(fmt::format("{} must be in [0, 1), not {}", key, value));
}

bool has_key(const ConfigSources& sources, std::string_view key) {
  std::vector<detail::ConfigProblem> problems;
  return detail::read_config_tree(sources, problems).find(key) != nullptr;
}

}  // namespace segue::base
