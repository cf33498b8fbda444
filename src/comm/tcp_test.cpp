// TCP with ranks as threads of one process: every rank has sockets of its own.

#include <atomic>
#include <mutex>
#include <thread>

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/test_util.h"
#include "base/time.h"
#include "comm/collectives_test_util.h"
#include "comm/link/frame.h"
#include "comm/link/tcp_link.h"
#include "comm/process_world.h"
#include "comm/tcp_test_util.h"

namespace segue::comm {
namespace {

using base::contains;
using testing::run_tcp;

constexpr double kTimeout = 20;

std::string folder() { return "file:" + base::temp_path("meet"); }

class TcpWorlds : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, TcpWorlds, ::testing::Values(1, 2, 3, 5));

TEST_P(TcpWorlds, RandomSequences) {
  const int ranks = GetParam();
  const auto errors = run_tcp(ranks, folder(), kTimeout, [&](World& world) {
    testing::require(world.size() == ranks && world.local_rank() == world.rank(), "place");
    const auto one = world.open("one"), two = world.open("two");
    std::thread other([&] { testing::check_random_calls(*two, 12, 20, 3000); });
    testing::check_random_calls(*one, 11, 30, 3000);
    other.join();
    testing::check_all_reduce<float>(*one, 5, 400001, {});
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

TEST(TcpWorld, ARankThatDoesNotComeIsNamed) {
  CommConfig config;
  config.timeout_seconds = 0.2;
  config.rendezvous = folder();
  const auto error = base::error_of([&] { join_tcp(config, testing::launch_of(0, 3)); });
  ASSERT_TRUE(error.has_value());
  EXPECT_EQ(error->code(), ErrorCode::kPeer);
  EXPECT_TRUE(contains(error->what(), "rank 1, 2 did not come to file:"));
  config.rendezvous = "tcp:127.0.0.1:1";
  const auto by_tcp = base::error_of([&] { join_tcp(config, testing::launch_of(1, 2)); });
  EXPECT_TRUE(contains(by_tcp->what(), "rank 0 did not come to tcp:127.0.0.1:1"));
}

TEST(TcpWorld, NoPlaceToMeetIsAConfigError) {
  const auto error = base::error_of([] { join_tcp({}, testing::launch_of(0, 2)); });
  EXPECT_EQ(error->code(), ErrorCode::kConfig);
  EXPECT_TRUE(contains(error->what(), "file:PATH"));
}

TEST(TcpWorld, RanksThatOpenDifferentGroupsFindOut) {
  const auto errors = run_tcp(2, folder(), kTimeout, [](World& world) {
    world.open(world.rank() == 0 ? "dense" : "tables");
  });
  EXPECT_TRUE(contains(errors[0], "`tables` of ranks 0 1 on rank 1"));
  EXPECT_TRUE(contains(errors[1], "`dense` of ranks 0 1 on rank 0"));
}

TEST(TcpWorld, ARankThatDoesNotAnswerIsNamedByAll) {
  std::atomic<int> done{0};
  const base::Stopwatch watch;
  const auto errors = run_tcp(3, folder(), 1, [&](World& world) {
    const auto comm = world.open("dense");
    comm->set_step(8);
    if (world.rank() == 1) {
      while (done < 2 && watch.seconds() < kTimeout) ::usleep(5000);
      return;
    }
    const Status status = comm->barrier();
    ++done;
    status.throw_if_failed();
  });
  for (const int r : {0, 2}) {
    EXPECT_TRUE(contains(errors[static_cast<size_t>(r)], "group `dense`, barrier, step 8"));
    EXPECT_TRUE(contains(errors[static_cast<size_t>(r)], "rank 1 did not answer within 1 s"));
  }
}

TEST(TcpWorld, RanksThatDoDifferentThingsFindOut) {
  const auto errors = run_tcp(2, folder(), kTimeout, [](World& world) {
    const auto comm = world.open("dense");
    std::vector<float> values(1);
    const Status status =
        world.rank() == 0 ? comm->all_reduce(host_view(std::span(values))) : comm->barrier();
    status.throw_if_failed();
  });
  EXPECT_TRUE(contains(errors[0], "rank 1 is in barrier") ||
              contains(errors[0], "rank 0 is in all_reduce"));
  EXPECT_FALSE(errors[1].empty());
}

TEST(TcpWorld, AReasonReachesRanksThatWaitForSomebodyElse) {
  // Rank 2 waits for rank 1 alone; rank 0 gives up.
  const base::Stopwatch watch;
  const auto errors = run_tcp(3, folder(), kTimeout, [&](World& world) {
    const auto comm = world.open("dense");
    if (world.rank() == 0) {
      world.give_up("out of memory");
      return;
    }
    if (world.rank() == 1) {
      while (watch.seconds() < 1) ::usleep(10000);
      return;
    }
    std::vector<std::byte> values(16);
    const std::vector<ConstBytes> send(3);
    comm->all_to_all(send, std::vector<Bytes>{{}, values, {}}).throw_if_failed();
  });
  EXPECT_TRUE(contains(errors[2], "rank 0 gave up: out of memory"));
  EXPECT_LT(watch.seconds(), base::kSlowness * 10);
}

// ---- one link against a peer that misbehaves ----

struct Pair {
  std::unique_ptr<TcpLink> link;  // rank 0 of 2
  Socket peer;
  std::shared_ptr<WorldFailure> failure = std::make_shared<WorldFailure>();
};

Pair make_pair() {
  int ends[2] = {-1, -1};
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  Pair pair;
  pair.peer = Socket(ends[1]);
  std::vector<Socket> sockets(2);
  sockets[1] = Socket(ends[0]);
  pair.link =
      std::make_unique<TcpLink>(7, Group{"g", 0, {0, 5}, 1}, std::move(sockets), pair.failure);
  return pair;
}

Call call_of(double seconds = 5) {
  return {Op::kAllToAll, 3, 1,
          Clock::now() + std::chrono::milliseconds(static_cast<int>(seconds * 1000)), seconds};
}

/// What rank 0 says when these bytes come from its peer (rank 5 of the world).
std::string said_after(const std::string& bytes, bool close = true) {
  Pair pair = make_pair();
  EXPECT_EQ(::send(pair.peer.fd(), bytes.data(), bytes.size(), 0),
            static_cast<ssize_t>(bytes.size()));
  if (close) pair.peer.close();
  std::vector<std::byte> memory(8);
  const std::vector<ConstBytes> send(2);
  const std::vector<Bytes> receive{{}, memory};
  return pair.link->exchange(call_of(close ? 5 : 0.1), send, receive).message();
}

std::string frame(const std::string& payload, uint64_t group = 7, uint64_t sequence = 1,
                  int flip = -1) {
  Call call = call_of();
  call.sequence = sequence;
  const FrameHeader header = data_frame(group, call, std::as_bytes(std::span(payload)));
  std::string bytes(reinterpret_cast<const char*>(&header), sizeof header);
  bytes += payload;
  if (flip >= 0) bytes[static_cast<size_t>(flip)] ^= 16;
  return bytes;
}

TEST(TcpLink, TakesAGoodMessage) { EXPECT_EQ(said_after(frame("12345678")), ""); }

TEST(TcpLink, EveryFlippedBitIsFound) {
  const int bytes = static_cast<int>(frame("12345678").size());
  for (int at = 0; at < bytes; ++at) {
    const std::string said = said_after(frame("12345678", 7, 1, at));
    EXPECT_TRUE(contains(said, "rank 5 was damaged on the way")) << "byte " << at;
  }
}

TEST(TcpLink, MessagesOfOtherCallsGroupsAndLengthsAreFound) {
  EXPECT_TRUE(contains(said_after(frame("12345678", 8)), "rank 5 sent a message of another group"));
  EXPECT_TRUE(contains(said_after(frame("12345678", 7, 2)), "rank 5 is in all_to_all (call 2"));
  EXPECT_TRUE(contains(said_after(frame("1234567")), "sent 7 bytes where"));
}

TEST(TcpLink, APeerThatEndsInTheMiddleOfAMessageIsNamed) {
  const std::string whole = frame("12345678");
  for (const size_t length : {size_t{0}, size_t{1}, size_t{55}, size_t{56}, size_t{60}}) {
    EXPECT_TRUE(contains(said_after(whole.substr(0, length)), "rank 5 is gone")) << length;
    EXPECT_TRUE(
        contains(said_after(whole.substr(0, length), false), "rank 5 did not answer within 0.1 s"))
        << length;
  }
}

TEST(TcpLink, AReasonIsPassedOnAsItIs) {
  const std::string reason = "rank 3 gave up: no more disk";
  const FrameHeader header = abort_frame(7, reason);
  EXPECT_EQ(said_after(std::string(reinterpret_cast<const char*>(&header), sizeof header) + reason),
            reason);
}

/// A peer that ended without reading what it was sent: its reason lies behind messages that nobody
/// has asked for yet, and is found when sending to it fails.
TEST(TcpLink, AReasonIsFoundBehindOtherMessages) {
  const std::string reason = "rank 5 gave up: no more disk";
  const FrameHeader header = abort_frame(7, reason);
  const std::string abort =
      std::string(reinterpret_cast<const char*>(&header), sizeof header) + reason;
  const std::string data = frame("12345678");
  for (const std::string& before :
       {std::string(), data, data + frame("more", 7, 2), data + frame(std::string(50000, 'x'))}) {
    Pair pair = make_pair();
    const std::string bytes = before + abort;
    ASSERT_EQ(::send(pair.peer.fd(), bytes.data(), bytes.size(), 0),
              static_cast<ssize_t>(bytes.size()));
    std::thread closer([&] {
      ::usleep(50'000);
      pair.peer.close();
    });
    std::vector<std::byte> memory(8);
    const std::vector<std::byte> large(size_t{8} << 20);  // more than a socket takes
    const std::vector<ConstBytes> send{{}, large};
    const std::vector<Bytes> receive{{}, memory};
    EXPECT_EQ(pair.link->exchange(call_of(), send, receive).message(), reason) << before.size();
    closer.join();
  }
}

TEST(TcpLink, APeerThatStoppedInTheMiddleOfAMessageMayHaveToldTheWorld) {
  Pair pair = make_pair();
  pair.failure->set_world([&] { pair.failure->set("rank 5 gave up: told elsewhere"); });
  const std::string part = frame("12345678").substr(0, 60);
  ASSERT_EQ(::send(pair.peer.fd(), part.data(), part.size(), 0), 60);
  pair.peer.close();
  std::vector<std::byte> memory(8);
  const std::vector<ConstBytes> send(2);
  const std::vector<Bytes> receive{{}, memory};
  EXPECT_EQ(pair.link->exchange(call_of(), send, receive).message(),
            "rank 5 gave up: told elsewhere");
}

TEST(TcpLink, GarbageIsNoMessage) {
  EXPECT_TRUE(contains(said_after(std::string(200, 'x')), "damaged"));
}

/// Headers that are whole in themselves, with lengths that nobody has memory for.
TEST(TcpLink, LengthsThatACallDoesNotExpectTakeNoMemory) {
  const auto with = [](uint16_t kind, uint64_t length) {
    FrameHeader header = data_frame(7, call_of(), {});
    header.kind = kind;
    header.length = length;
    header.header_hash = base::xxh64(&header, offsetof(FrameHeader, header_hash));
    return std::string(reinterpret_cast<const char*>(&header), sizeof header);
  };
  for (const uint64_t length : {uint64_t{0}, uint64_t{9}, uint64_t{1} << 60, ~uint64_t{0}}) {
    EXPECT_TRUE(contains(said_after(with(FrameHeader::kData, length)), "where all_to_all"))
        << length;
  }
  for (const uint64_t length : {uint64_t{kMaxReason} + 1, uint64_t{1} << 60, ~uint64_t{0}}) {
    EXPECT_TRUE(contains(said_after(with(FrameHeader::kAbort, length)), "unreadable")) << length;
  }
  EXPECT_TRUE(contains(said_after(with(2, 8)), "unknown kind 2"));
}

TEST(TcpLink, LengthsThatAPeerAnnouncesAreChecked) {
  for (const int64_t length : {int64_t{-1}, int64_t{1} << 60, INT64_MIN}) {
    Pair pair = make_pair();
    Call call = call_of();
    call.op = Op::kAllGather;
    const auto payload = std::as_bytes(std::span(&length, 1));
    const FrameHeader header = data_frame(7, call, payload);
    ::send(pair.peer.fd(), &header, sizeof header, 0);
    ::send(pair.peer.fd(), payload.data(), payload.size(), 0);
    Communicator comm(Group{"g", 0, {0, 5}, 1}, std::move(pair.link), pair.failure);
    std::vector<std::vector<std::byte>> all;
    const Status status = comm.all_gather(payload, all);
    EXPECT_TRUE(contains(status.message(), "rank 5 announces")) << status.message();
  }
}

TEST(TcpLink, ListenHearsAReasonAndAGap) {
  Pair pair = make_pair();
  EXPECT_TRUE(pair.link->listen(true).ok());
  pair.peer.close();
  EXPECT_TRUE(pair.link->listen(false).ok());
  EXPECT_TRUE(contains(pair.link->listen(true).message(), "rank 5 is gone"));
}

TEST(TcpLink, AnotherGroupOfTheRankThatBreaksEndsTheWait) {
  Pair pair = make_pair();
  std::thread breaker([&] {
    ::usleep(50'000);
    pair.failure->set("rank 1 gave up: reasons");
  });
  std::vector<std::byte> memory(8);
  const base::Stopwatch watch;
  const std::vector<ConstBytes> send(2);
  const std::vector<Bytes> receive{{}, memory};
  EXPECT_EQ(pair.link->exchange(call_of(), send, receive).message(), "rank 1 gave up: reasons");
  EXPECT_LT(watch.seconds(), base::kSlowness * 3);
  breaker.join();
}

}  // namespace
}  // namespace segue::comm
