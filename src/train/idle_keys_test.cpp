#include "train/idle_keys.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "train/run/run_state.h"

namespace segue::train {
namespace {

/// Every key that a config can have: one item in each list.
std::map<std::string, std::string> all_keys() {
  RunConfig config;
  config.model.additional.resize(1);
  config.model.contextual.resize(1);
  config.model.tasks.resize(1);
  config.model.dlrm.features.resize(1);
  config.sparse.tables.resize(1);
  return flat_config(base::to_toml(config));
}

std::vector<std::string> idle(const RunConfig& config, const RunSite& site = {}) {
  std::vector<std::string> keys;
  for (const IdleKey& key : idle_keys(config, site)) {
    EXPECT_FALSE(key.why.empty()) << key.key;
    keys.push_back(key.key);
  }
  return keys;
}

using Keys = std::vector<std::string>;

TEST(IdleKeys, EveryKeyHasARule) {
  for (const auto& [key, value] : all_keys()) {
    const KeyRule* rule = rule_of(key);
    ASSERT_NE(rule, nullptr) << "`" << key
                             << "` is new: say in train/idle_keys.cpp when it has an effect";
    EXPECT_EQ(rule->matters == nullptr, *rule->why == '\0') << key;
  }
}

/// Situations that between them have every key at work, and every conditional one idle.
struct Situation {
  std::string name;
  RunConfig config;
  RunSite site;
};

std::vector<Situation> situations() {
  RunConfig plain;
  plain.model.additional.resize(1);
  plain.model.contextual.resize(1);
  plain.model.tasks.resize(1);
  plain.model.dlrm.features.resize(1);
  plain.sparse.tables.resize(1);
  plain.sparse.tables[0].placement = sparse::TierChoice::kDevice;

  RunConfig busy = plain;
  busy.data.store = "store";
  busy.data.follow = true;
  busy.data.stream.train_share = 0.5;
  busy.data.stream.shuffle_fraction = 1;
  busy.model.attention.window = 8;
  busy.train.precision = Precision::kBf16;
  busy.model.truncation.from_layer = 1;
  busy.sparse.tables[0].kind = sparse::TableKind::kDynamic;
  busy.sparse.tables[0].placement = sparse::TierChoice::kFile;
  busy.sparse.optimizer = ops::RowOptimizer::kAdam;
  busy.optimizer.warmup_steps = 10;
  busy.train.non_finite = NonFinite::kSkip;
  busy.eval.every_share = 0.5;
  busy.publish.folder = "versions";
  busy.mlperf.log = true;
  busy.trace.steps = {1};

  RunConfig dlrm = plain;
  dlrm.model.family = model::Family::kDlrm;
  dlrm.model.dlrm.features[0].of = model::FeatureOf::kEvent;
  dlrm.data.interactions.samples = 10;
  RunConfig bags = dlrm;
  bags.model.dlrm.features[0].of = model::FeatureOf::kSample;

  RunConfig bare = dlrm;
  bare.model.dlrm.dense = "";
  bare.model.dlrm.features[0].of = model::FeatureOf::kCandidate;
  bare.model.tasks[0].kind = ops::TaskKind::kRegression;
  bare.data.random.lengths.kind = data::DistributionKind::kUniform;
  bare.eval.at_end = false;
  bare.checkpoint.every_seconds = 0;
  bare.sparse.optimizer = ops::RowOptimizer::kSgd;
  bare.sparse.tables[0].optimizer = sparse::OptimizerChoice::kSgd;
  bare.sparse.tables[0].dim = 4;
  bare.sparse.tables[0].init_bound = 0.1;
  bare.sparse.tables[0].kind = sparse::TableKind::kDynamic;
  bare.sparse.tables[0].max_rows = 10;

  RunConfig random = plain;
  random.data.random.lengths.kind = data::DistributionKind::kNormal;
  random.data.random.match = 1;
  random.model.numeric.columns = {"price"};
  random.trace.repeat = 2;
  return {{"plain", plain, {}},   {"ranks", plain, {2, false}},
          {"random", random, {}}, {"store, ranks, GPU", busy, {4, true}},
          {"dlrm", dlrm, {}},     {"bags", bags, {}},
          {"bare", bare, {}}};
}

/// One test walks all switches: each is at work somewhere, and where it is not the run says so.
TEST(IdleKeys, EveryConditionalKeyIsAtWorkSomewhereAndIdleSomewhereElse) {
  std::map<std::string, std::set<bool>> seen;
  for (const Situation& s : situations()) {
    for (const auto& [key, value] : flat_config(base::to_toml(s.config))) {
      const KeyRule* rule = rule_of(key);
      ASSERT_NE(rule, nullptr) << key;
      if (rule->matters != nullptr) seen[key].insert(rule->matters({s.config, s.site, 0}));
    }
  }
  for (const auto& [key, at_work] : seen) {
    EXPECT_EQ(at_work.size(), 2U) << key << " is always "
                                  << (at_work.contains(true) ? "at work" : "idle");
  }
}

TEST(IdleKeys, OnlyWhatWasSetIsSaid) {
  RunConfig config;
  EXPECT_EQ(idle(config), Keys{});
  config.model.dlrm.top = {64};
  config.balance.mode = balance::PartitionMode::kReference;
  config.mlperf.org = "somebody";
  config.model.attention.kernel = attention::Kernel::kPortable;
  EXPECT_EQ(idle(config),
            (Keys{"balance.mode", "mlperf.org", "model.attention.kernel", "model.dlrm.top"}));
  EXPECT_EQ(idle(config, {.ranks = 2, .gpu = true}), (Keys{"mlperf.org", "model.dlrm.top"}));
  config.mlperf.log = true;
  EXPECT_EQ(idle(config, {.ranks = 2, .gpu = true}), Keys{"model.dlrm.top"});
}

TEST(IdleKeys, ItemsOfListsAreJudgedOneByOne) {
  RunConfig config;
  config.sparse.tables.resize(2);
  config.sparse.tables[0].evict = sparse::Evict::kLfu;
  config.sparse.tables[1].evict = sparse::Evict::kLfu;
  config.sparse.tables[1].kind = sparse::TableKind::kDynamic;
  EXPECT_EQ(idle(config), Keys{"sparse.tables.0.evict"});
}

TEST(IdleKeys, ValuesOfAPresetAreNotTheUsers) {
  RunConfig config = load_run_config({.sets = {"preset=yambda-5b"}, .use_environment = false});
  EXPECT_EQ(idle(config, {.ranks = 8, .gpu = true}), Keys{});
  // A run's own config.toml says everything, and no more than that.
  const RunConfig again = recorded_config(base::to_toml(config));
  EXPECT_EQ(idle(again, {.ranks = 8, .gpu = true}), Keys{});
}

TEST(IdleKeys, ShippedConfigsSetNothingInVain) {
  size_t configs = 0;
  for (const auto& entry : std::filesystem::directory_iterator("configs")) {
    if (entry.path().extension() != ".toml") continue;
    ++configs;
    const RunConfig config =
        load_run_config({.file = entry.path().string(), .use_environment = false});
    EXPECT_EQ(idle(config, {.ranks = 8, .gpu = true}), Keys{}) << entry.path();
    EXPECT_LE(idle(config).size(), 2U)
        << entry.path() << fmt::format(": {}", fmt::join(idle(config), " "));
  }
  EXPECT_GT(configs, 4U);
}

}  // namespace
}  // namespace segue::train
