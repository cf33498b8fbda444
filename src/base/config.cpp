#include "base/config.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>

#include <fmt/format.h>

#include "base/config_tree.h"
#include "base/error.h"

namespace segue::base {
namespace detail {
namespace {

using Kind = ConfigNode::Kind;

std::string join_path(std::string_view path, std::string_view key) {
  return path.empty() ? std::string(key) : fmt::format("{}.{}", path, key);
}

std::string did_you_mean(std::string_view name, std::span<const std::string> candidates) {
  const std::string nearest = nearest_name(name, candidates);
  return nearest.empty() ? "" : fmt::format("; did you mean `{}`?", nearest);
}

std::string describe_value(const ConfigNode& node) {
  constexpr size_t kLongest = 40;
  switch (node.kind) {
    case Kind::kTable:
      return "a table";
    case Kind::kArray:
      return "a list";
    case Kind::kString: {
      const bool is_long = node.text.size() > kLongest;
      return fmt::format("the string {}{}", quote_toml(node.text.substr(0, kLongest)),
                         is_long ? "..." : "");
    }
    case Kind::kInteger:
      return fmt::format("the integer {}", node.integer);
    case Kind::kFloat:
      return fmt::format("the number {}", node.number);
    case Kind::kBool:
      return node.boolean ? "true" : "false";
    case Kind::kDate:
      return "a date or time";
  }
  return "something else";
}

// ---- single values: true if the node fits ----

bool read_value(const ConfigNode& node, bool& value) {
  if (node.kind != Kind::kBool) return false;
  value = node.boolean;
  return true;
}

bool read_value(const ConfigNode& node, int64_t& value) {
  if (node.kind == Kind::kInteger) {
    value = node.integer;
    return true;
  }
  // 1e6 is the readable way to write a million; beyond 2^53 a double no longer names one integer.
  if (node.kind != Kind::kFloat || !(std::abs(node.number) < 0x1p53)) return false;
  if (node.number != std::trunc(node.number)) return false;
  value = static_cast<int64_t>(node.number);
  return true;
}

bool read_value(const ConfigNode& node, double& value) {
  if (node.kind == Kind::kInteger) {
    value = static_cast<double>(node.integer);
    return true;
  }
  if (node.kind != Kind::kFloat) return false;
  value = node.number;
  return true;
}

bool read_value(const ConfigNode& node, std::string& value) {
  if (node.kind != Kind::kString && !node.has_raw) return false;
  value = node.kind == Kind::kString ? node.text : node.raw;
  return true;
}

const char* expectation(const bool&) { return "true or false"; }
const char* expectation(const int64_t&) { return "an integer"; }
const char* expectation(const double&) { return "a number"; }
const char* expectation(const std::string&) { return "a string"; }

// ---- reading ----

class Reader final : public ConfigVisitor {
 public:
  Reader(ConfigNode& root, std::vector<ConfigProblem> problems) : problems_(std::move(problems)) {
    frames_.push_back({&root, "", {}, false});
  }

  void field(const char* name, bool& value, const char*) override { scalar(name, value); }
  void field(const char* name, int64_t& value, const char*) override { scalar(name, value); }
  void field(const char* name, double& value, const char*) override { scalar(name, value); }
  void field(const char* name, std::string& value, const char*) override { scalar(name, value); }
  void field(const char* name, std::vector<int64_t>& value, const char*) override {
    array(name, value, "a list of integers");
  }
  void field(const char* name, std::vector<double>& value, const char*) override {
    array(name, value, "a list of numbers");
  }
  void field(const char* name, std::vector<std::string>& value, const char*) override {
    array(name, value, "a list of strings");
  }

  /// To be called after the visit.
  void finish() {
    close_frame();
    SEGUE_ASSERT(frames_.empty(), "a section or list was begun and not ended");
    for (const Unknown& unknown : unknowns_) problems_.push_back(explain(unknown));
    throw_problems(std::move(problems_));
  }

