#include <atomic>
#include <chrono>
#include <thread>

#include <gtest/gtest.h>

#include "base/test_util.h"
#include "base/time.h"
#include "comm/collectives_test_util.h"
#include "comm/world.h"

namespace segue::comm {
namespace {

using base::contains;
using testing::Memory;

constexpr double kTimeout = 20;

void on_all_ranks(int ranks, const std::function<void(Communicator&)>& body) {
  run_as_threads(ranks, kTimeout, [&](World& world) { body(*world.open("test")); });
}

class Collectives : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, Collectives, ::testing::Range(1, 6));

TEST_P(Collectives, AllToAllOfUnevenAndEmptyParts) {
  on_all_ranks(GetParam(), [](Communicator& comm) {
    for (uint64_t seed = 0; seed < 20; ++seed) testing::check_all_to_all(comm, seed, 50, {});
    for (uint64_t seed = 0; seed < 3; ++seed) testing::check_all_to_all(comm, seed, 0, {});
  });
}

TEST_P(Collectives, SumsHaveTheBitsOfAddingInTheOrderOfRanks) {
  on_all_ranks(GetParam(), [](Communicator& comm) {
    // Both ways of reducing: everything to everybody, and by pieces.
    for (const int64_t count : {0, 1, 3, 4, 1000, 4096, 4097, 20001}) {
      testing::check_all_reduce<float>(comm, static_cast<uint64_t>(count), count, {});
      testing::check_all_reduce<double>(comm, static_cast<uint64_t>(count), count, {});
    }
  });
}

TEST(CollectivesData, TheOrderOfAddingShows) {
  const std::vector<float> forward = testing::sum_in_rank_order<float>(7, 4, 1000);
  std::vector<float> backward = testing::values_of<float>(7, 3, 1000);
  for (int r = 2; r >= 0; --r) {
    const std::vector<float> more = testing::values_of<float>(7, r, 1000);
    for (size_t i = 0; i < more.size(); ++i) backward[i] += more[i];
  }
  EXPECT_FALSE(testing::same_bits(forward, backward));
}

TEST_P(Collectives, GatherAndMessages) {
  on_all_ranks(GetParam(), [](Communicator& comm) {
    for (uint64_t seed = 0; seed < 10; ++seed) {
      testing::check_all_gather(comm, seed, 30, {});
      testing::check_messages(comm, seed, 100);
    }
  });
}

TEST_P(Collectives, LargeMessages) {
  on_all_ranks(GetParam(), [](Communicator& comm) {
    testing::check_all_to_all(comm, 6, 300000, {});
    testing::check_all_reduce<float>(comm, 3, 700001, {});
  });
}

TEST_P(Collectives, RandomSequences) {
  const int ranks = GetParam();
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    on_all_ranks(ranks, [&](Communicator& comm) {
      testing::check_random_calls(comm, seed * 100 + static_cast<uint64_t>(ranks), 40, 6000);
    });
  }
}

TEST_P(Collectives, BarrierHoldsEverybody) {
  std::atomic<int> arrived{0};
  const int ranks = GetParam();
  on_all_ranks(ranks, [&](Communicator& comm) {
    for (int round = 1; round <= 20; ++round) {
      ++arrived;
      comm.barrier().throw_if_failed();
      testing::require(arrived.load() >= round * ranks, "barrier");
    }
  });
}

TEST(ThreadWorld, RanksKnowTheirPlace) {
  std::atomic<int> seen{0};
  run_as_threads(3, kTimeout, [&](World& world) {
    testing::require(world.size() == 3 && world.local_size() == 3, "size");
    testing::require(world.local_rank() == world.rank(), "local rank");
    seen += 1 << world.rank();
  });
  EXPECT_EQ(seen, 7);
}

