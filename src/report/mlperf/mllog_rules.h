#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "report/mlperf/eval_grid.h"

namespace segue::report {

// What MLPerf demands of a training log, as tables. mllog_lint.cpp gives the words their meaning.

/// How often a key must occur.
enum class Require {
  kOptional,
  kExactlyOne,  // repeats with one and the same value only earn a warning
  kAtLeastOne,
  kAtLeastOneOr,  // the key or one of its alternatives
};

enum class Test {
  // of the value
  kNotEmpty,  // not the empty text
  kOneOf,     // words
  kEquals,    // number, as double
  kInteger,
  kAbove,    // number, exclusive
  kAtLeast,  // number
  kAtMost,   // number
  // of the metadata
  kHasAny,       // one of the words is there
  kHasPartner,   // if words[0] is there, so is words[1]
  kMetaAbove,    // if words[0] is there: above number
  kMetaAtLeast,  // if words[0] is there: number or more
  // of what came before
  kInitStarted,
  kInitNotStopped,
  kInitStopped,
  kInitInTime,  // since the first init_start, by division
  kRunStarted,
  kRunNotStarted,
  kOnEvalGrid,
  kFirstEval,
  kLearningRateBand,  // around the reference's rate for the batch size
  kSameLearningRate,
};

struct Condition {
  Test test;
  double number = 0;
  std::vector<std::string_view> words = {};
};

/// What an event changes for those after it.
enum class Effect {
  kNone,
  kDivision,  // its rules are judged next
  kBenchmark,
  kInitStart,
  kInitStop,
  kRunStart,
  kBatchSize,
  kLearningRate,
};

struct KeyRule {
  std::string_view key;
  Require require = Require::kExactlyOne;
  std::vector<Condition> checks = {};  // for every occurrence
  Effect effect = Effect::kNone;
  std::vector<std::string_view> alternatives = {};
  std::vector<Condition> first = {};       // for the first occurrence
  std::vector<Condition> some_event = {};  // all of them hold for at least one occurrence
};

/// Rules judged together, from an empty state. A later list that has a rule for a key takes back
/// what earlier lists said of that key.
struct RuleList {
  std::string name;
  std::vector<KeyRule> rules;
};

struct BenchmarkRules {
  std::string_view name;
  RuleList closed,
      open;  // without rules: MLPerf knows the benchmark, this program does not judge it
  bool judged() const { return !closed.rules.empty(); }
};

struct Ruleset {
  std::string_view name;
  EvalRounding rounding = EvalRounding::kUp;
  RuleList common, closed, open;
  std::vector<BenchmarkRules> benchmarks;

  const BenchmarkRules* find(std::string_view benchmark) const;
};

/// Error(kInvalidArgument) if there is none of that name.
const Ruleset& mllog_ruleset(std::string_view name);
/// DLRMv4's rules as they were proposed; what the released package (4.1.68) made of them is
/// kReleasedRuleset.
inline constexpr std::string_view kDefaultRuleset = "6.1.0";
inline constexpr std::string_view kReleasedRuleset = "6.1.0-release";

}  // namespace segue::report
