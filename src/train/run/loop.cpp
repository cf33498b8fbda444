#include "train/run/loop.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "balance/exchange.h"
#include "base/error.h"
#include "base/log.h"
#include "base/parallel.h"
#include "base/stage.h"
#include "base/time.h"
#include "tensor/device_memory.h"
#include "train/checkpoint/checkpoint.h"
#include "train/plan/calibration.h"
#include "train/plan/memory_plan.h"
#include "train/run/flight_signal.h"
#include "train/run/follow.h"
#include "train/run/metrics_log.h"
#include "train/run/mlperf_log.h"
#include "train/run/run_folder.h"
#include "train/run/run_start.h"
#include "train/run/run_state.h"
#include "train/run/saver.h"
#include "train/run/schedule.h"
#include "train/run/step_tracker.h"
#include "train/run/stop_signals.h"
#include "train/run/store_record.h"
#include "train/run/terminal_log.h"
#include "train/run/tracer.h"
#include "train/run/watchdog.h"
#include "train/step/batch_pipeline.h"
#include "train/step/ranks.h"
#include "train/step/source.h"
#include "train/step/trainer.h"

namespace segue::train {
namespace {

/// One process's part of a run.
class Loop {
 public:
  Loop(const RunConfig& config, const std::string& run_dir, const LoopOptions& options,
       comm::World& world)
      : config_(config),
        config_toml_(base::to_toml(config)),
        options_(options),
        device_(take_device(config, world)),
        first_here_(world.local_rank() == 0),
        ranks_(world, config, device_),
        run_path_(ranks_.from_first(run_dir)),
        checkpoints_path_(run_path_ + "/checkpoints"),
        run_dir_(run_dir),
        eval_lifetime_(make_model(config)->tasks()),
        card_(options.card ? options.card : open_card(device_)),
        flight_(world.flight()) {
    flight_.set_place(run_path_ + "/flight", ranks_.rank(), ranks_.size(),
                      ranks_.from_first(std::to_string(base::unix_time_ms())));
  }

  TrainSummary run() {
    open();
    prepare();
    if (state_.finished && nothing_left() && (done() || !config_.data.follow)) {
      log_first(
          fmt::format("{}: this run is finished (step {}, {} samples); start over with "
                      "--overwrite, or raise train.steps with --allow-config-change",
                      checkpoints_path_, state_.step, state_.samples));
      saver_->wait_until_published();
    } else {
      state_.finished = false;
      train();
    }
    summarize();
    return std::move(summary_);
  }

 private:
  void open() {
    if (options_.own_process) {
      base::set_log_rank(ranks_.rank(), ranks_.size());
      base::set_num_threads(config_.train.threads > 0 ? static_cast<int>(config_.train.threads)
                                                      : fair_threads(ranks_));
    }
    note_idle_keys(config_, ranks_, device_);
    make_plan();  // what cannot be is said before anything is touched
    RunStart start = find_run_start(run_dir_, config_toml_, options_, ranks_);
    folder_ = std::move(start.folder);
    resuming_ = start.resuming;
    state_ = std::move(start.state);
    checkpoint_ = std::move(start.checkpoint);
    if (resuming_ && keep_choices(state_.config, ranks_, config_)) make_plan();
    config_.train.micro_batch_tokens = plan_.micro_batch_tokens;
    config_toml_ = base::to_toml(config_);
    if (!ranks_.alone() &&
        calibrate_balance(config_, ranks_, device_, resuming_ ? state_.config : "")) {
      config_toml_ = base::to_toml(config_);
    }
    summary_.resumed = resuming_;
  }

  void open_folder() {
    const base::WhenFull when_full = config_.checkpoint.when_full();
    if (folder_ && resuming_) folder_->resume(config_toml_, state_.metrics_bytes, when_full);
    if (folder_ && !resuming_) folder_->start(config_toml_, when_full);
  }

