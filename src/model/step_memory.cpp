#include "model/step_memory.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "attention/hstu_attention.h"
#include "model/ranker.h"
#include "ops/assemble.h"
#include "ops/deferred_sums.h"
#include "ops/gate.h"

namespace segue::model {
namespace {

constexpr int64_t kIndexBytes = 4;

/// An arena that only counts.
class Walk {
 public:
  void take(int64_t rows, int64_t columns, int64_t bytes_each) {
    constexpr int64_t kAlignment = 256;
    used_ += (rows * columns * bytes_each + kAlignment - 1) / kAlignment * kAlignment;
    peak_ = std::max(peak_, used_);
  }
  /// What `f` takes is given back.
  template <class F>
  void scope(F&& f) {
    const int64_t before = used_;
    f();
    used_ = before;
  }
  int64_t used() const { return used_; }
  int64_t peak() const { return peak_; }

 private:
  int64_t used_ = 0, peak_ = 0;
};

/// The step, call by call, in the order of ranker*.cpp, stu*.cpp, mlp.cpp and preprocessor.cpp.
class Step {
 public:
  Step(const ModelConfig& m, const sparse::TablesConfig& tables, int64_t embedding_dim,
       const StepBounds& bounds, Precision precision, Device device)
      : m_(m),
        tables_(tables),
        embedding_dim_(embedding_dim),
        device_(device),
        on_gpu_(device.is_cuda()),
        rounds_(precision == Precision::kBf16) {
    planned_.device = device;
    planned_.precision = precision;
    parameter_ = precision == Precision::kF64 ? 8 : 4;
    activation_ = rounds_ && on_gpu_ ? 2 : parameter_;
    width_ = m.heads * m.v_dim;
    candidates_ = m.labels == LabelKind::kCandidates;
    samples_ = bounds.samples;
    sample_tokens_ = std::max<int64_t>(1, m.sample_tokens(bounds.events, bounds.candidates));
    tokens_ =
        std::min(samples_ * sample_tokens_, std::max(bounds.micro_batch_tokens, sample_tokens_));
    places_ = samples_ * (bounds.events + (candidates_ ? bounds.candidates : 0));
    distinct_places_ =
        static_cast<int64_t>(std::ceil(bounds.distinct_share * static_cast<double>(places_)));
    branch_rows_ = m_.identities.distinct_rows ? distinct_places_ : places_;
    labels_ = candidates_ ? samples_ * bounds.candidates
                          : std::min(tokens_ / m.tokens_per_event(), samples_ * bounds.events);
    collapsed_ = m.why_last_layer_is_full(bounds.candidates) == nullptr;
    norms_targets_ = attention::target_attention_norms(device, planned_.dtype(), m.dim);
    attention_ = {.rows = tokens_,
                  .sequences = samples_,
                  .longest = sample_tokens_,
                  .heads = m.heads,
                  .mask = m.attention_mask()};
  }

  StepMemory run() {
    StepMemory result;
    walk_.take(ops::DeferredSums::memory_bytes(device_), 1, 1);
    if (activation_ != parameter_) walk_.take(weights(), 1, activation_);
    rows_forward();
    result.rows = walk_.used();
    walk_.scope([&] {
      tokens_forward();
      result.kept = walk_.used() - result.rows;
      tokens_backward();
    });
    walk_.scope([&] { rows_backward(); });
    update();
    result.working = walk_.peak() - result.rows - result.kept;
    return result;
  }

 private:
  void activation(int64_t rows, int64_t columns) { walk_.take(rows, columns, activation_); }
  void wide(int64_t rows, int64_t columns) { walk_.take(rows, columns, parameter_); }
  void norm_stats(int64_t rows, int64_t groups = 1) {
    wide(rows * groups, 1);
    wide(rows * groups, 1);
  }

