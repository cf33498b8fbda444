#include "data/prep/event_sorter.h"

#include <algorithm>
#include <random>

#include <gtest/gtest.h>

#include "base/file.h"
#include "base/test_util.h"
#include "data/prep/prep_test_util.h"

namespace segue::data {
namespace {

std::vector<Event> sorted(const std::vector<Event>& events, EventSorterConfig config,
                          int64_t* runs = nullptr) {
  const std::string folder = base::temp_path("runs");
  base::make_folders(folder);
  config.scratch = [folder](const std::string& name) { return folder + "/" + name; };
  EventSorter sorter(config);
  for (size_t i = 0; i < events.size();) {
    const size_t n = std::min<size_t>(events.size() - i, 1 + i % 97);
    sorter.buffer().insert(sorter.buffer().end(), events.begin() + static_cast<std::ptrdiff_t>(i),
                           events.begin() + static_cast<std::ptrdiff_t>(i + n));
    sorter.added();
    i += n;
  }
  const int64_t made = sorter.finish();
  if (runs != nullptr) *runs = made;
  std::vector<Event> all;
  EventBlock some;
  while (sorter.next(some)) all.insert(all.end(), some.events.begin(), some.events.end());
  return all;
}

bool equal(const std::vector<Event>& a, const std::vector<Event>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const Event& x, const Event& y) { return x.key() == y.key(); });
}

TEST(EventSorter, AnyCutGivesTheSameOrder) {
  const std::vector<Event> events = random_log(20000, 5);
  std::vector<Event> wanted = events;
  std::sort(wanted.begin(), wanted.end());
  for (const int64_t run_events : {100000, 20000, 7001, 1000, 150}) {
    for (const int buffers : {2, 4}) {
      int64_t runs = 0;
      const EventSorterConfig config = {.run_events = run_events, .buffers = buffers};
      EXPECT_TRUE(equal(sorted(events, config, &runs), wanted)) << run_events << " " << buffers;
      EXPECT_NEAR(static_cast<double>(runs), 20000.0 / static_cast<double>(run_events),
                  0.6 * 20000.0 / static_cast<double>(run_events) + 1);
    }
  }
}

TEST(EventSorter, SeveralPassesWhenRunsAreMany) {
  const std::vector<Event> events = random_log(20000, 6);
  std::vector<Event> wanted = events;
  std::sort(wanted.begin(), wanted.end());
  // Room for two or three cursors only: 200 runs need passes.
  EXPECT_TRUE(equal(sorted(events, {.run_events = 100, .merge_bytes = 300 << 10}), wanted));
}

TEST(EventSorter, FileOrderAmongTies) {
  std::vector<Event> events = random_log(20000, 7, 3);
  for (size_t i = 0; i < events.size(); ++i) events[i].item = static_cast<int64_t>(i);
  std::vector<Event> wanted = events;
  std::stable_sort(wanted.begin(), wanted.end(), [](const Event& a, const Event& b) {
    return std::pair(a.user, a.time) < std::pair(b.user, b.time);
  });
  for (const int64_t run_events : {100000, 3000, 100}) {
    EXPECT_TRUE(equal(sorted(events, {.run_events = run_events,
                                      .buffers = 3,
                                      .merge_bytes = 300 << 10,
                                      .ties = TieOrder::kFile}),
                      wanted))
        << run_events;
  }
}

TEST(EventSorter, FewEvents) {
  EXPECT_TRUE(sorted({}, {}).empty());
  EXPECT_EQ(sorted(random_log(1, 1), {}).size(), 1U);
}

TEST(EventRuns, EveryFieldComesBack) {
  std::mt19937_64 random(3);
  std::vector<Event> events(3000);
  for (Event& e : events) {
    const int shift = static_cast<int>(random() % 62);
    e.user = static_cast<int64_t>(random() >> 2 >> shift);
    e.time = static_cast<int64_t>(random() >> 2 >> shift);
    e.item = static_cast<int64_t>(random() >> 2 >> shift);
    e.length = static_cast<int32_t>(random()) | (random() % 4 == 0 ? -1 : 0);
    e.kind = static_cast<uint8_t>(random());
    e.organic = static_cast<int8_t>(random());
    const float values[] = {Event::kNoValue, 0.f, 1.f, 0.5f, 49.99f, 1e30f, 16777215.f, 3e9f};
    e.value = values[random() % 8];
  }
  std::vector<Event> wanted = events;
  std::sort(wanted.begin(), wanted.end());
  EXPECT_TRUE(equal(sorted(events, {.run_events = 700}), wanted));
}

}  // namespace
}  // namespace segue::data
