#include "train/checkpoint_writer.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <exception>
#include <filesystem>
#include <limits>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>

#include "base/file.h"
#include "base/parallel.h"
#include "base/stage.h"
#include "base/time.h"
#include "base/version_generated.h"
#include "train/checkpoint.h"
#include "train/checkpoint_manifest.h"

namespace segue::train {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kCopyGrain = 16 << 20;
constexpr int64_t kAlignment = 64;
constexpr double kGib = 1 << 30;

int64_t to_bytes(double gib) {
  const double bytes = gib * kGib;
  constexpr auto kMost = std::numeric_limits<int64_t>::max();
  return bytes < static_cast<double>(kMost) ? static_cast<int64_t>(bytes) : kMost;
}

int64_t aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

void remove_folder(const std::string& path) {
  std::error_code error;
  fs::remove_all(path, error);
  if (error) {
    fail(ErrorCode::kIo, fmt::format("{}: cannot be removed: {}", path, error.message()));
  }
}

/// Swaps two folders in one step; false where the file system cannot.
bool exchange(const std::string& a, const std::string& b) {
  return ::renameat2(AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE) == 0;
}

}  // namespace

CheckpointWriter::CheckpointWriter(std::string folder, const CheckpointConfig& config,
                                   int64_t shard_bytes)
    : folder_(std::move(folder)),
      keep_last_(config.keep_last),
      copy_bytes_(to_bytes(config.copy_gib)),
      shard_bytes_(shard_bytes) {
  base::make_folders(folder_);
  const fs::path parent = fs::path(folder_).parent_path();
  data::sync_folder(parent.empty() ? "." : parent.string());
  clear_temporaries();
}

CheckpointWriter::~CheckpointWriter() { worker_.wait(); }

void CheckpointWriter::save(int64_t step, std::span<const CheckpointArray> arrays,
                            const std::string& state_json, const Stream* stream) {
  const base::Stopwatch stalled;
  worker_.wait();
  int64_t bytes = 0;
  for (const CheckpointArray& array : arrays) bytes += aligned(array.value.bytes());
  job_.step = step;
  job_.state_json = state_json;
  job_.shards = plan_shards(arrays, shard_bytes_);
  job_.stream = stream;
  job_.sources.clear();
  if (bytes <= copy_bytes_) {
    copy_arrays(arrays, bytes, stream);
    busy_ = true;
    worker_.submit([this] { run_job(false); });
  } else {
    for (const CheckpointArray& array : arrays) {
      job_.sources.push_back({static_cast<const std::byte*>(array.value.data), array.value.device});
    }
    run_job(true);
  }
  stalled_seconds_ += stalled.seconds();
}

