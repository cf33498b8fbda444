#include <algorithm>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "base/error.h"
#include "model/layout.h"
#include "runner/cases.h"
#include "runner/model_setup.h"

namespace segue::golden {
namespace {

/// Activations by name, one micro-batch after the other.
struct Activations {
  std::vector<double> values;
  Shape shape;
};
using ActivationMap = std::map<std::string, Activations, std::less<>>;

void collect(const Workspace& workspace, std::string_view name, const Tensor& value,
             ActivationMap& all) {
  Activations& a = all[std::string(name)];
  const std::vector<double> values = workspace.read(value);
  a.values.insert(a.values.end(), values.begin(), values.end());
  if (a.shape.empty()) {
    a.shape = shape_of(value);
  } else {
    a.shape[0] += value.size(0);
  }
}

/// mid.<name> of every activation that the model shows, and nothing else may be stored. With the
/// identities on, not all rows of the last layer exist: none, or those of the micro-batches whose
/// samples have too many targets for them.
void check_activations(const CaseContext& context, const model::ModelConfig& config, int64_t tokens,
                       const ActivationMap& computed) {
  const std::string last_layer = fmt::format("stu{}", config.layers - 1);
  for (const auto& [name, activation] : computed) {
    if (context.variant.identities && name == last_layer && activation.shape[0] < tokens) continue;
    const bool is_embedding = name.ends_with("_embeddings");
    context.checker.check(is_embedding ? "embeddings" : "mid.", is_embedding ? name : "mid." + name,
                          activation.values, activation.shape);
  }
  for (const std::string& stored : context.golden.names("mid.")) {
    if (stored == "mid.seq_offsets" || stored == "mid.seq_timestamps") continue;
    if (computed.contains(std::string_view(stored).substr(4))) continue;
    if (context.variant.identities && stored == "mid." + last_layer) continue;
    context.checker.fail(fmt::format("the model shows no activation `{}`", stored));
  }
  for (const char* name : {"user_embeddings", "item_embeddings"}) {
    if (!computed.contains(name)) {
      context.checker.fail(fmt::format("the model shows no activation `{}`", name));
    }
  }
}

/// Where tokens stand and which time they carry: contextual ones 0, history and candidates theirs.
void check_layout(const CaseContext& context, const model::ModelConfig& config, const Batch& batch,
                  const model::BatchLayout& layout) {
  context.checker.check_ints("layout", "mid.seq_offsets", layout.token_offsets,
                             {layout.samples() + 1});
  std::vector<int64_t> times;
  const auto append = [&](const std::string& column, const std::vector<int64_t>& offsets,
                          int64_t b) {
    const std::span<const int64_t> values = batch.column(column).values.span();
    times.insert(times.end(), values.begin() + offsets[static_cast<size_t>(b)],
                 values.begin() + offsets[static_cast<size_t>(b) + 1]);
  };
  for (int64_t b = 0; b < layout.samples(); ++b) {
    times.insert(times.end(), static_cast<size_t>(config.contextual_tokens()), 0);
    append(config.history_timestamp, layout.history_offsets, b);
    append(config.candidate_timestamp, layout.candidate_offsets, b);
  }
  context.checker.check_ints("layout", "mid.seq_timestamps", times, {layout.tokens()});
}

void check_predictions(const CaseContext& context, const model::Pass& pass, int64_t tasks) {
  const int64_t labels = pass.num_labels;
  std::vector<double> logits(
      pass.logits.size());  // stored [labels, tasks], computed [tasks, labels]
  for (int64_t k = 0; k < tasks; ++k) {
    for (int64_t i = 0; i < labels; ++i) {
      logits[static_cast<size_t>(i * tasks + k)] = pass.logits[static_cast<size_t>(k * labels + i)];
    }
  }
  const auto widen = [](const std::vector<float>& values) {
    return std::vector<double>(values.begin(), values.end());
  };
  Checker& checker = context.checker;
  checker.check("logits", "logits", logits, {labels, tasks});
  // Predictions leave the model as float, in every precision.
  Values predictions = context.golden.reference("predictions");
  predictions.is_f64 = false;
  if (predictions.shape != Shape{tasks, labels}) {
    fail(ErrorCode::kCorrupt,
         fmt::format("tensor `predictions` has shape {}, not {}", to_string(predictions.shape),
                     to_string(Shape{tasks, labels})));
  }
  checker.check_against("predictions", "predictions", widen(pass.predictions), predictions,
                        Level::kResult);
  checker.check("labels", "labels", widen(pass.labels), {tasks, labels}, Level::kExact);
  // Segue gives every label the weight 1.
  checker.check("labels", "weights", std::vector<double>(pass.labels.size(), 1.0), {tasks, labels},
                Level::kExact);
  const double loss[] = {pass.loss};
  checker.check("loss", "loss", loss, {1});
}

/// The gradient of a whole table: zero in rows that were not looked up.
void check_table_gradients(const CaseContext& context, GoldenModel& golden_model,
                           const model::Pass& pass) {
  for (const sparse::TableConfig& table : golden_model.table_configs()) {
    const sparse::TableId id = golden_model.tables().id(table.name);
    const int64_t dim = golden_model.tables().config().dim;
    std::vector<double> whole(static_cast<size_t>(table.rows * dim), 0.0);
    const Tensor& rows = pass.row_gradients[static_cast<size_t>(id)];
    if (rows) {
      const std::vector<double> gradients = context.workspace.read(rows);
      const std::span<const int64_t> ids = pass.ticket.slots(id);  // equal, on one rank
      for (size_t i = 0; i < ids.size(); ++i) {
        std::copy_n(gradients.begin() + static_cast<int64_t>(i) * dim, dim,
                    whole.begin() + ids[i] * dim);
      }
    }
    context.checker.check("grad. of tables", "grad." + table_parameter(table.name), whole,
                          {table.rows, dim});
  }
}

}  // namespace

void run_train_step(const CaseContext& context) {
  const Case& golden = context.golden;
  const Settings& settings = golden.settings();
  const BatchLengths lengths{settings.integers("uih_lengths"), settings.integers("num_candidates")};
  const Case features = golden.sharing("features");
  const model::ModelConfig schema = model_config(golden, context.variant.identities, 0);
  const Batch batch = make_batch(schema, lengths, [&](const std::string& column, int64_t count) {
    return features.ints("feature." + column, {count});
  });
  const auto longest_of = [](const std::vector<int64_t>& list) {
    return list.empty() ? 0 : *std::ranges::max_element(list);
  };
  GoldenModel golden_model(
      context.workspace, golden, golden.sharing("params"), context.variant.identities,
      schema.contextual_tokens() + longest_of(lengths.history) + longest_of(lengths.candidates));

  ActivationMap activations;
  model::PassOptions options;
  options.micro_batch_tokens = context.variant.micro_batch_tokens;
  options.probe = [&](std::string_view name, const Tensor& value) {
    collect(context.workspace, name, value, activations);
  };
  const model::Pass pass = golden_model.ranker().run(context.workspace.exec, batch, options);

  const model::BatchLayout layout(golden_model.config(), batch);
  check_layout(context, golden_model.config(), batch, layout);
  check_activations(context, golden_model.config(), layout.tokens(), activations);
  check_predictions(context, pass, static_cast<int64_t>(golden_model.config().tasks.size()));
  check_gradients(context.workspace, context.checker, golden_model.ranker().parameters());
  check_table_gradients(context, golden_model, pass);
}

}  // namespace segue::golden
