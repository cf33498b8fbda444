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

#include "base/error.h"
#include "base/log.h"
#include "base/progress.h"
#include "cli/commands.h"
#include "cli/output.h"
#include "cli/pair_numbers.h"
#include "cli/parquet.h"
#include "cli/score_table.h"
#include "data/log/event_normalizer.h"
#include "data/log/iso_time.h"
#include "data/log/original_ids.h"
#include "data/log/table_reader.h"
#include "data/store/event_log.h"
#include "train/run/catalogue.h"
#include "train/run/scoring.h"
#include "train/step/metrics.h"

namespace segue::cli {
namespace {

struct ScoreArguments {
  std::string path, out, pairs, users_file, time;
  std::vector<std::string> sets, users;
  std::optional<int64_t> window;
  int64_t top = 20;
  bool ranks() const { return !users.empty() || !users_file.empty(); }
};

/// The users and items of a store by the ids of its log.
struct StoreIds {
  explicit StoreIds(const data::IdMaps& maps) : users(maps, "user"), items(maps, "item") {}
  data::OriginalIds users, items;
};

/// Numbers of what was asked and answered, row by row, until they get their ids.
struct Answers {
  std::vector<int64_t> users, items, times, labels;  // labels: of events alone
  std::vector<data::TableColumn> scores;             // of every task

  explicit Answers(const std::vector<model::TaskConfig>& tasks) {
    for (const model::TaskConfig& task : tasks) scores.push_back({.name = task.name});
  }
  void put(int64_t user, int64_t item, int64_t time) {
    users.push_back(user);
    items.push_back(item);
    times.push_back(time);
  }
  ScoreTable table(const StoreIds& ids, bool labelled) && {
    ScoreTable table = {ids.users.ids_of("user", users),
                        ids.items.ids_of("item", items),
                        {.name = "time", .integers = std::move(times)}};
    if (labelled) table.push_back({.name = "label", .integers = std::move(labels)});
    for (data::TableColumn& column : scores) table.push_back(std::move(column));
    return table;
  }
};

constexpr int64_t kLast = std::numeric_limits<int64_t>::max();

/// A question, in the words of the file, so that errors can name it.
std::string row_of(const std::string& path, size_t row) {
  return fmt::format("{}: row {}", path, row + 1);
}

/// `each` gets every row of a file with these columns, whose values are all there.
template <class Each>
void read_rows(const std::string& path, const std::vector<data::ColumnRequest>& requests,
               const data::TableOptions& options, Each each) {
  const auto reader = data::open_table(path, requests, options);
  data::RawBlock block;
  while (reader->read(block)) {
    for (size_t row = 0; row < block.rows; ++row) {
      const std::string where = row_of(path, static_cast<size_t>(block.first_row) + row);
      for (size_t c = 0; c < requests.size(); ++c) {
        if (block.columns[c].is_valid(row)) continue;
        fail(ErrorCode::kCorrupt, fmt::format("{} has no {}", where, requests[c].name));
      }
      each(block, row, where);
    }
  }
}

/// Seconds since 1970, as integers say them, dates, or timestamps of any unit.
int64_t seconds_of(const data::RawColumn& column, size_t row, const std::string& where) {
  int64_t seconds = 0;
  const double unit = column.unit_seconds > 0 ? column.unit_seconds : 1;
  if (!data::UnitScale(unit).to_seconds(column.integers[row], seconds)) {
    fail(ErrorCode::kOutOfRange,
         fmt::format("{} has the time {}, which is later than any", where, column.integers[row]));
  }
  return seconds;
}

/// Columns user and item, and time if the file has it; otherwise everything that happened counts.
std::vector<data::CandidateQuery> read_pairs(const std::string& path, const StoreIds& ids) {
  data::TableOptions options;
  options.parquet = parquet();
  std::vector<data::ColumnRequest> requests = {{"user", ids.users.role(path, "user", options)},
                                               {"item", ids.items.role(path, "item", options)}};
  const bool with_time = data::has_column(path, "time", options);
  if (with_time) requests.push_back({"time", data::ColumnRole::kTime});
  std::vector<data::CandidateQuery> questions;
  read_rows(
      path, requests, options,
      [&](const data::RawBlock& block, size_t row, const std::string& where) {
        questions.push_back({.user = ids.users.number(block.columns[0], row, where),
                             .item = ids.items.number(block.columns[1], row, where),
                             .time = with_time ? seconds_of(block.columns[2], row, where) : kLast});
      });
  return questions;
}

/// "After the last event" becomes a time that has an hour of day. Error(kOutOfRange) for a user
/// without events.
int64_t settled_time(const data::EventLog& log, int64_t user, int64_t time, const StoreIds& ids,
                     const std::string& where) {
  const int64_t last_event = log.last_event_of(user);
  if (last_event < 0) {
    fail(ErrorCode::kOutOfRange, fmt::format("{}: user {} has no events in {}", where,
                                             ids.users.text(user), log.piece(0).folder()));
  }
  if (time != kLast) return time;
  return std::min(log.at(last_event, &data::EventStore::timestamps), kLast - 1) + 1;
}

/// Times that are legal and yet hardly meant; `where` they were given.
void doubt_times(const data::EventStore& store, const std::vector<data::CandidateQuery>& questions,
                 const std::string& where) {
  constexpr int64_t kYear = 365 * 86400;
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
        where, late, questions.size(), end));
  }
  if (early > 0) {
    base::log_warning(fmt::format(
        "{}: {} of {} times are before the first event of their user, who is scored "
        "without a history; times count seconds, as the store does, whose last is {}, and "
        "may be left out: then all that happened counts",
        where, early, questions.size(), end));
  }
}

