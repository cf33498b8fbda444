#include "train/checkpoint/checkpoint_records.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <system_error>
#include <thread>

#include <fmt/format.h>

#include "base/error.h"
#include "base/file.h"
#include "base/time.h"

namespace segue::train {
namespace {

namespace fs = std::filesystem;

constexpr double kHurrySeconds = 5;
constexpr std::chrono::milliseconds kFirstPause{2}, kLongestPause{200};

std::string record_path(const std::string& folder, int rank) {
  return fmt::format("{}/rank{:04}.json", folder, rank);
}

/// Of all files in the folder; those that come and go meanwhile may be missed.
uintmax_t bytes_in(const std::string& folder) {
  uintmax_t total = 0;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    std::error_code gone;
    const uintmax_t bytes = it->file_size(gone);
    if (!gone) total += bytes;
  }
  return total;
}

RankRecord read_record(const std::string& folder, int64_t step, int rank) {
  const std::string path = record_path(folder, rank);
  RankRecord record;
  try {
    record = RankRecord::parse(base::read_file(path), path);
    if (record.step != step || record.rank != rank) {
      fail(ErrorCode::kCorrupt,
           fmt::format("{}: is that of rank {} at step {}", path, record.rank, record.step));
    }
  } catch (const Error& error) {
    record.status = Status(error.code(), error.what());
    record.rank = rank;
  }
  std::error_code ignored;  // a file too many fails the checkpoint's own check
  fs::remove(path, ignored);
  return record;
}

/// How long ago anything happened in the folder.
class Quiet {
 public:
  explicit Quiet(const std::string& folder) : folder_(folder), bytes_(bytes_in(folder)) {}

  double seconds() {
    const uintmax_t bytes = bytes_in(folder_);
    if (bytes != bytes_) since_.restart();
    bytes_ = bytes;
    return since_.seconds();
  }

 private:
  const std::string& folder_;
  uintmax_t bytes_;
  base::Stopwatch since_;
};

}  // namespace

void leave_record(const std::string& folder, const RankRecord& record) {
  const std::string path = record_path(folder, record.rank);
  base::OutputFile file(base::create_temporary(path));
  const std::string text = record.text();
  file.write(text.data(), text.size());
  file.close();
  base::sync_folder(folder);
  base::rename_path(file.path(), path);
}

std::vector<RankRecord> collect_records(const std::string& folder, int64_t step, int ranks,
                                        double timeout_seconds, const std::atomic<bool>& hurry) {
  std::vector<RankRecord> records;
  Quiet quiet(folder);
  base::Stopwatch since_hurry;
  std::chrono::milliseconds pause = kFirstPause;
  for (int rank = 1; rank < ranks;) {
    if (base::exists(record_path(folder, rank))) {
      records.push_back(read_record(folder, step, rank++));
      pause = kFirstPause;
      continue;
    }
    if (!hurry) since_hurry.restart();
    const bool hurried = since_hurry.seconds() > std::min(kHurrySeconds, timeout_seconds);
    if (hurried || quiet.seconds() > timeout_seconds) {
      RankRecord missing;
      missing.rank = rank++;
      missing.status = Status(ErrorCode::kPeer,
                              hurried ? "had not written its part when the run ended"
                                      : fmt::format("wrote nothing for {} s", timeout_seconds));
      records.push_back(std::move(missing));
      continue;
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(kLongestPause, pause * 2);
  }
  return records;
}

}  // namespace segue::train
