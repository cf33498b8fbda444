#include "report/page/trace_page.h"

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "report/page/html_report.h"
#include "report/page/report_data.h"
#include "report/page/report_page.h"

namespace segue::report {
namespace {

using Json = nlohmann::json;

/// Spans as columns: names once, numbers side by side.
Json track_json(const TraceContents::Track& track, std::map<std::string, size_t>& names) {
  Json start = Json::array(), length = Json::array(), depth = Json::array();
  Json name = Json::array(), facts = Json::array();
  std::vector<int> depths;
  for (const TraceContents::Span& s : track.spans) {
    depths.push_back(s.parent < 0 ? 0 : depths[static_cast<size_t>(s.parent)] + 1);
    start.push_back(s.start_ns);
    length.push_back(s.duration_ns);
    depth.push_back(depths.back());
    name.push_back(names.try_emplace(s.name, names.size()).first->second);
    facts.push_back(s.arguments);
  }
  return {{"label", track.process_name + " · " + track.name},
          {"start", std::move(start)},
          {"length", std::move(length)},
          {"depth", std::move(depth)},
          {"name", std::move(name)},
          {"facts", std::move(facts)}};
}

/// One for each counter: its values lie on top of each other.
Json curves_json(const TraceContents& trace) {
  struct Curve {
    Json at = Json::array(), values = Json::array();  // values: of each time, in the order of keys
    std::vector<std::string> keys;
  };
  std::map<std::string, Curve> curves;
  for (const TraceContents::Counter& c : trace.counters) {
    Curve& curve = curves[fmt::format("{} · {}", c.process_name, c.name)];
    std::vector<double> values(curve.keys.size());
    for (const auto& [key, value] : c.values) {
      const auto place = std::ranges::find(curve.keys, key) - curve.keys.begin();
      if (place == std::ssize(curve.keys)) {
        curve.keys.push_back(key);
        values.push_back(0);
      }
      values[static_cast<size_t>(place)] = value;
    }
    curve.at.push_back(c.at_ns);
    curve.values.push_back(values);
  }
  Json list = Json::array();
  for (auto& [label, curve] : curves) {
    list.push_back(
        {{"name", label}, {"keys", curve.keys}, {"at", curve.at}, {"values", curve.values}});
  }
  return list;
}

std::string data_of(const TraceContents& trace) {
  int64_t begin = std::numeric_limits<int64_t>::max(), end = std::numeric_limits<int64_t>::min();
  Json tracks = Json::array(), flows = Json::array();
  std::map<std::string, size_t> numbers;
  for (const TraceContents::Track& track : trace.tracks) {
    tracks.push_back(track_json(track, numbers));
    for (const TraceContents::Span& s : track.spans) {
      begin = std::min(begin, s.start_ns);
      end = std::max(end, s.end_ns());
    }
  }
  if (begin > end) begin = end = 0;
  for (const TraceContents::Flow& f : trace.flows) {
    flows.push_back({f.from_track, f.from_ns, f.to_track, f.to_ns});
  }
  std::vector<std::string> names(numbers.size());
  for (const auto& [name, number] : numbers) names[number] = name;
  const Json data = {{"begin", begin},   {"end", end},     {"names", names},
                     {"tracks", tracks}, {"flows", flows}, {"curves", curves_json(trace)}};
  return inside_script(data.dump(-1, ' ', false, Json::error_handler_t::replace));
}

}  // namespace

std::string trace_page(const TraceContents& trace, const std::string& title,
                       const std::string& made) {
  return page_head(title, made) +
         "<div class=\"trace\"><div class=\"tools\"><input id=\"search\" type=\"search\" "
         "placeholder=\"find by name\" aria-label=\"find by name\"> <button id=\"whole\" "
         "type=\"button\">Whole trace</button><p class=\"soft\">Wheel: zoom. Drag or shift and "
         "wheel: move. Click: details. Keys: arrows, +, -, Home, Escape.</p></div>\n"
         "<canvas id=\"timeline\" tabindex=\"0\" role=\"img\" aria-label=\"timeline of the "
         "trace\"></canvas>\n<dl id=\"details\" class=\"card\" hidden></dl></div>\n"
         "<noscript><p class=\"soft\">The timeline needs JavaScript.</p></noscript>\n"
         "<script type=\"application/json\" id=\"data\">" +
         data_of(trace) + "</script>\n<script>\n" + std::string(page::kTimeline) +
         "</script>\n</body></html>\n";
}

}  // namespace segue::report
