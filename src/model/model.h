#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "balance/cost.h"
#include "batch/batch.h"
#include "model/arena_plan.h"
#include "model/config.h"
#include "model/parameters.h"
#include "sparse/tables.h"
#include "tensor/event.h"
#include "tensor/exec.h"
#include "tensor/upload.h"

namespace segue::model {

class HeadGroup;

/// A column that a model reads of its batches, and what is in it.
struct ColumnDemand {
  enum class Of { kEvent, kCandidate, kSample };  // what has a value, or values, of it
  enum class Role { kId, kTimestamp, kAction, kLabel, kNumber };
  std::string key;  // of the config, where its name was found
  std::string column;
  Of of = Of::kSample;
  Role role = Role::kId;
  std::string table = {};  // kId: where it is looked up
  int64_t length = 1;      // kSample: values of a sample, at most
  int64_t bits = 1;        // kAction, kLabel: of a value
  std::string item = {};   // kId: the column that decides it, as a song does its artist
  bool outcome = false;    // kNumber: known only after the event
  std::string bag = {};    // the feature of several values that it is one of; empty: none
  int64_t value = 1;       // which one, and of how many
  int64_t values = 1;
};

/// What a feature of so many values looks up, `base` being that of one.
void add_value_demands(const ColumnDemand& base, int64_t values, std::vector<ColumnDemand>& to);

/// Work of a sample, for balancer and predictions; of one layer, forward and backward.
struct SampleWork {
  balance::SampleShape shape;
  double token_flop = 0;  // per token, in products
  double pair_flop = 0;   // per pair of tokens that see each other
  int64_t layers = 0, width = 0;
  bool last_at_targets = false;  // the last layer is computed at targets only
};

/// What a switch of the config would save of a step's memory, or saves already.
struct MemorySwitch {
  std::string key;
  bool on = false;
  int64_t bytes = 0;
};

/// What a batch alone decides: distinct rows and every index that an op will read. Made by
/// Model::prepare, without touching weights, so it may be made a step ahead on another thread.
/// Keeps its memory when it is made again. Families add what is theirs.
struct PreparedBatch {
  template <class T>
  using Part = UploadBlock::Part<T>;

  virtual ~PreparedBatch() = default;

  sparse::Ticket ticket;
  std::vector<sparse::TableId> looked_up;  // tables of the ticket, each once
  /// Per table: where its distinct rows begin when those of `looked_up` lie one after the other. A
  /// "table row" is counted so.
  std::vector<int64_t> first_row;
  int64_t table_rows = 0;
  UploadBlock block;                 // everything that travels to the device
  std::vector<Part<int64_t>> slots;  // like looked_up; empty where the ticket has its own copy
  std::vector<HostArray<int64_t>> scores;  // per lookup: memory of Model::look_up

  std::vector<int64_t> token_offsets{0};  // [samples + 1]
  std::vector<int64_t> sample_labels;     // labels of each sample, per task
  std::vector<float> labels;              // [tasks][labels], in sample order
  int64_t num_labels = 0;                 // per task
  /// Numbers of which the largest of all ranks counts: this rank's, until the trainer puts in those
  /// of all.
  std::vector<int64_t> maxima;

  // What the trainer adds: numbers of the samples in the global batch; samples and labels of each
  // rank, labels of all.
  std::vector<int64_t> sample_index;
  std::vector<int64_t> rank_samples, rank_labels;
  int64_t global_labels = 0;

