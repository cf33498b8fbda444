#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <map>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/hash.h"
#include "base/time.h"
#include "ops/gpu_test_util.h"
#include "ops/initialize.h"
#include "sparse/tables_test_util.h"
#include "tensor/device_memory.h"
#include "tensor/growing_buffer.h"
#include "tensor/launches.h"

namespace segue::sparse {
namespace {

using ops::test::ModeBed;

class GpuTablesTest : public ops::test::GpuTest {};

TEST_F(GpuTablesTest, InitialValuesHaveTheBitsOfTheCpu) {
  for (const int64_t dim : {6, 64}) {
    TablesConfig config = test::two_tables();
    config.dim = dim;
    ModeBed cpu(Device::cpu(), Precision::kF32), gpu(Device::cuda(), Precision::kF32);
    const Tables here(config, Device::cpu(), DType::kF32, 9);
    const Tables there(config, Device::cuda(), DType::kF32, 9);
    for (const TableId id : {TableId{0}, TableId{1}}) {
      EXPECT_EQ(cpu.values(here.table(id).resident().weights),
                gpu.values(there.table(id).resident().weights));
    }
  }
}

TEST_F(GpuTablesTest, RowsAndUpdatesLikeTheCpu) {
  using ops::RowOptimizer;
  for (const RowOptimizer optimizer : {RowOptimizer::kRowwiseAdagrad, RowOptimizer::kAdagrad,
                                       RowOptimizer::kSgd, RowOptimizer::kAdam}) {
    for (const Wire wire : {Wire::kF32, Wire::kF16, Wire::kBf16}) {
      const auto run = [&](ModeBed& bed) -> ops::test::Outputs {
        TablesConfig config = test::two_tables();
        config.dim = 32;
        config.optimizer = optimizer;
        config.forward_wire = config.backward_wire = wire;
        Tables tables(config, bed.exec.device, DType::kF32, 9);
        const std::vector<int64_t> ids = {7, 3, 7, 49, 0};
        const Lookup lookup{TableId{0}, "item", ids};
        Ticket ticket = tables.begin(std::span(&lookup, 1), Mode::kTraining);
        const Tensor rows = tables.rows(bed.exec, ticket, TableId{0});
        ops::test::Outputs out = {{"rows", false, bed.values(rows)}};
        for (int64_t step = 1; step <= 3; ++step) {
          tables.apply(bed.exec, ticket, TableId{0},
                       bed.parameter(static_cast<uint64_t>(step), {4, 32}), 0.1, step);
        }
        out.push_back({"weights", true, bed.values(tables.table(TableId{0}).resident().weights)});
        if (tables.table(TableId{0}).resident().state.elements() > 0) {
          out.push_back({"state", true, bed.values(tables.table(TableId{0}).resident().state)});
        }
        return out;
      };
      const auto cpu = ops::test::run_in(Device::cpu(), Precision::kF32, run);
      const auto gpu = ops::test::run_in(Device::cuda(), Precision::kF32, run);
      EXPECT_EQ(cpu[0].values, gpu[0].values);
      for (size_t i = 1; i < cpu.size(); ++i) {
        EXPECT_LE(ops::test::largest_difference(cpu[i].values, gpu[i].values), 1e-6) << cpu[i].name;
      }
    }
  }
}

/// Ids, stamps and evictions are equal, rows nearly.
TEST_F(GpuTablesTest, DynamicTablesLikeTheCpu) {
  for (const Evict evict : {Evict::kLru, Evict::kLfu, Evict::kAge, Evict::kScore}) {
    for (const bool admits : {true, false}) {
      TableConfig table{.name = "item", .init_bound = 0.1};
      table.kind = TableKind::kDynamic;
      table.max_rows = 512;
      table.start_rows = 128;
      table.evict = evict;
      table.admit_after = admits ? 1 : 2;
      table.ttl_seconds = admits ? 0 : 500;
      TablesConfig config;
      config.tables = {table};
      config.dim = 32;
      config.optimizer = ops::RowOptimizer::kAdam;
      const auto run = [&](ModeBed& bed) {
        Tables tables(config, bed.exec.device, DType::kF32, 9);
        std::mt19937_64 random(7);
        for (int64_t step = 1; step <= 30; ++step) {
          std::vector<int64_t> ids(200);
          for (int64_t& id : ids) id = static_cast<int64_t>(random() % 4000) * 1'000'003 - 9;
          const test::Ids scores = test::scores_of(ids.size(), step);
          const Lookup lookup{.table = TableId{0}, .feature = "item", .ids = ids, .scores = scores};
          const Mode mode = step % 5 == 0 ? Mode::kEvaluation : Mode::kTraining;
          Ticket ticket = tables.begin(std::span(&lookup, 1), mode, {}, 60 * step);
          const int64_t rows = ticket.distinct_rows(TableId{0});
          (void)tables.rows(bed.exec, ticket, TableId{0});
          if (mode == Mode::kEvaluation) continue;
          tables.apply(bed.exec, ticket, TableId{0},
                       bed.parameter(static_cast<uint64_t>(step), {rows, 32}), 0.1, step);
        }
        if (bed.exec.stream != nullptr) bed.exec.stream->synchronize();
        std::map<std::string, std::vector<double>> saved;
        const test::SavedInMemory all(tables.table(TableId{0}).snapshot(Extent::kAll));
        for (const auto& entry : all.arrays) {
          const std::vector<std::byte>& bytes = entry.second.bytes;
          const auto take = [&]<class T>(T) {
            const auto* const from = reinterpret_cast<const T*>(bytes.data());
            saved[entry.first].assign(from, from + bytes.size() / sizeof(T));
          };
          entry.second.dtype == DType::kI64 ? take(int64_t{}) : take(float{});
        }
        return saved;
      };
      ModeBed cpu(Device::cpu(), Precision::kF32), gpu(Device::cuda(), Precision::kF32);
      const auto here = run(cpu), there = run(gpu);
      for (const char* name : {"key", "stamp", "candidate", "buckets", "totals", "clock"}) {
        EXPECT_EQ(here.at(name), there.at(name)) << name;
      }
      EXPECT_GT(here.at("totals")[1] + here.at("totals")[2], 0);  // evicted or expired
      for (const char* name : {"weight", "state"}) {
        EXPECT_LE(ops::test::largest_difference(here.at(name), there.at(name)), 1e-5) << name;
      }
    }
  }
}

/// Static, cached, dynamic and cached dynamic tables, two lookups of one of them; ids on the host
/// or on the device.
TEST_F(GpuTablesTest, TheDeviceDedupsAsTheHostDoes) {
  for (const OutOfRange policy : {OutOfRange::kClamp, OutOfRange::kZero}) {
    for (const bool ids_on_device : {false, true}) {
      TablesConfig config = test::two_tables();
      config.dim = 32;
      config.out_of_range = policy;
      config.optimizer = ops::RowOptimizer::kAdam;
      for (const char* name : {"new", "other"}) {
        TableConfig table{.name = name, .init_bound = 0.1};
        table.kind = TableKind::kDynamic;
        table.max_rows = 700;
        table.start_rows = 128;
        config.tables.push_back(table);
      }
      const auto run = [&](ModeBed& bed, InverseAt at) {
        ShardPlan plan = ShardPlan::single(4);
        plan.tables[1].tier = Tier::kCached;
        plan.tables[3].tier = Tier::kHost;
        plan.tables[1].cache_rows = plan.tables[3].cache_rows = 8;
        Tables tables(config, plan, {}, bed.exec.device, DType::kF32, 9);
        std::mt19937_64 random(7);
        std::vector<double> all;
        Ticket ticket;
        for (int64_t step = 1; step <= 12; ++step) {
          std::vector<std::vector<int64_t>> ids(5);
          for (std::vector<int64_t>& list : ids) {
            list.resize(random() % 900);
            for (int64_t& id : list) id = static_cast<int64_t>(random() % 60) - 3;
          }
          for (int64_t& id : ids[3]) id *= 1'000'003 * step;  // the range widens
          std::vector<Lookup> lookups;
          int64_t count = 0;
          for (const int32_t l : {2, 0, 3, 1, 4}) {  // not in the order of tables
            const std::vector<int64_t>& list = ids[static_cast<size_t>(l)];
            Lookup lookup{TableId{std::min(l, 3)}, "feature", list};
            if (at == InverseAt::kDevice && ids_on_device && l % 2 == 0) {
              lookup.on_device = bed.longs(list);
            }
            lookups.push_back(lookup);
            count += std::ssize(list);
          }
          const Mode mode = step % 5 == 0 ? Mode::kEvaluation : Mode::kTraining;
          ticket = tables.begin(lookups, mode, std::move(ticket), 0, at);
          EXPECT_EQ(ticket.on_device, at == InverseAt::kDevice);
          for (int32_t t = 0; t < 4; ++t) {
            all.push_back(static_cast<double>(ticket.distinct_rows(TableId{t})));
          }
          const std::vector<double> rows = bed.values(tables.rows_of_ids(bed.exec, ticket));
          all.insert(all.end(), rows.begin(), rows.end());
          if (mode == Mode::kTraining) {
            tables.apply_to_ids(bed.exec, ticket,
                                bed.parameter(static_cast<uint64_t>(step), {count, 32}), 0.1, step);
          }
          tables.release(ticket, *bed.exec.stream);
          if (step != 6) continue;
          tables.mark_saved();  // from here on the host knows which rows change
        }
        for (const TableId id : {TableId{0}, TableId{1}}) {
          const test::SavedInMemory changes(tables.table(id).snapshot(Extent::kChanges));
          const std::vector<int64_t> rows = saved_integers(changes, "row", 1);
          EXPECT_FALSE(rows.empty());
          all.insert(all.end(), rows.begin(), rows.end());
        }
        for (const int64_t outside : tables.out_of_range_counts()) {
          all.push_back(static_cast<double>(outside));
        }
        return all;
      };
      ModeBed host(Device::cuda(), Precision::kF32), device(Device::cuda(), Precision::kF32);
      ModeBed cpu(Device::cpu(), Precision::kF32);
      const std::vector<double> expected = run(host, InverseAt::kHost);
      const std::vector<double> found = run(device, InverseAt::kDevice);
      ASSERT_EQ(found.size(), expected.size());
      EXPECT_LE(ops::test::largest_difference(found, expected), 1e-5);
      EXPECT_LE(ops::test::largest_difference(run(cpu, InverseAt::kHost), expected), 1e-4);
    }
  }
}

/// Once they have their largest size.
TEST_F(GpuTablesTest, ManyTablesTakeTheLaunchesOfOne) {
  for (const TableKind kind : {TableKind::kStatic, TableKind::kDynamic}) {
    const auto kernels = [&](int64_t count) {
      TablesConfig config;
      config.dim = 32;
      config.optimizer = ops::RowOptimizer::kAdam;
      std::vector<int64_t> ids(2000);
      for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int64_t>(i * i % 1000);
      std::vector<Lookup> lookups;
      for (int64_t t = 0; t < count; ++t) {
        TableConfig table{.name = "t" + std::to_string(t), .rows = 1000, .init_bound = 0.1};
        table.kind = kind;
        if (table.dynamic()) table.max_rows = table.start_rows = 1000;
        config.tables.push_back(table);
        lookups.push_back({static_cast<TableId>(t), "ids", ids});
      }
      ModeBed bed(Device::cuda(), Precision::kF32);
      Tables tables(config, Device::cuda(), DType::kF32, 9);
      const int64_t before = launches();
      Ticket ticket = tables.begin(lookups, Mode::kTraining, {}, 0, InverseAt::kDevice);
      (void)tables.rows_of_ids(bed.exec, ticket);
      tables.apply_to_ids(bed.exec, ticket, bed.parameter(1, {2000 * count, 32}), 0.1, 1);
      tables.release(ticket, *bed.exec.stream);
      return launches() - before;
    };
    EXPECT_LE(kernels(8), kernels(1) + 1);  // a pass more of a sort
  }
}

/// Memory that grows comes in pieces of 2 MiB, and every table has two.
TEST_F(GpuTablesTest, SmallTablesShareAnAllocation) {
  constexpr int64_t kTables = 10, kRows = 256, kColumns = 64;
  const Device device = Device::cuda();
  for (const TableKind kind : {TableKind::kStatic, TableKind::kDynamic}) {
    TablesConfig config;
    config.dim = kColumns;
    config.optimizer = ops::RowOptimizer::kAdam;
    for (int64_t t = 0; t < kTables; ++t) {
      TableConfig table{.name = "t" + std::to_string(t), .rows = kRows, .init_bound = 0.1};
      table.kind = kind;
      config.tables.push_back(table);
    }
    constexpr int64_t kWeights = kRows * kColumns * 4;  // of a table
    const int64_t held = device_bytes_held(Purpose::kTable);
    const int64_t free = device_bytes_in_use(device);
    std::vector<GrowingBuffer> apart;
    if (kind == TableKind::kDynamic) {
      for (int64_t t = 0; t < kTables; ++t) {
        apart.emplace_back(device, kWeights, Purpose::kTable).grow(kWeights);
        apart.emplace_back(device, 2 * kWeights, Purpose::kOptimizer).grow(2 * kWeights);
      }
    }
    const int64_t taken_apart = device_bytes_in_use(device) - free;
    apart.clear();
    const int64_t before = device_bytes_in_use(device);
    const Tables tables(config, device, DType::kF32, 9);
    std::printf(
        "%s: %ld tables take %ld bytes of the device, %ld of them for themselves; rows of "
        "each in memory that grows: %ld\n",
        kind == TableKind::kStatic ? "static" : "dynamic", kTables,
        device_bytes_in_use(device) - before, tables.bytes(), taken_apart);
    const auto* const first =
        static_cast<const char*>(tables.table(TableId{0}).resident().weights.data);
    for (int32_t t = 0; t < kTables; ++t) {
      const Resident rows = tables.table(TableId{t}).resident();
      EXPECT_EQ(static_cast<const char*>(rows.weights.data), first + t * kWeights);
      EXPECT_EQ(rows.weights.size(0), kRows);
    }
    EXPECT_LE(device_bytes_held(Purpose::kTable) - held, tables.bytes());
  }
}

TEST_F(GpuTablesTest, IdsOutsideAreNamedWhereverTheyAre) {
  ModeBed bed(Device::cuda(), Precision::kF32);
  Tables tables(test::two_tables(), Device::cuda(), DType::kF32, 9);
  const std::vector<int64_t> good = {1, 2}, bad = {7, 50, 3};
  for (const bool on_device : {false, true}) {
    std::vector<Lookup> lookups = {{TableId{1}, "artists", good}, {TableId{0}, "items", bad}};
    if (on_device) lookups[1].on_device = bed.longs(bad);
    const std::string message = test::message_of(ErrorCode::kOutOfRange, [&] {
      (void)tables.begin(lookups, Mode::kTraining, {}, 0, InverseAt::kDevice);
    });
    EXPECT_TRUE(test::contains(message, "feature `items` has id 50")) << message;
    EXPECT_EQ(tables.out_of_range_counts()[0], 0);
  }
}

/// Hashed ids of two tables do not fit 64 bits together: the host dedups.
TEST_F(GpuTablesTest, IdsThatAreTooWideGoToTheHost) {
  ModeBed bed(Device::cuda(), Precision::kF32);
  TablesConfig config;
  for (const char* name : {"a", "b"}) {
    TableConfig table{.name = name, .init_bound = 0.1};
    table.kind = TableKind::kDynamic;
    table.max_rows = 700;
    config.tables.push_back(table);
  }
  config.dim = 8;
  Tables tables(config, Device::cuda(), DType::kF32, 9);
  std::mt19937_64 random(7);
  std::vector<int64_t> ids(50);
  for (int64_t& id : ids) id = static_cast<int64_t>(random());
  const Lookup lookups[] = {{TableId{0}, "a", ids}, {TableId{1}, "b", ids}};
  for (int step = 0; step < 2; ++step) {
    Ticket ticket = tables.begin(lookups, Mode::kTraining, {}, 0, InverseAt::kDevice);
    EXPECT_FALSE(ticket.on_device);
    EXPECT_EQ(ticket.distinct_rows(TableId{1}), 50);
    EXPECT_EQ(tables.rows_of_ids(bed.exec, ticket).size(0), 100);
    tables.release(ticket, *bed.exec.stream);
  }
}

TEST_F(GpuTablesTest, LargeTablesStartFast) {
  TablesConfig config;
  config.tables = {{"big", int64_t{6} << 20, 0}};  // 12 GB: beyond 32-bit element numbers
  config.dim = 512;
  const base::Stopwatch watch;
  const Tables tables(config, Device::cuda(), DType::kF32, 9);
  const double rate = static_cast<double>(tables.bytes()) / watch.seconds();
  RecordProperty("gigabytes_per_second", std::to_string(rate / 1e9));
  std::printf("tables start at %.1f GB/s\n", rate / 1e9);
  EXPECT_GT(rate, 5e9);
  // The last rows, where 32 bits would wrap around.
  ModeBed bed(Device::cuda(), Precision::kF32);
  const int64_t last = config.tables[0].rows - 1;
  const std::vector<double> row =
      bed.values(tables.table(TableId{0}).resident().weights.rows(last, 1));
  const Buffer memory(Device::cpu(), 512 * 4, Purpose::kScratch);
  const Tensor expected(memory.data(), DType::kF32, Device::cpu(), {1, 512});
  std::vector<int64_t> numbers = {last};
  const double bound = 1 / std::sqrt(static_cast<double>(config.tables[0].rows));
  ops::initialize_part(expected, {ops::Init::kUniform, bound, 9, base::xxh64("big")},
                       host_view(std::span<int64_t>(numbers)), 0);
  EXPECT_EQ(row, ModeBed(Device::cpu(), Precision::kF32).values(expected));
}

}  // namespace
}  // namespace segue::sparse
