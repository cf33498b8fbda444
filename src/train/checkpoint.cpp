#include "train/checkpoint.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <map>
#include <set>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "base/log.h"
#include "base/parallel.h"
#include "base/stage.h"

namespace segue::train {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kStepPrefix = "step-";
constexpr int64_t kCopyGrain = 4 << 20;

std::optional<int64_t> step_of(std::string_view name) {
  if (!name.starts_with(kStepPrefix)) return std::nullopt;
  const std::string_view digits = name.substr(kStepPrefix.size());
  int64_t step = -1;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), step);
  // "step-007" and "step-+7" are not ours.
  if (error != std::errc() || step < 0 || digits != std::to_string(step)) return std::nullopt;
  return step;
}

std::string last_name(const std::string& path) {
  fs::path p = fs::path(path).lexically_normal();
  return (p.has_filename() ? p : p.parent_path()).filename().string();
}

/// Names in the folder; Error(kIo) when it cannot be read.
std::set<std::string> names_in(const std::string& folder) {
  std::error_code error;
  std::set<std::string> names;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    names.insert(it->path().filename().string());
  }
  if (error) fail(ErrorCode::kIo, fmt::format("{}: cannot be read: {}", folder, error.message()));
  return names;
}

/// What is wrong with one file of the manifest; empty: nothing.
std::string file_problem(const std::string& folder, const data::FileRecord& wanted) {
  if (!kind_of_shard(wanted.name)) return fmt::format("`{}` is no name of a shard", wanted.name);
  try {
    const data::InputFile file(folder + "/" + wanted.name);
    if (file.size() != wanted.bytes) {
      return fmt::format("{} has {} bytes instead of {}", wanted.name, file.size(), wanted.bytes);
    }
    // Read, not mapped: a disk that fails shows as an error here and as a signal there.
    if (data::record_of(file.path()).xxh64 != wanted.xxh64) {
      return fmt::format("{} was changed: its checksum is wrong", wanted.name);
    }
    return {};
  } catch (const Error& error) {
    return error.code() == ErrorCode::kNotFound ? wanted.name + " is missing" : error.what();
  }
}

std::string shape_text(std::string_view dtype, std::span<const int64_t> shape) {
  return fmt::format("{} [{}]", dtype, fmt::join(shape, ", "));
}

[[noreturn]] void fail_to_match(const std::string& path, std::vector<std::string> differences) {
  constexpr size_t kMostShown = 8;
  const size_t count = differences.size();
  if (count > kMostShown) {
    differences.resize(kMostShown);
    differences.push_back(fmt::format("and {} more", count - kMostShown));
  }
  fail(ErrorCode::kConfig,
       fmt::format("{}: was saved by a run with another config: {}; resume with the config.toml of "
                   "that run, or start a new one",
                   path, fmt::join(differences, "; ")));
}

void copy_in(const Tensor& to, const std::vector<std::span<const std::byte>>& parts,
             const Stream* stream) {
  auto* place = static_cast<std::byte*>(to.data);
  for (const std::span<const std::byte> part : parts) {
    const auto bytes = static_cast<int64_t>(part.size());
    if (to.device.is_cuda()) {
      copy_bytes(place, to.device, part.data(), Device::cpu(), part.size(), stream);
    } else {
      base::parallel_for(bytes, kCopyGrain, [&](int64_t begin, int64_t end) {
        std::memcpy(place + begin, part.data() + begin, static_cast<size_t>(end - begin));
      });
    }
    place += bytes;
  }
}

}  // namespace

std::string checkpoint_path(const std::string& folder, int64_t step) {
  return fmt::format("{}/{}{}", folder, kStepPrefix, step);
}

std::vector<CheckpointEntry> list_checkpoints(const std::string& folder) {
  std::vector<CheckpointEntry> entries;
  std::error_code error;
  if (!fs::is_directory(folder, error)) return entries;
  for (const std::string& name : names_in(folder)) {
    if (const std::optional<int64_t> step = step_of(name)) {
      entries.push_back({*step, checkpoint_path(folder, *step)});
    }
  }
  std::sort(entries.begin(), entries.end(),
            [](const CheckpointEntry& a, const CheckpointEntry& b) { return a.step < b.step; });
  return entries;
}

std::vector<std::string> file_problems(const std::string& path,
                                       const CheckpointManifest& manifest) {
  const base::Stage stage("checkpoint verify");
  std::vector<std::string> found(manifest.files.size());
  base::parallel_for(static_cast<int64_t>(found.size()), 1, [&](int64_t begin, int64_t) {
    const auto i = static_cast<size_t>(begin);
    found[i] = file_problem(path, manifest.files[i]);
  });
  std::erase(found, "");

  std::set<std::string> extra = names_in(path);
  extra.erase(kCheckpointManifest);
  for (const data::FileRecord& file : manifest.files) extra.erase(file.name);
  for (const std::string& name : extra) {
    found.push_back(name + " is not in the manifest; move it out of the folder");
  }
  const std::optional<int64_t> step = step_of(last_name(path));
  if (step && *step != manifest.step) {
    found.push_back(fmt::format("{} is that of step {}", kCheckpointManifest, manifest.step));
  }
  return found;
}

