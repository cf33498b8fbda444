#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tensor/device.h"

namespace segue {

/// What a GPU tells of itself. What it does not tell is 0.
struct CardState {
  int64_t sm_mhz = 0, most_sm_mhz = 0;  // clock of the multiprocessors: now, at most
  int64_t set_sm_mhz = 0;               // what somebody has set it to
  bool too_hot = false;                 // clocks are held down for that
  bool out_of_power = false;            // likewise
  int64_t celsius = 0;
  double watts = 0, watt_limit = 0, usual_watt_limit = 0;
  int64_t other_processes = 0;  // that compute on it
};

/// Reads a card. For tests there may be others than the real one.
class CardSensor {
 public:
  virtual ~CardSensor() = default;
  virtual CardState state() const = 0;
  /// Energy that the card has used since some time long ago; absent: it does not count.
  virtual std::optional<double> joules() const = 0;
};

/// By NVML, NVIDIA's management library, which comes with the driver and is looked for at run time.
/// Null for the CPU and where there is no such library; then nothing is said about the card.
std::unique_ptr<CardSensor> open_card(Device device);

/// Something that makes a card slower than it could be: in a word, and in a sentence that says what
/// to do. `under_load`: the card was at work when its state was read; a clock says nothing else.
struct CardWarning {
  std::string name, text;
};
std::vector<CardWarning> card_warnings(const CardState& state, bool under_load);

/// Energy of an interval: what the counter says less what it said.
class EnergyMeter {
 public:
  explicit EnergyMeter(const CardSensor* card = nullptr) : card_(card) {}
  void start() { begin_ = now(); }
  /// Since start(); absent if that was not called, or the card does not count.
  std::optional<double> joules() const;

 private:
  std::optional<double> now() const { return card_ == nullptr ? std::nullopt : card_->joules(); }
  const CardSensor* card_;
  std::optional<double> begin_;
};

}  // namespace segue
