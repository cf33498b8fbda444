#include "comm/join/rendezvous.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <thread>

#include <fmt/format.h>

#include "base/error.h"
#include "base/file.h"
#include "comm/deadline.h"
#include "comm/join/secret.h"

namespace segue::comm {
namespace {

constexpr auto kRetry = std::chrono::milliseconds(20);
// What is slower than this beyond the timeout waits for something else than other ranks.
constexpr double kSlack = 3;

struct MeetingPoint {
  bool file = false;
  std::string path;  // or host
  int port = 0;
};

MeetingPoint parse_point(const std::string& text) {
  if (text.starts_with("file:") && text.size() > 5) return {true, text.substr(5), 0};
  if (text.starts_with("tcp:")) {
    const std::string rest = text.substr(4);
    const size_t colon = rest.rfind(':');
    if (colon != std::string::npos && colon > 0) {
      const std::string number = rest.substr(colon + 1);
      std::string host = rest.substr(0, colon);
      if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
      int port = 0;
      const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), port);
      if (error == std::errc() && end == number.data() + number.size() && port > 0 &&
          port < 65536 && !host.empty()) {
        return {false, host, port};
      }
    }
  }
  fail(ErrorCode::kConfig, fmt::format("rendezvous `{}` is neither file:PATH (a folder that all "
                                       "ranks see) nor tcp:HOST:PORT",
                                       text));
}

std::string notice_path(const Meeting& meeting) {
  return fmt::format("{}/rank-0-of-{}", parse_point(meeting.place).path, meeting.ranks);
}

std::string machine_id() {
  std::string id = host_name();
  const std::string path = "/proc/sys/kernel/random/boot_id";
  if (base::exists(path)) id += "/" + base::read_file(path);
  std::erase_if(id, [](unsigned char c) { return c <= ' '; });
  return id;
}

std::string secret_of(const Meeting& meeting) {
  if (!meeting.secret.empty()) return meeting.secret;
  fail(ErrorCode::kConfig, fmt::format("ranks that meet at {} need a secret, so that nobody else "
                                       "takes the seat of one: {}",
                                       meeting.place, kMakeSecret));
}

// ---- rank 0 ----

/// Where rank 0 listens: at what HOST means, as far as it is this machine.
std::vector<Socket> listen_at(const MeetingPoint& place) {
  const std::vector<Endpoint> meant = resolve(place.path, place.port);
  if (meant.empty()) {
    fail(ErrorCode::kConfig,
         fmt::format("tcp:{}:{}: nobody knows a host of that name", place.path, place.port));
  }
  std::vector<Endpoint> ours;
  std::string elsewhere;
  for (const Endpoint& endpoint : meant) {
    if (is_ours(endpoint)) {
      ours.push_back(endpoint);
    } else {
      elsewhere += (elsewhere.empty() ? "" : ", ") + endpoint.host();
    }
  }
  if (!ours.empty()) return listen_on(ours);
  fail(ErrorCode::kConfig,
       fmt::format("rank 0 is to listen at tcp:{}:{}, but {} is no address of this machine ({}): "
                   "start rank 0 on that host; or, where that address leads here by other means "
                   "(NAT, a virtual address), give rank 0 tcp:0.0.0.0:{}, which listens on all "
                   "addresses, and the others the place they can reach",
                   place.path, place.port, elsewhere, host_name(), place.port));
}

std::string did_not_come(const Meeting& meeting, const std::vector<int>& missing,
                         const Door& door) {
  std::string text = fmt::format(
      "rank {} did not come to {} within {} s; were all {} ranks started, and can rank "
      "0 ({}, listening on {}) be reached from their machines?",
      fmt::join(missing, ", "), meeting.place, meeting.timeout_seconds, meeting.ranks, host_name(),
      door.where());
  if (door.refused() > 0) {
    text +=
        fmt::format(" {} call(s) came without the right secret: do all ranks have the same one?",
                    door.refused());
  }
  return text;
}

/// Told to listen everywhere, rank 0 cannot know by which name the others know it.
bool same_place(const MeetingPoint& own, const std::string& theirs) {
  const bool anywhere = own.path == "0.0.0.0" || own.path == "::";
  return theirs == fmt::format("tcp:{}:{}", own.path, own.port) ||
         (anywhere && theirs.ends_with(fmt::format(":{}", own.port)));
}

