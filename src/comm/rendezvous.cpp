#include "comm/rendezvous.h"

#include <charconv>
#include <filesystem>
#include <random>
#include <sstream>
#include <thread>

#include <fmt/format.h>
#include <unistd.h>

#include "base/error.h"
#include "base/file.h"

namespace segue::comm {
namespace {

constexpr auto kRetry = std::chrono::milliseconds(20);

struct Place {
  bool file = false;
  std::string path;  // or host
  int port = 0;
};

Place parse_place(const std::string& text) {
  if (text.starts_with("file:") && text.size() > 5) return {true, text.substr(5), 0};
  if (text.starts_with("tcp:")) {
    const std::string rest = text.substr(4);
    const size_t colon = rest.rfind(':');
    if (colon != std::string::npos && colon > 0) {
      const std::string number = rest.substr(colon + 1);
      int port = 0;
      const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), port);
      if (error == std::errc() && end == number.data() + number.size() && port > 0 &&
          port < 65536) {
        return {false, rest.substr(0, colon), port};
      }
    }
  }
  fail(ErrorCode::kConfig, fmt::format("rendezvous `{}` is neither file:PATH (a folder that all "
                                       "ranks see) nor tcp:HOST:PORT",
                                       text));
}

std::string file_of(const Meeting& meeting, int rank) {
  return fmt::format("{}/rank-{}-of-{}", parse_place(meeting.place).path, rank, meeting.ranks);
}

std::string host_name() {
  char name[256] = "";
  ::gethostname(name, sizeof name - 1);
  return name;
}

std::string machine_id() {
  std::string id = host_name();
  const std::string path = "/proc/sys/kernel/random/boot_id";
  if (base::exists(path)) id += "/" + base::read_file(path);
  std::erase_if(id, [](unsigned char c) { return c <= ' '; });
  return id;
}

[[noreturn]] void did_not_come(const Meeting& meeting, const std::vector<int>& missing) {
  std::string who;
  for (const int rank : missing) who += fmt::format("{}{}", who.empty() ? "" : ", ", rank);
  fail(ErrorCode::kPeer,
       fmt::format("rank {} did not come to {} within {} s; were all {} ranks started, and can "
                   "this machine ({}) be reached from theirs?",
                   who, meeting.place, meeting.timeout_seconds, meeting.ranks, host_name()));
}

std::vector<Address> meet_by_file(const Meeting& meeting, const Address& own) {
  base::make_folders(parse_place(meeting.place).path);
  base::write_file(file_of(meeting, meeting.rank), own.to_text());
  std::vector<Address> all(static_cast<size_t>(meeting.ranks));
  for (;;) {
    std::vector<int> missing;
    for (int r = 0; r < meeting.ranks; ++r) {
      Address& address = all[static_cast<size_t>(r)];
      if (r == meeting.rank) address = own;
      if (address.port == 0 && !look_again(meeting, r, address)) missing.push_back(r);
    }
    if (missing.empty()) return all;
    if (Clock::now() >= meeting.deadline) did_not_come(meeting, missing);
    std::this_thread::sleep_for(kRetry);
  }
}

/// "rank ranks address".
bool parse_visitor(const std::string& text, int& rank, int& ranks, Address& address) {
  std::istringstream in(text);
  std::string rest;
  return in >> rank >> ranks && std::getline(in, rest) && Address::parse(rest, address);
}