/// Users in the order that they were asked for, and where.
struct AskedUser {
  int64_t user = 0;
  std::string where;
};
std::vector<AskedUser> asked_users(const ScoreArguments& arguments, const StoreIds& ids) {
  std::vector<AskedUser> asked;
  for (const std::string& user : arguments.users) {
    asked.push_back({ids.users.number(user, "--user"), "--user"});
  }
  if (arguments.users_file.empty()) return asked;
  data::TableOptions options;
  options.parquet = parquet();
  const std::string& path = arguments.users_file;
  read_rows(path, {{"user", ids.users.role(path, "user", options)}}, options,
            [&](const data::RawBlock& block, size_t row, const std::string& where) {
              asked.push_back({ids.users.number(block.columns[0], row, where), where});
            });
  if (asked.empty()) {
    base::log_warning(fmt::format("{}: has no rows, so nothing is scored; a row is a user", path));
  }
  return asked;
}

int64_t time_of(const std::string& text) {
  int64_t time = kLast;
  if (text.empty() || data::parse_canonical_integer(text, time) ||
      data::parse_iso_time(text, time)) {
    return time;
  }
  fail(ErrorCode::kInvalidArgument,
       fmt::format("--time {}: seconds since 1970, or a date such as 2026-01-31T23:59:59Z", text));
}

/// The best items of the catalogue, user by user.
void rank(const ScoreArguments& arguments, const train::StoreScorer& scorer,
          train::Trainer& trainer, const StoreIds& ids, Answers& answers) {
  const data::EventLog log(scorer.store());
  const std::vector<AskedUser> asked = asked_users(arguments, ids);
  const std::vector<int64_t> items = train::catalogue(scorer.store());
  const int64_t time = time_of(arguments.time);
  std::vector<data::CandidateQuery> questions;  // of every user; an item comes with each answer
  questions.reserve(asked.size());
  for (const AskedUser& a : asked) {
    questions.push_back({.user = a.user, .time = settled_time(log, a.user, time, ids, a.where)});
  }
  doubt_times(scorer.store(), questions, "--time");
  const auto all = static_cast<int64_t>(items.size());
  base::Progress progress("score", all * static_cast<int64_t>(asked.size()), "items");
  int64_t done = 0;
  for (const data::CandidateQuery& q : questions) {
    for (const train::RankedItem& r :
         train::rank_items(trainer, scorer, q.user, q.time, items, arguments.top,
                           [&](int64_t scored) { progress.update(done + scored); })) {
      answers.put(q.user, r.item, q.time);
      for (size_t k = 0; k < r.scores.size(); ++k) {
        answers.scores[k].reals.push_back(r.scores[k]);
      }
    }
    done += all;
  }
  progress.finish();
}

/// Pairs of a file, asked at times of theirs.
std::vector<data::CandidateQuery> asked_pairs(const std::string& path,
                                              const train::StoreScorer& scorer,
                                              const StoreIds& ids) {
  const data::EventStore& store = scorer.store();
  std::vector<data::CandidateQuery> questions = read_pairs(path, ids);
  if (questions.empty()) {
    base::log_warning(
        fmt::format("{}: has no rows, so nothing is scored; a row is a user, an item and, if "
                    "histories are to end there, a time",
                    path));
  }
  read_pair_numbers(path, store.schema(), questions);
  const data::EventLog log(store);
  for (size_t i = 0; i < questions.size(); ++i) {
    data::CandidateQuery& q = questions[i];
    q.time = settled_time(log, q.user, q.time, ids, row_of(path, i));
    q.organic = scorer.organic();
  }
  doubt_times(store, questions, path);
  return questions;
}

/// Anchors of a window, or of what the run holds out.
std::vector<int64_t> asked_events(const ScoreArguments& arguments,
                                  const train::StoreScorer& scorer) {
  std::vector<int64_t> positions = scorer.anchors(arguments.window);
  if (positions.empty()) {
    base::log_warning(
        arguments.window
            ? fmt::format("window {} has no sample, so nothing is scored; name another one",
                          *arguments.window)
            : fmt::format("{} holds out no sample, so nothing is scored; name a window with "
                          "--window N, or set data.stream.eval_window or eval_windows",
                          arguments.path));
  }
  return positions;
}