TEST(ThreadWorld, GroupsOfSomeRanksAreIndependent) {
  run_as_threads(5, kTimeout, [](World& world) {
    const std::vector<int> odd{1, 3}, turned{4, 0, 2};
    const auto a = world.open("odd", Device::cpu(), odd);
    const auto b = world.open("turned", Device::cpu(), turned);
    const auto all = world.open("all");
    testing::require((a != nullptr) == (world.rank() % 2 == 1), "member of odd");
    testing::require((b != nullptr) == (world.rank() % 2 == 0), "member of turned");
    if (world.rank() == 4) testing::require(b->rank() == 0, "rank in the group");
    if (a != nullptr) testing::check_random_calls(*a, 5, 20, 100);
    testing::check_random_calls(*all, 6, 20, 100);
    if (b != nullptr) testing::check_random_calls(*b, 7, 20, 100);
  });
}

TEST(ThreadWorld, AGroupMayBeUsedFromAnotherThread) {
  run_as_threads(3, kTimeout, [](World& world) {
    const auto one = world.open("one"), two = world.open("two");
    std::thread other([&] { testing::check_random_calls(*two, 12, 30, 500); });
    testing::check_random_calls(*one, 11, 30, 500);
    other.join();
  });
}

TEST(ThreadWorld, ASelfWorldDoesEverything) {
  const auto world = self_world();
  EXPECT_EQ(world->size(), 1);
  const auto comm = world->open("alone");
  testing::check_random_calls(*comm, 3, 100, 300);
  EXPECT_EQ(comm->traffic().bytes_sent, 0);
  EXPECT_EQ(world->open("nobody", Device::cpu(), {}), nullptr);
}

TEST(ThreadWorld, TrafficCountsWhatGoesToOthers) {
  on_all_ranks(3, [](Communicator& comm) {
    std::vector<std::byte> memory(100);
    std::vector<ConstBytes> send(3, ConstBytes(memory.data(), 10));
    std::vector<std::byte> landing(60);
    std::vector<Bytes> receive;
    for (size_t q = 0; q < 3; ++q) {
      // Rank 0 gets 20 bytes from everybody, the others 10.
      receive.push_back(Bytes(landing).subspan(q * 20, comm.rank() == 0 ? 20 : 10));
    }
    send[0] = ConstBytes(memory.data(), 20);
    comm.all_to_all(send, receive).throw_if_failed();
    const Traffic& t = comm.traffic();
    testing::require(t.collectives == 1, "collectives");
    testing::require(t.bytes_sent == (comm.rank() == 0 ? 20 : 30), "bytes");
    testing::require(t.bytes_to_most == (comm.rank() == 0 ? 10 : 20), "most");
    testing::require(t.seconds > 0, "seconds");
  });
}

// ---- trouble ----

/// What each rank's call came to.
std::vector<std::string> messages_of(int ranks, double timeout,
                                     const std::function<Status(World&, Communicator&)>& body) {
  std::vector<std::string> messages(static_cast<size_t>(ranks));
  run_as_threads(ranks, timeout, [&](World& world) {
    const auto comm = world.open("dense");
    const Status status = body(world, *comm);
    if (!status.ok() && status.code() == ErrorCode::kPeer) {
      messages[static_cast<size_t>(world.rank())] = status.message();
      // The first reason stays.
      const Status again = comm->barrier();
      testing::require(again.message() == status.message(), "second reason");
    }
  });
  return messages;
}

TEST(CommTrouble, ARankThatDoesNotComeIsNamed) {
  const base::Stopwatch watch;
  std::atomic<int> done{0};
  const auto messages = messages_of(4, 0.3, [&](World& world, Communicator& comm) {
    comm.set_step(17);
    if (world.rank() == 2) {  // hangs for longer than the others wait
      while (done < 3) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      return Status();
    }
    const Status status = comm.barrier();
    ++done;
    return status;
  });
  EXPECT_LT(watch.seconds(), base::kSlowness * 5);
  for (const size_t r : {0, 1, 3}) {
    EXPECT_TRUE(contains(messages[r], "group `dense`, barrier, step 17"));
    EXPECT_TRUE(contains(messages[r], "rank 2 did not answer within 0.3 s"));
  }
}

TEST(CommTrouble, ARankThatLeavesIsNamed) {
  const auto messages = messages_of(3, kTimeout, [](World& world, Communicator& comm) {
    if (world.rank() == 1) return Status();
    return comm.barrier();
  });
  EXPECT_TRUE(contains(messages[0], "rank 1 has left the group"));
  EXPECT_TRUE(contains(messages[2], "rank 1 has left the group"));
}

