#include <algorithm>
#include <chrono>
#include <functional>
#include <map>
#include <numeric>
#include <random>
#include <thread>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/test_util.h"
#include "comm/flight/verdict.h"
#include "comm/world.h"

namespace segue::comm {
namespace {

using Kind = FlightVerdict::Kind;

constexpr int kRanks = 4;
const std::vector<int> kAll{0, 1, 2, 3};

/// Records of ranks that make the same calls one after the other, in two groups by turns, until one
/// of them stops. Every call takes a millisecond.
class Flight {
 public:
  explicit Flight(uint32_t seed) : random_(seed) {}

  int pick(int below) { return static_cast<int>(random_() % static_cast<uint32_t>(below)); }

  void make_calls(int count) {
    for (int i = 0; i < count; ++i) add(pick(2) == 0 ? "dense" : "rows");
  }
  void add(const std::string& group) {
    CallFlight call;
    call.op = group == "dense" ? Op::kAllReduce : Op::kAllGather;
    call.bytes = 4 * (1 + pick(1000));
    call.receives = call.bytes;
    call.step = static_cast<int64_t>(calls_.size()) / 3;
    call.start_us = start_us(calls_.size());
    call.end_us = call.start_us + 900;
    call.sequence = ++sequence_[group];
    call.thread = 1;
    calls_.emplace_back(group, call);
  }
  static int64_t start_us(size_t call) { return 1'000'000 + 1000 * static_cast<int64_t>(call); }
  size_t size() const { return calls_.size(); }
  const std::pair<std::string, CallFlight>& call(size_t i) const { return calls_[i]; }

  /// The record of a rank that has done `done` calls and waits for `waits_for` in the next one; it
  /// is in none where it waits for nobody.
  FlightRecord record(int rank, size_t done, std::vector<int> waits_for, bool gone = false) const {
    FlightRecord r;
    r.rank = rank;
    r.ranks = kRanks;
    r.life = "one";
    r.host = "here";
    r.written_us = start_us(calls_.size());
    r.groups = {{"dense", kAll, {}}, {"rows", kAll, {}}};
    const size_t end = std::min(calls_.size(), waits_for.empty() ? done : done + 1);
    for (size_t i = 0; i < end; ++i) {
      CallFlight c = calls_[i].second;
      if (i >= done) {
        c.state = CallState::kRunning;
        c.end_us = 0;
        c.waits_for = waits_for;
        if (gone) c.gone = waits_for;
      }
      r.groups[calls_[i].first == "dense" ? 0 : 1].calls.push_back(c);
    }
    return r;
  }

