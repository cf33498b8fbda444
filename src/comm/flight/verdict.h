#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/checked_json.h"
#include "comm/flight/record.h"

namespace segue::comm {

/// What the ranks of one start have left.
struct FlightFiles {
  std::vector<FlightRecord> records;                 // by rank
  std::vector<std::pair<int, std::string>> useless;  // rank and why: damaged, of an earlier start
  int ranks = 0;                                     // of the run

  const FlightRecord* of(int rank) const;  // null: none that can be read
};

/// The files of `folder`, whatever state they are in. Error(kNotFound) where there are none.
FlightFiles read_flight(const std::string& folder);
/// Keeps what belongs to the newest start.
FlightFiles sort_flight(std::vector<FlightRecord> records,
                        std::vector<std::pair<int, std::string>> damaged);

/// Who keeps the others waiting, and where.
struct FlightVerdict {
  enum class Kind {
    kNothing,   // nobody waits for anybody
    kDiffers,   // ranks make different calls
    kError,     // a rank ended by an error of its own
    kGone,      // a rank left no record, and its connections are closed
    kSilent,    // a rank left no record and does not answer: stopped, hung, or its machine is gone
    kBehind,    // a rank has not come to a call that others wait in
    kDeadlock,  // ranks wait for each other in different groups
  } kind = Kind::kNothing;
  std::vector<int> ranks;  // who it is
  // The call; not for kNothing, and for kError only where somebody waits.
  std::string group, op;
  uint64_t sequence = 0;
  int64_t step = 0, bytes = 0;
  std::vector<int> waiting;  // who waits there
  std::string text;          // all of it in words
};
std::string to_string(FlightVerdict::Kind kind);

FlightVerdict judge(const FlightFiles& files);

/// The last `calls` calls of every group, and what each rank said.
std::string flight_table(const FlightFiles& files, size_t calls);
base::CheckedJson to_json(const FlightFiles& files, const FlightVerdict& verdict);

/// "0, 2-5 and 7"
std::string rank_list(std::vector<int> ranks);

}  // namespace segue::comm
