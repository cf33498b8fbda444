#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "base/time.h"
#include "data/store/event_store.h"

namespace segue::data {

/// Compares what is read from a store with its checksums, while it is read: in a thread that takes
/// only time that nobody else wants, and in the end in that of whoever cannot go on without the
/// result. What this machine has compared before, and is unchanged, is left out (VerifiedFiles).
class StoreVerifier {
 public:
  static constexpr int64_t kAtOnce = 16 << 20;

  /// Of everything that `store`, which must live longer, has opened by now, and of `indices`. Up to
  /// `at_once` bytes are not worth a thread: then it is done, or has failed, here. With
  /// VerifyMode::kNever there is nothing to do.
  StoreVerifier(const EventStore& store, std::span<const IndexFile* const> indices,
                int64_t at_once = kAtOnce);
  ~StoreVerifier();  // stops where it is; what was compared is not compared again
  StoreVerifier(const StoreVerifier&) = delete;
  StoreVerifier& operator=(const StoreVerifier&) = delete;

  /// True when everything is as it was written. Error(kCorrupt) as soon as something is known not
  /// to be. Works on it for about so many `seconds`; 0 looks only. For one thread.
  bool finished(double seconds);
  void finish();  // however long it takes

 private:
  void work_in_background();
  bool advance();  // false: nothing is left
  void finish_file();
  void save() const;

  const EventStore& store_;
  std::vector<CheckedFile> files_;
  size_t next_ = 0;  // of the files
  std::optional<FileCheck> current_;
  int64_t bytes_ = 0;  // read so far
  bool done_ = false;
  std::exception_ptr error_;
  base::Stopwatch watch_;
  std::atomic<bool> stop_ = false, ended_ = false;
  std::thread thread_;  // everything above is its own until it is joined
};

}  // namespace segue::data
