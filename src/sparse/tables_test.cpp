#include "sparse/tables.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.h"
#include "ops/rows.h"
#include "sparse/tables_test_util.h"

namespace segue::sparse {
namespace {

using namespace test;

// ---- config ------------------------------------------------------------------------------------

TEST(TablesConfigTest, ValidateNamesTheMistake) {
  const auto message = [](auto&& change) {
    TablesConfig config = two_tables();
    change(config);
    return message_of(ErrorCode::kConfig, [&] { config.validate(); });
  };
  two_tables().validate();
  EXPECT_TRUE(contains(message([](auto& c) { c.tables.clear(); }), "no embedding tables"));
  EXPECT_TRUE(contains(message([](auto& c) { c.dim = 0; }), "`dim`"));
  EXPECT_TRUE(contains(message([](auto& c) { c.tables[1].name = ""; }), "table 1"));
  EXPECT_TRUE(contains(message([](auto& c) { c.tables[1].name = "item"; }), "called `item`"));
  EXPECT_TRUE(contains(message([](auto& c) { c.tables[1].rows = 0; }), "table `artist`: `rows`"));
  EXPECT_TRUE(contains(message([](auto& c) { c.tables[1].rows = INT64_MAX / 8; }), "`rows`"));
  EXPECT_TRUE(contains(message([](auto& c) { c.tables[0].init_bound = -1; }), "`init_bound`"));
  EXPECT_TRUE(contains(message([](auto& c) { c.tables[0].init_bound = NAN; }), "`init_bound`"));
  EXPECT_TRUE(contains(message([](auto& c) { c.eps = -1; }), "`eps`"));
  EXPECT_TRUE(contains(message([](auto& c) { c.beta2 = 1; }), "`beta2`"));
  EXPECT_TRUE(contains(message([](auto& c) { c.tables[1].dim = -1; }), "table `artist`: `dim`"));
  EXPECT_TRUE(contains(message([](auto& c) { c.tables[1].dim = 1 << 17; }), "`artist`: `dim`"));
  // Rows are limited by the table's own width.
  EXPECT_TRUE(contains(message([](auto& c) {
                         c.tables[1].dim = 1 << 16;
                         c.tables[1].rows = int64_t{1} << 44;
                       }),
                       "table `artist`: `rows`"));
}

TEST(TablesConfigTest, ResolvedConfigReadsBackEqual) {
  TablesConfig config = two_tables();
  config.optimizer = ops::RowOptimizer::kAdam;
  config.out_of_range = OutOfRange::kZero;
  config.forward_wire = Wire::kF16;
  config.backward_wire = Wire::kBf16;
  const std::string text = base::to_toml(config);
  for (const char* part : {"\"adam\"", "\"zero\"", "\"f16\"", "\"bf16\"", "\"artist\"", "50"}) {
    EXPECT_TRUE(contains(text, part)) << part << " in\n" << text;
  }
  base::ConfigSources sources;
  sources.use_environment = false;
  sources.sets = {"optimizer=sgd", "dim=8", "tables.1.rows=7", "tables.1.dim=3",
                  "tables.1.optimizer=adam"};
  base::load_config(config, sources);
  EXPECT_EQ(config.dim_of(config.tables[0]), 8);
  EXPECT_EQ(config.dim_of(config.tables[1]), 3);
  EXPECT_EQ(config.optimizer_of(config.tables[0]), ops::RowOptimizer::kSgd);
  EXPECT_EQ(config.optimizer_of(config.tables[1]), ops::RowOptimizer::kAdam);
  EXPECT_EQ(config.optimizer, ops::RowOptimizer::kSgd);
  EXPECT_EQ(config.dim, 8);
  EXPECT_EQ(config.tables[1].rows, 7);
  EXPECT_EQ(config.tables[1].name, "artist");
  sources.sets = {"out_of_range=ignore"};
  EXPECT_TRUE(contains(message_of(ErrorCode::kConfig, [&] { base::load_config(config, sources); }),
                       "clamp"));
}

TEST(TablesTest, UnknownTableSuggestsTheNearest) {
  const Tables tables(two_tables(), Device::cpu(), DType::kF32, 1);
  EXPECT_EQ(tables.id("artist"), TableId{1});
  EXPECT_TRUE(contains(message_of(ErrorCode::kConfig, [&] { (void)tables.id("artists"); }),
                       "no table `artists`; did you mean `artist`?"));
  EXPECT_TRUE(contains(message_of(ErrorCode::kConfig, [&] { (void)tables.id("xxxxxxxxxxxxx"); }),
                       "there is: item, artist"));
}

// ---- initial values ----------------------------------------------------------------------------

TEST(TablesTest, InitIsAFunctionOfSeedNameRowAndColumn) {
  TablesConfig config = two_tables();
  for (TableConfig& table : config.tables) table.init_bound = 0.25;
  const Tables a(config, Device::cpu(), DType::kF32, 1);

  TablesConfig changed = config;  // another order, another number of rows
  std::swap(changed.tables[0], changed.tables[1]);
  changed.tables[1].rows = 80;
  const Tables b(changed, Device::cpu(), DType::kF32, 1);
  EXPECT_EQ(bytes_of(a.table(a.id("item")).resident().weights),
            bytes_of(b.table(b.id("item")).resident().weights.rows(0, 50)));
  EXPECT_EQ(bytes_of(a.table(a.id("artist")).resident().weights),
            bytes_of(b.table(b.id("artist")).resident().weights));

  const Tables other_seed(config, Device::cpu(), DType::kF32, 2);
  EXPECT_NE(bytes_of(a.table(TableId{0}).resident().weights),
            bytes_of(other_seed.table(TableId{0}).resident().weights));
  EXPECT_NE(bytes_of(a.table(a.id("item")).resident().weights.rows(0, 20)),
            bytes_of(a.table(a.id("artist")).resident().weights));
}

TEST(TablesTest, InitMayGoByTheWidthOfARow) {
  TablesConfig config = two_tables();
  config.init_scale = TablesConfig::InitScale::kWidth;
  config.tables[1].init_bound = 0.01;
  const Tables tables(config, Device::cpu(), DType::kF32, 1);
  const double bounds[] = {1 / std::sqrt(static_cast<double>(config.dim)), 0.01};
  for (size_t t = 0; t < 2; ++t) {
    double largest = 0;
    for (const double w : values_of(tables.table(static_cast<TableId>(t)).resident().weights)) {
      largest = std::max(largest, std::abs(w));
    }
    EXPECT_LE(largest, bounds[t]);
    EXPECT_GT(largest, 0.9 * bounds[t]);
  }
}

TEST(TablesTest, InitIsUniformWithinOneOverRootRows) {
  TablesConfig config;
  config.tables = {{"item", 400, 0}};
  config.dim = 32;
  const Tables tables(config, Device::cpu(), DType::kF32, 3);
  const double bound = 1 / std::sqrt(400.0);
  double largest = 0, sum = 0, squares = 0;
  const std::vector<double> values = values_of(tables.table(TableId{0}).resident().weights);
  for (const double w : values) {
    largest = std::max(largest, std::abs(w));
    sum += w;
    squares += w * w;
  }
  const auto n = static_cast<double>(values.size());
  EXPECT_LE(largest, bound);
  EXPECT_GT(largest, 0.99 * bound);
  EXPECT_NEAR(sum / n, 0, 4 * bound / std::sqrt(3 * n));  // four standard errors
  EXPECT_NEAR(squares / n, bound * bound / 3, 0.05 * bound * bound);
  for (const double s : values_of(tables.table(TableId{0}).resident().state)) ASSERT_EQ(s, 0);
}

TEST(TablesTest, BytesAddUpByOptimizer) {
  TablesConfig config = two_tables();
  const int64_t weights = 70 * 6 * 4;
  const std::pair<ops::RowOptimizer, int64_t> expected[] = {
      {ops::RowOptimizer::kRowwiseAdagrad, 70 * 4},
      {ops::RowOptimizer::kAdagrad, weights},
      {ops::RowOptimizer::kSgd, 0},
      {ops::RowOptimizer::kAdam, 2 * weights}};
  const int64_t before = Buffer::live_bytes(Purpose::kOptimizer);
  for (const auto& [optimizer, state] : expected) {
    config.optimizer = optimizer;
    const Tables tables(config, Device::cpu(), DType::kF32, 1);
    EXPECT_EQ(tables.bytes(), weights + state);
    const int64_t held = Buffer::live_bytes(Purpose::kOptimizer) - before;
    EXPECT_GE(held, state);
    EXPECT_LE(held, state + 2 * 255);  // both begin on lines of their own
  }
}

TEST(TablesTest, ATableMayHaveItsOwnWidthAndOptimizer) {
  using ops::RowOptimizer;
  constexpr OptimizerChoice kChoices[] = {OptimizerChoice::kRowwiseAdagrad,
                                          OptimizerChoice::kAdagrad, OptimizerChoice::kSgd,
                                          OptimizerChoice::kAdam};
  for (size_t choice = 0; choice < std::size(kChoices); ++choice) {
    TablesConfig config = two_tables(), other = two_tables();
    config.tables[1].dim = other.dim = 9;
    config.tables[1].optimizer = kChoices[choice];
    other.optimizer = static_cast<RowOptimizer>(choice);
    Tables mixed(config, Device::cpu(), DType::kF32, 1);
    Tables plain(two_tables(), Device::cpu(), DType::kF32, 1);
    Tables alike(other, Device::cpu(), DType::kF32, 1);
    // Each table does what it would among tables of its own sort.
    const auto train = [](Tables& tables, TableId id) {
      Bench bench;
      const Ids ids{4, 9, 4};
      const Lookup lookup{id, "feature", ids};
      for (int64_t step = 1; step <= 3; ++step) {
        Ticket ticket = tables.begin(std::span(&lookup, 1), Mode::kTraining);
        const Tensor rows = tables.rows(bench.exec, ticket, id);
        EXPECT_EQ(rows.size(1), tables.table(id).spec().dim);
        tables.apply(bench.exec, ticket, id, rows, 0.1, step);
      }
      const auto& [weights, state] = tables.table(id).resident();
      return std::pair(bytes_of(weights), bytes_of(state));
    };
    EXPECT_EQ(train(mixed, TableId{0}), train(plain, TableId{0}));
    EXPECT_EQ(train(mixed, TableId{1}), train(alike, TableId{1}));
  }
}

TEST(TablesTest, TablesOfSeveralOptimizersAreUpdatedInOneCall) {
  TablesConfig config = two_tables();
  config.tables[0].optimizer = OptimizerChoice::kSgd;
  Tables together(config, Device::cpu(), DType::kF32, 1),
      apart(config, Device::cpu(), DType::kF32, 1);
  Bench bench;
  const Ids ids{4, 9};
  const Lookup lookups[] = {{TableId{0}, "item_id", ids}, {TableId{1}, "artist_id", ids}};
  const TableId both[] = {TableId{1}, TableId{0}};
  Ticket ticket = together.begin(lookups, Mode::kTraining);
  const Tensor gradients = together.rows(bench.exec, ticket, both);
  together.apply(bench.exec, ticket, both, gradients, 0.1, 1);
  Ticket other = apart.begin(lookups, Mode::kTraining);
  apart.apply(bench.exec, other, TableId{1}, gradients.rows(0, 2), 0.1, 1);
  apart.apply(bench.exec, other, TableId{0}, gradients.rows(2, 2), 0.1, 1);
  for (const TableId id : both) {
    EXPECT_EQ(bytes_of(together.table(id).resident().weights),
              bytes_of(apart.table(id).resident().weights));
    EXPECT_EQ(bytes_of(together.table(id).resident().state),
              bytes_of(apart.table(id).resident().state));
  }
}

// ---- lookups -----------------------------------------------------------------------------------

TEST(TablesTest, LookupEqualsAPlainGather) {
  Bench bench;
  Tables tables(two_tables(), Device::cpu(), DType::kF32, 1);
  std::mt19937_64 random(1);
  Ids history(300), candidates(40), artists(300);
  for (int64_t& id : history) id = static_cast<int64_t>(random() % 50);
  for (int64_t& id : candidates) id = static_cast<int64_t>(random() % 50);
  for (int64_t& id : artists) id = static_cast<int64_t>(random() % 20);
  const Lookup lookups[] = {{TableId{0}, "item_id", history},
                            {TableId{1}, "artist_id", artists},
                            {TableId{0}, "item_candidate_id", candidates}};
  Ticket ticket = tables.begin(lookups, Mode::kTraining);
  // Features that share a table are deduped together.
  EXPECT_LE(ticket.distinct_rows(TableId{0}), 50);
  EXPECT_TRUE(std::ranges::is_sorted(ticket.slots(TableId{0})));
  for (size_t l = 0; l < std::size(lookups); ++l) {
    const Tensor rows = tables.rows(bench.exec, ticket, lookups[l].table);
    EXPECT_EQ(rows.size(0), ticket.distinct_rows(lookups[l].table));
    const Tensor weights = tables.table(lookups[l].table).resident().weights;
    const auto inverse = ticket.inverse(static_cast<int64_t>(l));
    ASSERT_EQ(inverse.size(), lookups[l].ids.size());
    for (size_t i = 0; i < inverse.size(); ++i) {
      ASSERT_TRUE(std::equal(rows.row<float>(inverse[i]), rows.row<float>(inverse[i]) + 6,
                             weights.row<float>(lookups[l].ids[i])));
    }
  }
}

TEST(TablesTest, EmptyLookups) {
  Bench bench;
  Tables tables(two_tables(), Device::cpu(), DType::kF32, 1);
  const std::vector<std::byte> before = bytes_of(tables.table(TableId{0}).resident().weights);
  const std::vector<Lookup> lookups = {{TableId{0}, "item_id", {}}};
  Ticket ticket = tables.begin(lookups, Mode::kTraining);
  EXPECT_EQ(ticket.distinct_rows(TableId{0}), 0);
  const Tensor rows = tables.rows(bench.exec, ticket, TableId{0});
  EXPECT_EQ(rows.size(0), 0);
  EXPECT_EQ(rows.size(1), 6);
  tables.apply(bench.exec, ticket, TableId{0}, rows, 0.1, 1);
  EXPECT_EQ(bytes_of(tables.table(TableId{0}).resident().weights), before);
}

TEST(TablesTest, RowsTakeNothingFromTheArenaButThemselves) {
  Bench bench;
  TablesConfig config = two_tables();
  config.backward_wire = Wire::kF16;
  Tables tables(config, Device::cpu(), DType::kF32, 1);
  const Ids ids{1, 2, 3};
  const Lookup lookups[] = {{TableId{0}, "item_id", ids}};
  Ticket ticket = tables.begin(lookups, Mode::kTraining);
  const Tensor rows = tables.rows(bench.exec, ticket, TableId{0});
  const int64_t used = bench.arena.used();
  EXPECT_EQ(used, 256);
  tables.apply(bench.exec, ticket, TableId{0}, rows, 0.1, 1);
  EXPECT_EQ(bench.arena.used(), used);
}

// ---- ids outside their table -------------------------------------------------------------------

TEST(TablesTest, OutOfRangeErrorSaysWhatAndLeavesTablesAlone) {
  Tables tables(two_tables(), Device::cpu(), DType::kF32, 1);
  const std::vector<std::byte> before = bytes_of(tables.table(TableId{1}).resident().weights);
  const Ids items{1, 2};
  const Ids artists{3, 20, -4};
  const Lookup lookups[] = {{TableId{0}, "item_id", items}, {TableId{1}, "artist_id", artists}};
  const std::string text =
      message_of(ErrorCode::kOutOfRange, [&] { (void)tables.begin(lookups, Mode::kTraining); });
  EXPECT_TRUE(contains(text, "feature `artist_id` has id 20")) << text;
  EXPECT_TRUE(contains(text, "table `artist` has 20 rows (ids 0 to 19)")) << text;
  EXPECT_TRUE(contains(text, "2 of 3 ids")) << text;
  EXPECT_TRUE(contains(text, "\"clamp\" or \"zero\"")) << text;
  EXPECT_EQ(bytes_of(tables.table(TableId{1}).resident().weights), before);
  EXPECT_EQ(tables.out_of_range_counts()[1], 0);

  const Ids far(100'000, 5);  // the first one is found across chunks of work
  Ids late = far;
  late[70'000] = -9;
  late[99'999] = 51;
  const Lookup big[] = {{TableId{0}, "item_id", late}};
  EXPECT_TRUE(contains(
      message_of(ErrorCode::kOutOfRange, [&] { (void)tables.begin(big, Mode::kTraining); }),
      "has id -9"));
}

TEST(TablesTest, ClampTakesTheNearestRowAndCounts) {
  TablesConfig config = two_tables();
  config.out_of_range = OutOfRange::kClamp;
  Tables tables(config, Device::cpu(), DType::kF32, 1);
  const Ids ids{-3, 5, 1000, 49, INT64_MAX, INT64_MIN};
  const Lookup lookups[] = {{TableId{0}, "item_id", ids}};
  Ticket ticket = tables.begin(lookups, Mode::kTraining);
  EXPECT_TRUE(std::ranges::equal(ticket.slots(TableId{0}), Ids{0, 5, 49}));
  EXPECT_TRUE(std::ranges::equal(ticket.inverse(0), std::vector<int32_t>{0, 1, 2, 2, 2, 0}));
  EXPECT_EQ(tables.out_of_range_counts()[0], 4);
  (void)tables.begin(lookups, Mode::kTraining);
  EXPECT_EQ(tables.out_of_range_counts()[0], 8);
  EXPECT_EQ(tables.out_of_range_counts()[1], 0);
}

TEST(TablesTest, ZeroReadsZerosAndIsNeverUpdated) {
  Bench bench;
  TablesConfig config = two_tables();
  config.out_of_range = OutOfRange::kZero;
  config.optimizer = ops::RowOptimizer::kSgd;
  Tables tables(config, Device::cpu(), DType::kF32, 1);
  const Ids ids{-1, 7, 50, 7};
  const Lookup lookups[] = {{TableId{0}, "item_id", ids}};
  Ticket ticket = tables.begin(lookups, Mode::kTraining);
  EXPECT_TRUE(std::ranges::equal(ticket.inverse(0), std::vector<int32_t>{-1, 0, -1, 0}));
  EXPECT_EQ(tables.out_of_range_counts()[0], 2);

  const Tensor rows = tables.rows(bench.exec, ticket, TableId{0});
  const Tensor expanded = bench.exec.statistic({4, 6});
  ops::gather_rows(bench.exec, rows, view(ticket.inverse(0)), expanded);
  for (const int64_t zero_row : {0, 2}) {
    for (int64_t c = 0; c < 6; ++c) EXPECT_EQ(expanded.row<float>(zero_row)[c], 0);
  }
  const std::vector<double> before = values_of(tables.table(TableId{0}).resident().weights);
  const Tensor gradients = bench.exec.statistic({1, 6});
  std::ranges::fill(gradients.span<float>(), 1.0f);
  tables.apply(bench.exec, ticket, TableId{0}, gradients, 1, 1);
  const std::vector<double> after = values_of(tables.table(TableId{0}).resident().weights);
  for (size_t i = 0; i < before.size(); ++i) EXPECT_EQ(before[i] != after[i], i / 6 == 7);
}

// ---- wires -------------------------------------------------------------------------------------

TEST(TablesTest, WiresRoundRowsAndGradients) {
  Bench bench;
  const Ids ids{4, 9};
  const Lookup lookups[] = {{TableId{0}, "item_id", ids}};
  for (const Wire wire : {Wire::kF16, Wire::kBf16}) {
    const auto rounded = [wire](float x) {
      return wire == Wire::kF16 ? round_to_f16(x) : round_to_bf16(x);
    };
    TablesConfig config = two_tables();
    config.forward_wire = wire;
    config.backward_wire = wire;
    config.optimizer = ops::RowOptimizer::kSgd;
    Tables tables(config, Device::cpu(), DType::kF32, 1);
    Ticket ticket = tables.begin(lookups, Mode::kTraining);
    const std::vector<double> before = values_of(tables.table(TableId{0}).resident().weights);
    const Tensor rows = tables.rows(bench.exec, ticket, TableId{0});
    for (int64_t i = 0; i < 2; ++i) {
      for (int64_t c = 0; c < 6; ++c) {
        const float weight =
            tables.table(TableId{0}).resident().weights.row<float>(ids[static_cast<size_t>(i)])[c];
        EXPECT_EQ(rows.row<float>(i)[c], rounded(weight));
        EXPECT_NE(rows.row<float>(i)[c], weight);
      }
    }
    const Tensor gradients = bench.exec.statistic({2, 6});
    const float exact = wire == Wire::kF16 ? 2.9e-8f : 0.1f;  // 2.9e-8 is nothing in half precision
    std::ranges::fill(gradients.span<float>(), exact);
    tables.apply(bench.exec, ticket, TableId{0}, gradients, 1, 1);
    EXPECT_EQ(gradients.span<float>()[0], exact);  // the caller's numbers stay
    for (int64_t c = 0; c < 6; ++c) {
      EXPECT_EQ(tables.table(TableId{0}).resident().weights.row<float>(9)[c],
                static_cast<float>(before[static_cast<size_t>(9 * 6 + c)]) - rounded(exact));
    }
  }
}

/// Whatever their kinds and widths; a table has the bits that it would have alone.
TEST(TablesTest, SmallTablesShareAnAllocation) {
  TablesConfig config = two_tables();
  TableConfig dynamic{.name = "new", .rows = 300, .dim = 5};
  dynamic.kind = TableKind::kDynamic;
  config.tables.push_back(dynamic);
  config.tables.push_back({.name = "large", .rows = 100'000});
  config.tables.push_back({.name = "wide", .rows = 3, .dim = 9});
  const int64_t held = Buffer::live_bytes(Purpose::kTable);
  Tables tables(config, Device::cpu(), DType::kF32, 7);
  const auto data = [&](int32_t t) {
    return static_cast<const char*>(tables.table(TableId{t}).resident().weights.data);
  };
  EXPECT_EQ(data(1) - data(0), 1280);         // 50 * 6 * 4, aligned
  EXPECT_EQ(data(2) - data(0), 1280 + 512);   // 20 * 6 * 4
  EXPECT_EQ(data(4) - data(2), 384 * 5 * 4);  // of whole buckets
  int64_t bytes = 1280 + 512 + 384 * 5 * 4 + 256 + 100'000 * 6 * 4;
  bytes += tables.table(TableId{2}).bytes() - 384 * (5 + 1) * 4;  // its index
  EXPECT_EQ(Buffer::live_bytes(Purpose::kTable) - held, bytes);
  EXPECT_EQ(tables.table(TableId{0}).bytes(), 50 * (6 + 1) * 4);

  for (int32_t t : {0, 1, 2, 4}) {
    TablesConfig single = config;
    single.tables = {config.tables[static_cast<size_t>(t)]};
    Tables alone(single, Device::cpu(), DType::kF32, 7);
    std::vector<double> rows[2];
    for (Tables* each : {&tables, &alone}) {
      const TableId id{each == &alone ? 0 : t};
      for (int64_t step = 1; step <= 3; ++step) {
        Bench bench;
        const Ids ids = {0, 2, 1, 0};
        const Lookup lookup{id, "ids", ids};
        Ticket ticket = each->begin(std::span(&lookup, 1), Mode::kTraining);
        const Tensor read = each->rows(bench.exec, ticket, id);
        each->apply(bench.exec, ticket, id, read, 0.1, step);
        rows[each == &alone ? 1 : 0] = values_of(read);
      }
    }
    EXPECT_EQ(rows[0], rows[1]) << t;
  }
}

TEST(TablesTest, DoubleTablesHaveNoBf16Wire) {
  TablesConfig config = two_tables();
  config.forward_wire = Wire::kBf16;
  message_of(ErrorCode::kUnsupported,
             [&] { const Tables tables(config, Device::cpu(), DType::kF64, 1); });
}

}  // namespace
}  // namespace segue::sparse
