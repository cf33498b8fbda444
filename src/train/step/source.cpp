#include "train/step/source.h"

#include <algorithm>
#include <chrono>
#include <future>
#include <limits>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/error.h"
#include "base/stage.h"
#include "base/time.h"
#include "data/inspect/baselines.h"
#include "data/inspect/inspect.h"
#include "data/store/event_store.h"
#include "data/synth/random_batches.h"
#include "train/step/interaction_source.h"
#include "train/step/oracle.h"
#include "train/step/random_schema.h"
#include "train/step/store_checks.h"
#include "train/step/store_facts.h"

namespace segue::train {
namespace {

using data::BatchInfo;
using data::StreamPosition;

/// Number of the first held-out random batch: training steps never get there.
constexpr int64_t kHeldOutStep = int64_t{1} << 40;
constexpr int64_t kRandomEvalBatches = 20;

class RandomSource final : public Source {
 public:
  RandomSource(const RunConfig& config, int rank, int ranks)
      : model_(make_model(config)),
        first_(config.data.batch_size * rank / ranks),
        count_(config.data.batch_size * (rank + 1) / ranks - first_),
        batch_size_(config.data.batch_size),
        eval_batches_(config.eval.max_batches > 0 ? config.eval.max_batches : kRandomEvalBatches),
        batches_(random_schema(*model_, config.sparse, config.data.random.candidates),
                 config.data.random_config(), static_cast<uint64_t>(config.train.seed)),
        wants_facts_(wants_facts(config.eval, 0, config.mlperf.log)) {
    if (config.train.steps > 0) return;
    fail(ErrorCode::kConfig,
         "random samples have no end: set train.steps (--steps), or data.store to train on a log");
  }

  StreamPosition first() const override { return {}; }
  void start(StreamPosition from) override { position_ = from; }
  StreamPosition end() const override { return {std::numeric_limits<int64_t>::max(), 0}; }
  std::optional<BatchInfo> next(Batch& batch) override {
    batches_.fill(position_.batch + 1, first_, count_, batch);
    return BatchInfo{.position = {0, position_.batch++}};
  }

  void prefetch_evaluation(int64_t) override {}
  void start_evaluation(int64_t) override { evaluated_ = 0; }
  std::optional<BatchInfo> next_evaluation(Batch& batch) override {
    if (evaluated_ == eval_batches_) return std::nullopt;
    batches_.fill(kHeldOutStep + evaluated_++, first_, count_, batch);
    return BatchInfo{};
  }

  int64_t train_samples() const override { return 0; }
  int64_t eval_samples() const override { return eval_batches_ * batch_size_; }
  std::optional<double> oracle_auc() override {
    return train::oracle_auc(batches_, *model_, held_out());
  }
  /// The candidates of a sample are a list, where there are several.
  const HeldOutFacts* facts() override {
    if (!wants_facts_) return nullptr;
    if (!facts_) facts_ = HeldOutFacts{.lists = sample_lists(*model_, held_out())};
    return &*facts_;
  }

 private:
  std::vector<Batch> held_out() const {
    std::vector<Batch> batches(static_cast<size_t>(eval_batches_));
    for (size_t i = 0; i < batches.size(); ++i) {
      batches_.fill(kHeldOutStep + static_cast<int64_t>(i), batches[i]);
    }
    return batches;
  }

