// Any layout, same training, with ranks that are processes: under mpirun, and over TCP.

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <sstream>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/file.h"
#include "base/parallel.h"
#include "comm/process_test_util.h"
#include "train/layouts_test_util.h"

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

}  // namespace
}  // namespace segue::train
