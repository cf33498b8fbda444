#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "batch/batch.h"
#include "model/config.h"
#include "model/head_group.h"
#include "model/layout.h"
#include "model/mlp.h"
#include "model/model.h"
#include "model/postprocessor.h"
#include "model/preprocessor.h"
#include "model/ranker_batch.h"
#include "model/stu.h"
#include "sparse/tables.h"
#include "tensor/exec.h"

namespace segue::model {

/// The HSTU ranker. A pass has three parts: rows (per distinct id: look up, id-only branches),
/// tokens (micro-batches: assemble, STU stack, head, loss, backward), rows backward.
class Ranker final : public Model {
 public:
  Ranker(const ModelConfig& config, const sparse::TablesConfig& tables);
  /// Allocated at once.
  Ranker(const ModelConfig& config, sparse::Tables& tables, Device device, DType parameter_dtype,
         uint64_t seed);
  ~Ranker() override;

  const ModelConfig& config() const { return config_; }

  std::string summary() const override;
  std::vector<ColumnDemand> demands() const override;
  int64_t sample_tokens(int64_t events, int64_t candidates) const override;
  int64_t most_events(int64_t candidates) const override;
  int64_t most_tokens() const override { return config_.max_seq_len; }
  StepMemory step_memory(const StepBounds& bounds, Precision precision,
                         Device device) const override;
  int64_t batch_memory(const StepBounds& bounds) const override;
  std::vector<MemorySwitch> memory_switches(const StepBounds& bounds, Precision precision,
                                            Device device) const override;
  double flops(std::span<const int64_t> token_offsets, bool training) const override;
  double padded_flops() const override;
  SampleWork work() const override;
  /// The head, the layers from the last to the first, the rest.
  std::vector<Bucket> buckets() const override;
  std::string attention_kernel(Device device, Precision precision) const override;
  int64_t heads_to_share() const override { return config_.heads; }

  int64_t prepare_memory(const StepBounds& bounds) const override;
  void reserve_prepare(int64_t bytes) override;
  void set_head_group(HeadGroup* heads) override;
  std::unique_ptr<PreparedBatch> new_batch() const override;
  void prepare(const Batch& batch, int64_t micro_batch_tokens, sparse::Mode mode,
               PreparedBatch& prepared) override;
  Pass enqueue(const Exec& exec, PreparedBatch& prepared, const PassOptions& options) override;

  static constexpr uint32_t kInputDropoutSite = 0;  // layer l has site l + 1
  static constexpr int64_t kMaxActionCodes = 1024;

 private:
  struct Places;    // what prepare() works in
  struct Rows;      // part one, whole batch
  struct Tokens;    // one micro-batch
  struct UserSide;  // assembled input, stack and postprocessor of one micro-batch
  struct ItemSide;  // item MLP, head

  sparse::IdRange read_feature(const Batch& batch, const SequenceFeature& feature,
                               HostArray<int64_t>& to);
  bool attribute_of_items(const Batch& batch, const SequenceFeature& feature,
                          std::span<const int32_t> item, HostArray<int64_t>& of_item);
  void prepare_columns(const Batch& batch, RankerBatch& out);
  void start_items(const Batch& batch, RankerBatch& out);
  void finish_items(RankerBatch& out);
  void find_items(const Batch& batch, RankerBatch& out);
  void prepare_ids(const Batch& batch, sparse::Mode mode, RankerBatch& out);
  void prepare_branches(RankerBatch& out);
  void prepare_context(const Batch& batch, RankerBatch& out) const;
  void prepare_bags(RankerBatch& out) const;
  void sort_inputs(RankerBatch& out) const;
  void prepare_actions(const Batch& batch, RankerBatch& out) const;
  void prepare_numbers(const Batch& batch, RankerBatch& out) const;
  Tensor place_numbers(const RankerBatch::Numbers& numbers, int64_t width,
                       const UploadBlock::Placed& placed) const;
  RankerBatch::Tokens prepare_tokens(const Batch& batch, const MicroBatch& micro,
                                     RankerBatch& out) const;
  void prepare_truncated(RankerBatch::Tokens& t, RankerBatch& out) const;
  void fill_labels(const Batch& batch, const RankerBatch::Tokens& t, RankerBatch& out) const;

  Rows rows_forward(const Exec& exec, RankerBatch& batch, const UploadBlock::Placed& placed,
                    bool training) const;
  void rows_backward(const Exec& exec, Rows& rows) const;
  Tokens place_tokens(const Exec& exec, const RankerBatch& batch, const RankerBatch::Tokens& micro,
                      const UploadBlock::Placed& placed, const Rows& rows,
                      const PassOptions& options) const;
  void place_truncated(const Exec& exec, const RankerBatch::Tokens& micro,
                       const UploadBlock::Placed& placed, Tokens& t) const;
  int64_t num_features() const { return 1 + std::ssize(config_.additional); }
  int64_t num_columns() const { return std::ssize(columns_); }
  int64_t context_ids() const;  // of a sample
  bool truncates() const { return config_.truncation.from_layer > 0; }
  UserSide user_forward(const Exec& exec, const Tokens& tokens, const PassOptions& options) const;
  void user_backward(const Exec& exec, Rows& rows, const Tokens& tokens, const UserSide& user,
                     const Tensor& duser, const PassOptions& options, bool last) const;
  Exec head_exec(const Exec& exec) const;
  ItemSide item_forward(const Exec& exec, const Rows& rows, const Tokens& tokens,
                        const Tensor& user, const PassResults& results) const;
  Tensor item_backward(const Exec& exec, Rows& rows, const Tokens& tokens,
                       const ItemSide& item) const;
  void loss(const Exec& exec, const Tokens& tokens, const ItemSide& item, double denominator,
            const PassResults& results) const;

  struct LargestBatch;  // what step_memory() plans for
  void plan_feature_gradients(const Exec& exec, int64_t ids, int64_t table_rows) const;
  void tokens_forward_memory(const Exec& exec, const LargestBatch& b) const;
  void tokens_backward_memory(const Exec& exec, const LargestBatch& b) const;

  ModelConfig config_;
  sparse::TablesConfig tables_config_;
  int64_t embedding_dim_ = 0;                     // width of table rows
  std::vector<SequenceFeature> columns_;          // the item's, then those of additional features
  std::vector<sparse::TableId> sequence_tables_;  // of columns_
  std::vector<sparse::TableId> contextual_tables_;
  bool bags_ = false;  // some feature has several values, whose rows are summed
  std::unique_ptr<Preprocessor> preprocessor_;
  Parameter *position_table_ = nullptr, *time_table_ = nullptr;
  std::vector<StuLayer> layers_;
  std::vector<size_t> layer_parameters_;  // number of each layer's first parameter, and the end
  std::unique_ptr<Postprocessor> postprocessor_;
  std::unique_ptr<Mlp> item_mlp_, numeric_mlp_, head_;
  HeadGroup* heads_ = nullptr;

  std::unique_ptr<Places> places_;  // of prepare(): its memory is kept
};

}  // namespace segue::model
