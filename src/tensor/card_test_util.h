#pragma once

// For tests only: a card that says what it is told to say.

#include <optional>

#include "tensor/card.h"

namespace segue {

class FakeCard final : public CardSensor {
 public:
  explicit FakeCard(CardState state = {}, double joules_per_look = 0)
      : state_(state), joules_per_look_(joules_per_look) {}
  CardState state() const override { return state_; }
  /// More at every look.
  std::optional<double> joules() const override { return joules_per_look_ * ++looks_; }

 private:
  CardState state_;
  double joules_per_look_;
  mutable int looks_ = 0;
};

}  // namespace segue
