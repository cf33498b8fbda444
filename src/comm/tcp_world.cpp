#include <algorithm>
#include <charconv>
#include <optional>
#include <thread>

#include <fmt/format.h>

#include "comm/deadline.h"
#include "comm/join/rendezvous.h"
#include "comm/join/secret.h"
#include "comm/link/tcp_link.h"
#include "comm/process_world.h"

namespace segue::comm {
namespace {

class TcpWorld final : public ProcessWorld {
 public:
  TcpWorld(const Seat& seat, const CommConfig& config, Met met)
      : ProcessWorld(seat, config),
        key_(met.key),
        run_(std::move(met.run)),
        addresses_(std::move(met.addresses)),
        door_(std::move(met.door)),
        own_(addresses_.size()) {}

  void begin() {
    start();
    door_.reset();  // a world of one has not used it
    control()->barrier().throw_if_failed();
  }
  const std::string& run() const { return run_; }

 private:
  /// Listens for the members that will call, at the addresses by which they know this rank; says
  /// the port. In between no rank listens anywhere.
  std::string invite(std::span<const int> members) override {
    std::vector<Endpoint> places;
    const auto me = std::ranges::find(members, rank());
    for (auto member = me; member != members.end(); ++member) {
      if (member == me) continue;
      Endpoint own = own_[static_cast<size_t>(*member)];
      own.set_port(0);
      const bool known =
          std::ranges::any_of(places, [&](const Endpoint& p) { return p.host() == own.host(); });
      if (!known) places.push_back(own);
    }
    if (places.empty()) return "0";
    door_.emplace(listen_on(std::move(places)), key_, size());
    return std::to_string(door_->port());
  }

  void accept(std::span<const std::string> invitations) override {
    for (size_t r = 0; r < invitations.size(); ++r) {
      const std::string& text = invitations[r];
      const auto [end, error] =
          std::from_chars(text.data(), text.data() + text.size(), addresses_[r].port);
      if (error != std::errc() || end != text.data() + text.size()) {
        fail(ErrorCode::kPeer, fmt::format("rank {} says that it listens on port `{}`", r, text));
      }
    }
  }

  std::unique_ptr<Link> connect(uint64_t id, const Group& group) override {
    const auto deadline = after(timeout_seconds());
    std::vector<Socket> sockets(group.members.size());
    for (int q = 0; q < group.rank; ++q) {
      const int peer = group.members[static_cast<size_t>(q)];
      Socket& socket = sockets[static_cast<size_t>(q)];
      socket = call_on(id, peer, deadline);
      if (!socket) did_not_answer(group, peer);
    }
    wait_for_callers(id, group, sockets, deadline);
    door_.reset();
    for (size_t q = 0; q < sockets.size(); ++q) {
      if (control() != nullptr || !sockets[q]) continue;
      const auto peer = static_cast<size_t>(group.members[q]);
      own_[peer] = local_endpoint(sockets[q]);
      addresses_[peer].host = peer_endpoint(sockets[q]).host();
    }
    return std::make_unique<TcpLink>(id, group, std::move(sockets), failure());
  }

  [[noreturn]] void did_not_answer(const Group& group, int peer) const {
    fail(ErrorCode::kPeer, fmt::format("opening group `{}`: rank {} did not answer within {} s",
                                       group.name, peer, timeout_seconds()));
  }

  /// Connects to a rank that waits, or will; an empty socket on the deadline.
  Socket call_on(uint64_t id, int peer, Clock::time_point deadline) const {
    constexpr auto kRetry = std::chrono::milliseconds(20);
    const Address& address = addresses_[static_cast<size_t>(peer)];
    const std::string words = format(Introduction{run_, id, rank(), peer});
    // Once the world stands, a rank that cannot be reached is gone.
    const auto reach = control() != nullptr ? std::min(deadline, after(5)) : deadline;
    while (Clock::now() < reach) {
      for (const Endpoint& endpoint : resolve(address.host, address.port)) {
        Socket socket = try_connect(endpoint, reach);
        if (!socket) continue;
        auto line = introduce(std::move(socket), key_, words, deadline);
        if (line && line->hear(kMaxStrangeMessage, deadline) == kWelcome) {
          return std::move(line->socket);
        }
      }
      std::this_thread::sleep_for(kRetry);
    }
    return {};
  }

  /// Until all members behind this one have called, in whatever order.
  void wait_for_callers(uint64_t id, const Group& group, std::vector<Socket>& sockets,
                        Clock::time_point deadline) {
    const auto missing = [&] {
      return std::ranges::find_if(sockets.begin() + group.rank + 1, sockets.end(),
                                  [](const Socket& s) { return !s; });
    };
    for (auto first = missing(); first != sockets.end(); first = missing()) {
      auto guest = door_->next(deadline);
      if (!guest)
        did_not_answer(group, group.members[static_cast<size_t>(first - sockets.begin())]);
      const auto caller = parse_introduction(guest->words);
      if (!caller || caller->run != run_ || caller->group != id || caller->to != rank()) continue;
      const auto q = std::ranges::find(group.members, caller->from) - group.members.begin();
      if (q <= group.rank || q == group.size()) continue;
      if (!guest->line.say(kWelcome, deadline)) continue;
      sockets[static_cast<size_t>(q)] = std::move(guest->line.socket);
    }
  }

  Key key_;
  std::string run_;
  std::vector<Address> addresses_;  // by rank; ports are those of the group that opens
  std::optional<Door> door_;        // while one does
  std::vector<Endpoint> own_;       // by rank: how it knows this one
};

}  // namespace

std::unique_ptr<World> join_tcp(const CommConfig& config, const Launch& launch) {
  Socket inherited(launch.listener);
  const Meeting meeting{config.rendezvous.empty() ? launch.rendezvous : config.rendezvous,
                        launch.rank,
                        launch.ranks,
                        launch.all_local,
                        given_secret(launch.secret, launch.secret_file),
                        config.timeout_seconds};
  if (meeting.place.empty()) {
    fail(
        ErrorCode::kConfig,
        fmt::format("{} ranks over TCP need a place to meet: set rendezvous to file:PATH (a folder "
                    "that all ranks see) or tcp:HOST:PORT",
                    launch.ranks));
  }
  Met met = meet(meeting, std::move(inherited));
  const std::string& machine = met.addresses[static_cast<size_t>(launch.rank)].machine;
  int local_rank = 0, local_size = 0;
  for (int r = 0; r < launch.ranks; ++r) {
    if (met.addresses[static_cast<size_t>(r)].machine != machine) continue;
    if (r < launch.rank) ++local_rank;
    ++local_size;
  }
  auto world = std::make_unique<TcpWorld>(
      TcpWorld::Seat{launch.rank, launch.ranks, local_rank, local_size}, config, std::move(met));
  world->begin();
  leave(meeting, world->run());
  return world;
}

}  // namespace segue::comm
