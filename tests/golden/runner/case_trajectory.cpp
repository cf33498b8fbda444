// Many training steps with both optimizers, in the order of the reference: table rows from the raw
// gradients, then clipping, then Adam. Several ranks are run one after the other in one process.

#include <algorithm>
#include <filesystem>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "base/error.h"
#include "model/dense_optimizer.h"
#include "ops/rows.h"
#include "runner/cases.h"
#include "runner/model_setup.h"

namespace segue::golden {
namespace {

model::OptimizerConfig optimizer_config(const Settings& settings) {
  settings.require_text("dense_optimizer", "Adam");
  settings.require_number("clip_eps", 1e-6);
  const int64_t first_t = settings.integer("adam_first_step_t", 1);
  if (first_t != 1 && first_t != 2) {
    fail(ErrorCode::kUnsupported,
         fmt::format("adam_first_step_t {}: Segue knows 1 and 2", first_t));
  }
  model::OptimizerConfig config;
  config.lr = settings.number("dense_base_lr");
  config.sparse_lr = settings.number("sparse_base_lr");
  config.beta1 = settings.number("adam_beta1");
  config.beta2 = settings.number("adam_beta2");
  config.eps = settings.number("adam_eps");
  config.weight_decay = settings.number("weight_decay", 0);
  config.clip_norm = settings.number("grad_clip_norm");
  config.warmup_steps = settings.integer("lr_warmup_steps", 0);
  config.warmup_start_lr = settings.number("lr_warmup_start", 0);
  config.adam_counts_initial_step = first_t == 2;
  config.validate();
  return config;
}

/// The batches of all steps: one value per (step, sample) or, for history, flat over both.
class StepBatches {
 public:
  StepBatches(const Case& golden, const model::ModelConfig& schema)
      : features_(golden.sharing("features")), schema_(schema) {
    const Settings& settings = golden.settings();
    steps_ = settings.positive("steps");
    samples_ = settings.positive("global_batch");
    candidates_ = settings.count("num_candidates_per_sample", 1);
    lengths_ = features_.ints("uih_lengths", {steps_, samples_});
    first_event_.push_back(0);
    for (int64_t step = 0; step < steps_; ++step) {
      const std::vector<int64_t> of_step = history(step);
      for (const int64_t length : of_step) {
        if (length < 0 || length > kMostEvents) {
          fail(ErrorCode::kCorrupt, "an impossible length in `uih_lengths`");
        }
      }
      first_event_.push_back(std::accumulate(of_step.begin(), of_step.end(), first_event_.back()));
    }
  }

  int64_t steps() const { return steps_; }
  int64_t samples() const { return samples_; }
  int64_t candidates() const { return candidates_; }
  int64_t longest() const {
    return schema_.contextual_tokens() + *std::ranges::max_element(lengths_) + candidates_;
  }

  Batch batch(int64_t step) const {
    const BatchLengths lengths{history(step),
                               std::vector<int64_t>(static_cast<size_t>(samples_), candidates_)};
    return make_batch(schema_, lengths, [&](const std::string& column, int64_t count) {
      const std::vector<int64_t> all = features_.ints("feature." + column);
      const bool per_event = column == schema_.item.history || column == schema_.action.history ||
                             column == schema_.history_timestamp ||
                             std::ranges::any_of(schema_.additional, [&](const auto& f) {
                               return f.history == column;
                             });
      const int64_t expected = per_event ? first_event_.back() : steps_ * count;
      if (static_cast<int64_t>(all.size()) != expected) {
        fail(ErrorCode::kCorrupt,
             fmt::format("feature `{}` has {} values, expected {}", column, all.size(), expected));
      }
      const auto begin =
          all.begin() + (per_event ? first_event_[static_cast<size_t>(step)] : step * count);
      return std::vector<int64_t>(begin, begin + count);
    });
  }

 private:
  std::vector<int64_t> history(int64_t step) const {
    const auto begin = lengths_.begin() + step * samples_;
    return {begin, begin + samples_};
  }

  Case features_;
  model::ModelConfig schema_;
  int64_t steps_ = 0, samples_ = 0, candidates_ = 0;
  std::vector<int64_t> lengths_;      // [steps, samples]
  std::vector<int64_t> first_event_;  // [steps + 1]
};

/// What the steps leave behind, one entry per step (and rank, or label).
struct Curves {
  std::vector<double> loss, rank_loss, gradient_norm, logits, lr_dense, lr_sparse;
};

class Trajectory {
 public:
  Trajectory(Workspace& workspace, const Case& golden, const Variant& variant)
      : workspace_(workspace),
        variant_(variant),
        optimizer_(optimizer_config(golden.settings())),
        batches_(golden, model_config(golden, variant.identities, 0)),
        model_(workspace, golden, golden.sharing("params"), variant.identities, batches_.longest()),
        ranks_(golden.settings().integer("world_size", 1)) {
    if (ranks_ <= 0 || batches_.samples() % ranks_ != 0) {
      fail(ErrorCode::kCorrupt,
           fmt::format("{} samples do not divide into {} ranks", batches_.samples(), ranks_));
    }
  }