 private:
  std::mt19937 random_;
  std::map<std::string, uint64_t> sequence_;
  std::vector<std::pair<std::string, CallFlight>> calls_;
};

void expect_call(const FlightVerdict& v, const std::pair<std::string, CallFlight>& call) {
  EXPECT_EQ(v.group, call.first) << v.text;
  EXPECT_EQ(v.sequence, call.second.sequence) << v.text;
  EXPECT_EQ(v.op, to_string(call.second.op));
  EXPECT_EQ(v.step, call.second.step);
  EXPECT_EQ(v.bytes, call.second.bytes);
}

TEST(FlightVerdict, NamesTheRankThatIsGoneAndItsCall) {
  for (uint32_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    Flight flight(seed);
    flight.make_calls(20);
    const int victim = flight.pick(kRanks);
    const auto stuck = static_cast<size_t>(flight.pick(19));
    const bool closed = flight.pick(2) == 0;
    std::vector<FlightRecord> records;
    bool somebody_there = false;
    for (int r = 0; r < kRanks; ++r) {
      if (r == victim) continue;
      // It may have sent its part of the call to some of them, who then wait in the next one.
      const bool ahead = somebody_there && flight.pick(2) == 0;
      somebody_there = true;
      records.push_back(flight.record(r, stuck + (ahead ? 1 : 0), {victim}, closed));
    }
    const FlightVerdict v = judge(sort_flight(records, {}));
    EXPECT_EQ(v.kind, closed ? Kind::kGone : Kind::kSilent);
    EXPECT_EQ(v.ranks, std::vector{victim}) << v.text;
    EXPECT_EQ(v.waiting.size(), kRanks - 1U);
    expect_call(v, flight.call(stuck));
  }
}

TEST(FlightVerdict, FollowsChainsToTheRankThatIsBehind) {
  Flight flight(7);
  for (const char* group : {"dense", "rows", "dense", "rows"}) flight.add(group);
  // 3 is busy before the third call; 0 and 1 wait for it; 2 has got its parts from 0 and 1 only.
  FlightRecord busy = flight.record(3, 2, {});
  busy.threads = {"main: load for 12.0 s"};
  const FlightVerdict v = judge(sort_flight(
      {flight.record(0, 2, {3}), flight.record(1, 2, {3}), flight.record(2, 2, {0, 3}), busy}, {}));
  EXPECT_EQ(v.kind, Kind::kBehind);
  EXPECT_EQ(v.ranks, std::vector{3});
  expect_call(v, flight.call(2));
  EXPECT_NE(v.text.find("load for 12.0 s"), std::string::npos) << v.text;
}

TEST(FlightVerdict, AnotherThreadOfARankExcusesNobody) {
  Flight flight(7);
  for (const char* group : {"dense", "rows", "dense"}) flight.add(group);
  // The thread of `rows` on rank 3 waits for rank 0; what rank 3 owes is on its other thread.
  FlightRecord behind = flight.record(3, 2, {});
  CallFlight ahead = behind.groups[1].calls.back();
  ahead.sequence += 1;
  ahead.thread = 2;
  ahead.state = CallState::kRunning;
  ahead.waits_for = {0};
  behind.groups[1].calls.push_back(ahead);
  const FlightVerdict v = judge(sort_flight(
      {flight.record(0, 2, {3}), flight.record(1, 2, {3}), flight.record(2, 2, {3}), behind}, {}));
  EXPECT_EQ(v.kind, Kind::kBehind) << v.text;
  EXPECT_EQ(v.ranks, std::vector{3});
  expect_call(v, flight.call(2));
}

TEST(FlightVerdict, QueuedCallsShowWhoHasNotCome) {
  Flight flight(3);
  flight.make_calls(6);
  std::vector<FlightRecord> records;
  for (const int r : {0, 1, 3}) {
    FlightRecord record = flight.record(r, 6, {});
    for (GroupFlight& group : record.groups) {  // as NCCL has it: nobody knows whom it waits for
      if (group.name == flight.call(5).first) group.calls.back().state = CallState::kQueued;
    }
    records.push_back(record);
  }
  FlightVerdict v = judge(sort_flight(records, {}));
  EXPECT_EQ(v.kind, Kind::kSilent);
  EXPECT_EQ(v.ranks, std::vector{2});
  expect_call(v, flight.call(5));
  records.push_back(flight.record(2, 5, {}));
  v = judge(sort_flight(records, {}));
  EXPECT_EQ(v.kind, Kind::kBehind);
  EXPECT_EQ(v.ranks, std::vector{2});
  expect_call(v, flight.call(5));
}

TEST(FlightVerdict, NamesTheCallThatDiffers) {
  for (uint32_t seed = 1; seed <= 100; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    Flight flight(seed);
    flight.make_calls(10);
    flight.add("dense");
    flight.add("dense");
    const int odd = flight.pick(kRanks);
    const size_t at = flight.size() - 2;
    std::vector<FlightRecord> records;
    for (int r = 0; r < kRanks; ++r) records.push_back(flight.record(r, flight.size(), {}));
    std::vector<CallFlight>& calls = records[static_cast<size_t>(odd)].groups[0].calls;
    CallFlight &call = calls[calls.size() - 2], &next = calls.back();
    const int how = flight.pick(3);
    if (how == 0) call.op = Op::kBarrier;
    if (how == 1) call.bytes += 4;
    if (how == 2) {
      next.bytes = call.bytes + 8;  // of all ranks, so that the two calls differ
      for (FlightRecord& record : records) record.groups[0].calls.back().bytes = next.bytes;
      std::swap(call.bytes, next.bytes);
    }
    const FlightVerdict v = judge(sort_flight(records, {}));
    EXPECT_EQ(v.kind, Kind::kDiffers);
    EXPECT_EQ(v.ranks, std::vector{odd}) << v.text;
    EXPECT_EQ(v.sequence, flight.call(at).second.sequence);
    EXPECT_EQ(v.text.find("order differs") != std::string::npos, how == 2) << v.text;
  }
}

TEST(FlightVerdict, SizesOfAnAllToAllAddUp) {
  Flight flight(1);
  flight.add("dense");
  std::vector<FlightRecord> records;
  for (int r = 0; r < kRanks; ++r) {
    records.push_back(flight.record(r, 1, {}));
    CallFlight& call = records.back().groups[0].calls[0];
    call.op = Op::kAllToAll;
    call.bytes = 10 * (r + 1);
    call.receives = 25;
  }
  EXPECT_EQ(judge(sort_flight(records, {})).kind, Kind::kNothing);
  records[1].groups[0].calls[0].receives = 24;
  EXPECT_EQ(judge(sort_flight(records, {})).kind, Kind::kDiffers);
}

TEST(FlightVerdict, SaysThatRanksWaitForEachOther) {
  Flight flight(1);
  flight.add("dense");
  flight.add("rows");
  FlightRecord a = flight.record(0, 0, {1}), b = flight.record(1, 2, {});
  b.groups[0].calls.clear();
  b.groups[1].calls.back().state = CallState::kRunning;
  b.groups[1].calls.back().waits_for = {0};
  const FlightVerdict v = judge(sort_flight({a, b}, {}));
  EXPECT_EQ(v.kind, Kind::kDeadlock) << v.text;
  EXPECT_EQ(v.ranks, (std::vector{0, 1}));
}

TEST(FlightVerdict, ThousandRanksAreJudgedAtOnce) {
  constexpr int kMany = 1000, kVictim = 613;
  std::vector<int> all(kMany);
  std::iota(all.begin(), all.end(), 0);
  std::vector<FlightRecord> records;
  for (int r = 0; r < kMany; ++r) {
    if (r == kVictim) continue;
    FlightRecord& record = records.emplace_back();
    record.rank = r;
    record.ranks = kMany;
    for (const char* name : {"dense", "rows"}) {
      GroupFlight& group = record.groups.emplace_back(GroupFlight{name, all, {}});
      for (uint64_t n = 1; n <= FlightRing::kCalls; ++n) group.calls.push_back({.sequence = n});
    }
    CallFlight& last = record.groups[0].calls.back();
    last.state = CallState::kFailed;
    last.waits_for = {kVictim};
  }
  const auto start = std::chrono::steady_clock::now();
  const FlightFiles files = sort_flight(std::move(records), {});
  EXPECT_EQ(judge(files).ranks, std::vector{kVictim});
  EXPECT_NE(flight_table(files, 4).find("0-612 and 614-999: done"), std::string::npos);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));
}