 protected:
  void choose(const char* name, int& index, std::span<const char* const> names,
              const char*) override {
    const ConfigNode* node = take(name);
    if (node == nullptr) return;
    std::string word;
    const bool is_word = read_value(*node, word);
    for (size_t i = 0; is_word && i < names.size(); ++i) {
      if (word == names[i]) {
        index = static_cast<int>(i);
        return;
      }
    }
    const std::vector<std::string> candidates(names.begin(), names.end());
    problem(node->place, fmt::format("`{}` must be one of {}, found {}{}", path_of(name),
                                     fmt::join(candidates, ", "), describe_value(*node),
                                     is_word ? did_you_mean(word, candidates) : ""));
  }

  void begin_section(const char* name, const char*) override {
    ConfigNode* node = take(name);
    if (node != nullptr && node->kind != Kind::kTable) {
      wrong_type(*node, path_of(name), "a table");
      node = nullptr;
    }
    frames_.push_back({node, path_of(name), {}, false});
  }
  void end_section() override { close_frame(); }

  ListSize begin_list(const char* name, size_t size, const char*) override {
    ConfigNode* node = take(name);
    ListSize result{size, false};
    if (node != nullptr && node->kind == Kind::kArray) {
      result = {node->items.size(), true};
    } else if (node != nullptr && node->kind == Kind::kTable && node->is_override()) {
      // Items addressed by number on top of the default list; the next number appends.
      while (node->find(std::to_string(result.items)) != nullptr) ++result.items;
    } else if (node != nullptr) {
      wrong_type(*node, path_of(name), "a list of tables");
      node = nullptr;
    }
    frames_.push_back({node, path_of(name), {}, true});
    return result;
  }

  void begin_item(size_t index) override {
    const std::string name = std::to_string(index);
    Frame& list = frames_.back();
    ConfigNode* node = nullptr;
    if (list.node != nullptr && list.node->kind == Kind::kArray) {
      node = &list.node->items[index];
    } else {
      node = take(name.c_str());
    }
    if (node != nullptr && node->kind != Kind::kTable) {
      wrong_type(*node, path_of(name), "a table");
      node = nullptr;
    }
    frames_.push_back({node, path_of(name), {}, false});
  }
  void end_item() override { close_frame(); }
  void end_list() override { close_frame(); }

 private:
  struct Frame {
    ConfigNode* node = nullptr;  // null: no source mentions it
    std::string path;
    std::vector<std::string> known;
    bool is_list = false;
  };
  struct Unknown {
    ConfigPlace place;
    std::string section;
    std::string key;
    std::string rest;  // further parts of the path of an override, with a leading dot
    std::vector<std::string> known;
    bool in_list = false;
  };

  std::string path_of(std::string_view name) const { return join_path(frames_.back().path, name); }

  /// The value for a field of the open section, null if no source mentions it.
  ConfigNode* take(const char* name) {
    Frame& frame = frames_.back();
    frame.known.emplace_back(name);
    all_known_.push_back(path_of(name));
    ConfigNode* const node = frame.node == nullptr ? nullptr : frame.node->find(name);
    if (node != nullptr) node->used = true;
    return node;
  }

  template <class T>
  void scalar(const char* name, T& value) {
    const ConfigNode* node = take(name);
    if (node != nullptr && !read_value(*node, value)) {
      wrong_type(*node, path_of(name), expectation(value));
    }
  }

  template <class T>
  void array(const char* name, std::vector<T>& value, const char* expected) {
    const ConfigNode* node = take(name);
    if (node == nullptr) return;
    if constexpr (std::is_same_v<T, std::string>) {
      if (node->kind == Kind::kString) {
        value = {node->text};
        return;
      }
    }
    if (node->kind != Kind::kArray) {
      wrong_type(*node, path_of(name), expected);
      return;
    }
    std::vector<T> values(node->items.size());
    for (size_t i = 0; i < values.size(); ++i) {
      if (!read_value(node->items[i], values[i])) {
        wrong_type(node->items[i], path_of(fmt::format("{}.{}", name, i)), expectation(values[i]));
      }
    }
    value = std::move(values);
  }

  void problem(const ConfigPlace& place, std::string text) {
    problems_.push_back({place, std::move(text)});
  }
  void wrong_type(const ConfigNode& node, std::string_view path, std::string_view expected) {
    problem(node.place,
            fmt::format("`{}` must be {}, found {}", path, expected, describe_value(node)));
  }

