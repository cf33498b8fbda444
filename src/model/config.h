#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "attention/hstu_mask.h"
#include "attention/kernel_choice.h"
#include "base/config.h"
#include "model/dlrm_config.h"
#include "model/number_forms.h"
#include "ops/loss.h"
#include "ops/optimizer.h"
#include "sparse/tables_config.h"

namespace segue::model {

enum class Family { kHstu, kDlrm };
enum class LayerKind { kConcat, kGated };
enum class OutputNorm { kLayer, kGroup };
enum class TokenKind { kMerged, kInterleaved, kPaired };
enum class LabelKind { kCandidates, kEveryItem };
enum class EmbeddingMlp { kSwishNorm, kRelu };
enum class PostprocessorKind { kL2, kLayerNorm, kTimestampLayerNorm };
enum class HeadKind { kProduct, kDirect };
enum class HeadPrecision { kFloat, kTraining };
enum class ScoreScale { kMaxSeqLen, kBatchMax };
enum class KeyInit { kOwn, kAsQueries };
enum class InputScale { kRootWidth, kOne };

/// A feature of every event: its column in the history, its column among the candidates, its table.
struct SequenceFeature {
  std::string history;
  std::string candidate;
  std::string table;
  int64_t values = 1;  // see value_columns

  /// One for each of its columns; `values` stays that of all.
  std::vector<SequenceFeature> columns() const;
};
void describe(base::ConfigVisitor& v, SequenceFeature& c);

/// A feature of the sample: `max_length` tokens in front of the sequence.
struct ContextualFeature {
  std::string name;
  std::string table;
  int64_t max_length = 1;
  int64_t min_sequence = 0;  // samples shorter than this see zeros instead
  int64_t values = 1;        // see value_columns; a token is the sum of their rows
};
void describe(base::ConfigVisitor& v, ContextualFeature& c);

/// Numeric features of every event and candidate: float columns, `name` of the history and
/// item_candidate_`name` of the candidates. A small MLP makes a vector of all of them, which is
/// added to what the head sees of a prediction, and another one that is added to tokens.
struct NumericConfig {
  std::vector<std::string> columns;  // empty: none
  int64_t hidden = 32;               // of both MLPs
  bool tokens = false;               // of history and candidates get them too
  /// Known only after an event: of the history's, and of tokens alone; those of candidates are
  /// missing.
  std::vector<std::string> outcomes = {};
  std::vector<NumberForm> forms = {};  // of columns and outcomes

  int64_t width() const { return numbers_width(columns, forms); }
  int64_t token_width() const { return width() + numbers_width(outcomes, forms); }
  bool any() const { return !columns.empty(); }
  bool in_tokens() const { return tokens && (any() || !outcomes.empty()); }
  void validate() const;  // Error(kConfig)
  static std::string of_candidate(const std::string& column) { return "item_candidate_" + column; }
};
void describe(base::ConfigVisitor& v, NumericConfig& c);

/// What the user did, as a set of bits.
struct ActionConfig {
  std::string history = "action_weight";
  std::vector<int64_t> weights = {1, 2, 4};
  int64_t dim = 8;
};
void describe(base::ConfigVisitor& v, ActionConfig& c);

struct TaskConfig {
  std::string name;
  ops::TaskKind kind = ops::TaskKind::kBinary;
  int64_t bit = 1;    // binary: label = (label column & bit) > 0; regression: the column's value
  double weight = 1;  // factor of this task's mean loss
};
void describe(base::ConfigVisitor& v, TaskConfig& c);

struct AttentionConfig {
  bool contextual_mask =
      false;           // contextual rows see all history (off: they are causal like the rest)
  int64_t window = 0;  // 0: unlimited
  int64_t min_full = 0;
  int64_t global_prefix = 0;  // tokens at the start of a sample
  int64_t target_group = 1;
  ScoreScale score_scale = ScoreScale::kMaxSeqLen;
  /// Initial weights of keys: drawn, or those of the queries, so that tokens look for their like
  /// from the first step on.
  KeyInit key_init = KeyInit::kOwn;
  attention::Kernel kernel = attention::Kernel::kAuto;  // of full layers on a GPU
};
void describe(base::ConfigVisitor& v, AttentionConfig& c);

/// Later layers work on the newest tokens of a sample only.
struct TruncationConfig {
  int64_t from_layer = 0;  // the first such layer, counted from 0; 0: there is none
  int64_t events = 0;      // of the history that are left
};
void describe(base::ConfigVisitor& v, TruncationConfig& c);

/// Exact rewritings that skip work; results agree with the plain path to rounding.
struct IdentityConfig {
  bool last_layer_targets = true;  // the last STU layer is computed at target rows only
  bool distinct_rows = true;       // id branches run once per distinct tuple of ids
  bool action_codes = true;        // the action branch runs once per possible bit pattern
};
void describe(base::ConfigVisitor& v, IdentityConfig& c);

/// What backward rebuilds instead of keeping, per STU layer.
struct RecomputeConfig {
  bool normed_input = false;
  bool uvqk = false;
  bool gate = false;
};
void describe(base::ConfigVisitor& v, RecomputeConfig& c);

/// `family` says which model; tasks are everyone's, `dlrm` is the DLRM's, the rest is the ranker's.
struct ModelConfig {
  Family family = Family::kHstu;
  int64_t dim = 512;
  int64_t heads = 4;
  int64_t qk_dim = 128;  // per head
  int64_t v_dim = 128;   // per head
  int64_t layers = 3;
  int64_t hidden = 256;  // of the MLPs in front of the stack
  int64_t item_hidden = 512;
  int64_t head_hidden = 512;
  int64_t max_seq_len = 4096;  // tokens of a sample, contextual and candidate tokens included
  int64_t position_buckets = 8192;
  int64_t time_buckets = 2048;  // the table has one row more; 0: no time encoding
  double input_dropout = 0.2;
  double dropout = 0.1;

