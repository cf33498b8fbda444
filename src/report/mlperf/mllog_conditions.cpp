#include "report/mlperf/mllog_conditions.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace segue::report {
namespace {

using Answer = std::optional<Objection>;

Answer when(bool wrong, std::string text, bool broken = false) {
  if (!wrong) return std::nullopt;
  return Objection{std::move(text), broken};
}

std::string number_text(double number) {
  const bool whole = number == std::floor(number) && std::abs(number) < 1e15;
  return whole ? fmt::format("{:.0f}", number) : fmt::format("{}", number);
}

Answer about_value(const Condition& c, const MllogEvent& event) {
  const std::string shown = "the value " + mllog_text(event.value);
  const std::string* text = std::get_if<std::string>(&event.value);
  if (c.test == Test::kNotEmpty) return when(text && text->empty(), "the value must not be empty");
  if (c.test == Test::kOneOf) {
    const bool known = text && std::ranges::find(c.words, *text) != c.words.end();
    return when(!known, fmt::format("{} must be {}{}", shown, c.words.size() > 1 ? "one of " : "",
                                    fmt::join(c.words, ", ")));
  }
  const std::optional<double> number = as_number(event.value);
  const std::string limit = number_text(c.number);
  if (c.test == Test::kEquals) return when(number != c.number, shown + " must be " + limit);
  if (!number) return Objection{shown + " must be a number", true};
  switch (c.test) {
    case Test::kInteger:
      return when(!(std::abs(std::nearbyint(*number) - *number) < 1e-5),
                  shown + " must be an integer");
    case Test::kAbove:
      return when(!(*number > c.number), shown + " must be above " + limit);
    case Test::kAtLeast:
      return when(!(*number >= c.number), shown + " must be " + limit + " or more");
    default:
      return when(!(*number <= c.number), shown + " must be " + limit + " or less");
  }
}

Answer about_metadata(const Condition& c, const MllogEvent& event) {
  if (!event.metadata) return Objection{"the metadata must be a JSON object", true};
  if (c.test == Test::kHasAny) {
    const bool any = std::ranges::any_of(c.words, [&](auto word) { return event.find(word); });
    return when(!any, fmt::format("the metadata must have `{}`", fmt::join(c.words, "` or `")));
  }
  const MllogValue* entry = event.find(c.words[0]);
  if (!entry) return std::nullopt;
  if (c.test == Test::kHasPartner) {
    return when(!event.find(c.words[1]),
                fmt::format("with `{}` the metadata must have `{}`", c.words[0], c.words[1]));
  }
  const std::optional<double> number = as_number(*entry);
  const bool above = c.test == Test::kMetaAbove;
  const bool holds = number && (above ? *number > c.number : *number >= c.number);
  return when(!holds,
              fmt::format("`{}` of the metadata, {}, must be {}{}", c.words[0], mllog_text(*entry),
                          above ? "above " : "at least ", number_text(c.number)));
}

Answer about_eval(const Condition& c, const MllogEvent& event, const LintState& state) {
  const MllogValue* entry = event.find("samples_count");
  const std::optional<double> samples = entry ? as_number(*entry) : std::nullopt;
  if (!samples) return Objection{"`samples_count` of the metadata must be a number", true};
  if (!state.grid) {
    return Objection{"a valid `global_batch_size` must come first: it defines the grid", true};
  }
  const std::string shown = "`samples_count` " + number_text(*samples);
  if (c.test == Test::kFirstEval) {
    const auto first = static_cast<double>(state.grid->first_eval_samples);
    return when(std::trunc(*samples) != first,
                fmt::format("the first evaluation must be at {} samples, not at {}",
                            number_text(first), number_text(*samples)));
  }
  const auto interval = static_cast<double>(state.grid->interval_samples);
  return when(std::fmod(*samples, interval) != 0,
              shown + " must be a multiple of the eval interval, " + number_text(interval));
}

/// Half to one and a half times the rate of the reference, which grows with the batch.
Answer about_rate_band(const MllogEvent& event, const LintState& state) {
  const std::optional<double> rate = as_number(event.value);
  if (!rate) return Objection{"the value must be a number", true};
  if (!state.batch)
    return Objection{"`global_batch_size` must come first: it sets the limits", true};
  const double low = 0.5e-6 * *state.batch / 8192, high = 1.5e-6 * *state.batch / 8192;
  return when(!(*rate >= low * (1 - 1e-9) && *rate <= high * (1 + 1e-9)),
              fmt::format("the learning rate {} must lie in {} .. {} at this batch size", *rate,
                          low, high));
}

Answer about_order(const Condition& c, const MllogEvent& event, const LintState& state) {
  switch (c.test) {
    case Test::kInitStarted:
      return when(!state.init_started, "`init_start` must come first");
    case Test::kInitNotStopped:
      return when(state.init_stopped, "it must not follow `init_stop`");
    case Test::kInitStopped:
      return when(!state.init_stopped, "`init_stop` must come first");
    case Test::kRunStarted:
      return when(!state.run_started, "`run_start` must come first");
    case Test::kRunNotStarted:
      return when(state.run_started, "it must not follow `run_start`");
    case Test::kInitInTime: {
      if (state.init_minutes == 0) {
        return Objection{"`submission_division` must come first: it sets the time limit of init"};
      }
      const double minutes = (event.time_ms - state.first_init_ms) / 60e3;
      return when(!(minutes < state.init_minutes),
                  fmt::format("init took {:.1f} minutes; it must take less than {:.0f}", minutes,
                              state.init_minutes));
    }
    default:
      return when(
          !state.learning_rate || !same_value(event.value, *state.learning_rate),
          fmt::format("the value {} must equal `opt_base_learning_rate`{}", mllog_text(event.value),
                      state.learning_rate ? "" : ", which must come first"));
  }
}

}  // namespace

std::optional<Objection> objection(const Condition& condition, const MllogEvent& event,
                                   const LintState& state) {
  switch (condition.test) {
    case Test::kNotEmpty:
    case Test::kOneOf:
    case Test::kEquals:
    case Test::kInteger:
    case Test::kAbove:
    case Test::kAtLeast:
    case Test::kAtMost:
      return about_value(condition, event);
    case Test::kHasAny:
    case Test::kHasPartner:
    case Test::kMetaAbove:
    case Test::kMetaAtLeast:
      return about_metadata(condition, event);
    case Test::kOnEvalGrid:
    case Test::kFirstEval:
      return about_eval(condition, event, state);
    case Test::kLearningRateBand:
      return about_rate_band(event, state);
    default:
      return about_order(condition, event, state);
  }
}

}  // namespace segue::report