  /// Everything that can fail on a bad config or file comes before the folder is touched; only an
  /// MLPerf log has to begin before that.
  void prepare() {
    const base::Stage stage("prepare");
    if (config_.mlperf.log) open_folder();
    if (folder_) mlperf_ = std::make_unique<MlperfLog>(config_, *folder_, resuming_, state_.mllog);
    trainer_ = std::make_unique<Trainer>(config_, device_, ranks_, plan_);
    trainer_->set_wish([this] { return wish(); });
    trainer_->set_meanwhile([this] { write_pending_line(); });
    source_ = open_source(config_, ranks_, first_here_);
    if (ranks_.first() && !resuming_) {
      for (const std::string& doubt : source_->doubts()) base::log_warning(doubt);
    }
    record_store();
    balancer_ = make_balancer(config_, *trainer_);
    schedule_ = eval_schedule(config_.eval, source_->train_samples(), config_.data.batch_size);
    int64_t saved_step = -1;
    if (checkpoint_) {
      if (!state_.finished) require_place(state_.next, *source_);
      checkpoint_->read(arrays(), trainer_->stream());
      trainer_->restore(*checkpoint_, state_.step, state_.window_labels);
      saved_step = state_.step;
      log_first(fmt::format("resuming from {}: step {}, window {}, {} samples", checkpoint_->path(),
                            state_.step, state_.next.window, state_.samples));
    } else {
      state_.next = source_->first();
      if (!config_.train.init_from.empty()) {
        begin_with_weights(config_.train.init_from, config_.data.store, *trainer_);
      }
    }
    wall_before_ = state_.wall_seconds;
    if (!config_.mlperf.log) open_folder();
    checkpoint_.reset();
    state_.config = config_toml_;
    if (folder_) log_start(config_, *trainer_, *folder_, card_.get());
    saver_ =
        std::make_unique<Saver>(checkpoints_path_, config_, ranks_, options_.publish, saved_step);
    if (mlperf_) {
      mlperf_->open(source_->train_samples(), source_->eval_samples(), state_.samples,
                    ranks_.size());
    }
  }

  /// Of the pieces that are open; the first rank's checkpoints have it.
  void record_store() {
    if (ranks_.first()) state_.store = store_record(config_.data.store, source_->segments());
  }

  void make_plan() {
    plan_ = plan_for(config_, ranks_, device_);
    require_memory(plan_.memory, device_, available_bytes(device_));
  }

  std::vector<CheckpointArray> arrays() {
    std::vector<CheckpointArray> all = trainer_->arrays();
    std::ranges::move(eval_lifetime_.arrays("eval_lifetime"), std::back_inserter(all));
    return all;
  }

  bool done() const {
    return state_.target_reached || (config_.train.steps > 0 && state_.step >= config_.train.steps);
  }
  bool nothing_left() const { return done() || state_.next.window >= source_->end().window; }

  int64_t total_samples() const {
    const int64_t by_steps = config_.train.steps * config_.data.batch_size;
    const int64_t in_store = config_.data.follow ? 0 : source_->train_samples();
    if (by_steps == 0 || in_store == 0) return std::max(by_steps, in_store);
    return std::min(by_steps, in_store);
  }

  void train() {
    std::optional<StopSignals> signals;
    if (options_.own_process) signals.emplace();
    Watchdog watchdog(config_.train.watchdog_seconds, [this](const std::string& text) {
      base::log_warning(text);
      flight_.write(text.substr(0, text.find(';')));
    });
    watchdog_ = &watchdog;
    if (folder_) {
      log_ = std::make_unique<MetricsLog>(config_, trainer_->model(), device_, *folder_, state_,
                                          total_samples(), card_.get());
    }
    // Ranks that are threads share the recorder of their process.
    Tracer tracer(config_.trace, *trainer_, run_path_ + "/trace",
                  options_.own_process || ranks_.first());
    StepTracker tracker(config_.train.track_layers_every, *trainer_,
                        [this](const TrackedStep& tracked) {
                          if (log_) log_->layers_line(tracked, state_);
                        });
    base::take_stage_seconds();
    saver_->begin();
    if (log_ && evaluates() && source_->evaluates_the_same()) source_->prefetch_facts(-1);
    pipeline_ = std::make_unique<BatchPipeline>(*trainer_, sparse::Mode::kTraining,
                                                config_.parallel.pipeline, balancer_.get());
    eval_pipeline_ = std::make_unique<BatchPipeline>(*trainer_, sparse::Mode::kEvaluation,
                                                     config_.parallel.pipeline);
    start_batches();
    if (state_.eval_pending) evaluate();
    while (!trainer_->agreed().stop && (!nothing_left() || follow())) {
      tracer.before_step(state_.step + 1);
      tracker.before_step(state_.step + 1);
      BatchPipeline::Item* item = nullptr;
      {
        const base::Stage stage("load");
        const bool endless = config_.train.steps == 0;
        item = pipeline_->next(endless ? BatchPipeline::kNoEnd
                                       : config_.train.steps - state_.step - 1);
      }
      if (item == nullptr) {  // windows without a batch may follow the last one
        state_.next = source_->end();
        continue;
      }
      const bool trained = step(*item);
      if (trained) {
        tracker.after_step(state_.step);
        tracer.after_step(state_.step);
      }
      watchdog.alive();
      saver_->look();
      if (trained && trainer_->agreed().save) {
        wait_for_verification();
        save(trainer_->agreed().full);
      }
    }
    tracker.finish();
    tracer.finish();
    if (nothing_left() && !state_.eval_pending && !stopped_waiting_) {
      finish();
    } else {
      stop_early();
    }
    // Batches that nobody will train are finished all the same: other ranks may wait for this one.
    pipeline_->settle();
    watchdog_ = nullptr;
    eval_pipeline_.reset();
    pipeline_.reset();
  }

