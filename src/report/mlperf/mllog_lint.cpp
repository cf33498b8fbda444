#include "report/mlperf/mllog_lint.h"

#include <cmath>
#include <deque>
#include <map>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "report/mlperf/mllog_conditions.h"

namespace segue::report {
namespace {

/// Batch sizes for which the grid is computed; far beyond any run.
constexpr double kLargestBatch = 1e12;

class Linter {
 public:
  Linter(const MllogFile& file, const LintOptions& options)
      : file_(file), options_(options), rules_(mllog_ruleset(options.ruleset)) {}

  LintReport run() {
    report_.ruleset = std::string(rules_.name);
    report_.events = static_cast<int64_t>(file_.events.size());
    for (const MllogProblem& problem : file_.problems) {
      lasting_.push_back({"", problem.place, problem.text});
    }
    if (file_.events.empty()) lasting_.push_back({"", {}, "the file has no events"});
    queue_.push_back(&rules_.common);
    while (!queue_.empty()) {
      const RuleList& list = *queue_.front();
      queue_.pop_front();
      judge(list);
    }
    for (auto& [key, finding] : by_key_) report_.findings.push_back(std::move(finding));
    for (auto& [key, finding] : warnings_) report_.warnings.push_back(std::move(finding));
    std::ranges::move(lasting_, std::back_inserter(report_.findings));
    if (!report_.findings.empty()) report_.verdict = LintVerdict::kFailed;
    return std::move(report_);
  }

 private:
  using Events = std::vector<const MllogEvent*>;

  /// One list of rules over the whole log, in the order of the log.
  void judge(const RuleList& list) {
    std::map<std::string_view, const KeyRule*> rules;
    for (const KeyRule& rule : list.rules) rules[rule.key] = &rule;
    for (const auto& [key, rule] : rules) by_key_.erase(std::string(key));
    LintState state;
    std::map<std::string_view, Events> seen;
    std::set<std::string_view> met;  // rules whose `some_event` held once
    for (const MllogEvent& event : file_.events) {
      const auto found = rules.find(event.key);
      if (found == rules.end()) continue;
      const KeyRule& rule = *found->second;
      Events& events = seen[rule.key];
      events.push_back(&event);
      const bool first = events.size() == 1;
      // MLPerf's checker looks at submission keys only once.
      if (first || event.key.find("submission_") == std::string::npos) {
        check(rule.checks, event, state);
        apply(rule.effect, event, state);
      }
      if (first) check(rule.first, event, state);
      if (!rule.some_event.empty() && holds_for(rule, event, state)) met.insert(rule.key);
    }
    for (const KeyRule& rule : list.rules) {
      if (!rule.some_event.empty() && !seen[rule.key].empty() && !met.contains(rule.key)) {
        lasting_.push_back({std::string(rule.key), {}, none_met(rule, seen[rule.key], state)});
      }
    }
    for (const KeyRule& rule : list.rules) count(rule, seen);
  }

  void check(const std::vector<Condition>& conditions, const MllogEvent& event,
             const LintState& state) {
    for (const Condition& condition : conditions) {
      if (auto trouble = objection(condition, event, state)) {
        by_key_[event.key] = {event.key, event.place, std::move(trouble->text)};
        return;
      }
    }
  }

  bool holds_for(const KeyRule& rule, const MllogEvent& event, const LintState& state) {
    for (const Condition& condition : rule.some_event) {
      const auto trouble = objection(condition, event, state);
      if (!trouble) continue;
      if (trouble->broken) lasting_.push_back({event.key, event.place, trouble->text});
      return false;
    }
    return true;
  }

  /// Why no event was good enough, by the example of the last.
  static std::string none_met(const KeyRule& rule, const Events& events, const LintState& state) {
    for (const Condition& condition : rule.some_event) {
      if (const auto trouble = objection(condition, *events.back(), state)) {
        return fmt::format("at least one of {} must be good enough; in the last {}", events.size(),
                           trouble->text);
      }
    }
    return "no event fulfils all conditions";
  }

  void apply(Effect effect, const MllogEvent& event, LintState& state) {
    const std::string* word = std::get_if<std::string>(&event.value);
    switch (effect) {
      case Effect::kDivision:
        // The time limit of init follows from anything that is not `open`.
        state.init_minutes = word && *word == "open" ? 240 : 30;
        if (!word || (*word != "closed" && *word != "open")) break;
        report_.division = *word;
        queue_.push_back(*word == "open" ? &rules_.open : &rules_.closed);
        break;
      case Effect::kBenchmark:
        queue_benchmark(word);
        break;
      case Effect::kInitStart:
        state.init_started = true;
        state.first_init_ms = std::min(state.first_init_ms, event.time_ms);
        break;
      case Effect::kInitStop:
        state.init_stopped = true;
        break;
      case Effect::kRunStart:
        state.run_started = true;
        break;
      case Effect::kBatchSize:
        set_batch(event, state);
        break;
      case Effect::kLearningRate:
        state.learning_rate = event.value;
        break;
      case Effect::kNone:
        break;
    }
  }

