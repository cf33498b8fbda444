#include "train/checkpoint/checkpoint_writer.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <filesystem>
#include <iterator>
#include <limits>
#include <optional>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/memory.h"
#include "base/parallel.h"
#include "base/stage.h"
#include "base/time.h"
#include "base/version_generated.h"
#include "tensor/device_memory.h"
#include "train/checkpoint/checkpoint.h"
#include "train/checkpoint/checkpoint_records.h"

namespace segue::train {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kSnapshotGrain = 16 << 20;
constexpr int64_t kAlignment = 64;

int64_t to_bytes(double gib) {
  const double bytes = gib * base::kGib;
  constexpr auto kMost = std::numeric_limits<int64_t>::max();
  return bytes < static_cast<double>(kMost) ? static_cast<int64_t>(bytes) : kMost;
}

int64_t aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

int64_t row_bytes_of(const CheckpointArray& array) {
  return array.order.empty() ? 0 : array.value.bytes() / std::ssize(array.order);
}

/// All memory that the rows of an array lie in.
Tensor all_rows(const CheckpointArray& array) {
  const Tensor& value = array.value;
  return {value.data,
          value.dtype,
          value.device,
          {1 + *std::ranges::max_element(array.order), value.size(1)}};
}

/// Bytes [first, last) of an array whose rows lie in another order.
void gather_bytes(const std::byte* data, std::span<const int64_t> order, int64_t row_bytes,
                  int64_t first, int64_t last, std::byte* to) {
  while (first < last) {
    const int64_t skip = first % row_bytes;
    const int64_t bytes = std::min(row_bytes - skip, last - first);
    const int64_t row = order[static_cast<size_t>(first / row_bytes)];
    std::memcpy(to, data + row * row_bytes + skip, static_cast<size_t>(bytes));
    to += bytes;
    first += bytes;
  }
}

}  // namespace

CheckpointWriter::CheckpointWriter(std::string folder, const CheckpointConfig& config,
                                   int64_t shard_bytes, WriterRanks ranks)
    : folder_(std::move(folder)),
      keep_last_(config.keep_last),
      copy_bytes_(to_bytes(config.copy_gib)),
      shard_bytes_(shard_bytes),
      ranks_(ranks) {
  SEGUE_ASSERT(ranks_.rank >= 0 && ranks_.rank < ranks_.size, "a rank beyond the others");
  base::make_folders(folder_.path());
  if (ranks_.rank > 0) return;
  base::sync_folder(base::folder_of(folder_.path()));
  folder_.clear_temporaries(std::numeric_limits<int64_t>::max());
}

CheckpointWriter::~CheckpointWriter() {
  hurry_ = true;
  worker_.wait();
}

void CheckpointWriter::save(int64_t step, CheckpointContents contents,
                            const std::string& state_json, const Stream* stream,
                            const Status& ready, bool increment) {
  const base::Stopwatch stalled;
  worker_.wait();
  job_.step = step;
  ++job_.number;
  job_.state_json = state_json;
  job_.stream = stream;
  job_.ready = ready;
  job_.increment = increment;
  job_.later = std::move(contents.later);
  job_.arrays = std::move(contents.arrays);
  std::erase_if(job_.arrays, [this](const CheckpointArray& array) { return !is_mine(array); });
  for (const CheckpointArray& array : job_.arrays) {
    if (array.value.device.is_cuda()) job_.device = array.value.device;
  }
  const bool wide = !copy_arrays(stream);
  busy_ = true;
  if (wide && alone()) {
    finish(write_part(wide));
  } else if (wide) {
    // Others may need longer for their parts: training does not wait for that.
    worker_.submit([this, record = write_part(wide)] { finish(record); });
  } else {
    worker_.submit([this] { finish(write_part(false)); });
  }
  stalled_seconds_ += stalled.seconds();
}

bool CheckpointWriter::is_mine(const CheckpointArray& array) const {
  SEGUE_ASSERT(!array.part || !alone(), "one rank alone has whole arrays");
  return array.part ? array.saved_here : ranks_.rank == 0;
}

