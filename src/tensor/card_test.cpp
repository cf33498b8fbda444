#include "tensor/card.h"

#include <gtest/gtest.h>

#include "base/test_util.h"
#include "tensor/card_test_util.h"

namespace segue {
namespace {

/// At full speed, with nobody else.
CardState good_state() {
  CardState s;
  s.sm_mhz = s.most_sm_mhz = s.set_sm_mhz = 1980;
  s.celsius = 50;
  s.watts = 500;
  s.watt_limit = s.usual_watt_limit = 700;
  return s;
}

void expect_one(const CardState& state, bool under_load, const char* name, const char* advice) {
  const std::vector<CardWarning> all = card_warnings(state, under_load);
  ASSERT_EQ(all.size(), 1u) << name;
  EXPECT_EQ(all[0].name, name);
  EXPECT_TRUE(base::contains(all[0].text, advice)) << all[0].text;
}

TEST(Card, OneThatIsWellSaysNothing) {
  EXPECT_TRUE(card_warnings(good_state(), true).empty());
  EXPECT_TRUE(card_warnings(CardState{}, true).empty()) << "nor one that tells nothing";
}

TEST(Card, EveryHindranceHasItsAdvice) {
  CardState s = good_state();
  s.set_sm_mhz = 1200;
  expect_one(s, false, "clock set low", "nvidia-smi -rac");
  s = good_state();
  s.too_hot = true;
  expect_one(s, true, "too hot", "cooling");
  s = good_state();
  s.watt_limit = 400;
  expect_one(s, false, "power limit lowered", "nvidia-smi -pl 700");
  s = good_state();
  s.out_of_power = true;
  s.sm_mhz = 1500;
  expect_one(s, true, "power limit", "1500 of 1980 MHz");
  s = good_state();
  s.other_processes = 2;
  expect_one(s, false, "shared", "CUDA_VISIBLE_DEVICES");
}

TEST(Card, AClockCountsUnderLoadOnly) {
  CardState s = good_state();
  s.sm_mhz = 345;
  EXPECT_TRUE(card_warnings(s, false).empty());
  expect_one(s, true, "clock locked", "nvidia-smi -rgc");
}

TEST(Card, EnergyIsADifference) {
  const FakeCard card({}, 5);
  EnergyMeter meter(&card);
  EXPECT_FALSE(meter.joules()) << "never started";
  meter.start();
  EXPECT_EQ(meter.joules(), 5.0);
  EXPECT_EQ(meter.joules(), 10.0);
  meter.start();
  EXPECT_EQ(meter.joules(), 5.0);
  EnergyMeter without;
  without.start();
  EXPECT_FALSE(without.joules());
}

TEST(Card, TheCpuHasNone) { EXPECT_EQ(open_card(Device::cpu()), nullptr); }

TEST(GpuCard, TellsClockPowerAndEnergy) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
  const std::unique_ptr<CardSensor> card = open_card(Device::cuda());
  if (card == nullptr) GTEST_SKIP() << "no NVML";
  const CardState s = card->state();
  EXPECT_GT(s.sm_mhz, 0);
  EXPECT_GE(s.most_sm_mhz, s.sm_mhz);
  EXPECT_GT(s.celsius, 0);
  EXPECT_GT(s.watts, 0);
  EXPECT_GE(s.usual_watt_limit, s.watt_limit);
  const std::optional<double> first = card->joules();
  ASSERT_TRUE(first);
  EXPECT_GE(card->joules(), *first);
}

}  // namespace
}  // namespace segue
