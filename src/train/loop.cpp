#include "train/loop.h"

#include <algorithm>
#include <vector>

#include <fmt/format.h>
#include <unistd.h>

#include "base/error.h"
#include "base/log.h"
#include "base/parallel.h"
#include "base/progress.h"
#include "base/time.h"
#include "ops/gemm.h"
#include "ops/optimizer.h"
#include "train/oracle.h"
#include "train/random_schema.h"
#include "train/run_folder.h"

namespace segue::train {
namespace {

constexpr double kMib = 1 << 20, kGib = 1 << 30;

std::string format_bytes(double bytes) {
  return bytes < kGib ? fmt::format("{:.1f} MiB", bytes / kMib)
                      : fmt::format("{:.1f} GiB", bytes / kGib);
}

double per_second(double amount, double seconds) { return seconds > 0 ? amount / seconds : 0; }

/// Sums over some steps.
struct Totals {
  int64_t steps = 0, samples = 0, tokens = 0;
  double loss = 0, flops = 0, seconds = 0;

  void add(const StepStats& s) {
    ++steps;
    samples += s.samples;
    tokens += s.tokens;
    loss += s.loss;
    flops += s.model_flops;
    seconds += s.seconds;
  }
  double mean_loss() const { return loss / static_cast<double>(std::max<int64_t>(1, steps)); }
  double samples_per_s() const { return per_second(static_cast<double>(samples), seconds); }
  double tokens_per_s() const { return per_second(static_cast<double>(tokens), seconds); }
};

/// Tables that cannot fit would make the system kill the process half-way through filling them.
void require_memory(const RunConfig& c, Device device) {
  if (device.is_cuda()) return;
  const double value_bytes = static_cast<double>(size_of(parameter_dtype(c.train.precision)));
  double bytes = 0;
  for (const sparse::TableConfig& t : c.sparse.tables) {
    const int64_t width = c.sparse.dim + ops::row_state_size(c.sparse.optimizer, c.sparse.dim);
    bytes += static_cast<double>(t.rows) * static_cast<double>(width) * value_bytes;
  }
  const double installed =
      static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
  if (bytes <= installed) return;
  fail(ErrorCode::kOutOfMemory,
       fmt::format("the embedding tables need {}, but this machine has {}; lower `rows` in "
                   "sparse.tables or sparse.dim, or use a larger machine",
                   format_bytes(bytes), format_bytes(installed)));
}

void log_start(const RunConfig& c, Trainer& trainer, const RunFolder& folder) {
  const model::ModelConfig& m = c.model;
  int64_t rows = 0;
  for (const sparse::TableConfig& t : c.sparse.tables) rows += t.rows;
  base::log_info(fmt::format("run folder {}", folder.path()));
  base::log_info(
      fmt::format("model: {} layers, {} heads, width {}, {} tokens at most; {} dense "
                  "parameters",
                  m.layers, m.heads, m.dim, m.max_seq_len,
                  base::format_count(static_cast<double>(trainer.ranker().parameters().count()))));
  base::log_info(fmt::format("tables: {} with {} rows of {}, {} with optimizer state",
                             c.sparse.tables.size(), base::format_count(static_cast<double>(rows)),
                             c.sparse.dim,
                             format_bytes(static_cast<double>(trainer.tables().bytes()))));
  base::log_info(fmt::format("device {}, {} threads, gemm {}", segue::describe(trainer.device()),
                             base::num_threads(), ops::gemm_backend()));
}

class Loop {
 public:
  Loop(const RunConfig& config, const std::string& run_dir, bool overwrite)
      : config_(config),
        folder_(run_dir, overwrite),
        trainer_(config, choose_device(config.train.device)),
        data_(random_schema(config.model, config.sparse), config.data,
              static_cast<uint64_t>(config.train.seed)) {}

  TrainSummary run() {
    folder_.start(config_);
    log_start(config_, trainer_, folder_);
    train();
    std::string quality;
    if (config_.train.eval_batches > 0) {
      evaluate();
      quality = fmt::format(" held-out AUC {:.4f} (oracle {:.4f}),", summary_.held_out.auc(),
                            summary_.oracle_auc);
    }
    base::log_info(
        fmt::format("done: {} steps, loss {:.4f} -> {:.4f},{} {} samples/s, {:.1f} model GFLOP/s",
                    summary_.steps, summary_.first_loss, summary_.last_loss, quality,
                    base::format_count(summary_.samples_per_s), summary_.model_flops_per_s / 1e9));
    return std::move(summary_);
  }

