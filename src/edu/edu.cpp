#include "edu/edu.h"

#include <algorithm>
#include <ctime>
#include <optional>

#include <fmt/format.h>

#include "base/error.h"
#include "base/file.h"
#include "base/parallel.h"
#include "base/progress.h"
#include "base/time.h"
#include "bench/bench.h"
#include "edu/experiment.h"
#include "edu/page.h"
#include "edu/registry.h"
#include "edu/sidecar.h"
#include "edu/training.h"

namespace segue::edu {
namespace {

constexpr int64_t kInferenceBatch = 4096;

/// What a workload was found to do.
struct Outcome {
  PageSection section;
  TrainResult trained;
  double inference = 0;  // samples per second, where it was measured
  SidecarFacts facts;
  std::string sidecar;  // path, where it was written
};

/// Lines that are said and kept.
class Story {
 public:
  Story(Sink sink, std::string title) : sink_(std::move(sink)) {
    section_.title = std::move(title);
    sink_("\n" + section_.title);
  }
  void tell(const std::string& text) {
    sink_("  " + text);
    section_.paragraphs.push_back(text);
  }
  PageSection section() const { return section_; }

 private:
  Sink sink_;
  PageSection section_;
};

std::string size_text(double bytes) { return base::format_bytes(bytes); }

void tell_training(Story& story, const TrainResult& t) {
  story.tell(fmt::format(
      "Trained {} epochs, {} steps, in {:.2f} s ({:.2f} s of CPU time): loss {:.3f} to {:.3f}, "
      "validation accuracy {:.4f}, AUC {:.4f}. Always saying the more frequent class is right in "
      "{:.4f}{}",
      t.epochs, t.steps, t.seconds, t.cpu_seconds, t.first_loss, t.last_loss, t.accuracy, t.auc,
      t.majority,
      t.bayes > 0
          ? fmt::format("; who knows the true probabilities in {:.4f}: {:.1f} % of the way is done",
                        t.bayes, 100 * t.way())
          : ""));
}

void tell_regime(Story& story, const SidecarFacts& f) {
  const Roofline r = f.roofline();
  const double set = 4.0 * static_cast<double>(f.distinct_per_epoch * f.shape.width);
  const auto llc = static_cast<double>(std::max(f.machine.llc_bytes, f.ceilings.knee_bytes));
  const std::string where = working_set_axis(set, llc);
  story.tell(fmt::format("An epoch touches {} distinct rows, {}; the last-level cache has {}: {}{}",
                         f.distinct_per_epoch, size_text(set), size_text(llc), where,
                         where != "dram_bound" && f.shape.hashed()
                             ? ". The table is larger than the cache, but what is used of it is "
                               "not; wider rows or more keys would change that"
                             : ""));
  story.tell(fmt::format(
      "Intensity is {}, use of the machine is {}: {}", intensity_axis(r.intensity(), r.ridge()),
      dispatch_axis(r.utilization(), r.step_us(), r.dispatch_floor_us), rule_text(r)));
}

void tell_times(Story& story, const SidecarFacts& f) {
  const StepTimes& t = f.times;
  const Prediction p = predict_forward(f.shape, f.ceilings);
  const double gather = f.gather_rate();
  story.tell(fmt::format(
      "Three numbers predict the forward pass of {} samples: {} to gather, {:.1f} MFLOP, and the "
      "peaks {:.1f} GB/s and {:.1f} GFLOP/s. From memory that would be {:.3f} ms of gather and "
      "{:.3f} ms of products",
      f.shape.batch, size_text(f.shape.gathered_bytes()),
      static_cast<double>(f.shape.batch) * f.shape.forward_flops() / 1e6,
      f.ceilings.gather_bytes / 1e9, f.ceilings.flops / 1e9, 1e3 * p.gather, 1e3 * p.mlp));
  story.tell(fmt::format(
      "Measured: {:.3f} ms of hash and gather, {:.3f} ms of everything else. The embedding takes "
      "{:.2f} of the forward pass and {:.2f} of the whole step of {:.3f} ms",
      1e3 * embedding_forward(t.median), 1e3 * (t.forward() - embedding_forward(t.median)),
      t.forward_share(), t.step_share(), 1e3 * t.step()));
  story.tell(fmt::format(
      "The gather runs at {:.2f} GB/s: {:.2f} of the random-gather peak, {:.2f} of STREAM. "
      "Counting each distinct row once it is {:.2f} GB/s",
      gather / 1e9, gather / f.ceilings.gather_bytes, gather / f.ceilings.stream_bytes,
      4 * f.distinct_per_step * static_cast<double>(f.shape.width) / t.median[kGatherSpan] / 1e9));
  std::string spans = "Stages in ms (tenth and ninetieth percentile):";
  for (size_t s = 0; s < kSpanCount; ++s) {
    spans += fmt::format(" {} {:.3f} ({:.3f}-{:.3f})", kSpanNames[s], 1e3 * t.median[s],
                         1e3 * t.p10[s], 1e3 * t.p90[s]);
  }
  story.tell(spans);
}

std::string write_sidecar(const Lab& lab, const SidecarFacts& facts) {
  if (lab.options().out.empty()) return "";
  std::string path = lab.options().out + "/roofline/" + sidecar_name(facts);
  base::write_file(path, sidecar_text(facts));
  lab.say("  wrote " + path);
  return path;
}

SidecarFacts facts_of(Lab& lab, const std::string& name, const Lab::Prepared& p,
                      const StepTimes& times) {
  return {.workload = name,
          .utc = utc_for_names(),
          .machine = lab.machine(),
          .ceilings = lab.ceilings(),
          .shape = p.workload,
          .times = times,
          .lookups_per_step = p.pool->lookups_per_batch(),
          .distinct_per_step = p.pool->distinct_per_batch(),
          .distinct_per_epoch = p.pool->distinct(),
          .huge_pages = lab.memory().huge_pages(),
          .seed = lab.options().seed,
          .threads = base::num_threads()};
}

/// Trains, then times steps that change nothing but the clock.
Outcome run_workload(Lab& lab, const std::string& name, const Lab::Prepared& p,
                     const TableMemory& memory, const TrainOptions& training, bool trains,
                     int64_t train_batch) {
  Story story([&](const std::string& line) { lab.say(line); },
              fmt::format("{} ({} samples a batch)", p.workload.name, p.workload.batch));
  Outcome out;
  MicroDlrm model(p.workload, memory, lab.options().seed);
  if (trains) {
    Workload batches = p.workload;
    batches.batch = train_batch;
    out.trained = train(model, batches, lab.data(), training);
    tell_training(story, out.trained);
    if (!p.workload.hashed()) {
      batches.batch = std::min<int64_t>(kInferenceBatch, lab.data().validation.count());
      out.inference = inference_rate(model, batches, lab.data());
      story.tell(fmt::format(
          "Inference: {:.0f} samples/s in batches of {} (published for the original: 33,219)",
          out.inference, batches.batch));
    }
  } else {
    story.tell("Random keys have nothing to learn: no accuracy");
  }
  run_steps(model, *p.pool, 0, lab.warm_up());
  const int64_t last =
      lab.warm_up() + std::max(lab.timed_steps(), static_cast<int64_t>(p.pool->size()));
  std::vector<SpanSeconds> steps;
  bench::Timing gather;
  for (int64_t step = lab.warm_up(); step < last; ++step) {
    steps.push_back(run_steps(model, *p.pool, step, 1)[0]);
    // The peak of random rows of this width, as many as one bag of the step has looked up: in turns
    // with the gather that it is compared with.
    if (p.workload.hashed()) {
      gather.seconds.push_back(1 / measure_gather_pass(lab.exec(), lab.memory(), p.workload.width,
                                                       p.workload.lookups() / p.workload.features,
                                                       step));
    }
  }
  out.facts = facts_of(lab, name, p, times_of(steps));
  if (p.workload.hashed()) out.facts.ceilings.gather_bytes = 1 / gather.median();
  tell_times(story, out.facts);
  tell_regime(story, out.facts);
  out.section = story.section();
  out.sidecar = write_sidecar(lab, out.facts);
  return out;
}

Outcome run_micro(Lab& lab) {
  lab.measure_machine();
  const Lab::Prepared p = lab.prepare_micro(lab.options().quick ? 256 : 2048);
  const TableMemory memory(lab.device(), p.workload.table_bytes(), /*huge_pages=*/false);
  return run_workload(lab, "micro-dlrm-cpp-train", p, memory, {.seed = lab.options().seed}, true,
                      512);
}

Outcome run_dram(Lab& lab, const std::string& variant) {
  const Lab::Prepared p = lab.prepare_dram(variant);
  const std::string name = variant == "cross" ? "micro-dlrm-dram-cpp-train"
                                              : "micro-dlrm-dram-" + variant + "-cpp-train";
  return run_workload(lab, name, p, lab.memory(),
                      {.epochs = 1, .rows_rate = 0.01, .seed = lab.options().seed},
                      variant != "uniform", p.workload.batch);
}

struct Distributed {
  PageSection section;
  DistributedResult result;
};

Distributed run_distributed(Lab& lab) {
  const Options& o = lab.options();
  const int64_t batch = 256, steps = o.quick ? 10 : 100;
  if (o.ranks < 1 || batch % o.ranks != 0) {
    fail(ErrorCode::kInvalidArgument,
         fmt::format("--ranks {} does not divide a batch of {}; take 1, 2, 4, 8, ...", o.ranks,
                     batch));
  }
  Story story(
      [&](const std::string& line) { lab.say(line); },
      fmt::format("micro-dlrm-distributed ({} ranks of {} samples)", o.ranks, batch / o.ranks));
  story.tell(
      fmt::format("Gradients of a batch are sums over samples. {} ranks that add theirs must take "
                  "the step that one rank takes after {} micro-batches; only the order of "
                  "additions differs",
                  o.ranks, o.ranks));
  const DistributedResult r = compare_distributed(lab.data(), o.ranks, steps, batch, o.seed);
  story.tell(fmt::format(
      "After {} steps the {} parameters differ by at most {:.2g} (published for the original: "
      "0.0064), the losses are {:.6f} and {:.6f}. All-reduce of all gradients of a step: {:.3f} ms "
      "(published: 0.6 ms)",
      r.steps, r.parameters, r.largest_difference, r.loss_ranks, r.loss_one, r.all_reduce_ms));
  return {story.section(), r};
}

std::vector<Experiment> experiments_of(Lab& lab) {
  std::vector<Experiment> out;
  for (const ExperimentKind& kind : experiment_kinds()) {
    const auto& chosen = lab.options().experiments;
    if (!chosen.empty() && std::ranges::find(chosen, kind.id) == chosen.end()) continue;
    out.push_back(run_experiment(lab, kind.id));
    lab.say(out.back().text());
    if (lab.options().out.empty()) continue;
    base::make_folders(lab.options().out);
    base::write_file(lab.options().out + "/" + kind.id + ".csv", out.back().csv());
  }
  return out;
}

RegistryEntry entry_of(const Lab& lab, const Outcome& o) {
  return {.workload = o.facts.workload,
          .model = o.facts.shape.name,
          .dataset = lab.options().data.empty() ? "made up, of the shape of MovieLens-100K"
                                                : "MovieLens-100K",
          .source = lab.options().data.empty() ? "segue edu" : lab.options().data,
          .metric = "accuracy",
          .parameters = o.facts.shape.mlp_parameters() + o.facts.shape.embedding_parameters(),
          .target = o.trained.bayes > 0 && !o.facts.shape.hashed()
                        ? o.trained.majority + 0.95 * (o.trained.bayes - o.trained.majority)
                        : 0.65,
          .accuracy = o.trained.accuracy,
          .train_seconds = o.trained.seconds,
          .epochs = o.trained.epochs,
          .sidecar = o.sidecar};
}

/// What is asked of the workloads themselves.
void tell_goals(const Sink& sink, const Outcome& micro, const Outcome& dram,
                const std::optional<DistributedResult>& ranks) {
  const auto tell = [&](bool reached, const std::string& text) {
    sink(fmt::format("  {:<66} {}", text, reached ? "reached" : "MISSED"));
  };
  if (micro.trained.bayes > 0) {
    tell(micro.trained.way() >= 0.95 && micro.trained.seconds <= 1,
         fmt::format("95 % of the way to the truth in 1 s: {:.1f} % in {:.2f} s, {:.2f} of CPU",
                     100 * micro.trained.way(), micro.trained.seconds, micro.trained.cpu_seconds));
  }
  tell(micro.inference >= 5e5, fmt::format("500,000 samples/s: {:.0f}", micro.inference));
  const double share = dram.facts.gather_rate() / dram.facts.ceilings.gather_bytes;
  tell(share >= 0.8, fmt::format("gather at 0.8 of the random-gather peak: {:.2f}", share));
  if (ranks) {
    tell(ranks->largest_difference < 1e-5,
         fmt::format("ranks within 1e-5 of micro-batches: {:.2g}", ranks->largest_difference));
  }
}

}  // namespace

void run_micro_dlrm(const Options& options, const Sink& sink) {
  Lab lab(options, sink);
  run_micro(lab);
}

void run_micro_dlrm_dram(const Options& options, const Sink& sink) {
  Lab lab(options, sink);
  run_dram(lab, options.variant);
}

void run_micro_dlrm_distributed(const Options& options, const Sink& sink) {
  Lab lab(options, sink);
  run_distributed(lab);
}

void run_compare(const Options& options, const Sink& sink, const std::string& made) {
  for (const std::string& id : options.experiments) find_experiment(id);
  const base::Stopwatch watch;
  const std::clock_t cpu = std::clock();
  Lab lab(options, sink);
  const Outcome micro = run_micro(lab), dram = run_dram(lab, options.variant);
  std::vector<PageSection> sections = {micro.section, dram.section};
  std::optional<DistributedResult> ranks;
  if (lab.device().is_cpu()) {
    Distributed distributed = run_distributed(lab);
    sections.push_back(std::move(distributed.section));
    ranks = distributed.result;
  }
  const std::vector<Experiment> experiments = experiments_of(lab);
  sink("\nIn short");
  for (const Experiment& e : experiments) {
    sink(fmt::format("  {} {:<58} {}", e.id, e.title, to_string(e.verdict)));
  }
  if (!options.quick) tell_goals(sink, micro, dram, ranks);
  if (!options.out.empty()) {
    base::write_file(options.out + "/workloads.json",
                     registry_text({entry_of(lab, micro), entry_of(lab, dram)}));
    base::write_file(
        options.out + "/lesson.html",
        lesson_page("One model, two regimes", fmt::format("{} · {}", base::iso_time_now(), made),
                    sections, experiments));
    sink(
        fmt::format("  wrote {0}/lesson.html, {0}/workloads.json, sidecars in {0}/roofline, tables "
                    "as {0}/E*.csv",
                    options.out));
  }
  sink(fmt::format("  {:.0f} s in all, {:.0f} s of CPU time", watch.seconds(),
                   static_cast<double>(std::clock() - cpu) / CLOCKS_PER_SEC));
}

}  // namespace segue::edu
