#include "data/inspect/feature_summary.h"

#include <algorithm>
#include <cmath>
#include <unordered_set>

#include "base/parallel.h"
#include "data/store/event_log.h"

namespace segue::data {
namespace {

constexpr int64_t kEventsPerPart = 1 << 18;

struct Sums {
  int64_t known = 0;
  double min = HUGE_VAL, max = -HUGE_VAL;
  double sum = 0, squares = 0, log_sum = 0, log_squares = 0;

  void add(double x) {
    const double log = std::copysign(std::log1p(std::abs(x)), x);
    ++known;
    min = std::min(min, x);
    max = std::max(max, x);
    sum += x;
    squares += x * x;
    log_sum += log;
    log_squares += log * log;
  }
  void add(const Sums& other) {
    known += other.known;
    min = std::min(min, other.min);
    max = std::max(max, other.max);
    sum += other.sum;
    squares += other.squares;
    log_sum += other.log_sum;
    log_squares += other.log_squares;
  }
};

Sums sums_of(std::span<const float> column) {
  std::vector<Sums> chunks(
      static_cast<size_t>(base::num_chunks(std::ssize(column), kEventsPerPart)));
  base::parallel_for(std::ssize(column), kEventsPerPart, [&](int64_t begin, int64_t end) {
    Sums& chunk = chunks[static_cast<size_t>(begin / kEventsPerPart)];
    for (int64_t i = begin; i < end; ++i) {
      const float x = column[static_cast<size_t>(i)];
      if (!std::isnan(x)) chunk.add(static_cast<double>(x));
    }
  });
  Sums all;
  for (const Sums& chunk : chunks) all.add(chunk);
  return all;
}

double deviation(double squares, double mean, double count) {
  return std::sqrt(std::max(0.0, squares / count - mean * mean));
}

}  // namespace

std::vector<NumberSummary> summarize_numbers(const EventStore& store) {
  const EventLog log(store);
  std::vector<NumberSummary> result;
  for (size_t n = 0; n < store.schema().numbers.size(); ++n) {
    const NumberConfig& config = store.schema().numbers[n];
    Sums sums;
    for (size_t p = 0; p < log.num_pieces(); ++p) sums.add(sums_of(log.piece(p).number(n)));
    NumberSummary& s = result.emplace_back();
    s.name = config.name;
    s.outcome = config.outcome;
    s.events = log.num_events();
    s.missing = s.events - sums.known;
    if (sums.known == 0) continue;
    const auto known = static_cast<double>(sums.known);
    s.min = sums.min;
    s.max = sums.max;
    s.mean = sums.sum / known;
    s.deviation = deviation(sums.squares, s.mean, known);
    s.log_mean = sums.log_sum / known;
    s.log_deviation = deviation(sums.log_squares, s.log_mean, known);
  }
  return result;
}

std::vector<AttributeSummary> summarize_user_attributes(const EventStore& store) {
  const EventLog log(store);
  const std::vector<int64_t> users = log.users();
  std::vector<AttributeSummary> result;
  const std::vector<AttributeConfig>& attributes = store.schema().user_attributes;
  for (size_t a = 0, end = 0; a < attributes.size(); a = end) {
    end = a + columns_of(attributes, a);
    std::unordered_set<int64_t> values;
    int64_t with = 0, events = 0;
    for (const int64_t user : users) {
      if (store.user_attribute(a, user) == 0) continue;
      for (size_t c = a; c < end; ++c) values.insert(store.user_attribute(c, user));
      ++with;
      for (size_t p = 0; p < log.num_pieces(); ++p) {
        const UserEvents of = log.piece(p).events_of(user);
        events += of.end - of.begin;
      }
    }
    const auto share = [](int64_t part, int64_t whole) {
      return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
    };
    values.erase(0);
    result.push_back({.name = attributes[a].bag.empty() ? attributes[a].name : attributes[a].bag,
                      .values = static_cast<int64_t>(values.size()),
                      .item_share = share(with, std::ssize(users)),
                      .event_share = share(events, log.num_events()),
                      .of_one = static_cast<int64_t>(end - a)});
  }
  return result;
}

}  // namespace segue::data
