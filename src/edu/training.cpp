#include "edu/training.h"

#include <algorithm>
#include <cmath>
#include <ctime>
#include <numbers>
#include <numeric>

#include "base/time.h"
#include "bench/bench.h"
#include "comm/world.h"
#include "ops/metrics.h"

namespace segue::edu {
namespace {

/// Predictions of all validation samples, as one batch.
std::vector<float> predictions_of(MicroDlrm& model, Workload workload, const Samples& samples) {
  workload.batch = samples.count();
  BatchPool pool(workload, model.exec().device);
  std::vector<int64_t> all(static_cast<size_t>(samples.count()));
  std::iota(all.begin(), all.end(), int64_t{0});
  pool.add(samples, all);
  std::vector<float> out(all.size());
  model.predict(pool[0], out);
  return out;
}

}  // namespace

TrainResult train(MicroDlrm& model, const Workload& workload, const Dataset& data,
                  const TrainOptions& options) {
  BatchPool pool(workload, model.exec().device);
  pool.add_epoch(data.train, options.seed);
  TrainResult r{.majority = data.majority(), .bayes = data.bayes(), .epochs = options.epochs};
  const auto batches = static_cast<int64_t>(pool.size());
  r.steps = options.epochs * batches;
  std::vector<size_t> order(pool.size());
  std::iota(order.begin(), order.end(), size_t{0});
  Draws draw(options.seed, 8);
  const base::Stopwatch watch;
  const std::clock_t cpu = std::clock();
  for (int64_t step = 0; step < r.steps; ++step) {
    const auto at = static_cast<size_t>(step % batches);
    if (at == 0) draw.shuffle(order);
    const double done = static_cast<double>(step) / static_cast<double>(r.steps);
    const double share = 0.1 + 0.9 * (1 + std::cos(std::numbers::pi * done)) / 2;
    const double loss = model.step(
        pool[order[at]], {.dense = share * options.dense_rate, .rows = share * options.rows_rate});
    if (step == 0) r.first_loss = loss;
    r.last_loss = loss;
  }
  r.seconds = watch.seconds();
  r.cpu_seconds = static_cast<double>(std::clock() - cpu) / CLOCKS_PER_SEC;
  const std::vector<float> p = predictions_of(model, workload, data.validation);
  ops::NormalizedEntropy metrics;
  metrics.add(p, data.validation.labels, {});
  r.accuracy = metrics.accuracy();
  r.auc = ops::exact_auc(p, data.validation.labels);
  return r;
}

double inference_rate(MicroDlrm& model, const Workload& workload, const Dataset& data,
                      double seconds) {
  BatchPool pool(workload, model.exec().device);
  pool.add_epoch(data.validation, 1);
  bench::Timing passes;
  std::vector<float> predictions(static_cast<size_t>(workload.batch));
  const base::Stopwatch all;
  do {
    const base::Stopwatch watch;
    for (size_t i = 0; i < pool.size(); ++i) model.predict(pool[i], predictions);
    passes.seconds.push_back(watch.seconds());
  } while (all.seconds() < seconds);
  return static_cast<double>(pool.size()) * static_cast<double>(workload.batch) / passes.median();
}

namespace {

/// One rank's model and its part of every batch.
struct Replica {
  Replica(const Dataset& data, const Workload& part, int64_t parts, int64_t first, int64_t count,
          int64_t batches, uint64_t seed)
      : memory(Device::cpu(), part.table_bytes(), /*huge_pages=*/false),
        model(part, memory, seed),
        pool(part, Device::cpu()),
        gradients(Device::cpu(), part.table_bytes(), Purpose::kScratch),
        rows(gradients.data(), DType::kF32, Device::cpu(), {part.rows, part.width}) {
    // Every replica draws the same batches and takes its parts of each.
    std::vector<int64_t> which(static_cast<size_t>(part.batch * parts));
    Draws draw(seed, 9);
    for (int64_t b = 0; b < batches; ++b) {
      for (int64_t& sample : which) sample = draw.below(data.train.count());
      for (int64_t p = first; p < first + count; ++p) {
        pool.add(data.train, std::span(which).subspan(static_cast<size_t>(p * part.batch),
                                                      static_cast<size_t>(part.batch)));
      }
    }
  }
  void clear() {
    model.parameters().zero_grads();
    zero(rows);
  }

  TableMemory memory;
  MicroDlrm model;
  BatchPool pool;
  Buffer gradients;
  Tensor rows;
};

double largest_difference(const Tensor& a, const Tensor& b) {
  const std::span<const float> x = a.span<float>(), y = b.span<float>();
  double largest = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    largest = std::max(largest, std::abs(static_cast<double>(x[i]) - static_cast<double>(y[i])));
  }
  return largest;
}

}  // namespace

DistributedResult compare_distributed(const Dataset& data, int ranks, int64_t steps, int64_t batch,
                                      uint64_t seed) {
  DistributedResult r{.ranks = ranks, .steps = steps, .batch = batch};
  constexpr double kTimeout = 300;
  const int64_t batches = std::min<int64_t>(steps, 25);
  const auto denominator = static_cast<double>(batch);
  const Workload part = micro_dlrm(batch / ranks);
  r.parameters = part.mlp_parameters() + part.embedding_parameters();

  Replica one(data, part, ranks, 0, ranks, batches, seed);
  for (int64_t step = 0; step < steps; ++step) {
    one.clear();
    r.loss_one = 0;
    for (int64_t p = 0; p < ranks; ++p) {
      const auto at = static_cast<size_t>(step % batches * ranks + p);
      r.loss_one += one.model.accumulate(one.pool[at], denominator, one.rows);
    }
    one.model.apply(one.rows, {});
  }

  comm::run_as_threads(ranks, kTimeout, [&](comm::World& world) {
    const std::unique_ptr<comm::Communicator> group = world.open("gradients");
    Replica mine(data, part, ranks, world.rank(), 1, batches, seed);
    bench::Timing exchanges;
    double loss = 0;
    for (int64_t step = 0; step < steps; ++step) {
      mine.clear();
      loss = mine.model.accumulate(mine.pool[static_cast<size_t>(step % batches)], denominator,
                                   mine.rows);
      const base::Stopwatch watch;
      group->all_reduce(mine.model.parameters().grads()).throw_if_failed();
      group->all_reduce(mine.rows).throw_if_failed();
      exchanges.seconds.push_back(watch.seconds());
      mine.model.apply(mine.rows, {});
    }
    const Tensor sum = host_view(std::span<double>(&loss, 1));
    group->all_reduce(sum).throw_if_failed();
    if (world.rank() != 0) return;
    r.loss_ranks = loss;
    r.all_reduce_ms = 1e3 * exchanges.median();
    r.largest_difference = std::max(
        largest_difference(mine.model.parameters().values(), one.model.parameters().values()),
        largest_difference(mine.model.table().reshape({part.rows * part.width}),
                           one.model.table().reshape({part.rows * part.width})));
  });
  return r;
}

}  // namespace segue::edu
