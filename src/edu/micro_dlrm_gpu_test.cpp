#include <gtest/gtest.h>

#include "edu/edu.h"
#include "edu/micro_dlrm.h"
#include "tensor/device.h"

namespace segue::edu {
namespace {

class GpuEduTest : public testing::Test {
 protected:
  void SetUp() override {
    if (cuda_device_count() == 0) GTEST_SKIP() << "there is no GPU";
  }
  /// Losses of a few steps.
  static std::vector<double> losses(const Workload& workload, Device device) {
    const TableMemory memory(device, workload.table_bytes(), false);
    MicroDlrm model(workload, memory, 3);
    BatchPool pool(workload, device);
    for (uint64_t seed = 1; seed < 4; ++seed) pool.add_random(seed, 5000);
    std::vector<double> out;
    for (size_t i = 0; i < 12; ++i)
      out.push_back(model.step(pool[i], {.dense = 1e-2, .rows = 0.1}));
    return out;
  }
};

TEST_F(GpuEduTest, TrainsAsTheCpuDoes) {
  Workload hashed = micro_dlrm_dram(Keys::kUniform, 3000, 64, 20, 256);
  for (const Workload& w : {micro_dlrm(256), hashed}) {
    const std::vector<double> here = losses(w, Device::cpu()), there = losses(w, Device::cuda());
    for (size_t i = 0; i < here.size(); ++i)
      EXPECT_NEAR(here[i], there[i], 1e-3) << w.name << " step " << i;
    EXPECT_LT(there.back(), there.front());
  }
}

TEST_F(GpuEduTest, ComparesThePair) {
  std::string said;
  run_compare(
      {.device = "cuda", .experiments = {"E1", "E4"}, .quick = true},
      [&](const std::string& line) { said += line + "\n"; }, "a test");
  EXPECT_NE(said.find("In short"), std::string::npos);
}

}  // namespace
}  // namespace segue::edu
