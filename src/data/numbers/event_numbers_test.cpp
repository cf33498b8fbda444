#include "data/numbers/event_numbers.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <map>
#include <numbers>

#include <gtest/gtest.h>

#include "data/numbers/numbers_test_util.h"

namespace segue::data {
namespace {

struct Rules {
  double prior = 0, own = 0, expected = 0;  // the last by what is known of user and item
  std::vector<double> tastes, others;       // of the item and its attributes
};

/// What is known of event `e` from the user's earlier tries and everyone's on days before.
Rules rules_of(const TestStore& s, const ValueGroups& groups, size_t e) {
  const int64_t now = s.timestamps[e], day = now / kDay, period = groups.period(day);
  const auto value = [&](size_t k, size_t i) {
    const int64_t item = s.items[i];
    if (k == 0) return item;
    const std::vector<int64_t>& map = s.maps[k - 1];
    return item < std::ssize(map) ? map[static_cast<size_t>(item)] : 0;
  };
  const size_t kinds = 1 + s.maps.size();
  Tally everyone, of_item, user;
  std::vector<Tally> same(kinds), others(kinds);
  for (size_t i = 0; i < s.users.size(); ++i) {
    const bool success = s.pools[0][i] != 0;
    if (s.kinds[i] != 0) continue;
    if (s.timestamps[i] / kDay < day) {
      everyone.add(success);
      if (s.items[i] == s.items[e]) of_item.add(success);
    }
    if (s.users[i] != s.users[e] || s.timestamps[i] >= now) continue;
    user.add(success);
    for (size_t k = 0; k < kinds; ++k) {
      const int group = groups.group(period, DayCounts::kItem + k, value(k, e));
      if (value(k, i) == value(k, e)) {
        same[k].add(success);
      } else if (group > 0 && groups.group(period, DayCounts::kItem + k, value(k, i)) == group) {
        others[k].add(success);
      }
    }
  }
  const auto odds = [](double p) { return std::log(p / (1 - p)); };
  Rules rules;
  rules.prior = everyone.all > 0 ? everyone.share(0.5, 1) : 0.5;
  rules.own = user.share(rules.prior, 5);
  double sum = 0;
  for (size_t k = 0; k < kinds; ++k) {
    rules.tastes.push_back(odds(same[k].share(others[k].share(rules.own, 4), 3)));
    rules.others.push_back(std::log1p(static_cast<double>(others[k].all)) / 4);
    sum += rules.tastes.back() / static_cast<double>(kinds);
  }
  const double all = sum + odds(of_item.share(rules.prior, 10)) - odds(rules.prior);
  rules.expected = 1 / (1 + std::exp(-all));
  return rules;
}

/// Numbers of event `e` by the words of the docs, from all events of the store.
std::map<std::string, double> by_the_rules(const TestStore& s, const ValueGroups& groups,
                                           size_t e) {
  const auto odds = [](double p) {
    p = std::clamp(p, 1e-3, 1 - 1e-3);
    return std::log(p / (1 - p));
  };
  const auto count = [](double n) { return std::log1p(n) / 4; };
  const auto day = [](int64_t time) { return time / kDay; };
  const auto value = [&](size_t a, int64_t item) {
    return item < std::ssize(s.maps[a]) ? s.maps[a][static_cast<size_t>(item)] : 0;
  };
  const auto rate = [&](const Tally& t, double prior, double weight) {
    return odds((static_cast<double>(t.positive) + prior * weight) /
                (static_cast<double>(t.all) + weight));
  };
  const int64_t now = s.timestamps[e], item = s.items[e];
  std::vector<size_t> earlier;  // tries of the user
  Tally user, with_item, hour, everyone, of_item;
  std::vector<Tally> with_value(s.maps.size()), of_value(s.maps.size());
  int64_t last_event = -1;
  for (size_t i = 0; i < s.users.size(); ++i) {
    const bool tried = s.kinds[i] == 0, success = s.pools[0][i] != 0;
    if (s.users[i] == s.users[e] && s.timestamps[i] < now) {
      last_event = s.timestamps[i];
      if (tried) {
        earlier.push_back(i);
        user.add(success);
        if (s.items[i] == item) with_item.add(success);
        if (s.timestamps[i] % kDay / 3600 == now % kDay / 3600) hour.add(success);
        for (size_t a = 0; a < s.maps.size(); ++a) {
          if (value(a, s.items[i]) == value(a, item)) with_value[a].add(success);
        }
      }
    }
    if (!tried || day(s.timestamps[i]) >= day(now)) continue;
    everyone.add(success);
    if (s.items[i] == item) of_item.add(success);
    for (size_t a = 0; a < s.maps.size(); ++a) {
      if (value(a, s.items[i]) == value(a, item)) of_value[a].add(success);
    }
  }
  const double prior = everyone.all > 0 ? everyone.share(0.5, 1) : 0.5;
  const double own = user.share(prior, 5);
  Tally session;
  double excess = 0, information = 0;
  int64_t end = now;
  for (size_t i = earlier.size(); i-- > 0;) {
    if (end - s.timestamps[earlier[i]] > 1800) break;
    end = s.timestamps[earlier[i]];
    session.add(s.pools[0][earlier[i]] != 0);
    const double expected = rules_of(s, groups, earlier[i]).expected;
    excess += (s.pools[0][earlier[i]] != 0 ? 1 : 0) - expected;
    information += expected * (1 - expected);
  }
  int64_t recent = 0;
  for (size_t i = 0; i < std::min<size_t>(32, earlier.size()); ++i) {
    recent += s.items[earlier[earlier.size() - 1 - i]] == item;
  }
  const double angle = 2 * std::numbers::pi * static_cast<double>(now % kDay) / kDay;
  std::map<std::string, double> expected = {
      {"user_rate", odds(own)},
      {"user_count", count(static_cast<double>(user.all))},
      {"user_item_rate", rate(with_item, own, 2)},
      {"user_item_count", count(static_cast<double>(with_item.all))},
      {"item_rate", rate(of_item, prior, 10)},
      {"item_count", count(static_cast<double>(of_item.all))},
      {"recent_plays", count(static_cast<double>(recent))},
      {"session_rate", rate(session, own, 2)},
      {"session_count", count(static_cast<double>(session.all))},
      {"user_hour_rate", rate(hour, own, 5)},
      {"hour_sin", std::sin(angle)},
      {"hour_cos", std::cos(angle)},
      {"organic", s.organic[e]},
      {"gap", last_event < 0 ? 0 : count(static_cast<double>(now - last_event))}};
  const Rules rules = rules_of(s, groups, e);
  expected["session_lift"] = excess / (information + 2);
  for (size_t k = 0; k < rules.tastes.size(); ++k) {
    const std::string name = k == 0 ? "item" : k == 1 ? "artist" : "album";
    expected["user_" + name + "_taste"] = rules.tastes[k];
    expected["user_" + name + "_taste_count"] = rules.others[k];
  }
  for (size_t i = 1; i <= 5; ++i) {
    const bool known = earlier.size() >= i;
    const bool success = known && s.pools[0][earlier[earlier.size() - i]] != 0;
    expected["last_" + std::to_string(i)] = !known ? 0 : success ? 1 : -1;
  }
  for (size_t a = 0; a < s.maps.size(); ++a) {
    const std::string name = a == 0 ? "artist" : "album";
    expected["user_" + name + "_rate"] = rate(with_value[a], own, 2);
    expected["user_" + name + "_count"] = count(static_cast<double>(with_value[a].all));
    expected[name + "_rate"] = rate(of_value[a], prior, 10);
    expected[name + "_count"] = count(static_cast<double>(of_value[a].all));
    expected["same_" + name] =
        !earlier.empty() && value(a, s.items[earlier.back()]) == value(a, item);
  }
  return expected;
}

TEST(EventNumbers, AreWhatTheirNamesSay) {
  for (const uint64_t seed : {1, 2, 3}) {
    SCOPED_TRACE(seed);
    // Few values, so that pairs come again, and enough users for groups.
    TestStore s = fresh_store(seed, {.users = 24, .max_events = 150, .items = 12, .days = 4});
    for (std::vector<int64_t>& map : s.maps) {
      for (int64_t& value : map) value %= 4;
    }
    give_tastes(s);
    const ValueGroups groups = groups_of(s);
    const Opened opened(s);
    const std::vector<std::string> names = count_names(s.schema);
    ASSERT_EQ(names.size(), opened.numbers.width());
    bool grouped = false;
    for (int64_t i = 0; i < s.num_events(); ++i) {
      const std::map<std::string, double> expected =
          by_the_rules(s, groups, static_cast<size_t>(i));
      ASSERT_EQ(expected.size(), names.size());
      grouped = grouped || expected.at("user_item_taste_count") > 0;
      const std::span<const float> found = opened.numbers.of_event(0, i);
      for (size_t n = 0; n < names.size(); ++n) {
        ASSERT_NEAR(found[n], expected.at(names[n]), 1e-5) << names[n] << " of event " << i;
      }
    }
    EXPECT_TRUE(grouped);
  }
}

/// Groups are made anew as there are more days with events, not as time goes by.
TEST(EventNumbers, AFewEventsFarFromAllOthersDoNotMatter) {
  for (const int64_t years : {0, 40}) {
    TestStore s = fresh_store(5, {.users = 24, .max_events = 150, .items = 6, .days = 4});
    for (size_t i = 0; i < s.users.size(); ++i) {
      s.kinds[i] = 0;
      s.pools[0][i] = (s.users[i] + s.items[i]) % 2 == 0 ? 1 : 0;
      const bool first = i == static_cast<size_t>(s.user_start[static_cast<size_t>(s.users[i])]);
      s.timestamps[i] = s.users[i] % 2 == 0 && first ? 0 : s.timestamps[i] + years * 365 * kDay;
    }
    s.write({});
    const ValueGroups groups = groups_of(s);
    for (int64_t day = 1; day <= 3; ++day) {
      const int64_t period = groups.period(day + years * 365);
      EXPECT_EQ(period, day + (years > 0 ? 1 : 0));
      EXPECT_GT(groups.group(period, DayCounts::kItem, s.items[0]), 0) << years;
    }
  }
}

/// What happens at or after a time, to the user, and on the same day or later, to others, cannot be
/// seen.
TEST(EventNumbers, TheFutureChangesNothing) {
  for (const uint64_t seed : {11, 12, 13, 14}) {
    SCOPED_TRACE(seed);
    TestStore s = fresh_store(seed, kWithGroups);
    give_tastes(s);
    const int64_t now = s.timestamps[static_cast<size_t>(seed * 7919) % s.timestamps.size()];
    std::vector<std::vector<float>> before;
    {
      const Opened opened(s);
      EXPECT_TRUE(any_groups(opened.log, opened.numbers));
      for (int64_t i = 0; i < s.num_events(); ++i) {
        const std::span<const float> row = opened.numbers.of_event(0, i);
        before.emplace_back(row.begin(), row.end());
      }
    }
    std::vector<bool> may_see(s.users.size());
    for (size_t i = 0; i < s.users.size(); ++i) {
      // Outcomes of the moment itself change, and all of what comes later.
      may_see[i] = s.timestamps[i] <= now;
      if (s.timestamps[i] < now) continue;
      for (auto& pool : s.pools) pool[i] = pool[i] == 0 ? 1 : 0;
      if (s.timestamps[i] == now) continue;
      s.items[i] = (s.items[i] + 1) % kWithGroups.items;
      s.kinds[i] = 0;
      s.organic[i] = s.organic[i] == 0 ? 1 : 0;
    }
    s.write({});
    const Opened opened(s);
    bool other = false;
    for (int64_t i = 0; i < s.num_events(); ++i) {
      const std::span<const float> row = opened.numbers.of_event(0, i);
      const bool same = std::ranges::equal(row, before[static_cast<size_t>(i)]);
      EXPECT_TRUE(same || !may_see[static_cast<size_t>(i)]) << "event " << i;
      other = other || !same;
    }
    EXPECT_TRUE(other) << "what changed must show later";
  }
}

TEST(EventNumbers, ACandidateHasThoseOfAnEventOfItsTime) {
  TestStore s = fresh_store(21, kWithGroups);
  give_tastes(s);
  const Opened opened(s);
  EXPECT_TRUE(any_groups(opened.log, opened.numbers));
  std::vector<float> found(opened.numbers.width()), other(opened.numbers.width());
  EventNumbers::AskedUser asked;
  for (int64_t i = 0; i < s.num_events(); ++i) {
    const auto e = static_cast<size_t>(i);
    CountedEvent candidate;
    candidate.item = s.items[e];
    candidate.time = s.timestamps[e];
    candidate.organic = s.organic[e];  // NOLINT(bugprone-signed-char-misuse): a number
    // Whoever was asked about before, and what.
    for (const int64_t item : {s.items[e] + 1, s.items[e], s.items[e] + 2}) {
      const bool own = item == s.items[e];
      candidate.item = item;
      opened.numbers.of_candidate(asked, s.users[e], candidate, own ? found : other);
    }
    EXPECT_TRUE(std::ranges::equal(found, opened.numbers.of_event(0, i))) << i;
  }
}

/// Ids of a question may be any number where the log's own stay as they are.
TEST(EventNumbers, ACandidateThatNobodyKnows) {
  const TestStore s = fresh_store(22);
  const Opened opened(s);
  const size_t width = opened.numbers.width();
  const auto tried = static_cast<size_t>(s.anchors(0)[0]);
  ASSERT_EQ(s.users[tried], s.users[0]);
  std::vector<float> found(width), unknown(width);
  EventNumbers::AskedUser asked;
  opened.numbers.of_candidate(asked, s.users[0], {.item = 1'000'000, .time = 86400 * 5}, unknown);
  for (const int64_t item :
       {std::numeric_limits<int64_t>::max(), std::numeric_limits<int64_t>::min(), int64_t{-1},
        s.items[tried] + (int64_t{1} << 56)}) {
    opened.numbers.of_candidate(asked, s.users[0], {.item = item, .time = 86400 * 5}, found);
    EXPECT_EQ(found, unknown) << item;
  }
}

TEST(EventNumbers, SamplesCarryThoseThatAreAskedFor) {
  TestStore s = fresh_store(31, {.disjoint_pools = false});
  s.schema.history_numbers = {"gap", "user_rate"};
  s.schema.candidate_numbers = {"item_count"};
  const EventStore store(s.folder, s.schema);
  const GatherConfig config{.history_length = 24, .scan_window = 50, .max_history = 7};
  const Gatherer gatherer(store, config);
  const EventNumbers& numbers = *gatherer.numbers();
  const std::vector<std::string> names = count_names(s.schema);
  const auto place = [&](const char* name) {
    return static_cast<size_t>(std::ranges::find(names, name) - names.begin());
  };
  const std::vector<int64_t> anchors = s.anchors(0);
  std::vector<int64_t> index(anchors.size());
  for (size_t i = 0; i < index.size(); ++i) index[i] = static_cast<int64_t>(i);
  Batch batch;
  for (int again = 0; again < 2; ++again) gatherer.fill(anchors, index, batch);
  batch.validate();
  const std::span<const int64_t> offsets = batch.group("history").offsets.span();
  for (size_t i = 0; i < anchors.size(); ++i) {
    const ExpectedHistory history = expected_history(s, config, anchors[i]);
    ASSERT_EQ(offsets[i + 1] - offsets[i], std::ssize(history.positions));
    for (size_t k = 0; k < history.positions.size(); ++k) {
      const std::span<const float> row = numbers.of_event(0, history.positions[k]);
      const int64_t at = offsets[i] + static_cast<int64_t>(k);
      EXPECT_EQ(batch.float_column("gap").values[at], row[place("gap")]);
      EXPECT_EQ(batch.float_column("user_rate").values[at], row[place("user_rate")]);
    }
    EXPECT_EQ(batch.float_column("item_candidate_item_count").values[static_cast<int64_t>(i)],
              numbers.of_event(0, anchors[i])[place("item_count")]);
  }
}

/// Where events themselves are predicted the last one has its own, and so has a question.
TEST(EventNumbers, LabelledEventsCarryTheirOwn) {
  TestStore s = fresh_store(32);
  s.schema.history_numbers = {"user_item_rate", "gap"};
  const EventStore store(s.folder, s.schema);
  const Gatherer gatherer(
      store, {.history_length = 24, .scan_window = 50, .max_history = 7, .sample_events = 1});
  const EventNumbers& numbers = *gatherer.numbers();
  const std::vector<int64_t> anchors = s.anchors(0);
  std::vector<int64_t> index(anchors.size());
  std::vector<CandidateQuery> questions(anchors.size());
  for (size_t i = 0; i < index.size(); ++i) {
    index[i] = static_cast<int64_t>(i);
    const auto e = static_cast<size_t>(anchors[i]);
    questions[i] = {s.users[e], s.items[e], s.timestamps[e], s.organic[e]};
  }
  Batch events, asked;
  gatherer.fill(anchors, index, events);
  gatherer.fill(questions, asked);
  for (const Batch* const batch : {&events, &asked}) {
    batch->validate();
    const std::span<const int64_t> offsets = batch->group("history").offsets.span();
    for (size_t i = 0; i < anchors.size(); ++i) {
      const std::span<const float> row = numbers.of_event(0, anchors[i]);
      EXPECT_EQ(batch->float_column("user_item_rate").values[offsets[i + 1] - 1], row[2]) << i;
      EXPECT_EQ(batch->float_column("gap").values[offsets[i + 1] - 1], row[13]) << i;
    }
  }
}

/// Times of a store may be any number, also ones whose outcomes no later number could know.
TEST(UserCounts, AnOutcomeBeyondAllTimesIsNotKnown) {
  constexpr int64_t kLast = std::numeric_limits<int64_t>::max();
  const std::vector<std::string> names = count_names({});
  const auto user_count =
      static_cast<size_t>(std::ranges::find(names, "user_count") - names.begin());
  for (const int64_t wait : {int64_t{0}, int64_t{1800}}) {
    UserCounts counts(0, wait);
    counts.add({.time = kLast - 60, .tried = true, .success = true}, {});
    std::vector<float> row(names.size());
    counts.write({.time = kLast}, {}, row);
    EXPECT_EQ(row[user_count] > 0, wait == 0) << wait;
  }
}

/// However far times are apart, a pause is one and its length a number.
TEST(UserCounts, TimesMayBeAnyFarApart) {
  constexpr int64_t kFirst = std::numeric_limits<int64_t>::min();
  const std::vector<std::string> names = count_names({});
  const auto place = [&](const char* name) {
    return static_cast<size_t>(std::ranges::find(names, name) - names.begin());
  };
  UserCounts counts(0);
  counts.add({.time = kFirst, .tried = true, .success = true}, {});
  std::vector<float> row(names.size());
  counts.write({.time = 1}, {}, row);
  EXPECT_NEAR(row[place("gap")], std::log(std::ldexp(1.0, 63)) / 4, 1e-5);
  EXPECT_EQ(row[place("session_count")], 0);
  counts.add({.time = 1, .tried = true}, {});
  counts.write({.time = 2}, {}, row);
  EXPECT_NEAR(row[place("session_count")], std::log(2) / 4, 1e-6);
}

TEST(EventNumbers, StaleAndDamagedFilesAreMadeAgain) {
  TestStore s = fresh_store(41, kWithGroups);
  give_tastes(s);
  const auto rows = [&] {
    const Opened opened(s);
    EXPECT_TRUE(any_groups(opened.log, opened.numbers));
    return all_rows(opened.log, opened.numbers);
  };
  const std::vector<float> first = rows();
  for (const char* const name : {"numbers.idx", "counts.idx", "groups.idx"}) {
    const std::string bytes = base::read_file(s.index(name));
    std::string damaged = bytes;
    damaged[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
    base::put_file(s.index(name), damaged);
    EXPECT_EQ(rows(), first) << name;
    EXPECT_TRUE(base::read_file(s.index(name)) == bytes) << name;
  }
  for (uint8_t& success : s.pools[0]) success = success == 0 ? 1 : 0;
  s.write({});
  EXPECT_NE(rows(), first);
}

/// Rows are written some together, those of one user in parts.
TEST(EventNumbers, AUserMayHaveAnyNumberOfEvents) {
  constexpr int64_t kMany = 150'000;
  TestStore s = fresh_store(43, {.users = 1, .max_events = 1, .items = 50});
  const size_t user = s.unique_users[0], more = kMany - s.users.size();
  for (size_t i = 0; i < more; ++i) {
    s.users.push_back(static_cast<int64_t>(user));
    s.timestamps.push_back(s.timestamps.back() + 600);
    s.items.push_back(static_cast<int64_t>(i * i % 37));
    s.kinds.push_back(0);
    s.played.push_back(0);
    s.organic.push_back(0);
    for (size_t p = 0; p < s.pools.size(); ++p) s.pools[p].push_back(i * i % 3 == p ? 1 : 0);
  }
  s.user_end[user] = kMany;
  s.write({});
  const Opened opened(s);
  std::vector<float> found(opened.numbers.width());
  EventNumbers::AskedUser asked;
  for (const int64_t i : {int64_t{0}, int64_t{1} << 17, kMany - 1}) {
    const auto e = static_cast<size_t>(i);
    const CountedEvent event = {.item = s.items[e], .time = s.timestamps[e]};
    opened.numbers.of_candidate(asked, s.users[e], event, found);
    for (size_t n = 0; n < found.size(); ++n) {
      if (n == place_of(s.schema, "organic")) continue;
      EXPECT_EQ(found[n], opened.numbers.of_event(0, i)[n]) << i << " " << n;
    }
  }
}

/// A segment may bring a map that differs in a few places from the one before.
TEST(EventNumbers, AreThoseOfALargeMapThatChangedInAFewPlaces) {
  constexpr int64_t kFirst = 5000;  // items
  TestStore s = fresh_store(42, {.users = 6, .items = 8});
  for (int64_t& item : s.items) item += kFirst;
  for (std::vector<int64_t>& map : s.maps) map.assign(size_t{1} << 21, 0);
  const auto rows = [&] {
    s.write({});
    const Opened opened(s);
    std::vector<float> all;
    for (int64_t i = 0; i < s.num_events(); ++i) {
      const std::span<const float> row = opened.numbers.of_event(0, i);
      all.insert(all.end(), row.begin(), row.end());
    }
    return all;
  };
  const std::vector<float> alike = rows();
  for (int64_t item = kFirst; item < kFirst + 8; ++item) {
    s.maps[0][static_cast<size_t>(item)] = item;
  }
  const std::vector<float> different = rows();
  EXPECT_NE(different, alike);
  for (const char* const name : {"numbers.idx", "counts.idx"})
    std::filesystem::remove(s.index(name));
  EXPECT_EQ(different, rows());
}

}  // namespace
}  // namespace segue::data
