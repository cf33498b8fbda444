#include "train/run/terminal_log.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>

#include <fmt/format.h>

#include "base/log.h"
#include "base/parallel.h"
#include "base/progress.h"
#include "ops/gemm.h"
#include "train/step/batch_pipeline.h"

namespace segue::train {
namespace {

std::string entropy_text(const Evaluation& evaluation) {
  if (const std::optional<double> value = evaluation.telling_entropy()) {
    return fmt::format("{:.4f}", *value);
  }
  return std::ranges::any_of(evaluation.tasks, &TaskQuality::binary) ? kOneClass : "n/a";
}

/// The AUC of all tasks together, if there is one.
std::string held_out_auc(const Evaluation& evaluation) {
  return evaluation.one_class() ? kOneClass : auc_text(evaluation.auc(), evaluation.auc_error);
}

/// One sentence on what the model is worth beside what a table of counts would do.
void log_comparison(const Comparison& c) {
  base::log_info(
      fmt::format("held-out AUC is {} the best simple rule, {} with {:.4f}: by {:.4f}{}{}",
                  c.above() ? "above" : "below", c.best_rule().name, c.best_rule().auc,
                  std::abs(c.difference), c.error ? fmt::format(" ± {:.4f}", c.margin()) : "",
                  c.significant() ? "" : ", which is too little to tell on so few samples"));
}

}  // namespace

void log_start(const RunConfig& config, Trainer& trainer, const RunFolder& folder,
               const CardSensor* card) {
  int64_t rows = 0, narrowest = sparse::kMostColumns, widest = 0;
  for (const sparse::TableConfig& t : config.sparse.tables) {
    rows += config.sparse.rows_of(t);
    narrowest = std::min(narrowest, config.sparse.dim_of(t));
    widest = std::max(widest, config.sparse.dim_of(t));
  }
  base::log_info(fmt::format("run folder {}", folder.path()));
  base::log_info(
      fmt::format("model: {}; {} dense parameters", trainer.model().summary(),
                  base::format_count(static_cast<double>(trainer.model().parameters().count()))));
  base::log_info(fmt::format(
      "tables: {} with {} rows of {}, {} with optimizer state", config.sparse.tables.size(),
      base::format_count(static_cast<double>(rows)),
      narrowest == widest ? fmt::format("{}", widest) : fmt::format("{} to {}", narrowest, widest),
      base::format_bytes(static_cast<double>(trainer.tables().bytes()))));
  for (size_t t = 0; t < config.sparse.tables.size(); ++t) {
    const sparse::TablePlacement& p = trainer.tables().plan().tables[t];
    if (p.tier == sparse::Tier::kDevice) continue;
    base::log_info(fmt::format("table {}: {}", config.sparse.tables[t].name, p.reason));
  }
  const int ranks = trainer.ranks().size();
  const Device device = trainer.device();
  base::log_info(fmt::format("{}device {}, {} threads, gemm {}",
                             ranks > 1 ? fmt::format("{} ranks, each: ", ranks) : "",
                             segue::describe(device), base::num_threads(),
                             device.is_cuda() ? ops::gemm_gpu_backend() : ops::gemm_backend()));
  const RunPlan& plan = trainer.plan();
  base::log_info(fmt::format(
      "micro-batches of at most {} tokens ({}), {}batches prepared {}", plan.micro_batch_tokens,
      plan.micro_batch_why.empty() ? "as the config says" : plan.micro_batch_why,
      config.data.store.empty() ? ""
                                : fmt::format("{} loader threads, ", config.data.loader.workers()),
      BatchPipeline::runs_ahead(config.parallel.pipeline, device) ? "ahead, in the background"
                                                                  : "when they are needed"));
  const std::string kernel = trainer.model().attention_kernel(device, config.train.precision);
  if (!kernel.empty()) base::log_info("attention: " + kernel);
  if (card == nullptr) return;
  for (const CardWarning& w : card_warnings(card->state(), /*under_load=*/false)) {
    base::log_warning(w.text);
  }
}

void log_evaluation(const Evaluation& evaluation, int64_t step, double seconds) {
  if (evaluation.samples == 0) {
    base::log_warning(fmt::format(
        "evaluation after step {}: no sample is held out, or no batch of them is full; see "
        "data.stream.eval_window, eval_windows and incomplete",
        step));
    return;
  }
  base::log_info(fmt::format("evaluation after step {}: AUC {}, NE {} over {} samples in {:.1f} s",
                             step, held_out_auc(evaluation), entropy_text(evaluation),
                             base::format_count(static_cast<double>(evaluation.samples)), seconds));
}

void log_end(const TrainSummary& s, bool has_loss) {
  std::string quality;  // only what this process has measured
  if (has_loss) quality = fmt::format(" loss {:.4f} -> {:.4f},", s.first_loss, s.last_loss);
  if (s.held_out) quality += " held-out AUC " + held_out_auc(*s.held_out);
  if (s.held_out && s.oracle_auc) quality += fmt::format(" (oracle {:.4f})", *s.oracle_auc);
  if (s.nothing_held_out) quality += " no samples held out";
  if (s.held_out || s.nothing_held_out) quality += ",";
  base::log_info(fmt::format("saving kept training waiting for {:.2f} s, {:.2f} % of {:.1f} s",
                             s.checkpoint_stall_seconds,
                             100 * s.checkpoint_stall_seconds / s.seconds, s.seconds));
  if (s.finished && s.steps == 0) {
    base::log_warning(
        "nothing was trained: no window has a batch to train on; lower data.batch_size or set "
        "data.stream.incomplete = \"train\", and see data.stream for which samples are taken");
  }
  if (s.held_out && s.held_out->comparison) log_comparison(*s.held_out->comparison);
  base::log_info(fmt::format("{}: {} steps,{} {} samples/s, {:.1f} model GFLOP/s",
                             s.finished ? "done" : "so far", s.steps, quality,
                             base::format_count(s.samples_per_s), s.model_flops_per_s / 1e9));
}

}  // namespace segue::train
