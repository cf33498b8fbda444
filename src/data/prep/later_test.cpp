// Labels from later events: what they are, and that no sample sees one before it is known.

#include <algorithm>
#include <filesystem>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/npy.h"
#include "base/test_util.h"
#include "data/inspect/baselines.h"
#include "data/log/later_labels.h"
#include "data/numbers/event_numbers.h"
#include "data/prep/prep.h"
#include "data/prep/prep_test_util.h"
#include "data/sample/gather.h"
#include "data/store/event_log.h"
#include "data/store/later_check.h"
#include "data/store/store_verify.h"

namespace segue::data {
namespace {

using base::contains;
using base::error_of;

constexpr uint8_t kView = 0, kCart = 1, kBuy = 2;
constexpr int64_t kWait = 1800;

LogSchema shop_schema() {
  LogSchema s;
  s.events = "events*.csv";
  s.user = "user";
  s.item = "item";
  s.time = "time";
  s.kind = "kind";
  s.kinds = {"view", "cart", "buy"};
  s.anchor_kinds = {"view"};
  s.pools = {{.name = "view", .bit = 1, .kinds = {"view"}},
             {.name = "cart", .bit = 2, .kinds = {"cart"}},
             {.name = "buy", .bit = 4, .kinds = {"buy"}}};
  s.later = {{.name = "carted",
              .bit = 8,
              .kinds = {"view"},
              .followed_by = {"cart"},
              .within_seconds = kWait},
             {.name = "bought",
              .bit = 16,
              .kinds = {"view", "cart"},
              .followed_by = {"buy"},
              .within_seconds = 7200,
              .same = LaterRule::Same::kUser}};
  s.label_pool = "carted";
  s.train_days = s.test_seconds = s.gap_seconds = 0;
  return s;
}

/// Views, of which some are put into the cart, in a few days.
std::vector<Event> random_shop(size_t rows, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<Event> events(rows);
  for (Event& e : events) {
    e.user = static_cast<int64_t>(random() % 12);
    e.time = static_cast<int64_t>(random() % (3 * 86400)) / 120 * 120 + 100 * 86400;
    e.item = static_cast<int64_t>(random() % 4);
    const uint64_t kind = random() % 10;
    e.kind = kind < 6 ? kView : kind < 9 ? kCart : kBuy;
  }
  return events;
}

/// By the words of the docs: one event at a time.
uint8_t outcomes_of(const std::vector<Event>& sorted, size_t i) {
  uint8_t bits = 0;
  const Event& e = sorted[i];
  for (size_t j = i + 1; j < sorted.size() && sorted[j].user == e.user; ++j) {
    const Event& later = sorted[j];
    const int64_t after = later.time - e.time;
    if (e.kind == kView && later.kind == kCart && later.item == e.item && after <= kWait) bits |= 1;
    if (e.kind != kBuy && later.kind == kBuy && after <= 7200) bits |= 2;
  }
  return bits;
}

TEST(LaterLabels, AreWhatComesLater) {
  for (const uint64_t seed : {1, 2, 3}) {
    std::vector<Event> events = random_shop(3000, seed);
    std::sort(events.begin(), events.end());
    LaterLabels labels(shop_schema(), 1 << 16);
    std::vector<Event> decided;
    std::mt19937_64 random(seed);
    for (size_t at = 0; at < events.size();) {  // in pieces of any size
      const size_t n = std::min<size_t>(random() % 50, events.size() - at);
      labels.add(std::span(events).subspan(at, n), decided);
      at += n;
    }
    labels.finish(decided);
    ASSERT_EQ(decided.size(), events.size());
    size_t positive = 0;
    for (size_t i = 0; i < events.size(); ++i) {
      ASSERT_EQ(decided[i].key(), events[i].key()) << i;
      ASSERT_EQ(decided[i].outcomes, outcomes_of(events, i)) << "event " << i << ", seed " << seed;
      positive += decided[i].outcomes & 1;
    }
    EXPECT_GT(positive, 20U);
  }
}

/// Many more events than are looked at together.
TEST(LaterLabels, HoldOnlyWhatIsNotDecided) {
  std::vector<Event> events;
  for (int64_t i = 0; i < 100'000; ++i) {
    Event e;
    e.user = 7;
    e.time = i * 60;
    e.item = i / 10 % 5;
    e.kind = i % 10 == 9 ? kCart : kView;
    events.push_back(e);
  }
  LaterLabels labels(shop_schema(), 1 << 12);
  std::vector<Event> decided;
  for (const Event& e : events) labels.add({&e, 1}, decided);
  EXPECT_GT(decided.size(), events.size() - (1 << 12) - 1);
  labels.finish(decided);
  ASSERT_EQ(decided.size(), events.size());
  for (size_t i = 0; i + 1 < events.size(); ++i) {
    EXPECT_EQ(decided[i].outcomes & 1, events[i].kind == kView ? 1 : 0);
  }
  // All of it at one second: nothing can be decided.
  for (Event& e : events) e.time = 5;
  const auto error = error_of([&] {
    LaterLabels few(shop_schema(), 1 << 12);
    few.add(events, decided);
  });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::kOutOfMemory);
}

class LaterStore : public testing::Test {
 protected:
  LaterStore() : folder_(base::temp_path("raw")), schema_(shop_schema()) {
    base::make_folders(folder_);
  }

