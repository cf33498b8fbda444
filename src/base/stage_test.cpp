#include "base/stage.h"

#include <chrono>
#include <memory>
#include <thread>

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace segue::base
