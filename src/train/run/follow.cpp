#include "train/run/follow.h"

#include <chrono>
#include <string>
#include <thread>

#include <fmt/format.h>

#include "base/log.h"
#include "base/stage.h"
#include "base/time.h"
#include "train/run/stop_signals.h"

namespace segue::train {
namespace {

/// A signal is not kept waiting.
void pause() {
  constexpr double kBetweenLooks = 1;  // seconds
  const base::Stopwatch watch;
  while (watch.seconds() < kBetweenLooks && !StopSignals::requested()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

}  // namespace

Waited wait_for_window(const RunConfig& config, int64_t next, const Ranks& ranks, Source& source,
                       const std::function<void()>& alive) {
  const base::Stage stage("wait for the log to grow");
  if (ranks.first()) {
    base::log_info(fmt::format("{}: window {} is not complete; waiting for `segue prep --append`",
                               config.data.store, next));
  }
  const std::string end = "end";
  base::Stopwatch quiet;
  while (!ranks.agree({.stop = StopSignals::requested()}).stop) {
    alive();
    std::string word;
    if (ranks.first()) {
      const int64_t found = source.segments_there();
      const double limit = config.data.follow_seconds;
      const bool over = limit > 0 && quiet.seconds() > limit && found == source.segments();
      word = over ? end : std::to_string(found);
    }
    word = ranks.from_first(word);
    if (word == end) return Waited::kEnd;
    if (const int64_t found = std::stoll(word); found > source.segments()) {
      ranks.first_then_others([&] { source.reopen(found); });
      if (source.end().window > next) return Waited::kMore;
      quiet.restart();
    }
    pause();
  }
  return Waited::kStop;
}

}  // namespace segue::train
