#include "data/inspect/store_notes.h"

#include <fmt/format.h>

#include "base/progress.h"
#include "data/inspect/time_span.h"

namespace segue::data {
namespace {

std::string count_text(int64_t count) { return base::with_separators(std::to_string(count)); }

void note_histories(const StoreSummary& s, const LogSchema& schema,
                    std::vector<std::string>& notes) {
  constexpr double kMuchLonger = 1.1;
  const HistorySummary& h = s.history;
  if (h.newest.mean <= kMuchLonger * h.lengths.mean) return;
  const size_t pools = schema.samples().num_history_pools();
  notes.push_back(fmt::format(
      "histories have {:.1f} events on average: at most {} of each of {} pools; the newest of any "
      "pool would be {:.1f} (data.gather.strategy = \"last_n\")",
      h.lengths.mean, h.history_length / static_cast<int64_t>(pools), pools, h.newest.mean));
}

void note_anchors(const StoreSummary& s, std::vector<std::string>& notes) {
  for (const WindowSummary& w : s.windows) {
    if (2 * w.anchors >= s.predicted) continue;
    notes.push_back(fmt::format(
        "{} of {} events of the kinds to predict have the {} earlier ones of their user that make "
        "a sample; a smaller --min-history of `segue prep` takes more of them, and so does "
        "data.stream.min_history",
        count_text(w.anchors), count_text(s.predicted), w.min_history));
  }
}

void note_same_time(const StoreSummary& s, std::vector<std::string>& notes) {
  if (!s.has_lists()) return;
  notes.push_back(fmt::format(
      "{} of {} events of the kinds to predict stand behind another one of their user in the same "
      "second, as the items of one list do; what came of it is in their history unless "
      "data.gather.same_time = false",
      count_text(s.same_time), count_text(s.predicted)));
}

}  // namespace

std::string pools_note(int64_t in_no_pool, int64_t events) {
  constexpr int64_t kMany = 10;  // one event in so many
  if (in_no_pool * kMany < events || in_no_pool == 0) return "";
  return fmt::format(
      "{} of {} events are in no pool, so they enter no history; a pool without kinds, values and "
      "flag takes in every event (`pools` of the schema)",
      count_text(in_no_pool), count_text(events));
}

std::string label_note(int64_t positive, int64_t predicted, const LogSchema& schema) {
  if (schema.label_pool.empty() || predicted == 0 || (positive != 0 && positive != predicted)) {
    return "";
  }
  return fmt::format(
      "{} of {} events of the kinds to predict is in label_pool \"{}\", so there is "
      "nothing to learn; an event's own row decides: see anchor_kinds, label_pool and "
      "the pool's rule in the schema, or `later` there for what follows an event",
      positive == 0 ? "none" : "every one", count_text(predicted), schema.label_pool);
}

std::vector<std::string> notes_about(const StoreSummary& summary, const LogSchema& schema) {
  std::vector<std::string> notes;
  if (summary.events == 0) return notes;
  notes.push_back(doubt_times(summary.first_time, summary.last_time));
  notes.push_back(label_note(summary.positive.value_or(0), summary.predicted, schema));
  notes.push_back(pools_note(summary.in_no_pool, summary.events));
  std::erase(notes, "");
  note_histories(summary, schema, notes);
  note_anchors(summary, notes);
  note_same_time(summary, notes);
  return notes;
}

}  // namespace segue::data
