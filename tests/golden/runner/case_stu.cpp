#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "model/stu.h"
#include "runner/cases.h"

namespace segue::golden {
namespace {

class StuCase {
 public:
  StuCase(const CaseContext& context, const model::RecomputeConfig& recompute)
      : context_(context),
        workspace_(context.workspace),
        config_(read_config(context.golden, recompute)),
        shape_(token_shape(context.golden, config_.dim)),
        geometry_(read_geometry(context.golden, shape_[0])),
        layer_(parameters_, "", config_) {
    set_up_parameters(workspace_, context.golden, parameters_);
    sequences_.offsets = geometry_.offsets;
    sequences_.num_targets = geometry_.num_targets;
    sequences_.score_scale =
        1.0 / static_cast<double>(context.golden.settings().positive("max_seq_len"));
    sequences_.training = true;
    x_ = workspace_.activation(context.golden.values("x", shape_));
    dout_ = context.golden.values("dout", shape_);
  }

  void check_layer(std::string_view note) {
    const Tensor dx = full_backward(dout_);
    context_.checker.check("out", "out", workspace_.read(saved_.x_out), shape_, Level::kResult,
                           note);
    context_.checker.check("dx", "dx", workspace_.read(dx), shape_, Level::kResult, note);
    check_gradients(workspace_, context_.checker, parameters_, note);
  }

  /// The layer computed at target rows alone: `out` has those rows; gradients are compared with the
  /// full layer's for a dout that is zero elsewhere, because none are stored.
  void check_targets_only() {
    const std::vector<int32_t> rows = target_rows();
    if (rows.empty() || config_.mask.window > 0 || config_.mask.target_group != 1 ||
        config_.kind != model::LayerKind::kConcat) {
      return;
    }
    const Values whole = context_.golden.reference("out");
    if (whole.shape != shape_) return;  // check_layer() has said so
    const auto targets = static_cast<int64_t>(rows.size());
    const model::TargetTokens tokens{workspace_.index(rows), {}};
    const model::StuLayer::TargetSaved saved =
        layer_.forward_targets(workspace_.exec, sequences_, x_, tokens);
    check("out", "out", workspace_.read(saved.x_out), rows_of(whole, rows));

    Values masked{std::vector<double>(dout_.data.size(), 0.0), shape_};
    for (const int32_t row : rows) {
      const int64_t begin = row * config_.dim;
      std::copy_n(dout_.data.begin() + begin, config_.dim, masked.data.begin() + begin);
    }
    const std::vector<double> dx_full = workspace_.read(full_backward(masked));
    std::vector<std::vector<double>> grads_full;
    for (const model::Parameter& p : parameters_.all()) {
      grads_full.push_back(workspace_.read(p.grad));
    }
    parameters_.zero_grads(workspace_.exec.stream);
    const Tensor dx = workspace_.exec.activation({shape_[0], shape_[1]});
    const Tensor dout = workspace_.activation({rows_of(dout_, rows).data, {targets, config_.dim}});
    layer_.backward_targets(workspace_.exec, sequences_, saved, dout, dx);
    check("dx", "dx", workspace_.read(dx), computed_here(dx_full));
    size_t i = 0;
    for (const model::Parameter& p : parameters_.all()) {
      check("grad.", "grad." + p.name, workspace_.read(p.grad), computed_here(grads_full[i++]));
    }
  }

 private:
  static model::StuConfig read_config(const Case& golden, const model::RecomputeConfig& recompute) {
    const Settings& settings = golden.settings();
    settings.require_number("dropout", 0);
    model::StuConfig config{.dim = settings.positive("embedding_dim"),
                            .heads = settings.positive("heads"),
                            .qk_dim = settings.positive("dqk"),
                            .v_dim = settings.positive("dv"),
                            .eps = settings.number("norm_eps"),
                            .recompute = recompute};
    config.output_norm =
        settings.flag("group_norm", false) ? model::OutputNorm::kGroup : model::OutputNorm::kLayer;
    config.mask = {.contextual_len = settings.count("contextual_seq_len", 0),
                   .window = settings.count("max_attn_len", 0),
                   .min_full = settings.count("min_full_attn_seq_len", 0)};
    config.alpha = settings.number("alpha", 0);
    return config;
  }

  Tensor full_backward(const Values& dout) {
    parameters_.zero_grads(workspace_.exec.stream);
    saved_ = layer_.forward(workspace_.exec, sequences_, x_);
    const Tensor dx = workspace_.exec.activation({shape_[0], shape_[1]});
    layer_.backward(workspace_.exec, sequences_, saved_, workspace_.activation(dout), dx);
    return dx;
  }

  /// Empty when a history does not cover the contextual prefix: the shortcut does not hold there.
  std::vector<int32_t> target_rows() const {
    std::vector<int32_t> rows;
    for (size_t b = 0; b < geometry_.num_targets.size(); ++b) {
      const int64_t end = geometry_.offsets[b + 1];
      const int64_t first = end - geometry_.num_targets[b];
      if (first - geometry_.offsets[b] < config_.mask.contextual_len) return {};
      for (int64_t row = first; row < end; ++row) rows.push_back(static_cast<int32_t>(row));
    }
    return rows;
  }

  Values rows_of(const Values& all, const std::vector<int32_t>& rows) const {
    Values some{{}, {static_cast<int64_t>(rows.size()), config_.dim}, all.is_f64};
    for (const int32_t row : rows) {
      const auto begin = all.data.begin() + row * config_.dim;
      some.data.insert(some.data.end(), begin, begin + config_.dim);
    }
    return some;
  }
  /// A reference made by this program: as exact as the precision it runs in.
  Values computed_here(std::vector<double> values) const {
    return {std::move(values), {}, workspace_.exec.precision == Precision::kF64};
  }
  void check(const char* group, const std::string& name, const std::vector<double>& computed,
             const Values& reference) const {
    context_.checker.check_against(fmt::format("{} (targets)", group), name, computed, reference,
                                   Level::kResult);
  }

  const CaseContext& context_;
  Workspace& workspace_;
  model::StuConfig config_;
  Shape shape_;
  Geometry geometry_;
  model::Parameters parameters_;
  model::StuLayer layer_;
  model::Sequences sequences_;
  model::StuLayer::Saved saved_;
  Tensor x_;
  Values dout_;
};

}  // namespace

void run_stu_layer(const CaseContext& context) {
  StuCase plain(context, {});
  plain.check_layer("");
  plain.check_targets_only();
  StuCase(context, {.normed_input = true, .uvqk = true, .gate = true}).check_layer("recomputed");
}

}  // namespace segue::golden
