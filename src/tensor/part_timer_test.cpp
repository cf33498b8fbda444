#include "tensor/part_timer.h"

#include <chrono>
#include <string>
#include <thread>

#include <gtest/gtest.h>

#include "tensor/device_memory.h"
#include "tensor/gpu_recorder.h"
#include "tensor/tensor.h"

namespace segue {
namespace {

void sleep_ms(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

double seconds_of(const StepParts& step, const std::string& name) {
  for (const StepParts::Part& part : step.parts) {
    if (part.name == name) return part.seconds;
  }
  return -1;
}

/// A step with a part inside a part, and one that comes twice.
void timed_step(PartTimer& timer, int64_t number) {
  const PartTimer::Step step(timer, number);
  {
    const Part outer("outer", [] { return PartWork{.flop = 10}; });
    sleep_ms(2);
    {
      const Part inner("inner", [] { return PartWork{.flop = 3}; });
      sleep_ms(4);
    }
  }
  const Part again("inner", [] { return PartWork{.flop = 4}; });
  sleep_ms(2);
}

TEST(PartTimerTest, PartsAddUpToTheStep) {
  const Stream stream(Device::cpu());
  PartTimer timer(stream);
  { const Part part("before any step"); }
  for (int64_t number = 5; number < 7; ++number) timed_step(timer, number);
  EXPECT_FALSE(timer.take(5));
  for (int64_t number = 5; number < 7; ++number) {
    const std::optional<StepParts> step = timer.take(7);
    ASSERT_TRUE(step);
    EXPECT_EQ(step->step, number);
    double sum = 0;
    for (const StepParts::Part& part : step->parts) sum += part.seconds;
    EXPECT_NEAR(sum, step->seconds, 1e-9);
    EXPECT_GE(seconds_of(*step, "outer"), 0.002);
    EXPECT_GE(seconds_of(*step, "inner"), 0.006);
    EXPECT_GE(seconds_of(*step, "other"), 0);
    EXPECT_EQ(seconds_of(*step, "before any step"), -1);
    double flop = 0;
    for (const StepParts::Part& part : step->parts) flop += part.flop;
    EXPECT_EQ(flop, 17);
  }
  EXPECT_FALSE(timer.take(7));
}

TEST(PartTimerTest, WorkIsAskedForOnlyWhereSomebodyListens) {
  int asked = 0;
  const auto work = [&] {
    ++asked;
    return PartWork{.flop = 8, .tokens = 2};
  };
  { const Part part("quiet", work); }
  EXPECT_EQ(asked, 0);
  base::start_stage_recording();
  { const Part part("recorded", work); }
  const base::StageRecording recording = base::stop_stage_recording();
  EXPECT_EQ(asked, 1);
  ASSERT_EQ(recording.events.size(), 1u);
  EXPECT_STREQ(recording.events[0].facts[1].name, "flop");
}

TEST(KernelNameTest, WhatOneReads) {
  EXPECT_EQ(detail::kernel_name("plain_c_kernel"), "plain_c_kernel");
  EXPECT_EQ(detail::kernel_name("_ZN5segue3ops12_GLOBAL__N_111norm_kernelILi4EEEvPKfPf"),
            "norm_kernel<4>");
  EXPECT_EQ(detail::kernel_name("_ZN3foo3barEv"), "bar");
  EXPECT_EQ(detail::kernel_name(std::string(500, 'x')).size(), 96u);
}

TEST(GpuRecorderTest, NothingIsRecordedThatWasNotStarted) {
  base::StageRecording recording;
  drop_gpu_recording();
  EXPECT_EQ(stop_gpu_recording(recording), "");
  EXPECT_TRUE(recording.work.empty());
}

class GpuPartTimerTest : public testing::Test {
 protected:
  void SetUp() override {
    if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
  }
};

TEST_F(GpuPartTimerTest, EventsAndRecordsSeeTheSameWork) {
  const Device device = Device::cuda(0);
  use_device(device);
  const Stream stream(device);
  const Buffer from(device, int64_t{1} << 30, Purpose::kScratch);
  const Buffer to(device, from.bytes(), Purpose::kScratch);
  const auto copies = [&](int count) {
    for (int i = 0; i < count; ++i) {
      copy_bytes(to.data(), device, from.data(), device, static_cast<size_t>(from.bytes()),
                 &stream);
    }
  };
  copies(3);
  const std::string trouble = start_gpu_recording();
  if (!trouble.empty()) GTEST_SKIP() << trouble;
  stream.synchronize();
  drop_gpu_recording();
  base::start_stage_recording();
  PartTimer timer(stream);
  {
    const PartTimer::Step step(timer, 1);
    const Part part("copies");
    copies(20);
  }
  stream.synchronize();
  base::StageRecording recording = base::stop_stage_recording();
  EXPECT_EQ(stop_gpu_recording(recording), "");
  ASSERT_EQ(recording.work.size(), 20u);
  int64_t sum_ns = 0;
  for (const base::DeviceWork& work : recording.work) {
    EXPECT_EQ(work.bytes, from.bytes());
    EXPECT_GE(work.start_ns, 0);
    ASSERT_GE(work.call, 0);
    EXPECT_LE(recording.calls[static_cast<size_t>(work.call)].start_ns, work.start_ns);
    sum_ns += work.duration_ns;
  }
  const double by_records = static_cast<double>(sum_ns) * 1e-9;
  const double by_events = timer.take(2)->seconds;
  EXPECT_NEAR(by_records / by_events, 1, 0.05);
}

}  // namespace
}  // namespace segue
