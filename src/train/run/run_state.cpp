#include "train/run/run_state.h"

#include <algorithm>
#include <array>
#include <map>
#include <sstream>
#include <string_view>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <toml++/toml.h>

#include "base/checked_json.h"
#include "base/config.h"
#include "base/error.h"
#include "base/toml_depth.h"
#include "data/store/store_identity.h"
#include "report/mlperf/mllog_run.h"
#include "train/run_config.h"

namespace segue::train {
namespace {

/// A member that checkpoints of 0.1 lack.
struct NotIn01 {};

/// Visits every member under its name, so that writing and reading cannot disagree. Counts are not
/// negative unless a least value is given; other numbers have one where it is given.
template <class State, class Visit>
void members(State& s, Visit visit) {
  visit("step", s.step);
  visit("next_window", s.next.window);
  visit("next_batch", s.next.batch);
  visit("samples", s.samples);
  visit("skipped", s.skipped);
  visit("window", s.window, -1);
  visit("last_eval_step", s.last_eval_step, -1);
  visit("eval_pending", s.eval_pending);
  visit("eval_window", s.eval_window, -1);
  visit("finished", s.finished);
  visit("target_reached", s.target_reached);
  visit("last_auc", s.last_auc, 0);
  visit("wall_seconds", s.wall_seconds, 0);
  visit("metrics_bytes", s.metrics_bytes);
  visit("window_labels", s.window_labels);
  visit("interval_steps", s.interval.steps);
  visit("interval_samples", s.interval.samples);
  visit("interval_tokens", s.interval.tokens);
  visit("interval_loss", s.interval.loss);
  visit("interval_padded_flops", s.interval.padded_flops, 0);
  visit("interval_jagged_flops", s.interval.jagged_flops, 0);
  visit("interval_seconds", s.interval.seconds, 0);
  visit("interval_wait_seconds", s.interval.wait_seconds, 0);
  visit("interval_lengths", s.interval.lengths);
  visit("loss_mean", s.loss_score.mean);
  visit("loss_variance", s.loss_score.variance, 0);
  visit("loss_count", s.loss_score.count);
  visit("gradient_mean", s.gradient_score.mean);
  visit("gradient_variance", s.gradient_score.variance, 0);
  visit("gradient_count", s.gradient_score.count);
  visit("mllog", s.mllog);
  visit("store", s.store, NotIn01{});
  visit("config", s.config);
}

/// Takes members out of JSON that anybody may have written.
class Reader {
 public:
  explicit Reader(const base::CheckedJson& json) : json_(json) {}

  void operator()(const char* name, int64_t& value, int64_t least = 0) const {
    value = base::whole_number(json_, name, least);
  }
  void operator()(const char* name, double& value) const { value = base::real_number(json_, name); }
  void operator()(const char* name, double& value, double least) const {
    value = base::real_number(json_, name, least);
  }
  void operator()(const char* name, bool& value) const { value = base::flag_of(json_, name); }
  void operator()(const char* name, std::string& value) const {
    value = base::text_of(json_, name);
  }
  void operator()(const char* name, std::string& value, NotIn01 /*may be absent*/) const {
    if (json_.contains(name)) (*this)(name, value);
  }
  void operator()(const char* name, std::vector<int64_t>& values) const {
    values = base::whole_numbers(json_, name);
  }