void CheckpointWriter::take_staging(int64_t bytes) {
  if (bytes <= staging_bytes_) return;
  staging_.reset();
  staging_bytes_ = 0;
  try {
    staging_ = std::make_unique_for_overwrite<std::byte[]>(static_cast<size_t>(bytes));
  } catch (const std::bad_alloc&) {
    fail(ErrorCode::kOutOfMemory,
         fmt::format("no memory for the copy of a checkpoint, {} bytes; lower "
                     "checkpoint.copy_gib, and training waits while checkpoints are written",
                     bytes));
  }
  staging_bytes_ = bytes;
}

/// Copies of what lies on a GPU, beside it: the stream is busy with that for milliseconds, however
/// long they are written. False: there is no memory for them.
bool CheckpointWriter::copy_on_device(const Stream* stream) {
  int64_t bytes = 0;
  Device device;
  for (const CheckpointArray& array : job_.arrays) {
    if (array.value.device.is_cpu()) continue;
    device = array.value.device;
    bytes += aligned(array.value.bytes());
  }
  if (bytes == 0 || stream == nullptr) return false;
  device_staging_ = spare_buffer(device, bytes, Purpose::kScratch);
  if (device_staging_.bytes() < bytes) return false;
  auto* to = static_cast<std::byte*>(device_staging_.data());
  for (CheckpointArray& array : job_.arrays) {
    const Tensor from = array.value;
    if (from.device.is_cpu()) continue;
    Tensor copied = from;
    copied.data = to;
    if (array.order.empty()) {
      copy_bytes(to, device, from.data, device, static_cast<size_t>(from.bytes()), stream);
    } else {
      Buffer index;
      gather_on_device(all_rows(array), array.order, copied, stream, index);
      stream->synchronize();
    }
    array.value = copied;
    array.order = {};
    to += aligned(from.bytes());
  }
  copied_.record(*stream);
  return true;
}

/// False: there is too much of it, nothing was copied.
bool CheckpointWriter::copy_arrays(const Stream* stream) {
  const base::Stage stage("checkpoint copy");
  int64_t bytes = 0, on_device = 0;
  for (const CheckpointArray& array : job_.arrays) {
    (array.value.device.is_cpu() ? bytes : on_device) += aligned(array.value.bytes());
  }
  if (bytes > copy_bytes_) return false;
  const bool stays = copy_on_device(stream);
  if (!stays) bytes += on_device;
  if (bytes > copy_bytes_) return false;
  take_staging(bytes);
  std::vector<int64_t> begins;
  std::vector<CheckpointArray> arrays;  // those of the host
  int64_t end = 0;
  for (CheckpointArray& array : job_.arrays) {
    const CheckpointArray from = array;
    if (stays && from.value.device.is_cuda()) continue;
    std::byte* to = staging_.get() + end;
    array.value.data = to;
    array.value.device = Device::cpu();
    array.order = {};
    if (from.value.device.is_cpu()) {
      begins.push_back(end);
      arrays.push_back(from);
    } else if (from.order.empty()) {
      copy_bytes(to, Device::cpu(), from.value.data, from.value.device,
                 static_cast<size_t>(from.value.bytes()), stream);
    } else {
      visit_rows(all_rows(from), from.order, stream,
                 [&](std::span<const std::byte> rows) { to = std::ranges::copy(rows, to).out; });
    }
    end += aligned(from.value.bytes());
  }
  // By bytes, not by arrays: a few large tables and hundreds of small vectors share the threads
  // evenly.
  base::parallel_for(arrays.empty() ? 0 : end, kSnapshotGrain, [&](int64_t from, int64_t to) {
    const auto after = std::upper_bound(begins.begin(), begins.end(), from);
    auto i = static_cast<size_t>(std::max<int64_t>(0, after - begins.begin() - 1));
    for (; i < arrays.size() && begins[i] < to; ++i) {
      const Tensor& value = arrays[i].value;
      const int64_t first = std::max(from, begins[i]);
      const int64_t last = std::min(to, begins[i] + value.bytes());
      if (first >= last) continue;
      const auto* const data = static_cast<const std::byte*>(value.data);
      if (!arrays[i].order.empty()) {
        gather_bytes(data, arrays[i].order, row_bytes_of(arrays[i]), first - begins[i],
                     last - begins[i], staging_.get() + first);
        continue;
      }
      std::memcpy(staging_.get() + first, data + (first - begins[i]),
                  static_cast<size_t>(last - first));
    }
  });
  if (on_device > 0 && !stays && stream != nullptr) stream->synchronize();
  return true;
}

