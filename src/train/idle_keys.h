#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "train/run_config.h"

namespace segue::train {

/// What decides, beside the config, whether a key does anything.
struct RunSite {
  int64_t ranks = 1;
  bool gpu = false;
};

/// A key that somebody set and that does nothing in this run.
struct IdleKey {
  std::string key, value, why;
};

/// Of the keys that differ from their default, or the preset's, those without effect: equal on all
/// ranks. Contradictions are errors of RunConfig::validate.
std::vector<IdleKey> idle_keys(const RunConfig& config, const RunSite& site);

/// When a key matters. There is one for every key; items of lists have `*` for their number.
struct KeyRule {
  struct At {
    const RunConfig& config;
    RunSite site;
    size_t item = 0;  // of the innermost list
  };
  const char* key;                       // "a.*" covers all keys below a that have no rule
  bool (*matters)(const At&) = nullptr;  // null: always
  const char* why = "";                  // it does not
};
/// Null: somebody added a key and forgot to say when it matters.
const KeyRule* rule_of(std::string_view key);

}  // namespace segue::train