  /// Values of all dense parameters; biases and norms are left to the margin.
  int64_t weights() const {
    const int64_t in = embedding_dim_;
    const auto features = static_cast<int64_t>(m_.additional.size()) + 1;
    const int64_t action = static_cast<int64_t>(m_.action.weights.size()) * m_.action.dim;
    const int64_t layer = (m_.uvqk_columns() + gate_width()) * m_.dim;
    const int64_t branches = (features * in + action + 3 * m_.dim) * m_.hidden;
    const int64_t item = (features * in + m_.dim) * m_.item_hidden;
    const int64_t head = (m_.dim + static_cast<int64_t>(m_.tasks.size())) * m_.head_hidden;
    return m_.layers * layer + branches + item + head +
           (m_.position_buckets + m_.time_buckets + m_.contextual_tokens() * in + m_.dim) * m_.dim;
  }
  /// Distinct rows of every table, at most; 0: not looked up.
  std::vector<int64_t> distinct_rows() const {
    std::vector<int64_t> ids(tables_.tables.size(), 0);
    const auto add = [&](const std::string& table, int64_t count) {
      for (size_t t = 0; t < ids.size(); ++t) {
        if (tables_.tables[t].name == table) ids[t] += count;
      }
    };
    add(m_.item.table, distinct_places_);
    for (const SequenceFeature& f : m_.additional) add(f.table, distinct_places_);
    for (const ContextualFeature& f : m_.contextual) add(f.table, samples_ * f.max_length);
    for (size_t t = 0; t < ids.size(); ++t) ids[t] = std::min(ids[t], tables_.tables[t].rows);
    return ids;
  }
  int64_t action_rows() const {
    const int64_t codes = (int64_t{1} << std::min<size_t>(m_.action.weights.size(), 32)) + 1;
    return m_.identities.action_codes && codes <= Ranker::kMaxActionCodes ? codes : places_;
  }

  void mlp_forward(int64_t rows, int64_t hidden, int64_t out, bool final_norm, int64_t bytes) {
    const bool norms = m_.embedding_mlp == EmbeddingMlp::kSwishNorm;
    walk_.take(rows, 2 * hidden, bytes);
    walk_.take(rows, out, bytes);
    if (norms) norm_stats(rows);
    if (!norms || !final_norm) return;
    walk_.take(rows, out, bytes);
    norm_stats(rows);
  }
  void mlp_backward(int64_t rows, int64_t hidden, int64_t out, int64_t bytes) {
    walk_.scope([&] {
      walk_.take(rows, out, bytes);
      walk_.take(rows, 2 * hidden, bytes);
    });
  }
  /// Scratch of a sum of n rows by index.
  void segment_sum(int64_t n, int64_t destinations, int64_t columns) {
    constexpr int64_t kRowsPerPartial = 32;  // two partial sums for 64 rows
    walk_.scope([&] {
      walk_.take(n, 6, kIndexBytes);  // keys and items, twice, and the sort's own
      walk_.take(std::min(n, destinations), 4, kIndexBytes);
      wide(n / kRowsPerPartial + std::min<int64_t>(n, kSmallSum), columns);
    });
  }

  void rows_forward() {
    const int64_t dim = embedding_dim_;
    for (const int64_t rows : distinct_rows()) {
      wide(rows, dim);
      wide(rows, dim);
    }
    const auto additional = static_cast<int64_t>(m_.additional.size());
    const int64_t contextual = m_.contextual_tokens();
    activation(branch_rows_, dim);
    activation(branch_rows_, additional * dim);
    activation(contextual * samples_, dim);
    mlp_forward(branch_rows_, m_.hidden, m_.dim, true, activation_);
    if (additional > 0) {
      mlp_forward(branch_rows_, m_.hidden, m_.dim, true, activation_);
      activation(branch_rows_, m_.dim);
    }
    activation(action_rows(), static_cast<int64_t>(m_.action.weights.size()) * m_.action.dim);
    mlp_forward(action_rows(), m_.hidden, m_.dim, true, activation_);
    activation(samples_ * contextual, m_.dim);
    wide(branch_rows_, m_.dim);
    wide(action_rows(), m_.dim);
    wide(samples_ * contextual, m_.dim);
  }