  using AfterStep = std::function<void(int64_t steps_done)>;
  Curves run(const AfterStep& after_step) {
    Curves curves;
    for (int64_t step = 0; step < batches_.steps(); ++step) {
      run_step(step, curves);
      after_step(step + 1);
    }
    return curves;
  }

  GoldenModel& model() { return model_; }
  const StepBatches& batches() const { return batches_; }
  int64_t ranks() const { return ranks_; }

 private:
  void run_step(int64_t step, Curves& curves) {
    const Exec& exec = workspace_.exec;
    const Arena::Mark mark(*exec.arena);
    model::Parameters& parameters = model_.ranker().parameters();
    parameters.zero_grads(exec.stream);

    const Batch global = batches_.batch(step);
    const int64_t per_rank = batches_.samples() / ranks_;
    std::vector<model::Pass> passes;
    for (int64_t rank = 0; rank < ranks_; ++rank) {
      model::PassOptions options;
      options.micro_batch_tokens = variant_.micro_batch_tokens;
      passes.push_back(model_.ranker().run(exec, global.slice(rank * per_rank, per_rank), options));
    }
    const model::LearningRates rates = model::learning_rates(optimizer_, step);
    update_tables(passes, rates.sparse, step);
    average_dense_gradients();
    const model::DenseUpdate update = model::update_dense(exec, optimizer_, step, parameters);

    double loss = 0;
    for (const model::Pass& pass : passes) {
      loss += pass.loss / static_cast<double>(ranks_);
      curves.rank_loss.push_back(pass.loss);
      // [tasks][labels] of the rank; the file has the labels of the step in order.
      const int64_t tasks =
          pass.num_labels > 0 ? static_cast<int64_t>(pass.logits.size()) / pass.num_labels : 0;
      for (int64_t i = 0; i < pass.num_labels; ++i) {
        for (int64_t k = 0; k < tasks; ++k) {
          curves.logits.push_back(pass.logits[static_cast<size_t>(k * pass.num_labels + i)]);
        }
      }
    }
    curves.loss.push_back(loss);
    curves.gradient_norm.push_back(update.gradient_norm);
    curves.lr_dense.push_back(rates.dense);
    curves.lr_sparse.push_back(rates.sparse);
  }

  void average_dense_gradients() {
    if (ranks_ == 1) return;
    const Exec& exec = workspace_.exec;
    const Tensor flat = model_.ranker().parameters().grads();
    const Tensor grads = flat.reshape({1, flat.elements()});
    ops::scale(exec.rounds_to_bf16() ? exec.with(Precision::kF32) : exec, grads,
               1.0 / static_cast<double>(ranks_), grads);
  }

  void update_tables(std::vector<model::Pass>& passes, double lr, int64_t step) {
    if (ranks_ == 1) {
      model_.tables().apply(workspace_.exec, passes[0].ticket, passes[0].looked_up,
                            passes[0].all_row_gradients, lr, step + 1);
      return;
    }
    for (const sparse::TableConfig& table : model_.table_configs()) {
      apply_sum_over_ranks(passes, model_.tables().id(table.name), lr, step);
    }
  }

  /// One update per row with the sum over ranks of gradient / ranks.
  void apply_sum_over_ranks(const std::vector<model::Pass>& passes, sparse::TableId table,
                            double lr, int64_t step) {
    const Exec& exec = workspace_.exec;
    sparse::Tables& tables = model_.tables();
    const Arena::Mark mark(*exec.arena);
    std::vector<sparse::Lookup> lookups;
    std::vector<const model::Pass*> owners;
    for (const model::Pass& pass : passes) {
      if (!pass.row_gradients[static_cast<size_t>(table)]) continue;
      // On one rank the slots of a static table are its ids.
      lookups.push_back({table, "all ranks", pass.ticket.slots(table)});
      owners.push_back(&pass);
    }
    if (lookups.empty()) return;
    sparse::Ticket all = tables.begin(lookups, sparse::Mode::kTraining);
    const Tensor sum =
        workspace_.zeros(exec.parameter_dtype(), {all.distinct_rows(table), tables.config().dim});
    for (size_t i = 0; i < owners.size(); ++i) {
      ops::segment_sum(exec, owners[i]->row_gradients[static_cast<size_t>(table)],
                       workspace_.index(all.inverse(static_cast<int64_t>(i))), sum,
                       1.0 / static_cast<double>(ranks_));
    }
    tables.apply(exec, all, table, sum, lr, step + 1);
  }

  Workspace& workspace_;
  const Variant& variant_;
  model::OptimizerConfig optimizer_;
  StepBatches batches_;
  GoldenModel model_;
  int64_t ranks_ = 1;
};

/// Compares what is stored of one moment of the training. Tensors that must be there are asked for
/// even when the file lacks them.
class Snapshot {
 public:
  Snapshot(const CaseContext& context, GoldenModel& golden_model, int64_t steps_done)
      : context_(context),
        model_(golden_model),
        steps_done_(steps_done),
        parameter_prefix_(fmt::format("param_step{}.", steps_done)),
        state_prefix_(fmt::format("adagrad_step{}.", steps_done)) {}

