#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/config.h"

// Inside of config*.cpp; keeps toml++ out of everything but one file.

namespace segue::base::detail {

/// Where a value was written. Problems are listed in this order: file, environment, --set.
struct ConfigPlace {
  enum class Source { kFile, kEnvironment, kSet };
  Source source = Source::kFile;
  std::string name;  // file name, variable or "--set"
  int64_t line = 0;
  int64_t column = 0;

  std::string to_string() const;
};

struct ConfigProblem {
  ConfigPlace place;
  std::string text;
};

struct ConfigNode {
  enum class Kind { kTable, kArray, kString, kInteger, kFloat, kBool, kDate };

  Kind kind = Kind::kTable;
  std::string key;  // as a member of a table
  ConfigPlace key_place;
  ConfigPlace place;  // of the value
  bool boolean = false;
  int64_t integer = 0;
  double number = 0.0;
  std::string text;  // of a string
  std::string raw;   // of an override: what the user typed
  bool has_raw = false;
  bool any_case = false;            // the key came from the environment, which knows no case
  bool used = false;                // some field asked for it
  std::vector<ConfigNode> members;  // of a table
  std::vector<ConfigNode> items;    // of an array

  bool is_override() const { return place.source != ConfigPlace::Source::kFile; }
  /// The member with this key, null if absent.
  ConfigNode* find(std::string_view name);
};

/// The values of all sources, later ones over earlier ones. Throws for a file that is missing or
/// not TOML; overrides that cannot be placed become problems.
ConfigNode read_config_tree(const ConfigSources& sources, std::vector<ConfigProblem>& problems);

/// Throws Error(kConfig) listing `problems`; returns if there are none.
void throw_problems(std::vector<ConfigProblem> problems);

std::string quote_toml(std::string_view text);
bool is_utf8(std::string_view text);

}  // namespace segue::base::detail
