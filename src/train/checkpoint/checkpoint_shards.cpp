#include "train/checkpoint/checkpoint_shards.h"

#include <algorithm>
#include <charconv>
#include <cstring>

#include <fmt/format.h>

#include "base/error.h"
#include "ops/rows.h"
#include "tensor/exec.h"

namespace segue::train {
namespace {

// Small enough that the write finds in cache what the hash has just read.
constexpr int64_t kHostChunk = 1 << 20;
constexpr int64_t kBounceBytes = 32 << 20;
constexpr std::string_view kExtension = ".safetensors";
constexpr std::string_view kRows = ".rows-";
constexpr std::string_view kRank = "-rank";
constexpr size_t kShardDigits = 5, kRankDigits = 4;

bool is_digits(std::string_view text) {
  return !text.empty() &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

bool is_kind(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(),
                                      [](char c) { return (c >= 'a' && c <= 'z') || c == '_'; });
}

/// Cuts `mark` and a number of at least `digits` digits off the end of `stem`.
std::optional<int> take_number(std::string_view& stem, std::string_view mark, size_t digits) {
  const size_t at = stem.rfind(mark);
  if (at == std::string_view::npos) return std::nullopt;
  const std::string_view text = stem.substr(at + mark.size());
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (text.size() < digits || !is_digits(text) || error != std::errc()) return std::nullopt;
  stem = stem.substr(0, at);
  return number;
}

/// The files of one kind while they are being filled.
class ShardFiller {
 public:
  explicit ShardFiller(int64_t shard_bytes) : shard_bytes_(shard_bytes) {}

  void add(size_t index, const CheckpointArray& array) {
    const Tensor& t = array.value;
    std::vector<int64_t> shape(t.sizes.begin(), t.sizes.begin() + t.rank);
    if (t.bytes() <= shard_bytes_) {
      put(array.name, t.dtype, std::move(shape), {index, 0, t.bytes()});
      return;
    }
    const int64_t rows = t.size(0);
    const int64_t row_bytes = t.bytes() / rows;
    const int64_t most_rows = std::max<int64_t>(1, shard_bytes_ / row_bytes);
    for (int64_t row = 0; row < rows; row += most_rows) {
      shape[0] = std::min(most_rows, rows - row);
      put(fmt::format("{}{}{}", array.name, kRows, row), t.dtype, shape,
          {index, row * row_bytes, shape[0] * row_bytes});
    }
  }

  std::vector<Shard> finish(const std::string& stem) {
    for (size_t i = 0; i < shards_.size(); ++i) {
      shards_[i].file_name = shards_.size() == 1
                                 ? fmt::format("{}{}", stem, kExtension)
                                 : fmt::format("{}-{:0{}}{}", stem, i, kShardDigits, kExtension);
    }
    return std::move(shards_);
  }

 private:
  void put(std::string name, DType dtype, std::vector<int64_t> shape, Shard::Piece piece) {
    const bool fits = filled_ + piece.bytes <= shard_bytes_ || filled_ == 0 || piece.bytes == 0;
    if (shards_.empty() || !fits) {
      shards_.emplace_back();
      filled_ = 0;
    }
    filled_ += piece.bytes;
    shards_.back().items.push_back(
        {std::move(name), safetensors_dtype(dtype), std::move(shape), nullptr});
    shards_.back().pieces.push_back(piece);
  }

  int64_t shard_bytes_;
  int64_t filled_ = 0;
  std::vector<Shard> shards_;
};

}  // namespace

const char* safetensors_dtype(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "F32";
    case DType::kF64:
      return "F64";
    case DType::kBf16:
      return "BF16";
    case DType::kF16:
      return "F16";
    case DType::kI32:
      return "I32";
    case DType::kI64:
      return "I64";
    case DType::kU8:
      return "U8";
  }
  return "?";
}

ArrayPart CheckpointArray::layout() const {
  if (part) return *part;
  return ArrayPart::whole({value.sizes.begin(), value.sizes.begin() + value.rank});
}

std::vector<Shard> plan_shards(std::span<const CheckpointArray> arrays, int64_t shard_bytes,
                               std::optional<int> rank) {
  SEGUE_ASSERT(shard_bytes > 0, "shards without room");
  std::vector<std::string> kinds;  // in the order in which they appear
  std::map<std::string, ShardFiller, std::less<>> fillers;
  for (size_t i = 0; i < arrays.size(); ++i) {
    const CheckpointArray& array = arrays[i];
    SEGUE_ASSERT(is_kind(array.file), "a checkpoint file is named by small letters");
    SEGUE_ASSERT(array.value && array.value.is_contiguous(), "an array of a checkpoint has gaps");
    if (rows_part(array.name)) {
      fail(ErrorCode::kInvalidArgument,
           fmt::format("an array of a checkpoint cannot be called `{}`: names that end like that "
                       "are parts of larger arrays",
                       array.name));
    }
    const auto [filler, is_new] = fillers.try_emplace(array.file, shard_bytes);
    if (is_new) kinds.push_back(array.file);
    filler->second.add(i, array);
  }
  std::vector<Shard> shards;
  for (const std::string& kind : kinds) {
    std::vector<Shard> of_kind = fillers.at(kind).finish(
        rank ? fmt::format("{}{}{:0{}}", kind, kRank, *rank, kRankDigits) : kind);
    std::move(of_kind.begin(), of_kind.end(), std::back_inserter(shards));
  }
  return shards;
}

