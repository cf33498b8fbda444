#include "train/run_state.h"

#include <algorithm>
#include <array>
#include <map>
#include <sstream>
#include <string_view>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <toml++/toml.h>

#include "base/error.h"

namespace segue::train {
namespace {

using Json = nlohmann::ordered_json;

/// Visits every member under its name, so that writing and reading cannot disagree.
template <class State, class Visit>
void members(State& s, Visit visit) {
  visit("step", s.step);
  visit("next_window", s.next.window);
  visit("next_batch", s.next.batch);
  visit("samples", s.samples);
  visit("skipped", s.skipped);
  visit("window", s.window);
  visit("last_eval_step", s.last_eval_step);
  visit("eval_pending", s.eval_pending);
  visit("eval_window", s.eval_window);
  visit("finished", s.finished);
  visit("target_reached", s.target_reached);
  visit("last_auc", s.last_auc);
  visit("wall_seconds", s.wall_seconds);
  visit("metrics_bytes", s.metrics_bytes);
  visit("window_labels", s.window_labels);
  visit("interval_steps", s.interval.steps);
  visit("interval_samples", s.interval.samples);
  visit("interval_tokens", s.interval.tokens);
  visit("interval_loss", s.interval.loss);
  visit("interval_padded_flops", s.interval.padded_flops);
  visit("interval_jagged_flops", s.interval.jagged_flops);
  visit("interval_seconds", s.interval.seconds);
  visit("interval_wait_seconds", s.interval.wait_seconds);
  visit("interval_lengths", s.interval.lengths);
  visit("loss_mean", s.loss_score.mean);
  visit("loss_variance", s.loss_score.variance);
  visit("loss_count", s.loss_score.count);
  visit("gradient_mean", s.gradient_score.mean);
  visit("gradient_variance", s.gradient_score.variance);
  visit("gradient_count", s.gradient_score.count);
  visit("mllog", s.mllog);
  visit("config", s.config);
}

/// How a run goes, not what it computes: free to differ between two processes of one run.
constexpr std::array kFreeKeys = {"train.threads",
                                  "train.device",
                                  "train.arena_gib",
                                  "train.distinct_share",
                                  "train.warn_z_score",
                                  "train.watchdog_seconds",
                                  "train.peak_tflops",
                                  "train.max_skipped",
                                  "data.index",
                                  "data.verify",
                                  "data.loader",
                                  "checkpoint",
                                  "trace",
                                  "comm",
                                  "parallel",
                                  "balance"};

/// Where tables lie is free, too; they are a list in the config.
bool is_placement(std::string_view key) {
  return key.starts_with("sparse.tables.") &&
         (key.ends_with(".sharding") || key.ends_with(".placement"));
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
  out[key] = text.str();
}

std::map<std::string, std::string> flat(const std::string& text) {
  std::map<std::string, std::string> keys;
  flatten(toml::parse(text), "", keys);
  return keys;
}

std::string value_of(const std::map<std::string, std::string>& keys, const std::string& key) {
  const auto found = keys.find(key);
  return found == keys.end() ? "(absent)" : found->second;
}

}  // namespace

std::string to_json(const RunState& state) {
  Json json;
  members(state, [&](const char* name, const auto& value) { json[name] = value; });
  return json.dump();
}

RunState run_state_from_json(const std::string& text) {
  RunState state;
  try {
    const Json json = Json::parse(text);
    members(state, [&](const char* name, auto& value) { json.at(name).get_to(value); });
  } catch (const nlohmann::json::exception& error) {
    fail(ErrorCode::kCorrupt,
         fmt::format("the state in the checkpoint is not one that this version writes ({}); use "
                     "the version that wrote it",
                     error.what()));
  }
  return state;
}

std::vector<ConfigDifference> config_differences(const std::string& before,
                                                 const std::string& now) {
  const std::map<std::string, std::string> old_keys = flat(before), new_keys = flat(now);
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
    if (d.before != d.now) differences.push_back(std::move(d));
  }
  return differences;
}

void require_same_config(const std::string& before, const std::string& now,
                         const std::vector<std::string>& allowed) {
  std::string list;
  for (const ConfigDifference& d : config_differences(before, now)) {
    if (std::ranges::any_of(allowed, [&](const std::string& a) { return covers(a, d.key); })) {
      continue;
    }
    list += fmt::format("\n  {}: was {}, now {}", d.key, d.before, d.now);
  }
  if (list.empty()) return;
  fail(ErrorCode::kConfig,
       fmt::format("the run in this folder was started with another config:{}\nGo on with its own "
                   "config (leave CONFIG out), allow a change with --allow-config-change KEY, take "
                   "another --run folder, or start over with --overwrite",
                   list));
}

}  // namespace segue::train
