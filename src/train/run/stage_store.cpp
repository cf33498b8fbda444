#include "train/run/stage_store.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <vector>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>

#include "base/error.h"
#include "base/file.h"
#include "base/file_io.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/sealed_json.h"
#include "base/time.h"

namespace segue::train {
namespace {

namespace fs = std::filesystem;

constexpr const char* kComplete = "staged";  // in a copy that has everything

struct StoreFile {
  std::string name;  // below the store
  int64_t bytes = 0, modified_ns = 0;
};

/// Folder `segue` of a store also has what a machine derived from it, which a copy derives again.
bool belongs(const fs::path& name) {
  const std::string parent = name.parent_path().filename().string();
  const std::string file = name.filename().string();
  if (file.find(".tmp-") != std::string::npos) return false;
  if (parent != "segue") return true;
  return file == "manifest.json" || file == "schema.toml" || file.ends_with(".npy");
}

/// By name. Error(kNotFound).
std::vector<StoreFile> files_of(const std::string& store) {
  std::error_code error;
  std::vector<StoreFile> files;
  for (fs::recursive_directory_iterator it(store, error), end; !error && it != end;
       it.increment(error)) {
    if (!it->is_regular_file(error)) continue;
    const fs::path name = it->path().lexically_relative(store);
    if (!belongs(name)) continue;
    const base::InputFile file(it->path().string());
    files.push_back({name.string(), file.size(), file.identity().modified_ns});
  }
  if (error || files.empty()) {
    fail(ErrorCode::kNotFound, fmt::format("data.stage_to: {} is no store that can be copied: {}",
                                           store, error ? error.message() : "it has no files"));
  }
  std::ranges::sort(files, {}, &StoreFile::name);
  return files;
}

/// Equal as long as the store is what it was. Derived arrays may be added to it.
std::string identity_of(const std::vector<StoreFile>& files) {
  std::string text;
  for (const StoreFile& f : files) {
    const fs::path name(f.name);
    if (name.parent_path().filename() == "segue" && name.extension() == ".npy") continue;
    text += fmt::format("{} {} {}\n", f.name, f.bytes, f.modified_ns);
  }
  return base::hex64(base::xxh64(text));
}

/// One process at a time, whoever it is.
class Lock {
 public:
  explicit Lock(const std::string& path)
      : file_(::open(path.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0644)) {
    int rc = -1;
    if (file_.get() >= 0) {
      do rc = ::flock(file_.get(), LOCK_EX);
      while (rc != 0 && errno == EINTR);
    }
    if (rc != 0) {
      fail(ErrorCode::kIo,
           fmt::format("data.stage_to: cannot lock {}: {}", path, std::strerror(errno)));
    }
  }

 private:
  base::Descriptor file_;
};

uint64_t hash_of(const std::string& path) {
  const base::InputFile file(path);
  std::vector<char> buffer(4 << 20);
  base::Xxh64Stream hash;
  for (int64_t at = 0; at < file.size();) {
    const size_t n = file.read_at(at, buffer.data(), buffer.size());
    if (n == 0) break;
    hash.update(buffer.data(), n);
    at += static_cast<int64_t>(n);
  }
  return hash.digest();
}

void copy_file(const std::string& from, const std::string& to) {
  const base::InputFile in(from);
  std::vector<char> buffer(4 << 20);
  base::Xxh64Stream hash;
  const std::string half = to + ".part";
  {
    base::OutputFile out(half);
    for (int64_t at = 0; at < in.size();) {
      const size_t n = in.read_at(at, buffer.data(), buffer.size());
      if (n == 0) fail(ErrorCode::kIo, fmt::format("{} became shorter while it was copied", from));
      hash.update(buffer.data(), n);
      out.write(buffer.data(), n);
      at += static_cast<int64_t>(n);
    }
    out.close();
  }
  if (hash_of(half) != hash.digest()) {
    fail(ErrorCode::kIo,
         fmt::format("data.stage_to: {} does not hold what was written to it; the disk or the "
                     "memory of this machine is broken",
                     half));
  }
  base::rename_path(half, to);
}

bool is_there(const std::string& path, int64_t bytes) {
  std::error_code error;
  return static_cast<int64_t>(fs::file_size(path, error)) == bytes && !error;
}

void require_room(const std::string& folder, int64_t missing) {
  const auto space = base::disk_space(folder);
  if (!space || space->available >= missing) return;
  fail(
      ErrorCode::kIo,
      fmt::format("data.stage_to: {} has {} bytes free, and {} of the store are still to be copied "
                  "there; make room, name another folder, or leave data.stage_to out",
                  folder, space->available, missing));
}

}  // namespace

std::string stage_store(const std::string& given, const std::string& folder) {
  // A store may be named by its folder of columns.
  fs::path store = fs::path(given).lexically_normal();
  if (!store.has_filename()) store = store.parent_path();
  const bool columns = store.filename().string().starts_with("hstu_cache_L");
  if (columns) store = fs::absolute(store).parent_path();

  const std::vector<StoreFile> files = files_of(store.string());
  const std::string name = fmt::format("{}-{}", store.filename().string(), identity_of(files));
  const std::string copy = folder + "/" + name;
  base::make_folders(copy);
  const Lock lock(folder + "/." + name + ".lock");
  const auto there = [&](const StoreFile& f) { return is_there(copy + "/" + f.name, f.bytes); };
  int64_t missing = 0;
  for (const StoreFile& f : files) {
    if (!there(f)) missing += f.bytes;
  }
  const bool complete = base::exists(copy + "/" + kComplete);
  if (missing > 0 || !complete) {
    const base::Stopwatch watch;
    require_room(folder, missing);
    for (const StoreFile& f : files) {
      if (there(f)) continue;
      base::make_folders(base::folder_of(copy + "/" + f.name));
      copy_file((store / f.name).string(), copy + "/" + f.name);
    }
    base::write_file(copy + "/" + kComplete, store.string() + "\n");
    base::log_info(fmt::format("copied {} bytes of {} to {} in {:.1f} s", missing, store.string(),
                               copy, watch.seconds()));
  } else {
    base::log_info(fmt::format("the store is read from {}, where it was copied before", copy));
  }
  return columns ? copy + "/" + fs::path(given).lexically_normal().filename().string() : copy;
}

}  // namespace segue::train
