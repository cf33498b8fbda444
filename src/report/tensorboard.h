#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <string_view>

#include "base/append_file.h"

namespace segue::report {

/// Writes scalars as TensorBoard reads them: a file events.out.tfevents.<seconds>.<host>.<pid> in
/// `folder`, which is made if need be. One writer serves one thread. After flush() every record is
/// whole on its way to the disk: a crash later costs at most what came after, and readers stop at a
/// torn record.
///
/// A run that goes on adds a file. Every point is then shown once: the file tells TensorBoard to
/// forget all steps after `last_step`, the last that is not done again, and points of `last_step`
/// that are there already (an evaluation that follows a checkpoint is repeated on every resume) are
/// not written a second time.
class TensorboardWriter {
 public:
  /// Error(kIo) with the path when the file cannot be made, or an earlier one not be read.
  explicit TensorboardWriter(const std::string& folder, int64_t last_step = 0,
                             base::WhenFull when_full = base::WhenFull::kFail);
  ~TensorboardWriter();
  TensorboardWriter(const TensorboardWriter&) = delete;
  TensorboardWriter& operator=(const TensorboardWriter&) = delete;

  /// TensorBoard stores single precision. Not-finite values are kept; it shows them as gaps.
  void scalar(std::string_view tag, int64_t step, double value);
  void flush();                     // Error(kIo), but see WhenFull
  void drain() { file_->drain(); }  // Error(kIo) while anything waits for a full disk

  const std::string& path() const { return path_; }

 private:
  void append(const std::string& record);

  int64_t last_step_ = 0;
  std::set<std::string, std::less<>> kept_;  // tags that have a point at last_step_
  std::string path_;
  std::string buffer_;
  std::unique_ptr<base::AppendFile> file_;
};

namespace detail {
/// length, its masked CRC, the bytes, their masked CRC.
std::string tf_record(std::string_view bytes);
std::string version_event(double wall_time);
std::string restart_event(double wall_time, int64_t step);
std::string scalar_event(double wall_time, int64_t step, std::string_view tag, float value);
}  // namespace detail

}  // namespace segue::report
