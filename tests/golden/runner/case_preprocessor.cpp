#include <numeric>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "base/error.h"
#include "model/preprocessor.h"
#include "ops/assemble.h"
#include "runner/cases.h"

namespace segue::golden {
namespace {

/// A contextual feature and the place of its rows in the batched linear map: value `row` of the
/// feature belongs to (slot, sample), or to nobody when it is beyond the feature's length or the
/// sample is too short.
struct ContextFeature {
  std::string name;
  Values rows;
  std::vector<int64_t> slot_of_row, sample_of_row;  // -1: not used
};

class PreprocessorCase {
 public:
  explicit PreprocessorCase(const CaseContext& context)
      : context_(context), golden_(context.golden), settings_(context.golden.settings()) {
    settings_.require_number("norm_eps", model::ModelConfig::kNormEps);
    config_.embedding_dim = settings_.positive("input_dim");
    config_.hidden = settings_.positive("hidden_dim");
    config_.dim = settings_.positive("output_dim");
    additional_ = settings_.texts("additional_features");
    config_.additional_features = static_cast<int64_t>(additional_.size());
    action_weights_ = settings_.integers("action_weights");
    if (action_weights_.empty() || action_weights_.size() > 20) {
      fail(ErrorCode::kUnsupported, "action_weights needs 1 to 20 bits");
    }
    config_.action_bits = static_cast<int64_t>(action_weights_.size());
    config_.action_dim = settings_.positive("action_embedding_dim");
    read_lengths();
    read_context();
  }

  void run() {
    Workspace& w = context_.workspace;
    model::Parameters parameters;
    const model::Preprocessor preprocessor(parameters, "", config_);
    set_up_parameters(w, golden_, parameters);

    const std::vector<int32_t> codes = action_codes();
    const model::Preprocessor::Saved saved = preprocessor.forward(w.exec, inputs(), w.index(codes));
    const ops::AssembleParams assemble = lay_out(saved);
    const Shape out_shape = {tokens_, config_.dim};
    const Tensor out = w.exec.activation({tokens_, config_.dim});
    ops::assemble_forward(w.exec, assemble, out);

    const DType type = w.exec.parameter_dtype();
    const int64_t rows = preprocessor.row_count({events_, std::ssize(codes), samples_});
    const Tensor row_gradients = w.zeros(type, {rows, config_.dim});
    const model::Preprocessor::RowGradients d = preprocessor.split_rows(row_gradients, saved);
    ops::AssembleGradients gradients{.content = d.rows, .action = d.action_rows};
    if (saved.context_rows) {
      gradients.context = d.context_rows.reshape({samples_ * slots_, config_.dim});
    }
    ops::assemble_backward(w.exec, assemble, w.activation(golden_.values("dout", out_shape)),
                           gradients);
    const Tensor dinputs = w.exec.activation(
        {events_ * (1 + config_.additional_features) + slots_ * samples_, config_.embedding_dim});
    preprocessor.backward(w.exec, saved, row_gradients, dinputs);
    const model::Preprocessor::Inputs din = preprocessor.split_inputs(dinputs, events_, samples_);

    Checker& checker = context_.checker;
    checker.check_ints("layout", "out_seq_lengths", out_lengths_, {samples_});
    checker.check_ints("layout", "out_seq_offsets", out_offsets_, {samples_ + 1});
    checker.check_ints("layout", "out_timestamps", out_timestamps_, {tokens_});
    checker.check("out", "out", w.read(out), out_shape);
    checker.check("d_", "d_seq_embeddings", w.read(din.content), {events_, config_.embedding_dim});
    check_additional(din.additional);
    if (din.context) check_context(w.read(din.context));
    check_gradients(w, checker, parameters);
  }