  int64_t samples() const { return static_cast<int64_t>(token_offsets.size()) - 1; }
};

struct PassOptions {
  bool training = true;  // dropout and backward; false: predictions only
  int64_t micro_batch_tokens = 65536;
  /// Labels of the global batch; absent: those of this batch.
  std::optional<double> loss_denominator;
  /// Told when the gradients of a bucket, and of those before it, are complete; see
  /// Model::gradient_buckets(). From then on they are the listener's, who also fills in
  /// PassResults::gradient_squares.
  std::function<void(size_t bucket)> gradients_ready;
  /// Sees named activations on the way; for tests.
  std::function<void(std::string_view name, const Tensor& value)> probe;
};

/// What a pass brings back to the host, side by side in one piece of the arena: one copy.
struct PassResults {
  Tensor memory;                // u8
  Tensor sums;                  // f64: the next three, one after the other
  Tensor losses;                // f64 [tasks]
  Tensor squares;               // f64 [2]: the next two
  Tensor gradient_squares;      // f64 [1]
  Tensor row_gradient_squares;  // f64 [1]
  Tensor logits;                // [labels, tasks]
  Tensor predictions;           // [tasks, labels]
};

/// What one pass over a batch leaves. Row gradients live in the arena until the caller's mark ends.
struct Pass {
  double loss = 0;
  std::vector<double> task_losses;
  /// [tasks][labels], in sample order.
  std::vector<double> logits;
  std::vector<float> predictions, labels;
  int64_t num_labels = 0;  // per task
  int64_t samples = 0, tokens = 0;
  std::vector<int64_t> token_offsets;  // [samples + 1]
  double model_flops = 0;              // Model::flops

  sparse::Ticket ticket;
  std::vector<sparse::TableId> looked_up;  // its tables
  Tensor all_row_gradients;                // [distinct rows of looked_up, dim], training only
  std::vector<Tensor> row_gradients;       // the same per table, absent if not looked up

  /// Sums of squares of all dense gradients and of all row gradients, training only: not finite if
  /// and only if something in them is not (or is huge).
  double gradient_squares = 0, row_gradient_squares = 0;

  PassResults results;  // the numbers above where they were made
};

/// A model of any family. Made from its config, it says what it reads, takes and costs; allocate()
/// gives it memory, and it can run. A pass adds dense gradients to parameters().grads(); gradients
/// of table rows come back in the Pass. Updating is the caller's business.
///
/// A sample's "tokens" are its units of work: what the stack of a ranker sees, ids of a DLRM.
class Model {
 public:
  virtual ~Model();
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  // ---- known from the config ----

  const std::vector<TaskConfig>& tasks() const { return tasks_; }
  virtual std::string summary() const = 0;
  /// In no order but that items come before what they decide.
  virtual std::vector<ColumnDemand> demands() const = 0;
  virtual int64_t sample_tokens(int64_t events, int64_t candidates) const = 0;
  /// Events of a sample with so many candidates, and tokens of any sample, at most.
  virtual int64_t most_events(int64_t candidates) const = 0;
  virtual int64_t most_tokens() const = 0;

  virtual StepMemory step_memory(const StepBounds& bounds, Precision precision,
                                 Device device) const = 0;
  /// Of a prepared batch on the device, at most.
  virtual int64_t batch_memory(const StepBounds& bounds) const = 0;
  /// What prepare() works in on a GPU, at most; reserve_prepare() takes it.
  virtual int64_t prepare_memory(const StepBounds& /*bounds*/) const { return 0; }
  virtual std::vector<MemorySwitch> memory_switches(const StepBounds& bounds, Precision precision,
                                                    Device device) const;

  /// By formula, which may count work that is skipped: of a pass over samples of these lengths, and
  /// of training on one sample as long as may be.
  virtual double flops(std::span<const int64_t> token_offsets, bool training) const = 0;
  virtual double padded_flops() const = 0;
  virtual SampleWork work() const = 0;

  Parameters& parameters() { return parameters_; }
  const Parameters& parameters() const { return parameters_; }
  /// Parameters [first, end) whose gradients backward completes together, in that order.
  struct Bucket {
    size_t first = 0, end = 0;
  };
  virtual std::vector<Bucket> buckets() const = 0;

  /// The attention kernel of a device and for what it was chosen, for logs; empty: there is no
  /// attention. Error(kConfig) if the config asks for one that cannot do it there.
  virtual std::string attention_kernel(Device /*device*/, Precision /*precision*/) const {
    return {};
  }
  /// Attention heads that ranks can share out; 0: there is no such thing.
  virtual int64_t heads_to_share() const { return 0; }

  // ---- with memory ----

