#include "train/run_folder.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
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

/// Files that a run makes, by the beginning of their names.
constexpr const char* kOfARun[] = {"checkpoints", "events.out.tfevents.", "metrics.jsonl",
                                   "mlperf.log",  "report.html",          "trace"};

bool of_a_run(const std::string& name) {
  for (const char* begin : kOfARun) {
    if (name.starts_with(begin)) return true;
  }
  return false;
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

void RunFolder::open_metrics(const char* mode) {
  metrics_ = std::fopen(metrics_path().c_str(), mode);
  if (metrics_ == nullptr) fail_write(metrics_path());
}

void RunFolder::start(const std::string& config_toml) {
  // The config goes last: until then the folder holds what is left of the old run, or nothing.
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(path_, error)) {
    if (!of_a_run(entry.path().filename().string())) continue;
    fs::remove_all(entry.path(), error);
    if (error) {
      fail(ErrorCode::kIo,
           fmt::format("cannot remove {}: {}", entry.path().string(), error.message()));
    }
  }
  open_metrics("w");
  metrics_bytes_ = 0;
  base::write_file(config_path(), config_toml);
}

void RunFolder::resume(const std::string& config_toml, int64_t metrics_bytes) {
  base::write_file(config_path(), config_toml);
  open_metrics("a");
  const auto size = static_cast<int64_t>(fs::file_size(metrics_path()));
  if (size < metrics_bytes) {
    base::log_warning(
        fmt::format("{} has {} bytes, but had {} when the checkpoint was saved: lines were lost",
                    metrics_path(), size, metrics_bytes));
  } else if (::ftruncate(fileno(metrics_), metrics_bytes) != 0) {
    fail_write(metrics_path());
  }
  metrics_bytes_ = std::min(size, metrics_bytes);
}

void RunFolder::append_metrics(const base::JsonLine& line) {
  SEGUE_ASSERT(metrics_ != nullptr, "metrics of a run that has not started");
  const std::string text = line.text() + "\n";
  const bool written = std::fwrite(text.data(), 1, text.size(), metrics_) == text.size();
  if (!written || std::fflush(metrics_) != 0) fail_write(metrics_path());
  metrics_bytes_ += static_cast<int64_t>(text.size());
}

}  // namespace segue::train