  void check_parameters(bool required) const {
    for (const model::Parameter& p : model_.ranker().parameters().all()) {
      check("param.", parameter_prefix_ + p.name, p.value, p.shape, required);
    }
  }
  void check_tables(bool required) const {
    const sparse::Tables& tables = model_.tables();
    for (const sparse::TableConfig& table : model_.table_configs()) {
      const auto& [weights, state] = tables.table(tables.id(table.name)).resident();
      check("tables", parameter_prefix_ + table_parameter(table.name), weights, shape_of(weights),
            required);
      check("adagrad", state_prefix_ + table.name, state, {state.size(0)}, required);
    }
  }
  /// Everything stored of this step belongs to the model: Error if not.
  void check_names() const {
    for (const std::string& stored : context_.golden.names(parameter_prefix_)) {
      const std::string name = stored.substr(parameter_prefix_.size());
      if (!name.starts_with(kTablePrefix)) model_.ranker().parameters().get(name);
    }
    for (const std::string& stored : context_.golden.names(state_prefix_)) {
      model_.tables().id(stored.substr(state_prefix_.size()));
    }
  }

 private:
  void check(const char* what, const std::string& name, const Tensor& computed, const Shape& shape,
             bool required) const {
    if (!required && !context_.golden.has(name) && !context_.golden.has(name + "_f64")) return;
    context_.checker.check(fmt::format("{} step {}", what, steps_done_), name,
                           context_.workspace.read(computed), shape, Level::kAfterTraining);
  }

  const CaseContext& context_;
  GoldenModel& model_;
  int64_t steps_done_;
  std::string parameter_prefix_, state_prefix_;
};

bool lists(const std::vector<int64_t>& steps, int64_t step) {
  return std::ranges::find(steps, step) != steps.end();
}

}  // namespace

void run_trajectory(const CaseContext& context) {
  const Settings& settings = context.golden.settings();
  const std::vector<int64_t> dense_snapshots = settings.has("dense_snapshots")
                                                   ? settings.integers("dense_snapshots")
                                                   : std::vector<int64_t>();
  Trajectory trajectory(context.workspace, context.golden, context.variant);
  const Curves curves = trajectory.run([&](int64_t steps_done) {
    const Snapshot snapshot(context, trajectory.model(), steps_done);
    snapshot.check_names();
    snapshot.check_parameters(lists(dense_snapshots, steps_done));
    snapshot.check_tables(steps_done == trajectory.batches().steps());
  });

  const int64_t steps = trajectory.batches().steps();
  const int64_t labels = trajectory.batches().samples() * trajectory.batches().candidates() *
                         static_cast<int64_t>(trajectory.model().config().tasks.size());
  Checker& checker = context.checker;
  checker.check("loss", "loss", curves.loss, {steps});
  if (trajectory.ranks() > 1 || context.golden.has("rank_loss")) {
    checker.check("loss", "rank_loss", curves.rank_loss, {steps, trajectory.ranks()});
  }
  checker.check("grad_norm", "grad_norm", curves.gradient_norm, {steps});
  checker.check("logits", "logits", curves.logits, {steps, labels});
  checker.check("lr", "lr_dense", curves.lr_dense, {steps}, Level::kDoubleSum);
  checker.check("lr", "lr_sparse", curves.lr_sparse, {steps}, Level::kDoubleSum);
}

void run_trajectory_parameters(const CaseContext& context) {
  const Settings& settings = context.golden.settings();
  const std::string main_name = settings.text("main_file");
  if (std::filesystem::path(main_name).has_parent_path()) {
    fail(ErrorCode::kCorrupt, fmt::format("main_file `{}` must lie in the same folder", main_name));
  }
  const CaseFile main_file((std::filesystem::path(context.folder) / main_name).string());
  const Case main_case = main_file.open(context.golden.name());
  if (main_case.settings().integer("world_size", 1) != settings.integer("world_size", 1)) {
    fail(ErrorCode::kCorrupt, "world_size differs from that of the case in main_file");
  }
  const std::vector<int64_t> wanted = settings.integers("steps");
  Trajectory trajectory(context.workspace, main_case, context.variant);
  trajectory.run([&](int64_t steps_done) {
    if (!lists(wanted, steps_done)) return;
    const Snapshot snapshot(context, trajectory.model(), steps_done);
    snapshot.check_names();
    snapshot.check_parameters(/*required=*/true);
  });
  for (const int64_t step : wanted) {
    if (step < 1 || step > trajectory.batches().steps()) {
      context.checker.fail(fmt::format("step {} is listed, but the case has {} steps", step,
                                       trajectory.batches().steps()));
    }
  }
}

}  // namespace segue::golden