 private:
  void train() {
    const int64_t steps = config_.train.steps;
    base::Progress progress("train", steps, "steps");
    Batch batch;
    Totals all;
    for (int64_t step = 1; step <= steps; ++step) {
      data_.fill(step, batch);
      const StepStats stats = trainer_.step(batch);
      all.add(stats);
      window_.add(stats);
      if (step % config_.train.log_every == 0 || step == steps) log_window(stats);
      progress.update(step, fmt::format("loss {:.4f}  AUC {:.4f}  {} samples/s", shown_loss(stats),
                                        last_auc_, base::format_count(all.samples_per_s())));
    }
    progress.finish(fmt::format("loss {:.4f}  AUC {:.4f}", summary_.last_loss, last_auc_));
    summary_.steps = steps;
    summary_.samples_per_s = all.samples_per_s();
    summary_.tokens_per_s = all.tokens_per_s();
    summary_.model_flops_per_s = per_second(all.flops, all.seconds);
  }

  double shown_loss(const StepStats& stats) const {
    return has_window_ ? summary_.last_loss : stats.loss;
  }

  /// One line of metrics for the steps since the last one.
  void log_window(const StepStats& stats) {
    const std::vector<model::TaskConfig>& tasks = config_.model.tasks;
    base::JsonLine task_lines;
    double running_sum = 0, window_sum = 0;
    int64_t binary = 0;
    for (size_t k = 0; k < tasks.size(); ++k) {
      base::JsonLine task;
      task.add("loss", stats.task_losses[k]);
      if (tasks[k].kind == ops::TaskKind::kBinary) {
        const double running = trainer_.running_auc(k), window = trainer_.window_auc(k);
        task.add("auc", running).add("auc_window", window);
        running_sum += running;
        window_sum += window;
        ++binary;
      }
      task_lines.add(tasks[k].name, task);
    }
    const auto mean = [binary](double sum) {
      return binary > 0 ? sum / static_cast<double>(binary) : 0.5;
    };
    last_auc_ = mean(window_sum);

    base::JsonLine line;
    line.add("step", stats.step).add("loss", stats.loss).add("loss_window", window_.mean_loss());
    line.add("tasks", task_lines);
    line.add("auc", mean(running_sum)).add("auc_window", last_auc_);
    line.add("lr", stats.rates.dense).add("sparse_lr", stats.rates.sparse);
    line.add("grad_norm", stats.gradient_norm);
    line.add("samples", window_.samples).add("tokens", window_.tokens);
    line.add("samples_per_s", window_.samples_per_s());
    line.add("tokens_per_s", window_.tokens_per_s());
    line.add("model_gflops_per_s", per_second(window_.flops, window_.seconds) / 1e9);
    line.add("wall_s", wall_.seconds());
    folder_.append_metrics(line);

    if (!has_window_) summary_.first_loss = window_.mean_loss();
    summary_.last_loss = window_.mean_loss();
    has_window_ = true;
    window_ = {};
    trainer_.start_window();
  }

  void evaluate() {
    std::vector<Batch> batches(static_cast<size_t>(config_.train.eval_batches));
    for (size_t i = 0; i < batches.size(); ++i) {
      data_.fill(kHeldOutStep + static_cast<int64_t>(i), batches[i]);
    }
    const base::Stopwatch watch;
    summary_.held_out = trainer_.evaluate(batches);
    const double seconds = watch.seconds();
    summary_.oracle_auc = oracle_auc(data_, config_.model, batches);

    const Evaluation& e = summary_.held_out;
    base::JsonLine tasks;
    for (const TaskQuality& q : e.tasks) {
      base::JsonLine task;
      task.add("loss", q.loss);
      if (q.binary) {
        task.add("auc", q.auc).add("normalized_entropy", q.normalized_entropy);
        task.add("accuracy", q.accuracy).add("calibration", q.calibration);
      }
      tasks.add(q.name, task);
    }
    base::JsonLine line;
    line.add("event", "eval").add("step", trainer_.steps_done()).add("loss", e.loss);
    line.add("tasks", tasks).add("auc", e.auc());
    line.add("normalized_entropy", e.normalized_entropy()).add("oracle_auc", summary_.oracle_auc);
    line.add("samples", e.samples).add("labels", e.labels);
    line.add("samples_per_s", per_second(static_cast<double>(e.samples), seconds));
    line.add("wall_s", wall_.seconds());
    folder_.append_metrics(line);
  }

  const RunConfig& config_;
  RunFolder folder_;
  Trainer trainer_;
  data::RandomBatches data_;
  base::Stopwatch wall_;
  Totals window_;
  bool has_window_ = false;
  double last_auc_ = 0.5;
  TrainSummary summary_;
};

}  // namespace

TrainSummary train_loop(const RunConfig& config, const std::string& run_dir, bool overwrite) {
  base::set_num_threads(static_cast<int>(config.train.threads));
  require_memory(config, choose_device(config.train.device));
  return Loop(config, run_dir, overwrite).run();
}

}  // namespace segue::train
