#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace segue::base {

/// Walks over the fields of a config struct. A struct takes part by a free function in its
/// namespace,
///     void describe(base::ConfigVisitor& v, ModelConfig& c) {
///       v.field("layers", c.layers, "number of STU layers");
///       v.choice("layer", c.layer, {"concat", "gated"}, "which published STU layer");
///       v.section("attention", c.attention);
///       v.list("tables", c.tables, "embedding tables");
///     }
/// and gets reading (file, --set, environment), unknown-key errors, the resolved file and help from
/// it. Defaults live in the struct, once. Range checks belong to the struct's own validate().
class ConfigVisitor {
 public:
  virtual ~ConfigVisitor() = default;

  virtual void field(const char* name, bool& value, const char* help) = 0;
  virtual void field(const char* name, int64_t& value, const char* help) = 0;
  virtual void field(const char* name, double& value, const char* help) = 0;
  virtual void field(const char* name, std::string& value, const char* help) = 0;
  virtual void field(const char* name, std::vector<int64_t>& value, const char* help) = 0;
  virtual void field(const char* name, std::vector<double>& value, const char* help) = 0;
  virtual void field(const char* name, std::vector<std::string>& value, const char* help) = 0;

  /// An enum whose enumerators count from 0, written by name in the file.
  template <class Enum>
  void choice(const char* name, Enum& value, std::initializer_list<const char*> names,
              const char* help) {
    int index = static_cast<int>(value);
    choose(name, index, std::span(names.begin(), names.size()), help);
    value = static_cast<Enum>(index);
  }

  template <class Struct>
  void section(const char* name, Struct& value, const char* help = "") {
    begin_section(name, help);
    describe(*this, value);
    end_section();
  }

  /// An array of tables ([[name]]). A list in the file replaces the default as a whole.
  template <class Struct>
  void list(const char* name, std::vector<Struct>& values, const char* help = "") {
    const ListSize size = begin_list(name, values.size(), help);
    if (size.replaced) values.clear();
    values.resize(size.items);
    for (size_t i = 0; i < values.size(); ++i) {
      begin_item(i);
      describe(*this, values[i]);
      end_item();
    }
    end_list();
  }

 protected:
  /// How a list looks after this visit: `replaced` items start from the struct's defaults.
  struct ListSize {
    size_t items = 0;
    bool replaced = false;
  };

  virtual void choose(const char* name, int& index, std::span<const char* const> names,
                      const char* help) = 0;
  virtual void begin_section(const char* name, const char* help) = 0;
  virtual void end_section() = 0;
  virtual ListSize begin_list(const char* name, size_t size, const char* help) = 0;
  virtual void begin_item(size_t index) = 0;
  virtual void end_item() = 0;
  virtual void end_list() = 0;
};

/// Where values come from, later ones win: the file, then the environment, then --set.
struct ConfigSources {
  std::string file;  // TOML; empty: defaults only
  std::string text;  // TOML itself, in place of a file; `file` then names it in messages
  std::vector<std::string> sets;  // "model.layers=3"; list items by number: "tables.0.rows=10"
  /// SEGUE_MODEL__LAYERS=3, SEGUE_TABLES__0__ROWS=10, SEGUE__PRESET=small for a key at the top.
  /// Case does not matter after the prefix; names without a double underscore are not ours to
  /// judge.
  bool use_environment = true;
};

namespace detail {
using DescribeFunction = std::function<void(ConfigVisitor&)>;
void load_config(const DescribeFunction& describe_fields, const ConfigSources& sources);
std::string to_toml(const DescribeFunction& describe_fields);
}  // namespace detail

/// Fills `config`. An integer serves where a double is wanted, an integral float where an integer
/// is, a string where a list of them is. A value of --set or the environment is read as TOML, or as
/// plain text where that fails or a string is wanted. All mistakes are collected into one message,
/// one per line. Throws Error(kConfig) naming file, line and the nearest valid key for an unknown
/// key, expected and found type for a wrong type, and the valid names for a bad choice;
/// Error(kNotFound) for a missing file.
template <class Struct>
void load_config(Struct& config, const ConfigSources& sources) {
  detail::load_config([&config](ConfigVisitor& v) { describe(v, config); }, sources);
}

/// The resolved config as TOML with help as comments; reading it back gives the same struct.
template <class Struct>
std::string to_toml(const Struct& config) {
  Struct copy = config;
  return detail::to_toml([&copy](ConfigVisitor& v) { describe(v, copy); });
}

/// The string that the sources give to a top-level key such as "preset", read before anything else.
std::optional<std::string> peek_string(const ConfigSources& sources, std::string_view key);

/// The candidate closest to `name` by edit distance, empty if none is near.
std::string nearest_name(std::string_view name, std::span<const std::string> candidates);

}  // namespace segue::base
