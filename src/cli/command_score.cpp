#include <algorithm>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/json_line.h"
#include "base/log.h"
#include "base/progress.h"
#include "cli/commands.h"
#include "cli/output.h"
#include "cli/pair_numbers.h"
#include "cli/parquet.h"
#include "data/log/table_reader.h"
#include "train/run/scoring.h"
#include "train/step/metrics.h"

namespace segue::cli {
namespace {

struct ScoreArguments {
  std::string path, out, pairs;
  std::vector<std::string> sets;
  std::optional<int64_t> window;
};

using Columns = std::vector<data::TableColumn>;

std::string csv_text(const Columns& columns) {
  std::string text;
  for (const data::TableColumn& c : columns) text += (text.empty() ? "" : ",") + c.name;
  text += '\n';
  for (size_t row = 0; row < columns.front().size(); ++row) {
    for (size_t c = 0; c < columns.size(); ++c) {
      if (c > 0) text += ',';
      text += columns[c].is_real() ? fmt::format("{}", columns[c].reals[row])
                                   : std::to_string(columns[c].integers[row]);
    }
    text += '\n';
  }
  return text;
}

std::string jsonl_text(const Columns& columns) {
  std::string text;
  for (size_t row = 0; row < columns.front().size(); ++row) {
    nlohmann::ordered_json line;
    for (const data::TableColumn& c : columns) {
      if (c.is_real()) {
        line[c.name] = static_cast<double>(c.reals[row]);
      } else {
        line[c.name] = c.integers[row];
      }
    }
    text += base::json_line(line) + "\n";
  }
  return text;
}

enum class Format { kCsv, kJsonl, kParquet };

Format format_of(const std::string& path) {
  if (path.ends_with(".csv")) return Format::kCsv;
  if (path.ends_with(".jsonl")) return Format::kJsonl;
  if (!path.ends_with(".parquet")) {
    fail(ErrorCode::kInvalidArgument,
         fmt::format("--out {}: scores are written as .csv, .jsonl or .parquet", path));
  }
  if (parquet() == nullptr) {
    fail(ErrorCode::kUnsupported,
         "this segue was built without Parquet; write .csv or .jsonl instead");
  }
  return Format::kParquet;
}

void write(const std::string& path, Format format, const Columns& columns) {
  if (format == Format::kParquet) return parquet()->write_table(path, columns);
  base::write_file(path, format == Format::kCsv ? csv_text(columns) : jsonl_text(columns));
}

/// Columns user and item, and time if the file has it; otherwise everything that happened counts.
std::vector<data::CandidateQuery> read_pairs(const std::string& path) {
  data::TableOptions options;
  options.parquet = parquet();
  std::vector<data::ColumnRequest> requests = {{"user"}, {"item"}, {"time"}};
  std::unique_ptr<data::TableReader> reader;
  try {
    reader = data::open_table(path, requests, options);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kConfig) throw;
    requests.pop_back();
    reader = data::open_table(path, requests, options);
  }
  const bool with_time = requests.size() == 3;
  std::vector<data::CandidateQuery> questions;
  data::RawBlock block;
  while (reader->read(block)) {
    for (size_t row = 0; row < block.rows; ++row) {
      for (size_t c = 0; c < requests.size(); ++c) {
        if (block.columns[c].is_valid(row)) continue;
        fail(ErrorCode::kCorrupt,
             fmt::format("{}: row {} has no {}", path,
                         block.first_row + static_cast<int64_t>(row) + 1, requests[c].name));
      }
      data::CandidateQuery q;
      q.user = block.columns[0].integers[row];
      q.item = block.columns[1].integers[row];
      q.time = with_time ? block.columns[2].integers[row] : std::numeric_limits<int64_t>::max();
      questions.push_back(q);
    }
  }
  return questions;
}

/// "After the last event" becomes a time that has an hour of day.
void settle_times(const data::EventStore& store, std::vector<data::CandidateQuery>& questions) {
  constexpr int64_t kLast = std::numeric_limits<int64_t>::max();
  const data::EventLog log(store);
  for (data::CandidateQuery& q : questions) {
    if (q.time != kLast) continue;
    const int64_t last_event = log.last_event_of(q.user);
    q.time = last_event < 0
                 ? 0
                 : std::min(log.at(last_event, &data::EventStore::timestamps), kLast - 1) + 1;
  }
}

/// What is legal and yet hardly meant.
void doubt_times(const data::EventStore& store, const std::vector<data::CandidateQuery>& questions,
                 const std::string& path) {
  constexpr int64_t kYear = 365 * 86400;
  if (questions.empty()) {
    base::log_warning(
        fmt::format("{}: has no rows, so nothing is scored; a row is a user, an item and, if "
                    "histories are to end there, a time",
                    path));
  }
  const data::EventLog log(store);
  const int64_t end = log.last_time();
  int64_t late = 0, early = 0;
  for (const data::CandidateQuery& q : questions) {
    late += q.time > end && q.time - end > kYear ? 1 : 0;
    const std::vector<int64_t> events = log.events_of(q.user);
    early += !events.empty() && q.time <= log.at(events.front(), &data::EventStore::timestamps);
  }
  if (late > 0) {
    base::log_warning(fmt::format(
        "{}: {} of {} times are more than a year after the log, which ends at {}; times count "
        "seconds, as the store does, and may be left out: then all that happened counts",
        path, late, questions.size(), end));
  }
  if (early > 0) {
    base::log_warning(fmt::format(
        "{}: {} of {} times are before the first event of their user, who is scored "
        "without a history; times count seconds, as the store does, whose last is {}, and "
        "may be left out: then all that happened counts",
        path, early, questions.size(), end));
  }
}

void score(const ScoreArguments& arguments) {
  const Format format = format_of(arguments.out);
  std::error_code error;
  if (!arguments.pairs.empty() &&
      std::filesystem::equivalent(arguments.out, arguments.pairs, error)) {
    fail(ErrorCode::kInvalidArgument,
         fmt::format("--out {} is the file of --pairs; write to another one", arguments.out));
  }
  train::TrainedModel model = train::open_model(arguments.path, arguments.sets);
  const train::StoreScorer scorer(model.config);
  const data::EventStore& store = scorer.store();
  const std::vector<model::TaskConfig>& tasks = model.trainer->model().tasks();
  Columns columns = {{"user", {}, {}}, {"item", {}, {}}, {"time", {}, {}}};
  const size_t first_score = arguments.pairs.empty() ? 4 : 3;
  if (arguments.pairs.empty()) columns.push_back({"label", {}, {}});
  for (const model::TaskConfig& task : tasks) columns.push_back({task.name, {}, {}});

  size_t total = 0;
  base::Progress progress("score", 0, "samples");
  const auto take = [&](const model::Pass& pass) {
    for (size_t k = 0; k < tasks.size(); ++k) {
      const std::span<const float> p = train::of_task(pass.predictions, k, pass.num_labels);
      std::vector<float>& scores = columns[first_score + k].reals;
      scores.insert(scores.end(), p.begin(), p.end());
    }
    if (first_score == 4) {
      for (const float label : train::of_task(pass.labels, 0, pass.num_labels)) {
        columns[3].integers.push_back(static_cast<int64_t>(label));
      }
    }
    total += static_cast<size_t>(pass.num_labels);
    progress.update(static_cast<int64_t>(total));
  };
  const auto put = [&](int64_t user, int64_t item, int64_t time) {
    columns[0].integers.push_back(user);
    columns[1].integers.push_back(item);
    columns[2].integers.push_back(time);
  };
  if (arguments.pairs.empty()) {
    const std::vector<int64_t> positions = scorer.anchors(arguments.window);
    const data::EventLog log(store);
    for (const int64_t p : positions) {
      put(log.at(p, &data::EventStore::users), log.at(p, &data::EventStore::items),
          log.at(p, &data::EventStore::timestamps));
    }
    scorer.score(*model.trainer, positions, take);
  } else {
    std::vector<data::CandidateQuery> questions = read_pairs(arguments.pairs);
    read_pair_numbers(arguments.pairs, store.schema(), questions);
    settle_times(store, questions);
    doubt_times(store, questions, arguments.pairs);
    for (const data::CandidateQuery& q : questions) put(q.user, q.item, q.time);
    scorer.score(*model.trainer, questions, take);
  }
  write(arguments.out, format, columns);
  print(fmt::format("{}: {} scores by {}\n", arguments.out, total, model.checkpoint));
}

}  // namespace

void add_score(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("score", "Predictions of a trained model, for a window or for pairs.");
  const auto arguments = std::make_shared<ScoreArguments>();
  command->add_option("path", arguments->path, "run or checkpoint")->required();
  add_sets(*command, arguments->sets);
  command->add_option("--out", arguments->out, "file to write: .csv, .jsonl or .parquet")
      ->required();
  CLI::Option* pairs = command->add_option(
      "--pairs", arguments->pairs,
      "CSV or Parquet file with columns user and item, and time if histories are to end there; "
      "numbers of the log (docs/features.md) by their names");
  command
      ->add_option("--window", arguments->window,
                   "number of the window (default: what the run holds out)")
      ->excludes(pairs);
  command->callback([arguments] { score(*arguments); });
}

}  // namespace segue::cli