  LayerKind layer = LayerKind::kConcat;
  OutputNorm output_norm = OutputNorm::kLayer;
  TokenKind tokens = TokenKind::kMerged;
  /// Factor of item and action in a token, before position and time are added. The reference's is
  /// sqrt(dim): next to it, what a layer adds is small for a long time.
  InputScale input_scale = InputScale::kRootWidth;
  LabelKind labels = LabelKind::kCandidates;
  EmbeddingMlp embedding_mlp = EmbeddingMlp::kSwishNorm;
  PostprocessorKind postprocessor = PostprocessorKind::kTimestampLayerNorm;
  HeadKind head = HeadKind::kProduct;
  HeadPrecision head_precision = HeadPrecision::kFloat;  // of the item side too
  /// pi in the cyclic time features; the reference uses 3.14.
  double time_pi = 3.14159265358979323846;

  SequenceFeature item{"item_id", "item_candidate_id", "item_id"};
  std::vector<SequenceFeature> additional;
  std::vector<ContextualFeature> contextual;
  NumericConfig numeric;
  ActionConfig action;
  std::string history_timestamp = "action_timestamp";
  std::string candidate_timestamp = "item_query_time";
  std::string candidate_label = "item_action_weight";
  /// every_item: column of the history with label bits, -1 for events that are not predicted;
  /// empty: all are, by their action. Whoever makes the samples decides, so it is no key of the
  /// config.
  std::string event_label;
  std::vector<TaskConfig> tasks;

  AttentionConfig attention;
  TruncationConfig truncation;
  IdentityConfig identities;
  RecomputeConfig recompute;
  DlrmConfig dlrm;

  static constexpr double kStuEps = 1e-6;
  static constexpr double kNormEps = 1e-5;
  static constexpr double kTimeBucketSeconds = 60.0;
  static constexpr int64_t kMostTargetsOfOne = 16;  // for which the last layer is done at targets

  int64_t contextual_tokens() const;
  /// Tokens one history event becomes.
  int64_t tokens_per_event() const { return tokens == TokenKind::kMerged ? 1 : 2; }
  /// Nothing in a token tells what follows it. Interleaved tokens are as published: their positions
  /// and ages count from the end of the sample.
  bool causal_tokens() const {
    return labels == LabelKind::kEveryItem && tokens != TokenKind::kInterleaved;
  }
  /// Tokens of a sample; candidates count where they are what is labelled.
  int64_t sample_tokens(int64_t events, int64_t candidates) const {
    return contextual_tokens() + events * tokens_per_event() +
           (labels == LabelKind::kCandidates ? candidates : 0);
  }
  /// Layers that work on all tokens; those behind them work on what kept_tokens() says.
  int64_t whole_layers() const {
    return truncation.from_layer > 0 ? truncation.from_layer : layers;
  }
  /// What is left of a sample where it is truncated: its first tokens and its newest ones,
  /// `dropped` tokens between them are not. Contextual tokens and the global prefix, which every
  /// token may see, are always left, and so are targets.
  struct Kept {
    int64_t first = 0, dropped = 0;
  };
  Kept kept_tokens(int64_t count, int64_t targets) const;
  /// What keeps identities.last_layer_targets from being used for samples of at most so many
  /// candidates; null: nothing.
  const char* why_last_layer_is_full(int64_t most_candidates) const;
  attention::HstuMask attention_mask() const;
  int64_t uvqk_columns() const { return heads * (2 * v_dim + 2 * qk_dim); }

  void validate() const;  // Error(kConfig)
};
void describe(base::ConfigVisitor& v, ModelConfig& c);

struct OptimizerConfig {
  ops::DenseOptimizer kind = ops::DenseOptimizer::kAdam;
  double lr = 1e-3;
  double sparse_lr = 1e-2;
  double beta1 = 0.95, beta2 = 0.999, eps = 1e-8, weight_decay = 0;
  double clip_norm = 1.0;  // 0: no clipping
  int64_t warmup_steps = 0;
  double warmup_start_lr = 0;
  /// The reference's optimizer has counted one step before training starts, so its first update
  /// uses t = 2. Off: t = 1.
  bool adam_counts_initial_step = false;

  void validate() const;  // Error(kConfig)
};
void describe(base::ConfigVisitor& v, OptimizerConfig& c);

/// Model, tables and optimizer of a published configuration; Error(kConfig) with the known names.
struct Preset {
  ModelConfig model;
  sparse::TablesConfig tables;
  OptimizerConfig optimizer;
};
Preset preset(std::string_view name);  // "yambda-5b"

}  // namespace segue::model