 private:
  void read_lengths() {
    const std::vector<int64_t> lengths = golden_.int_list("seq_lengths");
    samples_ = static_cast<int64_t>(lengths.size());
    offsets_.assign(1, 0);
    for (const int64_t length : lengths) {
      if (length < 0) fail(ErrorCode::kCorrupt, "a negative length in `seq_lengths`");
      offsets_.push_back(offsets_.back() + length);
    }
    events_ = offsets_.back();
    num_targets_ = golden_.int_list("num_targets");
    check_targets(offsets_, num_targets_);
  }
  int64_t length(int64_t b) const {
    return offsets_[static_cast<size_t>(b) + 1] - offsets_[static_cast<size_t>(b)];
  }

  void read_context() {
    const std::vector<std::string> names = settings_.texts("contextual_features");
    const std::vector<int64_t> max_lengths = settings_.integers("contextual_max_lengths");
    const std::vector<int64_t> min_sequence = settings_.has("contextual_min_uih")
                                                  ? settings_.integers("contextual_min_uih")
                                                  : std::vector<int64_t>(names.size(), 0);
    if (max_lengths.size() != names.size() || min_sequence.size() != names.size()) {
      fail(ErrorCode::kCorrupt, "contextual features need one length and one minimum each");
    }
    for (size_t f = 0; f < names.size(); ++f) {
      if (max_lengths[f] <= 0) fail(ErrorCode::kCorrupt, "a contextual feature without tokens");
      const std::vector<int64_t> offsets = golden_.ints(names[f] + "_offsets", {samples_ + 1});
      ContextFeature feature{names[f], {}, {}, {}};
      feature.rows = golden_.values(names[f], {offsets.back(), config_.embedding_dim});
      check_offsets(offsets, offsets.back());
      for (int64_t b = 0; b < samples_; ++b) {
        const int64_t begin = offsets[static_cast<size_t>(b)];
        for (int64_t row = begin; row < offsets[static_cast<size_t>(b) + 1]; ++row) {
          const bool used = row - begin < max_lengths[f] && length(b) >= min_sequence[f];
          feature.slot_of_row.push_back(used ? slots_ + row - begin : -1);
          feature.sample_of_row.push_back(b);
        }
      }
      slots_ += max_lengths[f];
      context_features_.push_back(std::move(feature));
    }
    config_.contextual_tokens = slots_;
  }

  int64_t context_place(int64_t slot, int64_t sample) const {
    return (slot * samples_ + sample) * config_.embedding_dim;
  }

  model::Preprocessor::Inputs inputs() {
    Workspace& w = context_.workspace;
    const int64_t dim = config_.embedding_dim;
    model::Preprocessor::Inputs in;
    in.content = w.activation(golden_.values("seq_embeddings", {events_, dim}));
    if (!additional_.empty()) {
      const int64_t width = config_.additional_features * dim;
      Values side_by_side{std::vector<double>(static_cast<size_t>(events_ * width)),
                          {events_, width}};
      for (size_t f = 0; f < additional_.size(); ++f) {
        const Values rows = golden_.values(additional_[f], {events_, dim});
        for (int64_t e = 0; e < events_; ++e) {
          std::copy_n(rows.data.begin() + e * dim, dim,
                      side_by_side.data.begin() + e * width + static_cast<int64_t>(f) * dim);
        }
      }
      in.additional = w.activation(side_by_side);
    }
    if (slots_ > 0) {
      Values context{std::vector<double>(static_cast<size_t>(slots_ * samples_ * dim)),
                     {slots_, samples_, dim}};
      for (const ContextFeature& feature : context_features_) {
        for (size_t row = 0; row < feature.slot_of_row.size(); ++row) {
          if (feature.slot_of_row[row] < 0) continue;
          std::copy_n(feature.rows.data.begin() + static_cast<int64_t>(row) * dim, dim,
                      context.data.begin() +
                          context_place(feature.slot_of_row[row], feature.sample_of_row[row]));
        }
      }
      in.context = w.activation(context);
    }
    return in;
  }

