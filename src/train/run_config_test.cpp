#include "train/run_config.h"

#include <functional>
#include <limits>
#include <string>
#include <tuple>
#include <utility>

#include <gtest/gtest.h>
#include <unistd.h>

#include "base/file.h"
#include "base/test_util.h"
#include "report/mlperf/eval_grid.h"
#include "train/presets.h"
#include "train/run/mlperf_log.h"
#include "train/run/schedule.h"
#include "train/step/random_schema.h"
#include "train/test_util.h"

namespace segue::train {
namespace {

std::string error_text(const std::function<void(RunConfig&)>& change) {
  RunConfig c = tiny_config();
  change(c);
  const auto error = base::error_of([&] { c.validate(); });
  if (!error) return {};
  EXPECT_EQ(error->code(), ErrorCode::kConfig);
  return error->what();
}

base::ConfigSources file(const std::string& path, std::vector<std::string> sets = {}) {
  return {.file = path, .sets = std::move(sets), .use_environment = false};
}

TEST(RunConfigTest, TinyConfigIsValid) { EXPECT_NO_THROW(tiny_config().validate()); }

TEST(RunConfigTest, FeatureWithoutTableSuggestsTheNearest) {
  const std::string text = error_text([](RunConfig& c) { c.model.additional[0].table = "artst"; });
  EXPECT_TRUE(base::contains(text, "model.additional.history `artist`"));
  EXPECT_TRUE(base::contains(text, "`artst`"));
  EXPECT_TRUE(base::contains(text, "did you mean `artist`?"));
}

TEST(RunConfigTest, FeatureWithoutAnyNearTableListsThem) {
  const std::string text = error_text([](RunConfig& c) { c.model.item.table = "zzzzzzzz"; });
  EXPECT_TRUE(base::contains(text, "there is: item, artist, user, hour"));
}

TEST(RunConfigTest, HistoriesThatDoNotFitSayWhatToChange) {
  const std::string text = error_text([](RunConfig& c) { c.data.random.lengths.high = 30; });
  EXPECT_TRUE(base::contains(text, "32 tokens (29 events"));
  EXPECT_TRUE(base::contains(text, "data.random.lengths.high"));
  EXPECT_TRUE(base::contains(text, "raise model.max_seq_len to 32"));
}

TEST(RunConfigTest, InterleavedEventsTakeTwoTokens) {
  RunConfig c = tiny_config();
  c.model.tokens = model::TokenKind::kInterleaved;
  c.data.random.lengths.high = 11;
  EXPECT_NO_THROW(c.validate());  // 2 + 2 * 10 + 1 = 23
  c.data.random.lengths.high = 12;
  EXPECT_THROW(c.validate(), Error);
}

TEST(RunConfigTest, HistoriesWithoutBoundAreAnError) {
  const std::string text = error_text([](RunConfig& c) {
    c.data.random.lengths = {data::DistributionKind::kLognormal, 1, 0, 8, 4};
  });
  EXPECT_TRUE(base::contains(text, "set data.random.lengths.high"));
}

TEST(RunConfigTest, TaskBitThatNoActionHas) {
  const std::string text = error_text([](RunConfig& c) {
    c.model.tokens = model::TokenKind::kInterleaved;
    c.model.labels = model::LabelKind::kEveryItem;
    c.data.random.lengths.high = 5;
    c.model.tasks[1].bit = 64;
  });
  EXPECT_TRUE(base::contains(text, "task `like` asks for bit 64"));
  EXPECT_TRUE(base::contains(text, "model.action.weights = [1, 2, 4]"));
}

TEST(RunConfigTest, ColumnUsedTwice) {
  const std::string text = error_text([](RunConfig& c) { c.model.contextual[1].name = "item"; });
  EXPECT_TRUE(base::contains(text, "column `item`"));
}

TEST(RunConfigTest, TablesThatTheModelLooksUpHaveOneWidth) {
  const std::string text = error_text([](RunConfig& c) { c.sparse.tables[1].dim = 12; });
  EXPECT_TRUE(base::contains(text, "table `artist` has rows of width 12, table `item` of width 8"))
      << text;
  RunConfig c = tiny_config();
  for (sparse::TableConfig& t : c.sparse.tables) t.dim = 12;
  c.sparse.tables.push_back({.name = "unused", .rows = 5, .dim = 3});
  EXPECT_NO_THROW(c.validate());
}

TEST(RunConfigTest, SectionsAreValidated) {
  EXPECT_TRUE(base::contains(error_text([](RunConfig& c) { c.train.steps = -1; }), "train.steps"));
  EXPECT_TRUE(
      base::contains(error_text([](RunConfig& c) { c.train.arena_gib = -1; }), "train.arena_gib"));
  EXPECT_TRUE(base::contains(error_text([](RunConfig& c) { c.model.heads = 0; }), "model.heads"));
  EXPECT_FALSE(error_text([](RunConfig& c) { c.sparse.dim = 0; }).empty());
  EXPECT_FALSE(error_text([](RunConfig& c) { c.optimizer.beta1 = 1; }).empty());
  EXPECT_FALSE(error_text([](RunConfig& c) { c.data.batch_size = 0; }).empty());
}

TEST(RunConfigTest, SizesWhoseProductsOverflowAreRefused) {
  constexpr int64_t kHuge = int64_t{1} << 62;
  using Change = void (*)(RunConfig&);
  const std::pair<const char*, Change> changes[] = {
      {"model.dim", [](RunConfig& c) { c.model.dim = kHuge; }},
      {"model.heads", [](RunConfig& c) { c.model.heads = kHuge; }},
      {"model.qk_dim", [](RunConfig& c) { c.model.qk_dim = kHuge; }},
      {"model.v_dim", [](RunConfig& c) { c.model.v_dim = kHuge; }},
      {"model.layers", [](RunConfig& c) { c.model.layers = kHuge; }},
      {"model.hidden", [](RunConfig& c) { c.model.hidden = kHuge; }},
      {"model.item_hidden", [](RunConfig& c) { c.model.item_hidden = kHuge; }},
      {"model.head_hidden", [](RunConfig& c) { c.model.head_hidden = kHuge; }},
      {"model.max_seq_len", [](RunConfig& c) { c.model.max_seq_len = kHuge; }},
      {"model.position_buckets", [](RunConfig& c) { c.model.position_buckets = kHuge; }},
      {"model.time_buckets", [](RunConfig& c) { c.model.time_buckets = kHuge; }},
      {"model.action.dim", [](RunConfig& c) { c.model.action.dim = kHuge; }},
      {"`dim`, the width of table rows", [](RunConfig& c) { c.sparse.dim = kHuge; }},
      {"data.batch_size", [](RunConfig& c) { c.data.batch_size = kHuge; }},
      {"train.metric_window", [](RunConfig& c) { c.train.metric_window = kHuge; }}};
  for (const auto& [key, change] : changes) {
    EXPECT_TRUE(base::contains(error_text(change), key)) << key;
  }
}

TEST(RunConfigTest, NumbersThatAreNoneAreRefused) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  constexpr double kInf = std::numeric_limits<double>::infinity();
  using Change = void (*)(RunConfig&);
  const std::pair<const char*, Change> changes[] = {
      {"model.time_pi", [](RunConfig& c) { c.model.time_pi = kNan; }},
      {"optimizer.lr", [](RunConfig& c) { c.optimizer.lr = kInf; }},
      {"optimizer.sparse_lr", [](RunConfig& c) { c.optimizer.sparse_lr = kInf; }},
      {"optimizer.weight_decay", [](RunConfig& c) { c.optimizer.weight_decay = kNan; }},
      {"optimizer.weight_decay", [](RunConfig& c) { c.optimizer.weight_decay = -1; }},
      {"optimizer.warmup_start_lr", [](RunConfig& c) { c.optimizer.warmup_start_lr = kNan; }},
      {"optimizer.clip_norm", [](RunConfig& c) { c.optimizer.clip_norm = kInf; }},
      {"optimizer.eps", [](RunConfig& c) { c.optimizer.eps = 1e-320; }},
      {"train.arena_gib", [](RunConfig& c) { c.train.arena_gib = 1e-320; }}};
  for (const auto& [key, change] : changes) {
    EXPECT_TRUE(base::contains(error_text(change), key)) << key;
  }
}

TEST(RunConfigTest, ResolvedConfigReadsBackAsTheSame) {
  const std::string path = base::temp_path("config.toml");
  const std::string text = base::to_toml(tiny_config());
  base::write_file(path, text);
  const RunConfig back = load_run_config(file(path));
  EXPECT_EQ(base::to_toml(back), text);
  EXPECT_EQ(losses_of(back, 3), losses_of(tiny_config(), 3));
}

TEST(RunConfigTest, PresetIsTheStartAndSourcesLieOverIt) {
  const RunConfig c =
      load_run_config(file("configs/yambda-5b.toml", {"model.layers=5", "optimizer.lr=0.5"}));
  const model::Preset preset = model::preset("yambda-5b");
  EXPECT_EQ(c.preset, "yambda-5b");
  EXPECT_EQ(c.model.layers, 5);
  EXPECT_EQ(c.optimizer.lr, 0.5);
  EXPECT_EQ(c.model.contextual.size(), preset.model.contextual.size());
  EXPECT_EQ(c.sparse.dim, preset.tables.dim);
  EXPECT_EQ(c.optimizer.warmup_steps, preset.optimizer.warmup_steps);
}

TEST(RunConfigTest, AConfigThatOnlyNamesAPresetIsThatPreset) {
  RunConfig named = preset_config("hstu-suite-fixed");
  named.preset = "hstu-suite-fixed";
  EXPECT_EQ(base::to_toml(load_run_config(file("configs/hstu-suite.toml"))), base::to_toml(named));
  for (const std::string& name : preset_names()) {
    const RunConfig c = load_run_config(file("configs/hstu-suite.toml", {"preset=" + name}));
    EXPECT_EQ(c.preset, name);
  }
}

TEST(RunConfigTest, SuitesHaveThePublishedShape) {
  const RunConfig fixed = preset_config("hstu-suite-fixed");
  const auto model = make_model(fixed);
  std::vector<int64_t> offsets;
  for (int64_t b = 0; b <= fixed.data.batch_size; ++b) {
    offsets.push_back(b * model->sample_tokens(longest_history(fixed.data.random.lengths), 0));
  }
  EXPECT_EQ(offsets[1], 4099);
  EXPECT_NEAR(model->flops(offsets, true), 63.8925e12, 0.00005e12);
  // Lengths of the others: most are short and a sixth is cut at the end, or all come alike.
  constexpr int kDraws = 20'000;
  for (const auto& [name, mean, longest] :
       {std::tuple("hstu-suite-zipf", 867.0, 0.169), {"hstu-suite-uniform", 2048.5, 1 / 4096.0}}) {
    const RunConfig c = preset_config(name);
    EXPECT_EQ(make_model(c)->most_events(0), 4096) << name;
    const data::Sampler sampler(c.data.random.lengths);
    double sum = 0, cut = 0;
    for (uint64_t i = 0; i < kDraws; ++i) {
      const int64_t length = sampler(1, i);
      EXPECT_GE(length, 1);
      sum += static_cast<double>(length);
      cut += length == 4096;
    }
    EXPECT_NEAR(sum / kDraws, mean, 40) << name;
    EXPECT_NEAR(cut / kDraws, longest, 0.01) << name;
  }
}

/// As the shell's <(...) gives it.
TEST(RunConfigTest, AConfigMayComeThroughAPipe) {
  const std::string text = "preset = \"yambda-5b\"\n[train]\nsteps = 7\n";
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  ASSERT_EQ(::write(ends[1], text.data(), text.size()), static_cast<ssize_t>(text.size()));
  ::close(ends[1]);
  base::ConfigSources sources;
  sources.file = "/dev/fd/" + std::to_string(ends[0]);
  const RunConfig c = load_run_config(sources);
  ::close(ends[0]);
  EXPECT_EQ(c.train.steps, 7);
  EXPECT_EQ(c.sparse.dim, model::preset("yambda-5b").tables.dim);
}

TEST(RunConfigTest, UnknownPresetNamesTheKnownOnes) {
  base::ConfigSources sources;
  sources.sets = {"preset=yambda"};
  sources.use_environment = false;
  const auto error = base::error_of([&] { load_run_config(sources); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::kConfig);
  EXPECT_TRUE(base::contains(error->what(), "yambda-5b"));
}

TEST(RunConfigTest, ShippedConfigsAreValid) {
  for (const char* path :
       {"configs/demo.toml", "configs/random.toml", "configs/mlperf_dlrmv4.toml",
        "configs/gated-interleaved.toml", "configs/yambda-5b.toml", "configs/hstu-suite.toml",
        "configs/micro-dlrm.toml", "configs/matching.toml", "configs/every-item.toml"}) {
    EXPECT_NO_THROW(load_run_config(file(path))) << path;
  }
}

TEST(RunConfigTest, Devices) {
  EXPECT_EQ(choose_device("auto").is_cuda(), cuda_device_count() > 0);
  EXPECT_EQ(choose_device("cpu"), Device::cpu());
  const auto unknown = base::error_of([] { choose_device("tpu"); });
  ASSERT_TRUE(unknown);
  EXPECT_EQ(unknown->code(), ErrorCode::kInvalidArgument);
  const auto gpu = base::error_of([] { choose_device("cuda:1000"); });
  ASSERT_TRUE(gpu);
  EXPECT_EQ(gpu->code(), ErrorCode::kUnsupported);
  EXPECT_TRUE(base::contains(gpu->what(), "--device cpu"));
}

// ---- columns of random batches ----

TEST(RandomSchemaTest, MakesTheColumnsThatTheModelReads) {
  const RunConfig c = tiny_config();
  Batch batch;
  random_batches(c).fill(1, batch);
  for (const char* name :
       {"item", "artist", "action_timestamp", "action_weight", "candidate_item", "candidate_artist",
        "item_query_time", "item_action_weight", "user", "hour"}) {
    EXPECT_NE(batch.find_column(name), nullptr) << name;
  }
  const Batch::Column& candidates = batch.column("candidate_item");
  EXPECT_EQ(candidates.values.size(), c.data.batch_size);
}

TEST(RandomSchemaTest, AnItemHasOneArtistEverywhere) {
  const RunConfig c = tiny_config();
  std::vector<int64_t> artist_of(60, -1);
  Batch batch;
  for (int64_t step = 1; step <= 5; ++step) {
    random_batches(c).fill(step, batch);
    for (const auto& [items, artists] :
         {std::pair("item", "artist"), std::pair("candidate_item", "candidate_artist")}) {
      const HostArray<int64_t>& item = batch.column(items).values;
      const HostArray<int64_t>& artist = batch.column(artists).values;
      for (int64_t i = 0; i < item.size(); ++i) {
        int64_t& known = artist_of[static_cast<size_t>(item[i])];
        if (known < 0) known = artist[i];
        EXPECT_EQ(known, artist[i]);
      }
    }
  }
}

TEST(RandomSchemaTest, LabelsAtEveryItemNeedNoCandidates) {
  RunConfig c = tiny_config();
  c.model.tokens = model::TokenKind::kInterleaved;
  c.model.labels = model::LabelKind::kEveryItem;
  const data::RandomSchema schema = random_schema(*make_model(c), c.sparse);
  for (const data::RandomGroup& group : schema.groups) EXPECT_NE(group.name, "candidates");
}

TEST(RandomSchemaTest, LongestHistory) {
  using data::DistributionKind;
  EXPECT_EQ(longest_history({DistributionKind::kUniform, 1, 10}), 9);
  EXPECT_EQ(longest_history({DistributionKind::kZipfBounded, 1, 10}), 9);
  EXPECT_EQ(longest_history({DistributionKind::kZipf, 1, 10}), 10);
  EXPECT_EQ(longest_history({DistributionKind::kLognormal, 1, 10}), 10);
  EXPECT_EQ(longest_history({DistributionKind::kNormal, 1, 0}), -1);
}

TEST(RandomSchemaTest, LabelsHaveTheBitsOfTheTasks) {
  RunConfig c = tiny_config();
  const auto bits = [&] {
    const data::RandomSchema schema = random_schema(*make_model(c), c.sparse);
    return std::ranges::find(schema.columns, c.model.candidate_label, &data::RandomColumn::name)
        ->bits;
  };
  EXPECT_EQ(bits(), 2);
  c.model.tasks[0].bit = 128;
  EXPECT_EQ(bits(), 8);
}

// Every value that the closed division fixes, as the log will say it.
TEST(RunConfigTest, MlperfConfigIsTheClosedDivision) {
  const RunConfig c = load_run_config(file("configs/mlperf_dlrmv4.toml"));
  const report::MllogHyperparameters h =
      mllog_hyperparameters(c, report::kDlrmv4TrainSamples, report::kDlrmv4EvalSamples);
  EXPECT_EQ(h.global_batch_size, 8192);
  EXPECT_EQ(h.max_sequence_length, 4096);
  EXPECT_EQ(h.opt_base_learning_rate, 1e-6);
  EXPECT_EQ(h.opt_sparse_base_learning_rate, 1e-6);
  EXPECT_EQ(h.opt_adam_beta_1, 0.95);
  EXPECT_EQ(h.opt_adam_beta_2, 0.999);
  EXPECT_EQ(h.opt_adam_epsilon, 1e-8);
  EXPECT_EQ(h.opt_weight_decay, 0);
  EXPECT_EQ(h.opt_gradient_clip_norm, 1);
  EXPECT_EQ(h.opt_learning_rate_warmup_steps, 24000);
  EXPECT_EQ(h.opt_learning_rate_warmup_start_lr, 0);
  EXPECT_EQ(h.opt_sparse_name, "RowWiseAdagrad");
  EXPECT_EQ(h.eval_every_data_pct, 0.001);
  EXPECT_EQ(c.eval.target_auc, 0.75);

  const EvalSchedule schedule =
      eval_schedule(c.eval, report::kDlrmv4TrainSamples, c.data.batch_size);
  EXPECT_EQ(schedule.every_steps, 280);
  int64_t first = 0;
  while (!schedule.due(++first, -1)) continue;
  EXPECT_EQ(first * c.data.batch_size, 57'344'000);
}

}  // namespace
}  // namespace segue::train
