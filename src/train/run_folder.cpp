#include "train/run_folder.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <system_error>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/error.h"
#include "base/file.h"
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

}  // namespace

RunFolder::RunFolder(std::string path) : path_(std::move(path)) {
  base::make_folders(path_);
  const std::string lock_path = path_ + "/.lock";
  lock_ = ::open(lock_path.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0644);
  if (lock_ < 0) fail_write(lock_path);
  if (::flock(lock_, LOCK_EX | LOCK_NB) != 0) {
    ::close(lock_);
    fail(ErrorCode::kInvalidArgument,
         fmt::format("another process is training in {}; wait for it, stop it, or choose another "
                     "folder with --run",
                     path_));
  }
}

RunFolder::~RunFolder() {
  if (metrics_ != nullptr) std::fclose(metrics_);
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
         fmt::format("{} is there, but no config.toml: this is no run to go on with. Take another "
                     "--run folder, or remove what is there with --overwrite",
                     path.string()));
  }
}

void RunFolder::open_metrics(const char* mode) {
  metrics_ = std::fopen(metrics_path().c_str(), mode);
  if (metrics_ == nullptr) fail_write(metrics_path());
}

void RunFolder::write_config(const std::string& config_toml) {
  std::error_code ignored;
  for (const fs::path& path : list(path_, is_half_config)) fs::remove(path, ignored);
  base::write_file(config_path(), config_toml);
}

void RunFolder::start(const std::string& config_toml) {
  // The config goes last: until then the folder holds what is left of the old run, or nothing.
  std::error_code error;
  for (const fs::path& path : of_a_run()) {
    fs::remove_all(path, error);
    if (error) {
      fail(ErrorCode::kIo, fmt::format("cannot remove {}: {}", path.string(), error.message()));
    }
  }
  for (const std::string& emptied : {checkpoints_path(), trace_path()}) {
    fs::remove(emptied, error);  // stays if something else lies in it
  }
  open_metrics("w");
  metrics_bytes_ = 0;
  write_config(config_toml);
}

void RunFolder::resume(const std::string& config_toml, int64_t metrics_bytes) {
  write_config(config_toml);
  open_metrics("a");
  const auto size = static_cast<int64_t>(fs::file_size(metrics_path()));
  if (size < metrics_bytes) {
    base::log_warning(
        fmt::format("{} has {} bytes, but had {} when the checkpoint was saved: lines were lost",
                    metrics_path(), size, metrics_bytes));
    // What follows must not be glued to half a line.
    metrics_bytes = static_cast<int64_t>(base::read_file(metrics_path()).rfind('\n') + 1);
  }
  if (::ftruncate(fileno(metrics_), metrics_bytes) != 0) fail_write(metrics_path());
  metrics_bytes_ = metrics_bytes;
}

void RunFolder::append_metrics(const base::JsonLine& line) {
  SEGUE_ASSERT(metrics_ != nullptr, "metrics of a run that has not started");
  const std::string text = line.text() + "\n";
  const bool written = std::fwrite(text.data(), 1, text.size(), metrics_) == text.size();
  if (!written || std::fflush(metrics_) != 0) fail_write(metrics_path());
  metrics_bytes_ += static_cast<int64_t>(text.size());
}

}  // namespace segue::train
