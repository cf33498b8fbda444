#include "train/run/step_tracker.h"

#include <algorithm>
#include <limits>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/stage.h"

namespace segue::train {
namespace {

using HostStage = TrackedStep::HostStage;
using Json = nlohmann::ordered_json;

/// Threads of one name count together.
std::vector<HostStage> host_totals() {
  std::vector<HostStage> all;
  for (const base::ThreadStages& thread : base::stage_totals()) {
    for (const base::StageSeconds& stage : thread.stages) {
      const auto found = std::ranges::find_if(all, [&](const HostStage& h) {
        return h.thread == thread.thread && h.name == stage.name;
      });
      if (found == all.end()) {
        all.push_back({thread.thread, stage.name, stage.seconds});
      } else {
        found->seconds += stage.seconds;
      }
    }
  }
  return all;
}

std::vector<HostStage> host_since(const std::vector<HostStage>& before) {
  constexpr double kLeast = 1e-6;
  std::vector<HostStage> all = host_totals();
  for (HostStage& now : all) {
    const auto found = std::ranges::find_if(
        before, [&](const HostStage& h) { return h.thread == now.thread && h.name == now.name; });
    if (found != before.end()) now.seconds -= found->seconds;
  }
  std::erase_if(all, [](const HostStage& h) { return h.seconds < kLeast; });
  return all;
}

double wait_of(const std::vector<HostStage>& host) {
  double seconds = 0;
  for (const HostStage& stage : host) seconds += stage.name == "load" ? stage.seconds : 0;
  return seconds;
}

/// What one rank tells the others.
std::string to_message(const StepParts& mine, double wait) {
  Json parts = Json::array();
  for (const StepParts::Part& part : mine.parts) {
    parts.push_back({part.name, part.seconds, part.flop});
  }
  return Json({{"seconds", mine.seconds}, {"wait", wait}, {"parts", std::move(parts)}}).dump();
}

void add_rank(const std::string& message, double share, TrackedStep& all) {
  const Json rank = Json::parse(message);
  all.ranks.push_back({rank.at("seconds"), rank.at("wait")});
  all.seconds += share * all.ranks.back().seconds;
  for (const Json& p : rank.at("parts")) {
    const auto name = p.at(0).get<std::string>();
    const double seconds = p.at(1), flop = p.at(2);
    auto part = std::ranges::find(all.parts, name, &TrackedStep::Part::name);
    if (part == all.parts.end()) part = all.parts.insert(part, {.name = name});
    part->seconds += share * seconds;
    part->most = std::max(part->most, seconds);
    part->flop += share * flop;
  }
}

}  // namespace

int TrackedStep::slowest() const {
  const auto most = std::ranges::max_element(ranks, {}, &Rank::seconds);
  return static_cast<int>(most - ranks.begin());
}

double TrackedStep::imbalance() const {
  return seconds > 0 && !ranks.empty() ? ranks[static_cast<size_t>(slowest())].seconds / seconds
                                       : 1;
}

std::string to_text(const TrackedStep& t) {
  std::string text = fmt::format("step {} took the device {:.3f} ms", t.step, 1e3 * t.seconds);
  if (t.ranks.size() > 1) {
    text += fmt::format(" (rank {} {:.2f} times the mean)", t.slowest(), t.imbalance());
  }
  text += ":";
  std::vector<TrackedStep::Part> parts = t.parts;
  std::ranges::stable_sort(parts, std::ranges::greater(), &TrackedStep::Part::seconds);
  constexpr size_t kShown = 12;
  for (size_t i = 0; i < std::min(kShown, parts.size()); ++i) {
    const TrackedStep::Part& p = parts[i];
    text += fmt::format("{} {} {:.3f} ms", i > 0 ? "," : "", p.name, 1e3 * p.seconds);
    if (p.flop > 0) {
      const bool small = p.tflops() < 1;
      text += fmt::format(" ({:.1f} {}FLOP/s)", p.tflops() * (small ? 1e3 : 1), small ? "G" : "T");
    }
  }
  if (parts.size() > kShown) text += fmt::format(", and {} more", parts.size() - kShown);
  std::vector<HostStage> host = t.host;
  std::ranges::stable_sort(host, std::ranges::greater(), &HostStage::seconds);
  constexpr size_t kHostShown = 6;
  for (size_t i = 0; i < std::min(kHostShown, host.size()); ++i) {
    text += fmt::format("{} {} {:.3f} ms",
                        i > 0 ? "," : "; host:", host[i].thread + ": " + host[i].name,
                        1e3 * host[i].seconds);
  }
  return text;
}

void StepTracker::before_step(int64_t step) {
  if (tracked(step)) before_ = host_totals();
}

void StepTracker::after_step(int64_t step) {
  if (every_ == 0) return;
  if (tracked(step)) pending_.push_back({step, host_since(before_)});
  report_before(step);
}

void StepTracker::finish() {
  if (every_ > 0) report_before(std::numeric_limits<int64_t>::max());
}

void StepTracker::report_before(int64_t step) {
  while (const std::optional<StepParts> mine = trainer_.timer().take(step)) {
    TrackedStep all{.step = mine->step};
    while (!pending_.empty() && pending_.front().step <= mine->step) {
      if (pending_.front().step == mine->step) all.host = std::move(pending_.front().host);
      pending_.pop_front();
    }
    const std::string message = to_message(*mine, wait_of(all.host));
    const Ranks& ranks = trainer_.ranks();
    if (ranks.alone()) {
      add_rank(message, 1, all);
    } else {
      std::vector<std::vector<std::byte>> messages;
      ranks.results->all_gather(std::as_bytes(std::span(message)), messages).throw_if_failed();
      for (const std::vector<std::byte>& m : messages) {
        add_rank({reinterpret_cast<const char*>(m.data()), m.size()},
                 1.0 / static_cast<double>(messages.size()), all);
      }
    }
    if (report_) report_(all);
  }
}

}  // namespace segue::train