  /// One per event; a target has the code behind all patterns. Bits are stored for history only.
  std::vector<int32_t> action_codes() const {
    const int64_t targets = std::accumulate(num_targets_.begin(), num_targets_.end(), int64_t{0});
    const std::vector<int64_t> bits = golden_.ints("action", {events_ - targets});
    std::vector<int32_t> codes;
    size_t at = 0;
    for (int64_t b = 0; b < samples_; ++b) {
      for (int64_t e = 0; e < length(b); ++e) {
        int32_t code = int32_t{1} << config_.action_bits;
        if (e < length(b) - num_targets_[static_cast<size_t>(b)]) {
          code = 0;
          for (size_t k = 0; k < action_weights_.size(); ++k) {
            if ((bits[at] & action_weights_[k]) > 0) code |= int32_t{1} << k;
          }
          ++at;
        }
        codes.push_back(code);
      }
    }
    return codes;
  }

  ops::AssembleParams lay_out(const model::Preprocessor::Saved& saved) {
    const std::vector<int64_t> timestamps = golden_.ints("timestamps", {events_});
    std::vector<int32_t> rows;
    std::vector<int32_t> actions;
    for (int64_t b = 0; b < samples_; ++b) {
      for (int64_t s = 0; s < slots_; ++s) {
        rows.push_back(static_cast<int32_t>(events_ + b * slots_ + s));
        actions.push_back(-1);
        out_timestamps_.push_back(0);
      }
      for (int64_t e = 0; e < length(b); ++e) {
        rows.push_back(static_cast<int32_t>(offsets_[static_cast<size_t>(b)] + e));
        actions.push_back(rows.back());
        out_timestamps_.push_back(timestamps[static_cast<size_t>(rows.back())]);
      }
      out_lengths_.push_back(slots_ + length(b));
      out_offsets_.push_back(static_cast<int64_t>(rows.size()));
    }
    tokens_ = out_offsets_.back();
    ops::AssembleParams p;
    p.content = saved.rows;
    if (saved.context_rows)
      p.context = saved.context_rows.reshape({samples_ * slots_, config_.dim});
    p.row_index = context_.workspace.index(rows);
    p.action_rows = saved.action_rows;
    p.action_index = context_.workspace.index(actions);
    return p;
  }

  void check_additional(const Tensor& computed) {
    if (additional_.empty()) return;
    const int64_t dim = config_.embedding_dim;
    const int64_t width = config_.additional_features * dim;
    const std::vector<double> all = context_.workspace.read(computed);
    for (size_t f = 0; f < additional_.size(); ++f) {
      std::vector<double> part;
      for (int64_t e = 0; e < events_; ++e) {
        const auto from = all.begin() + e * width + static_cast<int64_t>(f) * dim;
        part.insert(part.end(), from, from + dim);
      }
      context_.checker.check("d_", "d_" + additional_[f], part, {events_, dim});
    }
  }

  void check_context(const std::vector<double>& computed) {
    const int64_t dim = config_.embedding_dim;
    for (const ContextFeature& feature : context_features_) {
      std::vector<double> gradient(feature.rows.data.size(), 0.0);
      for (size_t row = 0; row < feature.slot_of_row.size(); ++row) {
        if (feature.slot_of_row[row] < 0) continue;
        std::copy_n(
            computed.begin() + context_place(feature.slot_of_row[row], feature.sample_of_row[row]),
            dim, gradient.begin() + static_cast<int64_t>(row) * dim);
      }
      context_.checker.check("d_", "d_" + feature.name, gradient, feature.rows.shape);
    }
  }

  const CaseContext& context_;
  const Case& golden_;
  const Settings& settings_;
  model::PreprocessorConfig config_;
  std::vector<std::string> additional_;
  std::vector<int64_t> action_weights_;
  std::vector<int64_t> offsets_, num_targets_;  // history and targets
  int64_t samples_ = 0, events_ = 0, slots_ = 0, tokens_ = 0;
  std::vector<ContextFeature> context_features_;
  std::vector<int64_t> out_lengths_, out_offsets_ = {0}, out_timestamps_;
};

}  // namespace

void run_contextual_preprocessor(const CaseContext& context) { PreprocessorCase(context).run(); }

}  // namespace segue::golden
