// Any layout, same training, with ranks that are processes: under mpirun, and over TCP.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <sstream>
#include <thread>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/file.h"
#include "base/parallel.h"
#include "base/test_util.h"
#include "comm/join/environment.h"
#include "comm/link/frame.h"
#include "comm/process_test_util.h"
#include "train/run/loop.h"
#include "train/step/layouts_test_util.h"

namespace segue::train {
namespace {

using comm::testing::Outcome;
using comm::testing::Settings;

constexpr int64_t kSteps = 100;

/// Numbers in all bits.
std::string to_text(const Trained& trained) {
  std::string text = fmt::format("{:a} {:a}\n", trained.eval_loss, trained.lifetime_auc);
  for (size_t i = 0; i < trained.losses.size(); ++i) {
    text += fmt::format("{:a} {:a}\n", trained.losses[i], trained.norms[i]);
  }
  return text;
}

Trained from_text(const std::string& text) {
  std::istringstream in(text);
  std::string a, b;
  Trained trained;
  if (in >> a >> b) {
    trained.eval_loss = std::strtod(a.c_str(), nullptr);
    trained.lifetime_auc = std::strtod(b.c_str(), nullptr);
  }
  while (in >> a >> b) {
    trained.losses.push_back(std::strtod(a.c_str(), nullptr));
    trained.norms.push_back(std::strtod(b.c_str(), nullptr));
  }
  return trained;
}

/// What one rank does.
TEST(DISABLED_TrainRank, Run) {
  const std::string name = std::getenv("SEGUE_TEST_LAYOUT");
  const std::vector<Layout> all = all_layouts();
  const auto layout = std::ranges::find_if(all, [&](const Layout& l) { return l.name() == name; });
  ASSERT_NE(layout, all.end()) << name;
  base::set_num_threads(1);
  try {
    comm::CommConfig config;
    config.timeout_seconds = 30;
    const std::unique_ptr<comm::World> world = comm::join_world(config);
    const Trained trained = train_layout(*world, *layout, kSteps);
    std::cerr << fmt::format("here is {} of {}\n", world->rank(), world->size());
    if (world->rank() == 0) base::write_file(std::getenv("SEGUE_TEST_OUT"), to_text(trained));
  } catch (const std::exception& error) {
    std::cerr << "failed: " << error.what() << "\n";
    std::exit(1);
  }
}

Layout one_rank(sparse::Wire wire = sparse::Wire::kF32) {
  Layout one;
  one.wire = wire;
  return one;
}

/// Starts the ranks by `start` and compares with one rank in this process.
template <class Start>
void expect_trains_as_one_rank(const Layout& layout, Start start) {
  const std::string out = base::temp_path("trained");
  const Outcome outcome =
      start(layout.ranks, comm::testing::rank_program("DISABLED_TrainRank.Run"),
            Settings{{"SEGUE_TEST_LAYOUT", layout.name()}, {"SEGUE_TEST_OUT", out}});
  ASSERT_EQ(outcome.code, 0) << outcome.text;
  for (int r = 0; r < layout.ranks; ++r) {
    EXPECT_TRUE(base::contains(outcome.text, fmt::format("here is {} of {}", r, layout.ranks)));
  }
  const std::unique_ptr<comm::World> world = comm::self_world();
  const Trained expected = train_layout(*world, one_rank(layout.wire), kSteps);
  const bool exact = layout.wire == sparse::Wire::kF32;
  expect_same_training(from_text(base::read_file(out)), expected, exact ? 1e-5 : 1e-3);
}

std::string name_of(const testing::TestParamInfo<Layout>& info) { return info.param.name(); }

/// Every sharding, every wire, balancer and pipeline on and off, attention whole and split.
std::vector<Layout> layouts_under_mpirun() {
  using sparse::Sharding;
  using sparse::Wire;
  return {
      {1, Sharding::kTable, Wire::kF32, false, true, 1},
      {2, Sharding::kRow, Wire::kF32, true, true, 1},
      {2, Sharding::kColumn, Wire::kF32, false, false, 2},
      {2, Sharding::kTable, Wire::kBf16, true, false, 1},
      {3, Sharding::kTableRow, Wire::kF32, true, true, 1},
      {3, Sharding::kReplicated, Wire::kF32, false, false, 1},
      {4, Sharding::kRow, Wire::kF16, false, true, 1},
      {4, Sharding::kTable, Wire::kF32, true, true, 2},
  };
}

class MpiLayouts : public testing::TestWithParam<Layout> {};
TEST_P(MpiLayouts, TrainAsOneRank) {
  SKIP_WITHOUT_MPIRUN();
  expect_trains_as_one_rank(
      GetParam(), [](int ranks, const std::vector<std::string>& argv, const Settings& settings) {
        return comm::testing::mpirun(ranks, argv, settings);
      });
}
INSTANTIATE_TEST_SUITE_P(Some, MpiLayouts, testing::ValuesIn(layouts_under_mpirun()), name_of);

class TcpLayouts : public testing::TestWithParam<Layout> {};
TEST_P(TcpLayouts, TrainAsOneRank) {
  expect_trains_as_one_rank(
      GetParam(), [](int ranks, const std::vector<std::string>& argv, const Settings& settings) {
        return comm::testing::launch_and_wait({ranks, argv, settings});
      });
}
INSTANTIATE_TEST_SUITE_P(
    Some, TcpLayouts,
    testing::Values(Layout{3, sparse::Sharding::kRow, sparse::Wire::kF32, true, true, 1},
                    Layout{4, sparse::Sharding::kColumn, sparse::Wire::kF32, true, true, 2}),
    name_of);

// ---- a damaged message ----

constexpr int kRanks = 4, kCulprit = 2;

RunConfig damaged_config() {
  Layout layout{kRanks, sparse::Sharding::kRow};
  layout.balance = layout.pipeline = true;
  RunConfig c = layout_config(layout);
  c.train.steps = 100;
  c.train.threads = 1;
  c.train.log_every = 5;
  c.checkpoint.every_steps = 7;
  c.comm.timeout_seconds = 20;
  return c;
}

/// One rank of a run. SEGUE_TEST_DAMAGE: what one of them sends after step 20 is damaged.
TEST(DISABLED_TrainRank, Loop) {
  const std::string folder = std::getenv("SEGUE_TEST_OUT");
  const bool culprit =
      std::getenv("SEGUE_TEST_DAMAGE") != nullptr && comm::read_launch().rank == kCulprit;
  std::atomic<bool> done{false};
  std::thread trouble([&] {
    const std::string metrics = folder + "/metrics.jsonl";
    while (culprit && !done) {
      if (base::exists(metrics) &&
          base::read_file(metrics).find("\"step\": 20,") != std::string::npos) {
        return comm::testing::damage_next_frame();
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
  int code = 0;
  try {
    train_loop(damaged_config(), folder);
  } catch (const Error& error) {
    std::cerr << "failed: " << error.what() << "\n";
    code = 1;
  }
  done = true;
  trouble.join();
  if (code != 0) std::exit(code);
}

enum class By { kSegue, kMpirun };

Outcome train_damaged(By by, const std::string& folder, bool damage) {
  Settings settings{{"SEGUE_TEST_OUT", folder}};
  if (damage) settings.emplace_back("SEGUE_TEST_DAMAGE", "1");
  const std::vector<std::string> program = comm::testing::rank_program("DISABLED_TrainRank.Loop");
  return by == By::kMpirun ? comm::testing::mpirun(kRanks, program, settings)
                           : comm::testing::launch_and_wait({kRanks, program, settings});
}

/// A message is damaged in mid-training; the same command then goes on to the end.
Outcome expect_same_bits_after_damage(By by) {
  const std::string broken = base::temp_path("broken"), straight = base::temp_path("straight");
  const Outcome outcome = train_damaged(by, broken, true);
  EXPECT_TRUE(base::contains(outcome.text, "from rank 2 was damaged on the way"));
  const Outcome again = train_damaged(by, broken, false);
  EXPECT_EQ(again.code, 0) << again.text;
  EXPECT_EQ(train_damaged(By::kSegue, straight, false).code, 0);
  std::vector<std::string> files = {"dense-rank0000"};
  for (int r = 0; r < kRanks; ++r) files.push_back(fmt::format("tables-rank{:04}", r));
  for (const std::string& name : files) {
    const std::string file = "/checkpoints/step-100/" + name + ".safetensors";
    EXPECT_TRUE(base::read_file(broken + file) == base::read_file(straight + file)) << file;
  }
  return outcome;
}

TEST(TcpTraining, ADamagedMessageEndsAllAndTheRunGoesOnInTheSameBits) {
  const Outcome outcome = expect_same_bits_after_damage(By::kSegue);
  EXPECT_EQ(outcome.code, 1) << outcome.text;
  EXPECT_LT(outcome.seconds, base::kSlowness * 15);
  for (const char* start :
       {"failed: ", "rank 1: failed: ", "rank 2: failed: ", "rank 3: failed: "}) {
    EXPECT_TRUE(base::contains(outcome.lines(start), ", step ")) << outcome.text;
  }
}

TEST(SlowMpiTraining, ADamagedMessageEndsAllAndTheRunGoesOnInTheSameBits) {
  SKIP_WITHOUT_MPIRUN();
  const Outcome outcome = expect_same_bits_after_damage(By::kMpirun);
  EXPECT_NE(outcome.code, 0) << outcome.text;
  EXPECT_LT(outcome.seconds, base::kSlowness * 20);
  const std::string said = outcome.lines("failed: ");
  EXPECT_EQ(std::ranges::count(said, '\n'), kRanks) << outcome.text;
  EXPECT_TRUE(base::contains(said, ", step ")) << said;
}

}  // namespace
}  // namespace segue::train
