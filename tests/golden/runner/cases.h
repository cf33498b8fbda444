#pragma once

#include <cstdint>
#include <string>

#include "runner/case_file.h"
#include "runner/result.h"
#include "runner/workspace.h"

namespace segue::golden {

inline constexpr int64_t kWholeBatch = int64_t{1} << 20;  // tokens: no cut

/// One way to run a case. Model cases have three, so that the exact rewritings and the cut into
/// micro-batches are held to the same numbers as the plain path.
struct Variant {
  std::string name;
  bool identities = false;
  int64_t micro_batch_tokens = kWholeBatch;
};

/// What a case kind needs to run.
struct CaseContext {
  const Case& golden;
  const Variant& variant;
  const std::string& folder;  // of the file, for cases that refer to another one
  Workspace& workspace;
  Checker& checker;
};

/// One function per `op`: reads inputs, runs Segue's code, compares. What is wrong with the case
/// itself comes out as segue::Error.
void run_attention(const CaseContext& context);
void run_stu_layer(const CaseContext& context);
void run_positional_encoder(const CaseContext& context);
void run_contextual_preprocessor(const CaseContext& context);
void run_postprocessor(const CaseContext& context);
void run_metrics(const CaseContext& context);
void run_train_step(const CaseContext& context);
void run_trajectory(const CaseContext& context);
void run_trajectory_parameters(const CaseContext& context);
void run_samples(const CaseContext& context);
void run_windows(const CaseContext& context);
void run_window_shuffle(const CaseContext& context);
void run_user_split(const CaseContext& context);

}  // namespace segue::golden
