#include "report/mlperf/mllog_lint.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "base/test_util.h"
#include "report/mlperf/mllog_test_util.h"

namespace segue::report {
namespace {

using base::contains;
using Lines = std::vector<std::string>;

bool passes(const Lines& lines, bool werror = true) {
  return lint_lines(lines, werror).verdict == LintVerdict::kPassed;
}

/// Exactly one finding, of this key and with this text.
void expect_finding(const Lines& lines, const std::string& key, const std::string& part,
                    bool werror = false) {
  const LintReport report = lint_lines(lines, werror);
  EXPECT_EQ(report.verdict, LintVerdict::kFailed);
  ASSERT_EQ(report.findings.size(), 1u) << lint_text(report);
  EXPECT_EQ(report.findings[0].key, key) << lint_text(report);
  EXPECT_TRUE(contains(report.findings[0].text, part));
}

Lines without(Lines lines, const std::string& key) {
  std::erase_if(lines, [&](const std::string& line) {
    return line.find("\"key\": \"" + key + "\"") != std::string::npos;
  });
  return lines;
}

/// The first event of `key` gets another value.
Lines with_value(Lines lines, const std::string& key, const std::string& value) {
  std::string& line = lines[line_of(lines, key)];
  const size_t from = line.find("\"value\": ") + 9;
  line.replace(from, line.find(", \"metadata\"") - from, value);
  return lines;
}

Lines repeated(Lines lines, const std::string& key) {
  const std::string again = lines[line_of(lines, key)];
  lines.insert(lines.end() - 1, again);
  return lines;
}

Lines moved_behind(Lines lines, const std::string& key, const std::string& other) {
  const std::string line = lines[line_of(lines, key)];
  lines.erase(lines.begin() + static_cast<std::ptrdiff_t>(line_of(lines, key)));
  lines.insert(lines.begin() + static_cast<std::ptrdiff_t>(line_of(lines, other)) + 1, line);
  return lines;
}

TEST(MllogLint, CompleteLogsPass) {
  for (const int64_t batch : {512, 4096, 8192, 16384, 32768}) {
    EXPECT_TRUE(passes(good_log(batch))) << batch;
    EXPECT_TRUE(passes(good_log(batch, 1, "open"))) << batch;
    const auto draft = good_log(batch, 2, "closed", EvalRounding::kNearest);
    EXPECT_EQ(lint_text_of(text_of(draft), {.ruleset = "6.1.0", .werror = true}).verdict,
              LintVerdict::kPassed);
    EXPECT_EQ(passes(draft), batch > 4096) << batch;  // the grids differ
  }
}

TEST(MllogLint, ARunOfFullLengthPasses) {
  const Lines lines = good_log(8192, 975);  // from block 25 to the end of the epoch
  EXPECT_EQ(lines.size(), 36u + 975 * 6 + 1);
  EXPECT_TRUE(passes(lines));
}

TEST(MllogLint, EveryRequiredKeyIsMissed) {
  const Lines good = good_log(8192);
  for (const char* key : {"submission_org",
                          "submission_platform",
                          "cache_clear",
                          "run_stop",
                          "train_samples",
                          "eval_samples",
                          "gradient_accumulation_steps",
                          "max_sequence_length",
                          "opt_name",
                          "opt_adam_beta_1",
                          "opt_adam_beta_2",
                          "opt_adam_epsilon",
                          "opt_weight_decay",
                          "opt_gradient_clip_norm",
                          "opt_sparse_name",
                          "opt_sparse_base_learning_rate",
                          "opt_learning_rate_warmup_steps",
                          "opt_learning_rate_warmup_start_lr",
                          "eval_every_data_pct",
                          "lowest_numerical_precision_in_linear",
                          "lowest_numerical_precision_in_attn",
                          "lowest_numerical_precision_in_comm",
                          "tensor_parallelism",
                          "pipeline_parallelism",
                          "context_parallelism",
                          "expert_parallelism",
                          "micro_batch_size",
                          "config_filename"}) {
    expect_finding(without(good, key), key, "must occur");
  }
  for (const char* key :
       {"submission_division", "submission_benchmark", "init_start", "init_stop", "run_start",
        "global_batch_size", "opt_base_learning_rate", "eval_accuracy"}) {
    EXPECT_FALSE(passes(without(good, key), false)) << key;
  }
  for (const char* key : {"seed", "submission_status", "train_loss", "eval_start", "eval_stop"}) {
    EXPECT_TRUE(passes(without(good, key))) << key;
  }
  EXPECT_FALSE(passes(without(good, "block_start"), false));
  EXPECT_FALSE(passes(without(good, "block_stop"), false));
}

TEST(MllogLint, ValuesAreComparedAsDoubles) {
  const Lines good = good_log(8192);
  expect_finding(with_value(good, "opt_adam_beta_1", "0.949999988079071"), "opt_adam_beta_1",
                 "0.95");
  expect_finding(with_value(good, "opt_name", "\"adam\""), "opt_name", "Adam");
  expect_finding(with_value(good, "train_samples", "2290835424"), "train_samples", "2290835423");
  expect_finding(with_value(good, "micro_batch_size", "0"), "micro_batch_size", "1 or more");
  expect_finding(with_value(good, "micro_batch_size", "\"x\""), "micro_batch_size", "number");
  expect_finding(with_value(good, "submission_org", "\"\""), "submission_org", "empty");
  expect_finding(with_value(good, "lowest_numerical_precision_in_attn", "\"bf16\""),
                 "lowest_numerical_precision_in_attn", "bfloat16");
  EXPECT_TRUE(passes(with_value(good, "opt_weight_decay", "0")));
  EXPECT_TRUE(passes(with_value(good, "max_sequence_length", "4096.0")));
  EXPECT_TRUE(passes(with_value(good, "train_loss", "NaN")));
}

TEST(MllogLint, LearningRateStaysNearTheReference) {
  const Lines good = good_log(8192);
  const auto with_rate = [&](const std::string& rate) {
    return with_value(with_value(good, "opt_base_learning_rate", rate),
                      "opt_sparse_base_learning_rate", rate);
  };
  EXPECT_TRUE(passes(with_rate("5e-07")));
  EXPECT_TRUE(passes(with_rate("1.5e-06")));
  expect_finding(with_rate("4.9e-07"), "opt_base_learning_rate", "lie in");
  expect_finding(with_rate("1.6e-06"), "opt_base_learning_rate", "lie in");
  expect_finding(with_value(good, "opt_sparse_base_learning_rate", "1.1e-06"),
                 "opt_sparse_base_learning_rate", "must equal");
  EXPECT_EQ(lint_text_of(text_of(with_rate("1.6e-06")), {.ruleset = "6.1.0"}).verdict,
            LintVerdict::kPassed);
}

TEST(MllogLint, EvaluationsLieOnTheGridAndReachTheTarget) {
  Lines early = good_log(8192);
  const size_t eval = line_of(early, "eval_accuracy");
  early.insert(early.begin() + static_cast<std::ptrdiff_t>(eval),
               replaced(early[eval], "57344000", "2293760"));  // evaluated from block 1 on
  expect_finding(early, "eval_accuracy", "first evaluation must be at 57344000");
  Lines off = good_log(8192);
  off[off.size() - 3] = replaced(off[off.size() - 3], "61931520", "61931521");
  expect_finding(off, "eval_accuracy", "multiple");
  Lines low = good_log(8192);
  low[low.size() - 3] = replaced(low[low.size() - 3], "0.7501", "0.7499");
  expect_finding(low, "eval_accuracy", "0.75 or more");
  Lines wild = good_log(8192);
  wild[eval] = replaced(wild[eval], "0.74", "1.5");
  expect_finding(wild, "eval_accuracy", "1 or less");
  EXPECT_FALSE(passes(with_value(good_log(8192), "eval_accuracy", "null"), false));
}

TEST(MllogLint, AnAbortedRunThatReachedTheTargetPasses) {
  Lines lines = good_log(8192);
  lines.back() = replaced(lines.back(), "success", "aborted");
  EXPECT_TRUE(passes(lines));
  lines.back() = replaced(lines.back(), "\"status\"", "\"state\"");
  expect_finding(lines, "run_stop", "status");
}

TEST(MllogLint, LinesThatAreNoEventsFailWithTheirPlace) {
  const Lines good = good_log(8192);
  for (const char* field : {"metadata", "time_ms", "key", "value"}) {
    Lines lines = good;
    lines[9] = replaced(lines[9], "\"" + std::string(field) + "\"", "\"other\"");
    const LintReport report = lint_lines(lines);
    EXPECT_EQ(report.verdict, LintVerdict::kFailed);
    EXPECT_TRUE(contains(lint_text(report), "line 10 (event 9): the event has no `"));
  }
  Lines broken = good;
  broken[12].pop_back();
  EXPECT_TRUE(contains(lint_text(lint_lines(broken)), "line 13 (event 12): what follows"));
  Lines zeros = good;
  zeros[12] += std::string(3, '\0');
  EXPECT_TRUE(contains(lint_text(lint_lines(zeros)), "line 13 (event 12): what follows"));
  EXPECT_TRUE(contains(lint_text(lint_text_of("")), "no events"));
  EXPECT_EQ(lint_text_of("").verdict, LintVerdict::kFailed);
}

TEST(MllogLint, EventsWhoseKeyIsNoTextAreNotLookedAt) {
  const Lines good = good_log(8192);
  for (const char* key :
       {"null", "{}", "[]", "[\"run_stop\"]", "7", "-1.5", "true", "NaN", "\"\""}) {
    Lines lines = good;
    lines.insert(lines.begin() + 9, ":::MLLOG {\"time_ms\": 1, \"key\": " + std::string(key) +
                                        ", \"value\": 1, \"metadata\": {}}");
    EXPECT_TRUE(passes(lines)) << key;
    Lines missing = good;  // a key that is needed is still missed
    const size_t stop = line_of(missing, "run_stop");
    missing[stop] = replaced(missing[stop], "\"run_stop\"", key);
    expect_finding(missing, "run_stop", "does not occur");
  }
}

TEST(MllogLint, TimesAreWhatPythonTakesForNumbers) {
  const std::string before = ":::MLLOG {\"time_ms\": ";
  const std::string after = ", \"key\": \"train_loss\", \"value\": 1, \"metadata\": {}}";
  const Lines good = good_log(8192);
  const auto with_time = [&](const std::string& time) {
    Lines lines = good;
    lines.insert(lines.end() - 1, before + time + after);
    return lines;
  };
  for (const char* time :
       {"1", "1.5", "\"1.5\"", "true", "NaN", "-Infinity", "1e999", "-0.1E+400", "0.001e310"}) {
    EXPECT_TRUE(passes(with_time(time))) << time;
  }
  for (const char* time : {"null", "\"\"", "\"\\u0000\"", "\"1.2.3\"", "{}", "[1]"}) {
    EXPECT_TRUE(contains(lint_text(lint_lines(with_time(time))), "`time_ms` is no number")) << time;
  }
  for (const char* time : {"01e999", "+1e999", "1e+", "1e9-9", ".1e999", "1.e999", "1e999e", "-"}) {
    EXPECT_TRUE(contains(lint_text(lint_lines(with_time(time))), "is no JSON")) << time;
  }
}

TEST(MllogLint, Latin1PrefixesAndOtherTextAreFine) {
  Lines lines = good_log(8192);
  for (std::string& line : lines) line = "[rank0] caf\xE9 12:00 " + line + "\r";
  lines.insert(lines.begin(), "\xFF no token here");
  const size_t org = line_of(lines, "submission_org");
  lines[org] = replaced(lines[org], "Segue", "S\xE9gu\xE9");
  EXPECT_TRUE(passes(lines));
}

TEST(MllogLint, BenchmarksThatAreNotKnownOrNotJudged) {
  const Lines good = good_log(8192);
  expect_finding(with_value(good, "submission_benchmark", "\"hstu\""), "submission_benchmark",
                 "\"hstu\" must be one of");
  expect_finding(with_value(good, "submission_division", "\"shut\""), "submission_division",
                 "closed, open");
  const LintReport other = lint_lines(with_value(good, "submission_benchmark", "\"flux1\""));
  EXPECT_EQ(other.verdict, LintVerdict::kNotJudged);
  EXPECT_TRUE(contains(lint_text(other), "no rules here"));
  const auto error = base::error_of([] { lint_text_of("", {.ruleset = "7.0.0"}); });
  EXPECT_EQ(error->code(), ErrorCode::kInvalidArgument);
  EXPECT_TRUE(contains(error->what(), "6.1.0"));
}

TEST(MllogLint, OrderMatters) {
  const Lines good = good_log(8192);
  expect_finding(moved_behind(good, "submission_division", "init_stop"), "init_stop", "time limit");
  expect_finding(moved_behind(good, "opt_base_learning_rate", "opt_sparse_base_learning_rate"),
                 "opt_sparse_base_learning_rate", "come first");
  expect_finding(moved_behind(good, "global_batch_size", "opt_base_learning_rate"),
                 "opt_base_learning_rate", "come first");
  EXPECT_FALSE(passes(moved_behind(good, "global_batch_size", "eval_accuracy"), false));
  EXPECT_FALSE(passes(moved_behind(good, "init_stop", "run_start"), false));
  EXPECT_FALSE(passes(moved_behind(good, "init_start", "init_stop"), false));
  expect_finding(moved_behind(good, "run_start", "block_start"), "block_start", "run_start");
  EXPECT_FALSE(passes(moved_behind(good, "run_start", "run_stop"), false));
  for (const char* key : {"train_samples", "eval_samples", "submission_benchmark", "seed"}) {
    EXPECT_TRUE(passes(moved_behind(good, key, "run_start"))) << key;
  }
}

TEST(MllogLint, InitHasALimit) {
  const auto delayed = [](Lines lines, int64_t minutes) {
    std::string& line = lines[line_of(lines, "init_stop")];
    const size_t at = line.find("\"time_ms\": ") + 11;
    const int64_t start = std::stoll(lines[1].substr(lines[1].find("\"time_ms\": ") + 11, 13));
    line.replace(at, 13, std::to_string(start + minutes * 60'000));
    return lines;
  };
  EXPECT_TRUE(passes(delayed(good_log(8192), 29)));
  expect_finding(delayed(good_log(8192), 30), "init_stop", "less than 30");
  EXPECT_TRUE(passes(delayed(good_log(8192, 1, "open"), 239)));
  expect_finding(delayed(good_log(8192, 1, "open"), 240), "init_stop", "less than 240");
}

TEST(MllogLint, WhatAResumedRunMayRepeat) {
  const Lines good = good_log(8192);
  for (const char* key : {"init_start", "init_stop"}) {
    EXPECT_FALSE(passes(repeated(good, key), false)) << key;
  }
  for (const char* key : {"run_start", "train_samples", "eval_samples", "global_batch_size",
                          "run_stop", "micro_batch_size"}) {
    const LintReport report = lint_lines(repeated(good, key), false);
    EXPECT_EQ(report.verdict, LintVerdict::kPassed) << key;
    ASSERT_EQ(report.warnings.size(), 1u) << key;
    EXPECT_TRUE(contains(report.warnings[0].text, "2 times"));
    expect_finding(repeated(good, key), key, "2 times", true);
    const LintReport quiet =
        lint_text_of(text_of(repeated(good, key)), {.ruleset = "6.1.0-release", .quiet = true});
    EXPECT_TRUE(quiet.warnings.empty());
    Lines other = repeated(good, key);
    other[line_of(other, key)] =
        replaced(other[line_of(other, key)], "\"value\": ", "\"value\": 1");
    EXPECT_FALSE(passes(other, false)) << key;
  }
  for (const char* key : {"cache_clear", "seed", "block_start", "block_stop", "eval_start",
                          "eval_accuracy", "eval_stop", "train_loss"}) {
    EXPECT_TRUE(passes(repeated(good, key))) << key;
  }
}

TEST(MllogLint, DlrmDcnv2OfTheEarlierRound) {
  Lines lines = good_log(8192);
  lines = with_value(lines, "submission_benchmark", "\"dlrm_dcnv2\"");
  lines = with_value(lines, "opt_name", "\"adagrad\"");
  lines = with_value(lines, "opt_learning_rate_warmup_steps", "0");
  lines = with_value(lines, "eval_samples", "89137319");
  lines = with_value(lines, "eval_accuracy", "0.80275");
  for (const char* key :
       {"opt_adagrad_learning_rate_decay", "opt_adagrad_initial_accumulator_value",
        "opt_learning_rate_decay_start_step", "opt_learning_rate_decay_steps",
        "opt_adagrad_epsilon"}) {
    std::string line = replaced(lines[line_of(lines, "opt_weight_decay")], "opt_weight_decay", key);
    if (std::string(key).ends_with("epsilon")) line = replaced(line, "0.0", "1e-08");
    lines.insert(lines.begin() + 9, line);
  }
  const LintOptions old = {.ruleset = "6.0.0", .werror = true};
  EXPECT_EQ(lint_text_of(text_of(lines), old).verdict, LintVerdict::kPassed)
      << lint_text(lint_text_of(text_of(lines), old));
  const auto low = with_value(lines, "eval_accuracy", "0.80274");
  EXPECT_EQ(lint_text_of(text_of(low), old).verdict, LintVerdict::kFailed);
  EXPECT_FALSE(passes(lines, false));  // 6.1.0 does not know it
}

TEST(MllogLint, JsonSaysTheSame) {
  const std::string json = lint_json(lint_lines(without(good_log(8192), "opt_name")));
  EXPECT_TRUE(
      contains(json, R"({"verdict":"failed","ruleset":"6.1.0-release","division":"closed",)"));
  EXPECT_TRUE(contains(json, R"("findings":[{"key":"opt_name","text":"it must occur)"));
}

}  // namespace
}  // namespace segue::report
