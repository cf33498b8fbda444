#include "train/checkpoint/checkpoint.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <numeric>
#include <set>
#include <system_error>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/parallel.h"
#include "base/stage.h"

namespace segue::train {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kStepPrefix = "step-";
constexpr int64_t kCopyGrain = 4 << 20;
constexpr int64_t kDeviceChunk = 32 << 20;

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
std::string file_problem(const std::string& folder, const base::FileRecord& wanted, Verify verify) {
  if (!parse_shard_name(wanted.name)) return fmt::format("`{}` is no name of a shard", wanted.name);
  try {
    const base::InputFile file(folder, wanted.name);
    if (file.size() != wanted.bytes) {
      return fmt::format("{} has {} bytes instead of {}", wanted.name, file.size(), wanted.bytes);
    }
    // Read, not mapped: a disk that fails shows as an error here and as a signal there.
    if (verify == Verify::kBytes && base::record_of(file).xxh64 != wanted.xxh64) {
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

void copy_in(std::byte* to, Device device, std::span<const std::byte> bytes, const Stream* stream) {
  if (device.is_cuda()) {
    copy_bytes(to, device, bytes.data(), Device::cpu(), bytes.size(), stream);
    return;
  }
  base::parallel_for(
      static_cast<int64_t>(bytes.size()), kCopyGrain, [&](int64_t begin, int64_t end) {
        std::memcpy(to + begin, bytes.data() + begin, static_cast<size_t>(end - begin));
      });
}

/// Rows are put together on the host and sent to a GPU some at a time.
void read_rows(const PartReader& reader, const Tensor& to, const Stream* stream) {
  const int64_t rows = to.size(0), row_bytes = to.bytes() / rows;
  auto* const place = static_cast<std::byte*>(to.data);
  if (to.device.is_cpu()) {
    reader.read(0, rows, place);
    return;
  }
  const int64_t most = std::max<int64_t>(1, kDeviceChunk / row_bytes);
  const Buffer bounce(Device::cpu(), std::min(most, rows) * row_bytes, Purpose::kScratch);
  for (int64_t first = 0; first < rows; first += most) {
    const int64_t count = std::min(most, rows - first);
    auto* const host = static_cast<std::byte*>(bounce.data());
    reader.read(first, count, host);
    copy_bytes(place + first * row_bytes, to.device, host, Device::cpu(),
               static_cast<size_t>(count * row_bytes), stream);
    if (stream != nullptr) stream->synchronize();
  }
}

void read_array(const Checkpoint::Array& from, const CheckpointArray& into, const Stream* stream) {
  const Tensor& to = into.value;
  if (to.bytes() == 0) return;
  const ArrayPart layout = into.layout();
  SEGUE_ASSERT(to.is_contiguous(), "an array of a checkpoint has gaps");
  SEGUE_ASSERT(to.elements() == layout.rows() * layout.width(), "an array is not its part");
  const PartReader reader(from.parts, layout, from.element_bytes);
  if (reader.same() == nullptr) {
    read_rows(reader, to, stream);
    return;
  }
  auto* place = static_cast<std::byte*>(to.data);
  for (const StoredPart::Run& run : reader.same()->runs) {
    copy_in(place, to.device, run.bytes, stream);
    place += run.bytes.size();
  }
}

/// The pieces of one rank's part of an array, put in a row.
struct Joined {
  std::string dtype;
  std::vector<int64_t> shape;
  int64_t element_bytes = 0;
  std::vector<StoredPart::Run> runs;

  void append(int64_t first_row, const base::SafetensorsEntry& piece) {
    if (runs.empty() && first_row == 0) {
      dtype = piece.dtype;
      shape = piece.shape;
    } else {
      const bool fits = !runs.empty() && piece.dtype == dtype && !shape.empty() &&
                        piece.shape.size() == shape.size() && first_row == shape[0] &&
                        std::equal(shape.begin() + 1, shape.end(), piece.shape.begin() + 1);
      if (!fits) fail(ErrorCode::kCorrupt, piece.origin + ": does not continue the rows before it");
      shape[0] += piece.shape[0];
    }
    if (!is_storable(shape))
      fail(ErrorCode::kCorrupt, piece.origin + ": a shape too large to exist");
    if (piece.elements() > 0) {
      element_bytes = static_cast<int64_t>(piece.bytes.size()) / piece.elements();
    }
    runs.push_back({first_row, piece.bytes});
  }
};

void add_part(const std::string& path, const ArrayPart& part, Joined joined,
              Checkpoint::Array& array) {
  const bool first = array.parts.empty();
  const int64_t columns = ArrayPart::whole(joined.shape).whole_columns();
  const int64_t rows = joined.shape.empty() ? 1 : joined.shape[0];
  if ((!first && joined.dtype != array.dtype) || rows != part.rows() || columns != part.width()) {
    fail(ErrorCode::kCorrupt,
         fmt::format("{}: {} `{}` has a part that is {} instead of {} rows of {} columns", path,
                     array.file, array.name, shape_text(joined.dtype, joined.shape), part.rows(),
                     part.width()));
  }
  array.dtype = joined.dtype;
  const int64_t stacked = first || !part.stacked ? 0 : array.shape.front();
  array.shape = part.shape;
  if (!array.shape.empty()) array.shape.front() += stacked;
  if (!is_storable(array.shape)) {
    fail(ErrorCode::kCorrupt,
         fmt::format("{}: {} `{}` has a shape too large to exist", path, array.file, array.name));
  }
  array.element_bytes = std::max(array.element_bytes, joined.element_bytes);
  array.parts.push_back({part, std::move(joined.runs)});
}

void require_whole(const std::string& path, const Checkpoint::Array& array) {
  std::vector<ArrayPart> parts;
  for (const StoredPart& stored : array.parts) parts.push_back(stored.part);
  const std::string problem = cover_problem(parts);
  if (problem.empty()) return;
  fail(ErrorCode::kCorrupt, fmt::format("{}: {} `{}` {}", path, array.file, array.name, problem));
}

/// What an increment was made of lies beside it. It is known by its checksum: one of another run,
/// or of the same step made anew, is not taken for it.
std::unique_ptr<Checkpoint> open_before(const std::string& path, const IncrementOf& wanted,
                                        Verify verify) {
  const fs::path beside = fs::path(path).lexically_normal();
  const fs::path folder = (beside.has_filename() ? beside : beside.parent_path()).parent_path();
  const std::string name = checkpoint_path(folder.empty() ? "." : folder.string(), wanted.step);
  auto before = std::make_unique<Checkpoint>(name, verify);
  const CheckpointManifest& found = before->manifest();
  const int64_t number = found.increment ? found.increment->number : 0;
  if (found.checksum != wanted.checksum || number + 1 != wanted.number) {
    fail(ErrorCode::kCorrupt,
         fmt::format("{} is not the one that it was made of (number {}, checksum {:016x}; that had "
                     "number {}, checksum {:016x})",
                     name, number, found.checksum, wanted.number - 1, wanted.checksum));
  }
  return before;
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

std::vector<std::string> file_problems(const std::string& path, const CheckpointManifest& manifest,
                                       Verify verify) {
  const base::Stage stage("checkpoint verify");
  std::vector<std::string> found(manifest.files.size());
  base::parallel_for(static_cast<int64_t>(found.size()), 1, [&](int64_t begin, int64_t) {
    const auto i = static_cast<size_t>(begin);
    found[i] = file_problem(path, manifest.files[i], verify);
  });
  std::erase(found, "");

  std::set<std::string> extra = names_in(path);
  extra.erase(kCheckpointManifest);
  for (const base::FileRecord& file : manifest.files) extra.erase(file.name);
  for (const std::string& name : extra) {
    found.push_back(name + " is not in the manifest; move it out of the folder");
  }
  const std::optional<int64_t> step = step_of(last_name(path));
  if (step && *step != manifest.step) {
    found.push_back(fmt::format("{} is that of step {}", kCheckpointManifest, manifest.step));
  }
  return found;
}

Checkpoint::Checkpoint(std::string path, Verify verify)
    : path_(std::move(path)), manifest_(CheckpointManifest::read(path_)) {
  const std::vector<std::string> problems = file_problems(path_, manifest_, verify);
  if (!problems.empty()) {
    fail(ErrorCode::kCorrupt,
         fmt::format("{}: damaged checkpoint: {}", path_, fmt::join(problems, "; ")));
  }
  shards_.reserve(manifest_.files.size());
  for (const base::FileRecord& file : manifest_.files) {
    shards_.emplace_back(path_ + "/" + file.name);
  }
  index_arrays();
  if (!manifest_.increment) return;
  try {
    before_ = open_before(path_, *manifest_.increment, verify);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kUnsupported) throw;
    fail(ErrorCode::kCorrupt, fmt::format("{}: increment {} of a chain that is not whole: {}",
                                          path_, manifest_.increment->number, error.what()));
  }
}

void Checkpoint::index_arrays() {
  using Pieces = std::map<int64_t, const base::SafetensorsEntry*>;  // by first row
  std::vector<std::string> kinds;
  std::map<std::string, std::map<std::string, std::map<int, Pieces>>> found;  // kind, name, rank
  for (size_t i = 0; i < shards_.size(); ++i) {
    const ShardName file = *parse_shard_name(manifest_.files[i].name);
    if (!found.contains(file.kind)) kinds.push_back(file.kind);
    auto& of_kind = found[file.kind];
    for (const auto& [name, entry] : shards_[i].tensors()) {
      const RowsPart part = rows_part(name).value_or(RowsPart{name, 0});
      if (!of_kind[part.name][file.rank].emplace(part.first_row, &entry).second) {
        fail(ErrorCode::kCorrupt, entry.origin + ": these rows are there twice");
      }
    }
  }
  std::map<std::tuple<std::string, std::string, int>, const ArrayPart*> described;
  for (const SavedPart& saved : manifest_.parts) {
    described[{saved.file, saved.name, saved.rank}] = &saved.part;
    if (!found[saved.file][saved.name].contains(saved.rank)) {
      fail(ErrorCode::kCorrupt, fmt::format("{}: lacks the part of {} `{}` that rank {} saved",
                                            path_, saved.file, saved.name, saved.rank));
    }
  }
  for (const std::string& kind : kinds) {
    for (const auto& [name, by_rank] : found[kind]) {
      Array array{kind, name, {}, {}, 0, {}};
      for (const auto& [rank, pieces] : by_rank) {
        Joined joined;
        for (const auto& [first_row, entry] : pieces) joined.append(first_row, *entry);
        const auto place = described.find({kind, name, rank});
        const ArrayPart part =
            place == described.end() ? ArrayPart::whole(joined.shape) : *place->second;
        add_part(path_, part, std::move(joined), array);
      }
      require_whole(path_, array);
      arrays_.push_back(std::move(array));
    }
  }
}

int64_t Checkpoint::Array::bytes() const {
  return std::accumulate(shape.begin(), shape.end(), element_bytes, std::multiplies<>());
}

std::vector<const Checkpoint::Array*> Checkpoint::match(std::span<const CheckpointArray> arrays,
                                                        const MayLeave& may_leave) const {
  std::map<std::pair<std::string, std::string>, const Array*> unclaimed;
  for (const Array& array : arrays_) unclaimed[{array.file, array.name}] = &array;
  std::vector<std::string> differences;
  std::vector<const Array*> matched;
  // What tables read themselves is theirs, whatever its size.
  const auto of_table = [](const std::string& name) { return name.substr(name.find('/') + 1); };
  std::set<std::pair<std::string, std::string>> pulled;
  const auto reads_itself = [&](const CheckpointArray& here) {
    return here.any_rows ||
           (!here.unless.empty() && std::ranges::any_of(arrays_, [&](const Array& array) {
             return array.file == here.file && array.name == here.unless;
           }));
  };
  for (const CheckpointArray& here : arrays) {
    if (reads_itself(here)) pulled.insert({here.file, of_table(here.name)});
  }
  std::erase_if(unclaimed, [&](const auto& entry) {
    return pulled.contains({entry.first.first, of_table(entry.first.second)});
  });
  for (const CheckpointArray& here : arrays) {
    if (reads_itself(here)) {
      matched.push_back(nullptr);
      continue;
    }
    const auto place = unclaimed.find({here.file, here.name});
    const Array* const there = place == unclaimed.end() ? nullptr : place->second;
    matched.push_back(there);
    if (there == nullptr) {
      differences.push_back(fmt::format("{} `{}` is not in it", here.file, here.name));
      continue;
    }
    const std::string wanted = shape_text(safetensors_dtype(here.value.dtype), here.layout().shape);
    const std::string saved = shape_text(there->dtype, there->shape);
    if (wanted != saved) {
      differences.push_back(fmt::format("{} `{}` was saved as {}, here it is {}{}{}", here.file,
                                        here.name, saved, wanted, here.hint.empty() ? "" : ": ",
                                        here.hint));
    }
    unclaimed.erase(place);
  }
  for (const auto& [name, array] : unclaimed) {
    if (may_leave && may_leave(*array)) continue;
    differences.push_back(fmt::format("{} `{}` has no place here", name.first, name.second));
  }
  if (!differences.empty()) fail_to_match(path_, differences);
  return matched;
}

void Checkpoint::read(std::span<const CheckpointArray> into, const Stream* stream,
                      const MayLeave& may_leave) const {
  const base::Stage stage("checkpoint read");
  const std::vector<const Array*> matched = match(into, may_leave);
  bool on_gpu = false;
  for (size_t i = 0; i < into.size(); ++i) {
    if (matched[i] == nullptr) continue;
    read_array(*matched[i], into[i], stream);
    on_gpu = on_gpu || into[i].value.device.is_cuda();
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

Checkpoint open_checkpoint(const std::string& path) {
  if (base::exists(path + "/" + kCheckpointManifest)) return Checkpoint(path);
  const std::string of_run = path + "/checkpoints";
  NewestCheckpoint newest = newest_checkpoint(base::exists(of_run) ? of_run : path);
  if (newest.checkpoint) return std::move(*newest.checkpoint);
  if (!newest.damaged.empty()) {
    fail(ErrorCode::kCorrupt,
         fmt::format("no checkpoint in {} is whole:\n{}", path, fmt::join(newest.damaged, "\n")));
  }
  fail(ErrorCode::kNotFound,
       fmt::format("{}: no checkpoint; give the folder of a run or of one checkpoint", path));
}

}  // namespace segue::train
