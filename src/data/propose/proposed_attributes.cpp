#include "data/propose/proposed_attributes.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "data/log/log_schema.h"
#include "data/propose/column_shapes.h"
#include "data/propose/column_words.h"
#include "data/propose/proposal_words.h"

namespace segue::data {
namespace {

constexpr int kMostProposed = 6;

std::string cross_of(const std::string& name) { return "user_x_" + name; }

/// Names that attributes have: of columns of samples, and of files of the store.
class AttributeNames {
 public:
  AttributeNames() : columns_(reserved_columns()) {
    for (const char* const id : {"user", "item"}) {  // have counts and files of their own
      columns_.insert(id);
      files_.insert(id);
    }
  }

  /// The first free one for a column, of which `kept` values are kept. Crosses are called like it.
  std::string take(const std::string& column, int64_t kept) {
    AttributeFile a{
        .name = plain_letters(column), .separator = kept > 1 ? "|" : "", .max_values = kept};
    while (!is_free(a)) a.name += "_";
    for (const std::string& name : names_of(a)) columns_.insert(name);
    for (const std::string& name : a.columns()) files_.insert(file_of(name));
    return a.name;
  }

 private:
  static std::string file_of(const std::string& name) {
    return AttributeConfig{.name = name}.stem();
  }
  static std::vector<std::string> names_of(const AttributeFile& a) {
    std::vector<std::string> names = {a.name};
    for (const std::string& name : a.columns()) {
      if (name != a.name) names.push_back(name);
      names.push_back(candidate_column(name));
      names.push_back(cross_of(name));
    }
    return names;
  }
  bool is_free(const AttributeFile& a) const {
    const std::vector<std::string> columns = a.columns();
    return std::ranges::none_of(names_of(a), [&](const auto& n) { return columns_.contains(n); }) &&
           std::ranges::none_of(columns,
                                [&](const auto& n) { return files_.contains(file_of(n)); });
  }

  std::set<std::string> columns_, files_;
};

/// Which column of a table has items of the log.
struct ItemColumn {
  const ColumnSample* column = nullptr;  // null: none
  bool by_values = false;                // not by its name
};

class Attributes {
 public:
  Attributes(const FolderSample& folder, const TableSample& log, const ColumnRoles& roles)
      : folder_(folder), log_(log), roles_(roles) {}

  ProposedAttributes propose() && {
    const std::set<const ColumnSample*> used = {roles_.user, roles_.item,  roles_.time,
                                                roles_.kind, roles_.value, roles_.organic};
    for (const ColumnSample& c : log_.columns) {
      const bool flag = std::ranges::find(roles_.flags, &c) != roles_.flags.end();
      if (!flag && !used.contains(&c)) consider(log_, {roles_.item}, c);
    }
    add_unreadable(log_);
    for (const TableSample& table : folder_.tables) {
      if (&table != &log_) look_at(table);
    }
    if (!first_.empty()) cross();
    if (out_.csv_separator.empty()) out_.csv_separator = log_.csv.separator;
    return std::move(out_);
  }

 private:
  template <class... Args>
  void line(fmt::format_string<Args...> text, Args&&... args) {
    out_.text += fmt::format(text, std::forward<Args>(args)...) + "\n";
  }

  void add_unreadable(const TableSample& table) {
    for (const std::string& text : table.unreadable) {
      out_.left_out.push_back((&table == &log_ ? "" : table.pattern + " ") + text);
    }
  }

  /// A file beside the log.
  void look_at(const TableSample& table) {
    const ItemColumn item = item_of(table);
    if (item.column == nullptr) {
      out_.left_out.push_back(fmt::format(
          "{}: no column of items as in the log{}", table.pattern,
          tells_of_users(table) ? "; [[user_attributes]] takes what it knows of users" : ""));
      return;
    }
    if (const std::string why = cannot_be_read(table, *item.column); !why.empty()) {
      out_.left_out.push_back(table.pattern + ": " + why);
      return;
    }
    const int before = num_proposed_;
    for (const ColumnSample& c : table.columns) {
      if (&c != item.column) consider(table, item, c);
    }
    add_unreadable(table);
    if (num_proposed_ == before) return;
    if (!table.parquet && log_.parquet) out_.csv_separator = table.csv.separator;
    const int64_t bad = rows_without_id(*item.column) + table.broken_rows;
    out_.bad_share = std::max(out_.bad_share, share(bad, table.rows + table.broken_rows));
  }

  std::string cannot_be_read(const TableSample& table, const ColumnSample& item) const {
    const std::string& separator = log_.parquet ? out_.csv_separator : log_.csv.separator;
    if (!table.parquet && !separator.empty() && table.csv.separator != separator) {
      return fmt::format("has {} between fields, where {} {}; bring both alike, or one as Parquet",
                         as_toml(table.csv.separator),
                         log_.parquet ? "another file has" : "the log has", as_toml(separator));
    }
    if (item.is_text_in_file && roles_.item->type == ColumnSample::Type::kInteger) {
      return fmt::format("its {} is text, where the log has integers; write integers", item.name);
    }
    return "";
  }

  // ---- which of its columns has the items ----