std::optional<ShardName> parse_shard_name(std::string_view file_name) {
  if (!file_name.ends_with(kExtension)) return std::nullopt;
  std::string_view stem = file_name.substr(0, file_name.size() - kExtension.size());
  take_number(stem, "-", kShardDigits);
  const int rank = take_number(stem, kRank, kRankDigits).value_or(0);
  if (!is_kind(stem)) return std::nullopt;
  return ShardName{std::string(stem), rank};
}

std::optional<RowsPart> rows_part(std::string_view tensor_name) {
  const size_t at = tensor_name.rfind(kRows);
  if (at == std::string_view::npos) return std::nullopt;
  const std::string_view number = tensor_name.substr(at + kRows.size());
  RowsPart part{std::string(tensor_name.substr(0, at)), 0};
  const auto [end, error] =
      std::from_chars(number.data(), number.data() + number.size(), part.first_row);
  if (!is_digits(number) || error != std::errc()) return std::nullopt;
  return part;
}

ShardWriter::ShardWriter(const std::string& path, std::string_view header) : file_(path) {
  write(header.data(), Device::cpu(), static_cast<int64_t>(header.size()), nullptr);
}

void ShardWriter::write(const void* data, Device device, int64_t bytes, const Stream* stream) {
  const int64_t chunk = device.is_cpu() ? kHostChunk : kBounceBytes;
  for (int64_t done = 0; done < bytes; done += chunk) {
    const auto count = static_cast<size_t>(std::min(chunk, bytes - done));
    const void* part = static_cast<const std::byte*>(data) + done;
    if (device.is_cuda()) {
      if (bounce_.bytes() == 0) bounce_ = Buffer(Device::cpu(), kBounceBytes, Purpose::kScratch);
      copy_bytes(bounce_.data(), Device::cpu(), part, device, count, stream);
      if (stream != nullptr) stream->synchronize();
      part = bounce_.data();
    }
    hash_.update(part, count);
    file_.write(part, count);
  }
  bytes_ += bytes;
}

void gather_on_device(const Tensor& from, std::span<const int64_t> order, const Tensor& to,
                      const Stream* stream, Buffer& index) {
  const Tensor here = host_view(order);
  if (index.bytes() < here.bytes()) index = Buffer(from.device, here.bytes(), Purpose::kScratch);
  const Tensor there(index.data(), DType::kI64, from.device, {std::ssize(order)});
  copy(there, here, stream);
  Exec exec;
  exec.device = from.device;
  exec.stream = stream;
  ops::gather_rows(exec, from, there, to);
}

void visit_rows(const Tensor& from, std::span<const int64_t> order, const Stream* stream,
                const std::function<void(std::span<const std::byte>)>& use) {
  const bool on_host = from.device.is_cpu();
  const int64_t columns = from.size(1), row_bytes = columns * size_of(from.dtype);
  if (row_bytes == 0 || order.empty()) return;
  const int64_t most = (on_host ? kHostChunk : kBounceBytes) / row_bytes;
  const int64_t chunk = std::max<int64_t>(1, std::min(std::ssize(order), most));
  const Buffer host(Device::cpu(), chunk * row_bytes, Purpose::kScratch);
  const Buffer there(from.device, on_host ? 0 : chunk * row_bytes, Purpose::kScratch);
  auto* const bytes = static_cast<std::byte*>(host.data());
  Buffer index;
  for (int64_t first = 0; first < std::ssize(order); first += chunk) {
    const int64_t count = std::min(chunk, std::ssize(order) - first);
    const auto some = order.subspan(static_cast<size_t>(first), static_cast<size_t>(count));
    const Tensor rows(there.data(), from.dtype, from.device, {count, columns});
    if (on_host) {
      for (int64_t i = 0; i < count; ++i) {
        const int64_t row = some[static_cast<size_t>(i)];
        std::memcpy(bytes + i * row_bytes,
                    static_cast<const std::byte*>(from.data) + row * row_bytes,
                    static_cast<size_t>(row_bytes));
      }
    } else {
      gather_on_device(from, some, rows, stream, index);
      copy_bytes(bytes, Device::cpu(), rows.data, from.device,
                 static_cast<size_t>(count * row_bytes), stream);
      if (stream != nullptr) stream->synchronize();
    }
    use({bytes, static_cast<size_t>(count * row_bytes)});
  }
}

base::FileRecord ShardWriter::finish() {
  file_.close();
  base::FileRecord record;
  record.bytes = bytes_;
  record.xxh64 = hash_.digest();
  return record;
}

}  // namespace segue::train
