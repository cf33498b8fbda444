#include "comm/flight/verdict.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <set>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/error.h"

namespace segue::comm {
namespace {

using Kind = FlightVerdict::Kind;

/// A rank waits for another in a call.
struct Wait {
  int from = 0, on = 0;
  const GroupFlight* group = nullptr;  // of `from`
  const CallFlight* call = nullptr;
  bool gone = false;  // `on` has closed its connection
};

const GroupFlight* same_group(const FlightRecord* record, const GroupFlight& group) {
  if (record == nullptr) return nullptr;
  const auto found = std::ranges::find(record->groups, group.id, &GroupFlight::id);
  return found == record->groups.end() ? nullptr : &*found;
}

/// How far a rank has come in a group: the number of its newest call.
uint64_t position(const FlightRecord* record, const GroupFlight& group) {
  const GroupFlight* theirs = same_group(record, group);
  const CallFlight* last = theirs == nullptr ? nullptr : theirs->last();
  return last == nullptr ? 0 : last->sequence;
}

/// The call that a group is stuck in, as far as this rank can tell; null: none.
const CallFlight* stuck_call(const GroupFlight& group) {
  const auto queued = std::ranges::find_if(
      group.calls, [](const CallFlight& c) { return c.state == CallState::kQueued; });
  if (queued != group.calls.end()) return &*queued;
  const CallFlight* last = group.last();
  return last != nullptr && last->unfinished() ? last : nullptr;
}

/// Where it is not known whom a call waits for, those who have not come to it.
std::vector<int> waited_for(const FlightFiles& files, int from, const GroupFlight& group,
                            const CallFlight& call) {
  if (call.state != CallState::kQueued && !call.waits_for.empty()) return call.waits_for;
  std::vector<int> late;
  for (const int member : group.members) {
    if (member != from && position(files.of(member), group) < call.sequence) late.push_back(member);
  }
  return late;
}

/// By rank that waits.
using Waits = std::vector<std::vector<Wait>>;

Waits find_waits(const FlightFiles& files) {
  Waits waits(static_cast<size_t>(files.ranks));
  for (const FlightRecord& record : files.records) {
    for (const GroupFlight& group : record.groups) {
      const CallFlight* call = stuck_call(group);
      if (call == nullptr) continue;
      for (const int on : waited_for(files, record.rank, group, *call)) {
        // Records are not of the same moment: it may have done its part since.
        const GroupFlight* theirs = same_group(files.of(on), group);
        const CallFlight* last = theirs == nullptr ? nullptr : theirs->last();
        if (last != nullptr && (last->sequence > call->sequence ||
                                (last->sequence == call->sequence && !last->unfinished()))) {
          continue;
        }
        const bool gone = std::ranges::find(call->gone, on) != call->gone.end();
        waits[static_cast<size_t>(record.rank)].push_back({record.rank, on, &group, call, gone});
      }
    }
  }
  return waits;
}

/// What keeps `on` from coming to the call of `wait`: a wait of its own, on the thread that makes
/// the calls of that group. Null: nothing that is known.
const Wait* blocked_by(const FlightFiles& files, const Waits& waits, const Wait& wait) {
  const GroupFlight* theirs = same_group(files.of(wait.on), *wait.group);
  const CallFlight* last = theirs == nullptr ? nullptr : theirs->last();
  for (const Wait& other : waits[static_cast<size_t>(wait.on)]) {
    if (last == nullptr || other.call->thread == last->thread) return &other;
  }
  return nullptr;
}

/// `on` is the end of a chain: it waits for nobody, or nobody knows.
bool is_root(const FlightFiles& files, const Waits& waits, const Wait& wait) {
  const FlightRecord* record = files.of(wait.on);
  if (record == nullptr) return true;
  if (position(record, *wait.group) >= wait.call->sequence) return false;  // it is there, too
  return blocked_by(files, waits, wait) == nullptr;
}

/// Whether call a came before call b: the same group counts; else a rank that made both; else the
/// clocks of those who wait.
bool before(const FlightFiles& files, const Wait& a, const Wait& b) {
  if (a.group->id == b.group->id) return a.call->sequence < b.call->sequence;
  for (const FlightRecord& record : files.records) {
    const GroupFlight *in_a = same_group(&record, *a.group), *in_b = same_group(&record, *b.group);
    if (in_a == nullptr || in_b == nullptr) continue;
    const CallFlight *call_a = in_a->find(a.call->sequence), *call_b = in_b->find(b.call->sequence);
    if (call_a != nullptr && call_b != nullptr) return call_a->start_us < call_b->start_us;
  }
  return a.call->start_us < b.call->start_us;
}

bool same_call(const Wait& a, const Wait& b) {
  return a.group->id == b.group->id && a.call->sequence == b.call->sequence;
}

void add_rank(std::vector<int>& ranks, int rank) {
  const auto place = std::ranges::lower_bound(ranks, rank);
  if (place == ranks.end() || *place != rank) ranks.insert(place, rank);
}

/// "all_reduce of 4096 bytes"; ranks send different amounts in an all_to_all.
std::string call_words(Op op, int64_t bytes) {
  if (op == Op::kBarrier) return to_string(op);
  return fmt::format("{} of {} bytes{}", to_string(op), bytes,
                     op == Op::kAllToAll ? " from the first that waits" : "");
}

std::string ranks_word(const std::vector<int>& ranks) {
  return fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks", rank_list(ranks));
}

void set_call(FlightVerdict& verdict, const GroupFlight& group, const CallFlight& call) {
  verdict.group = group.name;
  verdict.op = to_string(call.op);
  verdict.sequence = call.sequence;
  verdict.step = call.step;
  verdict.bytes = call.bytes;
}

std::string place_words(const FlightVerdict& v, const CallFlight& call) {
  return fmt::format("group `{}`, call {} ({}, step {})", v.group, v.sequence,
                     call_words(call.op, call.bytes), v.step);
}

// ---- ranks that make different calls ----

std::pair<Op, int64_t> what(const CallFlight& call) {
  return {call.op, call.op == Op::kAllToAll ? 0 : call.bytes};
}

std::string what_words(const CallFlight& call) {
  if (call.op == Op::kAllToAll || call.op == Op::kBarrier) return to_string(call.op);
  return fmt::format("{} of {} bytes", to_string(call.op), call.bytes);
}

struct Made {
  int rank = 0;
  const GroupFlight* group = nullptr;
  const CallFlight* call = nullptr;
};

/// Who made this call of the group, and which it was there.
std::vector<Made> who_made(const FlightFiles& files, const GroupFlight& group, uint64_t sequence) {
  std::vector<Made> made;
  for (const FlightRecord& record : files.records) {
    const GroupFlight* theirs = same_group(&record, group);
    const CallFlight* call = theirs == nullptr ? nullptr : theirs->find(sequence);
    if (call != nullptr) made.push_back({record.rank, theirs, call});
  }
  return made;
}

/// The odd ones made each other's next call.
bool is_swapped(const Made& odd, const Made& usual) {
  const CallFlight* odd_next = odd.group->find(odd.call->sequence + 1);
  const CallFlight* usual_next = usual.group->find(usual.call->sequence + 1);
  return odd_next != nullptr && usual_next != nullptr && what(*odd_next) == what(*usual.call) &&
         what(*usual_next) == what(*odd.call);
}

std::optional<FlightVerdict> difference_in(const GroupFlight& group,
                                           const std::vector<Made>& made) {
  std::map<std::pair<Op, int64_t>, std::vector<Made>> kinds;
  int64_t sent = 0, expected = 0;
  for (const Made& m : made) {
    kinds[what(*m.call)].push_back(m);
    sent += m.call->bytes;
    expected += m.call->receives;
  }
  FlightVerdict v;
  v.kind = Kind::kDiffers;
  if (kinds.size() < 2) {
    const Op op = made.front().call->op;
    if (op != Op::kAllToAll || made.size() < group.members.size() || sent == expected) return {};
    set_call(v, group, *made.front().call);
    v.bytes = sent;
    v.text = fmt::format(
        "ranks disagree about sizes in group `{}`, call {} (all_to_all, step {}): together they "
        "send {} bytes and expect {}",
        v.group, v.sequence, v.step, sent, expected);
    return v;
  }
  const auto usual =
      std::ranges::max_element(kinds, {}, [](const auto& kind) { return kind.second.size(); });
  set_call(v, group, *usual->second.front().call);
  std::string words;
  bool swapped = false;
  for (const auto& [kind, ranks] : kinds) {
    if (kind == usual->first) continue;
    std::vector<int> numbers;
    for (const Made& m : ranks) {
      add_rank(numbers, m.rank);
      add_rank(v.ranks, m.rank);
    }
    words += fmt::format("{}{} makes {}", words.empty() ? "" : ", ", ranks_word(numbers),
                         what_words(*ranks.front().call));
    swapped = swapped || is_swapped(ranks.front(), usual->second.front());
  }
  for (const Made& m : usual->second) add_rank(v.waiting, m.rank);
  v.text = fmt::format("ranks make different calls in group `{}`, call {}, step {}: {}, {} {}{}",
                       v.group, v.sequence, v.step, words, ranks_word(v.waiting),
                       what_words(*usual->second.front().call),
                       swapped ? "; the next call is the other one: their order differs" : "");
  return v;
}

std::optional<FlightVerdict> find_difference(const FlightFiles& files) {
  std::optional<FlightVerdict> first;
  int64_t first_start = 0;
  // Every call of every group once, as the first rank that has it in its record tells.
  std::map<std::pair<int, uint64_t>, const GroupFlight*> calls;
  for (const FlightRecord& record : files.records) {
    for (const GroupFlight& group : record.groups) {
      for (const CallFlight& call : group.calls) {
        if (call.op != Op::kSynchronize) calls.emplace(std::pair(group.id, call.sequence), &group);
      }
    }
  }
  int differs = -1;  // a group that does; what follows in it are consequences
  for (const auto& [key, group] : calls) {
    if (key.first == differs) continue;
    const std::vector<Made> made = who_made(files, *group, key.second);
    auto found = difference_in(*group, made);
    if (!found) continue;
    differs = key.first;
    const int64_t start = made.front().call->start_us;
    if (first && start >= first_start) continue;
    first = std::move(found);
    first_start = start;
  }
  return first;
}

// ---- ranks that others wait for ----

/// Of those that a call waits for, the likeliest to be the cause.
Kind blame(const FlightFiles& files, const std::vector<Wait>& roots, const Wait& at,
           std::vector<int>& ranks) {
  const auto is_useless = [&](int rank) {
    return std::ranges::any_of(files.useless, [&](const auto& u) { return u.first == rank; });
  };
  const auto take = [&](auto&& fits) {
    for (const Wait& root : roots) {
      if (same_call(root, at) && fits(root)) add_rank(ranks, root.on);
    }
    return !ranks.empty();
  };
  if (take([&](const Wait& w) { return w.gone && files.of(w.on) == nullptr; })) return Kind::kGone;
  if (take([&](const Wait& w) { return files.of(w.on) == nullptr && !is_useless(w.on); })) {
    // Another call may know that they are gone.
    const bool gone = std::ranges::any_of(roots, [&](const Wait& w) {
      return w.gone && std::ranges::find(ranks, w.on) != ranks.end();
    });
    return gone ? Kind::kGone : Kind::kSilent;
  }
  if (take([&](const Wait& w) { return files.of(w.on) != nullptr; })) return Kind::kBehind;
  take([](const Wait&) { return true; });
  return Kind::kSilent;
}

std::string kind_words(const FlightFiles& files, const FlightVerdict& v) {
  const bool many = v.ranks.size() > 1;
  switch (v.kind) {
    case Kind::kGone:
      return fmt::format("{} gone: no record, and closed connections: killed, or crashed",
                         many ? "are" : "is");
    case Kind::kSilent:
      return fmt::format("{} not answer and left no record: stopped, hung, or the machine is gone",
                         many ? "do" : "does");
    default: {
      const FlightRecord* record = files.of(v.ranks.front());
      const std::string where = record == nullptr || record->threads.empty()
                                    ? ""
                                    : fmt::format(" ({})", fmt::join(record->threads, "; "));
      return fmt::format("{} behind: busy with something else{}", many ? "are" : "is", where);
    }
  }
}

FlightVerdict deadlock(const FlightFiles& files, const Waits& waits) {
  FlightVerdict v;
  const auto somebody = std::ranges::find_if(waits, [](const auto& w) { return !w.empty(); });
  if (somebody == waits.end()) return v;
  const Wait* at = &somebody->front();
  std::set<int> seen;
  while (at != nullptr && seen.insert(at->from).second) at = blocked_by(files, waits, *at);
  if (at == nullptr) return v;  // records of different moments
  v.kind = Kind::kDeadlock;
  set_call(v, *at->group, *at->call);
  const int first = at->from;
  do {
    add_rank(v.ranks, at->from);
    v.text += fmt::format("{}rank {} waits for rank {} in group `{}`, call {} ({}, step {})",
                          v.text.empty() ? "" : ", ", at->from, at->on, at->group->name,
                          at->call->sequence, to_string(at->call->op), at->call->step);
    at = blocked_by(files, waits, *at);
  } while (at != nullptr && at->from != first);
  v.waiting = v.ranks;
  v.text = "ranks wait for each other: " + v.text;
  return v;
}

FlightVerdict judge_waits(const FlightFiles& files, const Waits& waits) {
  std::vector<Wait> roots;
  for (const std::vector<Wait>& of_rank : waits) {
    std::ranges::copy_if(of_rank, std::back_inserter(roots),
                         [&](const Wait& wait) { return is_root(files, waits, wait); });
  }
  if (roots.empty()) return deadlock(files, waits);
  const Wait* first = &roots.front();
  for (const Wait& root : roots) {
    if (before(files, root, *first)) first = &root;
  }
  FlightVerdict v;
  v.kind = blame(files, roots, *first, v.ranks);
  set_call(v, *first->group, *first->call);
  for (const Wait& root : roots) {
    if (std::ranges::find(v.ranks, root.on) != v.ranks.end()) add_rank(v.waiting, root.from);
  }
  v.text = fmt::format("{} {}; it is behind in {}, where {} waited", ranks_word(v.ranks),
                       kind_words(files, v), place_words(v, *first->call), ranks_word(v.waiting));
  return v;
}

/// A rank that said what was wrong with itself.
std::optional<FlightVerdict> find_error(const FlightFiles& files, const Waits& waits) {
  const FlightRecord* first = nullptr;
  for (const FlightRecord& record : files.records) {
    if (record.own_error && (first == nullptr || record.written_us < first->written_us)) {
      first = &record;
    }
  }
  if (first == nullptr) return {};
  FlightVerdict v;
  v.kind = Kind::kError;
  v.ranks = {first->rank};
  v.text = fmt::format("rank {} ended by an error of its own: {}", first->rank, first->why);
  const Wait* earliest = nullptr;
  for (const std::vector<Wait>& of_rank : waits) {
    for (const Wait& wait : of_rank) {
      if (wait.on != first->rank) continue;
      add_rank(v.waiting, wait.from);
      if (earliest == nullptr || before(files, wait, *earliest)) earliest = &wait;
    }
  }
  if (earliest == nullptr) return v;
  set_call(v, *earliest->group, *earliest->call);
  v.text += fmt::format("; {} waited for it in {}", ranks_word(v.waiting),
                        place_words(v, *earliest->call));
  return v;
}

}  // namespace

std::string rank_list(std::vector<int> ranks) {
  std::ranges::sort(ranks);
  std::vector<std::string> parts;
  for (size_t i = 0; i < ranks.size();) {
    size_t end = i + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    if (end - i > 2) {
      parts.push_back(fmt::format("{}-{}", ranks[i], ranks[end - 1]));
    } else {
      for (size_t k = i; k < end; ++k) parts.push_back(std::to_string(ranks[k]));
    }
    i = end;
  }
  if (parts.size() < 2) return fmt::format("{}", fmt::join(parts, ""));
  const std::string last = parts.back();
  parts.pop_back();
  return fmt::format("{} and {}", fmt::join(parts, ", "), last);
}

std::string to_string(Kind kind) {
  switch (kind) {
    case Kind::kNothing:
      return "nothing";
    case Kind::kDiffers:
      return "differs";
    case Kind::kError:
      return "error";
    case Kind::kGone:
      return "gone";
    case Kind::kSilent:
      return "silent";
    case Kind::kBehind:
      return "behind";
    case Kind::kDeadlock:
      return "deadlock";
  }
  return "?";
}

FlightVerdict judge(const FlightFiles& files) {
  if (auto difference = find_difference(files)) return *std::move(difference);
  const Waits waits = find_waits(files);
  if (auto error = find_error(files, waits)) return *std::move(error);
  FlightVerdict v = judge_waits(files, waits);
  if (v.kind != Kind::kNothing) return v;
  std::vector<int> missing;
  for (int r = 0; r < files.ranks; ++r) {
    if (files.of(r) == nullptr) missing.push_back(r);
  }
  v.text = "no rank keeps another one waiting";
  if (missing.empty()) return v;
  v.text += fmt::format("; {} left no record", ranks_word(missing));
  return v;
}

}  // namespace segue::comm