  void start_batches() {
    source_->start(state_.next);
    pipeline_->start([this](Batch& batch) { return source_->next(batch); });
    prefetch_evaluation();
  }

  /// True when a log that still grows has another window to train.
  bool follow() {
    if (done() || !config_.data.follow) return false;
    write_pending_line();
    pipeline_->settle();
    const Waited waited = wait_for_window(config_, state_.next.window, ranks_, *source_,
                                          [this] { watchdog_->alive(); });
    stopped_waiting_ = waited == Waited::kStop;
    if (waited == Waited::kMore) {
      if (ranks_.first()) require_store(state_, checkpoints_path_, config_.data.store, {});
      record_store();
      start_batches();
    }
    return waited == Waited::kMore;
  }

  /// False when the batch had to be left out.
  bool step(BatchPipeline::Item& item) {
    const data::BatchInfo& delivery = item.delivery;
    const int64_t window = delivery.position.window;
    saver_->before_step(delivery.position.batch + 1, state_.step + 1);
    try {
      stats_ = trainer_->step(*item.prepared);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kNumeric || config_.train.non_finite == NonFinite::kStop ||
          state_.skipped >= config_.train.max_skipped) {
        throw;
      }
      ++state_.skipped;
      state_.next = delivery.next();
      base::log_warning(fmt::format("batch {} of window {} is left out ({} so far): {}",
                                    delivery.position.batch, window, state_.skipped, error.what()));
      return false;
    }
    state_.step = stats_.step;
    state_.window = window;
    state_.samples += item.batch.global_samples;
    state_.next = delivery.next();
    update_wall_time();
    if (log_) log_->count(stats_, delivery, item.balance, state_);

    const int64_t ended =
        delivery.last_of_window() ? window - source_->first().window : int64_t{-1};
    const bool eval_due = schedule_.due(state_.step, ended);
    if (state_.step % config_.train.log_every == 0 || eval_due) line_pending_ = true;
    const bool later = BatchPipeline::runs_ahead(config_.parallel.pipeline, device_);
    if (!later || eval_due) write_pending_line();
    if (!eval_due) return true;
    state_.eval_pending = true;
    state_.eval_window = window;
    evaluate();
    return true;
  }

  /// What ranks agree on with every result: they stop together and save together. The clock of the
  /// first one counts.
  Ranks::StopSave wish() {
    const Saver::Wish wish = saver_->wish(source_->verified(0));
    return {.stop = StopSignals::requested(), .save = wish.save, .full = wish.full};
  }

  /// Of the newest step. Where batches are prepared ahead it is written while the next step runs.
  void write_pending_line() {
    if (!std::exchange(line_pending_, false) || !log_) return;
    const base::Stage stage("log");
    mlperf_->train_loss(state_.samples, stats_.loss, stats_.rates.dense);
    log_->train_line(stats_, *trainer_, state_);
  }

  bool evaluates() const {
    return config_.eval.at_end || schedule_.every_steps > 0 || schedule_.every_windows > 0;
  }

