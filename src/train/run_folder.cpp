#include "train/run_folder.h"

#include <cerrno>
#include <cstring>

#include <fmt/format.h>

#include "base/error.h"
#include "base/file.h"

namespace segue::train {
namespace {

[[noreturn]] void fail_write(const std::string& path) {
  fail(ErrorCode::kIo, fmt::format("cannot write {}: {}", path, std::strerror(errno)));
}

}  // namespace

RunFolder::RunFolder(std::string path, bool overwrite) : path_(std::move(path)) {
  if (!overwrite && base::exists(metrics_path())) {
    fail(ErrorCode::kInvalidArgument,
         fmt::format("{} already holds a run (metrics.jsonl); choose another folder with --run, or "
                     "replace that run with --overwrite",
                     path_));
  }
  base::make_folders(path_);
}

RunFolder::~RunFolder() {
  if (metrics_ != nullptr) std::fclose(metrics_);
}

void RunFolder::start(const RunConfig& config) {
  base::write_file(config_path(), base::to_toml(config));
  metrics_ = std::fopen(metrics_path().c_str(), "w");
  if (metrics_ == nullptr) fail_write(metrics_path());
}

void RunFolder::append_metrics(const base::JsonLine& line) {
  SEGUE_ASSERT(metrics_ != nullptr, "metrics of a run that has not started");
  const std::string text = line.text() + "\n";
  const bool written = std::fwrite(text.data(), 1, text.size(), metrics_) == text.size();
  if (!written || std::fflush(metrics_) != 0) {
    fail_write(metrics_path());
  }
}

}  // namespace segue::train