TEST(CommTrouble, RanksThatDoDifferentThingsFindOut) {
  const auto messages = messages_of(2, kTimeout, [](World& world, Communicator& comm) {
    std::vector<float> values(1, 1.f);
    comm.set_step(4);
    return world.rank() == 0 ? comm.all_reduce(host_view(std::span(values))) : comm.barrier();
  });
  EXPECT_TRUE(contains(messages[0] + messages[1], "rank 1 is in barrier"));
  EXPECT_TRUE(contains(messages[0] + messages[1], "all_reduce"));
  EXPECT_FALSE(messages[0].empty() || messages[1].empty());
}

TEST(CommTrouble, LengthsThatDoNotAgreeAreFound) {
  const auto messages = messages_of(2, kTimeout, [](World& world, Communicator& comm) {
    std::vector<float> values(static_cast<size_t>(world.rank() + 3));
    // Only rank 0 sends.
    const Bytes bytes = std::as_writable_bytes(std::span(values));
    std::vector<ConstBytes> send(2);
    std::vector<Bytes> receive(2);
    if (world.rank() == 0) send[1] = bytes;
    if (world.rank() == 1) receive[0] = bytes;
    return comm.all_to_all(send, receive);
  });
  EXPECT_TRUE(contains(messages[1], "sent 12 bytes where all_to_all (call 1) expects 16"));
}

TEST(CommTrouble, AnErrorOfOneRankBreaksTheOthersAndComesFirst) {
  const base::Stopwatch watch;
  std::atomic<int> told{0};
  const auto error = base::error_of([&] {
    run_as_threads(4, kTimeout, [&](World& world) {
      const auto comm = world.open("dense");
      comm->barrier().throw_if_failed();
      if (world.rank() == 3) fail(ErrorCode::kNumeric, "loss is not finite");
      const Status status = comm->barrier();
      if (contains(status.message(), "rank 3 gave up: loss is not finite")) ++told;
      status.throw_if_failed();
    });
  });
  ASSERT_TRUE(error.has_value());
  EXPECT_EQ(error->code(), ErrorCode::kNumeric);
  EXPECT_EQ(told, 3);
  EXPECT_LT(watch.seconds(), base::kSlowness * 5);
}

TEST(CommTrouble, ABrokenGroupBreaksTheOtherGroupsOfItsRanks) {
  std::atomic<int> told{0};
  const base::Stopwatch watch;
  run_as_threads(3, 0.5, [&](World& world) {
    const auto one = world.open("one"), two = world.open("two");
    // Rank 2 stays away from group one only; it waits in group two for ranks that have given up.
    const Status first = world.rank() == 2 ? two->barrier() : one->barrier();
    const Status second = world.rank() == 2 ? Status(first) : two->barrier();
    if (contains(first.message(), "rank 2 did not answer") ||
        contains(first.message(), "did not answer within 0.5 s")) {
      ++told;
    }
    testing::require(!first.ok() && !second.ok(), "both groups are broken");
  });
  EXPECT_EQ(told, 3);
  EXPECT_LT(watch.seconds(), base::kSlowness * 5);
}

TEST(CommTrouble, ARankThatGivesUpSaysWhy) {
  std::atomic<int> told{0};
  run_as_threads(3, kTimeout, [&](World& world) {
    const auto comm = world.open("dense");
    if (world.rank() == 0) {
      world.give_up("the disk is full");
      return;
    }
    if (contains(comm->barrier().message(), "rank 0 gave up: the disk is full")) ++told;
  });
  EXPECT_EQ(told, 2);
}

TEST(CommTrouble, RanksThatOpenDifferentGroupsFindOut) {
  const auto error = base::error_of([] {
    run_as_threads(2, kTimeout, [](World& world) {
      world.open(world.rank() == 0 ? "dense" : "tables")->barrier().throw_if_failed();
    });
  });
  ASSERT_TRUE(error.has_value());
  EXPECT_EQ(error->code(), ErrorCode::kPeer);
}

}  // namespace
}  // namespace segue::comm