/// What is wrong with a visitor who has the secret; empty when it is one of this run.
std::string problem_of(const Visit& visit, const Meeting& meeting) {
  if (visit.ranks != meeting.ranks || visit.rank < 1 || visit.rank >= visit.ranks) {
    return fmt::format(
        "a process came to {} as rank {} of {}, but this run has {} ranks; two runs "
        "meet at the same place?",
        meeting.place, visit.rank, visit.ranks, meeting.ranks);
  }
  const MeetingPoint place = parse_point(meeting.place);
  if (!place.file && !same_place(place, visit.place)) {
    return fmt::format("rank {} was told to go to {} and came to {}; give all ranks the same place",
                       visit.rank, visit.place, meeting.place);
  }
  return "";
}

/// Collects the addresses of all and hands them out. `run`: name of the run.
class Host {
 public:
  Host(const Meeting& meeting, Door door, const Key& key, const std::string& run)
      : meeting_(meeting),
        door_(std::move(door)),
        key_(key),
        deadline_(after(meeting.timeout_seconds)),
        table_{run, std::vector<Address>(static_cast<size_t>(meeting.ranks))},
        visitors_(table_.ranks.size()) {
    table_.ranks[0] = {"-", door_.port(), machine_id()};  // the others know where they found it
  }

  Met run() {
    for (std::vector<int> missing = absent(); !missing.empty(); missing = absent()) {
      auto guest = door_.next(deadline_);
      if (!guest) give_up(did_not_come(meeting_, missing, door_));
      if (const auto visit = parse_visit(guest->words)) seat(*visit, std::move(guest->line));
    }
    tell(format(table_));
    return {key_, table_.run, table_.ranks, std::move(door_)};
  }

 private:
  std::vector<int> absent() const {
    std::vector<int> missing;
    for (int r = 1; r < meeting_.ranks; ++r) {
      if (!visitors_[static_cast<size_t>(r)].socket) missing.push_back(r);
    }
    return missing;
  }

  void seat(const Visit& visit, Line line) {
    // Told by a file that an earlier run has left: let it look again.
    if (parse_point(meeting_.place).file && visit.place != table_.run) return;
    const std::string problem = problem_of(visit, meeting_);
    line.say(problem.empty() ? kWelcome : kRefused + problem, deadline_);
    if (!problem.empty()) give_up(problem);
    const auto r = static_cast<size_t>(visit.rank);
    table_.ranks[r] = visit.address;
    table_.ranks[r].host = peer_endpoint(line.socket).host();
    visitors_[r] = std::move(line);
  }

  void tell(const std::string& words) const {
    for (const Line& visitor : visitors_) {
      if (visitor.socket) visitor.say(words, std::max(deadline_, after(1)));
    }
  }

  [[noreturn]] void give_up(const std::string& why) const {
    tell(kRefused + why);
    fail(ErrorCode::kPeer, why);
  }

  const Meeting& meeting_;
  Door door_;
  Key key_;
  Clock::time_point deadline_;
  Table table_;
  std::vector<Line> visitors_;  // by rank
};

Met host_by_tcp(const Meeting& meeting, Socket inherited) {
  const MeetingPoint place = parse_point(meeting.place);
  const Key key(secret_of(meeting));
  std::vector<Socket> listeners;
  if (inherited && is_listening(inherited) && local_endpoint(inherited).port() == place.port) {
    listeners.push_back(std::move(inherited));
  } else {
    listeners = listen_at(place);
  }
  return Host(meeting, Door(std::move(listeners), key, meeting.ranks), key, random_digits(16))
      .run();
}

Met host_by_file(const Meeting& meeting) {
  base::make_folders(parse_point(meeting.place).path);
  const std::string host = meeting.all_local ? "127.0.0.1" : outward_address();
  const std::string secret = meeting.secret.empty() ? random_digits(32) : meeting.secret;
  const Key key(secret);
  Door door(listen_on(resolve(host, 0)), key, meeting.ranks);
  const Notice notice{
      {host, door.port(), ""}, random_digits(16), meeting.secret.empty() ? secret : ""};
  write_private(notice_path(meeting), format(notice));
  return Host(meeting, std::move(door), key, notice.run).run();
}

// ---- the others ----

/// Where rank 0 is said to be, and how to prove oneself there.
struct Invitation {
  std::vector<Endpoint> places;
  std::string place;
  Key key;
};

Invitation invitation_by_tcp(const Meeting& meeting) {
  const MeetingPoint place = parse_point(meeting.place);
  return {resolve(place.path, place.port), fmt::format("tcp:{}:{}", place.path, place.port),
          Key(secret_of(meeting))};
}

