#include "cli/inspect_store.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include <fmt/format.h>

#include "base/error.h"
#include "base/file.h"
#include "base/time.h"
#include "cli/facts.h"
#include "cli/output.h"
#include "data/inspect/baselines.h"
#include "data/inspect/feature_summary.h"
#include "data/inspect/id_ranges.h"
#include "data/inspect/store_notes.h"
#include "data/numbers/event_numbers.h"
#include "data/store/event_log.h"
#include "data/store/store_verify.h"
#include "ops/metrics.h"

namespace segue::cli {
namespace {

constexpr double kDay = 86400;

const std::vector<std::string> kSpreadColumns = {"count", "min", "median", "mean", "p90", "max"};

std::vector<Fact> facts_of(const data::Spread& s) {
  return {s.count, s.min, s.median, Fact::real(s.mean, 1), s.p90, s.max};
}

Fact days(int64_t from, int64_t to) {
  return Fact::real((static_cast<double>(to) - static_cast<double>(from)) / kDay, 2);
}

/// A date, where times are those of a calendar and not since the log began.
Fact moment(int64_t time) {
  constexpr int64_t kCalendar = 315'532'800, kFourDigits = 253'402'300'799;  // 1980, 9999
  if (time < kCalendar || time > kFourDigits) return {time};
  return Fact(time).with_words(base::iso_time(time));
}

void add_store(FactSheet& sheet, const data::StoreSummary& s) {
  FactTable& t = sheet.table("store");
  t.rows = {{"folder", {s.folder}},
            {"history length", {s.history_length}},
            {"events", {s.events}},
            {"users", {s.users}},
            {"items", {s.items}},
            {"items seen", {s.items_seen}},
            {"first time", {moment(s.first_time)}},
            {"last time", {moment(s.last_time)}},
            {"days", {days(s.first_time, s.last_time)}},
            {"organic share", {Fact::share(s.organic_share)}},
            {"to predict", {s.predicted}}};
  if (s.positive) {
    const auto predicted = static_cast<double>(std::max<int64_t>(1, s.predicted));
    t.rows.push_back({"positive", {Fact::share(static_cast<double>(*s.positive) / predicted)}});
  }
  if (s.rows.rows > 0) {
    t.rows.push_back({"rows of the log", {s.rows.rows}});
    t.rows.push_back({"rows left out", {s.rows.skipped}});
    t.rows.push_back(
        {s.rows.dropped ? "duplicates dropped" : "duplicates kept", {s.rows.duplicates}});
  }
  if (s.manifest) {
    t.rows.insert(t.rows.begin() + 1,
                  {"made by",
                   {fmt::format("segue {} {} {}", s.manifest->segue_version,
                                s.manifest->origin.command, s.manifest->origin.options)}});
  }
}

FactTable::Row attribute_row(const data::AttributeSummary& a) {
  Fact values(a.values);
  if (a.of_one > 1) values = values.with_words(fmt::format("{}, {} of one", a.values, a.of_one));
  return {a.name, {values, Fact::share(a.item_share), Fact::share(a.event_share)}};
}

void add_summary(FactSheet& sheet, const data::StoreSummary& s) {
  add_store(sheet, s);
  if (!s.segments.empty()) {
    FactTable& t = sheet.table("segments", {"events", "users"});
    for (const data::StoreManifest& m : s.segments) {
      t.rows.push_back({data::segment_name(m.segment.number), {m.num_events, m.num_users}});
    }
  }
  for (const auto& [title, parts] : {std::pair("kinds", &s.kinds), std::pair("pools", &s.pools)}) {
    FactTable& t = sheet.table(title, {"events", "share"});
    for (const data::PartOfEvents& p : *parts) {
      t.rows.push_back({p.name, {p.events, Fact::share(p.share)}});
    }
  }
  FactTable& attributes = sheet.table("attributes", {"values", "of items", "of events"});
  for (const data::AttributeSummary& a : s.attributes) {
    attributes.rows.push_back(attribute_row(a));
  }
  FactTable& spreads = sheet.table("spread", kSpreadColumns);
  spreads.rows.push_back({"events per user", facts_of(s.events_per_user)});
  for (const data::WindowSummary& w : s.windows) {
    spreads.rows.push_back(
        {fmt::format("anchors per window m{}", w.min_history), facts_of(w.sizes)});
  }
  spreads.rows.push_back(
      {fmt::format("history of {}", s.history.history_length), facts_of(s.history.lengths)});
  FactTable& windows = sheet.table(
      "windows", {"min history", "anchors", "windows", "empty", "first day", "last day"});
  for (const data::WindowSummary& w : s.windows) {
    windows.rows.push_back({fmt::format("m{}", w.min_history),
                            {w.min_history, w.anchors, w.windows, w.empty,
                             days(s.first_time, w.first_time), days(s.first_time, w.last_time)}});
  }
  const auto asked_for = static_cast<double>(s.history.history_length);
  sheet.table("history").rows = {
      {"asked for", {s.history.history_length}},
      {"sampled anchors", {s.history.lengths.count}},
      {"fill", {Fact::share(s.history.fill)}},
      {"fill of the newest of any pool", {Fact::share(s.history.newest.mean / asked_for)}},
      {"events in no pool", {s.in_no_pool}}};
}

/// What static tables need.
void add_ids(FactSheet& sheet, const data::EventStore& store) {
  FactTable& t = sheet.table("ids", {"largest", "rows needed"});
  for (const data::IdRange& r : data::id_ranges(store)) {
    t.rows.push_back({r.column, {r.largest, r.largest + 1}});
  }
}

void add_notes(FactSheet& sheet, const std::vector<std::string>& notes) {
  if (notes.empty()) return;
  FactTable& t = sheet.table("notes");
  for (const std::string& note : notes) {
    t.rows.push_back({fmt::format("{}", t.rows.size() + 1), {note}});
  }
}

/// What a model may ask for, made or not.
void add_numbers(FactSheet& sheet, const data::EventStore& store) {
  const bool made = base::exists(store.index_folder() + "/" + data::kNumbersFile);
  sheet.table("numbers").rows = {
      {"names", {fmt::format("{}", fmt::join(data::count_names(store.schema()), ", "))}},
      {"made", {made ? "yes" : "when a model asks for one"}}};
  if (!store.schema().numbers.empty()) {
    FactTable& t = sheet.table("numbers of the log", {"known", "missing", "min", "mean", "max"});
    for (const data::NumberSummary& n : data::summarize_numbers(store)) {
      const double missing = static_cast<double>(n.missing) / static_cast<double>(n.events);
      t.rows.push_back({n.name,
                        {n.outcome ? "after (outcome)" : "before", Fact::share(missing),
                         Fact::real(n.min, 3), Fact::real(n.mean, 3), Fact::real(n.max, 3)}});
    }
  }
  if (!store.schema().user_attributes.empty()) {
    FactTable& t = sheet.table("attributes of users", {"values", "of users", "of events"});
    for (const data::AttributeSummary& a : data::summarize_user_attributes(store)) {
      t.rows.push_back(attribute_row(a));
    }
  }
}

void add_integrity(FactSheet& sheet, const data::VerifyReport& report, bool verified) {
  FactTable& t = sheet.table("integrity");
  const char* by = !report.has_manifest ? "no manifest" : verified ? "checksum" : "size";
  t.rows = {{"files compared", {report.files}},
            {"bytes", {report.bytes}},
            {"by", {by}},
            {"events checked", {report.events}},
            {"problems", {static_cast<int64_t>(report.problems.size())}}};
  for (size_t i = 0; i < report.problems.size(); ++i) {
    t.rows.push_back({fmt::format("problem {}", i + 1), {report.problems[i]}});
  }
}

/// Positions of the predictions that are also scored by an evaluation of the last window.
std::vector<size_t> last_window(const data::EventStore& store, const data::WindowSummary& w,
                                const std::vector<int64_t>& positions) {
  std::vector<size_t> chosen;
  if (w.windows == 0) return chosen;
  const int64_t begin = w.first_time + (w.windows - 1) * static_cast<int64_t>(kDay);
  const data::EventLog log(store);
  for (size_t i = 0; i < positions.size(); ++i) {
    if (log.at(positions[i], &data::EventStore::timestamps) < begin) continue;
    if (log.events_before(positions[i]) >= w.min_history) chosen.push_back(i);
  }
  return chosen;
}

std::vector<float> pick(const std::vector<float>& values, const std::vector<size_t>& chosen) {
  std::vector<float> picked;
  picked.reserve(chosen.size());
  for (const size_t i : chosen) picked.push_back(values[i]);
  return picked;
}

struct Predictor {
  std::string name;
  std::vector<float> values;
};

void add_auc_table(FactSheet& sheet, const std::string& title, const std::vector<float>& labels,
                   const std::vector<Predictor>& predictors) {
  const bool with_oracle = !predictors.empty() && predictors[0].name == "oracle";
  FactTable& t = sheet.table(title, with_oracle ? std::vector<std::string>{"auc", "of oracle"}
                                                : std::vector<std::string>{"auc"});
  const double oracle = with_oracle ? ops::exact_auc(predictors[0].values, labels) : 0;
  for (const Predictor& p : predictors) {
    const double auc = ops::exact_auc(p.values, labels);
    FactTable::Row row{p.name, {Fact::real(auc, 4)}};
    if (with_oracle) row.facts.push_back(Fact::share((auc - 0.5) / (oracle - 0.5)));
    t.rows.push_back(std::move(row));
  }
}

void add_predictions(FactSheet& sheet, const data::EventStore& store, const data::StoreSummary& s,
                     const InspectArguments& arguments) {
  const std::vector<float> truth = data::read_truth(store, arguments.truth);
  if (truth.empty() && !arguments.baselines) return;
  data::Predictions p = data::predict_by_history(store);
  std::vector<Predictor> predictors;
  if (!truth.empty()) {
    predictors.push_back({"oracle", {}});
    for (const int64_t at : p.positions) {
      predictors[0].values.push_back(truth[static_cast<size_t>(at)]);
      if (std::isnan(predictors[0].values.back())) {
        fail(ErrorCode::kCorrupt,
             fmt::format("{}: the truth has no probability for event {}", s.folder, at));
      }
    }
  }
  for (data::Rule& rule : p.rules) {
    predictors.push_back({std::move(rule.name), std::move(rule.predictions)});
  }

  FactTable& t = sheet.table("predicted events");
  const auto positive = std::count(p.labels.begin(), p.labels.end(), 1.f);
  t.rows = {{"number", {static_cast<int64_t>(p.labels.size())}},
            {"positive share",
             {Fact::share(static_cast<double>(positive) /
                          static_cast<double>(std::max<size_t>(1, p.labels.size())))}},
            {"every n-th user", {p.sampled_every}}};
  add_auc_table(sheet, "auc of all", p.labels, predictors);
  const std::vector<size_t> chosen = last_window(store, s.windows.front(), p.positions);
  t.rows.push_back({"in the last window", {static_cast<int64_t>(chosen.size())}});
  if (chosen.empty()) return;
  for (Predictor& predictor : predictors) predictor.values = pick(predictor.values, chosen);
  add_auc_table(sheet, "auc of the last window", pick(p.labels, chosen), predictors);
}

}  // namespace

void inspect_store(const InspectArguments& arguments) {
  const std::string folder = data::store_folder(arguments.path);
  // What is not as it was written is not looked into further.
  const data::VerifyReport integrity =
      arguments.verify ? data::verify_store(folder) : data::compare_sizes(folder);
  FactSheet sheet;
  if (integrity.ok()) {
    const data::LogSchema schema = data::schema_for(arguments.path);
    const data::EventStore store(arguments.path, schema.samples(), arguments.index);
    const data::StoreSummary summary = data::summarize(store, schema, arguments.config);
    add_summary(sheet, summary);
    add_ids(sheet, store);
    add_numbers(sheet, store);
    add_predictions(sheet, store, summary, arguments);
    add_notes(sheet, data::notes_about(summary, schema));
  }
  add_integrity(sheet, integrity, arguments.verify);
  print(arguments.json ? sheet.json() : sheet.text());
  integrity.throw_if_bad(folder);
}

}  // namespace segue::cli
