#include <charconv>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "edu/registry.h"

namespace segue::edu {
namespace {

using Json = base::CheckedJson;

constexpr int kDeepest = 32;

std::string_view trim(std::string_view s) {
  const size_t begin = s.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return {};
  return s.substr(begin, s.find_last_not_of(" \t") - begin + 1);
}

class YamlReader {
 public:
  YamlReader(std::string_view text, std::string path) : path_(std::move(path)) {
    for (size_t at = 0; at < text.size();) {
      const size_t end = std::min(text.find('\n', at), text.size());
      std::string_view line = text.substr(at, end - at);
      if (line.ends_with('\r')) line.remove_suffix(1);
      lines_.push_back(line);
      at = end + 1;
    }
  }

  Json read() {
    skip_empty();
    if (at_ == lines_.size()) return Json::object();
    Json value = block(indent(), 0);
    skip_empty();
    if (at_ < lines_.size()) wrong("stands further left than what it belongs to");
    return value;
  }

 private:
  [[noreturn]] void wrong(const std::string& what) const {
    fail(ErrorCode::kCorrupt,
         fmt::format("{}:{}: {}; registries are written in a plain part of YAML "
                     "(mappings, lists of scalars, comments), or in JSON",
                     path_, std::min(at_ + 1, lines_.size()), what));
  }

  /// The line without its comment.
  std::string_view content() const {
    const std::string_view line = lines_[at_];
    char quote = 0;
    for (size_t i = 0; i < line.size(); ++i) {
      const char c = line[i];
      if (quote != 0) {
        if (c == quote) quote = 0;
      } else if ((c == '"' || c == '\'') &&
                 (i == 0 ||
                  std::string_view(" {[,:").find(line[i - 1]) != std::string_view::npos)) {
        quote = c;
      } else if (c == '#' && (i == 0 || line[i - 1] == ' ' || line[i - 1] == '\t')) {
        return trim(line.substr(0, i));
      }
    }
    return trim(line);
  }
  void skip_empty() {
    while (at_ < lines_.size() && (content().empty() || content() == "---")) ++at_;
  }
  int indent() const {
    const size_t spaces = lines_[at_].find_first_not_of(' ');
    if (spaces != std::string_view::npos && lines_[at_][spaces] == '\t')
      wrong("is indented by a tab");
    return static_cast<int>(spaces);
  }

  Json block(int column, int depth) {
    if (depth > kDeepest) wrong("is nested too deep");
    const bool list = content() == "-" || content().starts_with("- ");
    Json out = list ? Json::array() : Json::object();
    for (skip_empty(); at_ < lines_.size() && indent() >= column; skip_empty()) {
      if (indent() > column) wrong("stands further right than its neighbours");
      if (list) {
        if (!content().starts_with("- ")) break;  // its key stood as far left
        out.push_back(scalar(trim(content().substr(2))));
        ++at_;
      } else {
        entry(column, depth, out);
      }
    }
    return out;
  }

  void entry(int column, int depth, Json& out) {
    const std::string_view line = content();
    std::string key;
    std::string_view rest;
    if (!split_key(line, key, rest))
      wrong(fmt::format("`{}` is no `key: value`", line.substr(0, 40)));
    if (out.contains(key)) wrong(fmt::format("`{}` is there twice", key));
    if (rest == "|" || rest == ">" || rest == "|-" || rest == ">-") {
      ++at_;
      out[key] = text_block(column, rest[0] == '|' ? '\n' : ' ');
      return;
    }
    if (!rest.empty()) {
      out[key] = scalar(rest);
      ++at_;
      return;
    }
    ++at_;
    skip_empty();
    // Items of a list may stand as far left as its key.
    const bool deeper = at_ < lines_.size() &&
                        (indent() > column || (indent() == column && content().starts_with("- ")));
    if (deeper) {
      out[key] = block(indent(), depth + 1);
    } else {
      out[key] = nullptr;
    }
  }