TEST(FlightFiles, RecordsOfAnEarlierStartAreLeftOut) {
  Flight flight(5);
  flight.make_calls(5);
  FlightRecord old = flight.record(2, 5, {});
  old.life = "zero";
  old.written_us = 1;
  const FlightFiles files =
      sort_flight({old, flight.record(0, 3, {2}, true), flight.record(1, 3, {2}, true)}, {});
  EXPECT_EQ(files.records.size(), 2U);
  EXPECT_EQ(judge(files).ranks, std::vector{2});
}

TEST(FlightFiles, DamagedOnesDoNotKeepTheOthersFromTelling) {
  const std::string dir = base::temp_path("flight");
  Flight flight(11);
  flight.make_calls(12);
  const std::string folder = dir + "/flight";
  base::make_folders(folder);
  for (const int r : {0, 1, 3}) {
    base::write_file(fmt::format("{}/rank-{}.json", folder, r),
                     seal(flight.record(r, 7, {2}, true)));
  }
  const std::string whole = base::read_file(folder + "/rank-3.json");
  EXPECT_EQ(seal(unseal_flight(whole, "it")), whole);
  std::mt19937 random(1);
  for (int i = 0; i < 100; ++i) {
    std::string text = whole;
    if (i % 2 == 0) {
      text[random() % text.size()] ^= static_cast<char>(1 + random() % 255);
    } else {
      text.resize(random() % text.size());
    }
    base::put_file(folder + "/rank-3.json", text);
    const FlightFiles files = read_flight(folder);
    ASSERT_EQ(files.records.size(), 2U);
    ASSERT_EQ(files.useless.size(), 1U);
    const FlightVerdict v = judge(files);
    EXPECT_EQ(v.ranks, std::vector{2}) << v.text;
    EXPECT_NE(flight_table(files, 4).find("checksum"), std::string::npos);
  }
  const std::string empty = dir + "/empty";
  base::make_folders(empty);
  EXPECT_TRUE(base::contains(base::message_of(ErrorCode::kNotFound, [&] { read_flight(empty); }),
                             "SIGUSR2"));
}

// ---- the recorder ----

