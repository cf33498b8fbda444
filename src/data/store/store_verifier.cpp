#include "data/store/store_verifier.h"

#include <limits>
#include <utility>

#include <fmt/format.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/error.h"
#include "base/log.h"
#include "base/stage.h"

namespace segue::data {
namespace {

/// This thread works when no other wants its core, and reads when no other wants the disk. Advice
/// only: where the system does not take it, the work is done all the same.
void make_idle() {
  const sched_param none{};
  ::sched_setscheduler(0, SCHED_IDLE, &none);
#ifdef SYS_ioprio_set
  constexpr int kThisThread = 1, kIdle = 3 << 13;
  ::syscall(SYS_ioprio_set, kThisThread, 0, kIdle);
#endif
}

double gigabytes(int64_t bytes) { return static_cast<double>(bytes) / 1e9; }

}  // namespace

StoreVerifier::StoreVerifier(const EventStore& store, std::span<const IndexFile* const> indices,
                             int64_t at_once)
    : store_(store) {
  if (store.verify_mode() == VerifyMode::kNever) {
    done_ = true;
    return;
  }
  if (!store.has_manifest()) {
    base::log_once(
        base::LogLevel::kInfo, store.folder() + ": no manifest",
        fmt::format("{}: has no manifest, so its files cannot be verified", store.folder()));
  }
  for (const std::string& path : store.unlisted_files()) {
    base::log_once(
        base::LogLevel::kWarning, path + ": unlisted",
        fmt::format("{}: is not in the store's manifest, so it cannot be verified", path));
  }
  int64_t bytes = 0;
  const auto add = [&](CheckedFile file) {
    if (store.verified().contains(file)) return;
    bytes += file.bytes;
    files_.push_back(std::move(file));
  };
  for (CheckedFile& file : store.checked_files()) add(std::move(file));
  for (const IndexFile* index : indices) add(index->checked());
  done_ = files_.empty();
  if (done_) {
    base::log_debug(
        fmt::format("{}: was verified before, see {}", store.folder(), store.verified().path()));
    return;
  }
  if (bytes <= at_once) {
    finish();
  } else {
    thread_ = std::thread([this] { work_in_background(); });
  }
}

StoreVerifier::~StoreVerifier() {
  stop_ = true;
  if (thread_.joinable()) thread_.join();
  if (!done_ && !error_ && next_ > 0) save();
}

void StoreVerifier::work_in_background() {
  base::name_thread("verify store");
  const base::Stage stage("verify store");
  make_idle();
  while (!stop_ && advance()) {
  }
  ended_ = done_ || error_ != nullptr;
}

bool StoreVerifier::finished(double seconds) {
  if (thread_.joinable()) {
    if (seconds == 0 && !ended_) return false;
    stop_ = true;
    thread_.join();
  }
  const base::Stopwatch watch;
  while (seconds > 0 && advance() && watch.seconds() < seconds) {
  }
  if (error_) std::rethrow_exception(error_);
  return done_;
}

void StoreVerifier::finish() { finished(std::numeric_limits<double>::infinity()); }

bool StoreVerifier::advance() {
  if (done_ || error_) return false;
  try {
    if (!current_) current_.emplace(files_[next_]);
    if (!current_->advance()) finish_file();
  } catch (...) {
    error_ = std::current_exception();
  }
  return !done_ && !error_;
}

void StoreVerifier::finish_file() {
  const CheckedFile& file = files_[next_];
  const std::string problem = current_->problem();
  bytes_ += current_->bytes_read();
  current_.reset();
  if (!problem.empty()) {
    if (file.name.ends_with(".idx")) {
      fail(ErrorCode::kCorrupt,
           fmt::format("{}: {}. Nothing that was made with it can be trusted; remove the file, it "
                       "is made again",
                       file.path, problem));
    }
    store_.fail_damaged(file.path, problem);
  }
  store_.verified().add(file);
  done_ = ++next_ == files_.size();
  if (!done_) return;
  const double seconds = watch_.seconds();
  base::log_info(fmt::format("{}: verified {} {}, {:.3g} GB in {:.3g} s ({:.3g} GB/s)",
                             store_.folder(), files_.size(), files_.size() == 1 ? "file" : "files",
                             gigabytes(bytes_), seconds, gigabytes(bytes_) / seconds));
  save();
}

void StoreVerifier::save() const {
  try {
    store_.verified().save();
  } catch (const Error& error) {
    base::log_once(
        base::LogLevel::kWarning, store_.folder() + ": not saved",
        fmt::format("{}: will be verified again next time: {}", store_.folder(), error.what()));
  }
}

}  // namespace segue::data
