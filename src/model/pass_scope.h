#pragma once

#include <algorithm>
#include <cstdint>

#include "model/model.h"
#include "ops/deferred_sums.h"

namespace segue::model {

/// How the ops of one pass run, whatever the family: on weights rounded once, with sums over rows
/// that are finished together, always before anybody is told that gradients are complete.
struct PassScope {
  PassScope(const Exec& caller, const Parameters& parameters, const PassOptions& given,
            int64_t labels)
      : exec(with_rounded(caller, parameters)),
        sums(exec),
        options(given),
        denominator(std::max(1.0, given.loss_denominator.value_or(static_cast<double>(labels)))) {
    exec.sums = &sums;
    if (!given.gradients_ready) return;
    options.gradients_ready = [this, &given](size_t bucket) {
      sums.flush();
      given.gradients_ready(bucket);
    };
  }
  PassScope(const PassScope&) = delete;
  PassScope& operator=(const PassScope&) = delete;

  Exec exec;
  ops::DeferredSums sums;
  PassOptions options;
  double denominator = 1;  // of the loss

 private:
  static Exec with_rounded(Exec exec, const Parameters& parameters) {
    exec.rounded_parameters = parameters.rounded(exec);
    return exec;
  }
};

}  // namespace segue::model
