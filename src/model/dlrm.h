#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "model/dense_stack.h"
#include "model/model.h"

namespace segue::model {

/// A plain DLRM: see DlrmConfig. A row is what has a label: the sample, or each of its candidates,
/// which then share the ids and dense features of their sample. Its tokens are its ids.
class Dlrm final : public Model {
 public:
  Dlrm(const ModelConfig& config, const sparse::TablesConfig& tables);

  std::string summary() const override;
  std::vector<ColumnDemand> demands() const override;
  int64_t sample_tokens(int64_t events, int64_t candidates) const override;
  int64_t most_events(int64_t candidates) const override;
  int64_t most_tokens() const override;
  StepMemory step_memory(const StepBounds& bounds, Precision precision,
                         Device device) const override;
  int64_t batch_memory(const StepBounds& bounds) const override;
  double flops(std::span<const int64_t> token_offsets, bool training) const override;
  double padded_flops() const override;
  SampleWork work() const override;
  /// The top MLP, the bottom one.
  std::vector<Bucket> buckets() const override;

  std::unique_ptr<PreparedBatch> new_batch() const override;
  void prepare(const Batch& batch, int64_t micro_batch_tokens, sparse::Mode mode,
               PreparedBatch& prepared) override;
  Pass enqueue(const Exec& exec, PreparedBatch& prepared, const PassOptions& options) override;

 private:
  struct Prepared;
  struct Forward;

  int64_t vectors() const;  // that interact: bags, and the output of the bottom MLP
  int64_t interaction_columns() const;
  double row_flops() const;
  void prepare_bags(const Batch& batch, Prepared& out) const;
  void prepare_dense(const Batch& batch, Prepared& out) const;
  template <class T>
  void fill_dense(const Batch& batch, const Prepared& out, std::span<T> to) const;
  void prepare_labels(const Batch& batch, Prepared& out) const;

  Forward forward(const Exec& exec, Prepared& batch, const UploadBlock::Placed& placed,
                  const PassResults& results) const;
  Tensor loss(const Exec& exec, const Prepared& batch, const UploadBlock::Placed& placed,
              double denominator, const PassResults& results) const;
  /// Returns the gradients of the table rows.
  Tensor backward(const Exec& exec, const Prepared& batch, const UploadBlock::Placed& placed,
                  const Forward& saved, const Tensor& dlogits, const PassOptions& options) const;

  DlrmConfig config_;
  sparse::TablesConfig tables_config_;
  std::vector<sparse::TableId> feature_tables_;
  std::vector<std::vector<std::string>> columns_;  // of every feature
  int64_t dim_ = 0;                                // of table rows
  std::unique_ptr<DenseStack> top_, bottom_;
  size_t top_parameters_ = 0;
};

}  // namespace segue::model
