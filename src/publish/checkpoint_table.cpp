#include "publish/checkpoint_table.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <numeric>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "sparse/hash_index.h"
#include "train/checkpoint/checkpoint_model.h"

namespace segue::publish {
namespace {

constexpr const char* kTables = "tables";
constexpr std::string_view kWeight = "weight/";
constexpr size_t kMostAhead = 1024;

const train::Checkpoint::Array& weight_of(const train::Checkpoint& checkpoint,
                                          const std::string& table) {
  for (const train::Checkpoint::Array& array : checkpoint.arrays()) {
    if (array.file == kTables && array.name == std::string(kWeight) + table) return array;
  }
  const std::vector<std::string> names = tables_of(checkpoint);
  fail(ErrorCode::kNotFound, fmt::format("{}: there is no table `{}`; there is: {}",
                                         checkpoint.path(), table, fmt::join(names, ", ")));
}

DType dtype_of(const train::Checkpoint& checkpoint, const train::Checkpoint::Array& array) {
  for (const DType known : {DType::kF32, DType::kF64}) {
    if (array.dtype == train::safetensors_dtype(known)) return known;
  }
  fail(ErrorCode::kUnsupported, fmt::format("{}: `{}` was saved as {}; tables of F32 or F64 can be "
                                            "published",
                                            checkpoint.path(), array.name, array.dtype));
}

}  // namespace

std::vector<std::string> tables_of(const train::Checkpoint& checkpoint) {
  std::vector<std::string> names;
  for (const train::Checkpoint::Array& array : checkpoint.arrays()) {
    if (array.file == kTables && array.name.starts_with(kWeight)) {
      names.push_back(array.name.substr(kWeight.size()));
    }
  }
  std::ranges::sort(names);
  return names;
}

std::optional<std::vector<int64_t>> changed_keys(const train::Checkpoint& checkpoint,
                                                 const std::string& table, uint64_t since) {
  std::vector<int64_t> keys;
  for (const train::Checkpoint* at = &checkpoint; at->manifest().checksum != since;
       at = at->before()) {
    if (at->before() == nullptr) return std::nullopt;
    std::ranges::copy(train::changed_rows(*at, table), std::back_inserter(keys));
  }
  std::ranges::sort(keys);
  keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
  return keys;
}

CheckpointTable::CheckpointTable(const train::Checkpoint& checkpoint, std::string table,
                                 RowType type)
    : path_(checkpoint.path()),
      table_(std::move(table)),
      saved_(train::table_arrays(checkpoint, table_)),
      stored_(dtype_of(checkpoint, weight_of(checkpoint, table_))),
      codec_(type, 0) {
  const std::vector<int64_t> shape = *saved_->shape("weight");
  if (shape.size() != 2 || shape[1] < 1) {
    fail(ErrorCode::kCorrupt, fmt::format("{}: table `{}` is no matrix", path_, table_));
  }
  codec_ = RowCodec(type, shape[1]);
  dynamic_ = saved_->shape("key").has_value();
  if (dynamic_ || saved_->shape("row")) {
    std::vector<int64_t> ids = sparse::saved_integers(*saved_, dynamic_ ? "key" : "row", 1);
    if (dynamic_) std::ranges::transform(ids, ids.begin(), sparse::id_of_key);
    // Keys have another order, and so have rows that several ranks saved.
    places_.resize(ids.size());
    std::iota(places_.begin(), places_.end(), 0);
    std::ranges::sort(places_, {}, [&](int64_t place) { return ids[static_cast<size_t>(place)]; });
    ids_.reserve(ids.size());
    for (const int64_t place : places_) ids_.push_back(ids[static_cast<size_t>(place)]);
  } else {
    ids_.resize(static_cast<size_t>(shape[0]));
    std::iota(ids_.begin(), ids_.end(), 0);
  }
  const bool ascending = std::ranges::adjacent_find(ids_, std::greater_equal<>()) == ids_.end();
  if (std::ssize(ids_) != shape[0] || !ascending) {
    fail(ErrorCode::kCorrupt,
         fmt::format("{}: table `{}` has {} rows, but not as many ids in order", path_, table_,
                     shape[0]));
  }
}

std::vector<int64_t> CheckpointTable::ids_of(std::vector<int64_t> keys) const {
  if (!dynamic_) return keys;
  for (int64_t& key : keys) key = sparse::id_of_key(key);
  std::ranges::sort(keys);
  return keys;
}

Row CheckpointTable::row(size_t i) {
  const size_t have = weights_.size() / static_cast<size_t>(codec_.weight_bytes());
  if (i < first_ || i >= first_ + have) {
    // Twice as many as before where rows are wanted one after the other.
    ahead_ = have > 0 && i == first_ + have ? std::min(2 * ahead_, kMostAhead) : 1;
    read(i, std::min(ahead_, ids_.size() - i));
  }
  const size_t at = i - first_;
  return {weights_.data() + at * static_cast<size_t>(codec_.weight_bytes()), scales_[at]};
}

void CheckpointTable::read(size_t first, size_t count) {
  const auto dim = static_cast<size_t>(codec_.dim());
  const auto weight_bytes = static_cast<size_t>(codec_.weight_bytes());
  numbers_.resize(count * dim);
  scales_.resize(count);
  weights_.clear();  // nothing is there if this throws
  for (size_t i = 0; i < count;) {
    // Rows that lie together are read together.
    const auto place_of = [&](size_t at) {
      return places_.empty() ? static_cast<int64_t>(first + at) : places_[first + at];
    };
    size_t run = 1;
    while (i + run < count && place_of(i + run) == place_of(i) + static_cast<int64_t>(run)) ++run;
    read_numbers(place_of(i), static_cast<int64_t>(run), &numbers_[i * dim]);
    i += run;
  }
  std::vector<std::byte> encoded(count * weight_bytes);
  for (size_t i = 0; i < count; ++i) {
    const std::span<const float> numbers(&numbers_[i * dim], dim);
    if (codec_.encode(numbers, encoded.data() + i * weight_bytes, scales_[i])) continue;
    fail(ErrorCode::kNumeric,
         fmt::format("{}: table `{}`, id {}: not finite as {}; publish an earlier checkpoint",
                     path_, table_, ids_[first + i], to_string(codec_.type())));
  }
  weights_ = std::move(encoded);
  first_ = first;
}

void CheckpointTable::read_numbers(int64_t place, int64_t count, float* to) {
  if (stored_ == DType::kF32) return saved_->read("weight", stored_, place, count, to);
  wide_.resize(static_cast<size_t>(count * codec_.dim()));
  saved_->read("weight", stored_, place, count, wide_.data());
  std::ranges::transform(wide_, to, [](double x) { return static_cast<float>(x); });
}

}  // namespace segue::publish
