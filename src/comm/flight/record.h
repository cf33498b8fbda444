#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/checked_json.h"
#include "comm/flight/recorder.h"
#include "comm/link/link.h"

namespace segue::comm {

/// One call of a group, as a rank saw it.
struct CallFlight {
  uint64_t sequence = 0;  // of the group; a synchronize has that of the call before
  Op op = Op::kBarrier;
  uint64_t thread = 0;  // that made it; a number that others of this rank do not have
  int64_t step = 0;
  int64_t bytes = 0, receives = 0;  // see FlightRing::begin
  CallState state = CallState::kDone;
  int64_t start_us = 0, end_us = 0;  // since 1970; end is 0 while it runs
  std::vector<int> waits_for, gone;  // ranks of the world, of the last call alone

  bool unfinished() const { return state != CallState::kDone; }
};

struct GroupFlight {
  std::string name;
  std::vector<int> members;       // ranks of the world
  std::vector<CallFlight> calls;  // oldest first
  int id = -1;                    // equal for the same group of all ranks; set by sort_flight

  /// The newest call that ranks agree on; null: none.
  const CallFlight* last() const;
  const CallFlight* find(uint64_t sequence) const;
};

/// What a rank leaves in `rank-<N>.json`.
struct FlightRecord {
  int rank = 0, ranks = 1;
  std::string life, host;
  int64_t pid = 0;
  int64_t written_us = 0;
  std::string why;
  bool failed = false;               // it ends this rank
  bool own_error = false;            // and is its own
  std::vector<std::string> threads;  // where each of them was
  std::vector<GroupFlight> groups;
};

std::string to_string(CallState state);
base::CheckedJson to_json(const FlightRecord& record);

/// The text of the file, with a checksum.
std::string seal(const FlightRecord& record);
/// Error(kCorrupt) with `path`.
FlightRecord unseal_flight(const std::string& text, const std::string& path);

}  // namespace segue::comm