  /// `tables` have the config that the model was made for and outlive it. Parameters get their
  /// initial values from `seed`.
  void allocate(sparse::Tables& tables, Device device, DType parameter_dtype, uint64_t seed);
  sparse::Tables& tables() const { return *tables_; }

  /// Shares attention with the ranks of `heads` (null: with nobody), which outlives the model. All
  /// of them then prepare and run the same number of batches, also empty ones.
  virtual void set_head_group(HeadGroup* heads);

  /// Memory of prepare() on a GPU, to be taken at once rather than when it is needed.
  virtual void reserve_prepare(int64_t /*bytes*/) {}
  virtual std::unique_ptr<PreparedBatch> new_batch() const = 0;
  /// Work of the host, and of a GPU on a stream of its own: it may go on while another batch runs,
  /// on one thread at a time. `prepared` is one of new_batch().
  virtual void prepare(const Batch& batch, int64_t micro_batch_tokens, sparse::Mode mode,
                       PreparedBatch& prepared) = 0;

  /// A pass in three parts, for a caller that has more to queue: enqueue() uses a prepared batch up
  /// and leaves losses, squares and predictions in Pass::results, send_results() queues their copy
  /// to the host, finish() waits for that copy alone and fills them in (logits, which nobody trains
  /// with, on request). One pass at a time.
  virtual Pass enqueue(const Exec& exec, PreparedBatch& prepared, const PassOptions& options) = 0;
  void send_results(const Exec& exec, const Pass& pass);
  void finish(Pass& pass, bool with_logits = true) const;

  /// The three of them. Waits for the device once, at its end; everything the Pass holds is then on
  /// the host, except what is said to live in the arena.
  Pass run(const Exec& exec, PreparedBatch& prepared, const PassOptions& options);
  Pass run(const Exec& exec, const Batch& batch, const PassOptions& options);

  /// Pieces of parameters().grads(), one per bucket.
  std::vector<Tensor> gradient_buckets() const;

 protected:
  explicit Model(std::vector<TaskConfig> tasks);
  /// Error(kConfig) unless every column has a name and one reader, and what is looked up a table,
  /// all of one width, which it returns. Tables that nobody looks up may have any.
  int64_t check_demands(const sparse::TablesConfig& tables) const;

  /// Ids to look up, and the columns that have one for each use of them, one after the other: what
  /// the scores of uses follow.
  struct ColumnLookup {
    sparse::Lookup lookup;
    std::vector<std::string_view> columns;
  };
  /// Begins the look-ups of a batch: ticket, looked_up, first_row, slots.
  void look_up(const Batch& batch, std::span<const ColumnLookup> lookups, sparse::Mode mode,
               PreparedBatch& prepared) const;
  /// Pass and results of a prepared batch whose parts have reached the device.
  Pass start_pass(const Exec& exec, PreparedBatch& prepared, const UploadBlock::Placed& placed,
                  bool training) const;
  /// Squares of all gradients, once they are complete, and `table_gradients` as those of the pass.
  void end_pass(const Exec& exec, PreparedBatch& prepared, const Tensor& table_gradients,
                const PassOptions& options, Pass& pass) const;
  /// What a pass of any family takes from exec's arena at its start: see ArenaPlan.
  void pass_memory(const Exec& exec, int64_t labels) const;

  Parameters parameters_;
  sparse::Tables* tables_ = nullptr;

 private:
  PassResults make_results(const Exec& exec, int64_t labels) const;
  int64_t latest_time(const Batch& batch) const;

  std::vector<TaskConfig> tasks_;
  std::vector<std::string> time_columns_;    // that say when a batch was
  std::unique_ptr<PreparedBatch> prepared_;  // of run(batch): its memory is kept
  HostArray<uint8_t> host_results_;          // where results land when they come from a GPU
  Event results_arrived_;
};

/// The family that the config names, not yet allocated. Error(kConfig) when it cannot be: tables
/// that are not there or have the wrong width, columns without a name or read twice.
std::unique_ptr<Model> make_model(const ModelConfig& config, const sparse::TablesConfig& tables);

}  // namespace segue::model
