#include "data/log/log_reader.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <fnmatch.h>

#include "base/error.h"
#include "data/store/store_stage.h"

namespace segue::data {
namespace {

namespace fs = std::filesystem;

constexpr size_t kBlocksAhead = 3;

bool is_pattern(const std::string& text) { return text.find_first_of("*?[") != std::string::npos; }

/// Follows one component of the pattern after the other.
void expand(const fs::path& folder, fs::path::const_iterator part,
            const fs::path::const_iterator& end, std::vector<fs::path>& found) {
  if (part == end) {
    std::error_code ignored;
    if (fs::is_regular_file(folder, ignored)) found.push_back(folder);
    return;
  }
  const std::string name = part->string();
  ++part;
  if (!is_pattern(name)) return expand(folder / name, part, end, found);
  std::error_code error;
  for (fs::directory_iterator it(folder, error), last; !error && it != last; it.increment(error)) {
    const std::string entry = it->path().filename().string();
    if (::fnmatch(name.c_str(), entry.c_str(), FNM_PERIOD) == 0) {
      expand(it->path(), part, end, found);
    }
  }
}

/// The first few names in a folder, for messages.
std::string what_is_in(const fs::path& folder) {
  constexpr size_t kShown = 8;
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), last; !error && it != last; it.increment(error)) {
    names.push_back(it->path().filename().string());
  }
  if (names.empty()) return "the folder is empty";
  std::sort(names.begin(), names.end());
  const bool more = names.size() > kShown;
  if (more) names.resize(kShown);
  return fmt::format("it has: {}{}", fmt::join(names, ", "), more ? ", ..." : "");
}

}  // namespace

std::vector<LogFile> list_log_files(const std::string& folder, const std::string& pattern) {
  const fs::path root(folder), relative(pattern);
  std::vector<fs::path> paths;
  expand(root, relative.begin(), relative.end(), paths);
  std::sort(paths.begin(), paths.end());
  std::vector<LogFile> files;
  files.reserve(paths.size());
  for (const fs::path& path : paths) {
    files.push_back({.path = path.string(),
                     .name = path.lexically_relative(root).string(),
                     .bytes = static_cast<int64_t>(fs::file_size(path))});
  }
  return files;
}

std::vector<LogFile> find_log_files(const std::string& folder, const std::string& pattern) {
  std::error_code error;
  if (!fs::is_directory(folder, error)) {
    fail(ErrorCode::kNotFound,
         fs::is_regular_file(folder, error)
             ? fmt::format("{}: is a file; name the folder that it lies in", folder)
             : fmt::format("{}: no such folder", folder));
  }
  std::vector<LogFile> files = list_log_files(folder, pattern);
  if (files.empty()) {
    if (is_finished_store(folder)) {
      fail(ErrorCode::kNotFound,
           fmt::format("{}: is an event store already; --raw takes the folder of the log that it "
                       "was made from, with the schema's file {}",
                       folder, pattern));
    }
    fail(ErrorCode::kNotFound, fmt::format("{}: has no file {}, which the schema names; {}", folder,
                                           pattern, what_is_in(folder)));
  }
  return files;
}

std::vector<std::string> paths_of(const std::vector<LogFile>& files) {
  std::vector<std::string> paths;
  paths.reserve(files.size());
  for (const LogFile& file : files) paths.push_back(file.path);
  return paths;
}

std::string literal_pattern(const std::string& name) {
  std::string pattern;
  for (const char c : name) {
    const bool special = c == '*' || c == '?' || c == '[';
    pattern += special ? std::string{'[', c, ']'} : std::string{c};
  }
  return pattern;
}

LogReader::LogReader(std::vector<LogFile> files, std::vector<ColumnRequest> columns,
                     const TableOptions& options)
    : files_(std::move(files)), columns_(std::move(columns)), options_(options) {
  for (const LogFile& file : files_) total_bytes_ += file.bytes;
  blocks_ = std::make_unique<base::Prefetcher<RawBlock>>(
      kBlocksAhead, [this](RawBlock& block) { return make(block); });
}

bool LogReader::make(RawBlock& block) {
  while (true) {
    if (!reader_) {
      if (file_ == files_.size()) return false;
      reader_ = open_table(files_[file_].path, columns_, options_);
    }
    if (reader_->read(block)) {
      block.file = file_;
      bytes_ = bytes_before_ + reader_->bytes_read();
      return true;
    }
    reader_.reset();
    bytes_before_ += files_[file_].bytes;
    ++file_;
  }
}

}  // namespace segue::data
