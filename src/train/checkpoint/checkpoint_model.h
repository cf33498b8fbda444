#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "model/parameters.h"
#include "sparse/tables.h"
#include "train/checkpoint/checkpoint.h"

namespace segue::train {

/// Everything that training changes in model and tables: "dense" has `param/<name>`,
/// `adam_m/<name>` and `adam_v/<name>`, "tables" has `<array>/<table>` for the arrays of every
/// table's snapshot (`weight` and `state`). With several ranks those say which part of the whole
/// this rank has of them. Once they have been read into, load_tables() does the rest.
std::vector<CheckpointArray> model_arrays(const model::Parameters& parameters,
                                          sparse::Tables& tables);
/// The same to be saved, as they are after what `stream` was given so far; of tables that much.
CheckpointContents model_contents(const model::Parameters& parameters, sparse::Tables& tables,
                                  sparse::Extent extent, const Stream& stream);

/// What the checkpoint, which outlives it, has of one table; of an increment, with what it is an
/// increment of. Error(kCorrupt) where those do not belong together.
std::unique_ptr<sparse::SavedArrays> table_arrays(const Checkpoint& checkpoint,
                                                  const std::string& table);
/// Keys, or numbers, of the rows that an increment has of one table.
std::vector<int64_t> changed_rows(const Checkpoint& increment, const std::string& table);
/// Reads what the tables read themselves, and makes the arrays that were read before theirs.
void load_tables(const Checkpoint& checkpoint, sparse::Tables& tables);

/// The weights alone, dense ones and tables, by name; what the optimizer keeps stays as it is in a
/// new model. Error(kConfig) lists what the checkpoint has not, or in another shape.
void load_weights(const Checkpoint& checkpoint, const model::Parameters& parameters,
                  sparse::Tables& tables, const Stream& stream);

/// Writes the weights alone, under the names that the reference gives them, as one plain
/// safetensors file: dense parameters, and the embedding tables if `tables`. Appears by rename
/// when complete; a file that is there is replaced.
struct Exported {
  int64_t tensors = 0, bytes = 0;
};
Exported export_weights(const Checkpoint& checkpoint, const std::string& path, bool tables);

}  // namespace segue::train