/// As the file says now; without places when it says nothing.
Invitation invitation_by_file(const Meeting& meeting, std::string& trouble) {
  // With a secret of one's own it does not matter who wrote it.
  const auto who = meeting.secret.empty() ? Readers::kOwner : Readers::kAny;
  const auto notice = parse_notice(read_small(notice_path(meeting), who, trouble));
  const bool lacks_secret = notice && notice->secret.empty() && meeting.secret.empty();
  if (lacks_secret) trouble = "rank 0 was given a secret, this rank was not";
  if (!notice || lacks_secret) return {};
  return {resolve(notice->address.host, notice->address.port), notice->run,
          Key(meeting.secret.empty() ? notice->secret : meeting.secret)};
}

void throw_if_refused(const std::string& words) {
  const std::string_view mark = kRefused;
  if (words.starts_with(mark)) fail(ErrorCode::kPeer, words.substr(mark.size()));
}

/// At one of the places where rank 0 may be; nothing when it is not there, or not yet.
std::optional<Met> visit_at(const Meeting& meeting, const Endpoint& endpoint,
                            const Invitation& invitation, Clock::time_point deadline,
                            std::string& trouble) {
  constexpr double kPatience = 5;  // rank 0 answers at once while it waits for others
  const auto soon = std::min(deadline, after(kPatience));
  const std::string where = fmt::format("{} port {}", endpoint.host(), endpoint.port());
  Socket socket = try_connect(endpoint, soon);
  if (!socket) {
    trouble = "nobody listens on " + where;
    return std::nullopt;
  }
  // Others reach this rank by the address that it has on its way to rank 0.
  Endpoint own = local_endpoint(socket);
  own.set_port(0);
  Door door(listen_on({own}), invitation.key, meeting.ranks);
  const Visit visit{meeting.rank, meeting.ranks, {"", door.port(), machine_id()}, invitation.place};
  const auto line = introduce(std::move(socket), invitation.key, format(visit), soon);
  const auto answer = line ? line->hear(kMaxStrangeMessage, soon) : std::nullopt;
  if (!answer) {
    trouble = fmt::format("who answers on {} does not have the same secret", where);
    return std::nullopt;
  }
  throw_if_refused(*answer);
  // Rank 0 says itself, a moment after the deadline, who is missing.
  const auto words = line->hear(longest_table(meeting.ranks), deadline + std::chrono::seconds(1));
  if (words) throw_if_refused(*words);
  auto table = words ? parse_table(*words, meeting.ranks) : std::nullopt;
  if (!table) {
    trouble = "rank 0 was there, but has gone";
    return std::nullopt;
  }
  table->ranks[0].host = endpoint.host();
  table->ranks[0].port = endpoint.port();
  return Met{invitation.key, table->run, table->ranks, std::move(door)};
}

Met visit_meeting(const Meeting& meeting) {
  const auto deadline = after(meeting.timeout_seconds);
  const bool by_file = parse_point(meeting.place).file;
  std::string trouble = "nobody knows a host of that name";
  while (Clock::now() < deadline) {
    const Invitation invitation =
        by_file ? invitation_by_file(meeting, trouble) : invitation_by_tcp(meeting);
    for (const Endpoint& endpoint : invitation.places) {
      if (auto met = visit_at(meeting, endpoint, invitation, deadline, trouble)) {
        return std::move(*met);
      }
    }
    std::this_thread::sleep_for(kRetry);
  }
  fail(ErrorCode::kPeer,
       fmt::format("rank 0 did not come to {} within {} s ({}); were all {} ranks started, and can "
                   "its machine be reached from this one ({})?",
                   meeting.place, meeting.timeout_seconds, trouble, meeting.ranks, host_name()));
}

}  // namespace

void check_rendezvous(const std::string& place) { parse_point(place); }

Met meet(const Meeting& meeting, Socket inherited) {
  const CallDeadline watched("meeting the other ranks at " + meeting.place, meeting.rank,
                             meeting.timeout_seconds + kSlack);
  if (meeting.rank > 0) return visit_meeting(meeting);
  return parse_point(meeting.place).file ? host_by_file(meeting)
                                         : host_by_tcp(meeting, std::move(inherited));
}

void leave(const Meeting& meeting, const std::string& run) {
  if (meeting.rank > 0 || !parse_point(meeting.place).file) return;
  const std::string path = notice_path(meeting);
  const CallDeadline watched("removing " + path, meeting.rank, meeting.timeout_seconds);
  // Another run may have begun to meet there.
  std::string trouble;
  const auto notice = parse_notice(read_small(path, Readers::kOwner, trouble));
  if (!notice || notice->run != run) return;
  std::error_code ignored;
  std::filesystem::remove(path, ignored);
}

}  // namespace segue::comm