  void queue_benchmark(const std::string* name) {
    if (!name) return;
    report_.benchmark = *name;
    const BenchmarkRules* rules = rules_.find(*name);
    if (!rules) return;  // the rule of the key itself has said so
    if (!rules->judged()) {
      report_.verdict = LintVerdict::kNotJudged;
      return;
    }
    queue_.push_back(report_.division == "open" ? &rules->open : &rules->closed);
  }

  void set_batch(const MllogEvent& event, LintState& state) {
    const std::optional<double> batch = as_number(event.value);
    if (!batch || !(*batch >= 1 && *batch <= kLargestBatch)) return;
    state.batch = batch;
    state.grid = dlrmv4_eval_grid(std::llround(*batch), rules_.rounding);
  }

  void count(const KeyRule& rule, std::map<std::string_view, Events>& seen) {
    const Events& events = seen[rule.key];
    const std::string key(rule.key);
    if (rule.require == Require::kAtLeastOne && events.empty()) {
      by_key_[key] = {key, {}, "it must occur at least once, but does not"};
    } else if (rule.require == Require::kExactlyOne && events.empty()) {
      by_key_[key] = {key, {}, "it must occur exactly once, but does not occur"};
    } else if (rule.require == Require::kExactlyOne && events.size() > 1) {
      count_repeats(key, events);
    } else if (rule.require == Require::kAtLeastOneOr) {
      bool any = !events.empty();
      for (const std::string_view other : rule.alternatives) any = any || !seen[other].empty();
      if (!any) {
        lasting_.push_back({key,
                            {},
                            fmt::format("it or `{}` must occur, but neither does",
                                        fmt::join(rule.alternatives, "` or `"))});
      }
    }
  }

  void count_repeats(const std::string& key, const Events& events) {
    bool same = true;
    for (const MllogEvent* event : events) {
      same = same && same_value(event->value, events[0]->value);
    }
    LintFinding finding = {key, events.back()->place,
                           fmt::format("it must occur exactly once, but occurs {} times{}",
                                       events.size(), same ? "" : " with different values")};
    if (!same || options_.werror) {
      by_key_[key] = std::move(finding);
    } else if (!options_.quiet) {
      warnings_[key] = std::move(finding);
    }
  }

  const MllogFile& file_;
  const LintOptions& options_;
  const Ruleset& rules_;
  std::deque<const RuleList*> queue_;
  LintReport report_;
  std::map<std::string, LintFinding> by_key_;  // a more specific list may take them back
  std::map<std::string, LintFinding> warnings_;
  std::vector<LintFinding> lasting_;
};

std::string finding_text(const LintFinding& finding) {
  std::string text = finding.key.empty() ? "" : fmt::format("`{}`", finding.key);
  if (finding.place) {
    text += fmt::format("{}line {} (event {})", text.empty() ? "" : ", ", finding.place->line,
                        finding.place->number);
  }
  return text.empty() ? finding.text : text + ": " + finding.text;
}

nlohmann::ordered_json findings_json(const std::vector<LintFinding>& findings) {
  auto list = nlohmann::ordered_json::array();
  for (const LintFinding& f : findings) {
    nlohmann::ordered_json one;
    if (!f.key.empty()) one["key"] = f.key;
    if (f.place) one["line"] = f.place->line;
    if (f.place) one["event"] = f.place->number;
    one["text"] = f.text;
    list.push_back(std::move(one));
  }
  return list;
}

}  // namespace

std::string_view to_string(LintVerdict verdict) {
  switch (verdict) {
    case LintVerdict::kPassed:
      return "passed";
    case LintVerdict::kFailed:
      return "failed";
    case LintVerdict::kNotJudged:
      return "not judged";
  }
  return "";
}

LintReport lint_mllog(const MllogFile& file, const LintOptions& options) {
  return Linter(file, options).run();
}

LintReport lint_mllog(const std::string& path, const LintOptions& options) {
  mllog_ruleset(options.ruleset);  // a wrong name is said before the file is read
  return lint_mllog(read_mllog(path), options);
}

std::string lint_text(const LintReport& report) {
  std::string text;
  for (const LintFinding& f : report.warnings) text += "warning: " + finding_text(f) + "\n";
  for (const LintFinding& f : report.findings) text += "finding: " + finding_text(f) + "\n";
  const std::string what =
      fmt::format("{} events, ruleset {}, {} {}", report.events, report.ruleset,
                  report.division.empty() ? "unknown division" : report.division,
                  report.benchmark.empty() ? "unknown benchmark" : report.benchmark);
  if (report.verdict == LintVerdict::kNotJudged) {
    return text + fmt::format(
                      "not judged: {}: nothing wrong by the common rules, but there are no "
                      "rules here for this benchmark\n",
                      what);
  }
  return text + fmt::format("{}: {}\n", to_string(report.verdict), what);
}

std::string lint_json(const LintReport& report) {
  const nlohmann::ordered_json json = {{"verdict", to_string(report.verdict)},
                                       {"ruleset", report.ruleset},
                                       {"division", report.division},
                                       {"benchmark", report.benchmark},
                                       {"events", report.events},
                                       {"findings", findings_json(report.findings)},
                                       {"warnings", findings_json(report.warnings)}};
  return json.dump();
}

}  // namespace segue::report