/// For what is not live any more: training has its own.
const Stream* CheckpointWriter::stream_for(Device device) {
  if (device.is_cpu()) return nullptr;
  if (!own_stream_) own_stream_ = std::make_unique<Stream>(device);
  copied_.hold(*own_stream_);
  return own_stream_.get();
}

std::string CheckpointWriter::temporary() const {
  return folder_.temporary(job_.step, job_.number);
}

/// Refuses what would not fit, with something left over for the logs of the run: a save that fills
/// the disk and is removed again would have taken their room meanwhile.
void CheckpointWriter::require_room() const {
  constexpr int64_t kMostLeft = 1 << 20, kLeastShare = 64;
  constexpr size_t kManifestBytes = 4096, kEntryBytes = 512;  // about
  const std::optional<base::DiskSpace> disk = base::disk_space(folder_.path());
  if (!disk) return;
  int64_t needed = 0;
  const auto add = [&](int64_t bytes) {
    needed += (bytes + disk->block - 1) / disk->block * disk->block;
  };
  for (const Shard& shard : job_.shards) {
    auto bytes =
        static_cast<int64_t>(base::safetensors_layout(folder_.path(), shard.items).header.size());
    for (const Shard::Piece& piece : shard.pieces) bytes += piece.bytes;
    add(bytes);
  }
  add(static_cast<int64_t>(job_.state_json.size() + kManifestBytes +
                           kEntryBytes * (job_.shards.size() + job_.arrays.size())));
  needed += std::min(kMostLeft, disk->total / kLeastShare);
  if (needed <= disk->available) return;
  fail(ErrorCode::kIo, fmt::format("{}: No space left on device: it needs {} bytes, {} are free",
                                   folder_.path(), needed, disk->available));
}

/// This rank's files; what goes wrong is in the record.
RankRecord CheckpointWriter::write_part(bool wide) {
  if (!wide) base::name_thread("checkpoint");
  const base::Stage stage("checkpoint write");
  RankRecord record;
  record.step = job_.step;
  record.rank = ranks_.rank;
  const std::string folder = temporary();
  try {
    job_.ready.throw_if_failed();
    if (!wide) {
      use_device(job_.device);
      job_.stream = nullptr;
    }
    for (const CheckpointContents::Later& make : job_.later) {
      std::vector<CheckpointArray> made = make();
      std::erase_if(made, [this](const CheckpointArray& array) { return !is_mine(array); });
      std::ranges::move(made, std::back_inserter(job_.arrays));
    }
    for (const CheckpointArray& array : job_.arrays) {
      if (array.part) record.parts.push_back({ranks_.rank, array.file, array.name, *array.part});
    }
    job_.shards =
        plan_shards(job_.arrays, shard_bytes_, alone() ? std::nullopt : std::optional(ranks_.rank));
    const auto count = static_cast<int64_t>(job_.shards.size());
    record.files.resize(job_.shards.size());
    require_room();
    base::make_folders(folder);
    // In the background one thread is enough: the cores belong to training.
    base::parallel_for(
        count, wide ? 1 : std::max<int64_t>(1, count), [&](int64_t begin, int64_t end) {
          for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
            record.files[i] = write_shard(folder, job_.shards[i]);
          }
        });
  } catch (const Error& error) {
    record.status = Status(error.code(), error.what());
  } catch (const std::exception& error) {
    record.status = Status(ErrorCode::kIo, error.what());
  }
  return record;
}

void CheckpointWriter::finish(RankRecord mine) {
  const base::Stage stage("checkpoint finish");
  Status status;
  bool saved = false;
  try {
    if (ranks_.rank > 0) {
      leave_part(std::move(mine));
    } else {
      complete(std::move(mine));
      saved = true;
      folder_.prune(job_.step, keep_last_);
      folder_.clear_temporaries(job_.number);
    }
  } catch (const Error& error) {
    status = Status(error.code(), error.what());
  } catch (const std::exception& error) {
    status = Status(ErrorCode::kIo, error.what());
  }
  job_.arrays.clear();
  job_.later.clear();
  device_staging_ = Buffer();
  if (!status.ok()) {
    std::error_code ignored;  // the next writer tries again
    if (ranks_.rank == 0) fs::remove_all(temporary(), ignored);
    status = status.with(
        fmt::format("checkpoint of step {} {}", job_.step,
                    saved ? "was saved, but older ones could not be removed" : "was not saved"));
  }
  const std::lock_guard lock(mutex_);
  last_ = status;
  if (!status.ok()) failure_ = status;
  busy_ = false;
}

