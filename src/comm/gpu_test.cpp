// Ranks that use a GPU: sharing one through host memory, and one rank over NCCL.

#include <gtest/gtest.h>

#include "base/test_util.h"
#include "comm/collectives_test_util.h"
#include "comm/link/nccl_link.h"
#include "comm/world.h"
#if SEGUE_HAS_NCCL
#include "comm/link/nccl_api.h"
#endif

namespace segue::comm {
namespace {

constexpr double kTimeout = 30;

#define SKIP_WITHOUT_GPU() \
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU"

class GpuCollectives : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, GpuCollectives, ::testing::Values(1, 2, 4));

TEST_P(GpuCollectives, ThroughHostMemoryTheSameBits) {
  SKIP_WITHOUT_GPU();
  run_as_threads(GetParam(), kTimeout, [](World& world) {
    const Device device = Device::cuda(0);
    const Stream stream(device);
    const auto comm = world.open("dense", device);
    testing::check_random_calls(*comm, 11, 60, 6000, {device, &stream});
    testing::check_all_to_all(*comm, 6, 300000, {device, &stream});
    testing::check_all_reduce<float>(*comm, 3, 3000001, {device, &stream});
    testing::check_all_reduce<double>(*comm, 4, 100001, {device, &stream});
  });
}

TEST(GpuNccl, OneRankGivesTheSameBits) {
  SKIP_WITHOUT_GPU();
  if (!nccl_trouble().empty()) GTEST_SKIP() << nccl_trouble();
  const Device device = Device::cuda(0);
  const Stream stream(device);
  CommConfig config;
  config.transport = Transport::kNccl;
  config.timeout_seconds = kTimeout;
  const auto world = join_world(config);
  const auto comm = world->open("dense", device), other = world->open("tables", device);
  testing::check_random_calls(*comm, 21, 60, 6000, {device, &stream});
  testing::check_random_calls(*other, 22, 20, 100000, {device, &stream});
  testing::check_all_to_all(*comm, 6, 3000000, {device, &stream});
  comm->synchronize(stream).throw_if_failed();
}

#if SEGUE_HAS_NCCL
TEST(NcclVersion, TheLibraryMayBeNewerButNotOlderNorOfAnotherMajorVersion) {
  EXPECT_EQ(version_trouble(22809, 22809), "");
  EXPECT_EQ(version_trouble(22809, 23203), "");
  EXPECT_EQ(version_trouble(22809, 22803), "");
  EXPECT_TRUE(base::contains(version_trouble(22809, 22703), "version 22703"));
  EXPECT_FALSE(version_trouble(22809, 30000).empty());
}
#endif

}  // namespace
}  // namespace segue::comm