  /// Where the next evaluation will look; its first batches are filled while training goes on.
  void prefetch_evaluation() {
    if (evaluates()) {
      source_->prefetch_evaluation(state_.eval_pending ? state_.eval_window : state_.next.window);
    }
  }

  void wait_until(const std::function<bool(double seconds)>& ready) {
    ranks_.wait_until(ready, [this] {
      if (watchdog_ != nullptr) watchdog_->alive();
    });
  }

  /// Nothing that a run leaves behind may come from data that turns out to be damaged.
  void wait_for_verification() {
    const base::Stage stage("verify store");
    wait_until([this](double seconds) { return source_->verified(seconds); });
  }

  /// The first rank finds them out.
  void wait_for_facts() {
    const base::Stage stage("wait for facts");
    wait_until([this](double seconds) { return log_ == nullptr || source_->facts_ready(seconds); });
  }

  /// An evaluation that a signal cuts short leaves no trace and stays pending.
  void evaluate() {
    wait_for_verification();
    const base::Stopwatch watch;
    Evaluator evaluator(trainer_->model().tasks());
    {
      const base::Stage stage("evaluate");
      pipeline_->settle();
      source_->start_evaluation(state_.eval_window);
      if (mlperf_) mlperf_->evaluation_begins(state_.samples);
      eval_pipeline_->start([this](Batch& batch) { return source_->next_evaluation(batch); });
      while (const BatchPipeline::Item* item = eval_pipeline_->next()) {
        evaluator.add(trainer_->predict(*item->prepared));
        watchdog_->alive();
        if (trainer_->agreed().stop) return eval_pipeline_->settle();
      }
    }
    Evaluation evaluation = evaluator.result();
    for (size_t k = 0; k < evaluation.tasks.size(); ++k) {
      eval_lifetime_.add(k, evaluator.predictions(k), evaluator.labels(k));
    }
    const double seconds = watch.seconds();
    update_wall_time();
    state_.eval_pending = false;
    state_.last_eval_step = state_.step;
    state_.last_auc = evaluation.auc();
    const double target = config_.eval.target_auc;
    if (target > 0 && evaluation.samples > 0 && evaluation.auc() >= target) {
      state_.target_reached = true;
    }
    summary_.nothing_held_out = evaluation.samples == 0;
    if (evaluation.samples > 0) {
      // Samples that are always the same are looked at closely, and those of the last evaluation.
      const bool last = nothing_left() && !config_.data.follow;
      const bool closely = last || source_->evaluates_the_same();
      if (closely) wait_for_facts();
      if (log_) {
        const HeldOutFacts* facts = closely ? source_->facts() : nullptr;
        if (facts != nullptr) evaluator.add_facts(*facts, config_.eval.top_k, evaluation);
        summary_.oracle_auc = source_->oracle_auc();
        log_->eval_line(evaluation, eval_lifetime_.mean(), summary_.oracle_auc, seconds, *trainer_,
                        state_);
      }
      summary_.held_out = evaluation;
    }
    if (ranks_.first()) log_evaluation(evaluation, state_.step, seconds);
    if (mlperf_) mlperf_->evaluation_done(state_.samples, evaluation.auc(), !nothing_left());
    base::take_stage_seconds();  // its time is not a part of any step
    if (!nothing_left()) prefetch_evaluation();
  }

  /// A checkpoint counts on the logs up to its step: nobody would write them again. While they wait
  /// for a full disk there is none.
  Status settle_logs() {
    if (!folder_) return {};
    try {
      log_->drain();
      state_.mllog = mlperf_->state();
      return {};
    } catch (const Error& error) {
      return {error.code(), error.what()};
    }
  }

  void save(bool full) {
    write_pending_line();
    full = saver_->next_is_full(full);
    update_wall_time();
    const Status logs = settle_logs();
    if (folder_) state_.metrics_bytes = folder_->metrics_bytes();
    state_.window_labels = trainer_->window().labels_seen();
    CheckpointContents contents =
        trainer_->contents(full ? sparse::Extent::kAll : sparse::Extent::kChanges);
    std::ranges::move(eval_lifetime_.arrays("eval_lifetime"), std::back_inserter(contents.arrays));
    if (config_.checkpoint.full_every > 1) trainer_->tables().mark_saved();
    saver_->save(state_.step, std::move(contents), to_json(state_), trainer_->stream(), logs, full);
  }