/// Of a rank that is not the first. When its files could not be written they make room for the
/// record that says so.
void CheckpointWriter::leave_part(RankRecord mine) const {
  const std::string folder = temporary();
  if (!mine.status.ok()) {
    mine.files.clear();
    mine.parts.clear();
    std::error_code ignored;
    for (const Shard& shard : job_.shards) fs::remove(folder + "/" + shard.file_name, ignored);
    base::make_folders(folder);  // it may have failed before there was one
  }
  leave_record(folder, mine);
  mine.status.throw_if_failed();
}

/// Of rank 0: one checkpoint from the parts of all ranks. When one has failed the others are waited
/// for as well, so that nobody writes into a folder that is being removed.
void CheckpointWriter::complete(RankRecord mine) {
  std::vector<RankRecord> records =
      collect_records(temporary(), job_.step, ranks_.size, ranks_.timeout_seconds, hurry_);
  mine.status.throw_if_failed();
  CheckpointManifest manifest;
  manifest.files = std::move(mine.files);
  manifest.parts = std::move(mine.parts);
  for (RankRecord& record : records) {
    record.status.with(fmt::format("rank {}", record.rank)).throw_if_failed();
    std::ranges::move(record.files, std::back_inserter(manifest.files));
    std::ranges::move(record.parts, std::back_inserter(manifest.parts));
  }
  const std::vector<std::string> problems = part_problems(manifest.parts);
  if (!problems.empty()) {
    fail(ErrorCode::kInvalidArgument,
         fmt::format("ranks disagree about who saves what: {}", fmt::join(problems, "; ")));
  }
  write_manifest(std::move(manifest));
}

base::FileRecord CheckpointWriter::write_shard(const std::string& folder, const Shard& shard) {
  const std::string path = folder + "/" + shard.file_name;
  const base::SafetensorsLayout layout = base::safetensors_layout(path, shard.items);
  ShardWriter writer(path, layout.header);
  for (const size_t i : layout.data_order) {
    const Shard::Piece& piece = shard.pieces[i];
    const CheckpointArray& array = job_.arrays[piece.array];
    const Tensor& value = array.value;
    const Stream* const stream = job_.stream != nullptr ? job_.stream : stream_for(value.device);
    if (array.order.empty()) {
      writer.write(static_cast<const std::byte*>(value.data) + piece.offset, value.device,
                   piece.bytes, stream);
    } else if (piece.bytes > 0) {  // whole rows
      const auto row_bytes = row_bytes_of(array);
      visit_rows(all_rows(array),
                 array.order.subspan(static_cast<size_t>(piece.offset / row_bytes),
                                     static_cast<size_t>(piece.bytes / row_bytes)),
                 stream, [&](std::span<const std::byte> rows) {
                   writer.write(rows.data(), Device::cpu(), std::ssize(rows), nullptr);
                 });
    }
  }
  base::FileRecord record = writer.finish();
  record.name = shard.file_name;
  return record;
}

void CheckpointWriter::write_manifest(CheckpointManifest manifest) {
  if (job_.increment) {
    SEGUE_ASSERT(before_ && before_->step < job_.step, "an increment of nothing");
    manifest.increment = before_;
  }
  before_.reset();
  manifest.step = job_.step;
  manifest.ranks = ranks_.size;
  manifest.segue_version = SEGUE_VERSION;
  manifest.state_json = job_.state_json;
  base::OutputFile file(fmt::format("{}/{}", temporary(), kCheckpointManifest));
  const std::string text = manifest.text();
  file.write(text.data(), text.size());
  file.close();
  base::sync_folder(temporary());
  folder_.put_in_place(job_.step, job_.number);
  base::sync_folder(folder_.path());
  before_ = {job_.step, base::xxh64(text), manifest.increment ? manifest.increment->number + 1 : 1};
}

Status CheckpointWriter::wait() {
  worker_.wait();
  const std::lock_guard lock(mutex_);
  return last_;
}

bool CheckpointWriter::succeeded() const {
  const std::lock_guard lock(mutex_);
  return last_.ok() && job_.number > 0;
}

Status CheckpointWriter::take_failure() {
  const std::lock_guard lock(mutex_);
  return std::exchange(failure_, Status());
}

}  // namespace segue::train