  /// Prepares the log and opens it.
  EventStore& prepare(const std::vector<Event>& events, const std::string& name,
                      TieOrder ties = TieOrder::kFields) {
    std::string text = "user,item,time,kind,price\n";
    for (const Event& e : events) {
      text += fmt::format("{},{},{},{},{}\n", e.user, e.item, e.time, schema_.kinds[e.kind],
                          fmt::join(e.numbers(), ""));
    }
    base::put_file(folder_ + "/events.csv", text);
    PrepConfig config;
    config.raw = folder_;
    config.store = folder_ + "/" + name;
    config.schema = schema_;
    config.memory_bytes = PrepConfig::kLeastMemory;
    config.history_length = 30;
    config.min_history = {0};
    config.ties = ties;
    config.overwrite = true;
    config.run_events = 500;
    prep(config);
    return *stores_.emplace_back(std::make_unique<EventStore>(config.store, schema_.samples()));
  }
  static std::vector<uint8_t> pool(const EventStore& store, size_t p) {
    return {store.in_pool(p).begin(), store.in_pool(p).end()};
  }

  std::string folder_;
  LogSchema schema_;
  std::vector<std::unique_ptr<EventStore>> stores_;
};

TEST_F(LaterStore, HasTheLabelsAndEndsWhereTheyAreKnown) {
  std::vector<Event> events = random_shop(2000, 5);
  const EventStore& store = prepare(events, "store");
  std::sort(events.begin(), events.end());
  const int64_t last =
      std::ranges::max(events, {}, &Event::time).time - 7200;  // the longest that a label waits
  std::vector<uint8_t> carted, bought;
  for (size_t i = 0; i < events.size(); ++i) {
    if (events[i].time > last) continue;
    carted.push_back(outcomes_of(events, i) & 1);
    bought.push_back(outcomes_of(events, i) >> 1);
  }
  EXPECT_EQ(pool(store, 3), carted);
  EXPECT_EQ(pool(store, 4), bought);
  EXPECT_LT(store.num_events(), std::ssize(events));
  EXPECT_TRUE(verify_store(folder_ + "/store").ok());
  EXPECT_EQ(store.schema().num_history_pools(), 3U);
}

TEST_F(LaterStore, ReachesIntoTheGapAndTheTestPart) {
  schema_.test_seconds = 86400;
  schema_.gap_seconds = 60;
  std::vector<Event> events = random_shop(2000, 6);
  const EventStore& store = prepare(events, "store");
  std::sort(events.begin(), events.end());
  const int64_t end = std::ranges::max(events, {}, &Event::time).time - 86400 - 60;
  std::vector<uint8_t> carted;
  for (size_t i = 0; i < events.size(); ++i) {
    if (events[i].time < end) carted.push_back(outcomes_of(events, i) & 1);
  }
  EXPECT_EQ(pool(store, 3), carted);
  EXPECT_TRUE(verify_store(folder_ + "/store").ok());
}

/// Everything that a sample may look at, but its label.
struct Seen {
  std::vector<int64_t> items, actions, times;
  std::vector<float> numbers;
  bool operator==(const Seen&) const = default;
};

Seen what_is_seen(const Gatherer& gatherer, const EventNumbers& numbers, int64_t position) {
  Batch batch;
  const int64_t positions[] = {position}, index[] = {0};
  gatherer.fill(positions, index, batch);
  const auto values = [&](const char* name) {
    HostArray<int64_t> memory;
    const std::span<const int64_t> all = batch.values(name, memory);
    return std::vector<int64_t>(all.begin(), all.end());
  };
  const std::span<const float> row = numbers.of_event(0, position);
  return {values("item_id"),
          values("action_weight"),
          values("action_timestamp"),
          {row.begin(), row.end()}};
}

/// The property that matters: what comes at or after a moment changes no sample before it but for
/// its label.
TEST_F(LaterStore, NoSampleSeesAnOutcomeBeforeItIsKnown) {
  schema_.later.pop_back();
  for (const int64_t moment :
       {int64_t{43200}, int64_t{900}}) {  // of a day; 900: few are known then
    for (const bool labelled : {false, true}) {
      SCOPED_TRACE(fmt::format("{} s, {}", moment, labelled));
      std::vector<Event> events = random_shop(6000, 9);
      std::sort(events.begin(), events.end());
      const int64_t middle = 101 * 86400 + moment;
      // The other world: from then on what was viewed is put into the cart, and the reverse.
      std::vector<Event> other = events;
      for (Event& e : other) {
        if (e.time >= middle && e.kind != kBuy) e.kind = e.kind == kView ? kCart : kView;
      }
      const EventStore& a = prepare(events, "a");
      const EventStore& b = prepare(other, "b");
      const EventLog log_a(a), log_b(b);
      const EventNumbers numbers_a(log_a), numbers_b(log_b);
      const GatherConfig config{.history_length = 30, .sample_events = labelled ? 1 : 0};
      const Gatherer gather_a(a, config), gather_b(b, config);
      int64_t compared = 0, labels_differ = 0;
      for (const int64_t user : log_a.users()) {
        const UserEvents of_a = a.events_of(user), of_b = b.events_of(user);
        for (int64_t n = 0; n < of_a.end - of_a.begin; ++n) {
          const int64_t i = of_a.begin + n, j = of_b.begin + n;
          const auto at = static_cast<size_t>(i);
          if (a.timestamps()[at] >= middle) break;
          if (a.kinds()[at] != kView) continue;
          ASSERT_EQ(what_is_seen(gather_a, numbers_a, i), what_is_seen(gather_b, numbers_b, j))
              << "event " << i << " at " << a.timestamps()[at];
          ++compared;
          labels_differ += a.in_pool(3)[at] != b.in_pool(3)[static_cast<size_t>(j)] ? 1 : 0;
        }
      }
      EXPECT_GT(compared, 1000);
      EXPECT_GT(labels_differ, 2);  // so there was something to see
    }
  }
}

/// An outcome enters numbers as soon as it is known, a view and its cart being 5 minutes apart.
TEST_F(LaterStore, NumbersKnowAnOutcomeOnceItsTimeIsOver) {
  schema_.later.pop_back();
  std::vector<Event> events;
  const auto add = [&](int64_t time, int64_t item, uint8_t kind) {
    Event e;
    e.user = 1;
    e.time = 86400 + time;
    e.item = item;
    e.kind = kind;
    events.push_back(e);
  };
  add(0, 3, kView);
  add(300, 3, kCart);
  add(kWait, 4, kView);      // not yet: an equal time is not later
  add(kWait + 1, 4, kView);  // known
  add(3 * kWait, 9, kView);
  add(9 * kWait, 9, kView);
  const EventStore& store = prepare(events, "store");
  const EventLog log(store);
  const EventNumbers numbers(log);
  const std::vector<std::string> names = count_names(store.schema());
  const auto number = [&](const char* name, int64_t event) {
    const auto at = std::ranges::find(names, name) - names.begin();
    return numbers.of_event(0, event)[static_cast<size_t>(at)];
  };
  EXPECT_EQ(number("last_1", 2), 0);
  EXPECT_EQ(number("user_count", 2), 0);
  EXPECT_GT(number("gap", 2), 0);  // that something happened is known at once
  EXPECT_EQ(number("last_1", 3), 1);
  EXPECT_GT(number("user_count", 3), 0);
  EXPECT_EQ(number("last_1", 4), -1);  // two views without a cart
  EXPECT_EQ(number("last_3", 4), 1);
  // The rules that models are compared with wait, too.
  const std::vector<float> by_user = predict_by_history(store).rules[1].predictions;
  ASSERT_GE(by_user.size(), 3U);
  EXPECT_EQ(by_user[1], by_user[0]);
  EXPECT_GT(by_user[2], by_user[1]);
}

/// Every rule, one event at a time: it has what was known before the event.
TEST_F(LaterStore, RulesCountWhatIsKnown) {
  schema_.later.pop_back();
  schema_.attributes = {{.name = "shelf", .file = "shelves.csv", .item = "item", .value = "shelf"}};
  base::put_file(folder_ + "/shelves.csv", "item,shelf\n0,1\n1,1\n2,2\n3,2\n");
  const EventStore& store = prepare(random_shop(1500, 4), "store");
  const auto time = [&](int64_t p) { return store.timestamps()[static_cast<size_t>(p)]; };
  const auto item = [&](int64_t p) { return store.items()[static_cast<size_t>(p)]; };
  const auto user = [&](int64_t p) { return store.users()[static_cast<size_t>(p)]; };
  const Predictions all = predict_by_history(store);
  ASSERT_EQ(all.rules.size(), 3U);
  std::vector<int64_t> late;
  for (const int64_t p : all.positions) {
    if (time(p) > 101 * 86400) late.push_back(p);
  }
  const Predictions asked = predict_by_history(store, {.positions = late});
  for (const Predictions& rules : {all, asked}) {
    const bool some = rules.positions.size() < all.positions.size();
    int64_t first = some ? std::numeric_limits<int64_t>::max() : 0;
    for (const int64_t p : late) first = std::min(first, time(p));
    /// Share among the events that `counts` of those that are known at `now`.
    const auto share = [&](int64_t now, double prior, double weight, const auto& counts) {
      double tries = weight, successes = prior * weight;
      for (const int64_t p : all.positions) {
        if (time(p) + kWait >= now || !counts(p)) continue;
        ++tries;
        successes += store.in_pool(3)[static_cast<size_t>(p)];
      }
      return successes / tries;
    };
    const int64_t end = std::numeric_limits<int64_t>::max();
    const double prior = share(some ? first : end, 0, 0, [](int64_t) { return true; });
    for (size_t i = 0; i < rules.positions.size(); ++i) {
      const int64_t p = rules.positions[i], now = time(p);
      const auto same_user = [&](int64_t q) { return user(q) == user(p); };
      const double by_user = share(now, prior, 5, same_user);
      const double by_item = share(now, prior, 10, [&](int64_t q) { return item(q) == item(p); });
      const double by_shelf = share(
          now, by_user, 2, [&](int64_t q) { return same_user(q) && item(q) / 2 == item(p) / 2; });
      ASSERT_NEAR(rules.rules[0].predictions[i], by_item, 1e-6) << i;
      ASSERT_NEAR(rules.rules[1].predictions[i], by_user, 1e-6) << i;
      ASSERT_NEAR(rules.rules[2].predictions[i], by_shelf, 1e-6) << i;
    }
  }
}

/// Numbers of the log stay with events that wait for a label, or for an equal one.
TEST_F(LaterStore, KeepsNumbersOfEventsThatWait) {
  schema_.numbers = {{.name = "price"}};
  for (const TieOrder ties : {TieOrder::kFields, TieOrder::kFile}) {
    for (const bool in_order : {false, true}) {
      SCOPED_TRACE(fmt::format("{} {}", ties == TieOrder::kFile, in_order));
      std::vector<Event> events = random_shop(20'000, 7);
      std::vector<float> prices(events.size());
      for (size_t i = 0; i < events.size(); ++i) {
        prices[i] = static_cast<float>(i % 1000);
        events[i].set_numbers({&prices[i], 1});
      }
      std::vector<Event> sorted = events;
      std::sort(sorted.begin(), sorted.end());
      if (in_order) events = sorted;
      events.push_back(events.back());  // a duplicate, as another price makes none
      schema_.duplicates = Duplicates::kDrop;
      const EventStore& store = prepare(events, "store", ties);
      std::stable_sort(events.begin(), events.end(), [&](const Event& a, const Event& b) {
        if (ties == TieOrder::kFields) return a < b;
        return std::pair(a.user, a.time) < std::pair(b.user, b.time);
      });
      const int64_t last = std::ranges::max(events, {}, &Event::time).time - 7200;
      std::vector<float> expected;
      std::vector<Event> at_one_time;
      for (const Event& e : events) {
        if (!at_one_time.empty() &&
            (at_one_time[0].user != e.user || at_one_time[0].time != e.time)) {
          at_one_time.clear();
        }
        const auto same = [&](const Event& other) { return other.is_same(e); };
        if (std::ranges::any_of(at_one_time, same)) continue;
        at_one_time.push_back(e);
        if (e.time <= last) expected.push_back(e.numbers()[0]);
      }
      const std::span<const float> stored = store.number(0);
      EXPECT_EQ(std::vector(stored.begin(), stored.end()), expected);
    }
  }
}

/// Labels as they are in a store pass, a changed one does not.
TEST(LaterCheck, FindsALabelThatNoEventExplains) {
  std::vector<Event> events = random_shop(2000, 8);
  std::sort(events.begin(), events.end());
  for (size_t i = 0; i < events.size(); ++i) events[i].outcomes = outcomes_of(events, i);
  const int64_t end =
      102 * 86400;  // of the store: what comes then decides labels, but is not there
  std::erase_if(events, [&](const Event& e) { return e.time >= end; });
  const int64_t last = std::ranges::max(events, {}, &Event::time).time;
  const auto found = [&](const std::vector<Event>& all) {
    LaterCheck check(shop_schema());
    int64_t wrong = -1;
    for (const Event& e : all) wrong = check.add(e);
    return wrong >= 0 ? wrong : check.finish(last);
  };
  EXPECT_EQ(found(events), -1);
  for (size_t i = 0; i < events.size(); i += 13) {
    std::vector<Event> changed = events;
    changed[i].outcomes ^= 1;
    const bool may_be_open =
        changed[i].kind == kView && changed[i].outcomes % 2 == 1 && changed[i].time + kWait > last;
    EXPECT_EQ(found(changed), may_be_open ? -1 : static_cast<int64_t>(i)) << i;
  }
}

/// A damaged store has any times; what they come to is a number.
TEST(LaterCheck, TakesAnyTimes) {
  LaterCheck check(shop_schema());
  for (const int64_t time :
       {std::numeric_limits<int64_t>::min(), int64_t{5}, std::numeric_limits<int64_t>::max()}) {
    Event view{.user = 1, .time = time};
    view.outcomes = 1;
    EXPECT_EQ(check.add(view), -1);
  }
  EXPECT_EQ(check.finish(std::numeric_limits<int64_t>::max()), 0);
}

TEST_F(LaterStore, Mistakes) {
  const auto message = [&](const auto& change) {
    LogSchema s = shop_schema();
    change(s);
    const auto error = error_of([&] { s.validate(); });
    return error ? std::string(error->what()) : "";
  };
  shop_schema().validate();
  EXPECT_TRUE(contains(message([](LogSchema& s) { s.later[0].followed_by = {"crat"}; }),
                       "did you mean \"cart\""));
  EXPECT_TRUE(contains(message([](LogSchema& s) { s.later[0].within_seconds = 0; }),
                       "needs kinds, followed_by"));
  EXPECT_TRUE(contains(message([](LogSchema& s) { s.later[0].bit = 1; }), "belongs to another"));
  EXPECT_TRUE(contains(message([](LogSchema& s) { s.later[0].name = "view"; }), "appears twice"));
  EXPECT_TRUE(contains(message([](LogSchema& s) {
                         s.anchor_kinds = {"view", "buy"};
                       }),
                       "every predicted \"buy\" would be a failure"));
  EXPECT_TRUE(contains(message([](LogSchema& s) { s.pools.clear(); }), "at least one is needed"));

  prepare(random_shop(300, 3), "store");
  PrepConfig config;
  config.raw = folder_;
  config.store = folder_ + "/store";
  config.schema = schema_;
  config.append = true;
  const auto error = error_of([&] { prep(config); });
  ASSERT_TRUE(error);
  EXPECT_TRUE(contains(error->what(), "\"carted\" depends on later events"));
}

}  // namespace
}  // namespace segue::data