void CheckpointWriter::copy_arrays(std::span<const CheckpointArray> arrays, int64_t bytes,
                                   const Stream* stream) {
  const base::Stage stage("checkpoint copy");
  if (bytes > staging_bytes_) {
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
  std::vector<int64_t> begins;
  int64_t end = 0;
  bool on_gpu = false;
  for (const CheckpointArray& array : arrays) {
    std::byte* const to = staging_.get() + end;
    begins.push_back(end);
    job_.sources.push_back({to, Device::cpu()});
    if (array.value.device.is_cuda()) {
      on_gpu = true;
      copy_bytes(to, Device::cpu(), array.value.data, array.value.device,
                 static_cast<size_t>(array.value.bytes()), stream);
    }
    end += aligned(array.value.bytes());
  }
  // By bytes, not by arrays: a few large tables and hundreds of small vectors share the threads
  // evenly.
  base::parallel_for(end, kCopyGrain, [&](int64_t from, int64_t to) {
    auto i = static_cast<size_t>(std::prev(std::upper_bound(begins.begin(), begins.end(), from)) -
                                 begins.begin());
    for (; i < arrays.size() && begins[i] < to; ++i) {
      const Tensor& value = arrays[i].value;
      const int64_t first = std::max(from, begins[i]);
      const int64_t last = std::min(to, begins[i] + value.bytes());
      if (value.device.is_cuda() || first >= last) continue;
      std::memcpy(staging_.get() + first,
                  static_cast<const std::byte*>(value.data) + (first - begins[i]),
                  static_cast<size_t>(last - first));
    }
  });
  if (on_gpu && stream != nullptr) stream->synchronize();
}

void CheckpointWriter::run_job(bool wide) {
  if (!wide) base::name_thread("checkpoint");
  const base::Stage stage("checkpoint write");
  const std::string temporary = fmt::format("{}/{}step-{}", folder_, kTemporaryPrefix, job_.step);
  Status status;
  bool saved = false;
  try {
    write_job(temporary, wide);
    saved = true;
    prune();
  } catch (const Error& error) {
    status = Status(error.code(), error.what());
  } catch (const std::exception& error) {
    status = Status(ErrorCode::kIo, error.what());
  }
  if (!status.ok()) {
    std::error_code ignored;  // the next writer tries again
    fs::remove_all(temporary, ignored);
    status = status.with(
        fmt::format("checkpoint of step {} {}", job_.step,
                    saved ? "was saved, but older ones could not be removed" : "was not saved"));
  }
  const std::lock_guard lock(mutex_);
  last_ = status;
  if (!status.ok()) failure_ = status;
  busy_ = false;
}

data::FileRecord CheckpointWriter::write_shard(const std::string& folder,
                                               const Shard& shard) const {
  const std::string path = folder + "/" + shard.file_name;
  const base::SafetensorsLayout layout = base::safetensors_layout(path, shard.items);
  ShardWriter writer(path, layout.header);
  for (const size_t i : layout.data_order) {
    const Shard::Piece& piece = shard.pieces[i];
    const Source& source = job_.sources[piece.array];
    writer.write(source.data + piece.offset, source.device, piece.bytes, job_.stream);
  }
  data::FileRecord record = writer.finish();
  record.name = shard.file_name;
  return record;
}

void CheckpointWriter::write_job(const std::string& temporary, bool wide) const {
  remove_folder(temporary);
  base::make_folders(temporary);
  CheckpointManifest manifest;
  manifest.step = job_.step;
  manifest.segue_version = SEGUE_VERSION;
  manifest.state_json = job_.state_json;
  manifest.files.resize(job_.shards.size());
  const auto count = static_cast<int64_t>(job_.shards.size());
  // In the background one thread is enough: the cores belong to training.
  base::parallel_for(
      count, wide ? 1 : std::max<int64_t>(1, count), [&](int64_t begin, int64_t end) {
        for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
          manifest.files[i] = write_shard(temporary, job_.shards[i]);
        }
      });
  data::OutputFile file(fmt::format("{}/{}", temporary, kCheckpointManifest));
  const std::string text = manifest.text();
  file.write(text.data(), text.size());
  file.close();
  data::sync_folder(temporary);
  put_in_place(temporary);
  data::sync_folder(folder_);
}

void CheckpointWriter::put_in_place(const std::string& temporary) const {
  const std::string path = checkpoint_path(folder_, job_.step);
  // A run that was resumed may come to the same step again. What was there before goes with the
  // other temporaries.
  if (base::exists(path) && exchange(temporary, path)) return;
  if (base::exists(path)) move_aside(job_.step);
  data::rename_path(temporary, path);
}

/// Out of the list first: a checkpoint that is half removed must not look like a damaged one.
void CheckpointWriter::move_aside(int64_t step) const {
  const std::string aside = fmt::format("{}/{}old-{}", folder_, kTemporaryPrefix, step);
  remove_folder(aside);
  data::rename_path(checkpoint_path(folder_, step), aside);
}

void CheckpointWriter::prune() const {
  const std::vector<CheckpointEntry> entries = list_checkpoints(folder_);
  const auto later = std::find_if(entries.begin(), entries.end(),
                                  [this](const auto& e) { return e.step > job_.step; });
  const int64_t up_to_now = later - entries.begin();
  const int64_t too_many = keep_last_ > 0 ? std::max<int64_t>(0, up_to_now - keep_last_) : 0;
  for (int64_t i = 0; i < static_cast<int64_t>(entries.size()); ++i) {
    if (i < too_many || i >= up_to_now) move_aside(entries[static_cast<size_t>(i)].step);
  }
  clear_temporaries();
}

void CheckpointWriter::clear_temporaries() const {
  std::vector<std::string> paths;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder_)) {
    if (entry.path().filename().string().starts_with(kTemporaryPrefix)) {
      paths.push_back(entry.path().string());
    }
  }
  for (const std::string& path : paths) remove_folder(path);
}

Status CheckpointWriter::wait() {
  worker_.wait();
  const std::lock_guard lock(mutex_);
  return last_;
}

Status CheckpointWriter::take_failure() {
  const std::lock_guard lock(mutex_);
  return std::exchange(failure_, Status());
}

}  // namespace segue::train
