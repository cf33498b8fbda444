#include "train/idle_keys.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <map>

#include <fmt/format.h>

#include "train/presets.h"
#include "train/run/run_state.h"

namespace segue::train {
namespace {

using At = KeyRule::At;
using sparse::TableConfig;

const model::ModelConfig& model_of(const At& at) { return at.config.model; }
const TableConfig& table_of(const At& at) { return at.config.sparse.tables[at.item]; }

bool is_hstu(const At& at) { return model_of(at).family == model::Family::kHstu; }
bool is_dlrm(const At& at) { return !is_hstu(at); }
bool labels_candidates(const At& at) {
  return is_hstu(at) && model_of(at).labels == model::LabelKind::kCandidates;
}
bool any_table(const At& at, bool (*fits)(const At&)) {
  for (size_t t = 0; t < at.config.sparse.tables.size(); ++t) {
    if (fits({at.config, at.site, t})) return true;
  }
  return false;
}
ops::RowOptimizer optimizer_of(const At& at) { return at.config.sparse.optimizer_of(table_of(at)); }
bool is_dynamic(const At& at) { return table_of(at).dynamic(); }
/// Where nobody says, the planner decides; on a CPU rows lie in its memory.
bool may_be_cached(const At& at) {
  const auto placement = table_of(at).placement;
  if (placement == sparse::TierChoice::kAuto) return at.site.gpu;
  return placement != sparse::TierChoice::kDevice;
}
bool has_store(const At& at) { return !at.config.data.store.empty(); }
bool is_random(const At& at) { return at.config.data.is_random(); }
bool has_mean(data::DistributionKind kind) {
  return kind == data::DistributionKind::kNormal || kind == data::DistributionKind::kLognormal;
}
bool random_histories(const At& at) {
  return is_random(at) && (is_hstu(at) || model_of(at).dlrm.has(model::FeatureOf::kEvent));
}
bool evaluates_meanwhile(const At& at) {
  const EvalConfig& e = at.config.eval;
  return e.every_windows > 0 || e.every_steps > 0 || e.every_share > 0;
}
bool evaluates(const At& at) { return evaluates_meanwhile(at) || at.config.eval.at_end; }
bool saves_meanwhile(const At& at) {
  const CheckpointConfig& c = at.config.checkpoint;
  return c.every_batches > 0 || c.every_steps > 0 || c.every_seconds > 0;
}
bool has_ranks(const At& at) { return at.site.ranks > 1; }
bool talks(const At& at) {
  return has_ranks(at) || at.config.comm.transport == comm::Transport::kNccl;
}
bool balances(const At& at) { return has_ranks(at) && at.config.balance.on; }
bool weighs(const At& at) {
  return balances(at) && at.config.balance.cost == balance::CostKind::kCalibrated;
}

constexpr const char* kHstuOnly = "only model.family = \"hstu\" has it";
constexpr const char* kDlrmOnly = "only model.family = \"dlrm\" has it";
constexpr const char* kStoreOnly = "data.store is empty: samples come from elsewhere";
constexpr const char* kRandomOnly =
    "samples are not random: data.store or data.interactions is set";
constexpr const char* kDynamicOnly = "the table is not of kind = \"dynamic\"";
constexpr const char* kRanksOnly = "the run has one rank";
constexpr const char* kLogOnly = "mlperf.log is off";
constexpr const char* kNoEvaluation = "nothing is evaluated while training";

// One line per key, in the order of `segue config`.
constexpr auto kRules = std::to_array<KeyRule>({
    {"preset"},
    {"model.family"},
    {"model.dim", is_hstu, kHstuOnly},
    {"model.heads", is_hstu, kHstuOnly},
    {"model.qk_dim", is_hstu, kHstuOnly},
    {"model.v_dim", is_hstu, kHstuOnly},
    {"model.layers", is_hstu, kHstuOnly},
    {"model.hidden", is_hstu, kHstuOnly},
    {"model.item_hidden",
     [](const At& at) { return is_hstu(at) && model_of(at).head == model::HeadKind::kProduct; },
     "only the HSTU ranker with model.head = \"product\" has an item MLP"},
    {"model.head_hidden", is_hstu, kHstuOnly},
    {"model.max_seq_len", is_hstu, kHstuOnly},
    {"model.position_buckets", is_hstu, kHstuOnly},
    {"model.time_buckets", is_hstu, kHstuOnly},
    {"model.input_scale", is_hstu, kHstuOnly},
    {"model.numeric.columns", is_hstu, kHstuOnly},
    {"model.numeric.outcomes", is_hstu, kHstuOnly},
    {"model.numeric.*",
     [](const At& at) { return is_hstu(at) && model_of(at).numeric.token_width() > 0; },
     "model.numeric names no column, or the model is no HSTU ranker"},
    {"model.input_dropout", is_hstu, kHstuOnly},
    {"model.dropout", is_hstu, kHstuOnly},
    {"model.layer", is_hstu, kHstuOnly},
    {"model.output_norm", is_hstu, kHstuOnly},
    {"model.tokens", is_hstu, kHstuOnly},
    {"model.labels", is_hstu, kHstuOnly},
    {"model.embedding_mlp", is_hstu, kHstuOnly},
    {"model.postprocessor", is_hstu, kHstuOnly},
    {"model.head", is_hstu, kHstuOnly},
    {"model.head_precision",
     [](const At& at) { return is_hstu(at) && at.config.train.precision == Precision::kBf16; },
     "train.precision is not \"bf16\", or the model is no HSTU ranker"},
    {"model.time_pi",
     [](const At& at) {
       return is_hstu(at) &&
              model_of(at).postprocessor == model::PostprocessorKind::kTimestampLayerNorm;
     },
     "only model.postprocessor = \"timestamp_layernorm\" has cyclic time features"},
    {"model.history_timestamp", is_hstu, kHstuOnly},
    {"model.candidate_timestamp", labels_candidates, "no candidates are labelled"},
    {"model.candidate_label", labels_candidates, "no candidates are labelled"},
    {"model.item.*", is_hstu, kHstuOnly},
    {"model.additional.*", is_hstu, kHstuOnly},
    {"model.contextual.*", is_hstu, kHstuOnly},
    {"model.action.*", is_hstu, kHstuOnly},
    {"model.tasks.*.name"},
    {"model.tasks.*.kind"},
    {"model.tasks.*.bit",
     [](const At& at) { return model_of(at).tasks[at.item].kind == ops::TaskKind::kBinary; },
     "the task is a regression"},
    {"model.tasks.*.weight"},
    {"model.attention.contextual_mask", is_hstu, kHstuOnly},
    {"model.attention.window", is_hstu, kHstuOnly},
    {"model.attention.min_full",
     [](const At& at) { return is_hstu(at) && model_of(at).attention.window > 0; },
     "model.attention.window is 0: all tokens see everything before them"},
    {"model.attention.global_prefix", is_hstu, kHstuOnly},
    {"model.attention.target_group", is_hstu, kHstuOnly},
    {"model.attention.score_scale", is_hstu, kHstuOnly},
    {"model.attention.key_init", is_hstu, kHstuOnly},
    {"model.attention.kernel", [](const At& at) { return is_hstu(at) && at.site.gpu; },
     "it chooses among kernels of a GPU, and the run is on the CPU"},
    {"model.truncation.from_layer", is_hstu, kHstuOnly},
    {"model.truncation.events",
     [](const At& at) { return is_hstu(at) && model_of(at).truncation.from_layer > 0; },
     "model.truncation.from_layer is 0: no layer is truncated"},
    {"model.identities.*", is_hstu, kHstuOnly},
    {"model.recompute.*", is_hstu, kHstuOnly},
    {"model.dlrm.dense_features",
     [](const At& at) { return is_dlrm(at) && model_of(at).dlrm.has_dense(); },
     "only a DLRM whose model.dlrm.dense names a column has dense features"},
    {"model.dlrm.bottom", [](const At& at) { return is_dlrm(at) && model_of(at).dlrm.has_dense(); },
     "only a DLRM whose model.dlrm.dense names a column has dense features"},
    {"model.dlrm.max_events",
     [](const At& at) { return is_dlrm(at) && model_of(at).dlrm.has(model::FeatureOf::kEvent); },
     "no bag of model.dlrm.features takes events"},
    {"model.dlrm.features.*.max_length",
     [](const At& at) {
       return is_dlrm(at) && model_of(at).dlrm.features[at.item].of == model::FeatureOf::kSample;
     },
     "the bag is not of = \"sample\""},
    {"model.dlrm.*", is_dlrm, kDlrmOnly},
    {"sparse.dim",
     [](const At& at) { return any_table(at, [](const At& t) { return table_of(t).dim == 0; }); },
     "all tables have a dim of their own"},
    {"sparse.init_scale",
     [](const At& at) {
       return any_table(at, [](const At& t) { return table_of(t).init_bound == 0; });
     },
     "all tables have an init_bound of their own"},
    {"sparse.out_of_range"},
    {"sparse.optimizer",
     [](const At& at) {
       return any_table(at, [](const At& t) {
         return table_of(t).optimizer == sparse::OptimizerChoice::kDefault;
       });
     },
     "all tables have an optimizer of their own"},
    {"sparse.eps",
     [](const At& at) {
       return any_table(at, [](const At& t) { return optimizer_of(t) != ops::RowOptimizer::kSgd; });
     },
     "all tables are updated by SGD"},
    {"sparse.beta1",
     [](const At& at) {
       return any_table(at,
                        [](const At& t) { return optimizer_of(t) == ops::RowOptimizer::kAdam; });
     },
     "no table is updated by Adam"},
    {"sparse.beta2",
     [](const At& at) {
       return any_table(at,
                        [](const At& t) { return optimizer_of(t) == ops::RowOptimizer::kAdam; });
     },
     "no table is updated by Adam"},
    {"sparse.forward_wire"},
    {"sparse.backward_wire"},
    {"sparse.per_block_state",
     [](const At& at) {
       return has_ranks(at) && any_table(at, [](const At& t) {
                return optimizer_of(t) == ops::RowOptimizer::kRowwiseAdagrad;
              });
     },
     "no table that ranks share by columns has row-wise Adagrad"},
    {"sparse.spill_folder",
     [](const At& at) {
       return any_table(
           at, [](const At& t) { return table_of(t).placement == sparse::TierChoice::kFile; });
     },
     "no table has placement = \"file\""},
    {"sparse.tables.*.name"},
    {"sparse.tables.*.kind"},
    {"sparse.tables.*.rows",
     [](const At& at) {
       return !is_dynamic(at) || (table_of(at).max_rows == 0 && table_of(at).max_gib == 0);
     },
     "the table is dynamic, and max_rows or max_gib says how many rows it may have"},
    {"sparse.tables.*.max_rows", is_dynamic, kDynamicOnly},
    {"sparse.tables.*.max_gib",
     [](const At& at) { return is_dynamic(at) && table_of(at).max_rows == 0; },
     "the table is not dynamic, or max_rows is set"},
    {"sparse.tables.*.start_rows", is_dynamic, kDynamicOnly},
    {"sparse.tables.*.evict", is_dynamic, kDynamicOnly},
    {"sparse.tables.*.score", is_dynamic, kDynamicOnly},
    {"sparse.tables.*.admit_after", is_dynamic, kDynamicOnly},
    {"sparse.tables.*.admit_share", is_dynamic, kDynamicOnly},
    {"sparse.tables.*.ttl_seconds", is_dynamic, kDynamicOnly},
    {"sparse.tables.*.init"},
    {"sparse.tables.*.init_bound"},
    {"sparse.tables.*.sharding", has_ranks, kRanksOnly},
    {"sparse.tables.*.placement"},
    {"sparse.tables.*.cache_share", may_be_cached, "its rows lie in the memory of the device"},
    {"sparse.tables.*.cache_policy", may_be_cached, "its rows lie in the memory of the device"},
    {"sparse.tables.*.dim"},
    {"sparse.tables.*.optimizer"},
    {"optimizer.kind"},
    {"optimizer.lr"},
    {"optimizer.sparse_lr"},
    {"optimizer.beta1"},
    {"optimizer.beta2"},
    {"optimizer.eps"},
    {"optimizer.weight_decay"},
    {"optimizer.clip_norm"},
    {"optimizer.warmup_steps"},
    {"optimizer.warmup_start_lr", [](const At& at) { return at.config.optimizer.warmup_steps > 0; },
     "optimizer.warmup_steps is 0"},
    {"optimizer.adam_counts_initial_step"},
    {"data.store"},
    {"data.stage_to", has_store, kStoreOnly},
    {"data.index", has_store, kStoreOnly},
    {"data.verify", has_store, kStoreOnly},
    {"data.follow"},
    {"data.follow_seconds", [](const At& at) { return at.config.data.follow; },
     "data.follow is off"},
    {"data.batch_size"},
    {"data.gather.*", has_store, kStoreOnly},
    {"data.stream.eval_window",
     [](const At&
            at) { return has_store(at) && at.config.data.stream.eval == data::EvalMode::kFixed; },
     "only data.stream.eval = \"fixed\" on a store has a fixed window"},
    {"data.stream.split_salt",
     [](const At& at) { return has_store(at) && at.config.data.stream.train_share < 1; },
     "data.stream.train_share of a store is 1: no user is held out"},
    {"data.stream.shuffle_seed",
     [](const At& at) { return has_store(at) && at.config.data.stream.shuffle_fraction > 0; },
     "data.stream.shuffle_fraction of a store is 0: nothing is shuffled"},
    {"data.stream.*", has_store, kStoreOnly},
    {"data.loader.*", has_store, kStoreOnly},
    {"data.random.candidates", [](const At& at) { return is_random(at) && labels_candidates(at); },
     "samples are not random, or no candidates are labelled"},
    {"data.random.signal", is_random, kRandomOnly},
    {"data.random.match", is_random, kRandomOnly},
    {"data.random.match_by",
     [](const At& at) { return is_random(at) && at.config.data.random.match != 0; },
     "samples are not random, or data.random.match is 0"},
    {"data.random.lengths.mean",
     [](const At&
            at) { return random_histories(at) && has_mean(at.config.data.random.lengths.kind); },
     "no random history has a length of this distribution"},
    {"data.random.lengths.std",
     [](const At&
            at) { return random_histories(at) && has_mean(at.config.data.random.lengths.kind); },
     "no random history has a length of this distribution"},
    {"data.random.lengths.*", random_histories, "no sample has a random history"},
    {"data.random.ids.*", is_random, kRandomOnly},
    {"data.interactions.samples"},
    {"data.interactions.*", [](const At& at) { return at.config.data.has_interactions(); },
     "data.interactions.samples is 0"},
    {"train.steps"},
    {"train.epochs"},
    {"train.init_from"},
    {"train.seed"},
    {"train.threads"},
    {"train.device"},
    {"train.precision"},
    {"train.micro_batch_tokens"},
    {"train.distinct_share"},
    {"train.arena_gib"},
    {"train.log_every"},
    {"train.track_layers_every"},
    {"train.metric_window"},
    {"train.non_finite"},
    {"train.max_skipped",
     [](const At& at) { return at.config.train.non_finite == NonFinite::kSkip; },
     "train.non_finite is \"stop\": no batch is left out"},
    {"train.warn_z_score"},
    {"train.watchdog_seconds"},
    {"train.peak_tflops"},
    {"eval.every_windows"},
    {"eval.every_share"},
    {"eval.every_steps"},
    {"eval.rounding", [](const At& at) { return at.config.eval.every_share > 0; },
     "eval.every_share is 0"},
    {"eval.first", evaluates_meanwhile, kNoEvaluation},
    {"eval.skip_share",
     [](const At&
            at) { return evaluates_meanwhile(at) && at.config.eval.first == FirstEval::kShare; },
     "nothing is evaluated while training, or eval.first decides where that begins"},
    {"eval.at_end"},
    {"eval.max_batches", evaluates, "nothing is evaluated"},
    {"eval.target_auc", evaluates, "nothing is evaluated"},
    {"eval.details", evaluates, "nothing is evaluated"},
    {"eval.top_k",
     [](const At& at) { return evaluates(at) && at.config.eval.details != EvalDetails::kOff; },
     "nothing is evaluated, or eval.details is off"},
    {"checkpoint.keep_last"},
    {"checkpoint.full_every", saves_meanwhile,
     "nothing is saved while training, and the last checkpoint is always full"},
    {"checkpoint.every_batches"},
    {"checkpoint.every_steps"},
    {"checkpoint.every_seconds"},
    {"checkpoint.copy_gib"},
    {"checkpoint.on_failure"},
    {"publish.folder"},
    {"publish.*", [](const At& at) { return !at.config.publish.folder.empty(); },
     "publish.folder is empty: nothing is published"},
    {"mlperf.log"},
    {"mlperf.*", [](const At& at) { return at.config.mlperf.log; }, kLogOnly},
    {"trace.steps"},
    {"trace.repeat"},
    {"trace.wait", [](const At& at) { return at.config.trace.repeat != 0; },
     "trace.repeat is 0: windows are those of trace.steps"},
    {"trace.*",
     [](const At& at) { return !at.config.trace.steps.empty() || at.config.trace.repeat != 0; },
     "trace.steps is empty and trace.repeat 0: nothing is traced"},
    {"comm.transport", talks, kRanksOnly},
    {"comm.timeout_seconds", talks, kRanksOnly},
    {"comm.rendezvous", has_ranks, kRanksOnly},
    {"parallel.tensor_parallel"},
    {"parallel.pipeline"},
    {"parallel.device_gib"},
    {"parallel.host_gib"},
    {"balance.on", has_ranks, kRanksOnly},
    {"balance.cost", balances, "the run has one rank, or balance.on is false"},
    {"balance.mode", balances, "the run has one rank, or balance.on is false"},
    {"balance.token_ps", weighs, "samples are not weighed: one rank, or another balance.cost"},
    {"balance.pair_ps", weighs, "samples are not weighed: one rank, or another balance.cost"},
    {"balance.calibrate",
     [](const At& at) { return weighs(at) && !at.config.balance.has_weights(); },
     "nothing is measured: one rank, another balance.cost, or given weights"},
});

/// "sparse.tables.3.rows" as "sparse.tables.*.rows"; `item` becomes 3.
std::string pattern_of(std::string_view key, size_t& item) {
  std::string pattern;
  while (!key.empty()) {
    const std::string_view part = key.substr(0, key.find('.'));
    key.remove_prefix(std::min(key.size(), part.size() + 1));
    size_t number = 0;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), number);
    const bool is_item = error == std::errc() && end == part.data() + part.size();
    if (is_item) item = number;
    pattern += pattern.empty() ? "" : ".";
    pattern += is_item ? "*" : part;
  }
  return pattern;
}

