// What people get wrong when they bring a log of their own: each mistake is refused or warned of,
// in words that say what to do.

#include <cstdint>
#include <cstdlib>
#include <ostream>
#include <string>
#include <vector>

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/file.h"
#include "base/test_util.h"
#include "cli/own_log_test_util.h"
#include "cli/test_util.h"
#include "tensor/device.h"

namespace segue::cli {
namespace {

using base::contains;

struct Mistake {
  std::string name;
  Words arguments;
  int code;
  Words says;  // what is wrong, and what to do
};

// NOLINTNEXTLINE(readability-identifier-naming): GoogleTest calls it so
void PrintTo(const Mistake& m, std::ostream* out) {
  *out << fmt::format("{}", fmt::join(m.arguments, " "));
}

void expect_said(const Mistake& m) {
  const Outcome o = run(own_log().filled(m.arguments));
  const std::string text = o.out + o.err;
  EXPECT_EQ(o.code, m.code) << text;
  for (const std::string& part : m.says) EXPECT_TRUE(contains(text, part));
  EXPECT_EQ(contains(o.err, "segue: error: "), m.code != kExitOk) << text;
}

Words train(Words more) {
  more.insert(more.begin(), {"train", "@/config.toml", "--run", "@new"});
  return more;
}
Words train_with(const std::string& set, Words more = {}) {
  more.insert(more.begin(), {"--set", set});
  return train(std::move(more));
}
/// Of the file in the raw folder, as few words as the mistake needs.
Words prep(const std::string& events, Words more = {}) {
  more.insert(more.begin(), {"prep", "--raw", "@/raw", "--schema", "@/schema.toml", "--out", "@new",
                             "--set", "events=" + events});
  return more;
}

const std::vector<Mistake>& mistakes() {
  static const std::vector<Mistake> kAll = {
      // ---- keys and values ----
      {"UnknownKey",
       train_with("model.layer_count=3"),
       kExitUsage,
       {"unknown key `model.layer_count`", "known here: ", " layers,"}},
      {"UnknownSection",
       train_with("optimiser.lr=0.1"),
       kExitUsage,
       {"unknown key `optimiser.lr`; did you mean `optimizer.lr`?"}},
      {"WrongType",
       train_with("model.layers=two"),
       kExitUsage,
       {"`model.layers` must be an integer, found the string \"two\""}},
      {"SetWithoutValue",
       {"train", "@/config.toml", "--set", "model.layers"},
       kExitUsage,
       {"`model.layers`: expected section.key=value"}},
      {"BrokenToml",
       {"train", "@/broken.toml"},
       kExitUsage,
       {"/broken.toml:1:7: ", "expected ']'"}},
      {"UnknownPrecision",
       train_with("train.precision=fp16"),
       kExitUsage,
       {"must be one of f32, f64, bf16", "did you mean `bf16`?"}},
      {"UnknownCommand",
       {"trian", "@/config.toml"},
       kExitUsage,
       {"there is no command `trian`; did you mean `train`?"}},
      {"UnknownTable",
       train_with("model.item.table=items"),
       kExitUsage,
       {"table `items`, which sparse.tables does not have; did you mean `item`?"}},
      {"NoRoomForAHistory",
       train_with("model.max_seq_len=2"),
       kExitUsage,
       {"model.max_seq_len = 2 leaves no token for a history beside 2 "}},
      {"SchemaAsConfig",
       {"train", "@/schema.toml"},
       kExitUsage,
       {"is the schema of a log, which `segue prep --schema` takes", "see configs/"}},
      {"ConfigAsSchema",
       {"prep", "--raw", "@/raw", "--schema", "@/config.toml", "--out", "@new"},
       kExitUsage,
       {"is the config of a run, which `segue train` takes", "see configs/schemas"}},
      {"BatchOfABillion",
       train_with("data.batch_size=1000000000"),
       kExitUsage,
       {"data.batch_size must be between 1 and 16777216, not 1000000000"}},
      {"PlanForARankWithoutRanks",
       {"plan", "@/config.toml", "--hbm", "1GiB"},
       kExitUsage,
       {"--hbm is what tables of a rank may take; give --ranks N as well"}},
      {"RatesWithoutSimulation",
       {"plan", "@/config.toml", "--ranks", "2", "--rates", "@/rows.jsonl"},
       kExitUsage,
       {"--rates is for --simulate; give that as well"}},
      {"BenchOfNothing",
       {"bench"},
       kExitUsage,
       {"the name of a bench or a subcommand is missing; there is: gemm, layer"}},
      {"MemoryWithoutUnit",
       prep("log.csv", {"--memory", "4"}),
       kExitUsage,
       {"4 bytes were given; sizes have units, such as --memory 4GiB"}},

      // ---- paths ----
      {"NoSuchConfig",
       {"train", "@/config/demo.toml"},
       kExitFile,
       {"no such file; give the path of a TOML file"}},
      {"NoSuchSchema",
       {"prep", "--raw", "@/raw", "--schema", "@/shema.toml", "--out", "@new"},
       kExitFile,
       {"shema.toml: no such file; did you mean `", "/schema.toml`?"}},
      {"NoSuchMarkdown",
       {"bench", "report", "@/none.md"},
       kExitFile,
       {"none.md: no such file; run this in Segue's source folder, or name Markdown files"}},
      {"NoSuchStore",
       train_with("data.store=@/stroe"),
       kExitFile,
       {"no such folder", "(data.store of a config)", "`segue prep`"}},
      {"RawFolderAsStore",
       train_with("data.store=@/raw"),
       kExitFile,
       {"no event store", "`segue prep --raw FOLDER --out STORE` makes one"}},
      {"RawFolderAsStoreOfAnotherSchema",
       {"train", "@/config.toml", "--run", "@new", "--set", "data.store=@/raw", "--set",
        "model.contextual=[{ name = \"nothing\", table = \"item\" }]"},
       kExitFile,
       {"no event store", "`segue prep --raw FOLDER --out STORE` makes one"}},
      {"InspectRawFile",
       {"inspect", "@/raw/log.csv"},
       kExitUsage,
       {"inspect knows event stores", "`segue prep` makes an event store of a raw log"}},
      {"CacheFolderAsStore",
       train_with("data.store=@/store/hstu_cache_L64", {"--steps", "2"}),
       kExitOk,
       {"done: 2 steps"}},
      {"StoreAsRawFolder",
       {"prep", "--raw", "@/store", "--schema", "@/schema.toml", "--out", "@new"},
       kExitFile,
       {"is an event store already; --raw takes the folder of the log", "log.csv"}},
      {"FileAsRawFolder",
       {"prep", "--raw", "@/raw/log.csv", "--schema", "@/schema.toml", "--out", "@new",
        "--min-history", "3"},
       kExitOk,
       {"6000 train events of 150 users"}},
      {"EvalOfNothing",
       {"eval", "@/nowhere"},
       kExitFile,
       {"no checkpoint; give the folder of a run or of one checkpoint"}},
      {"EvalOfAStore",
       {"eval", "@/store"},
       kExitFile,
       {"no checkpoint; give the folder of a run or of one checkpoint"}},
      {"ReportOfAStore",
       {"report", "@/store"},
       kExitFile,
       {"there is no metrics.jsonl", "give a run folder (what `segue train --run DIR` writes)"}},
      {"ScoresAsText",
       {"score", "@/run", "--out", "@new.txt"},
       kExitUsage,
       {"scores are written as .csv, .jsonl or .parquet"}},
      {"RunCannotBeMade",
       {"train", "@/config.toml", "--run", "/proc/x/run"},
       kExitFile,
       {"/proc/x/run: cannot be created", "--run names a folder in a place that can be written"}},
      {"RunIsAFile",
       {"train", "@/config.toml", "--run", "@/config.toml"},
       kExitFile,
       {"cannot be created: Not a directory", "--run names a folder"}},
      {"StoreCannotBeMade",
       {"prep", "--raw", "@/raw", "--schema", "@/schema.toml", "--out", "/proc/store"},
       kExitFile,
       {"cannot be created", "--out names a folder in a place that can be written"}},

      // ---- schemas and rows ----
      {"NoSchema",
       {"prep", "--raw", "@/raw", "--out", "@new"},
       kExitUsage,
       {"describe it with --schema FILE (see configs/schemas)"}},
      {"UnknownColumn",
       prep("log.csv", {"--set", "user=usr"}),
       kExitUsage,
       {"has no column \"usr\" (did you mean \"user\"?); it has: ts, title, clicked, item, user"}},
      {"TextIdsAsTheyAre",
       {"prep", "--raw", "@/texts", "--schema", "@/schema.toml", "--out", "@new", "--set",
        "user_ids=as_is"},
       kExitCorrupt,
       {"/log.csv: row 1: column \"user\" has \"user-0\" where an integer is needed",
        "need user_ids = \"auto\" or \"dense\""}},
      {"UnknownFlag",
       prep("log.csv", {"--set", "flags=[\"klicked\"]"}),
       kExitUsage,
       {"pool \"clicked\": there is no flag \"clicked\"; did you mean \"klicked\"?"}},
      {"UnknownLabelPool",
       prep("log.csv", {"--set", "label_pool=clickd"}),
       kExitUsage,
       {"label_pool: there is no pool \"clickd\"; did you mean \"clicked\"?"}},
      {"UnknownKind",
       {"prep", "--raw", "@/shop", "--schema", "@/shop.toml", "--out", "@new", "--set",
        "kinds=[\"view\", \"cart\"]"},
       kExitUsage,
       {"pool \"bought\": there is no kind \"purchase\"; there are: view, cart"}},
      {"ColumnThatIsNotNamed",
       prep("log.csv", {"--set", "item="}),
       kExitUsage,
       {"item = \"\": name the column that has it", "`segue init --raw`"}},
      {"IdsWithLeadingZeros",
       prep("zeros.csv"),
       kExitCorrupt,
       {"column \"user\" has \"007\" where an integer without leading zeros is needed",
        "say user_ids = \"dense\""}},
      {"IdsThatWereRounded",
       prep("rounded.csv", {"--set", "user_ids=dense"}),
       kExitCorrupt,
       {"column \"user\" has the id 1.2345678901234568e+18 as a floating-point number",
        "write the column as integers or text where the log is made"}},
      {"TimeFormatWithoutADay",
       prep("log.csv", {"--set", "time_format=%H:%M"}),
       kExitUsage,
       {"time_format = \"%H:%M\": a date has %Y (or %y), %m (or %b) and %d"}},
      {"TimesOfAnotherFormat",
       prep("dates.csv"),
       kExitCorrupt,
       {"has \"14.11.2023 22:13\" where a number, or a time such as", "time_format says how"}},
      {"JsonAsLog",
       prep("log.jsonl"),
       kExitUnsupported,
       {"log.jsonl: is JSON; bring Parquet or CSV", "pandas.read_json"}},
      {"ProposalOfJson",
       {"init", "--raw", "@/raw/log.jsonl"},
       kExitFile,
       {"log.jsonl: is JSON; bring Parquet or CSV", "pandas.read_json"}},
      {"EmptyFile",
       prep("empty.csv"),
       kExitCorrupt,
       {"/empty.csv: is empty; a header line and rows are wanted"}},
      {"OnlyAHeader",
       prep("header.csv"),
       kExitCorrupt,
       {"/header.csv: no events", "see `events` of the schema"}},
      {"NegativeTime",
       prep("negative.csv"),
       kExitCorrupt,
       {"row 1: column \"ts\" has the time -5; times are 0 or later; leave such rows out"}},

      // ---- times of another unit ----
      {"MillisecondsAsSeconds",
       prep("ms.csv", {"--min-history", "3"}),
       kExitOk,
       {"times reach up to 17", "is time_unit_seconds of its schema right? (it is 1)"}},
      {"InspectMillisecondsAsSeconds",
       {"inspect", "@/ms"},
       kExitOk,
       {"notes", "times reach up to 17", "is time_unit_seconds of its schema right?"}},
      {"TrainOnMillisecondsAsSeconds",
       train_with("data.store=@/ms", {"--steps", "2"}),
       kExitOk,
       {"/ms: times reach up to 17", "is time_unit_seconds of its schema right?",
        "samples are held out, whose AUC is known to about", "raise data.stream.eval_windows"}},
      {"SecondsAsMilliseconds",
       prep("log.csv", {"--set", "time_unit_seconds=0.001", "--min-history", "3"}),
       kExitOk,
       {"times are from 1970-01-20", "as if seconds were taken for milliseconds",
        "is time_unit_seconds of its schema right? (it is 0.001)"}},
      {"InspectSecondsAsMilliseconds",
       {"inspect", "@/thousandth"},
       kExitOk,
       {"notes", "as if seconds were taken for milliseconds", "time_unit_seconds"}},
      {"TrainOnSecondsAsMilliseconds",
       train_with("data.store=@/thousandth"),
       kExitUsage,
       {"has 1 windows of 86400 s (times are from 1970-01-20", "time_unit_seconds",
        "see window_seconds, eval_window and eval_windows of data.stream"}},
      {"OneRowInTheFuture",
       prep("future.csv", {"--set", "test_seconds=86400", "--set", "train_days=30"}),
       kExitUsage,
       {"none of 6001 events is in the train part", "the log ends at 9999999999",
        "see test_seconds, gap_seconds and train_days of the schema"}},

      // ---- devices and sizes ----
      {"NoSuchGpu", train({"--device", "cuda:99"}), kExitUnsupported, {"use --device cpu"}},
      {"UnknownDevice",
       train({"--device", "gpu"}),
       kExitUsage,
       {"device `gpu` is not known; use cpu, cuda or cuda:N"}},
      {"BatchOfAllThereIs",
       train_with("data.batch_size=400000", {"--steps", "2"}),
       kExitOk,
       {"samples on average, not 400000; lower data.batch_size, or raise "
        "data.stream.window_seconds"}},
      {"BatchLargerThanAWindow",
       train_with("data.batch_size=1000", {"--steps", "3"}),
       kExitOk,
       {"samples on average, not 1000; lower data.batch_size"}},
      {"TableLargerThanTheMachine",
       train_with("sparse.tables.0.rows=400000000000",
                  {"--set", "sparse.tables.0.placement=device"}),
       kExitOutOfMemory,
       {"Lower `rows` in sparse.tables or sparse.dim"}},
      {"TableManyTimesTooLarge",
       train_with("sparse.tables.0.rows=3000000", {"--steps", "2"}),
       kExitOk,
       {"table `item` takes memory for 3000000 rows, and ids of the store need 300; set "
        "sparse.tables.0.rows"}},
      {"TableTooSmall",
       train_with("sparse.tables.1.rows=149"),
       kExitUsage,
       {"sparse.tables.1.rows = 150  (table `user` has 149; `uid` has ids up to 149)",
        "Tables of a run that has begun keep their rows; it goes on with kind = \"dynamic\""}},
      {"TableThatNobodyReads",
       train_with("sparse.tables=[{name=\"item\",rows=300},{name=\"user\",rows=150},{name=\"x\","
                  "rows=10}]",
                  {"--steps", "2"}),
       kExitOk,
       {"table `x` takes memory for 10 rows, and no feature of the model looks it up; remove it"}},
      {"HeadsThatDoNotDivideTheWidth",
       train_with("model.heads=3", {"--steps", "2"}),
       kExitOk,
       {"3 heads, width 16", "done: 2 steps"}},  // head widths are keys of their own
      {"HistoryLongerThanASample",
       train_with("data.gather.history_length=500", {"--steps", "2"}),
       kExitOk,
       {"data.gather.history_length = 500 asks for more events than the 30",
        "are kept; raise "
        "model.max_seq_len"}},

      // ---- what is learnt ----
      {"LearningRateOfAMillion",
       train({"--set", "optimizer.lr=1e6", "--set", "optimizer.sparse_lr=1e6", "--set",
              "optimizer.clip_norm=0"}),
       kExitNumeric,
       {"the loss of task `clicked` is not finite", "Lower optimizer.lr or optimizer.sparse_lr"}},
      {"LabelBitThatNoEventHas",
       train_with("model.tasks.0.bit=64", {"--steps", "2"}),
       kExitOk,
       {"task `clicked`: none of", "have bit 64", "see `bit` in model.tasks"}},
      {"NoSuchWindow",
       {"eval", "@/run", "--window", "99"},
       kExitOutOfRange,
       {"has windows 0 to 4", "not 99"}},
      {"WindowThatWasTrainedOn",
       {"eval", "@/run", "--window", "2"},
       kExitOk,
       {"window 2 is one that the run trains on (0 to ", "without --window it is what the run"}},
      {"PairsInMilliseconds",
       {"score", "@/run", "--pairs", "@/pairs_ms.csv", "--out", "@new.csv"},
       kExitOk,
       {"1 of 1 times are more than a year after the log", "times count seconds"}},
      {"PairsBeforeTheLog",
       {"score", "@/run", "--pairs", "@/pairs_early.csv", "--out", "@new.csv"},
       kExitOk,
       {"1 of 1 times are before the first event of their user", "may be left out"}},
      {"PairsOfAnUnknownItem",
       {"score", "@/run", "--pairs", "@/pairs_unknown.csv", "--out", "@new.csv"},
       kExitOutOfRange,
       {"pairs_unknown.csv: row 2: item 99999 is none of ", "/store, which go up to "}},
      {"PairsOfANegativeItem",
       {"score", "@/run", "--pairs", "@/pairs_negative.csv", "--out", "@new.csv"},
       kExitOutOfRange,
       {"pairs_negative.csv: row 1: item -1 is none of "}},
      {"PairsWithLeadingZeros",
       {"score", "@/run", "--pairs", "@/pairs_zeros.csv", "--out", "@new.csv"},
       kExitCorrupt,
       {"row 2: column \"item\" has \"007\" where an integer without leading zeros is needed",
        "; items of ", " are integers"}},
      {"NoPairs",
       {"score", "@/run", "--pairs", "@/pairs_none.csv", "--out", "@new.csv"},
       kExitOk,
       {"has no rows, so nothing is scored; a row is a user, an item", "0 scores"}},
      {"UserBeforeTheLog",
       {"score", "@/run", "--user", "3", "--top", "2", "--time", "5"},
       kExitOk,
       {"--time: 1 of 1 times are before the first event of their user", "may be left out"}},
      {"UserInMilliseconds",
       {"score", "@/run", "--user", "3", "--top", "2", "--time", "1717286400000"},
       kExitOk,
       {"--time: 1 of 1 times are more than a year after the log", "times count seconds"}},
      {"NoUsers",
       {"score", "@/run", "--users", "@/users_none.csv"},
       kExitOk,
       {"has no rows, so nothing is scored; a row is a user"}},
      {"MlperfLogOfRandomSamples",
       {"train", "configs/random.toml", "--run", "@new", "--set", "mlperf.log=true"},
       kExitUsage,
       {"mlperf.log = true", "name a data.store (`segue synth` makes one)"}},
  };
  return kAll;
}

class Mistakes : public testing::TestWithParam<Mistake> {};

TEST_P(Mistakes, SayWhatToDo) { expect_said(GetParam()); }

INSTANTIATE_TEST_SUITE_P(Own, Mistakes, testing::ValuesIn(mistakes()),
                         [](const auto& of) { return of.param.name; });

TEST(MistakesOf, TheEnvironment) {
  own_log();  // is made without it
  ::setenv("SEGUE_MODEL__LAYRS", "3", 1);
  expect_said({"",
               train({}),
               kExitUsage,
               {"SEGUE_MODEL__LAYRS: unknown key `model.layrs`; did you mean `model.layers`?"}});
  ::unsetenv("SEGUE_MODEL__LAYRS");
}

TEST(MistakesOf, MachinesWithoutAGpu) {
  if (cuda_device_count() > 0) GTEST_SKIP() << "there is one";
  expect_said({"", train({"--device", "cuda"}), kExitUnsupported, {"use --device cpu"}});
}

TEST(MistakesOf, TwoProcessesInOneFolder) {
  const std::string folder = own_log().path("taken");
  base::make_folders(folder);
  const int lock = ::open((folder + "/.lock").c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0644);
  ASSERT_EQ(::flock(lock, LOCK_EX | LOCK_NB), 0);
  expect_said({"",
               {"train", "@/config.toml", "--run", folder},
               kExitUsage,
               {"another process is training in " + folder, "choose another folder with --run"}});
  ::close(lock);
}

/// A config that fails leaves a folder, in which a better one may begin.
TEST(MistakesOf, AConfigIsMendedInTheSameFolder) {
  const std::string folder = own_log().path("mended");
  const Words arguments = {"train", "@/config.toml", "--run", folder, "--steps", "2"};
  Words wrong = arguments;
  wrong.insert(wrong.end(), {"--set", "optimizer.lr=1e300", "--set", "optimizer.clip_norm=0"});
  EXPECT_EQ(run(own_log().filled(wrong)).code, kExitNumeric);
  EXPECT_TRUE(base::exists(folder + "/config.toml"));
  expect_said({"",
               arguments,
               kExitOk,
               {"has saved no step; it begins anew with this config", "done: 2 steps"}});
}

/// A column of scores is called like its task, unless that is what another column is called.
TEST(MistakesOf, ATaskIsCalledLikeAColumnOfScores) {
  const std::string folder = own_log().path("label"), scores = own_log().path("scores.csv");
  const Outcome trained =
      run(own_log().filled({"train", "@/config.toml", "--run", folder, "--steps", "2", "--set",
                            "model.tasks.0.name=label"}));
  ASSERT_EQ(trained.code, kExitOk) << trained.err;
  ASSERT_EQ(run({"score", folder, "--out", scores}).code, kExitOk);
  EXPECT_TRUE(base::read_file(scores).starts_with("user,item,time,label,label_score\n"));
}

/// Views are predicted, and bought is what purchases are: rows of their own. Views are in no pool.
TEST(MistakesOf, LabelsInOtherRowsAreSeenByPrepAndInspect) {
  const std::string store = own_log().path("bought");
  const Words said = {"none of 720 events of the kinds to predict is in label_pool \"bought\"",
                      "an event's own row decides: see anchor_kinds, label_pool",
                      "720 of 1,200 events are in no pool, so they enter no history"};
  expect_said(
      {"",
       {"prep", "--raw", "@/shop", "--schema", "@/shop.toml", "--out", store, "--history", "20"},
       kExitOk,
       said});
  expect_said({"", {"inspect", store}, kExitOk, said});
  expect_said({"",
               {"inspect", store},
               kExitOk,
               {"a smaller --min-history of `segue prep` takes more of them"}});
}

TEST(MistakesOf, PoolsThatShareAHistoryAreSeenByInspect) {
  expect_said({"",
               {"inspect", "@/store", "--history", "16"},
               kExitOk,
               {"at most 8 of each of 2 pools; the newest of any pool would be",
                "data.gather.strategy = \"last_n\""}});
}

/// Many events of one second are lists; a few are chance.
TEST(MistakesOf, ListsOfOneSecondAreSeenByInspectAndInit) {
  const std::string lists = own_log().path("lists");
  ASSERT_EQ(run(own_log().filled({"prep", "--raw", "@/raw/log.csv", "--schema", "@/schema.toml",
                                  "--out", lists, "--history", "64", "--min-history", "3", "--set",
                                  "time_unit_seconds=0.0001"}))
                .code,
            kExitOk);
  for (const std::string& store : {lists, own_log().path("thousandth")}) {
    EXPECT_EQ(contains(run({"inspect", store}).out, "data.gather.same_time = false"),
              store == lists);
    const Outcome proposed = run({"init", store});
    EXPECT_EQ(proposed.code, kExitOk) << proposed.err;
    EXPECT_EQ(contains(proposed.out, "same_time = false"), store == lists);
  }
}

/// What tables need is the largest id and one more, whatever the number of users and items.
TEST(MistakesOf, CountingRowsAreSpared) {
  expect_said({"", {"inspect", "@/store"}, kExitOk, {" 2024-06-01T", " 2024-07-1", "rows needed"}});
  expect_said({"",
               {"inspect", "@/store", "--json"},
               kExitOk,
               {"\"uid\": {\"largest\": 149, \"rows_needed\": 150}",
                "\"item_id\": {\"largest\": 299, \"rows_needed\": 300}"}});
}

}  // namespace
}  // namespace segue::cli
