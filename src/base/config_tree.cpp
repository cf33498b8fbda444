#include "base/config_tree.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <optional>
#include <tuple>

#include <fmt/format.h>
#include <toml++/toml.h>
#include <unistd.h>

#include "base/error.h"
#include "base/file.h"
#include "base/toml_depth.h"

namespace segue::base::detail {
namespace {

using Kind = ConfigNode::Kind;
using Source = ConfigPlace::Source;

std::string lower(std::string_view text) {
  std::string result(text);
  for (char& c : result) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return result;
}

/// `base` with the position of a node; values of overrides have none.
ConfigPlace place_at(const ConfigPlace& base, const toml::source_region& region) {
  ConfigPlace place = base;
  if (base.source == Source::kFile) {
    place.line = static_cast<int64_t>(region.begin.line);
    place.column = static_cast<int64_t>(region.begin.column);
  }
  return place;
}

ConfigNode convert(const toml::node& from, const ConfigPlace& base) {
  ConfigNode node;
  node.place = node.key_place = place_at(base, from.source());
  if (const toml::table* table = from.as_table()) {
    node.kind = Kind::kTable;
    for (const auto& [key, value] : *table) {
      ConfigNode child = convert(value, base);
      child.key = std::string(key.str());
      child.key_place = place_at(base, key.source());
      node.members.push_back(std::move(child));
    }
  } else if (const toml::array* array = from.as_array()) {
    node.kind = Kind::kArray;
    for (const toml::node& item : *array) node.items.push_back(convert(item, base));
  } else if (const auto* text = from.as_string()) {
    node.kind = Kind::kString;
    node.text = text->get();
  } else if (const auto* integer = from.as_integer()) {
    node.kind = Kind::kInteger;
    node.integer = integer->get();
  } else if (const auto* number = from.as_floating_point()) {
    node.kind = Kind::kFloat;
    node.number = number->get();
  } else if (const auto* boolean = from.as_boolean()) {
    node.kind = Kind::kBool;
    node.boolean = boolean->get();
  } else {
    node.kind = Kind::kDate;
  }
  return node;
}

[[noreturn]] void fail_missing(const std::string& path) {
  namespace fs = std::filesystem;
  std::vector<std::string> names;
  std::error_code error;
  const fs::path folder = fs::path(path).parent_path();
  for (const auto& entry : fs::directory_iterator(folder.empty() ? "." : folder, error)) {
    if (entry.path().extension() == ".toml") names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  const std::string nearest = nearest_name(fs::path(path).filename().string(), names);
  fail(ErrorCode::kNotFound,
       fmt::format("{}: no such file; {}", path,
                   nearest.empty()
                       ? "give the path of a TOML file"
                       : fmt::format("did you mean `{}`?", (folder / nearest).string())));
}

ConfigNode read_tree(const std::string& path, const std::string& given_text) {
  if (given_text.empty() && !exists(path)) fail_missing(path);
  const std::string text = given_text.empty() ? read_file(path) : given_text;
  const ConfigPlace base{Source::kFile, path, 0, 0};
  if (const int64_t line = line_of_deep_key(text); line > 0) {
    fail(ErrorCode::kConfig,
         fmt::format("{}:{}: a key of more than {} parts", path, line, kMostKeyParts));
  }
  try {
    return convert(toml::parse(std::string_view(text), std::string_view(path)), base);
  } catch (const toml::parse_error& error) {
    fail(ErrorCode::kConfig,
         fmt::format("{}: {}", place_at(base, error.source()).to_string(), error.description()));
  }
}

/// The text of an override as a TOML value, or as a string if it is none.
ConfigNode parse_override(const std::string& raw, const ConfigPlace& place) {
  ConfigNode node;
  node.kind = Kind::kString;
  node.text = raw;
  node.place = node.key_place = place;
  try {
    const toml::table table =
        line_of_deep_key(raw) > 0 ? toml::table() : toml::parse("value = " + raw);
    // A line break in the text could smuggle in a second key: then it is not one value.
    if (table.size() == 1) node = convert(*table.get("value"), place);
  } catch (const toml::parse_error&) {
    // stays a string
  }
  node.raw = raw;
  node.has_raw = true;
  return node;
}

struct Override {
  ConfigPlace place;
  std::vector<std::string> path;
  std::string raw;
  bool any_case = false;
};

std::string join(const std::vector<std::string>& path, size_t count) {
  return fmt::format("{}",
                     fmt::join(path.begin(), path.begin() + static_cast<ptrdiff_t>(count), "."));
}

/// Lays `value` over `target`: tables merge key by key, anything else replaces. The key stays.
void merge(ConfigNode& target, ConfigNode value) {
  if (target.kind != Kind::kTable || value.kind != Kind::kTable || target.members.empty()) {
    value.key = std::move(target.key);
    value.any_case = target.any_case;
    target = std::move(value);
    return;
  }
  for (ConfigNode& member : value.members) {
    if (ConfigNode* existing = target.find(member.key)) {
      merge(*existing, std::move(member));
    } else {
      target.members.push_back(std::move(member));
    }
  }
}

/// The member of a table that a step of an override's path means; made if it is not there.
ConfigNode& member_for(ConfigNode& table, const std::string& key, const Override& from) {
  if (ConfigNode* existing = table.find(key)) return *existing;
  for (ConfigNode& member : table.members) {
    if (from.any_case && lower(member.key) == lower(key)) return member;
  }
  ConfigNode made;
  made.key = key;
  made.place = made.key_place = from.place;
  made.any_case = from.any_case;
  return table.members.emplace_back(std::move(made));
}

void apply(ConfigNode& root, const Override& from, std::vector<ConfigProblem>& problems) {
  ConfigNode* node = &root;
  for (size_t step = 0; step < from.path.size(); ++step) {
    const std::string& key = from.path[step];
    if (node->kind == Kind::kArray) {
      size_t index = 0;
      const auto [stop, error] = std::from_chars(key.data(), key.data() + key.size(), index);
      const bool is_number = error == std::errc() && stop == key.data() + key.size();
      if (!is_number || index > node->items.size()) {
        problems.push_back(
            {from.place,
             fmt::format("`{}`: list `{}` has {} items, counted from 0; `{}` is neither "
                         "one of them nor the next",
                         join(from.path, from.path.size()), join(from.path, step),
                         node->items.size(), key)});
        return;
      }
      if (index == node->items.size()) {
        node->items.emplace_back();
        node->items.back().place = node->items.back().key_place = from.place;
      }
      node = &node->items[index];
      continue;
    }
    if (node->kind != Kind::kTable) {
      ConfigNode table;
      table.place = table.key_place = from.place;
      merge(*node, std::move(table));
    }
    node = &member_for(*node, key, from);
  }
  merge(*node, parse_override(from.raw, from.place));
}

std::vector<std::string> split(std::string_view text, std::string_view separator) {
  std::vector<std::string> parts;
  for (;;) {
    const size_t end = text.find(separator);
    parts.emplace_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + separator.size());
  }
}

bool has_empty(const std::vector<std::string>& path) {
  return std::any_of(path.begin(), path.end(), [](const auto& part) { return part.empty(); });
}

std::vector<Override> environment_overrides(std::vector<ConfigProblem>& problems) {
  constexpr std::string_view kPrefix = "SEGUE_";
  std::vector<Override> overrides;
  for (char** variable = environ; variable != nullptr && *variable != nullptr; ++variable) {
    const std::string_view text = *variable;
    const size_t equals = text.find('=');
    if (equals == std::string_view::npos || !text.starts_with(kPrefix)) continue;
    const std::string_view name = text.substr(0, equals);
    if (name.find("__") == std::string_view::npos) continue;
    std::string_view key = name.substr(kPrefix.size());
    if (key.starts_with('_')) key.remove_prefix(1);  // SEGUE__KEY: a key at the top
    const ConfigPlace place{Source::kEnvironment, std::string(name), 0, 0};
    std::vector<std::string> path = split(lower(key), "__");
    if (has_empty(path)) {
      problems.push_back({place, "expected a name such as SEGUE_SECTION__KEY"});
      continue;
    }
    overrides.push_back({place, std::move(path), std::string(text.substr(equals + 1)), true});
  }
  // The order of the environment is an accident; it must decide nothing.
  std::sort(overrides.begin(), overrides.end(),
            [](const Override& a, const Override& b) { return a.place.name < b.place.name; });
  return overrides;
}

std::string trim(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return "";
  return std::string(text.substr(begin, text.find_last_not_of(" \t") - begin + 1));
}

std::optional<Override> parse_set(const std::string& text, std::vector<ConfigProblem>& problems) {
  const ConfigPlace place{Source::kSet, "--set", 0, 0};
  const size_t equals = text.find('=');
  std::vector<std::string> path = split(text.substr(0, equals), ".");
  for (std::string& part : path) part = trim(part);
  if (equals == std::string::npos || has_empty(path)) {
    problems.push_back({place, fmt::format("`{}`: expected section.key=value", text)});
    return std::nullopt;
  }
  return Override{place, std::move(path), text.substr(equals + 1), false};
}

}  // namespace

std::string ConfigPlace::to_string() const {
  return line > 0 ? fmt::format("{}:{}:{}", name, line, column) : name;
}

ConfigNode* ConfigNode::find(std::string_view name) {
  for (ConfigNode& member : members) {
    if (member.key == name) return &member;
  }
  for (ConfigNode& member : members) {
    if (member.any_case && lower(member.key) == lower(name)) return &member;
  }
  return nullptr;
}

ConfigNode read_config_tree(const ConfigSources& sources, std::vector<ConfigProblem>& problems) {
  ConfigNode root;
  if (!sources.file.empty()) root = read_tree(sources.file, sources.text);
  std::vector<Override> overrides;
  if (sources.use_environment) overrides = environment_overrides(problems);
  for (const std::string& set : sources.sets) {
    if (std::optional<Override> parsed = parse_set(set, problems)) {
      overrides.push_back(*std::move(parsed));
    }
  }
  for (const Override& from : overrides) {
    if (from.path.size() > kMostKeyParts) {
      problems.push_back({from.place, fmt::format("a key of more than {} parts", kMostKeyParts)});
    } else if (is_utf8(from.raw)) {
      apply(root, from, problems);
    } else {
      problems.push_back({from.place, fmt::format("value of `{}` is not UTF-8 text",
                                                  join(from.path, from.path.size()))});
    }
  }
  return root;
}

void throw_problems(std::vector<ConfigProblem> problems) {
  if (problems.empty()) return;
  std::stable_sort(problems.begin(), problems.end(), [](const auto& a, const auto& b) {
    return std::tuple(a.place.source, a.place.line, a.place.column) <
           std::tuple(b.place.source, b.place.line, b.place.column);
  });
  std::string message;
  if (problems.size() > 1) message = fmt::format("{} mistakes in the config:\n", problems.size());
  for (const ConfigProblem& problem : problems) {
    message += fmt::format("{}: {}\n", problem.place.to_string(), problem.text);
  }
  message.pop_back();
  fail(ErrorCode::kConfig, message);
}

std::string quote_toml(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    switch (c) {
      case '"':
        quoted += "\\\"";
        break;
      case '\\':
        quoted += "\\\\";
        break;
      case '\n':
        quoted += "\\n";
        break;
      case '\t':
        quoted += "\\t";
        break;
      case '\r':
        quoted += "\\r";
        break;
      default: {
        const auto byte = static_cast<unsigned char>(c);
        if (byte < 0x20 || byte == 0x7f) {
          quoted += fmt::format("\\u{:04X}", byte);
        } else {
          quoted += c;
        }
      }
    }
  }
  return quoted + '"';
}

bool is_utf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const auto byte = [&](size_t k) { return static_cast<unsigned char>(text[k]); };
    const unsigned lead = byte(i);
    const size_t length = lead < 0x80 ? 1 : lead < 0xc2 ? 0 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
    if (length == 0 || lead > 0xf4 || length > text.size() - i) return false;
    for (size_t k = 1; k < length; ++k) {
      if ((byte(i + k) & 0xc0) != 0x80) return false;
    }
    if (length > 2) {  // overlong forms, surrogates and code points above U+10FFFF
      const unsigned next = byte(i + 1);
      if ((lead == 0xe0 && next < 0xa0) || (lead == 0xed && next > 0x9f) ||
          (lead == 0xf0 && next < 0x90) || (lead == 0xf4 && next > 0x8f)) {
        return false;
      }
    }
    i += length;
  }
  return true;
}

}  // namespace segue::base::detail