  static bool split_key(std::string_view line, std::string& key, std::string_view& rest) {
    size_t at = 0;
    if (line.starts_with('"') || line.starts_with('\'')) {
      const size_t end = line.find(line[0], 1);
      if (end == std::string_view::npos) return false;
      key = line.substr(1, end - 1);
      at = end + 1;
    } else {
      at = line.find(": ");
      if (at == std::string_view::npos && line.ends_with(':')) at = line.size() - 1;
      if (at == std::string_view::npos) return false;
      key = trim(line.substr(0, at));
    }
    if (at >= line.size() || line[at] != ':') return false;
    rest = trim(line.substr(at + 1));
    return !key.empty();
  }

  std::string text_block(int column, char joint) {
    std::string out;
    for (; at_ < lines_.size(); ++at_) {
      if (trim(lines_[at_]).empty()) continue;
      if (indent() <= column) break;
      out += (out.empty() ? "" : std::string(1, joint)) + std::string(trim(lines_[at_]));
    }
    return out;
  }

  Json scalar(std::string_view text) {
    size_t used = 0;
    Json value = text.starts_with('{') || text.starts_with('[') ? flow(text, used, 0) : plain(text);
    if (used != 0 && !trim(text.substr(used)).empty()) wrong("has more behind the bracket");
    return value;
  }

  /// { a: 1, b: [x, y] } on one line.
  Json flow(std::string_view text, size_t& at, int depth) {
    if (depth > kDeepest) wrong("is nested too deep");
    const bool mapping = text[at] == '{';
    const char end = mapping ? '}' : ']';
    Json out = mapping ? Json::object() : Json::array();
    ++at;
    for (;;) {
      while (at < text.size() && (text[at] == ' ' || text[at] == ',')) ++at;
      if (at >= text.size()) wrong(fmt::format("has a bracket without its `{}`", end));
      if (text[at] == end) break;
      std::string key;
      if (mapping) {
        const size_t colon = text.find(':', at);
        if (colon == std::string_view::npos) wrong("has a member without `:`");
        key = trim(text.substr(at, colon - at));
        if (key.size() >= 2 && key.front() == '"' && key.back() == '"')
          key = key.substr(1, key.size() - 2);
        if (out.contains(key)) wrong(fmt::format("`{}` is there twice", key));
        at = text.find_first_not_of(' ', colon + 1);
        if (at == std::string_view::npos) wrong("has a member without a value");
      }
      Json value = flow_value(text, at, depth);
      if (mapping)
        out[key] = std::move(value);
      else
        out.push_back(std::move(value));
    }
    ++at;
    return out;
  }
  Json flow_value(std::string_view text, size_t& at, int depth) {
    if (text[at] == '{' || text[at] == '[') return flow(text, at, depth + 1);
    size_t end = 0;
    if (text[at] == '"' || text[at] == '\'') {
      end = text.find(text[at], at + 1);
      if (end == std::string_view::npos) wrong("has a quote that does not end");
      ++end;
    } else {
      end = std::min(text.find_first_of(",}]", at), text.size());
    }
    const Json value = plain(trim(text.substr(at, end - at)));
    at = end;
    return value;
  }

  Json plain(std::string_view text) {
    if (text.starts_with('"') || text.starts_with('\'')) {
      if (text.size() < 2 || text.back() != text[0]) wrong("has a quote that does not end");
      return std::string(text.substr(1, text.size() - 2));
    }
    if (text.empty() || text == "~" || text == "null") return nullptr;
    if (text == "true") return true;
    if (text == "false") return false;
    if (text.starts_with('&') || text.starts_with('*') || text.starts_with('!')) {
      wrong("uses anchors or tags");
    }
    int64_t whole = 0;
    const char* last = text.data() + text.size();
    if (const auto r = std::from_chars(text.data(), last, whole);
        r.ec == std::errc() && r.ptr == last) {
      return whole;
    }
    double real = 0;
    if (const auto r = std::from_chars(text.data(), last, real);
        r.ec == std::errc() && r.ptr == last) {
      return real;
    }
    return std::string(text);
  }

  std::string path_;
  std::vector<std::string_view> lines_;
  size_t at_ = 0;
};

}  // namespace

base::CheckedJson read_yaml(std::string_view text, const std::string& path) {
  const size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin == std::string_view::npos) return Json::object();
  if (text[begin] == '{') return base::parse_checked(text);
  return YamlReader(text, path).read();
}

}  // namespace segue::edu
