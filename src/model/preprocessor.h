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
  bool relu = false;
};

/// The branches in front of the stack that depend on ids and actions alone. They run on rows, not
/// on tokens: one row per distinct tuple of ids, one per action code, one per contextual token.
///   rows         = content MLP(item row) + additional MLP(rows of the other features side by side)
///   action rows  = action MLP(encoded bits)
///   context rows = one linear map per contextual slot
class Preprocessor {
 public:
  Preprocessor(Parameters& parameters, const std::string& prefix, const PreprocessorConfig& config);

  struct Input {
    Tensor content;      // [n, embedding_dim]
    Tensor additional;   // [n, features * embedding_dim], absent without additional features
    Tensor action_code;  // i32 [codes]; 2^bits is the candidate's learned action
    Tensor context;      // [slots, samples, embedding_dim], absent without contextual features
  };
  struct Saved {
    Input input;
    Mlp::Saved content, additional, action;
    Tensor rows;          // [n, dim]
    Tensor action_rows;   // [codes, dim]
    Tensor context_rows;  // [samples, slots, dim]
  };
  Saved forward(const Exec& exec, const Input& input) const;

  /// Gradients of what forward made, already summed over tokens.
  struct RowGradients {
    Tensor rows, action_rows, context_rows;
  };
  /// Gradients of the input rows; allocated in exec's arena, absent where the input is.
  struct InputGradients {
    Tensor content, additional, context;
  };
  InputGradients backward(const Exec& exec, const Saved& saved,
                          const RowGradients& gradients) const;

 private:
  PreprocessorConfig config_;
  std::unique_ptr<Mlp> content_, additional_, action_;
  Parameter *context_weight_ = nullptr, *context_bias_ = nullptr;
  Parameter *action_table_ = nullptr, *action_target_ = nullptr;
};

}  // namespace segue::model
