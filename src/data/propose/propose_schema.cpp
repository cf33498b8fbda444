#include "data/propose/propose_schema.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "base/progress.h"
#include "base/time.h"
#include "data/log/log_reader.h"
#include "data/log/log_schema.h"
#include "data/propose/column_roles.h"
#include "data/propose/column_shapes.h"
#include "data/propose/column_words.h"
#include "data/propose/proposal_words.h"
#include "data/propose/proposed_attributes.h"
#include "data/propose/table_sample.h"
#include "data/store/store_writer.h"

namespace segue::data {
namespace {

using Type = ColumnSample::Type;

/// Kinds by number of rows, the commonest first.
std::vector<size_t> by_count(const ColumnSample& c) {
  std::vector<size_t> order(c.values.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::ranges::stable_sort(order, std::greater<>(), [&](size_t i) { return c.counts[i]; });
  return order;
}

/// Writes the schema from top to bottom.
class Proposal {
 public:
  Proposal(const std::string& raw, const FolderSample& folder)
      : raw_(raw), folder_(folder), table_(choose_table(folder)), roles_(guess_roles(table_)) {
    attributes_ = propose_attributes(folder_, table_, roles_);
  }

  std::string text() {
    head();
    columns();
    events_to_predict();
    split();
    pools();
    out_ += attributes_.text;
    foot();
    return out_;
  }

 private:
  /// The table that has most of what a log needs; of equal ones the largest.
  static const TableSample& choose_table(const FolderSample& folder) {
    const TableSample* best = &folder.tables.front();
    int most = -1;
    for (const TableSample& table : folder.tables) {
      const ColumnRoles r = guess_roles(table);
      const int found = (r.user != nullptr ? 1 : 0) + (r.item != nullptr ? 1 : 0) +
                        (r.time != nullptr ? 2 : 0) + (r.ids_by_name ? 1 : 0);
      if (found > most) {
        best = &table;
        most = found;
      }
    }
    return *best;
  }

  template <class... Args>
  void line(fmt::format_string<Args...> text, Args&&... args) {
    out_ += fmt::format(text, std::forward<Args>(args)...) + "\n";
  }

  void head() {
    line(
        "# Proposed by `segue init --raw {}` from {} rows of {}: read it, and correct what is "
        "wrong.",
        as_comment(raw_), table_.rows, as_comment(table_.pattern));
    line("# Lines with {} are what the files do not tell. docs/prep.md has every key.\n", kFillIn);
    line("events = {}  # {} file{}, about {} rows", as_toml(table_.pattern), table_.files.size(),
         table_.files.size() == 1 ? "" : "s", base::format_count(table_.all_rows));
    if (list_log_files(folder_.folder, table_.pattern).size() != table_.files.size()) {
      line("#   {}: there are files of this name that have other columns; name those of the log.",
           kFillIn);
    }
    const std::string& separator = attributes_.csv_separator;
    if (separator != ",") {
      line("csv_separator = {}{}", as_toml(separator),
           table_.parquet ? "  # of files that tell of items" : "");
    }
    if (!table_.csv.columns.empty()) {
      line("csv_columns = {}  # the file has no header line: call them as you like",
           list_of(table_.csv.columns));
    }
  }

  /// Rows without a value in a column that prep needs.
  void count_missing(const ColumnSample& c) {
    bad_rows_ += static_cast<int64_t>(c.codes.size()) - c.present();
  }

  /// `key = "column"`, and what speaks for it.
  void column(const char* key, const ColumnSample* c, const std::string& why) {
    if (c == nullptr) {
      std::vector<std::string> names;
      for (const ColumnSample& other : table_.columns) names.push_back(as_comment(other.name));
      line("{} = \"\"  # {}: which of these? {}", key, kFillIn, fmt::join(names, ", "));
      for (const ColumnSample& other : table_.columns) {
        if (key != std::string("item") || !holds_several_items(other)) continue;
        line("#   {} holds several items a row, and a row of a log is one event: write a row for",
             as_comment(other.name));
        line("#   each, with a column of 0 and 1 (docs/your-own-log.md, \"Other shapes\").");
      }
      return;
    }
    line("{} = {}  # {}", key, as_toml(c->name), why);
    if (!roles_.ids_by_name && (c == roles_.user || c == roles_.item)) {
      line("#   A guess by the number of different values, not by name: check it.");
    }
    bad_rows_ += c == roles_.time ? rows_without_time() : rows_without_id(*c);
    if (c->present() < static_cast<int64_t>(c->codes.size())) {
      line("#   {} of the sampled rows have none.",
           per_cent(1 - share(c->present(), static_cast<int64_t>(c->codes.size()))));
    }
    if (c->present() * 2 < static_cast<int64_t>(c->codes.size())) {
      line(
          "#   {}: prep would leave most rows out. Does another column stand for it, such as a "
          "session",
          kFillIn);
      line("#   or a device for a user?");
    }
  }

  std::string id_words(const ColumnSample* c) const {
    if (c == nullptr) return "";
    return fmt::format("{} different {} in the sample: {}", c->values.size(),
                       c->type == Type::kText ? "texts" : "integers", some_values(*c));
  }

  /// Ids that a store cannot have as they are.
  void id_option(const char* key, const ColumnSample* c) {
    if (c == nullptr) return;
    const double largest = std::max(static_cast<double>(int64_t{1} << 24), 16 * table_.all_rows);
    int64_t ignored = 0;
    const bool integers = std::ranges::any_of(c->values, [&](const std::string& value) {
      return parse_canonical_integer(value, ignored);
    });
    if (c->type == Type::kText && integers && !c->is_text_in_file) {
      line("{} = \"dense\"  # integers and texts mixed: all are taken as texts", key);
    } else if (c->is_padded()) {
      line("{} = \"dense\"  # some begin with 0, which integers would lose: taken as texts", key);
    } else if (c->type == Type::kInteger &&
               (c->min < 0 || c->max > largest ||
                c->max > static_cast<double>(StoreWriter::kLargestId))) {
      line("{} = \"dense\"  # ids from {:.0f} to {:.0f} get numbers of their own", key, c->min,
           c->max);
    }
  }

  void columns() {
    line("\n# Who, what and when.");
    column("user", roles_.user, id_words(roles_.user));
    users_elsewhere();
    id_option("user_ids", roles_.user);
    column("item", roles_.item, id_words(roles_.item));
    id_option("item_ids", roles_.item);
    column("time", roles_.time, time_words());
    if (roles_.time == nullptr) return hint_at_times();
    time_option();
    other_times();
  }

  void time_option() {
    const ColumnSample& t = *roles_.time;
    const WrittenTimes& written = roles_.form.written;
    if (!written.format.empty()) {
      line("time_format = {}{}", as_toml(written.format),
           written.other.empty()
               ? ""
               : fmt::format("  # {}: or is it {}?", kFillIn, as_toml(written.other)));
    } else if (t.numbers_as_text) {
      line("#   {}: its numbers are texts in the file, which are no times: write the column as",
           kFillIn);
      line("#   integers (in Spark, cast(\"long\")), and its unit as time_unit_seconds.");
    } else if (t.type != Type::kTime) {
      line("time_unit_seconds = {}{}", roles_.form.unit_seconds,
           roles_.form.known ? ""
                             : fmt::format("  # {}: the values are no times of our days in any "
                                           "unit; 1 is right if they are seconds",
                                           kFillIn));
    }
  }

  /// What else may be the time, and what whole days lack.
  void other_times() {
    std::vector<std::string> names;
    for (const ColumnSample* c : roles_.other_times) names.push_back(as_comment(c->name));
    if (!names.empty()) line("#   Times, too: {}.", fmt::join(names, ", "));
    if (!roles_.whole_days) return;
    for (const ColumnSample& c : table_.columns) {
      if (&c == roles_.user || &c == roles_.item || !is_time_of_day(c)) continue;
      line("#   {}: these are whole days, and {} has the time of day: write both as one column,",
           kFillIn, as_comment(c.name));
      line("#   such as 2026-01-31 23:59:59, and name it here.");
      return;
    }
    line("#   Whole days: events of one day have the order of the file only with --ties file.");
  }

  /// Those that prep would refuse.
  int64_t rows_without_time() const {
    constexpr double kLargest = 9e15;
    const ColumnSample& t = *roles_.time;
    int64_t rows = static_cast<int64_t>(t.codes.size()) - t.present();
    for (size_t v = 0; v < t.values.size() && !t.numbers_as_text; ++v) {
      const double seconds = roles_.form.seconds(t, v);
      if (!(seconds >= 0 && seconds < kLargest)) rows += t.counts[v];
    }
    return rows;
  }

  /// Orders, of which another file has the user.
  void users_elsewhere() {
    const bool known = roles_.user != nullptr && any_word(roles_.user->name, kUserWords);
    for (const TableSample& table : folder_.tables) {
      if (known || &table == &table_ || !table.csv.columns.empty()) continue;
      const auto user = std::ranges::find_if(
          table.columns, [](const ColumnSample& c) { return any_word(c.name, kUserWords); });
      const auto shared = std::ranges::find_if(table_.columns, [&](const ColumnSample& c) {
        return &c != roles_.item && table.find(c.name) != nullptr;
      });
      if (user == table.columns.end() || shared == table_.columns.end()) continue;
      line("#   {}: {} has {} for every {}: join the two files first.", kFillIn,
           as_comment(table.pattern), as_comment(user->name), as_comment(shared->name));
      return;
    }
  }

  void hint_at_times() {
    line("#   Times are numbers (time_unit_seconds), ISO dates such as 2026-01-31T23:59:59Z, or");
    line(
        "#   written as time_format says, such as \"%d.%m.%Y %H:%M\". A log without any may have "
        "a");
    line(
        "#   number that rises with them, such as of a user's orders: time_unit_seconds = 86400 "
        "makes");
    line("#   a day of each.");
  }

  std::string time_words() const {
    const ColumnSample* t = roles_.time;
    if (t == nullptr) return "";
    const TimeForm& form = roles_.form;
    if (!form.known) return fmt::format("from {} to {}", t->min, t->max);
    const bool numbers = t->unit_seconds > 0 && t->unit_seconds != 1;  // of Parquet timestamps
    if (!form.written.format.empty() || (t->type == Type::kTime && !numbers)) {
      return "dates: " + some_values(*t);
    }
    const auto date = [&](double value) {
      return base::iso_time(static_cast<int64_t>(value * form.unit_seconds));
    };
    const double unit = form.unit_seconds;
    return fmt::format("{}, from {} to {} in the sample",
                       unit == 86400  ? "days"
                       : unit == 1    ? "seconds"
                       : unit == 1e-3 ? "milliseconds"
                       : unit == 1e-6 ? "microseconds"
                                      : "nanoseconds",
                       date(t->min), date(t->max));
  }

  // ---- what is predicted ----

  bool complete() const {
    return roles_.user != nullptr && roles_.item != nullptr && roles_.time != nullptr;
  }

  void events_to_predict() {
    using Success = ColumnRoles::Success;
    if (roles_.success == Success::kKinds) return kinds();
    if (roles_.success == Success::kFlags) return flags();
    if (roles_.success == Success::kValue) return value();
    kinds_ = {"event"};
    pools_.push_back({.name = "event"});
    label_ = "event";
    if (!returns()) {
      line("\n# {}: nothing says what a success is. As it stands every event is one, and there is",
           kFillIn);
      line("# nothing to learn. Name a column of 0 and 1 (flags), of strengths (value, with pools");
      line(
          "# by min_value), of kinds of events, or define a label by what comes later "
          "([[later]]).");
      line("# A log of successes alone needs rows of what was offered and not taken, too.");
    }
    other_outcomes();
    line("kinds = [\"event\"]\nanchor_kinds = [\"event\"]");
  }

  /// Of a log that has successes alone: whether the user comes back to the item.
  bool returns() {
    if (!complete()) return false;
    const ReturnShare best = choose_return(roles_);
    if (best.within_seconds == 0) return false;
    label_ = "again";
    later_ = {.name = label_,
              .kinds = {"event"},
              .followed_by = {"event"},
              .within_seconds = best.within_seconds};
    line("\n# {}: nothing says what a success is. Predicted: whether the user comes back to the",
         kFillIn);
    line(
        "# same item within {} s, {} of the sampled events; see [[later]] below. As good: a column",
        best.within_seconds, per_cent(best.share));
    line("# of 0 and 1 (flags), of strengths (value, with pools by min_value), kinds of events.");
    return true;
  }

  /// What else may be meant by a success.
  void other_outcomes() {
    std::vector<std::string> names;
    for (const ColumnSample* c : roles_.other_outcomes) names.push_back(as_comment(c->name));
    if (!names.empty()) line("# May be what you mean, too: {}.", fmt::join(names, ", "));
  }

  void organic() {
    if (roles_.organic == nullptr) return;
    line("organic = {}  # 1: the user chose the item unprompted", as_toml(roles_.organic->name));
    count_missing(*roles_.organic);
  }

  void kinds() {
    const ColumnSample& c = *roles_.kind;
    const std::vector<size_t> order = by_count(c);
    const int64_t rows = c.present();
    std::vector<std::string> evidence;
    for (const size_t k : order) {
      kinds_.push_back(c.values[k]);
      evidence.push_back(
          fmt::format("{} {}", as_comment(c.values[k]), per_cent(share(c.counts[k], rows))));
    }
    line("\n# What happens: {}.", fmt::join(evidence, ", "));
    other_outcomes();
    line("kind = {}", as_toml(c.name));
    count_missing(c);
    line("kinds = {}  # at one second events keep this order", list_of(kinds_));
    organic();
    for (size_t i = 0; i < std::min(kinds_.size(), kMaxPools - 1); ++i) {
      pools_.push_back({.name = plain_name(kinds_[i], taken_), .kinds = {kinds_[i]}});
    }
    const auto seen = std::ranges::find_if(
        order, [&](size_t k) { return step_of(c.values[k]) == 0 || step_of(c.values[k]) == 1; });
    if (seen == order.end() || !complete()) return outcome_kinds(order);
    followed_kinds(*seen, order);
  }

  /// All kinds are outcomes, such as like and dislike: one of them is the success.
  void outcome_kinds(const std::vector<size_t>& order) {
    const auto good = std::ranges::find_if(order, [&](size_t k) {
      return step_of(roles_.kind->values[k]) >= 0 || is_yes(roles_.kind->values[k]);
    });
    const size_t chosen = good == order.end() ? 0 : static_cast<size_t>(good - order.begin());
    label_ = pools_[std::min(chosen, pools_.size() - 1)].name;
    line("anchor_kinds = {}", list_of(kinds_));
    line(
        "# Predicted: whether an event is \"{}\" rather than another kind. {}: is that the "
        "question?",
        label_, kFillIn);
  }

  /// A view, and whether something better comes of it.
  void followed_kinds(size_t seen, const std::vector<size_t>& order) {
    const ColumnSample& c = *roles_.kind;
    const Following next = choose_following(roles_, seen, order);
    const std::string& from = c.values[seen];
    const std::string& to = c.values[next.kind];
    line("anchor_kinds = {}", list_of({from}));
    later_ = {.name = plain_name(to + "_later", taken_),
              .kinds = {from},
              .followed_by = {to},
              .within_seconds = next.within_seconds};
    label_ = later_.name;
    line(
        "# Predicted: whether a \"{}\" is followed by a \"{}\" of the same item within {} s, {} of",
        as_comment(from), as_comment(to), next.within_seconds, per_cent(next.share));
    line(
        "# them in the sample. See [[later]] below; other kinds and times are as good a question.");
  }

  void flags() {
    std::vector<std::string> names;
    for (const ColumnSample* flag : roles_.flags) names.push_back(flag->name);
    line("\n# Columns of 0 and 1.");
    other_outcomes();
    line("flags = {}", list_of(names));
    organic();
    line("kinds = [\"event\"]\nanchor_kinds = [\"event\"]");
    for (const ColumnSample* flag : roles_.flags) {
      int64_t set = 0;
      for (size_t v = 0; v < flag->values.size(); ++v) {
        const char first = flag->values[v].front();
        set += first == '1' || first == 't' || first == 'T' ? flag->counts[v] : 0;
      }
      count_missing(*flag);
      pools_.push_back({.name = plain_name(flag->name, taken_), .flag = flag->name});
      if (flag->name != roles_.label_flag) continue;
      label_ = pools_.back().name;
      line("# Predicted: \"{}\", which {} of the sampled rows have.", as_comment(flag->name),
           per_cent(share(set, flag->present())));
    }
    if (names.size() > 1 || !roles_.label_by_name) {
      line("# {}: is that the one? See label_pool.", kFillIn);
    }
    pools_.push_back({.name = plain_name("seen", taken_)});
  }

  /// The threshold that cuts the values most evenly.
  void value() {
    const ColumnSample& c = *roles_.value;
    const Threshold cut = most_even_threshold(c);
    line("\n# How much: {} different values from {} to {}.", c.values.size(), c.min, c.max);
    other_outcomes();
    line("value = {}", as_toml(c.name));
    bad_rows_ += rows_without_id(c) - (static_cast<int64_t>(c.codes.size()) - c.present());
    organic();
    line("kinds = [\"event\"]\nanchor_kinds = [\"event\"]");
    line("# Predicted: {} of {} or more, {} of the sampled rows. {}: choose the threshold that",
         as_comment(c.name), cut.value, per_cent(cut.share), kFillIn);
    line("# you mean, in both pools.");
    pools_.push_back({.name = "liked", .min_value = cut.value});
    pools_.push_back({.name = "other", .below_value = cut.value});
    label_ = "liked";
  }

  void split() {
    line("label_pool = {}", as_toml(label_));
    line("\n# Everything goes into the store; training holds out the newest windows of it.");
    line("train_days = 0\ntest_seconds = 0\ngap_seconds = 0");
  }

  void pools() {
    line("\n# Histories are made of pools: an event in none of them is never seen by a model.");
    int64_t bit = 1;
    for (const PoolRule& pool : pools_) {
      line("[[pools]]\nname = {}\nbit = {}", as_toml(pool.name), bit);
      if (!pool.kinds.empty()) line("kinds = {}", list_of(pool.kinds));
      if (pool.min_value > 0) line("min_value = {}", pool.min_value);
      if (pool.below_value > 0) line("below_value = {}", pool.below_value);
      if (!pool.flag.empty()) line("flag = {}", as_toml(pool.flag));
      line("");
      bit *= 2;
    }
    if (later_.name.empty()) return;
    line("[[later]]  # a label, known only afterwards: never part of histories");
    line(
        "name = {}\nbit = {}\nkinds = {}\nfollowed_by = {}\nwithin_seconds = {}\nsame = \"item\"\n",
        as_toml(later_.name), bit, list_of(later_.kinds), list_of(later_.followed_by),
        later_.within_seconds);
  }

  void foot() {
    for (const std::string& text : attributes_.left_out) line("# Left out: {}", as_comment(text));
    for (const std::string& name : folder_.left_out) line("# Left out: {}", as_comment(name));
    const double of_log = share(bad_rows_ + table_.broken_rows, table_.rows + table_.broken_rows);
    const double bad = 100 * std::max(of_log, attributes_.bad_share);
    const std::string skip =
        bad == 0 ? ""
                 : fmt::format(" --skip-bad {:.0f}%", std::clamp(std::ceil(2 * bad), 5.0, 99.0));
    line(
        "\n# Next: segue prep --raw {} --schema THIS_FILE --out STORE --history 256 --min-history "
        "5{}",
        as_comment(raw_), skip);
  }

  const std::string& raw_;
  const FolderSample& folder_;
  const TableSample& table_;
  ColumnRoles roles_;
  std::string out_;
  std::vector<std::string> kinds_;
  std::vector<PoolRule> pools_;
  LaterRule later_;
  std::string label_;
  // "organic" would be the file of another column.
  std::set<std::string> taken_ = {"organic"};
  ProposedAttributes attributes_;
  int64_t bad_rows_ = 0;
};

}  // namespace

std::string propose_schema(const std::string& raw, const ParquetSupport* parquet) {
  const FolderSample folder = sample_files(raw, parquet);
  return Proposal(raw, folder).text();
}

}  // namespace segue::data
