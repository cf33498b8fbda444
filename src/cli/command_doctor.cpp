#include <memory>
#include <string>

#include <fmt/format.h>
#include <unistd.h>

#include "attention/kernel_choice.h"
#include "base/memory.h"
#include "base/parallel.h"
#include "cli/commands.h"
#include "cli/facts.h"
#include "cli/output.h"
#include "ops/gemm.h"
#include "tensor/card.h"
#include "tensor/device.h"

namespace segue::cli {
namespace {

/// What the card says of itself now, at rest.
void add_card(const std::string& name, Device device, FactTable& gpu) {
  const std::unique_ptr<CardSensor> card = open_card(device);
  if (card == nullptr) {
    return gpu.rows.push_back(
        {name + " state", {"not known: the driver has no libnvidia-ml.so.1"}});
  }
  const CardState s = card->state();
  gpu.rows.push_back({name + " state",
                      {fmt::format("{} of {} MHz, {:.0f} of {:.0f} W, {} C; energy {}", s.sm_mhz,
                                   s.most_sm_mhz, s.watts, s.watt_limit, s.celsius,
                                   card->joules() ? "is counted" : "is not counted")}});
  for (const CardWarning& w : card_warnings(s, /*under_load=*/false)) {
    gpu.rows.push_back({fmt::format("{} {}", name, w.name), {w.text}});
  }
}

/// What runs where, said before a run has to find out.
void doctor(bool json) {
  FactSheet sheet;
  FactTable& host = sheet.table("host");
  const double bytes =
      static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
  host.rows = {{"program", {version_line()}},
               {"threads", {int64_t{base::num_threads()}}},
               {"memory GiB", {Fact::real(bytes / base::kGib, 1)}},
               {"matrix products", {std::string(ops::gemm_backend())}},
               {"parquet", {SEGUE_HAS_ARROW ? "yes" : "no: scripts/fetch_wheels.sh, then build"}}};
  FactTable& gpu = sheet.table("gpu");
  if (!SEGUE_HAS_CUDA) {
    gpu.rows.push_back({"cuda", {"not in this build: install the CUDA toolkit, then build"}});
  } else if (cuda_device_count() == 0) {
    gpu.rows.push_back({"cuda", {"in this build, but no device: driver missing, or none visible"}});
  }
  if (SEGUE_HAS_CUDA) gpu.rows.push_back({"matrix products", {ops::gemm_gpu_backend()}});
  for (int i = 0; i < cuda_device_count(); ++i) {
    const CudaFacts f = cuda_facts(i);
    const std::string name = fmt::format("cuda:{}", i);
    gpu.rows.push_back({name, {f.name}});
    gpu.rows.push_back(
        {name + " memory GiB", {Fact::real(static_cast<double>(f.memory_bytes) / base::kGib, 1)}});
    gpu.rows.push_back(
        {name + " free GiB", {Fact::real(static_cast<double>(f.free_bytes) / base::kGib, 1)}});
    gpu.rows.push_back({name + " compute", {fmt::format("{}.{}", f.major, f.minor)}});
    gpu.rows.push_back({name + " SM clock MHz", {int64_t{f.clock_khz / 1000}}});
    for (const DType dtype : {DType::kBf16, DType::kF32}) {
      gpu.rows.push_back({fmt::format("{} attention, {}", name, to_string(dtype)),
                          {attention::list_kernels(dtype, f.major)}});
    }
    add_card(name, Device::cuda(i), gpu);
    gpu.rows.push_back({name + " driver, runtime",
                        {fmt::format("{}.{}, {}.{}", f.driver / 1000, f.driver % 1000 / 10,
                                     f.runtime / 1000, f.runtime % 1000 / 10)}});
  }
  print(json ? sheet.json() : sheet.text());
}

}  // namespace

void add_doctor(CLI::App& app) {
  CLI::App* command = app.add_subcommand("doctor", "Tell what this machine and this build can do.");
  const auto json = std::make_shared<bool>(false);
  command->add_flag("--json", *json, "the same as one JSON object");
  command->callback([json] { doctor(*json); });
}

}  // namespace segue::cli
