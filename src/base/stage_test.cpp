#include "base/stage.h"

#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include <gtest/gtest.h>
#include <unistd.h>

namespace segue::base {
namespace {

void sleep_ms(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

const ThreadState* find(const std::vector<ThreadState>& states, const std::string& name) {
  for (const ThreadState& state : states) {
    if (state.thread == name) return &state;
  }
  return nullptr;
}

TEST(StageTest, TellsWhereAThreadIs) {
  name_thread("tester");
  const Stage outer("outer");
  {
    const Stage inner("inner");
    sleep_ms(2);
    std::vector<ThreadState> seen;
    std::thread([&] { seen = thread_states(); }).join();
    const ThreadState* state = find(seen, "tester");
    ASSERT_NE(state, nullptr);
    ASSERT_EQ(state->stages.size(), 2u);
    EXPECT_STREQ(state->stages[0], "outer");
    EXPECT_STREQ(state->stages[1], "inner");
    EXPECT_GE(state->seconds, 0.002);
  }
  EXPECT_EQ(find(thread_states(), "tester")->stages.size(), 1u);
}

TEST(StageTest, AThreadThatEndedIsForgotten) {
  std::thread([] {
    name_thread("short-lived");
    const Stage stage("work");
  }).join();
  EXPECT_EQ(find(thread_states(), "short-lived"), nullptr);
}

TEST(StageTest, AddsUpOutermostTimeOfThisThread) {
  take_stage_seconds();
  for (int i = 0; i < 3; ++i) {
    const Stage outer("sum outer");
    const Stage inner("sum inner");
    sleep_ms(1);
  }
  { const Stage other("another"); }
  const std::vector<StageSeconds> seconds = take_stage_seconds();
  ASSERT_EQ(seconds.size(), 2u);
  EXPECT_STREQ(seconds[0].name, "sum outer");
  EXPECT_STREQ(seconds[1].name, "another");
  EXPECT_GE(seconds[0].seconds, 0.003);
  EXPECT_TRUE(take_stage_seconds().empty());
}

TEST(StageTest, RecordsAllThreadsAlsoThoseThatEnded) {
  { const Stage before("before the recording"); }
  start_stage_recording();
  std::thread([] {
    name_thread("helper");
    const Stage stage("helping");
  }).join();
  {
    const Stage stage("mine");
    sleep_ms(1);
  }
  const StageRecording recording = stop_stage_recording();
  { const Stage after("after the recording"); }
  ASSERT_EQ(recording.events.size(), 2u);
  EXPECT_STREQ(recording.events[0].name, "helping");
  EXPECT_EQ(recording.threads[static_cast<size_t>(recording.events[0].thread)], "helper");
  EXPECT_STREQ(recording.events[1].name, "mine");
  EXPECT_GE(recording.events[1].duration_ns, 1'000'000);
  EXPECT_GE(recording.events[1].start_ns, recording.events[0].start_ns);
  EXPECT_TRUE(stop_stage_recording().events.empty());
}

TEST(StageTest, DeepNestingIsHarmless) {
  std::vector<std::unique_ptr<Stage>> stages;
  for (int i = 0; i < 40; ++i) stages.push_back(std::make_unique<Stage>("deep"));
  while (!stages.empty()) stages.pop_back();
  std::thread([] { thread_states(); }).join();
}

TEST(StageTest, ARecordingHasFactsCountersAndThreadNumbers) {
  const StageFact held[] = {{"table", 5}, {"batch", 7}};
  record_counter("memory", held);  // nobody records
  EXPECT_FALSE(recording_stages());
  start_stage_recording();
  EXPECT_TRUE(recording_stages());
  const int64_t before = stage_clock_ns();
  {
    Stage stage(lasting_name("layer " + std::to_string(3)));
    stage.add({"tokens", 640});
    for (int i = 0; i < 9; ++i) stage.add({"more", static_cast<double>(i)});
    record_counter("memory", held);
  }
  const StageRecording recording = stop_stage_recording();
  ASSERT_EQ(recording.events.size(), 1u);
  EXPECT_STREQ(recording.events[0].name, "layer 3");
  EXPECT_STREQ(recording.events[0].facts[0].name, "tokens");
  EXPECT_EQ(recording.events[0].facts[0].value, 640);
  EXPECT_EQ(recording.events[0].facts.back().value, Stage::kMostFacts - 2);
  ASSERT_EQ(recording.counters.size(), 1u);
  EXPECT_EQ(recording.counters[0].values.size(), 2u);
  EXPECT_LE(recording.start_ns, before);
  ASSERT_EQ(recording.thread_ids.size(), recording.threads.size());
  EXPECT_EQ(recording.thread_ids[static_cast<size_t>(recording.events[0].thread)], gettid());
}

TEST(StageTest, TotalsOfAllThreadsOnlyGrow) {
  const auto total = [](const std::string& thread, const std::string& stage) {
    for (const ThreadStages& t : stage_totals()) {
      if (t.thread != thread) continue;
      for (const StageSeconds& s : t.stages) {
        if (s.name == stage) return s.seconds;
      }
    }
    return -1.0;
  };
  name_thread("totals");
  {
    const Stage outer("totals outer");
    const Stage inner("totals inner");
    sleep_ms(1);
  }
  take_stage_seconds();  // takes nothing away
  double seen = 0;
  std::thread([&] { seen = total("totals", "totals inner"); }).join();
  EXPECT_GE(seen, 0.001);
  EXPECT_GE(total("totals", "totals outer"), seen);
  { const Stage inner("totals inner"); }
  EXPECT_GT(total("totals", "totals inner"), seen);
}

}  // namespace
}  // namespace segue::base
