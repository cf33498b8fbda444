#include "report/mlperf/mllog_rules.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"

namespace segue::report {
namespace {

using enum Require;
using enum Test;
using Words = std::vector<std::string_view>;

/// 6.0.0 and 6.1.0 as proposed leave it open whether precision and parallelism are disclosed.
enum class Disclosure { kMayBe, kMustBe };

Condition one_of(Words words) { return {kOneOf, 0, std::move(words)}; }
Condition is(std::string_view word) { return {kOneOf, 0, {word}}; }
Condition equals(double number) { return {kEquals, number}; }
Condition has_any(Words words) { return {kHasAny, 0, std::move(words)}; }
const std::vector<Condition> kPositiveInteger = {{kInteger}, {kAbove, 0}};

void add_disclosure(Disclosure disclosure, std::vector<KeyRule>& rules) {
  const bool must = disclosure == Disclosure::kMustBe;
  const Require require = must ? kExactlyOne : kOptional;
  Words precisions = {
      "fp64", "fp32",  "tf32", "fp16", "fp8", "nvfp4", "mxfp4", "bfloat16", "Graphcore FLOAT 16.16",
      "int8", "uint8", "int4", "uint4"};
  if (must) precisions.push_back("mxfp6");
  for (const std::string_view key :
       {"lowest_numerical_precision_in_linear", "lowest_numerical_precision_in_attn",
        "lowest_numerical_precision_in_comm"}) {
    rules.push_back({key, require, {one_of(precisions)}});
  }
  std::vector<Condition> count = {{kInteger}};
  if (must) count.push_back({kAtLeast, 1});
  for (const std::string_view key :
       {"tensor_parallelism", "pipeline_parallelism", "context_parallelism", "expert_parallelism",
        "micro_batch_size"}) {
    rules.push_back({key, require, count});
  }
  if (must) rules.push_back({"config_filename", kExactlyOne, {{kNotEmpty}}});
}

RuleList common(Disclosure disclosure) {
  const std::vector<Condition> timed = {has_any({"epoch_num", "samples_count"})};
  RuleList list = {"common", {}};
  list.rules = {
      {"submission_org", kExactlyOne, {{kNotEmpty}}},
      {"submission_platform", kExactlyOne, {{kNotEmpty}}},
      {"submission_division", kExactlyOne, {one_of({"closed", "open"})}, Effect::kDivision},
      {"cache_clear", kAtLeastOne},
      {"init_start", kAtLeastOne, {{kInitNotStopped}, {kRunNotStarted}}, Effect::kInitStart},
      {"init_stop",
       kExactlyOne,
       {{kInitStarted}, {kRunNotStarted}, {kInitInTime}},
       Effect::kInitStop},
      {"run_start", kExactlyOne, {{kInitStopped}}, Effect::kRunStart},
      {"run_stop", kExactlyOne, {{kRunStarted}, has_any({"status"})}},
      {"block_start",
       kAtLeastOneOr,
       {{kRunStarted},
        has_any({"epoch_count", "samples_count"}),
        {kHasPartner, 0, {"epoch_count", "first_epoch_num"}},
        {kMetaAbove, 0, {"epoch_count"}},
        {kMetaAtLeast, 0, {"samples_count"}}},
       Effect::kNone,
       {"epoch_start"}},
      {"block_stop",
       kAtLeastOneOr,
       {has_any({"first_epoch_num", "samples_count"})},
       Effect::kNone,
       {"epoch_stop"}},
      {"epoch_start", kAtLeastOneOr, timed, Effect::kNone, {"block_start"}},
      {"epoch_stop", kAtLeastOneOr, timed, Effect::kNone, {"block_stop"}},
      {"eval_start", kAtLeastOneOr, timed, Effect::kNone, {"block_start"}},
      {"eval_stop", kAtLeastOneOr, timed, Effect::kNone, {"block_stop"}},
      {"eval_accuracy", kAtLeastOne, timed},
      {"train_samples", kExactlyOne, {{kNotEmpty}}},
      {"eval_samples", kExactlyOne, {{kNotEmpty}}},
  };
  add_disclosure(disclosure, list.rules);
  return list;
}

RuleList closed_common(const Words& benchmarks) {
  return {"closed_common",
          {{"submission_benchmark", kExactlyOne, {one_of(benchmarks)}, Effect::kBenchmark},
           {"gradient_accumulation_steps", kExactlyOne, {{kAbove, 0}}}}};
}

RuleList open_common(const Words& benchmarks) {
  return {"open_common",
          {{"submission_benchmark", kExactlyOne, {one_of(benchmarks)}, Effect::kBenchmark}}};
}

RuleList closed_dlrm_dcnv2() {
  return {"closed_dlrm_dcnv2",
          {{"global_batch_size"},
           {"opt_name", kExactlyOne, {is("adagrad")}},
           {"opt_base_learning_rate"},
           {"opt_adagrad_learning_rate_decay", kExactlyOne, {equals(0)}},
           {"opt_weight_decay", kExactlyOne, {equals(0)}},
           {"opt_adagrad_initial_accumulator_value", kExactlyOne, {equals(0)}},
           {"opt_adagrad_epsilon", kExactlyOne, {equals(1e-8)}},
           {"opt_learning_rate_warmup_steps", kExactlyOne, {equals(0)}},
           {"opt_learning_rate_decay_start_step", kExactlyOne, {equals(0)}},
           {"opt_learning_rate_decay_steps", kExactlyOne, {equals(0)}},
           {.key = "eval_accuracy",
            .require = kAtLeastOne,
            .checks = {has_any({"epoch_num"})},
            .some_event = {{kAtLeast, 0.80275}, {kAtMost, 1.0}}},
           {"eval_samples", kExactlyOne, {equals(89'137'319)}}}};
}

RuleList open_dlrm_dcnv2() {
  return {"open_dlrm_dcnv2",
          {{.key = "eval_accuracy",
            .require = kAtLeastOne,
            .checks = {has_any({"epoch_num"})},
            .some_event = {{kAtMost, 1.0}}}}};
}

/// Only the learning rate and the batch size may be tuned. The draft had no band for the rate.
RuleList closed_dlrmv4(bool draft) {
  const Condition rate = draft ? Condition{kAbove, 0} : Condition{kLearningRateBand};
  RuleList list = {
      "closed_dlrmv4",
      {{"global_batch_size", kExactlyOne, kPositiveInteger, Effect::kBatchSize},
       {"train_samples", kExactlyOne, {equals(kDlrmv4TrainSamples)}},
       {"eval_samples", kExactlyOne, {equals(kDlrmv4EvalSamples)}},
       {"max_sequence_length", kExactlyOne, {equals(4096)}},
       {"opt_name", kExactlyOne, {is("Adam")}},
       {"opt_base_learning_rate", kExactlyOne, {rate}, Effect::kLearningRate},
       {"opt_adam_beta_1", kExactlyOne, {equals(0.95)}},
       {"opt_adam_beta_2", kExactlyOne, {equals(0.999)}},
       {"opt_adam_epsilon", kExactlyOne, {equals(1e-8)}},
       {"opt_weight_decay", kExactlyOne, {equals(0)}},
       {"opt_gradient_clip_norm", kExactlyOne, {equals(1)}},
       {"opt_sparse_name", kExactlyOne, {is("RowWiseAdagrad")}},
       {"opt_sparse_base_learning_rate", kExactlyOne, {{kSameLearningRate}}},
       {"opt_learning_rate_warmup_steps", kExactlyOne, {equals(24'000)}},
       {"opt_learning_rate_warmup_start_lr", kExactlyOne, {equals(0)}},
       {"eval_every_data_pct", kExactlyOne, {equals(kDlrmv4EvalShare)}},
       {.key = "eval_accuracy",
        .require = kAtLeastOne,
        .checks = {has_any({"samples_count"}), {kOnEvalGrid}, {kAtLeast, 0}, {kAtMost, 1}},
        .first = {{kFirstEval}},
        .some_event = {{kAtLeast, kDlrmv4Target}}}}};
  if (draft) list.rules.push_back({"gradient_accumulation_steps", kExactlyOne, kPositiveInteger});
  return list;
}

RuleList open_dlrmv4(bool draft) {
  const std::vector<Condition> rate =
      draft ? std::vector<Condition>{} : std::vector<Condition>{{kLearningRateBand}};
  RuleList list = {"open_dlrmv4",
                   {{"global_batch_size", kExactlyOne, kPositiveInteger, Effect::kBatchSize},
                    {"gradient_accumulation_steps", kExactlyOne, kPositiveInteger},
                    {"train_samples", kExactlyOne, {equals(kDlrmv4TrainSamples)}},
                    {"eval_samples", kExactlyOne, {equals(kDlrmv4EvalSamples)}},
                    {"max_sequence_length", kExactlyOne, kPositiveInteger},
                    {"opt_base_learning_rate", kExactlyOne, rate},
                    {"opt_sparse_base_learning_rate", kExactlyOne, rate},
                    {.key = "eval_accuracy",
                     .require = kAtLeastOne,
                     .checks = {has_any({"samples_count"}), {kAtLeast, 0}, {kAtMost, 1}},
                     .some_event = {{kAtLeast, kDlrmv4Target}}}}};
  for (const std::string_view key :
       {"opt_name", "opt_adam_beta_1", "opt_adam_beta_2", "opt_adam_epsilon", "opt_weight_decay",
        "opt_gradient_clip_norm", "opt_sparse_name", "opt_learning_rate_warmup_steps",
        "opt_learning_rate_warmup_start_lr", "eval_every_data_pct"}) {
    list.rules.push_back({key});
  }
  return list;
}

/// `judged` is the benchmark that has rules here; MLPerf admits the others, too.
Ruleset ruleset(std::string_view name, Disclosure disclosure, BenchmarkRules judged,
                const Words& others) {
  Words names = others;
  names.push_back(judged.name);
  Ruleset set = {
      name, EvalRounding::kUp, common(disclosure), closed_common(names), open_common(names), {}};
  set.benchmarks.push_back(std::move(judged));
  for (const std::string_view other : others) set.benchmarks.push_back({other, {}, {}});
  return set;
}

std::vector<Ruleset> all_rulesets() {
  const Words of_600 = {"flux1",        "llama31_8b",  "llama2_70b_lora",
                        "llama31_405b", "gpt_oss_20b", "deepseekv3_671b"};
  const Words of_610 = {"flux1",       "llama31_8b",      "llama2_70b_lora",
                        "gpt_oss_20b", "deepseekv3_671b", "qwen35_397b_grpo"};
  std::vector<Ruleset> sets;
  sets.push_back(ruleset("6.1.0-release", Disclosure::kMustBe,
                         {"dlrmv4", closed_dlrmv4(false), open_dlrmv4(false)}, of_610));
  sets.push_back(ruleset("6.1.0", Disclosure::kMayBe,
                         {"dlrmv4", closed_dlrmv4(true), open_dlrmv4(true)}, of_610));
  sets.back().rounding = EvalRounding::kNearest;
  sets.push_back(ruleset("6.0.0", Disclosure::kMayBe,
                         {"dlrm_dcnv2", closed_dlrm_dcnv2(), open_dlrm_dcnv2()}, of_600));
  return sets;
}

}  // namespace

const BenchmarkRules* Ruleset::find(std::string_view benchmark) const {
  for (const BenchmarkRules& rules : benchmarks) {
    if (rules.name == benchmark) return &rules;
  }
  return nullptr;
}

const Ruleset& mllog_ruleset(std::string_view name) {
  static const std::vector<Ruleset> kSets = all_rulesets();
  Words names;
  for (const Ruleset& set : kSets) {
    if (set.name == name) return set;
    names.push_back(set.name);
  }
  fail(ErrorCode::kInvalidArgument,
       fmt::format("there is no MLPerf ruleset `{}`; there is: {}", name, fmt::join(names, ", ")));
}

}  // namespace segue::report
