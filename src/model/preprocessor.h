#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "model/config.h"
#include "model/mlp.h"
#include "model/parameters.h"
#include "tensor/exec.h"

namespace segue::model {

struct PreprocessorConfig {
  int64_t embedding_dim = 0, hidden = 0, dim = 0;
  int64_t additional_features = 0;
  int64_t contextual_tokens = 0;
  int64_t action_bits = 0, action_dim = 0;
  int64_t numbers = 0, numeric_hidden = 0;  // of every event and candidate; 0: none
  bool relu = false;
};

/// The branches in front of the stack that depend on ids and actions alone. They run on rows, not
/// on tokens: one row per distinct tuple of ids, one per action code, one per contextual token.
///   rows         = content MLP(item row) + additional MLP(rows of the other features side by side)
///   action rows  = action MLP(encoded bits) (+ numeric MLP(numbers): codes are events then)
///   context rows = one linear map per contextual slot
class Preprocessor {
 public:
  Preprocessor(Parameters& parameters, const std::string& prefix, const PreprocessorConfig& config);

  /// Rows of tables, side by side in one matrix [.., embedding_dim]: split_inputs() says where.
  struct Inputs {
    Tensor content;     // [n, embedding_dim]
    Tensor additional;  // [n, features * embedding_dim], absent without additional features
    Tensor context;     // [slots, samples, embedding_dim], absent without contextual features
  };
  Inputs split_inputs(const Tensor& all, int64_t n, int64_t samples) const;

  struct Saved {
    Inputs input;
    Tensor action_code;
    Mlp::Saved content, additional, action, numeric;
    Tensor rows;          // [n, dim]
    Tensor action_rows;   // [codes, dim]
    Tensor context_rows;  // [samples, slots, dim]
  };
  /// `action_code`: i32 [codes]; 2^bits is the candidate's learned action.
  /// `numbers` [codes, numbers], absent without.
  Saved forward(const Exec& exec, const Inputs& inputs, const Tensor& action_code,
                const Tensor& numbers = {}) const;

  /// Gradients of what forward made, already summed over tokens: parts of one matrix [row_count,
  /// dim].
  struct RowGradients {
    Tensor rows, action_rows, context_rows;
  };
  struct Sizes {
    int64_t rows = 0, codes = 0, samples = 0;
  };
  int64_t row_count(const Sizes& n) const;
  RowGradients split_rows(const Tensor& all, const Saved& saved) const;

  /// `gradients` [row_count, dim] and `dinputs` are laid out as split_rows() and split_inputs()
  /// say; the latter is overwritten.
  void backward(const Exec& exec, const Saved& saved, const Tensor& gradients,
                const Tensor& dinputs) const;

  /// What they take from exec's arena: see ArenaPlan.
  void forward_memory(const Exec& exec, const Sizes& n) const;
  void backward_memory(const Exec& exec, const Sizes& n) const;

 private:
  PreprocessorConfig config_;
  std::unique_ptr<Mlp> content_, additional_, action_, numeric_;
  Parameter *context_weight_ = nullptr, *context_bias_ = nullptr;
  Parameter *action_table_ = nullptr, *action_target_ = nullptr;
};

}  // namespace segue::model