/// The events of a window, or pairs that somebody brings.
void predict(const ScoreArguments& arguments, const train::StoreScorer& scorer,
             train::Trainer& trainer, const StoreIds& ids, Answers& answers) {
  int64_t total = 0;
  base::Progress progress("score", 0, "samples");
  const auto take = [&](const model::Pass& pass) {
    for (size_t k = 0; k < answers.scores.size(); ++k) {
      const std::span<const float> p = train::of_task(pass.predictions, k, pass.num_labels);
      std::vector<float>& scores = answers.scores[k].reals;
      scores.insert(scores.end(), p.begin(), p.end());
    }
    for (const float label : train::of_task(pass.labels, 0, pass.num_labels)) {
      answers.labels.push_back(static_cast<int64_t>(label));
    }
    total += pass.num_labels;
    progress.update(total);
  };
  if (!arguments.pairs.empty()) {
    const std::vector<data::CandidateQuery> questions = asked_pairs(arguments.pairs, scorer, ids);
    for (const data::CandidateQuery& q : questions) answers.put(q.user, q.item, q.time);
    return scorer.score(trainer, questions, take);
  }
  const data::EventLog log(scorer.store());
  const std::vector<int64_t> positions = asked_events(arguments, scorer);
  for (const int64_t p : positions) {
    answers.put(log.at(p, &data::EventStore::users), log.at(p, &data::EventStore::items),
                log.at(p, &data::EventStore::timestamps));
  }
  scorer.score(trainer, positions, take);
}

void require_output(const ScoreArguments& arguments) {
  if (arguments.out.empty()) {
    if (arguments.ranks()) return;  // a short list, for the terminal
    fail(ErrorCode::kInvalidArgument,
         "--out FILE is required: .csv, .jsonl or .parquet (see `segue score --help`)");
  }
  require_table_format(arguments.out);
  for (const auto& [option, file] :
       {std::pair("--pairs", &arguments.pairs), std::pair("--users", &arguments.users_file)}) {
    std::error_code error;
    if (!file->empty() && std::filesystem::equivalent(arguments.out, *file, error)) {
      fail(ErrorCode::kInvalidArgument,
           fmt::format("--out {} is the file of {}; write to another one", arguments.out, option));
    }
  }
}

void score(const ScoreArguments& arguments) {
  require_output(arguments);
  train::TrainedModel model = train::open_model(arguments.path, arguments.sets);
  const train::StoreScorer scorer(model);
  const StoreIds ids{data::IdMaps(scorer.store().folder())};
  Answers answers(model.trainer->model().tasks());
  if (arguments.ranks()) {
    rank(arguments, scorer, *model.trainer, ids, answers);
  } else {
    predict(arguments, scorer, *model.trainer, ids, answers);
  }
  const size_t rows = answers.users.size();
  const bool labelled = !arguments.ranks() && arguments.pairs.empty();
  const ScoreTable table = std::move(answers).table(ids, labelled);
  if (arguments.out.empty()) return print(csv_text(table));
  write_table(arguments.out, table);
  print(fmt::format("{}: {} scores by {}\n", arguments.out, rows, model.checkpoint));
}

}  // namespace

void add_score(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "score",
      "Predictions of a trained model, for a window or for pairs; the best items of users.");
  command->footer(
      "Ids are those of the log, whatever numbers they have in the store.\n"
      "`segue score RUN --user U --top 20` ranks all items of the log for a user.");
  const auto arguments = std::make_shared<ScoreArguments>();
  command->add_option("path", arguments->path, "run or checkpoint")->required();
  add_sets(*command, arguments->sets);
  command->add_option("--out", arguments->out,
                      "file to write: .csv, .jsonl or .parquet; lists of users go to the terminal "
                      "without it");
  CLI::Option* pairs = command->add_option(
      "--pairs", arguments->pairs,
      "CSV or Parquet file with columns user and item, and time if histories are to end there; "
      "numbers of the log (docs/features.md) by their names");
  CLI::Option* window = command
                            ->add_option("--window", arguments->window,
                                         "number of the window (default: what the run holds out)")
                            ->excludes(pairs);
  CLI::Option* user = command
                          ->add_option("--user", arguments->users,
                                       "rank all items of the log for this user; may be repeated")
                          ->allow_extra_args(false)
                          ->excludes(pairs)
                          ->excludes(window);
  CLI::Option* users =
      command
          ->add_option("--users", arguments->users_file,
                       "the same for the users of a CSV or Parquet file with a column user")
          ->excludes(pairs)
          ->excludes(window);
  command->add_option("--top", arguments->top, "items of each user, the best first")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40))
      ->capture_default_str();
  command->add_option("--time", arguments->time,
                      "when the user is asked: seconds since 1970 or a date (default: just after "
                      "the user's last event)");
  command->callback([arguments, command, user, users] {
    const bool ranks = user->count() > 0 || users->count() > 0;
    if (!ranks && (command->count("--top") > 0 || command->count("--time") > 0)) {
      fail(ErrorCode::kInvalidArgument, "--top and --time go with --user or --users");
    }
    score(*arguments);
  });
}

}  // namespace segue::cli
