#include "train/train_config.h"

#include <algorithm>
#include <limits>

#include <fmt/format.h>

#include "base/config_checks.h"

namespace segue::train {
namespace {

using base::fail_config;
using base::require_at_least;
using base::require_between;
using base::require_size;

constexpr double kMostGib = 1 << 20;
constexpr int64_t kMostCount = std::numeric_limits<int32_t>::max();

}  // namespace

void describe(base::ConfigVisitor& v, DataConfig& c) {
  v.field("store", c.store, "event store made by `segue prep` or `segue synth`; empty: random");
  v.field("stage_to", c.stage_to,
          "folder on a disk of every machine: the store is copied there and read from it; empty: "
          "read where it is");
  v.field("index", c.index,
          "folder for what is derived from a read-only store; empty: in the store");
  v.choice("verify", c.verify, {"auto", "always", "never"},
           "compare checksums of what is read from a store: once per store and machine, at every "
           "start, or not at all");
  v.field("follow", c.follow,
          "the log still grows: at the end of the store wait for `segue prep --append`");
  v.field("follow_seconds", c.follow_seconds,
          "end the run when nothing has been appended for so long; 0: never");
  v.field("batch_size", c.batch_size, "samples of one step, over all ranks");
  v.section("gather", c.gather, "histories of samples from a store");
  v.section("stream", c.stream, "order of samples from a store, and what is held out");
  v.section("loader", c.loader, "threads that fill batches from a store");
  v.section("random", c.random, "random samples whose labels depend on their ids");
  v.section("interactions", c.interactions,
            "a made-up log of users and items whose truth is known; samples = 0: none");
}

void describe(base::ConfigVisitor& v, TrainConfig& c) {
  v.field("steps", c.steps, "optimizer steps at most; 0: to the end of the store");
  v.field("epochs", c.epochs, "how often the training windows of a store are gone through");
  v.field("init_from", c.init_from,
          "a run or checkpoint whose weights and tables a new run begins with; empty: none");
  v.field("seed", c.seed, "of initial values, dropout and random data");
  v.field(
      "threads", c.threads,
      "CPU threads of a rank; 0: OMP_NUM_THREADS, else all cores, shared with the ranks beside it");
  v.field("device", c.device, "auto, cpu, cuda or cuda:N");
  v.choice("precision", c.precision, {"f32", "f64", "bf16"},
           "of activations; f64 is for checks, bf16 on the CPU rounds where a GPU would");
  v.field("micro_batch_tokens", c.micro_batch_tokens,
          "tokens that are in memory at a time, which changes results by rounding; 0: of a GPU as "
          "many as fit, else 65536, and the config of the run says how many");
  v.field("distinct_share", c.distinct_share,
          "largest share of different ids among those of a batch that memory is planned for");
  v.field("arena_gib", c.arena_gib,
          "memory for activations; 0: what the largest batch needs, see `segue plan`");
  v.field("log_every", c.log_every, "steps between two lines of metrics.jsonl");
  v.field("metric_window", c.metric_window, "labels that the window metrics of training look back");
  v.choice(
      "non_finite", c.non_finite, {"stop", "skip"},
      "when a loss or gradient is not finite: end the run, or leave the batch out and count it");
  v.field("max_skipped", c.max_skipped, "batches left out in one run before it stops after all");
  v.field("warn_z_score", c.warn_z_score,
          "warn when loss or gradient norm is this many deviations off its recent mean; 0: never");
  v.field("watchdog_seconds", c.watchdog_seconds,
          "say where each thread is when no step ends for so long; 0: never");
  v.field("peak_tflops", c.peak_tflops,
          "of the device, for utilisation; 0: what is known of it, if anything");
  v.field("track_layers_every", c.track_layers_every,
          "steps between two whose layers are timed, on the device and without waiting for it; 0: "
          "never");
}

void describe(base::ConfigVisitor& v, EvalConfig& c) {
  v.field("every_windows", c.every_windows, "windows between two evaluations; 0: none by windows");
  v.field("every_share", c.every_share,
          "evaluate each time this share of the training samples has passed; 0: no");
  v.field("every_steps", c.every_steps, "evaluate after so many steps; 0: no");
  v.choice("rounding", c.rounding, {"nearest", "up"},
           "of every_share to steps: the compliance rule's, or the reference's");
  v.choice("first", c.first, {"share", "mlperf"},
           "where evaluation begins: after skip_share, or where the compliance rule says");
  v.field("skip_share", c.skip_share, "scheduled evaluations before this share are left out");
  v.field("at_end", c.at_end, "evaluate when training ends");
  v.field("max_batches", c.max_batches, "batches of one evaluation; 0: all (random samples: 20)");
  v.field("target_auc", c.target_auc, "stop when an evaluation reaches this AUC; 0: never");
  v.choice(
      "details", c.details, {"auto", "on", "off"},
      "simple rules beside the model, AUC by user, history and item, calibration; auto: logs of "
      "up to 50 M events without mlperf.log");
  v.field("top_k", c.top_k, "places of a user's list that NDCG and recall look at");
}

void describe(base::ConfigVisitor& v, ParallelConfig& c) {
  v.field("tensor_parallel", c.tensor_parallel,
          "ranks that share the attention heads of their samples; 1: none do");
  v.choice(
      "pipeline", c.pipeline, {"auto", "on", "off"},
      "prepare the next batch (loading, balancing, ids) while one is trained; auto: with a GPU");
  v.field("device_gib", c.device_gib,
          "device memory of one rank that tables are planned into; 0: what a GPU has");
  v.field("host_gib", c.host_gib,
          "host memory of one rank that tables without room on its device may take; 0: what is "
          "available");
}

void ParallelConfig::validate() const {
  require_at_least("parallel.tensor_parallel", tensor_parallel, 1);
  require_between("parallel.device_gib", device_gib, 0, kMostGib);
  require_between("parallel.host_gib", host_gib, 0, kMostGib);
}

void describe(base::ConfigVisitor& v, MlperfConfig& c) {
  v.field("log", c.log, "write mlperf.log into the run folder");
  v.field("benchmark", c.benchmark, "submission_benchmark");
  v.field("division", c.division, "closed or open");
  v.field("org", c.org, "submission_org");
  v.field("platform", c.platform, "submission_platform");
  v.field("status", c.status, "onprem, cloud or research");
}

void describe(base::ConfigVisitor& v, PublishSettings& c) {
  v.field("folder", c.folder, "every checkpoint becomes a version for serving there; empty: none");
  v.choice("format", c.format, {"safetensors", "parquet"}, "of the files of tables");
  v.choice("dtype", c.dtype, {"f32", "bf16", "int8"}, "of rows; int8 has a scale per row");
}

void describe(base::ConfigVisitor& v, TraceConfig& c) {
  v.field("steps", c.steps, "steps at which a trace begins; or else `repeat`");
  v.field("wait", c.wait, "with `repeat`: steps without recording before each trace");
  v.field("warm_up", c.warm_up, "steps before a trace in which recording is on, and dropped");
  v.field("active", c.active, "steps in a trace");
  v.field(
      "repeat", c.repeat,
      "traces one after the other, each after `wait` and `warm_up` steps; -1: to the end of the "
      "run; 0: only those of `steps`");
}

data::StreamConfig DataConfig::stream_config() const {
  data::StreamConfig config = stream;
  config.batch_size = batch_size;
  config.growing = follow;
  return config;
}

data::RandomDataConfig DataConfig::random_config() const {
  data::RandomDataConfig config = random;
  config.batch_size = batch_size;
  return config;
}

void DataConfig::validate() const {
  require_size("data.batch_size", batch_size, int64_t{1} << 24);
  require_at_least("data.gather.history_length", gather.history_length, 0);
  if (gather.history_length > 0) gather.validate();
  stream_config().validate();
  loader.validate();
  random_config().validate();
  require_between("data.follow_seconds", follow_seconds, 0, 1e9);
  if (follow && (store.empty() || stream.eval != data::EvalMode::kNextWindow ||
                 stream.eval_windows < 1 || stream.train_windows != -1)) {
    fail_config(
        "data.follow = true needs a data.store without end: data.stream.eval = \"next_window\" "
        "with "
        "eval_windows of at least 1, and train_windows = -1");
  }
  if (follow && !stage_to.empty()) {
    fail_config(
        "data.stage_to copies a store as it is, data.follow waits for it to grow: leave one out");
  }
  if (!has_interactions()) return;
  interactions.validate();
  if (!store.empty()) {
    fail_config("data.store and data.interactions.samples are both set; samples come from one");
  }
}

void TrainConfig::validate() const {
  if (!(distinct_share > 0 && distinct_share <= 1)) {
    fail_config(fmt::format("train.distinct_share must be in (0, 1], not {}", distinct_share));
  }
  require_at_least("train.steps", steps, 0);
  require_size("train.epochs", epochs, kMostCount);
  require_at_least("train.seed", seed, 0);
  constexpr double kMostThreads = 1024;
  require_between("train.threads", static_cast<double>(threads), 0, kMostThreads);
  require_at_least("train.micro_batch_tokens", micro_batch_tokens, 0);
  require_at_least("train.log_every", log_every, 1);
  require_size("train.metric_window", metric_window, kMostCount);
  require_at_least("train.max_skipped", max_skipped, 0);
  require_between("train.warn_z_score", warn_z_score, 0, 1e9);
  require_between("train.watchdog_seconds", watchdog_seconds, 0, 1e9);
  require_between("train.peak_tflops", peak_tflops, 0, 1e9);
  require_at_least("train.track_layers_every", track_layers_every, 0);
  constexpr double kLeastGib = 0x1p-20;  // 1 KiB
  if (arena_gib != 0) require_between("train.arena_gib", arena_gib, kLeastGib, kMostGib);
}

void EvalConfig::validate() const {
  require_at_least("eval.every_windows", every_windows, 0);
  require_at_least("eval.every_steps", every_steps, 0);
  require_at_least("eval.max_batches", max_batches, 0);
  require_at_least("eval.top_k", top_k, 1);
  require_between("eval.every_share", every_share, 0, 1);
  require_between("eval.skip_share", skip_share, 0, 1);
  require_between("eval.target_auc", target_auc, 0, 1);
  if ((every_windows > 0) + (every_steps > 0) + (every_share > 0) > 1) {
    fail_config(
        "only one of eval.every_windows, eval.every_share and eval.every_steps may be above 0");
  }
}

void MlperfConfig::validate() const {
  if (!log) return;
  if (division != "closed" && division != "open") {
    fail_config(fmt::format("mlperf.division must be closed or open, not `{}`", division));
  }
  for (const auto& [key, value] : {std::pair("benchmark", &benchmark), std::pair("org", &org),
                                   std::pair("platform", &platform)}) {
    if (value->empty()) fail_config(fmt::format("mlperf.{} must not be empty", key));
  }
}

void TraceConfig::validate() const {
  for (const int64_t step : steps) require_at_least("trace.steps", step, 1);
  require_between("trace.wait", static_cast<double>(wait), 0, 1e9);
  require_between("trace.warm_up", static_cast<double>(warm_up), 0, 1e4);
  require_between("trace.active", static_cast<double>(active), 1, 1e6);
  require_at_least("trace.repeat", repeat, -1);
  if (!steps.empty() && repeat != 0) {
    fail_config("trace.steps and trace.repeat are both set; traces begin by one of them");
  }
  if (wait > 0 && repeat == 0) {
    fail_config("trace.wait does nothing without trace.repeat; set that, or list trace.steps");
  }
}

}  // namespace segue::train
