#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "batch/batch.h"
#include "model/config.h"
#include "model/head_group.h"
#include "model/layout.h"
#include "model/mlp.h"
#include "model/parameters.h"
#include "model/postprocessor.h"
#include "model/prepared_batch.h"
#include "model/preprocessor.h"
#include "model/stu.h"
#include "sparse/tables.h"
#include "tensor/exec.h"

namespace segue::model {

struct PassOptions {
  bool training = true;  // dropout and backward; false: predictions only
  int64_t micro_batch_tokens = 65536;
  /// Labels of the global batch; absent: those of this batch.
  std::optional<double> loss_denominator;
  /// Score divisor of the whole batch in mode batch_max; absent: from this batch, or those of the
  /// head group together.
  std::optional<int64_t> longest;
  /// Told when the gradients of a bucket, and of those before it, are complete; see
  /// Ranker::gradient_buckets(). From then on they are the listener's, who also fills in
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
  double model_flops = 0;              // by formula, forward (x3 with backward); see flops.h

  sparse::Ticket ticket;
  std::vector<sparse::TableId> looked_up;  // its tables
  Tensor all_row_gradients;                // [distinct rows of looked_up, dim], training only
  std::vector<Tensor> row_gradients;       // the same per table, absent if not looked up

  /// Sums of squares of all dense gradients and of all row gradients, training only: not finite if
  /// and only if something in them is not (or is huge).
  double gradient_squares = 0, row_gradient_squares = 0;

  PassResults results;  // the numbers above where they were made
};

/// The HSTU ranker. A pass has three parts: rows (per distinct id: look up, id-only branches),
/// tokens (micro-batches: assemble, STU stack, head, loss, backward), rows backward. Dense
/// gradients are added to parameters().grads(); row gradients come back in the Pass. Updating is
/// the caller's business.
class Ranker {
 public:
  /// `tables` outlives the model. Parameters get their initial values from `seed`.
  Ranker(const ModelConfig& config, sparse::Tables& tables, Device device, DType parameter_dtype,
         uint64_t seed);
  ~Ranker();

  /// Shares attention of the STU stack with the ranks of `heads` (null: with nobody), which
  /// outlives the model. All of them then prepare and run the same number of batches, also empty
  /// ones; PassOptions::longest, if given, is the same on all.
  void set_head_group(HeadGroup* heads);

  Pass run(const Exec& exec, const Batch& batch, const PassOptions& options);

  /// The same in two parts. prepare() is host work only and may go on while another batch runs, on
  /// one thread at a time; `micro_batch_tokens` and what the batch is for are its to know. run()
  /// uses a prepared batch up. It waits for the device once, at its end; everything the Pass holds
  /// is then on the host, except what is said to live in the arena.
  void prepare(const Batch& batch, int64_t micro_batch_tokens, sparse::Mode mode,
               PreparedBatch& prepared);
  Pass run(const Exec& exec, PreparedBatch& prepared, const PassOptions& options);

  /// run() in three parts, for a caller that has more to queue: enqueue() leaves losses, squares
  /// and predictions in Pass::results, send_results() queues their copy to the host, finish() waits
  /// for that copy alone and fills them in. One pass at a time.
  Pass enqueue(const Exec& exec, PreparedBatch& prepared, const PassOptions& options);
  void send_results(const Exec& exec, const Pass& pass);
  void finish(Pass& pass) const;

  /// Pieces of parameters().grads() in the order in which backward completes them: the head, the
  /// layers from the last to the first, the rest.
  std::vector<Tensor> gradient_buckets() const;

  const ModelConfig& config() const { return config_; }
  Parameters& parameters() { return parameters_; }
  const Parameters& parameters() const { return parameters_; }
  sparse::Tables& tables() { return tables_; }

  static constexpr uint32_t kInputDropoutSite = 0;  // layer l has site l + 1
  static constexpr int64_t kMaxTargetsForCollapse = 16;
  static constexpr int64_t kMaxActionCodes = 1024;

 private:
  struct Places;    // what prepare() works in
  struct Rows;      // part one, whole batch
  struct Tokens;    // one micro-batch
  struct UserSide;  // assembled input, stack and postprocessor of one micro-batch
  struct ItemSide;  // item MLP, head

  void prepare_ids(const Batch& batch, sparse::Mode mode, PreparedBatch& out);
  void prepare_branches(PreparedBatch& out);
  void prepare_context(const Batch& batch, PreparedBatch& out) const;
  void sort_inputs(PreparedBatch& out) const;
  void prepare_actions(const Batch& batch, PreparedBatch& out);
  PreparedBatch::Tokens prepare_tokens(const Batch& batch, const MicroBatch& micro,
                                       PreparedBatch& out);
  void fill_tokens(const Batch& batch, const MicroBatch& micro, const PreparedBatch::Tokens& t,
                   int64_t* timestamps, PreparedBatch& out) const;

  Rows rows_forward(const Exec& exec, PreparedBatch& batch, const UploadBlock::Placed& placed,
                    bool training) const;
  void rows_backward(const Exec& exec, Rows& rows) const;
  Tokens place_tokens(const PreparedBatch& batch, const PreparedBatch::Tokens& micro,
                      const UploadBlock::Placed& placed, const Rows& rows,
                      const PassOptions& options) const;
  UserSide user_forward(const Exec& exec, const Rows& rows, const Tokens& tokens,
                        const PassOptions& options) const;
  void user_backward(const Exec& exec, Rows& rows, const Tokens& tokens, const UserSide& user,
                     const Tensor& duser, const PassOptions& options, bool last) const;
  ItemSide item_forward(const Exec& exec, const Rows& rows, const Tokens& tokens,
                        const Tensor& user, const PassResults& results) const;
  Tensor item_backward(const Exec& exec, Rows& rows, const Tokens& tokens,
                       const ItemSide& item) const;
  void loss(const Exec& exec, const Tokens& tokens, const ItemSide& item, double denominator,
            const PassResults& results) const;
  PassResults make_results(const Exec& exec, int64_t labels) const;
  bool collapses_last_layer(const Tokens& tokens) const;

  ModelConfig config_;
  sparse::Tables& tables_;
  int64_t embedding_dim_ = 0;                     // width of table rows
  std::vector<sparse::TableId> sequence_tables_;  // item, then additional
  std::vector<sparse::TableId> contextual_tables_;
  Parameters parameters_;
  std::unique_ptr<Preprocessor> preprocessor_;
  Parameter *position_table_ = nullptr, *time_table_ = nullptr;
  std::vector<StuLayer> layers_;
  std::vector<size_t> layer_parameters_;  // number of each layer's first parameter, and the end
  std::unique_ptr<Postprocessor> postprocessor_;
  std::unique_ptr<Mlp> item_mlp_, head_;
  HeadGroup* heads_ = nullptr;

  std::unique_ptr<Places> places_;   // of prepare(): its memory is kept
  PreparedBatch prepared_;           // of run(batch): likewise
  HostArray<uint8_t> host_results_;  // where results land when they come from a GPU
  Event results_arrived_;
};

}  // namespace segue::model