Checkpoint::Checkpoint(std::string path)
    : path_(std::move(path)), manifest_(CheckpointManifest::read(path_)) {
  const std::vector<std::string> problems = file_problems(path_, manifest_);
  if (!problems.empty()) {
    fail(ErrorCode::kCorrupt,
         fmt::format("{}: damaged checkpoint: {}", path_, fmt::join(problems, "; ")));
  }
  shards_.reserve(manifest_.files.size());
  for (const data::FileRecord& file : manifest_.files) {
    shards_.emplace_back(path_ + "/" + file.name);
  }
  index_arrays();
}

void Checkpoint::index_arrays() {
  using Parts = std::map<int64_t, const base::SafetensorsEntry*>;  // by first row
  std::vector<std::string> kinds;
  std::map<std::string, std::map<std::string, Parts>> found;
  for (size_t i = 0; i < shards_.size(); ++i) {
    const std::string kind = *kind_of_shard(manifest_.files[i].name);
    if (!found.contains(kind)) kinds.push_back(kind);
    auto& of_kind = found[kind];
    for (const auto& [name, entry] : shards_[i].tensors()) {
      const RowsPart part = rows_part(name).value_or(RowsPart{name, 0});
      if (!of_kind[part.name].emplace(part.first_row, &entry).second) {
        fail(ErrorCode::kCorrupt, entry.origin + ": these rows are there twice");
      }
    }
  }
  for (const std::string& kind : kinds) {
    for (const auto& [name, parts] : found[kind]) {
      Array array{kind, name, {}, {}, {}};
      for (const auto& [first_row, entry] : parts) array.append(first_row, *entry);
      arrays_.push_back(std::move(array));
    }
  }
}

void Checkpoint::Array::append(int64_t first_row, const base::SafetensorsEntry& part) {
  if (parts.empty() && first_row == 0) {
    dtype = part.dtype;
    shape = part.shape;
  } else {
    const bool fits = !parts.empty() && part.dtype == dtype && part.shape.size() == shape.size() &&
                      !shape.empty() && first_row == shape[0] &&
                      std::equal(shape.begin() + 1, shape.end(), part.shape.begin() + 1);
    if (!fits) fail(ErrorCode::kCorrupt, part.origin + ": does not continue the rows before it");
    shape[0] += part.shape[0];
  }
  parts.push_back(part.bytes);
}

int64_t Checkpoint::Array::bytes() const {
  int64_t total = 0;
  for (const std::span<const std::byte> part : parts) total += static_cast<int64_t>(part.size());
  return total;
}

std::vector<const Checkpoint::Array*> Checkpoint::match(
    std::span<const CheckpointArray> arrays) const {
  std::map<std::pair<std::string, std::string>, const Array*> unclaimed;
  for (const Array& array : arrays_) unclaimed[{array.file, array.name}] = &array;
  std::vector<std::string> differences;
  std::vector<const Array*> matched;
  for (const CheckpointArray& here : arrays) {
    const auto place = unclaimed.find({here.file, here.name});
    const Array* const there = place == unclaimed.end() ? nullptr : place->second;
    matched.push_back(there);
    if (there == nullptr) {
      differences.push_back(fmt::format("{} `{}` is not in it", here.file, here.name));
      continue;
    }
    const Tensor& t = here.value;
    const std::string wanted = shape_text(safetensors_dtype(t.dtype),
                                          std::span(t.sizes).first(static_cast<size_t>(t.rank)));
    const std::string saved = shape_text(there->dtype, there->shape);
    if (wanted != saved) {
      differences.push_back(fmt::format("{} `{}` was saved as {}, here it is {}", here.file,
                                        here.name, saved, wanted));
    }
    unclaimed.erase(place);
  }
  for (const auto& [name, array] : unclaimed) {
    differences.push_back(fmt::format("{} `{}` has no place here", name.first, name.second));
  }
  if (!differences.empty()) fail_to_match(path_, differences);
  return matched;
}

void Checkpoint::read(std::span<const CheckpointArray> into, const Stream* stream) const {
  const base::Stage stage("checkpoint read");
  const std::vector<const Array*> matched = match(into);
  bool on_gpu = false;
  for (size_t i = 0; i < into.size(); ++i) {
    const Tensor& to = into[i].value;
    SEGUE_ASSERT(to.is_contiguous(), "an array of a checkpoint has gaps");
    copy_in(to, matched[i]->parts, stream);
    on_gpu = on_gpu || to.device.is_cuda();
  }
  if (on_gpu && stream != nullptr) stream->synchronize();
}

NewestCheckpoint newest_checkpoint(const std::string& folder) {
  NewestCheckpoint newest;
  std::vector<CheckpointEntry> entries = list_checkpoints(folder);
  std::reverse(entries.begin(), entries.end());
  for (const CheckpointEntry& entry : entries) {
    try {
      newest.checkpoint.emplace(entry.path);
      return newest;
    } catch (const Error& error) {
      if (error.code() == ErrorCode::kUnsupported) throw;
      base::log_warning(fmt::format("{}; trying the one before it", error.what()));
      newest.damaged.emplace_back(error.what());
    }
  }
  return newest;
}

}  // namespace segue::train