/// Values by key, those of a list's items under `*` as well: what a new item has.
std::map<std::string, std::string> defaults(const std::string& preset) {
  RunConfig items;
  items.model.additional.resize(1);
  items.model.contextual.resize(1);
  items.model.tasks.resize(1);
  items.model.dlrm.features.resize(1);
  items.sparse.tables.resize(1);
  std::map<std::string, std::string> values;
  size_t item = 0;
  for (const auto& [key, value] : flat_config(base::to_toml(items))) {
    values[pattern_of(key, item)] = value;
  }
  const RunConfig start = preset.empty() ? RunConfig() : preset_config(preset);
  for (const auto& [key, value] : flat_config(base::to_toml(start))) values[key] = value;
  return values;
}

}  // namespace

const KeyRule* rule_of(std::string_view key) {
  size_t item = 0;
  const std::string pattern = pattern_of(key, item);
  const auto exact =
      std::ranges::find_if(kRules, [&](const KeyRule& r) { return r.key == pattern; });
  if (exact != kRules.end()) return &*exact;
  const KeyRule* best = nullptr;
  for (const KeyRule& rule : kRules) {
    const std::string_view name = rule.key;
    if (!name.ends_with(".*") || !pattern.starts_with(name.substr(0, name.size() - 1))) continue;
    if (best == nullptr || name.size() > std::string_view(best->key).size()) best = &rule;
  }
  return best;
}

std::vector<IdleKey> idle_keys(const RunConfig& config, const RunSite& site) {
  const std::map<std::string, std::string> before = defaults(config.preset);
  std::vector<IdleKey> idle;
  for (const auto& [key, value] : flat_config(base::to_toml(config))) {
    size_t item = 0;
    const std::string pattern = pattern_of(key, item);
    auto usual = before.find(key);
    if (usual == before.end()) usual = before.find(pattern);
    if (usual != before.end() && usual->second == value) continue;
    const KeyRule* rule = rule_of(key);
    if (rule == nullptr || rule->matters == nullptr || rule->matters({config, site, item}))
      continue;
    idle.push_back({key, value, rule->why});
  }
  return idle;
}

}  // namespace segue::train