  void save_and_wait() {
    wait_for_verification();
    saver_->settle();
    save(/*full=*/true);
    saver_->finish();
  }

  void finish() {
    wait_for_verification();
    if (state_.interval.steps > 0) line_pending_ = true;
    write_pending_line();
    if (config_.eval.at_end && state_.last_eval_step != state_.step) {
      state_.eval_pending = true;
      state_.eval_window = state_.window;
      evaluate();
      if (state_.eval_pending) return stop_early();
    }
    state_.finished = true;
    update_wall_time();
    if (log_) {
      log_->finish();
      log_->end_line(state_, state_.target_reached ? "target reached" : "finished");
      mlperf_->stop(state_.samples, state_.target_reached);
    }
    save_and_wait();
  }

  void stop_early() {
    log_first(fmt::format("asked to stop: saving step {}", state_.step));
    save_and_wait();
    log_first("stopped; the same command resumes from here");
  }

  /// What is true of all ranks is said once.
  void log_first(const std::string& text) const {
    if (ranks_.first()) base::log_info(text);
  }

  void update_wall_time() { state_.wall_seconds = wall_before_ + wall_.seconds(); }

  void summarize() {
    summary_.steps = state_.step;
    summary_.samples = state_.samples;
    summary_.finished = state_.finished;
    summary_.target_reached = state_.target_reached;
    summary_.checkpoint_stall_seconds = saver_->stalled_seconds();
    summary_.seconds = wall_.seconds();
    if (!log_) return;
    log_->summarize(summary_, state_);
    log_end(summary_, log_->has_line());
  }

  RunConfig config_;
  std::string config_toml_;
  const LoopOptions options_;
  const Device device_;
  const bool first_here_;  // among the ranks of a machine
  Ranks ranks_;
  const std::string run_path_;  // as the first rank has it
  const std::string checkpoints_path_, run_dir_;
  std::unique_ptr<RunFolder> folder_;  // of the first rank, as are the two logs
  std::unique_ptr<balance::Balancer> balancer_;
  bool resuming_ = false;
  RunState state_;
  std::unique_ptr<Checkpoint> checkpoint_;  // until it has been read
  RunPlan plan_;
  std::unique_ptr<Trainer> trainer_;
  std::unique_ptr<Source> source_;
  LifetimeAuc eval_lifetime_;
  std::shared_ptr<const CardSensor> card_;  // may be null
  comm::FlightRecorder& flight_;
  EvalSchedule schedule_;
  std::unique_ptr<MlperfLog> mlperf_;
  std::unique_ptr<MetricsLog> log_;
  std::unique_ptr<Saver> saver_;
  std::unique_ptr<BatchPipeline> pipeline_, eval_pipeline_;  // while train() runs
  Watchdog* watchdog_ = nullptr;                             // likewise
  base::Stopwatch wall_;
  double wall_before_ = 0;
  bool stopped_waiting_ = false;
  bool line_pending_ = false;  // of metrics, of the newest step
  StepStats stats_;            // of the newest step
  TrainSummary summary_;
};

}  // namespace

TrainSummary train_loop(const RunConfig& config, const std::string& run_dir,
                        const LoopOptions& options) {
  const std::unique_ptr<comm::World> world = comm::join_world(config.comm);
  return train_loop(config, run_dir, options, *world);
}

TrainSummary train_loop(const RunConfig& config, const std::string& run_dir,
                        const LoopOptions& options, comm::World& world) {
  std::optional<FlightSignal> signal;
  if (options.own_process) signal.emplace(world.flight());
  std::optional<Loop> loop;
  try {
    loop.emplace(config, run_dir, options, world);
    return loop->run();
  } catch (const std::exception& error) {
    // Before this rank's groups close and its threads end: the others shall know why, and what
    // goes on in the background must not wait for them.
    const auto* coded = dynamic_cast<const Error*>(&error);
    world.give_up(error.what(), coded != nullptr && coded->code() == ErrorCode::kPeer);
    throw;
  }
}

}  // namespace segue::train