  void layer_activations(bool kept) {
    const RecomputeConfig& drop = m_.recompute;
    const bool gated = m_.layer == LayerKind::kGated;
    if (kept == !drop.normed_input) activation(tokens_, m_.dim);
    if (kept == !drop.uvqk) {
      activation(tokens_, m_.uvqk_columns());
      if (gated) activation(tokens_, m_.uvqk_columns() - width_);
    }
    if (kept == !drop.gate) activation(tokens_, gate_width());
  }
  int64_t gate_width() const { return m_.layer == LayerKind::kGated ? width_ : 3 * width_; }
  int64_t full_layers() const { return m_.layers - (collapsed_ ? 1 : 0); }

  /// What dropout decides is left for backward, a bit for each element, where that pays.
  int64_t assemble_keep_bytes() const {
    ops::AssembleParams p;
    p.dropout.p = static_cast<float>(m_.input_dropout);
    return ops::assemble_keep_bytes(planned_, p, m_.dim);
  }
  int64_t gate_keep_bytes() const {
    ops::GateParams p;
    p.a = Tensor(nullptr, DType::kBf16, device_, {0, width_});
    p.norm.groups = m_.output_norm == OutputNorm::kGroup ? m_.heads : 1;
    p.concat = m_.layer == LayerKind::kConcat;
    p.dropout.p = static_cast<float>(m_.dropout);
    return ops::gate_keep_bytes(planned_, p);
  }

  void tokens_forward() {
    activation(tokens_, m_.dim);
    walk_.take(tokens_, assemble_keep_bytes(), 1);
    for (int64_t l = 0; l < full_layers(); ++l) {
      activation(tokens_, m_.dim + width_);
      walk_.take(tokens_, gate_keep_bytes(), 1);
      norm_stats(tokens_);
      norm_stats(tokens_, m_.output_norm == OutputNorm::kGroup ? m_.heads : 1);
      layer_activations(true);
      walk_.scope([&] { layer_activations(false); });
    }
    if (collapsed_) {
      norm_stats(tokens_);
      if (norms_targets_) {  // rows are normed on the way: their sums take the place of h
        norm_stats(labels_);
        wide(labels_, m_.heads * m_.dim);
      } else {
        activation(tokens_, m_.dim);
      }
      target_rows(4 * m_.dim + 8 * width_, 2 * m_.heads * (m_.dim + 1) + 4 * width_);
      walk_.scope([&] { target_scratch(); });
    }
    // Postprocessor, item side and head.
    const auto features = static_cast<int64_t>(m_.additional.size()) + 1;
    target_rows(6 * m_.dim + 8, 6 * m_.dim + features * embedding_dim_);
    mlp_forward(labels_, m_.item_hidden, m_.dim, true, parameter_);
    mlp_forward(labels_, m_.head_hidden, static_cast<int64_t>(m_.tasks.size()), false, parameter_);
    wide(labels_, 2 * static_cast<int64_t>(m_.tasks.size()));
  }
  void target_rows(int64_t activations, int64_t wides) {
    activation(labels_, activations);
    wide(labels_, wides);
  }
  void target_scratch() {
    if (!on_gpu_) return;  // a tile for each thread: left to the margin
    const int64_t targets = std::max<int64_t>(1, labels_ / std::max<int64_t>(1, samples_));
    walk_.take(attention::target_attention_bytes(attention_, targets, m_.dim), 1, 1);
  }

  void tokens_backward() {
    const auto features = static_cast<int64_t>(m_.additional.size()) + 1;
    walk_.scope([&] {
      target_rows(2 * m_.dim, 4 * m_.dim + features * embedding_dim_);
      mlp_backward(labels_, m_.item_hidden, m_.dim, parameter_);
    });
    target_rows(3 * m_.dim, 3 * m_.dim);
    activation(tokens_, m_.dim);  // the gradient that travels through the layers
    if (collapsed_) {
      walk_.scope([&] {
        target_rows(2 * m_.dim + 6 * width_, 4 * m_.heads * (m_.dim + 1) + 4 * width_);
        if (!norms_targets_) activation(tokens_, m_.dim);  // dh
        target_scratch();
      });
    }
    if (full_layers() > 0) walk_.scope([&] { layer_backward(); });
    walk_.scope([&] {
      if (!on_gpu_ && (m_.input_dropout > 0 || rounds_)) activation(tokens_, m_.dim);
      // By row, position and time, and by action where there are many: a GPU sorts all at once.
      const int64_t orders = on_gpu_ ? 4 : 1;
      segment_sum(orders * tokens_, places_ + samples_ * m_.contextual_tokens(), m_.dim);
    });
  }
  void layer_backward() {
    layer_activations(false);
    activation(tokens_, m_.uvqk_columns());
    activation(tokens_, width_);
    walk_.scope([&] { activation(tokens_, gate_width()); });
    if (activation_ == 2) walk_.scope([&] { attention_scratch(); });
    activation(tokens_, m_.dim);
  }
  void attention_scratch() {
    // Sums for the bias of V, Q and K; a gated layer makes its own.
    const bool sums = m_.layer == LayerKind::kConcat;
    const int64_t columns = sums ? m_.uvqk_columns() - width_ : 0;
    walk_.take(attention::hstu_attention_backward_bytes(attention_, columns), 1, 1);
  }