  /// Ends the open section; keys of it that no field asked for are unknown.
  void close_frame() {
    const Frame frame = std::move(frames_.back());
    frames_.pop_back();
    if (frame.node == nullptr) return;
    for (const ConfigNode& node : frame.node->members) {
      if (node.used) continue;
      std::string rest;
      const ConfigNode* inner = &node;
      while (inner->is_override() && !inner->has_raw && inner->members.size() == 1) {
        inner = &inner->members[0];
        rest += '.' + inner->key;
      }
      unknowns_.push_back({node.key_place, frame.path, node.key, rest, frame.known, frame.is_list});
    }
  }

  ConfigProblem explain(const Unknown& unknown) const {
    const std::string full = join_path(unknown.section, unknown.key) + unknown.rest;
    if (unknown.in_list) {
      return {unknown.place, fmt::format("unknown key `{}`: list `{}` has {} items, counted from 0",
                                         full, unknown.section, unknown.known.size())};
    }
    const std::string text = fmt::format("unknown key `{}`", full);
    const std::string nearest = nearest_name(unknown.key, unknown.known);
    if (!nearest.empty()) {
      // Repeat the rest of the path only if that makes a key that exists.
      std::string suggestion = join_path(unknown.section, nearest);
      if (std::count(all_known_.begin(), all_known_.end(), suggestion + unknown.rest) != 0) {
        suggestion += unknown.rest;
      }
      return {unknown.place, fmt::format("{}; did you mean `{}`?", text, suggestion)};
    }
    for (const std::string& known : all_known_) {  // the right name in the wrong section
      if (known.ends_with('.' + unknown.key)) {
        return {unknown.place, fmt::format("{}; did you mean `{}`?", text, known)};
      }
    }
    return {unknown.place, fmt::format("{}; known here: {}", text, fmt::join(unknown.known, ", "))};
  }

  std::vector<ConfigProblem> problems_;
  std::vector<Frame> frames_;
  std::vector<Unknown> unknowns_;
  std::vector<std::string> all_known_;  // dotted keys of everything visited
};

}  // namespace

void load_config(const DescribeFunction& describe_fields, const ConfigSources& sources) {
  std::vector<ConfigProblem> problems;
  ConfigNode root = read_config_tree(sources, problems);
  Reader reader(root, std::move(problems));
  describe_fields(reader);
  reader.finish();
}

}  // namespace detail

std::optional<std::string> peek_string(const ConfigSources& sources, std::string_view key) {
  std::vector<detail::ConfigProblem> problems;
  detail::ConfigNode root = detail::read_config_tree(sources, problems);
  const detail::ConfigNode* node = root.find(key);
  std::string value;
  // Problems and wrong types are left to load_config, which can report all of them at once.
  if (node == nullptr || !detail::read_value(*node, value)) return std::nullopt;
  return value;
}

std::string nearest_name(std::string_view name, std::span<const std::string> candidates) {
  const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c | 0x20) : c; };
  // Edit distance with swaps of neighbours ("optimal string alignment"), ignoring case.
  const auto distance = [&](std::string_view a, std::string_view b) {
    std::vector<std::vector<size_t>> d(a.size() + 1, std::vector<size_t>(b.size() + 1));
    for (size_t i = 0; i <= a.size(); ++i) {
      for (size_t j = 0; j <= b.size(); ++j) {
        if (i == 0 || j == 0) {
          d[i][j] = i + j;
          continue;
        }
        const bool same = lower(a[i - 1]) == lower(b[j - 1]);
        d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + (same ? 0 : 1)});
        if (i > 1 && j > 1 && lower(a[i - 1]) == lower(b[j - 2]) &&
            lower(a[i - 2]) == lower(b[j - 1])) {
          d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
        }
      }
    }
    return d[a.size()][b.size()];
  };

  constexpr size_t kLongest = 200;  // a key of a megabyte is no typing error
  std::string best;
  size_t best_distance = 0;
  if (name.size() > kLongest) return best;
  for (const std::string& candidate : candidates) {
    if (candidate.size() > kLongest) continue;
    const size_t found = distance(name, candidate);
    // A third of the letters may be wrong; more is a different word.
    if (found > (std::max(name.size(), candidate.size()) + 2) / 3) continue;
    if (best.empty() || found < best_distance) {
      best = candidate;
      best_distance = found;
    }
  }
  return best;
}

}  // namespace segue::base
