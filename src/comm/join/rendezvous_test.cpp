// How ranks find each other over TCP, and who else may come.

#include "comm/join/rendezvous.h"

#include <algorithm>
#include <atomic>
#include <future>
#include <thread>

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/test_util.h"
#include "base/time.h"
#include "comm/collectives_test_util.h"
#include "comm/deadline.h"
#include "comm/join/secret.h"
#include "comm/join/strangers_test_util.h"
#include "comm/process_test_util.h"
#include "comm/tcp_test_util.h"

namespace segue::comm {
namespace {

using base::contains;
using testing::config_of;
using testing::launch_of;
using testing::run_tcp;
using testing::Start;

constexpr double kTimeout = 20;

std::string tcp_place() { return "tcp:127.0.0.1:" + std::to_string(testing::meeting_port()); }
void barrier(World& world) { world.open("a")->barrier().throw_if_failed(); }

TEST(Rendezvous, PlacesThatCannotBeMeant) {
  for (const char* place : {"", "file:", "tcp:", "tcp:host", "tcp:host:0", "tcp:host:70000",
                            "tcp::80", "tcp:host:8o", "tcp:[]:80", "/shared/folder"}) {
    const auto error = base::error_of([&] { check_rendezvous(place); });
    EXPECT_EQ(error->code(), ErrorCode::kConfig) << place;
  }
  check_rendezvous("file:/shared/folder");
  check_rendezvous("tcp:node1.cluster:4711");
  check_rendezvous("tcp:[2001:db8::1]:4711");
}

TEST(Rendezvous, ByIpv6) {
  if (!is_ours(resolve("::1", 0).front())) GTEST_SKIP() << "no IPv6 on this machine";
  const std::string place = "tcp:[::1]:" + std::to_string(testing::meeting_port());
  for (const std::string& error : run_tcp(3, place, kTimeout, barrier)) EXPECT_EQ(error, "");
}

// ---- where ranks listen ----

TEST(Rendezvous, OnlyTheNamedAddressIsListenedOn) {
  const int port = testing::meeting_port();
  const auto config = config_of("tcp:127.0.0.1:" + std::to_string(port), kTimeout);
  // Ranks 0 and 1 wait, listening, until rank 2 comes.
  auto early = std::async(std::launch::async, [&] {
    return run_tcp({{config, launch_of(0, 3)}, {config, launch_of(1, 3)}}, barrier);
  });
  std::vector<Endpoint> listening;
  const auto limit = after(10);
  while (listening.size() < 2 && Clock::now() < limit) {
    listening = testing::listening_endpoints();
    ::usleep(1000);
  }
  EXPECT_EQ(listening.size(), 2);
  EXPECT_TRUE(std::any_of(listening.begin(), listening.end(),
                          [&](const Endpoint& e) { return e.port() == port; }));
  for (const Endpoint& e : listening) EXPECT_EQ(e.host(), "127.0.0.1");

  EXPECT_EQ(run_tcp({{config, launch_of(2, 3)}}, barrier), std::vector<std::string>{""});
  for (const std::string& error : early.get()) EXPECT_EQ(error, "");
}

TEST(Rendezvous, WhenAllHaveMetNobodyListens) {
  for (const std::string& place : {tcp_place(), "file:" + base::temp_path("meet")}) {
    std::atomic<size_t> listening{0};
    const auto errors = run_tcp(3, place, kTimeout, [&](World& world) {
      const auto comm = world.open("dense");
      comm->barrier().throw_if_failed();
      if (world.rank() == 0) listening += testing::listening_endpoints().size();
      comm->barrier().throw_if_failed();
      world.open("more")->barrier().throw_if_failed();  // connections can still be made
    });
    for (const std::string& error : errors) EXPECT_EQ(error, "");
    EXPECT_EQ(listening, 0) << place;
  }
}

TEST(Rendezvous, AHostThatIsElsewhereIsAnErrorWithAWayOut) {
  const auto config = config_of("tcp:192.0.2.7:4711", 5);  // nobody's address
  const auto error = base::error_of([&] { join_tcp(config, launch_of(0, 2)); });
  EXPECT_EQ(error->code(), ErrorCode::kConfig);
  EXPECT_TRUE(contains(error->what(), "192.0.2.7 is no address of this machine")) << error->what();
  EXPECT_TRUE(contains(error->what(), "give rank 0 tcp:0.0.0.0:4711")) << error->what();
  const auto unknown = base::error_of(
      [&] { join_tcp(config_of("tcp:no-such-host.invalid:4711", 5), launch_of(0, 2)); });
  EXPECT_TRUE(contains(unknown->what(), "nobody knows a host of that name")) << unknown->what();
}

TEST(Rendezvous, AllAddressesAreListenedOnWhenThatIsAskedFor) {
  const std::string port = std::to_string(testing::meeting_port());
  const auto errors = run_tcp({{config_of("tcp:0.0.0.0:" + port, kTimeout), launch_of(0, 2)},
                               {config_of("tcp:127.0.0.1:" + port, kTimeout), launch_of(1, 2)}},
                              barrier);
  EXPECT_EQ(errors[0] + errors[1], "");
}

TEST(Rendezvous, TheOwnNameOfAMachineLeadsToItsOutwardAddress) {
  const std::string name = host_name();
  if (name == "localhost") GTEST_SKIP() << "a machine without a name";
  const std::vector<Endpoint> places = resolve(name, 80);
  ASSERT_FALSE(places.empty());
  EXPECT_EQ(places.front().is_loopback(), outward_address() == "127.0.0.1");
  EXPECT_TRUE(resolve("localhost", 80).front().is_loopback());
}

// ---- the secret ----

TEST(Rendezvous, TcpWithoutASecretIsAConfigErrorThatSaysHowToMakeOne) {
  for (const int rank : {0, 1}) {
    const auto error =
        base::error_of([&] { join_tcp(config_of(tcp_place(), 5), launch_of(rank, 2, "")); });
    EXPECT_EQ(error->code(), ErrorCode::kConfig);
    EXPECT_TRUE(contains(error->what(), "head -c 32 /dev/urandom")) << error->what();
    EXPECT_TRUE(contains(error->what(), "SEGUE_SECRET_FILE")) << error->what();
  }
}

TEST(Rendezvous, ARankWithAnotherSecretGetsNoSeat) {
  const auto errors =
      run_tcp({{config_of(tcp_place(), 1), launch_of(0, 2)},
               {config_of(tcp_place(), 1), launch_of(1, 2, "another secret than that")}},
              [](World&) { ADD_FAILURE() << "they met"; });
  EXPECT_TRUE(contains(errors[0], "rank 1 did not come to ")) << errors[0];
  EXPECT_TRUE(contains(errors[0], "without the right secret")) << errors[0];
  EXPECT_TRUE(contains(errors[1], "does not have the same secret")) << errors[1];
}

TEST(Rendezvous, RunsThatMeetAtTheSamePlaceFindOut) {
  const base::Stopwatch watch;
  const auto errors = run_tcp({{config_of(tcp_place(), kTimeout), launch_of(0, 3)},
                               {config_of(tcp_place(), kTimeout), launch_of(1, 2)}},
                              [](World&) { ADD_FAILURE() << "they met"; });
  for (const std::string& error : errors) {
    EXPECT_TRUE(contains(error, "as rank 1 of 2, but this run has 3 ranks")) << error;
  }
  EXPECT_LT(watch.seconds(), base::kSlowness * 10);
}

/// Words of one run, brought to the door of another that has the same secret.
TEST(Rendezvous, ARankThatWasToldToGoElsewhereFindsOut) {
  const std::string port = std::to_string(testing::meeting_port());
  const auto errors = run_tcp({{config_of("tcp:127.0.0.1:" + port, kTimeout), launch_of(0, 2)},
                               {config_of("tcp:localhost:" + port, kTimeout), launch_of(1, 2)}},
                              [](World&) { ADD_FAILURE() << "they met"; });
  for (const std::string& error : errors) {
    EXPECT_TRUE(contains(error, "was told to go to tcp:localhost:")) << error;
  }
}

TEST(Rendezvous, WhoIsMissingIsSaidByAll) {
  const auto errors = run_tcp(
      {{config_of(tcp_place(), 1), launch_of(0, 3)}, {config_of(tcp_place(), 1), launch_of(1, 3)}},
      [](World&) { ADD_FAILURE() << "they met"; });
  for (const std::string& error : errors) {
    EXPECT_TRUE(contains(error, "rank 2 did not come to tcp:")) << error;
  }
}

TEST(Secret, GivenAsTextOrInAFile) {
  const std::string path = base::temp_path("secret"), text = "0123456789abcdef";
  base::write_file(path, text + "\n");
  ::chmod(path.c_str(), 0600);
  EXPECT_EQ(given_secret(text, ""), text);
  EXPECT_EQ(given_secret("", path), text);
  EXPECT_EQ(given_secret("", ""), "");
  EXPECT_EQ(base::error_of([&] { given_secret(text, path); })->code(), ErrorCode::kConfig);
  EXPECT_EQ(base::error_of([&] { given_secret("short", ""); })->code(), ErrorCode::kConfig);
  for (const mode_t mode : {0640, 0604, 0660, 0644, 0620}) {
    ::chmod(path.c_str(), mode);
    const auto error = base::error_of([&] { given_secret("", path); });
    EXPECT_EQ(error->code(), ErrorCode::kIo);
    EXPECT_TRUE(contains(error->what(), "is open to others")) << error->what();
    EXPECT_TRUE(contains(error->what(), "chmod 600")) << error->what();
    EXPECT_FALSE(contains(error->what(), text));
  }
  ::chmod(path.c_str(), 0600);
  if (::geteuid() == 0) {
    ASSERT_EQ(::chown(path.c_str(), 12345, 12345), 0);
    EXPECT_TRUE(
        contains(base::error_of([&] { given_secret("", path); })->what(), "belongs to user 12345"));
  }
  base::put_file(path, std::string(5000, 'x'));
  EXPECT_TRUE(contains(base::error_of([&] { given_secret("", path); })->what(), "too long"));
  EXPECT_EQ(base::error_of([&] { given_secret("", path + "x"); })->code(), ErrorCode::kIo);
  EXPECT_EQ(base::error_of([&] { given_secret("", "/dev/null"); })->code(), ErrorCode::kIo);
}

// ---- by file ----

std::vector<Start> by_file(const std::string& path, const std::string& secret, double timeout) {
  std::vector<Start> starts;
  for (int r = 0; r < 2; ++r) {
    starts.push_back({config_of("file:" + path, timeout), launch_of(r, 2, secret)});
  }
  return starts;
}

TEST(Rendezvous, RankZeroLeavesASecretThatOnlyItsUserCanRead) {
  const std::string path = base::temp_path("meet"), file = path + "/rank-0-of-2";
  std::atomic<mode_t> mode{0};
  std::thread second([&] {
    struct stat info {};
    const base::Stopwatch watch;
    while (::stat(file.c_str(), &info) != 0 && watch.seconds() < kTimeout) ::usleep(1000);
    mode = info.st_mode & 0777U;
    join_tcp(config_of("file:" + path, kTimeout), launch_of(1, 2, ""));
  });
  const auto world = join_tcp(config_of("file:" + path, kTimeout), launch_of(0, 2, ""));
  second.join();
  EXPECT_EQ(mode, 0600U);
  EXPECT_FALSE(base::exists(file));
}

/// An earlier run has left a file that leads to this port.
void expect_stale_file_does_not_matter(const std::string& secret, int port) {
  const std::string path = base::temp_path("meet" + secret), file = path + "/rank-0-of-2";
  base::make_folders(path);
  write_private(file, format(Notice{{"127.0.0.1", port, ""}, "run", std::string(64, '0')}));
  std::vector<Start> starts = by_file(path, secret, kTimeout);
  starts[0].late_ms = 200;
  const auto errors = run_tcp(starts, barrier);
  EXPECT_EQ(errors[0] + errors[1], "");
  EXPECT_FALSE(base::exists(file));
}

TEST(Rendezvous, WhatAnEarlierRunLeftBehindDoesNotMatter) {
  for (const char* secret : {"", testing::kSecret}) expect_stale_file_does_not_matter(secret, 1);
}

/// Somebody listens there by now, and says nothing.
TEST(SlowRendezvous, WhatAnEarlierRunLeftBehindDoesNotMatter) {
  const std::vector<Socket> silent = listen_on(resolve("127.0.0.1", 0));
  const int port = local_endpoint(silent.front()).port();
  for (const char* secret : {"", testing::kSecret}) expect_stale_file_does_not_matter(secret, port);
}

TEST(Rendezvous, AFileThatOthersCouldHaveWrittenIsNotBelieved) {
  const std::string path = base::temp_path("meet"), file = path + "/rank-0-of-2";
  base::make_folders(path);
  base::write_file(file, format(Notice{{"127.0.0.1", 1, ""}, "run", std::string(64, '0')}));
  ::chmod(file.c_str(), 0644);
  const auto starts = by_file(path, "", 0.3);
  const auto error = base::error_of([&] { join_tcp(starts[1].config, starts[1].launch); });
  EXPECT_EQ(error->code(), ErrorCode::kPeer);
  EXPECT_TRUE(contains(error->what(), "is open to others (mode 644)")) << error->what();
}

// ---- strangers ----

/// Seconds until all ranks are in, the last of which comes after some time; then they work.
double start_ranks(const std::string& place) {
  std::vector<Start> starts;
  for (int r = 0; r < 3; ++r) {
    starts.push_back({config_of(place, kTimeout), launch_of(r, 3), 20 * r});
  }
  const base::Stopwatch watch;
  double all_in = 0;
  const auto errors = run_tcp(starts, [&](World& world) {
    const auto comm = world.open("dense");
    comm->barrier().throw_if_failed();
    if (world.rank() == 0) all_in = watch.seconds();
    testing::check_random_calls(*comm, 7, 10, 300);
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
  return all_in;
}

/// Starts ranks over and over until strangers have come so often.
void expect_strangers_do_not_matter(int tries) {
  double undisturbed = 0, longest = 0;
  for (int i = 0; i < 5; ++i) undisturbed = std::max(undisturbed, start_ranks(tcp_place()));
  const testing::Strangers strangers(testing::meeting_port());
  const base::Stopwatch watch;
  int starts = 0;
  for (; strangers.heard() < tries && watch.seconds() < 600; ++starts) {
    longest = std::max(longest, start_ranks(tcp_place()));
  }
  EXPECT_GE(strangers.heard(), tries);
  EXPECT_LT(longest, undisturbed + 1);
  std::cout << strangers.heard() << " strangers in " << starts << " starts; the longest took "
            << longest << " s, " << undisturbed << " s without them\n";
}

TEST(Rendezvous, StrangersTakeNoSeatAndNoTime) { expect_strangers_do_not_matter(60); }
TEST(SlowRendezvous, AThousandStrangersTakeNoSeatAndNoTime) {
  expect_strangers_do_not_matter(1000);
}

TEST(Rendezvous, IdleAndHalfOpenConnectionsDoNotDelayTheStart) {
  const std::vector<Socket> door = listen_on(resolve("127.0.0.1", 0));
  const int port = local_endpoint(door.front()).port();
  std::vector<Socket> strangers;
  for (int i = 0; i < 300; ++i) {  // before rank 0 has looked at the first one
    ASSERT_TRUE(testing::say_something_strange(port, i % 2, strangers));
  }
  std::vector<Start> starts;
  for (int r = 0; r < 3; ++r) {
    starts.push_back(
        {config_of("tcp:127.0.0.1:" + std::to_string(port), kTimeout), launch_of(r, 3)});
  }
  starts[0].launch.listener = ::dup(door.front().fd());
  const base::Stopwatch watch;
  for (const std::string& error : run_tcp(starts, barrier)) EXPECT_EQ(error, "");
  EXPECT_LT(watch.seconds(), base::kSlowness * 2);
}

TEST(Door, KeepsThoseWhoSpeakAndForgetsTheSilent) {
  Door door(listen_on(resolve("127.0.0.1", 0)), Key(testing::kSecret), 2);
  std::vector<Socket> silent;
  std::thread caller([&] {
    for (int i = 0; i < 400; ++i) {
      silent.push_back(try_connect(resolve("127.0.0.1", door.port()).front(), after(5)));
    }
    const auto line = introduce(try_connect(resolve("127.0.0.1", door.port()).front(), after(5)),
                                Key(testing::kSecret), "here I am", after(5));
    ASSERT_TRUE(line);
    EXPECT_EQ(line->hear(100, after(5)), kWelcome);
  });
  const auto guest = door.next(after(10));
  ASSERT_TRUE(guest);
  EXPECT_EQ(guest->words, "here I am");
  EXPECT_TRUE(guest->line.say(kWelcome, after(5)));
  caller.join();
  EXPECT_EQ(door.refused(), 0);
  EXPECT_FALSE(door.next(after(0.05)));
}

TEST(Door, WordsOfOneConnectionMeanNothingOnAnother) {
  Door door(listen_on(resolve("127.0.0.1", 0)), Key(testing::kSecret), 2);
  const auto place = resolve("127.0.0.1", door.port()).front();
  // What a rank once said, with its nonce; only the host's nonce is new.
  Session once{Key(testing::kSecret), random_bytes(kNonceBytes), random_bytes(kNonceBytes)};
  const std::string recorded = once.seal(Side::kCaller, "here I am");
  std::thread caller([&] {
    const Socket socket = try_connect(place, after(5));
    EXPECT_TRUE(send_message(socket, once.caller_nonce, after(5)));
    EXPECT_TRUE(receive_message(socket, kNonceBytes, after(5)));
    EXPECT_TRUE(send_message(socket, recorded, after(5)));
    EXPECT_FALSE(receive_message(socket, 1000, after(5)));
  });
  EXPECT_FALSE(door.next(after(0.5)));
  EXPECT_EQ(door.refused(), 1);
  caller.join();
}

}  // namespace
}  // namespace segue::comm
