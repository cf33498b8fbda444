#include "runner/model_setup.h"

#include <algorithm>
#include <numeric>

#include <fmt/format.h>

#include "base/error.h"

namespace segue::golden {
namespace {

[[noreturn]] void unsupported(const std::string& message) {
  fail(ErrorCode::kUnsupported, message);
}

/// Candidate features have the word in their names; the rest that is not contextual is history.
/// Both are paired by the table they read.
void set_features(const Settings& settings, model::ModelConfig& config) {
  const std::vector<std::string> contextual = settings.texts("contextual_features");
  const auto tables = settings.pairs("table_of_feature");
  const auto is_contextual = [&](const std::string& name) {
    return std::ranges::find(contextual, name) != contextual.end();
  };
  const auto is_candidate = [](const std::string& name) {
    return name.find("candidate") != std::string::npos;
  };
  const auto table_of = [&](const std::string& feature) {
    const auto found = std::ranges::find(tables, feature, [](const auto& p) { return p.first; });
    if (found == tables.end()) {
      fail(ErrorCode::kCorrupt, fmt::format("`table_of_feature` has no feature `{}`", feature));
    }
    return found->second;
  };
  std::vector<model::SequenceFeature> sequence;
  for (const auto& [feature, table] : tables) {
    if (is_contextual(feature) || is_candidate(feature)) continue;
    const auto pair = std::ranges::find_if(
        tables, [&, of = table](const auto& p) { return p.second == of && is_candidate(p.first); });
    if (pair == tables.end()) {
      fail(ErrorCode::kCorrupt,
           fmt::format("history feature `{}` has no candidate feature in table `{}`", feature,
                       table));
    }
    sequence.push_back({feature, pair->first, table});
  }
  // The item comes first, whatever the order of the settings.
  std::stable_partition(sequence.begin(), sequence.end(), [&](const model::SequenceFeature& f) {
    return f.history == config.item.history;
  });
  if (sequence.empty()) fail(ErrorCode::kCorrupt, "`table_of_feature` has no history feature");
  config.item = sequence.front();
  config.additional.assign(sequence.begin() + 1, sequence.end());
  config.contextual.clear();
  for (const std::string& name : contextual) config.contextual.push_back({name, table_of(name)});
}

void set_tasks(const Settings& settings, model::ModelConfig& config) {
  const std::vector<int64_t> bits = settings.integers("task_bit");
  std::vector<double> weights = settings.numbers("causal_multitask_weights");
  if (weights.size() == 1) weights.resize(bits.size(), weights[0]);
  if (weights.size() != bits.size()) {
    fail(ErrorCode::kCorrupt,
         fmt::format("{} task bits but {} task weights", bits.size(), weights.size()));
  }
  for (size_t k = 0; k < bits.size(); ++k) {
    config.tasks.push_back({fmt::format("task{}", k), ops::TaskKind::kBinary, bits[k], weights[k]});
  }
}

sparse::TablesConfig tables_config(const Case& golden, const Case& params) {
  const Settings& settings = golden.settings();
  sparse::TablesConfig config;
  config.dim = settings.positive("table_dim");
  config.eps = settings.number("adagrad_eps", 1e-8);
  settings.require_number("adagrad_initial", 0);
  settings.require_text("sparse_optimizer", "RowWiseAdagrad");
  const std::string wire = settings.text("wire_precision", "fp32");
  if (wire == "fp16") {
    config.forward_wire = config.backward_wire = sparse::Wire::kF16;
  } else if (wire == "bf16") {
    config.forward_wire = config.backward_wire = sparse::Wire::kBf16;
  } else if (wire != "fp32") {
    unsupported(fmt::format("wire precision `{}` is not known", wire));
  }
  for (const auto& [feature, table] : settings.pairs("table_of_feature")) {
    if (std::ranges::find(config.tables, table, &sparse::TableConfig::name) !=
        config.tables.end()) {
      continue;
    }
    const Shape shape = params.shape("param." + table_parameter(table));
    if (shape.size() != 2 || shape[1] != config.dim) {
      fail(ErrorCode::kCorrupt, fmt::format("table `{}` has shape {}, expected [rows, {}]", table,
                                            to_string(shape), config.dim));
    }
    config.tables.push_back({table, shape[0]});
  }
  config.validate();
  return config;
}

/// Before anything is allocated by them: sizes in the settings are those of stored parameters.
void check_sizes(const model::ModelConfig& config, int64_t table_dim, const Case& params) {
  const std::string transducer = "param._hstu_transducer.";
  params.check_shape(transducer + "_stu_module._stu_layers.0._uvqk_weight",
                     {config.dim, config.uvqk_columns()});
  params.check_shape(transducer + "_input_preprocessor._content_embedding_mlp.0.weight",
                     {config.hidden, table_dim});
  params.check_shape(transducer + "_input_preprocessor._action_encoder._action_embedding_table",
                     {static_cast<int64_t>(config.action.weights.size()), config.action.dim});
  params.check_shape(transducer + "_positional_encoder._position_embeddings_weight",
                     {config.position_buckets, config.dim});
  params.check_shape(transducer + "_positional_encoder._timestamp_embeddings_weight",
                     {config.time_buckets + 1, config.dim});
  params.check_shape("param._multitask_module._prediction_module.0.weight",
                     {config.head_hidden, config.dim});
  params.check_shape(
      "param._item_embedding_mlp.0.weight",
      {config.item_hidden, table_dim * (static_cast<int64_t>(config.additional.size()) + 1)});
  constexpr int64_t kMostLayers = 1000;
  if (config.layers > kMostLayers) unsupported(fmt::format("{} layers", config.layers));
}

model::ModelConfig checked_config(const Case& golden, const Case& params, bool identities,
                                  int64_t longest) {
  model::ModelConfig config = model_config(golden, identities, longest);
  config.validate();
  check_sizes(config, golden.settings().positive("table_dim"), params);
  return config;
}

}  // namespace

std::string table_parameter(const std::string& table) {
  return fmt::format("{}{}.weight", kTablePrefix, table);
}

model::ModelConfig model_config(const Case& golden, bool identities, int64_t longest) {
  const Settings& settings = golden.settings();
  settings.require_number("dropout", 0);
  settings.require_number("norm_eps_stu", model::ModelConfig::kStuEps);
  settings.require_number("norm_eps_other", model::ModelConfig::kNormEps);

  model::ModelConfig config;
  config.dim = settings.positive("transducer_dim");
  config.heads = settings.positive("heads");
  config.qk_dim = settings.positive("dqk");
  config.v_dim = settings.positive("dv");
  config.layers = settings.positive("layers");
  config.hidden = settings.positive("preprocessor_hidden");
  config.item_hidden = settings.positive("item_mlp_hidden");
  config.head_hidden = settings.positive("prediction_hidden");
  config.position_buckets = settings.positive("num_position_buckets");
  config.time_buckets = settings.positive("num_time_buckets");
  config.input_dropout = 0;
  config.dropout = 0;
  config.action.weights = settings.integers("action_weights");
  config.action.dim = settings.positive("action_embedding_dim");
  config.time_pi = settings.product("two_pi", 2 * 3.14) / 2;
  set_features(settings, config);
  set_tasks(settings, config);

  config.max_seq_len = std::max(longest, config.contextual_tokens() + 1);
  config.attention.score_scale = model::ScoreScale::kBatchMax;
  config.attention.window = settings.count("max_attn_len", 0);
  config.attention.min_full = settings.count("min_full_attn_seq_len", 0);
  const int64_t masked = settings.count("attention_contextual_seq_len", 0);
  if (masked != 0 && masked != config.contextual_tokens()) {
    unsupported(fmt::format("attention_contextual_seq_len {} with {} contextual tokens", masked,
                            config.contextual_tokens()));
  }
  config.attention.contextual_mask = masked != 0;
  config.identities = {
      .last_layer_targets = identities, .distinct_rows = identities, .action_codes = identities};
  return config;
}

GoldenModel::GoldenModel(Workspace& workspace, const Case& golden, const Case& params,
                         bool identities, int64_t longest)
    : tables_(tables_config(golden, params), workspace.exec.device,
              workspace.exec.parameter_dtype(), /*seed=*/1),
      ranker_(checked_config(golden, params, identities, longest), tables_, workspace.exec.device,
              workspace.exec.parameter_dtype(), /*seed=*/1) {
  check_parameter_shapes(params, ranker_.parameters(), kTablePrefix);
  load_parameters(workspace, params, ranker_.parameters());
  for (const sparse::TableConfig& table : table_configs()) {
    workspace.write(tables_.table(tables_.id(table.name)).resident().weights,
                    params.values("param." + table_parameter(table.name)).data);
  }
}

Batch make_batch(const model::ModelConfig& config, const BatchLengths& lengths,
                 const ColumnSource& values) {
  const size_t samples = lengths.history.size();
  if (lengths.candidates.size() != samples) {
    fail(ErrorCode::kCorrupt, fmt::format("{} history lengths but {} numbers of candidates",
                                          samples, lengths.candidates.size()));
  }
  Batch batch;
  const auto fill_group = [&](const char* name, auto&& length_of) {
    const int group = batch.add_group(name);
    HostArray<int64_t>& offsets = batch.group(name).offsets;
    offsets.resize(0);
    offsets.push_back(0);
    for (size_t b = 0; b < samples; ++b) {
      const int64_t length = length_of(b);
      if (length < 0 || length > kMostEvents) {
        fail(ErrorCode::kCorrupt, fmt::format("sample {} has an impossible length, {}", b, length));
      }
      offsets.push_back(offsets[static_cast<int64_t>(b)] + length);
    }
    return group;
  };
  const auto fill_column = [&](const std::string& name, int group) {
    batch.add_column(name, group);
    const int64_t count =
        batch.groups[static_cast<size_t>(group)].offsets[static_cast<int64_t>(samples)];
    const std::vector<int64_t> stored = values(name, count);
    if (static_cast<int64_t>(stored.size()) != count) {
      fail(ErrorCode::kCorrupt,
           fmt::format("feature `{}` has {} values where the lengths ask for {}", name,
                       stored.size(), count));
    }
    batch.column(name).values.assign(stored);
  };

  const int context = fill_group("context", [](size_t) { return int64_t{1}; });
  const int history = fill_group("history", [&](size_t b) { return lengths.history[b]; });
  const int candidates = fill_group("candidates", [&](size_t b) { return lengths.candidates[b]; });
  for (const model::ContextualFeature& f : config.contextual) fill_column(f.name, context);
  fill_column(config.item.history, history);
  fill_column(config.item.candidate, candidates);
  for (const model::SequenceFeature& f : config.additional) {
    fill_column(f.history, history);
    fill_column(f.candidate, candidates);
  }
  fill_column(config.action.history, history);
  fill_column(config.history_timestamp, history);
  fill_column(config.candidate_timestamp, candidates);
  fill_column(config.candidate_label, candidates);
  batch.sample_index.resize(static_cast<int64_t>(samples));
  std::iota(batch.sample_index.span().begin(), batch.sample_index.span().end(), int64_t{0});
  batch.global_samples = static_cast<int64_t>(samples);
  return batch;
}

}  // namespace segue::golden
