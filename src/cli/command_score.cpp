#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/progress.h"
#include "cli/commands.h"
#include "cli/output.h"
#include "cli/parquet.h"
#include "cli/score_table.h"
#include "data/log/iso_time.h"
#include "data/log/table_reader.h"
#include "data/store/event_log.h"
#include "train/run/catalogue.h"
#include "train/run/questions.h"
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
  ScoreTable table(const train::Questions& ids, bool labelled) && {
    ScoreTable table = {ids.users().ids_of("user", users),
                        ids.items().ids_of("item", items),
                        {.name = "time", .integers = std::move(times)}};
    if (labelled) table.push_back({.name = "label", .integers = std::move(labels)});
    for (data::TableColumn& column : scores) {
      // A task may be called label.
      while (std::ranges::find(table, column.name, &data::TableColumn::name) != table.end()) {
        column.name += "_score";
      }
      table.push_back(std::move(column));
    }
    return table;
  }
};

std::optional<int64_t> time_of(const std::string& text) {
  if (text.empty()) return std::nullopt;
  int64_t time = 0;
  if (data::parse_canonical_integer(text, time) || data::parse_iso_time(text, time)) return time;
  fail(ErrorCode::kInvalidArgument,
       fmt::format("--time {}: seconds since 1970, or a date such as 2026-01-31T23:59:59Z", text));
}

/// The best items of the catalogue, user by user.
void rank(const ScoreArguments& arguments, const train::StoreScorer& scorer,
          train::Trainer& trainer, const train::Questions& asked, Answers& answers) {
  const std::vector<data::CandidateQuery> questions =
      asked.of_users(arguments.users, arguments.users_file, time_of(arguments.time));
  const std::vector<int64_t> items = train::catalogue(scorer.store());
  const auto all = static_cast<int64_t>(items.size());
  base::Progress progress("score", all * std::ssize(questions), "items");
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
             train::Trainer& trainer, const train::Questions& asked, Answers& answers) {
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
    const std::vector<data::CandidateQuery> questions = asked.pairs(arguments.pairs);
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
  // Now: scores that nobody can write would be lost.
  const std::string folder = std::filesystem::path(arguments.out).parent_path().string();
  if (!folder.empty()) base::make_folders(folder);
}

void score(const ScoreArguments& arguments) {
  require_output(arguments);
  train::TrainedModel model = train::open_model(arguments.path, arguments.sets);
  const train::StoreScorer scorer(model);
  const train::Questions asked(scorer, parquet());
  if (arguments.out.ends_with(".jsonl")) {
    asked.users().require_utf8("--out " + arguments.out);
    asked.items().require_utf8("--out " + arguments.out);
  }
  Answers answers(model.trainer->model().tasks());
  if (arguments.ranks()) {
    rank(arguments, scorer, *model.trainer, asked, answers);
  } else {
    predict(arguments, scorer, *model.trainer, asked, answers);
  }
  const size_t rows = answers.users.size();
  const bool labelled = !arguments.ranks() && arguments.pairs.empty();
  const ScoreTable table = std::move(answers).table(asked, labelled);
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
