#include <map>
#include <sstream>
#include <thread>

#include <fmt/format.h>

#include "comm/process_world.h"
#include "comm/rendezvous.h"
#include "comm/tcp_link.h"

namespace segue::comm {
namespace {

Clock::time_point after(double seconds) {
  return Clock::now() +
         std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

class TcpWorld final : public ProcessWorld {
 public:
  TcpWorld(const Seat& seat, const CommConfig& config, Meeting meeting, Socket listener,
           std::vector<Address> addresses)
      : ProcessWorld(seat, config),
        meeting_(std::move(meeting)),
        listener_(std::move(listener)),
        addresses_(std::move(addresses)) {}

  void begin() {
    start();
    // Nobody looks for this rank any more.
    control()->barrier().throw_if_failed();
    leave(meeting_);
  }

 private:
  std::unique_ptr<Link> connect(uint64_t id, const Group& group) override {
    const auto deadline = after(timeout_seconds());
    std::vector<Socket> sockets(group.members.size());
    for (int q = 0; q < group.size(); ++q) {
      const int peer = group.members[static_cast<size_t>(q)];
      if (q < group.rank) sockets[static_cast<size_t>(q)] = call_on(id, peer, deadline);
      if (q > group.rank) sockets[static_cast<size_t>(q)] = wait_for(id, peer, deadline);
      if (q != group.rank && !sockets[static_cast<size_t>(q)]) {
        fail(ErrorCode::kPeer, fmt::format("opening group `{}`: rank {} did not answer within {} s",
                                           group.name, peer, timeout_seconds()));
      }
    }
    return std::make_unique<TcpLink>(id, group, std::move(sockets), fate());
  }

  /// Connects to a rank that waits, or will; an empty socket on the deadline.
  Socket call_on(uint64_t id, int peer, Clock::time_point deadline) {
    constexpr auto kRetry = std::chrono::milliseconds(20);
    Address& address = addresses_[static_cast<size_t>(peer)];
    // Once the world stands, a rank that cannot be reached is gone.
    if (control() != nullptr) deadline = std::min(deadline, after(5));
    while (Clock::now() < deadline) {
      Socket socket = try_connect(address.host, address.port, deadline);
      std::string answer;
      if (socket &&
          send_text(socket, fmt::format("{} {} {}", id, rank(), address.nonce), deadline) &&
          receive_text(socket, answer, after(timeout_seconds())) && answer == address.nonce) {
        return socket;
      }
      std::this_thread::sleep_for(kRetry);
      if (control() == nullptr) look_again(meeting_, peer, address);
    }
    return {};
  }

  /// Waits for a rank to connect; others may come first, also for groups that open later.
  Socket wait_for(uint64_t id, int peer, Clock::time_point deadline) {
    const std::string& nonce = addresses_[static_cast<size_t>(rank())].nonce;
    for (;;) {
      if (auto it = callers_.find({id, peer}); it != callers_.end()) {
        Socket socket = std::move(it->second);
        callers_.erase(it);
        return send_text(socket, nonce, deadline) ? std::move(socket) : Socket();
      }
      Socket caller = accept_from(listener_, deadline);
      if (!caller) return {};
      std::string text, meant;
      uint64_t group = 0;
      int from = -1;
      const auto patience = std::min(deadline, after(2));
      if (!receive_text(caller, text, patience)) continue;
      std::istringstream in(text);
      if (in >> group >> from >> meant && meant == nonce) {
        callers_[{group, from}] = std::move(caller);
      }
    }
  }

  Meeting meeting_;
  Socket listener_;
  std::vector<Address> addresses_;
  std::map<std::pair<uint64_t, int>, Socket> callers_;  // by group and rank, not yet answered
};

}  // namespace

std::unique_ptr<World> join_tcp(const CommConfig& config, const Launch& launch) {
  Meeting meeting{config.rendezvous.empty() ? launch.rendezvous : config.rendezvous,
                  launch.rank,
                  launch.ranks,
                  launch.all_local,
                  config.timeout_seconds,
                  after(config.timeout_seconds)};
  if (meeting.place.empty()) {
    fail(
        ErrorCode::kConfig,
        fmt::format("{} ranks over TCP need a place to meet: set rendezvous to file:PATH (a folder "
                    "that all ranks see) or tcp:HOST:PORT",
                    launch.ranks));
  }
  meeting.loopback = meeting.loopback || is_loopback(meeting.place);
  Socket listener = listen_on(meeting.loopback, 0);
  std::vector<Address> addresses = meet(meeting, own_address(listener, meeting.loopback));
  const std::string& machine = addresses[static_cast<size_t>(launch.rank)].machine;
  int local_rank = 0, local_size = 0;
  for (int r = 0; r < launch.ranks; ++r) {
    if (addresses[static_cast<size_t>(r)].machine != machine) continue;
    if (r < launch.rank) ++local_rank;
    ++local_size;
  }
  auto world =
      std::make_unique<TcpWorld>(TcpWorld::Seat{launch.rank, launch.ranks, local_rank, local_size},
                                 config, meeting, std::move(listener), std::move(addresses));
  world->begin();
  return world;
}

}  // namespace segue::comm