 private:
  const base::CheckedJson& json_;
};

/// How a run goes, not what it computes: free to differ between two processes of one run.
constexpr std::array kFreeKeys = {"train.threads",
                                  "model.attention.kernel",
                                  "train.device",
                                  "train.arena_gib",
                                  "train.distinct_share",
                                  "train.warn_z_score",
                                  "train.watchdog_seconds",
                                  "train.peak_tflops",
                                  "train.track_layers_every",
                                  "train.max_skipped",
                                  "eval.details",
                                  "eval.top_k",
                                  "publish",
                                  "data.follow",
                                  "data.follow_seconds",
                                  "data.stage_to",
                                  "data.index",
                                  "data.verify",
                                  "data.loader",
                                  "checkpoint",
                                  "trace",
                                  "comm",
                                  "parallel",
                                  "balance",
                                  "sparse.spill_folder"};

/// 0 leaves the choice to the run, which has made it and goes on with it.
constexpr const char* kChosenKey = "train.micro_batch_tokens";

/// Where tables lie is free, too; they are a list in the config.
bool is_placement(std::string_view key) {
  return key.starts_with("sparse.tables.") &&
         (key.ends_with(".sharding") || key.ends_with(".placement") ||
          key.ends_with(".cache_share") || key.ends_with(".cache_policy"));
}

bool covers(std::string_view name, std::string_view key) {
  return key == name || (key.starts_with(name) && key[name.size()] == '.');
}

void flatten(const toml::node& node, const std::string& key,
             std::map<std::string, std::string>& out) {
  if (const toml::table* table = node.as_table()) {
    for (const auto& [name, child] : *table) {
      flatten(child, key.empty() ? std::string(name.str()) : fmt::format("{}.{}", key, name.str()),
              out);
    }
    return;
  }
  const toml::array* array = node.as_array();
  if (array != nullptr && array->is_array_of_tables()) {
    for (size_t i = 0; i < array->size(); ++i) {
      flatten((*array)[i], fmt::format("{}.{}", key, i), out);
    }
    return;
  }
  std::ostringstream text;
  node.visit([&](const auto& value) { text << value; });
  const toml::value<double>* number = node.as_floating_point();
  out[key] = number != nullptr ? fmt::format("{}", number->get()) : text.str();  // 0.1 as "0.1"
}

/// What does not show in one member alone.
void require_possible(const RunState& state) {
  const size_t bins = state.interval.lengths.size();
  if (bins != 0 && bins != static_cast<size_t>(kLengthBins)) {
    fail(ErrorCode::kCorrupt, fmt::format("`interval_lengths` has {} bins", bins));
  }
  if (state.window > state.next.window || state.eval_window > state.next.window) {
    fail(ErrorCode::kCorrupt, fmt::format("windows {} and {} were trained, but {} comes next",
                                          state.window, state.eval_window, state.next.window));
  }
  if (!state.mllog.empty()) report::mllog_state_from_json(state.mllog);
  if (!state.store.empty()) data::StoreIdentity::from_json(state.store);
  flat_config(state.config);
}

/// With the keys that this version has besides, at their defaults; as it is where it does not fit
/// this version.
std::string completed(const std::string& text) {
  try {
    return base::to_toml(recorded_config(text));
  } catch (const Error&) {
    return text;
  }
}

std::string value_of(const std::map<std::string, std::string>& keys, const std::string& key) {
  const auto found = keys.find(key);
  return found == keys.end() ? "(absent)" : found->second;
}

}  // namespace

std::map<std::string, std::string> flat_config(const std::string& text) {
  std::map<std::string, std::string> keys;
  if (const int64_t line = base::line_of_deep_key(text); line > 0) {
    fail(ErrorCode::kCorrupt, fmt::format("line {} of the recorded config has a key of more than "
                                          "{} parts",
                                          line, base::kMostKeyParts));
  }
  try {
    flatten(toml::parse(text), "", keys);
  } catch (const toml::parse_error& error) {
    fail(ErrorCode::kCorrupt, fmt::format("the recorded config is no TOML: {}", error.what()));
  }
  return keys;
}

std::string to_json(const RunState& state) {
  nlohmann::ordered_json json;
  members(state,
          [&](const char* name, const auto& value, auto... /*least*/) { json[name] = value; });
  return json.dump();
}

RunState run_state_from_json(const std::string& text) {
  try {
    RunState state;
    const base::CheckedJson json = base::parse_checked(text);
    members(state, Reader(json));
    require_possible(state);
    return state;
  } catch (const Error& error) {
    fail(ErrorCode::kCorrupt,
         fmt::format("the state in the checkpoint is not one that this version writes ({}); use "
                     "the version that wrote it",
                     error.what()));
  }
}

RunState run_state_of(const Checkpoint& checkpoint) {
  try {
    RunState state = run_state_from_json(checkpoint.state_json());
    if (state.step == checkpoint.step()) return state;
    fail(ErrorCode::kCorrupt, fmt::format("its state is that of step {}", state.step));
  } catch (const Error& error) {
    fail(error.code(), fmt::format("{}: {}", checkpoint.path(), error.what()));
  }
}

std::vector<ConfigDifference> config_differences(const std::string& before,
                                                 const std::string& now) {
  const std::map<std::string, std::string> old_keys = flat_config(completed(before)),
                                           new_keys = flat_config(now);
  std::map<std::string, std::string> all = old_keys;
  all.insert(new_keys.begin(), new_keys.end());
  std::vector<ConfigDifference> differences;
  for (const auto& entry : all) {
    const std::string& key = entry.first;
    if (is_placement(key) ||
        std::ranges::any_of(kFreeKeys, [&](const char* free) { return covers(free, key); })) {
      continue;
    }
    ConfigDifference d{key, value_of(old_keys, key), value_of(new_keys, key)};
    if (key == kChosenKey && d.now == "0") continue;
    if (d.before != d.now) differences.push_back(std::move(d));
  }
  return differences;
}

bool is_allowed(const std::string& key, std::span<const std::string> allowed) {
  return std::ranges::any_of(allowed, [&](const std::string& a) { return covers(a, key); });
}

void require_same_config(const std::string& before, const std::string& now,
                         const std::vector<std::string>& allowed) {
  std::string list;
  for (const ConfigDifference& d : config_differences(before, now)) {
    if (is_allowed(d.key, allowed)) continue;
    list += fmt::format("\n  {}: was {}, now {}", d.key, d.before, d.now);
  }
  if (list.empty()) return;
  fail(ErrorCode::kConfig,
       fmt::format("the run in this folder was started with another config:{}\nResume with its own "
                   "config (leave CONFIG out), allow a change with --allow-config-change KEY, take "
                   "another --run folder, or start over with --overwrite",
                   list));
}

}  // namespace segue::train
