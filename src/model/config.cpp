#include "model/config.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <set>

#include <fmt/format.h>

#include "base/config_checks.h"
#include "base/error.h"

namespace segue::model {
namespace {

using base::fail_config;
using base::require_at_least;
using base::require_number;
using base::require_share;
using base::require_size;

// Far beyond what any memory holds, and small enough that no product of sizes overflows.
constexpr int64_t kMostWidth = 1 << 16;
constexpr int64_t kMostHeads = 1 << 12;
constexpr int64_t kMostLayers = 1 << 12;
constexpr int64_t kMostTokens = 1 << 24;
constexpr int64_t kMostBuckets = std::numeric_limits<int32_t>::max();

}  // namespace

using base::ConfigVisitor;

std::vector<SequenceFeature> SequenceFeature::columns() const {
  const std::vector<std::string> of_events = value_columns(history, values);
  const std::vector<std::string> of_candidates = value_columns(candidate, values);
  std::vector<SequenceFeature> all;
  for (size_t k = 0; k < of_events.size(); ++k) {
    all.push_back({of_events[k], of_candidates[k], table, values});
  }
  return all;
}

void describe(ConfigVisitor& v, SequenceFeature& c) {
  v.field("history", c.history, "column of the history");
  v.field("candidate", c.candidate, "column of the candidates");
  v.field("table", c.table, "embedding table");
  v.field("values", c.values,
          "of an item, at most: columns history_1, candidate_1 and on, whose rows are summed");
}

void describe(ConfigVisitor& v, ContextualFeature& c) {
  v.field("name", c.name, "column");
  v.field("table", c.table, "embedding table");
  v.field("max_length", c.max_length, "tokens it takes; shorter ones are padded with zero rows");
  v.field("min_sequence", c.min_sequence, "samples with fewer events and candidates see zeros");
  v.field("values", c.values, "columns name_1 and on, whose rows are summed to one token");
}

void describe(ConfigVisitor& v, NumericConfig& c) {
  v.field("columns", c.columns,
          "names of float columns; those of candidates have item_candidate_ in front");
  v.field("hidden", c.hidden, "hidden width of the MLPs that they pass");
  v.field("tokens", c.tokens, "not the head alone sees them, tokens do too");
  v.field("outcomes", c.outcomes,
          "names of numbers that show only after an event; tokens of the history alone get them");
  v.list("forms", c.forms, "how columns and outcomes enter; as they are where there is none");
}

void NumericConfig::validate() const {
  require_size("model.numeric.hidden", hidden, kMostWidth);
  std::vector<std::string> all = columns;
  all.insert(all.end(), outcomes.begin(), outcomes.end());
  validate_forms(forms, all);
  require_size("model.numeric: numbers of a row", token_width(), kMostWidth, 0);
  std::ranges::sort(all);
  if (const auto twice = std::ranges::adjacent_find(all); twice != all.end()) {
    fail_config(fmt::format("model.numeric names column `{}` twice", *twice));
  }
  if (!outcomes.empty() && !tokens) {
    fail_config(
        "model.numeric.outcomes are known of the history alone, whose tokens get them: set "
        "model.numeric.tokens = true");
  }
}

void describe(ConfigVisitor& v, ActionConfig& c) {
  v.field("history", c.history, "column of the history with the action bits");
  v.field("weights", c.weights, "the bits, one learned vector each");
  v.field("dim", c.dim, "width of one bit's vector");
}

void describe(ConfigVisitor& v, TaskConfig& c) {
  v.field("name", c.name, "name in logs");
  v.choice("kind", c.kind, {"binary", "regression"}, "cross entropy or squared error");
  v.field("bit", c.bit, "label = (label column & bit) > 0");
  v.field("weight", c.weight, "factor of this task's mean loss");
}

void describe(ConfigVisitor& v, AttentionConfig& c) {
  v.field("contextual_mask", c.contextual_mask, "contextual tokens see all history");
  v.field("window", c.window, "how far back a token sees; 0: unlimited");
  v.field("min_full", c.min_full, "the newest events that ignore the window");
  v.field("global_prefix", c.global_prefix,
          "first tokens of a sample, contextual ones included, that all see despite the window");
  v.field("target_group", c.target_group, "candidates of a group see each other causally");
  v.choice(
      "score_scale", c.score_scale, {"max_seq_len", "batch_max"},
      "scores are divided by the configured length, or as the reference does by the longest sample "
      "of the batch");
  v.choice("key_init", c.key_init, {"own", "queries"},
           "initial weights of keys: their own, or those of the queries: tokens then look for "
           "tokens like them from the first step on");
  v.choice("kernel", c.kernel, {"auto", "sm90", "portable", "plain"},
           "of full layers on a GPU; auto: the fastest that can do it");
}

void describe(ConfigVisitor& v, TruncationConfig& c) {
  v.field("from_layer", c.from_layer,
          "the first layer, counted from 0, that works on the newest tokens only; 0: none");
  v.field("events", c.events, "newest events of a history that are left then");
}

void describe(ConfigVisitor& v, IdentityConfig& c) {
  v.field("last_layer_targets", c.last_layer_targets, "compute the last layer at target rows only");
  v.field("distinct_rows", c.distinct_rows, "run id branches once per distinct tuple of ids");
  v.field("action_codes", c.action_codes, "run the action branch once per bit pattern");
}

void describe(ConfigVisitor& v, RecomputeConfig& c) {
  v.field("normed_input", c.normed_input, "rebuild the normed layer input in backward");
  v.field("uvqk", c.uvqk, "rebuild u, v, q, k in backward");
  v.field("gate", c.gate, "rebuild the input of the output projection in backward");
}

void describe(ConfigVisitor& v, ModelConfig& c) {
  v.choice("family", c.family, {"hstu", "dlrm"},
           "the HSTU ranker, or a plain DLRM, of which section `dlrm` and the tasks are read");
  v.field("dim", c.dim, "width of the STU stack");
  v.field("heads", c.heads, "attention heads");
  v.field("qk_dim", c.qk_dim, "query and key width of one head");
  v.field("v_dim", c.v_dim, "value and gate width of one head");
  v.field("layers", c.layers, "STU layers");
  v.field("hidden", c.hidden, "hidden width of the embedding MLPs");
  v.field("item_hidden", c.item_hidden, "hidden width of the item MLP");
  v.field("head_hidden", c.head_hidden, "hidden width of the prediction head");
  v.field("max_seq_len", c.max_seq_len, "tokens of one sample, contextual and candidates included");
  v.field("position_buckets", c.position_buckets, "rows of the position table");
  v.field("time_buckets", c.time_buckets, "buckets of event age; 0: no time encoding");
  v.field("input_dropout", c.input_dropout, "after the encoders");
  v.field("dropout", c.dropout, "in every STU layer");
  v.choice("layer", c.layer, {"concat", "gated"},
           "STU layer: [u | a | u*norm(a)], or u*norm(a) with SiLU on all of uvqk");
  v.choice("output_norm", c.output_norm, {"layer", "group"}, "norm of the attention output");
  v.choice("tokens", c.tokens, {"merged", "interleaved", "paired"},
           "of an event: one of item and action, one each, or one of the item and one of both");
  v.choice("input_scale", c.input_scale, {"sqrt_dim", "one"},
           "factor of item and action in a token; the reference's is sqrt(dim), next to which "
           "position, time and what layers add are small");
  v.choice("labels", c.labels, {"candidates", "every_item"},
           "what is predicted: the candidates, or what was done with every item of the history");
  v.choice("embedding_mlp", c.embedding_mlp, {"swish_norm", "relu"}, "form of the embedding MLPs");
  v.choice("postprocessor", c.postprocessor, {"l2", "layernorm", "timestamp_layernorm"},
           "after the stack");
  v.choice("head", c.head, {"product", "direct"}, "user times item embedding, or the token alone");
  v.choice("head_precision", c.head_precision, {"float", "training"},
           "of head and item side: float even where train.precision is bf16, or as all else");
  v.field("time_pi", c.time_pi, "pi of the cyclic time features; the reference has 3.14");
  v.section("item", c.item, "the feature that identifies an event's item");
  v.list("additional", c.additional, "more features of an event");
  v.list("contextual", c.contextual, "features of the sample");
  v.section("numeric", c.numeric, "numeric features of events and candidates");
  v.section("action", c.action);
  v.field("history_timestamp", c.history_timestamp, "column, seconds");
  v.field("candidate_timestamp", c.candidate_timestamp, "column, seconds");
  v.field("candidate_label", c.candidate_label, "column with the candidates' label bits");
  v.list("tasks", c.tasks, "what the head predicts");
  v.section("attention", c.attention);
  v.section("truncation", c.truncation, "later layers work on the newest tokens only");
  v.section("identities", c.identities, "exact rewritings that skip work");
  v.section("recompute", c.recompute, "what backward rebuilds instead of keeping");
  v.section("dlrm", c.dlrm, "a plain DLRM");
}

void describe(ConfigVisitor& v, OptimizerConfig& c) {
  v.choice("kind", c.kind, {"adam", "adamw"}, "of the dense parameters");
  v.field("lr", c.lr, "dense learning rate");
  v.field("sparse_lr", c.sparse_lr, "learning rate of the tables");
  v.field("beta1", c.beta1, "Adam");
  v.field("beta2", c.beta2, "Adam");
  v.field("eps", c.eps, "Adam");
  v.field("weight_decay", c.weight_decay,
          "adam: times the weight, added to its gradient; adamw: times lr, the share of a weight "
          "that each step takes off it");
  v.field("clip_norm", c.clip_norm, "largest norm of the dense gradient; 0: no clipping");
  v.field("warmup_steps", c.warmup_steps, "both learning rates grow linearly over these steps");
  v.field("warmup_start_lr", c.warmup_start_lr, "learning rate of the first step");
  v.field("adam_counts_initial_step", c.adam_counts_initial_step,
          "first update uses t = 2, as the reference");
}

attention::HstuMask ModelConfig::attention_mask() const {
  return {.contextual_len = attention.contextual_mask ? contextual_tokens() : 0,
          .window = attention.window,
          .min_full = attention.min_full,
          .target_group = attention.target_group,
          .global_prefix = attention.global_prefix};
}

int64_t ModelConfig::contextual_tokens() const {
  int64_t tokens_in_front = 0;
  for (const ContextualFeature& f : contextual) tokens_in_front += f.max_length;
  return tokens_in_front;
}

ModelConfig::Kept ModelConfig::kept_tokens(int64_t count, int64_t targets) const {
  const int64_t history_end = count - targets;
  const int64_t first =
      std::min(history_end, std::max(contextual_tokens(), attention.global_prefix));
  const int64_t newest = truncation.events * tokens_per_event();
  return {first, std::max<int64_t>(0, history_end - first - newest)};
}

namespace {

void require_truncation(const ModelConfig& c) {
  const TruncationConfig& t = c.truncation;
  require_size("model.truncation.events", t.events, kMostTokens, 0);
  if (t.from_layer < 0 || t.from_layer >= c.layers) {
    fail_config(fmt::format(
        "model.truncation.from_layer = {} is none of the layers 1 to {} that can be truncated "
        "(model.layers = {}); 0 turns truncation off",
        t.from_layer, c.layers - 1, c.layers));
  }
  if ((t.from_layer > 0) != (t.events > 0)) {
    fail_config(
        "model.truncation needs both from_layer and events: from which layer on, and how many of "
        "the newest events are left");
  }
  if (t.from_layer > 0 && c.labels == LabelKind::kEveryItem) {
    fail_config(
        "model.truncation drops old events, but model.labels = \"every_item\" predicts all of "
        "them; use labels = \"candidates\"");
  }
}

/// With labels at every item the label is the action, and only its bits can ever be set.
void require_task_bits(const ModelConfig& c) {
  int64_t known = 0;
  for (const int64_t weight : c.action.weights) known |= weight;
  for (const TaskConfig& task : c.tasks) {
    if (task.kind != ops::TaskKind::kBinary || c.labels != LabelKind::kEveryItem ||
        (task.bit & known) != 0) {
      continue;
    }
    fail_config(
        fmt::format("task `{}` asks for bit {}, which no action has (model.action.weights "
                    "= [{}]): its label would always be 0",
                    task.name, task.bit, fmt::join(c.action.weights, ", ")));
  }
}

}  // namespace

const char* ModelConfig::why_last_layer_is_full(int64_t most_candidates) const {
  if (!identities.last_layer_targets) return "it is turned off";
  if (labels != LabelKind::kCandidates) return "every item is a label";
  if (layer != LayerKind::kConcat || attention.target_group != 1) {
    return "it needs layer = \"concat\" and target groups of one";
  }
  if (most_candidates > kMostTargetsOfOne) return "a sample has more than 16 candidates";
  return nullptr;
}

void ModelConfig::validate() const {
  if (tasks.empty()) fail_config("model.tasks is empty: name at least one task ([[model.tasks]])");
  std::set<std::string> names;
  for (const TaskConfig& task : tasks) {
    if (task.name.empty()) fail_config("a task in model.tasks has no name");
    if (!names.insert(task.name).second)
      fail_config(fmt::format("task `{}` is named twice", task.name));
    if (task.kind == ops::TaskKind::kBinary && task.bit <= 0) {
      fail_config(fmt::format("task `{}`: bit must be positive", task.name));
    }
    constexpr int kMostBits = 32;
    if (task.kind == ops::TaskKind::kBinary &&
        std::bit_width(static_cast<uint64_t>(task.bit)) > kMostBits) {
      fail_config(fmt::format("task `{}`: bit {} does not fit the {} bits of a label", task.name,
                              task.bit, kMostBits));
    }
  }
  if (family == Family::kDlrm) {
    dlrm.validate();
    return;
  }
  require_size("model.dim", dim, kMostWidth);
  require_size("model.heads", heads, kMostHeads);
  require_size("model.qk_dim", qk_dim, kMostWidth);
  require_size("model.v_dim", v_dim, kMostWidth);
  require_size("model.layers", layers, kMostLayers);
  require_size("model.hidden", hidden, kMostWidth);
  require_size("model.item_hidden", item_hidden, kMostWidth);
  require_size("model.head_hidden", head_hidden, kMostWidth);
  require_size("model.max_seq_len", max_seq_len, kMostTokens);
  require_size("model.position_buckets", position_buckets, kMostBuckets);
  require_size("model.time_buckets", time_buckets, kMostBuckets, 0);
  require_number("model.time_pi", time_pi);
  require_share("model.input_dropout", input_dropout);
  require_share("model.dropout", dropout);
  if (item.values != 1) {
    fail_config("model.item.values: an item is one id; features of several values are additional");
  }
  for (const SequenceFeature& f : additional) {
    require_size("model.additional.values", f.values, kMostValues);
  }
  names.clear();
  for (const ContextualFeature& f : contextual) {
    require_size("model.contextual.max_length", f.max_length, kMostTokens);
    require_size("model.contextual.values", f.values, kMostValues);
    if (!names.insert(f.name).second)
      fail_config(fmt::format("contextual feature `{}` is named twice", f.name));
  }
  if (action.weights.empty() || action.weights.size() > 20) {
    fail_config("model.action.weights needs 1 to 20 bits");
  }
  for (const int64_t w : action.weights) {
    if (w <= 0) fail_config("model.action.weights must be positive");
  }
  require_task_bits(*this);
  numeric.validate();
  require_size("model.action.dim", action.dim, kMostWidth);
  if (max_seq_len <= contextual_tokens()) {
    fail_config(fmt::format("model.max_seq_len ({}) leaves no room behind {} contextual tokens",
                            max_seq_len, contextual_tokens()));
  }
  constexpr int64_t kAny = std::numeric_limits<int64_t>::max();
  require_size("model.attention.window", attention.window, kAny, 0);
  require_size("model.attention.min_full", attention.min_full, kAny, 0);
  require_size("model.attention.target_group", attention.target_group, kAny);
  require_size("model.attention.global_prefix", attention.global_prefix, kMostTokens, 0);
  if (attention.global_prefix > 0 && attention.window == 0) {
    fail_config(
        "model.attention.global_prefix lets tokens see the start of a sample despite the window, "
        "but model.attention.window is 0: set a window, or leave the prefix out");
  }
  require_truncation(*this);
}

void OptimizerConfig::validate() const {
  require_number("optimizer.lr", lr);
  require_number("optimizer.sparse_lr", sparse_lr);
  require_share("optimizer.beta1", beta1);
  require_share("optimizer.beta2", beta2);
  // Smaller ones are 0 as a float, and 0 / 0 is what the first step of an unused weight would be.
  constexpr double kLeastEps = std::numeric_limits<float>::min();
  if (!(eps >= kLeastEps) || !std::isfinite(eps)) {
    fail_config(fmt::format("optimizer.eps must be at least {:.2g}, not {}", kLeastEps, eps));
  }
  require_number("optimizer.weight_decay", weight_decay);
  require_number("optimizer.warmup_start_lr", warmup_start_lr);
  require_at_least("optimizer.warmup_steps", warmup_steps, 0);
  require_number("optimizer.clip_norm", clip_norm);
}

namespace {

/// The DLRMv4 benchmark: HSTU on Yambda-5b, with the reference's quirks on.
Preset yambda_5b() {
  Preset p;
  ModelConfig& m = p.model;
  m.time_pi = 3.14;
  m.attention.score_scale = ScoreScale::kBatchMax;
  m.additional = {{"artist_id", "item_candidate_artist_id", "artist_id"},
                  {"album_id", "item_candidate_album_id", "album_id"}};
  for (const char* name : {"uid", "user_x_artist", "user_x_album", "user_x_hour", "item_x_hour",
                           "artist_x_hour", "user_x_is_organic", "user_x_artist_x_hour"}) {
    m.contextual.push_back({name, name});
  }
  m.tasks = {{"listen_plus", ops::TaskKind::kBinary, 1, 0.2}};

  p.tables.dim = 512;
  p.tables.forward_wire = sparse::Wire::kF16;
  p.tables.backward_wire = sparse::Wire::kF16;
  p.tables.tables = {{"item_id", 9'390'624},
                     {"artist_id", 1'293'395},
                     {"album_id", 3'367'692},
                     {"uid", 1'000'001},
                     {"user_x_artist", 100'000'000},
                     {"user_x_album", 40'000'000},
                     {"user_x_hour", 24'000'000},
                     {"item_x_hour", 40'000'000},
                     {"artist_x_hour", 32'000'000},
                     {"user_x_is_organic", 2'000'000},
                     {"user_x_artist_x_hour", 40'000'000}};

  OptimizerConfig& o = p.optimizer;
  o.lr = 1e-6;
  o.sparse_lr = 1e-6;
  o.warmup_steps = 24000;
  o.adam_counts_initial_step = true;
  return p;
}

}  // namespace

Preset preset(std::string_view name) {
  if (name == "yambda-5b") return yambda_5b();
  fail(ErrorCode::kConfig, fmt::format("preset `{}` is not known; there is: yambda-5b", name));
}

}  // namespace segue::model