/// Rank 0: collects the addresses of all and hands them out.
std::vector<Address> host_meeting(const Meeting& meeting, const Address& own) {
  const Place place = parse_place(meeting.place);
  const Socket door = listen_on(meeting.loopback, place.port);
  std::vector<Address> all(static_cast<size_t>(meeting.ranks));
  std::vector<Socket> visitors(all.size());
  all[0] = own;
  all[0].host = place.path;
  for (;;) {
    std::vector<int> missing;
    for (int r = 1; r < meeting.ranks; ++r) {
      if (!visitors[static_cast<size_t>(r)]) missing.push_back(r);
    }
    if (missing.empty()) break;
    Socket visitor = accept_from(door, meeting.deadline);
    if (!visitor) did_not_come(meeting, missing);
    std::string text;
    int rank = 0, ranks = 0;
    Address address;
    const auto patience = std::min(meeting.deadline, Clock::now() + std::chrono::seconds(2));
    if (!receive_text(visitor, text, patience) || !parse_visitor(text, rank, ranks, address)) {
      continue;  // not one of us
    }
    if (ranks != meeting.ranks || rank < 1 || rank >= ranks) {
      fail(ErrorCode::kPeer, fmt::format("a process came to {} as rank {} of {}, but this run has "
                                         "{} ranks; two runs meet at the same place?",
                                         meeting.place, rank, ranks, meeting.ranks));
    }
    address.host = peer_address(visitor);
    all[static_cast<size_t>(rank)] = address;
    visitors[static_cast<size_t>(rank)] = std::move(visitor);
  }
  std::string table;
  for (const Address& address : all) table += address.to_text() + "\n";
  for (size_t r = 1; r < all.size(); ++r) send_text(visitors[r], table, meeting.deadline);
  return all;
}

std::vector<Address> visit_meeting(const Meeting& meeting, const Address& own) {
  const Place place = parse_place(meeting.place);
  const std::string me = fmt::format("{} {} {}", meeting.rank, meeting.ranks, own.to_text());
  while (Clock::now() < meeting.deadline) {
    const Socket host = try_connect(place.path, place.port, meeting.deadline);
    std::string table;
    if (host && send_text(host, me, meeting.deadline) &&
        receive_text(host, table, meeting.deadline)) {
      std::vector<Address> all(static_cast<size_t>(meeting.ranks));
      std::istringstream lines(table);
      std::string line;
      bool good = true;
      for (Address& address : all) {
        good = good && std::getline(lines, line) && Address::parse(line, address);
      }
      if (good) return all;
    }
    std::this_thread::sleep_for(kRetry);
  }
  did_not_come(meeting, {0});
}

}  // namespace

std::string Address::to_text() const {
  return fmt::format("{} {} {} {}", host, port, machine, nonce);
}

bool Address::parse(const std::string& text, Address& address) {
  std::istringstream in(text);
  Address a;
  if (!(in >> a.host >> a.port >> a.machine >> a.nonce) || a.port <= 0 || a.port > 65535) {
    return false;
  }
  address = a;
  return true;
}

void check_rendezvous(const std::string& place) { parse_place(place); }

bool is_loopback(const std::string& place) {
  const Place p = parse_place(place);
  return !p.file && (p.path == "localhost" || p.path.starts_with("127."));
}

Address own_address(const Socket& listener, bool loopback) {
  std::random_device entropy;
  return {loopback ? "127.0.0.1" : host_name(), port_of(listener), machine_id(),
          fmt::format("{:08x}{:08x}", entropy(), entropy())};
}

std::vector<Address> meet(const Meeting& meeting, const Address& own) {
  if (parse_place(meeting.place).file) return meet_by_file(meeting, own);
  return meeting.rank == 0 ? host_meeting(meeting, own) : visit_meeting(meeting, own);
}

bool look_again(const Meeting& meeting, int rank, Address& address) {
  if (!parse_place(meeting.place).file) return false;
  const std::string path = file_of(meeting, rank);
  if (!base::exists(path)) return false;
  try {
    return Address::parse(base::read_file(path), address);
  } catch (const Error&) {
    return false;  // taken away meanwhile
  }
}

void leave(const Meeting& meeting) {
  if (!parse_place(meeting.place).file) return;
  std::error_code ignored;
  std::filesystem::remove(file_of(meeting, meeting.rank), ignored);
}

}  // namespace segue::comm