TEST(FlightRing, ReadersSeeWholeCalls) {
  FlightRing ring("dense", 0, {0, 1});
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    for (uint64_t n = 1; !stop; ++n) {
      ring.begin(Op::kAllReduce, static_cast<int64_t>(n) * 3, n, static_cast<int64_t>(n) * 5, 7);
      ring.set_due(1);
      ring.set_settled(1);
      ring.end(CallState::kDone);
    }
  });
  size_t seen = 0;
  while (seen < 20'000) {
    uint64_t last = 0;
    for (const CallFlight& call : ring.snapshot(0).calls) {
      EXPECT_EQ(call.step, static_cast<int64_t>(call.sequence) * 3);
      EXPECT_EQ(call.bytes, static_cast<int64_t>(call.sequence) * 5);
      EXPECT_GT(call.sequence, last);
      last = call.sequence;
      ++seen;
    }
  }
  stop = true;
  writer.join();
  EXPECT_EQ(ring.snapshot(0).calls.size(), FlightRing::kCalls);
}

/// Runs `body` on four threads, each with a flight recorder in one folder; says what is wrong.
FlightVerdict verdict_of(const std::string& folder, const std::function<void(World&)>& body) {
  EXPECT_THROW(run_as_threads(kRanks, 5,
                              [&](World& world) {
                                world.flight().set_place(folder, world.rank(), kRanks, "one");
                                body(world);
                              }),
               Error);
  return judge(read_flight(folder));
}

TEST(FlightRecorder, ARankThatLeavesIsNamedByTheOthers) {
  const std::string dir = base::temp_path("flight");
  const FlightVerdict v = verdict_of(dir, [](World& world) {
    const auto group = world.open("dense");
    group->set_step(12);
    for (int i = 0; i < 100; ++i) group->barrier().throw_if_failed();
    if (world.rank() == 2) return;
    float value = 1;
    group->all_reduce(host_view(std::span(&value, 1))).throw_if_failed();
  });
  EXPECT_EQ(v.kind, Kind::kGone) << v.text;
  EXPECT_EQ(v.ranks, std::vector{2});
  EXPECT_EQ(v.group, "dense");
  EXPECT_EQ(v.op, "all_reduce");
  EXPECT_EQ(v.sequence, 101U);
  EXPECT_EQ(v.step, 12);
  EXPECT_EQ(v.bytes, 4);
  EXPECT_EQ(v.waiting, (std::vector{0, 1, 3}));
}

TEST(FlightRecorder, RanksThatMakeDifferentCallsAreTold) {
  const std::string dir = base::temp_path("flight");
  const FlightVerdict v = verdict_of(dir, [](World& world) {
    const auto group = world.open("dense");
    group->barrier().throw_if_failed();
    float value = 1;
    const Status status =
        world.rank() == 1 ? group->barrier() : group->all_reduce(host_view(std::span(&value, 1)));
    status.throw_if_failed();
  });
  EXPECT_EQ(v.kind, Kind::kDiffers) << v.text;
  EXPECT_EQ(v.ranks, std::vector{1});
  EXPECT_EQ(v.sequence, 2U);
}

TEST(FlightRecorder, AnErrorOfARankIsItsOwn) {
  const std::string dir = base::temp_path("flight");
  const FlightVerdict v = verdict_of(dir, [](World& world) {
    const auto group = world.open("dense");
    group->barrier().throw_if_failed();
    if (world.rank() == 3) {
      world.give_up("loss is not finite");
      fail(ErrorCode::kNumeric, "loss is not finite");
    }
    group->barrier().throw_if_failed();
  });
  EXPECT_EQ(v.kind, Kind::kError) << v.text;
  EXPECT_EQ(v.ranks, std::vector{3});
  EXPECT_NE(v.text.find("loss is not finite"), std::string::npos);
  EXPECT_EQ(v.sequence, 2U);
}

TEST(FlightRecorder, APlaceThatCannotBeWrittenIsAWarning) {
  const std::string dir = base::temp_path("flight");
  base::make_folders(dir);
  base::write_file(dir + "/file", "no folder");
  FlightRecorder recorder;
  recorder.set_place(dir + "/file", 0, 1, "one");
  recorder.write("asked");
  recorder.write_failure("broken", true);
  EXPECT_EQ(base::read_file(dir + "/file"), "no folder");
}

TEST(FlightRecorder, WhatEndsARankIsNotOverwritten) {
  const std::string dir = base::temp_path("flight");
  FlightRecorder recorder;
  recorder.set_place(dir, 0, 1, "one");
  recorder.write("asked");
  EXPECT_EQ(read_flight(dir).records[0].why, "asked");
  recorder.write_failure("broken \xff", true);
  recorder.write_failure("a consequence", false);
  recorder.write("asked again");
  const FlightRecord record = read_flight(dir).records[0];
  EXPECT_EQ(record.why, "broken \xef\xbf\xbd");
  EXPECT_TRUE(record.own_error);
}

}  // namespace
}  // namespace segue::comm