  void rows_backward() {
    const auto additional = static_cast<int64_t>(m_.additional.size());
    const int64_t contextual = m_.contextual_tokens();
    activation(branch_rows_, (1 + additional) * embedding_dim_);
    activation(contextual * samples_, embedding_dim_);
    walk_.scope([&] {
      if (activation_ != parameter_) activation(branch_rows_, m_.dim);
      mlp_backward(branch_rows_, m_.hidden, m_.dim, activation_);
    });
    segment_sum(branch_rows_, branch_rows_, embedding_dim_);
  }
  void update() {
    if (tables_.backward_wire == sparse::Wire::kF32) return;
    const std::vector<int64_t> rows = distinct_rows();
    walk_.scope([&] { wide(*std::max_element(rows.begin(), rows.end()), embedding_dim_); });
  }

  static constexpr int64_t kSmallSum = 2048;  // partial sums where chunks are short

  const ModelConfig& m_;
  const sparse::TablesConfig& tables_;
  int64_t embedding_dim_ = 0;
  Device device_;
  Exec planned_;  // computes nothing
  bool on_gpu_, rounds_;
  int64_t parameter_ = 4, activation_ = 4;  // bytes
  int64_t width_ = 0;                       // of the values of all heads
  bool candidates_ = true;
  bool collapsed_ = true;       // the last layer runs at target rows only,
  bool norms_targets_ = false;  // where attention norms the rows it reads
  int64_t samples_ = 0, sample_tokens_ = 0;
  int64_t tokens_ = 0, labels_ = 0;  // of a micro-batch
  int64_t places_ = 0;               // events and candidates of a batch
  int64_t distinct_places_ = 0;      // different ids among them
  int64_t branch_rows_ = 0;          // rows of the branches in front of the stack
  attention::AttentionBounds attention_;
  Walk walk_;
};

}  // namespace

StepMemory step_memory(const ModelConfig& model, const sparse::TablesConfig& tables,
                       int64_t embedding_dim, const StepBounds& bounds, Precision precision,
                       Device device) {
  StepMemory memory = Step(model, tables, embedding_dim, bounds, precision, device).run();
  constexpr int64_t kSmall = int64_t{64} << 20;
  memory.margin = kSmall + (device.is_cpu() ? memory.total() : 0);
  return memory;
}

int64_t batch_memory(const ModelConfig& model, const StepBounds& bounds) {
  const int64_t tokens = bounds.samples * model.sample_tokens(bounds.events, bounds.candidates);
  const int64_t places = bounds.samples * (bounds.events + bounds.candidates);
  const auto features = static_cast<int64_t>(model.additional.size()) + 1;
  const auto tasks = static_cast<int64_t>(model.tasks.size());
  const int64_t labels = model.labels == LabelKind::kCandidates ? bounds.samples * bounds.candidates
                                                                : bounds.samples * bounds.events;
  constexpr int64_t kSmall = int64_t{1} << 20;  // offsets, action codes, alignment
  return tokens * 6 * 4 + places * features * (8 + 3 * 4) + places * 4 +
         bounds.samples * model.contextual_tokens() * (8 + 3 * 4) +
         labels * (5 * 4 + features * 4 + tasks * 8) + kSmall;
}

}  // namespace segue::model
