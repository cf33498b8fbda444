#include "train/run/run_folder.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <system_error>

#include <fcntl.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <sys/file.h>
#include <unistd.h>

#include "base/error.h"
#include "base/file.h"
#include "base/json_line.h"
#include "base/log.h"

namespace segue::train {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail_write(const std::string& path) {
  fail(ErrorCode::kIo, fmt::format("cannot write {}: {}", path, std::strerror(errno)));
}

bool is_checkpoint(std::string_view name) {
  if (name.starts_with(".tmp-step-")) return true;  // one that was being written
  constexpr std::string_view kStep = "step-";
  return name.size() > kStep.size() && name.starts_with(kStep) &&
         name.find_first_not_of("0123456789", kStep.size()) == std::string_view::npos;
}

bool is_trace(std::string_view name) {
  return name.starts_with("trace_step") && name.ends_with(".json");
}

bool is_file_of_run(std::string_view name) {
  return name == "metrics.jsonl" || name == "mlperf.log" || name == "report.html" ||
         name.starts_with("events.out.tfevents.");
}

/// A process was killed while it wrote the config.
bool is_half_config(std::string_view name) { return name.starts_with("config.toml.tmp-"); }

/// Paths in `folder` whose names are of a kind; none where there is no such folder.
std::vector<fs::path> list(const std::string& folder, bool (*is_of_kind)(std::string_view)) {
  std::error_code error;
  std::vector<fs::path> found;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    if (is_of_kind(it->path().filename().string())) found.push_back(it->path());
  }
  return found;
}

/// Where the last whole line of the file ends, not behind `most`: what is added must not be glued
/// to half a line.
int64_t whole_lines(const std::string& path, int fd, int64_t most) {
  char last = 0;
  if (most == 0 || (::pread(fd, &last, 1, most - 1) == 1 && last == '\n')) return most;
  const std::string text = base::read_file(path);
  return static_cast<int64_t>(
      std::string_view(text).substr(0, static_cast<size_t>(most)).rfind('\n') + 1);
}

/// Error(kInvalidArgument) when `path` is there, but cannot be written into as a folder.
void require_folder(const std::string& path) {
  std::error_code error;
  const bool link = fs::is_symlink(path, error);
  if (!link && !base::exists(path)) return;  // made when it is needed
  if (fs::is_directory(path, error)) return;
  fail(ErrorCode::kInvalidArgument,
       link ? fmt::format("{} is a link to {}, which is no folder or not there; make that folder, "
                          "or remove the link",
                          path, fs::read_symlink(path, error).string())
            : fmt::format("{} is no folder; move it out of the way", path));
}

}  // namespace

RunFolder::RunFolder(std::string path) : path_(std::move(path)) {
  try {
    base::make_folders(path_);
  } catch (const Error& error) {
    fail(error.code(),
         fmt::format("{}; --run names a folder in a place that can be written to", error.what()));
  }
  const std::string lock_path = path_ + "/.lock";
  lock_ = ::open(lock_path.c_str(), O_CREAT | O_RDWR | O_NOFOLLOW | O_CLOEXEC, 0644);
  if (lock_ < 0) fail_write(lock_path);
  if (::flock(lock_, LOCK_EX | LOCK_NB) != 0) {
    ::close(lock_);
    fail(ErrorCode::kInvalidArgument,
         fmt::format("another process is training in {}; wait for it, stop it, or choose another "
                     "folder with --run",
                     path_));
  }
  try {
    for (const std::string& folder : {checkpoints_path(), trace_path()}) require_folder(folder);
  } catch (...) {
    ::close(lock_);
    throw;
  }
}

RunFolder::~RunFolder() {
  metrics_.reset();  // its last write belongs to the time of the lock
  if (lock_ >= 0) ::close(lock_);
}

bool RunFolder::holds_run() const { return base::exists(config_path()); }

/// What a run makes, whoever made it.
std::vector<fs::path> RunFolder::of_a_run() const {
  std::vector<fs::path> found = list(path_, is_file_of_run);
  for (const auto& more : {list(checkpoints_path(), is_checkpoint), list(trace_path(), is_trace)}) {
    found.insert(found.end(), more.begin(), more.end());
  }
  return found;
}

void RunFolder::require_free_or_run() const {
  if (holds_run()) return;
  for (const fs::path& path : of_a_run()) {
    std::error_code error;
    const bool empty = path.filename() == "metrics.jsonl" && fs::file_size(path, error) == 0;
    if (empty && !error) continue;  // of a run that was stopped before its first step
    fail(ErrorCode::kInvalidArgument,
         fmt::format(
             "{} is there, but no config.toml: this is no run that could be resumed. Take another "
             "--run folder, or remove what is there with --overwrite",
             path.string()));
  }
}

void RunFolder::write_config(const std::string& config_toml) {
  std::error_code ignored;
  for (const fs::path& path : list(path_, is_half_config)) fs::remove(path, ignored);
  base::write_file(config_path(), config_toml);
}

void RunFolder::start(const std::string& config_toml, base::WhenFull when_full) {
  // The config comes when all else is gone: until then the folder holds what is left of the old
  // run, or nothing.
  std::error_code error;
  for (const fs::path& path : of_a_run()) {
    fs::remove_all(path, error);
    if (error) {
      fail(ErrorCode::kIo, fmt::format("cannot remove {}: {}", path.string(), error.message()));
    }
  }
  for (const std::string& emptied : {checkpoints_path(), trace_path()}) {
    // Stays if something else lies in it. A link says where the new run's are to go.
    if (!fs::is_symlink(emptied, error)) fs::remove(emptied, error);
  }
  write_config(config_toml);
  metrics_ = std::make_unique<base::AppendFile>(
      metrics_path(), base::create_file(metrics_path(), O_APPEND), when_full);
  metrics_bytes_ = 0;
}

void RunFolder::resume(const std::string& config_toml, int64_t metrics_bytes,
                       base::WhenFull when_full) {
  write_config(config_toml);
  const std::string path = metrics_path();
  // A link is followed: whoever moved the file has put it there.
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (fd < 0) fail_write(path);
  metrics_ = std::make_unique<base::AppendFile>(path, fd, when_full);
  metrics_bytes_ = whole_lines(path, fd, metrics_bytes);
  if (metrics_bytes_ < metrics_bytes) {
    base::log_warning(fmt::format(
        "{} has no line that ends at byte {}, as it had when the checkpoint was saved: lines were "
        "lost",
        path, metrics_bytes));
  }
  metrics_->cut(metrics_bytes_);
}

void RunFolder::append_metrics(const nlohmann::ordered_json& line) {
  SEGUE_ASSERT(metrics_ != nullptr, "metrics of a run that has not started");
  const std::string text = base::json_line(line) + "\n";
  metrics_->append(text);
  metrics_bytes_ += static_cast<int64_t>(text.size());
}

}  // namespace segue::train
