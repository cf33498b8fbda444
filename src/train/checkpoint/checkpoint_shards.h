#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/file_io.h"
#include "base/hash.h"
#include "base/safetensors.h"
#include "tensor/buffer.h"
#include "tensor/tensor.h"
#include "train/checkpoint/checkpoint_part.h"

namespace segue::train {

/// One array of a checkpoint: a contiguous view of live memory on any device. `file` says which
/// file it goes into: "dense", "tables", "metrics"; small letters and _.
///
/// With several ranks an array without a `part` is equal on all of them, and rank 0 saves it. An
/// array with one is spread: `value` [part.rows(), part.width()] is what this rank has of it.
struct CheckpointArray {
  std::string file;
  std::string name;
  Tensor value;
  std::optional<ArrayPart> part;
  bool saved_here = true;  // of those with a part: false where another rank saves the same one
  std::string hint;        // what may be behind it when a checkpoint has another shape
  bool any_rows = false;   // of no fixed size: Checkpoint::read() leaves it alone
  std::string unless;      // likewise where the checkpoint has the array of this name
  /// Row i lies at order[i] in the memory of `value`; absent: at i.
  std::span<const int64_t> order = {};

  ArrayPart layout() const;  // the part, or all of it
};

/// What is saved: arrays, which are copied, and others that are made later, on the writer's thread,
/// by somebody who has a copy of what they are made of.
struct CheckpointContents {
  CheckpointContents() = default;
  CheckpointContents(std::vector<CheckpointArray> all) : arrays(std::move(all)) {}

  std::vector<CheckpointArray> arrays;
  using Later = std::function<std::vector<CheckpointArray>()>;
  std::vector<Later> later;
};

/// The word of the safetensors format.
const char* safetensors_dtype(DType dtype);

inline constexpr int64_t kShardBytes = int64_t{4} << 30;

/// One file in the making: its tensors, and which bytes of which array each of them is.
struct Shard {
  struct Piece {
    size_t array = 0;
    int64_t offset = 0, bytes = 0;
  };
  std::string file_name;
  std::vector<base::SafetensorsItem> items;  // without data
  std::vector<Piece> pieces;
};

/// Cuts the arrays into files of at most `shard_bytes`, a function of names and shapes alone. A
/// file that is enough for all arrays of its kind is `<file>.safetensors`, more of them are
/// `<file>-00000.safetensors` and so on; one of several ranks has `<file>-rank0003` instead of
/// `<file>`. An array larger than a shard is cut by rows (and at least one row); the part that
/// begins at row r is called `<name>.rows-<r>`. Error(kInvalidArgument) for a name that already
/// looks like that.
std::vector<Shard> plan_shards(std::span<const CheckpointArray> arrays, int64_t shard_bytes,
                               std::optional<int> rank = std::nullopt);

/// What the name of a file says; nullopt for names of other files.
struct ShardName {
  std::string kind;  // "tables" for "tables.safetensors" and "tables-rank0003-00007.safetensors"
  int rank = 0;
};
std::optional<ShardName> parse_shard_name(std::string_view file_name);

/// Name and first row of a part; nullopt for the name of a whole array.
struct RowsPart {
  std::string name;
  int64_t first_row = 0;
};
std::optional<RowsPart> rows_part(std::string_view tensor_name);

/// Writes one safetensors file from memory anywhere and hashes on the way. The caller gives the
/// data in the order of the layout. Error(kIo) with the path and the reason.
class ShardWriter {
 public:
  ShardWriter(const std::string& path, std::string_view header);
  /// `stream` orders the copies from a GPU; unused for host memory.
  void write(const void* data, Device device, int64_t bytes, const Stream* stream);
  base::FileRecord finish();  // durable; the record has no name yet

 private:
  base::OutputFile file_;
  base::Xxh64Stream hash_;
  int64_t bytes_ = 0;
  Buffer bounce_;  // host memory for data of a GPU
};

/// to[i] = from[order[i]] on a GPU: `from` [any, columns], `to` [n, columns]. `index` is its memory
/// for the order, until `stream` has done it.
void gather_on_device(const Tensor& from, std::span<const int64_t> order, const Tensor& to,
                      const Stream* stream, Buffer& index);
/// Rows of `from` [any, columns] on any device in this order, some at a time, in host memory.
void visit_rows(const Tensor& from, std::span<const int64_t> order, const Stream* stream,
                const std::function<void(std::span<const std::byte>)>& use);

}  // namespace segue::train
