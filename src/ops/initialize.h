#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "tensor/exec.h"

namespace segue::ops {

enum class Init { kZeros, kOnes, kUniform, kNormal, kTruncatedNormal, kConstant };

/// Fills a tensor with values that depend on (seed, name, row, column) alone: uniform in
/// [-bound, bound), normal with standard deviation `bound`, the same but drawn again beyond two
/// standard deviations, or `bound` itself. Columns are the last dimension, rows all others (a flat
/// [n] is one row).
void initialize(const Tensor& to, Init kind, double bound, uint64_t seed, std::string_view name);

/// How the rows of a table begin; see initialize().
struct RowInit {
  Init kind = Init::kUniform;
  double bound = 0;
  uint64_t seed = 0;
  uint64_t name_hash = 0;  // base::xxh64 of the table's name
};

/// The same for some rows and columns of a larger whole: row i is row row_numbers[i] (i64, where
/// the tensor is), columns count from `first_column`. Normal numbers of a GPU may differ from the
/// CPU's in their last bit. Without a stream it is finished on return.
void initialize_part(const Tensor& to, const RowInit& init, const Tensor& row_numbers,
                     int64_t first_column, const Stream* stream = nullptr);

/// Rows of tables whose keys are mixed ids (base::splitmix64), which are their row numbers. Where
/// is_new[i] (u8), row slots[i] (i64) of `weights` gets its initial values and of `state` zeros.
struct NewRows {
  RowInit init;
  Tensor keys, slots, is_new, weights, state;
};
void initialize_new_rows(const Exec& exec, std::span<const NewRows> tables);

/// Row i of `to` stands for key of[i] - first (i32 `of`; -1: for none; absent: for key i). Where
/// slots[that] is -1, it gets the initial values of the key; keys that are not `mixed` are the ids.
struct MissingRows {
  RowInit init;
  Tensor keys;
  bool mixed = false;
  Tensor slots, to;
  Tensor of = {};
  int64_t first = 0;
};
void initialize_missing_rows(const Exec& exec, std::span<const MissingRows> tables);

}  // namespace segue::ops
