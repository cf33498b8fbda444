// Positional encoder and postprocessor.

#include <algorithm>
#include <numeric>
#include <vector>

#include <fmt/format.h>

#include "base/error.h"
#include "model/postprocessor.h"
#include "ops/assemble.h"
#include "runner/cases.h"

namespace segue::golden {
void run_positional_encoder(const CaseContext& context) {
  const Case& golden = context.golden;
  const Settings& settings = golden.settings();
  Workspace& w = context.workspace;
  settings.require_text("time_bucket_fn", "sqrt");
  const int64_t dim = settings.positive("embedding_dim");
  const Shape shape = token_shape(golden, dim);
  const int64_t tokens = shape[0];
  const Geometry geometry = read_geometry(golden, tokens);
  const std::vector<int64_t> timestamps = golden.ints("timestamps", {tokens});

  const std::string position_name = "_position_embeddings_weight";
  const std::string time_name = "_timestamp_embeddings_weight";
  const int64_t position_rows = settings.positive("num_position_buckets");
  const int64_t time_rows = settings.integer("ts_rows", settings.positive("num_time_buckets") + 1);
  const Values position_table = golden.values("param." + position_name, {position_rows, dim});
  const Values time_table = golden.values("param." + time_name, {time_rows, dim});

  const ops::PositionParams position{
      .offsets = geometry.offsets,
      .num_targets = geometry.num_targets,
      .contextual_len = settings.count("contextual_seq_len", 0),
      .position_buckets = position_rows,
      .time_buckets = time_rows,
      .time_bucket_seconds = settings.number("time_bucket_increments", 60.0)};
  std::vector<int32_t> row_index(static_cast<size_t>(tokens));
  std::iota(row_index.begin(), row_index.end(), 0);
  std::vector<int32_t> position_index(static_cast<size_t>(tokens));
  std::vector<int32_t> time_index(static_cast<size_t>(tokens));
  ops::position_indices(position, position_index);
  ops::time_indices(position, timestamps, time_index);

  ops::AssembleParams params;
  params.content = w.activation(golden.values("x", shape));
  params.row_index = w.index(row_index);
  params.scale = settings.number("input_scale");
  // Tables are parameters: not rounded in mode bf16.
  const auto parameter = [&](const Values& values) {
    const Tensor t = allocate(*w.exec.arena, w.exec.parameter_dtype(), values.shape);
    w.write(t, values.data);
    return t;
  };
  params.position_table = parameter(position_table);
  params.position_index = w.index(position_index);
  params.time_table = parameter(time_table);
  params.time_index = w.index(time_index);
  const Tensor out = w.exec.activation({tokens, dim});
  ops::assemble_forward(w.exec, params, out);

  const DType gradient_type = w.exec.parameter_dtype();
  ops::AssembleGradients gradients;
  gradients.content = w.zeros(gradient_type, shape);
  gradients.position = w.zeros(gradient_type, position_table.shape);
  gradients.time = w.zeros(gradient_type, time_table.shape);
  ops::assemble_backward(w.exec, params, w.activation(golden.values("dout", shape)), gradients);

  Checker& checker = context.checker;
  checker.check_ints("indices", "pos_inds",
                     std::vector<int64_t>(position_index.begin(), position_index.end()), {tokens});
  Values buckets = golden.values("ts_bucket_unclamped", {tokens});
  const double largest_bucket = buckets.data.empty() ? 0 : *std::ranges::max_element(buckets.data);
  for (double& bucket : buckets.data) bucket = std::min(bucket, static_cast<double>(time_rows - 1));
  checker.check_against("indices", "ts_bucket_unclamped",
                        std::vector<double>(time_index.begin(), time_index.end()), buckets,
                        Level::kExact);
  // The reference has two clamps of the time bucket. Segue has the one of its training path, whose
  // result is out_rowclamp; `out` and the gradient of the time table follow the other one.
  const int64_t other_clamp = settings.integer("ts_clamp_pytorch", time_rows - 1);
  const bool clamps_agree =
      largest_bucket <= static_cast<double>(std::min(other_clamp, time_rows - 1)) ||
      other_clamp == time_rows - 1;
  const std::vector<double> computed = w.read(out);
  checker.check("out", "out_rowclamp", computed, shape);
  if (clamps_agree) checker.check("out", "out", computed, shape);
  checker.check("dx", "dx", w.read(gradients.content), shape);
  checker.check("grad.", "grad." + position_name, w.read(gradients.position), position_table.shape);
  if (clamps_agree) {
    checker.check("grad.", "grad." + time_name, w.read(gradients.time), time_table.shape);
  }
}

void run_postprocessor(const CaseContext& context) {
  const Case& golden = context.golden;
  const Settings& settings = golden.settings();
  Workspace& w = context.workspace;
  model::Postprocessor::Config config;
  config.dim = settings.positive("embedding_dim");
  const std::string kind = settings.text("kind");
  if (kind == "l2") {
    config.kind = model::PostprocessorKind::kL2;
  } else if (kind == "layernorm") {
    config.kind = model::PostprocessorKind::kLayerNorm;
  } else if (kind == "timestamp_layernorm") {
    config.kind = model::PostprocessorKind::kTimestampLayerNorm;
  } else {
    fail(ErrorCode::kUnsupported, fmt::format("postprocessor kind `{}` is not known", kind));
  }
  const bool timestamps_used = config.kind == model::PostprocessorKind::kTimestampLayerNorm;
  if (config.kind != model::PostprocessorKind::kL2) {
    settings.require_number("eps", model::ModelConfig::kNormEps);
  }
  if (timestamps_used) {
    config.pi = settings.product("two_pi", 2 * config.pi) / 2;
    if (settings.numbers("period_units") != std::vector<double>{3600, 86400} ||
        settings.numbers("units_per_period") != std::vector<double>{24, 7}) {
      fail(ErrorCode::kUnsupported, "Segue's periods are 24 hours and 7 days");
    }
  }
  const Shape shape = token_shape(golden, config.dim);
  const std::vector<int64_t> timestamps = golden.ints("timestamps", {shape[0]});

  model::Parameters parameters;
  const model::Postprocessor postprocessor(parameters, "", config);
  set_up_parameters(w, golden, parameters);

  const Tensor x = w.activation(golden.values("x", shape));
  const Tensor times = w.wide_index(timestamps);
  const model::Postprocessor::Saved saved = postprocessor.forward(w.exec, x, times);
  const Tensor dx = w.exec.activation({shape[0], shape[1]});
  postprocessor.backward(w.exec, saved, w.activation(golden.values("dout", shape)), dx);

  Checker& checker = context.checker;
  if (timestamps_used) {
    const Tensor features = w.exec.activation({shape[0], 4});
    postprocessor.time_features(w.exec, times, features);
    checker.check("time_features", "time_features", w.read(features), {shape[0], 4});
  }
  checker.check("out", "out", w.read(saved.y), shape);
  checker.check("dx", "dx", w.read(dx), shape);
  check_gradients(w, checker, parameters);
}

}  // namespace segue::golden