  bool meets(const ColumnSample& c) const {
    return std::ranges::any_of(c.values, [&](const auto& v) { return roles_.item->has(v); });
  }

  bool tells_of_users(const TableSample& table) const {
    const bool named = table.csv.columns.empty() && roles_.user != nullptr &&
                       table.find(roles_.user->name) != nullptr;
    return named || is_of_users(table.pattern);
  }

  ItemColumn item_of(const TableSample& table) const {
    const bool names = table.csv.columns.empty();
    if (names) {
      const ColumnSample* const same = table.find(roles_.item->name);
      if (same != nullptr && log_.csv.columns.empty()) return {meets(*same) ? same : nullptr};
      const ColumnSample* const called = guess_roles(table).item;
      if (called != nullptr && any_word(called->name, kItemWords) && meets(*called)) {
        return {called};
      }
    }
    if (tells_of_users(table)) return {};
    const ColumnSample* best = nullptr;
    double most = 0;
    for (const ColumnSample& c : table.columns) {
      const double alike = likeness(c, *roles_.item);
      if (alike <= most || (names && any_word(c.name, kUserWords))) continue;
      if (roles_.user != nullptr && likeness(c, *roles_.user) > alike) continue;
      best = &c;
      most = alike;
    }
    return {best, true};
  }

  /// What the ids of a table of them have in common with those of the log: 1, all; 0, less than
  /// half, or it is no table of them.
  static double likeness(const ColumnSample& c, const ColumnSample& ids) {
    const bool may_be =
        c.type == ColumnSample::Type::kInteger || c.type == ColumnSample::Type::kText;
    const int64_t values = std::ssize(c.values), all = std::ssize(ids.values);
    if (!may_be || values * 2 < c.present() || values < 2) return 0;
    const int64_t both =
        std::ranges::count_if(c.values, [&](const auto& value) { return ids.has(value); });
    if (both * 2 < std::min(values, all)) return 0;
    return share(both, values + all - both);
  }

  // ---- its other columns ----

  void consider(const TableSample& table, const ItemColumn& item, const ColumnSample& c) {
    const bool of_log = &table == &log_;
    const std::string why = attribute_objection(roles_, *item.column, c, of_log, room_);
    if (why.empty() && num_proposed_ < kMostProposed) return attribute(table, item, c);
    out_.left_out.push_back(fmt::format("{}{}: {}", of_log ? "" : table.pattern + " ", c.name,
                                        why.empty() ? "an attribute too, if you want more" : why));
  }

  void attribute(const TableSample& table, const ItemColumn& item, const ColumnSample& c) {
    const SeveralValues several = several_values(c, room_);
    const bool bag = !several.separator.empty();
    const std::string name = names_.take(c.name, bag ? several.kept : 1);
    line("[[attributes]]  # {} values: {}", c.values.size(), some_values(c));
    line("name = {}\nfile = {}\nitem = {}\nvalue = {}", as_toml(name), as_toml(table.pattern),
         as_toml(item.column->name), as_toml(c.name));
    if (item.by_values) {
      line("#   By its values, not by its name, {} has the items of the log: check it.",
           as_comment(item.column->name));
    }
    if (c.type == ColumnSample::Type::kInteger && c.has("0")) {
      line("zero = \"value\"  # 0 is one of the values; \"none\" if it says that there is none");
    }
    if (bag) {
      line("separator = {}  # in {} of the different fields, which are made of {} values",
           as_toml(several.separator), per_cent(several.share), several.values.size());
      line("max_values = {}  # {} of the rows have no more, the longest has {}; the first are kept",
           several.kept, per_cent(several.enough), several.most);
      room_ -= several.kept - 1;
    }
    if (!table.csv.columns.empty()) line("csv_columns = {}", list_of(table.csv.columns));
    line("");
    if (first_.empty()) first_ = bag ? name + "_1" : name;
    ++num_proposed_;
  }

  void cross() {
    const double rows = std::clamp(log_.all_rows / 5, 10'000.0, 20'000'000.0);
    line("# What a user makes of each {}: a feature of its own.", first_);
    line("[[crosses]]\nname = {}\nkeys = [\"uid\", {}]\nrows = {}\n", as_toml(cross_of(first_)),
         as_toml(first_), static_cast<int64_t>(rows));
  }

  const FolderSample& folder_;
  const TableSample& log_;
  const ColumnRoles& roles_;
  ProposedAttributes out_;
  AttributeNames names_;
  std::string first_;  // column of the first attribute
  int num_proposed_ = 0;
  int64_t room_ = int64_t{kMaxAttributes} - kMostProposed;  // for more values than one of each
};

}  // namespace

ProposedAttributes propose_attributes(const FolderSample& folder, const TableSample& log,
                                      const ColumnRoles& roles) {
  if (roles.item == nullptr) return {.csv_separator = log.csv.separator};
  return Attributes(folder, log, roles).propose();
}

int64_t rows_without_id(const ColumnSample& c) {
  int64_t rows = std::ssize(c.codes) - c.present();
  if (c.type != ColumnSample::Type::kInteger) return rows;
  for (size_t v = 0; v < c.values.size(); ++v) {
    if (std::isnan(c.number(v))) rows += c.counts[v];
  }
  return rows;
}

}  // namespace segue::data
