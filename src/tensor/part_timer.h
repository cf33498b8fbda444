#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "base/stage.h"
#include "tensor/timed_event.h"

namespace segue {

/// What a part of a step has to do, as far as it is known.
struct PartWork {
  double flop = 0;  // by formula
  int64_t tokens = 0, samples = 0;
  int64_t arena_bytes = 0;  // in use when it begins; a curve in traces
};

/// Device time of the parts of one step, in the order in which they first came up.
struct StepParts {
  struct Part {
    const char* name = nullptr;
    double seconds = 0;  // without the parts inside it
    double flop = 0;
  };
  int64_t step = 0;
  double seconds = 0;  // from the first to the last event: all parts together
  std::vector<Part> parts;
};

/// Times the parts of steps on one stream by events that are read later, so that nobody waits.
class PartTimer {
 public:
  explicit PartTimer(const Stream& stream) : stream_(stream) {}
  PartTimer(const PartTimer&) = delete;
  PartTimer& operator=(const PartTimer&) = delete;

  /// While it lives, every Part of this thread is timed. What belongs to none is "other".
  class Step {
   public:
    Step(PartTimer& timer, int64_t number);
    ~Step();
    Step(const Step&) = delete;
    Step& operator=(const Step&) = delete;
  };

  /// The oldest timed step, if its number is below `before`. The device has long been done with a
  /// step whose successor has been read; of any other this waits for it.
  std::optional<StepParts> take(int64_t before);

 private:
  friend class Part;
  struct Lap {
    TimedEvent begin;
    const char* name = nullptr;  // null: the step ends here
  };
  struct Timed {
    int64_t number = 0;
    std::vector<Lap> laps;
    std::vector<std::pair<const char*, double>> flop;
  };
  void mark(const char* name);

  const Stream& stream_;
  std::deque<Timed> steps_;
  std::vector<TimedEvent> spare_;  // events are made once and go round
};

/// A part of a step: a stage of the host, and a lap of the device's time where a PartTimer is on.
///
///     const Part part(base::lasting_name("layer 3 forward"), [&] { return PartWork{...}; });
class Part {
 public:
  /// `work` is asked only where somebody records or times.
  template <class Work>
  Part(const char* name, const Work& work) : Part(name) {
    if (timer_ != nullptr || base::recording_stages()) tell(work());
  }
  explicit Part(const char* name);
  ~Part();
  Part(const Part&) = delete;
  Part& operator=(const Part&) = delete;

 private:
  void tell(const PartWork& work);

  base::Stage stage_;
  const char* name_;
  const char* outer_ = nullptr;  // the part around it
  PartTimer* timer_ = nullptr;
};

}  // namespace segue
