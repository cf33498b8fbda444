#include "model/model.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "base/config_checks.h"
#include "base/error.h"
#include "base/stage.h"
#include "model/dlrm.h"
#include "model/ranker.h"
#include "ops/deferred_sums.h"
#include "ops/optimizer.h"

namespace segue::model {
namespace {

/// Whether `score` has one value for each of `ids`, as far as the model's columns tell.
bool gives_scores(const ColumnDemand& score, const ColumnDemand& ids) {
  if (score.column == ids.column) return true;
  return score.of == ColumnDemand::Of::kSample ? score.length == 1 : score.of == ids.of;
}

/// Score columns may be any of the batch: of those that the model does not read data will tell.
void check_scores(std::span<const ColumnDemand> all, const sparse::TableConfig& table,
                  const ColumnDemand& ids) {
  bool all_known = true;
  for (const std::string& name : table.score) {
    const auto column = std::ranges::find(all, name, &ColumnDemand::column);
    all_known = all_known && column != all.end();
    if (column == all.end()) continue;
    if (column->role == ColumnDemand::Role::kNumber) {
      base::fail_config(
          fmt::format("table `{}`: `score` names column `{}`, which has floats; scores are "
                      "integers, such as times or action bits",
                      table.name, name));
    }
    if (gives_scores(*column, ids)) return;
  }
  if (!all_known || table.score.empty()) return;
  base::fail_config(
      fmt::format("table `{}`: no column of `score` has a value for each id of column `{}` ({}); "
                  "add one of the same events, candidates or sample",
                  table.name, ids.column, ids.key));
}

/// Scores of the ids of a column, as the table's config asks: from a column beside it, or from one
/// that has one value for each sample.
void add_scores(const Batch& batch, const sparse::TableConfig& table, std::string_view ids,
                HostArray<int64_t>& to) {
  const std::span<const int64_t> of_ids = batch.offsets(ids);
  HostArray<int64_t> memory;
  std::span<const int64_t> of_samples;
  for (const std::string& name : table.score) {
    if (batch.find_column(name) == nullptr && batch.find_attribute(name) == nullptr) {
      fail(ErrorCode::kConfig,
           fmt::format("table `{}`: `score` names column `{}`, which batches {}; name a column of "
                       "integers",
                       table.name, name,
                       batch.find_float_column(name) ? "have as floats" : "do not have"));
    }
    const std::span<const int64_t> offsets = batch.offsets(name);
    if (offsets.data() == of_ids.data()) {
      const std::span<const int64_t> values = batch.values(name, memory);
      const int64_t at = to.size();
      to.resize(at + std::ssize(values));
      std::ranges::copy(values, to.data() + at);
      return;
    }
    const bool one_each = std::ranges::adjacent_find(offsets, [](int64_t a, int64_t b) {
                            return b != a + 1;
                          }) == offsets.end();
    if (one_each && of_samples.empty()) of_samples = batch.values(name, memory);
  }
  if (of_samples.empty() && batch.num_samples() > 0) {
    fail(
        ErrorCode::kConfig,
        fmt::format("table `{}`: no column of `score` ({}) has a value for each id of column `{}`, "
                    "or one for each sample; add one that has",
                    table.name, fmt::join(table.score, ", "), ids));
  }
  for (size_t b = 0; b < of_samples.size(); ++b) {
    for (int64_t i = of_ids[b]; i < of_ids[b + 1]; ++i) to.push_back(of_samples[b]);
  }
}

}  // namespace

void add_value_demands(const ColumnDemand& base, int64_t values, std::vector<ColumnDemand>& to) {
  ColumnDemand d = base;
  d.values = values;
  if (values > 1) d.bag = base.column;
  for (const std::string& column : value_columns(base.column, values)) {
    d.column = column;
    to.push_back(d);
    ++d.value;
  }
}

Model::Model(std::vector<TaskConfig> tasks) : tasks_(std::move(tasks)) {}
Model::~Model() = default;

std::vector<MemorySwitch> Model::memory_switches(const StepBounds&, Precision, Device) const {
  return {};
}

int64_t Model::check_demands(const sparse::TablesConfig& tables) const {
  std::set<std::string> names;
  const sparse::TableConfig* first = nullptr;
  const auto all = demands();
  const bool has_times =
      std::ranges::find(all, ColumnDemand::Role::kTimestamp, &ColumnDemand::role) != all.end();
  for (const ColumnDemand& d : all) {
    if (d.column.empty()) base::fail_config(fmt::format("{} names no column", d.key));
    if (!names.insert(d.column).second) {
      base::fail_config(fmt::format(
          "column `{}` is read by two features of the model; give each its own", d.column));
    }
    if (d.role != ColumnDemand::Role::kId) continue;
    const sparse::TableId id = tables.id(d.table, fmt::format("{} `{}`", d.key, d.column));
    const sparse::TableConfig& table = tables.tables[static_cast<size_t>(id)];
    if (first == nullptr) first = &table;
    check_scores(all, table, d);
    const bool by_time = table.ttl_seconds > 0 || table.evict == sparse::Evict::kAge;
    if (by_time && !has_times) {
      base::fail_config(fmt::format(
          "table `{}` forgets by event time, but the model reads no timestamps; set its `evict` to "
          "\"lru\" or \"lfu\" and `ttl_seconds` to 0",
          table.name));
    }
    if (tables.dim_of(table) == tables.dim_of(*first)) continue;
    base::fail_config(fmt::format(
        "table `{}` has rows of width {}, table `{}` of width {}: the model needs one width in all "
        "tables that its features look up; give them the same `dim`, or leave it to sparse.dim",
        table.name, tables.dim_of(table), first->name, tables.dim_of(*first)));
  }
  return first == nullptr ? tables.dim : tables.dim_of(*first);
}

void Model::allocate(sparse::Tables& tables, Device device, DType parameter_dtype, uint64_t seed) {
  tables_ = &tables;
  // Candidates are later than the events before them.
  for (const ColumnDemand::Of of : {ColumnDemand::Of::kCandidate, ColumnDemand::Of::kEvent}) {
    if (!time_columns_.empty()) break;
    for (const ColumnDemand& d : demands()) {
      if (d.role == ColumnDemand::Role::kTimestamp && d.of == of) time_columns_.push_back(d.column);
    }
  }
  parameters_.allocate(device, parameter_dtype, seed);
}

void Model::set_head_group(HeadGroup* heads) {
  SEGUE_ASSERT(heads == nullptr, "this family has no heads to share");
}

std::vector<Tensor> Model::gradient_buckets() const {
  const Tensor all = parameters_.grads();
  const auto at = [&](size_t parameter) {  // where its gradient begins
    if (parameter == parameters_.all().size()) return all.elements();
    const Tensor& grad = parameters_.all()[parameter].grad;
    return (static_cast<const char*>(grad.data) - static_cast<const char*>(all.data)) /
           size_of(all.dtype);
  };
  std::vector<Tensor> pieces;
  for (const Bucket& b : buckets()) {
    pieces.push_back(all.narrow(0, at(b.first), at(b.end) - at(b.first)));
  }
  return pieces;
}

int64_t Model::latest_time(const Batch& batch) const {
  int64_t latest = 0;
  for (const std::string& column : time_columns_) {
    for (const int64_t time : batch.column(column).values.span()) latest = std::max(latest, time);
  }
  return latest;
}

void Model::look_up(const Batch& batch, std::span<const ColumnLookup> wanted, sparse::Mode mode,
                    PreparedBatch& out) const {
  std::vector<sparse::Lookup> lookups;
  out.scores.resize(wanted.size());
  for (size_t l = 0; l < wanted.size(); ++l) {
    lookups.push_back(wanted[l].lookup);
    const sparse::Table& table = tables_->table(lookups.back().table);
    if (mode != sparse::Mode::kTraining || !table.keeps_scores()) continue;
    out.scores[l].resize(0);
    for (const std::string_view column : wanted[l].columns) {
      add_scores(batch, table.spec().config, column, out.scores[l]);
    }
    lookups.back().scores = out.scores[l].span();
  }
  out.ticket = tables_->begin(lookups, mode, std::move(out.ticket), latest_time(batch));
  out.looked_up.clear();
  out.slots.clear();
  out.first_row.assign(static_cast<size_t>(tables_->count()), 0);
  out.table_rows = 0;
  for (const sparse::Lookup& l : lookups) {
    if (std::ranges::find(out.looked_up, l.table) != out.looked_up.end()) continue;
    out.looked_up.push_back(l.table);
    if (tables_->slots_travel()) out.slots.push_back(out.block.add(out.ticket.slots(l.table)));
    out.first_row[static_cast<size_t>(l.table)] = out.table_rows;
    out.table_rows += out.ticket.distinct_rows(l.table);
  }
  SEGUE_ASSERT(out.table_rows <= std::numeric_limits<int32_t>::max(),
               "table rows are counted in 32 bits");
}

Pass Model::start_pass(const Exec& exec, PreparedBatch& batch, const UploadBlock::Placed& placed,
                       bool training) const {
  Pass pass;
  pass.samples = batch.samples();
  pass.tokens = batch.token_offsets.back();
  pass.num_labels = batch.num_labels;
  pass.model_flops = flops(batch.token_offsets, training);
  pass.token_offsets = batch.token_offsets;
  pass.labels = batch.labels;
  pass.looked_up = batch.looked_up;
  pass.row_gradients.resize(static_cast<size_t>(tables_->count()));
  for (size_t i = 0; i < batch.slots.size(); ++i) {
    batch.ticket.place_slots(batch.looked_up[i], placed.tensor(batch.slots[i]));
  }
  pass.results = make_results(exec, batch.num_labels);
  zero(pass.results.sums, exec.stream);
  return pass;
}

void Model::end_pass(const Exec& exec, PreparedBatch& batch, const Tensor& table_gradients,
                     const PassOptions& options, Pass& pass) const {
  if (options.training) {
    const Tensor squared[] = {parameters_.grads(),
                              table_gradients.reshape({table_gradients.elements()})};
    if (options.gradients_ready) {
      ops::sum_of_squares(exec, squared[1], pass.results.row_gradient_squares);
    } else {
      ops::sums_of_squares(exec, squared, pass.results.squares);
    }
    pass.all_row_gradients = table_gradients;
    for (const sparse::TableId table : batch.looked_up) {
      const auto t = static_cast<size_t>(table);
      pass.row_gradients[t] =
          table_gradients.rows(batch.first_row[t], batch.ticket.distinct_rows(table));
    }
  }
  pass.ticket = std::move(batch.ticket);
}

PassResults Model::make_results(const Exec& exec, int64_t labels) const {
  const auto tasks = static_cast<int64_t>(tasks_.size());
  const DType type = exec.parameter_dtype();
  const int64_t sums = tasks + 2;
  const int64_t sum_bytes = sums * size_of(DType::kF64);
  const int64_t value_bytes = labels * tasks * size_of(type);
  PassResults r;
  r.memory = exec.arena->tensor(DType::kU8, {sum_bytes + 2 * value_bytes});
  const auto view = [&](int64_t at, DType dtype, std::initializer_list<int64_t> shape) {
    return Tensor(static_cast<char*>(r.memory.data) + at, dtype, exec.device, shape);
  };
  r.sums = view(0, DType::kF64, {sums});
  r.losses = r.sums.narrow(0, 0, tasks);
  r.squares = r.sums.narrow(0, tasks, 2);
  r.gradient_squares = r.squares.narrow(0, 0, 1);
  r.row_gradient_squares = r.squares.narrow(0, 1, 1);
  r.logits = view(sum_bytes, type, {labels, tasks});
  r.predictions = view(sum_bytes + value_bytes, type, {tasks, labels});
  return r;
}

void Model::pass_memory(const Exec& exec, int64_t labels) const {
  if (exec.dtype() != exec.parameter_dtype()) exec.activation({parameters_.count()});
  exec.arena->tensor(DType::kU8, {ops::DeferredSums::memory_bytes(exec.device)});
  make_results(exec, labels);
}

void Model::send_results(const Exec& exec, const Pass& pass) {
  if (exec.device.is_cpu()) return;
  const Tensor& memory = pass.results.memory;
  host_results_.set_memory(HostMemory::kPinned);
  host_results_.resize(memory.bytes());
  copy(host_results_.tensor(), memory, exec.stream);
  results_arrived_.record(*exec.stream);
}

void Model::finish(Pass& pass, bool with_logits) const {
  const base::Stage stage("read results");
  results_arrived_.synchronize();
  const PassResults& results = pass.results;
  const bool on_gpu = results.memory.device.is_cuda();
  const char* from = static_cast<const char*>(results.memory.data);
  const char* here = on_gpu ? reinterpret_cast<const char*>(host_results_.data()) : from;
  // The same place in the copy.
  const auto values = [&]<class T>(const Tensor& t, T) {
    return std::span(reinterpret_cast<const T*>(here + (static_cast<const char*>(t.data) - from)),
                     static_cast<size_t>(t.elements()));
  };
  const auto losses = values(results.losses, double{});
  pass.task_losses.assign(losses.begin(), losses.end());
  pass.loss = std::accumulate(losses.begin(), losses.end(), 0.0);
  pass.gradient_squares = values(results.gradient_squares, double{})[0];
  pass.row_gradient_squares = values(results.row_gradient_squares, double{})[0];
  const size_t tasks = tasks_.size();
  const auto labels = static_cast<size_t>(pass.num_labels);
  dispatch_real(results.logits.dtype, [&](auto zero_value) {
    const auto predictions = values(results.predictions, zero_value);
    pass.predictions.assign(predictions.begin(), predictions.end());
    if (!with_logits) return;
    const auto logits = values(results.logits, zero_value);
    pass.logits.resize(tasks * labels);
    for (size_t i = 0; i < labels; ++i) {
      for (size_t k = 0; k < tasks; ++k) {
        pass.logits[k * labels + i] = static_cast<double>(logits[i * tasks + k]);
      }
    }
  });
}

Pass Model::run(const Exec& exec, const Batch& batch, const PassOptions& options) {
  {
    const base::Stage stage("prepare batch");
    if (!prepared_) prepared_ = new_batch();
    prepare(batch, options.micro_batch_tokens,
            options.training ? sparse::Mode::kTraining : sparse::Mode::kEvaluation, *prepared_);
  }
  return run(exec, *prepared_, options);
}

Pass Model::run(const Exec& exec, PreparedBatch& batch, const PassOptions& options) {
  Pass pass = enqueue(exec, batch, options);
  send_results(exec, pass);
  finish(pass);
  return pass;
}

std::unique_ptr<Model> make_model(const ModelConfig& config, const sparse::TablesConfig& tables) {
  if (config.family == Family::kDlrm) return std::make_unique<Dlrm>(config, tables);
  return std::make_unique<Ranker>(config, tables);
}

}  // namespace segue::model