  std::unique_ptr<model::Model> model_;
  int64_t first_ = 0, count_ = 0;  // samples of this rank
  int64_t batch_size_ = 0, eval_batches_ = 0, evaluated_ = 0;
  data::RandomBatches batches_;
  bool wants_facts_ = false;
  std::optional<HeldOutFacts> facts_;
  StreamPosition position_;
};

/// A machine may see what another one appended a little later.
void wait_for_segments(const std::string& store, int64_t segments) {
  constexpr double kPatience = 60;  // seconds
  if (segments == data::kAllSegments) return;
  const base::Stopwatch watch;
  while (data::count_segments(store) < segments) {
    if (watch.seconds() > kPatience) {
      fail(ErrorCode::kIo, fmt::format("{}: the first rank sees {} segments, but here are {}; all "
                                       "ranks must see the same store",
                                       store, segments, data::count_segments(store)));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
}

class StoreSource final : public Source {
 public:
  StoreSource(const RunConfig& config, int rank, int ranks, bool verifies, int64_t segments)
      : config_(config), rank_(rank), ranks_(ranks), verifies_(verifies) {
    reopen(segments);
  }

  StreamPosition first() const override { return stream().start(); }
  void start(StreamPosition from) override {
    open_->loader.start(data::training(stream(), from, config_.train.epochs));
  }
  StreamPosition end() const override {
    return {data::end_of_training(stream(), config_.train.epochs), 0};
  }
  std::optional<BatchInfo> next(Batch& batch) override { return open_->loader.next(batch); }

  void prefetch_evaluation(int64_t after) override {
    open_->eval_loader.start(data::evaluation(stream(), after));
    prefetched_ = after;
  }
  void start_evaluation(int64_t after) override {
    if (prefetched_ != after) prefetch_evaluation(after);
    prefetched_.reset();
    evaluated_ = after;
  }
  std::optional<BatchInfo> next_evaluation(Batch& batch) override {
    const int64_t most = config_.eval.max_batches;
    if (most > 0 && open_->eval_loader.batches_delivered() >= most) return std::nullopt;
    return open_->eval_loader.next(batch);
  }

  bool verified(double seconds) override {
    return std::ranges::all_of(open_->data.verifiers,
                               [&](const auto& verifier) { return verifier->finished(seconds); });
  }

  int64_t train_samples() const override {
    return config_.train.epochs * stream().total_train_samples();
  }
  int64_t eval_samples() const override {
    return stream().config().eval == data::EvalMode::kFixed
               ? static_cast<int64_t>(stream().eval_positions().size())
               : 0;
  }

  int64_t segments() const override { return static_cast<int64_t>(events().segments().size()); }
  int64_t segments_there() const override { return data::count_segments(events().folder()); }
  void reopen(int64_t segments) override {
    facts_.reset();  // it reads what is closed
    open_.reset();
    prefetched_.reset();
    wait_for_segments(data::store_folder(config_.data.store), segments);
    open_ = std::make_unique<Open>(config_, rank_, ranks_, verifies_, segments);
  }

  bool evaluates_the_same() const override {
    return stream().config().eval == data::EvalMode::kFixed;
  }
  void prefetch_facts(int64_t after) override {
    if (!wants_facts(config_.eval, data::EventLog(events()).num_events(), config_.mlperf.log)) {
      return;
    }
    if (evaluates_the_same()) after = -1;
    if (!facts_ || facts_->after != after) facts_ = std::make_unique<Facts>(config_, *open_, after);
  }
  bool facts_ready(double seconds) override {
    prefetch_facts(evaluated_);
    return !facts_ || facts_->found.wait_for(std::chrono::duration<double>(seconds)) ==
                          std::future_status::ready;
  }
  const HeldOutFacts* facts() override {
    prefetch_facts(evaluated_);
    return facts_ ? &facts_->found.get() : nullptr;
  }

  std::vector<std::string> doubts() override { return doubts_about(config_, open_->data); }

  /// Synthetic logs come with their truth. Without the whole window the figure would not compare.
  std::optional<double> oracle_auc() override {
    if (config_.eval.max_batches > 0) return std::nullopt;
    if (!truth_) truth_ = data::read_truth(events());
    return truth_auc(events(), *truth_, stream().eval_positions(evaluated_));
  }

 private:
  struct Open {
    RunStore data;
    data::Loader loader, eval_loader;

    Open(const RunConfig& config, int rank, int ranks, bool verifies, int64_t segments)
        : data(config, rank, ranks, verifies, segments),
          loader(data.gatherer, config.data.loader),
          eval_loader(data.gatherer, config.data.loader) {}
  };
  /// Found out by a thread of its own, on one core.
  struct Facts {
    int64_t after = -1;
    std::shared_future<HeldOutFacts> found;
    std::jthread thread;

    Facts(const RunConfig& config, const Open& open, int64_t of) : after(of) {
      std::packaged_task<HeldOutFacts(const std::stop_token&)> task(
          [&open, of, tasks = make_model(config)->tasks()](const std::stop_token& stop) {
            base::name_thread("simple rules");
            const base::Stage stage("simple rules");
            return store_facts(open.data, tasks, open.data.stream.eval_positions(of), stop);
          });
      found = task.get_future().share();
      thread = std::jthread(std::move(task));
    }
  };
  const data::EventStore& events() const { return open_->data.events; }
  const data::SampleStream& stream() const { return open_->data.stream; }

  RunConfig config_;
  int rank_ = 0, ranks_ = 1;
  bool verifies_ = true;
  std::unique_ptr<Open> open_;
  std::unique_ptr<Facts> facts_;  // of the evaluations after one window; reads what is open
  std::optional<int64_t> prefetched_;
  int64_t evaluated_ = -1;
  std::optional<std::vector<float>> truth_;  // per event; empty: not known
};

void require_column(std::span<const std::string> names, const std::string& key,
                    const std::string& name) {
  if (std::ranges::find(names, name) != names.end()) return;
  const std::string nearest = base::nearest_name(name, names);
  fail(ErrorCode::kConfig,
       fmt::format("{} reads column `{}`, which samples of the store do not have; {}", key, name,
                   nearest.empty() ? fmt::format("they have: {}", fmt::join(names, ", "))
                                   : fmt::format("did you mean `{}`?", nearest)));
}

/// Attributes of several values by name, and how many they have: columns are name_1 and on.
std::vector<std::pair<std::string, int64_t>> bags_of(const data::SampleSchema& schema) {
  std::vector<std::pair<std::string, int64_t>> bags;
  for (const std::vector<data::AttributeConfig>* of :
       {&schema.attributes, &schema.user_attributes}) {
    for (size_t a = 0; a < of->size(); a += data::columns_of(*of, a)) {
      if ((*of)[a].bag.empty()) continue;
      const std::string& name = (*of)[a].bag;
      const int64_t values = data::values_of(*of, name);
      bags.emplace_back(name, values);
      if (of == &schema.attributes) bags.emplace_back(data::candidate_column(name), values);
    }
  }
  return bags;
}

/// What has one column cannot be read as several.
void require_several(std::span<const std::string> names, const model::ColumnDemand& d) {
  if (std::ranges::find(names, d.bag) == names.end()) return;
  fail(ErrorCode::kConfig,
       fmt::format("{} reads {} values of `{}`, and the store keeps one; leave values out, or "
                   "prepare the log with separator and max_values in its schema",
                   d.key, d.values, d.bag));
}

/// A feature has as many values as the store keeps of an attribute, and no more.
void require_values(const data::SampleSchema& schema, const model::ColumnDemand& d) {
  for (const auto& [name, values] : bags_of(schema)) {
    if (d.bag.empty() && d.column == name) {
      fail(
          ErrorCode::kConfig,
          fmt::format("{} reads column `{}`, of which the store keeps {} values, in columns `{}_1` "
                      "to `{}_{}`; set values = {} there, and their rows are summed",
                      d.key, name, values, name, name, values, values));
    }
    if (d.bag == name && d.values > values) {
      fail(ErrorCode::kConfig,
           fmt::format("{} reads {} values of `{}`, and the store keeps {}; set values = {} there, "
                       "or prepare the log with max_values = {} in its schema",
                       d.key, d.values, name, values, values, d.values));
    }
  }
}

/// How histories are gathered: as the config says, cut to what the model takes.
data::GatherConfig gather_config(const RunConfig& config, const data::EventStore& store) {
  data::GatherConfig gather = config.data.gather;
  if (gather.history_length == 0) gather.history_length = store.history_length();
  gather.max_history = history_budget(config);
  if (has_labelled_events(config)) {
    // Three quarters of a sample are history, if the user has one.
    const int64_t events = std::min(gather.history_length, gather.max_history);
    gather.sample_events = std::max<int64_t>(1, events / 4);
  }
  return gather;
}

data::StreamConfig stream_config(const RunConfig& config, const data::GatherConfig& gather) {
  data::StreamConfig stream = config.data.stream_config();
  stream.sample_events = gather.sample_events;
  return stream;
}

/// A contextual token stands for all events of its sample.
void require_of_sample(const data::SampleSchema& schema, const model::ColumnDemand& d) {
  const auto cross = std::ranges::find(schema.crosses, d.column, &data::CrossConfig::name);
  if (d.of != model::ColumnDemand::Of::kSample || cross == schema.crosses.end()) return;
  fail(ErrorCode::kConfig,
       fmt::format(
           "{} reads `{}`, a cross of {}: it differs from event to event, and model.labels = "
           "\"every_item\" predicts many of them behind one contextual token; make it one "
           "of model.additional",
           d.key, d.column, fmt::join(cross->keys, ", ")));
}

/// Nothing that is predicted may be told what came of it.
void require_known_before(std::span<const std::string> outcomes, const model::ColumnDemand& d) {
  for (const std::string& name : outcomes) {
    if (d.column != name && d.column != data::candidate_column(name)) continue;
    fail(ErrorCode::kConfig,
         fmt::format("{} reads `{}`, an outcome: it shows only after the event that is predicted. "
                     "Name it in model.numeric.outcomes, for events of the history alone; if it is "
                     "known before, prepare the log with outcome = false in the schema's numbers",
                     d.key, name));
  }
}

/// What the model asks of a store, checked by name before the first step. Returns the store's
/// sample schema with the numbers it wants, and crosses cut to the tables' rows.
data::SampleSchema samples_for(const RunConfig& config, data::SampleSchema schema) {
  const bool labelled_events = has_labelled_events(config);
  const Batch samples = data::sample_columns(schema, labelled_events);
  std::vector<std::string> columns, numbers, of_candidates, outcomes;
  for (const Batch::Column& column : samples.columns) columns.push_back(column.name);
  for (const Batch::Attribute& attribute : samples.attributes) columns.push_back(attribute.name);
  numbers = data::count_names(schema);
  for (const data::NumberConfig& number : schema.numbers) {
    (number.outcome ? outcomes : numbers).push_back(number.name);
  }
  for (const std::string& name : numbers) of_candidates.push_back(data::candidate_column(name));
  for (const sparse::TableConfig& table : config.sparse.tables) {
    for (const std::string& column : table.score) {
      require_column(columns, fmt::format("`score` of table `{}`", table.name), column);
    }
  }
  for (const model::ColumnDemand& d : make_model(config)->demands()) {
    if (d.role == model::ColumnDemand::Role::kNumber) {
      const bool candidate = d.of == model::ColumnDemand::Of::kCandidate;
      if (!d.outcome) require_known_before(outcomes, d);
      const std::vector<std::string>& names = d.outcome   ? outcomes
                                              : candidate ? of_candidates
                                                          : numbers;
      require_column(names, d.key, d.column);
      const auto at = static_cast<size_t>(std::ranges::find(names, d.column) - names.begin());
      (candidate ? schema.candidate_numbers : schema.history_numbers)
          .push_back((d.outcome ? outcomes : numbers)[at]);
      continue;
    }
    require_values(schema, d);
    if (!d.bag.empty() && d.value == 1) require_several(columns, d);
    require_column(columns, d.key, d.column);
    if (labelled_events) require_of_sample(schema, d);
    // A hash may be cut to any size; the table that is looked up decides.
    for (data::CrossConfig& cross : schema.crosses) {
      if (cross.name != d.column || d.table.empty()) continue;
      const sparse::TableConfig& table =
          config.sparse.tables[static_cast<size_t>(config.sparse.id(d.table))];
      cross.whole_hash = table.dynamic();
      if (!table.dynamic()) cross.rows = table.rows;
    }
  }
  return schema;
}

}  // namespace

RunStore::RunStore(const RunConfig& config, int rank, int ranks, bool verifies, int64_t segments)
    : events(config.data.store, samples_for(config, data::schema_for(config.data.store).samples()),
             config.data.index, config.data.verify, segments),
      gatherer(events, gather_config(config, events)),
      stream(events, stream_config(config, gatherer.config()), rank, ranks) {
  require_rows(config, events);
  if (!verifies) return;
  const data::EventLog log(events);
  for (size_t p = 0; p < log.num_pieces(); ++p) {
    std::vector<const data::IndexFile*> indices = {&gatherer.pools()[p].file(),
                                                   &stream.windows().pieces()[p].file()};
    if (gatherer.numbers()) {
      for (const data::IndexFile* file : gatherer.numbers()->files(p)) indices.push_back(file);
    }
    verifiers.push_back(std::make_unique<data::StoreVerifier>(log.piece(p), indices));
  }
}

std::unique_ptr<Source> make_source(const RunConfig& config, int rank, int ranks, bool verifies,
                                    int64_t segments) {
  const base::Stage stage("open data");
  if (config.data.has_interactions()) return make_interaction_source(config, rank, ranks);
  if (config.data.is_random()) return std::make_unique<RandomSource>(config, rank, ranks);
  return std::make_unique<StoreSource>(config, rank, ranks, verifies, segments);
}

}  // namespace segue::train
