#include <algorithm>
#include <deque>

#include <fmt/format.h>

#include "base/config.h"
#include "base/config_tree.h"
#include "base/error.h"

namespace segue::base::detail {
namespace {

constexpr size_t kColumns = 100;

std::string format_value(bool value) { return value ? "true" : "false"; }
std::string format_value(int64_t value) { return std::to_string(value); }

/// Shortest digits that read back as the same bits; never mistaken for an integer.
std::string format_value(double value) {
  std::string text = fmt::format("{}", value);
  if (text.find_first_of(".ein") == std::string::npos) text += ".0";
  return text;
}

std::string format_value(const std::string& value) {
  if (!is_utf8(value)) {
    fail(ErrorCode::kConfig, "a string that is not UTF-8 text cannot be written as TOML");
  }
  return quote_toml(value);
}

template <class T>
std::string format_value(const std::vector<T>& values) {
  std::string text = "[";
  for (size_t i = 0; i < values.size(); ++i) text += (i == 0 ? "" : ", ") + format_value(values[i]);
  return text + "]";
}

/// `text` as comment lines, broken at spaces and line ends.
std::string comment(std::string_view text) {
  std::string lines;
  while (!text.empty()) {
    size_t length = std::min({text.find('\n'), text.size(), kColumns - 2});
    if (length < text.size() && text[length] != '\n') {
      const size_t space = text.rfind(' ', length);
      if (space != std::string_view::npos && space > 0) length = space;
    }
    lines += fmt::format("# {}\n", text.substr(0, length));
    text.remove_prefix(length);
    if (!text.empty() && (text[0] == ' ' || text[0] == '\n')) text.remove_prefix(1);
  }
  return lines;
}

/// Collects everything, then prints: in TOML the keys of a table come before its sub-tables,
/// whatever the order in which a struct describes them.
class Writer final : public ConfigVisitor {
 public:
  Writer() { open_.push_back(&root_); }

  void field(const char* name, bool& value, const char* help) override { add(name, value, help); }
  void field(const char* name, int64_t& value, const char* help) override {
    add(name, value, help);
  }
  void field(const char* name, double& value, const char* help) override { add(name, value, help); }
  void field(const char* name, std::string& value, const char* help) override {
    add(name, value, help);
  }
  void field(const char* name, std::vector<int64_t>& value, const char* help) override {
    add(name, value, help);
  }
  void field(const char* name, std::vector<double>& value, const char* help) override {
    add(name, value, help);
  }
  void field(const char* name, std::vector<std::string>& value, const char* help) override {
    add(name, value, help);
  }

  std::string text() const {
    std::string out;
    print(root_, out);
    if (out.starts_with('\n')) out.erase(0, 1);
    return out;
  }

 protected:
  void choose(const char* name, int& index, std::span<const char* const> names,
              const char* help) override {
    SEGUE_ASSERT(index >= 0 && static_cast<size_t>(index) < names.size(),
                 "an enum has a value without a name");
    const std::string with_names =
        fmt::format("{}{}({})", help, *help == '\0' ? "" : " ", fmt::join(names, " | "));
    add(name, std::string(names[static_cast<size_t>(index)]), with_names);
  }

  void begin_section(const char* name, const char* help) override { open(name, help, false); }
  void end_section() override { open_.pop_back(); }

  ListSize begin_list(const char* name, size_t size, const char* help) override {
    // An empty list must be said, or reading back would bring the default.
    if (size == 0) open_.back()->lines.push_back({name, "[]", help});
    lists_.push_back({name, help});
    return {size, false};
  }
  void begin_item(size_t index) override {
    open(lists_.back().name, index == 0 ? lists_.back().help : "", true);
  }
  void end_item() override { open_.pop_back(); }
  void end_list() override { lists_.pop_back(); }

 private:
  struct Line {
    std::string key;
    std::string value;
    std::string help;
  };
  struct Table {
    std::string path;
    std::string help;
    bool is_item = false;
    std::vector<Line> lines;
    std::deque<Table> tables;  // addresses stay valid while tables are added
  };
  struct List {
    const char* name;
    const char* help;
  };

  template <class T>
  void add(const char* name, const T& value, std::string_view help) {
    open_.back()->lines.push_back({name, format_value(value), std::string(help)});
  }

  void open(const char* name, const char* help, bool is_item) {
    Table& parent = *open_.back();
    const std::string path = parent.path.empty() ? name : fmt::format("{}.{}", parent.path, name);
    parent.tables.push_back({path, help, is_item, {}, {}});
    open_.push_back(&parent.tables.back());
  }

  static void print(const Table& table, std::string& out) {
    // A table that only holds tables needs no header of its own; an item of a list always does.
    const bool named = !table.path.empty();
    if (named && (table.is_item || !table.lines.empty() || table.tables.empty())) {
      out += '\n' + comment(table.help);
      out += (table.is_item ? "[[" : "[") + table.path + (table.is_item ? "]]\n" : "]\n");
    }
    for (const Line& line : table.lines) {
      const std::string text = fmt::format("{} = {}", line.key, line.value);
      const size_t width = text.size() + 4 + line.help.size();
      if (line.help.empty()) {
        out += text + '\n';
      } else if (width <= kColumns && line.help.find('\n') == std::string::npos) {
        out += fmt::format("{}  # {}\n", text, line.help);
      } else {
        out += comment(line.help) + text + '\n';
      }
    }
    for (const Table& inner : table.tables) print(inner, out);
  }

  Table root_;
  std::vector<Table*> open_;
  std::vector<List> lists_;
};

}  // namespace

std::string to_toml(const DescribeFunction& describe_fields) {
  Writer writer;
  describe_fields(writer);
  return writer.text();
}

}  // namespace segue::base::detail
