#include "tensor/card.h"

#include <algorithm>
#include <array>
#include <type_traits>
#include <utility>

#include <dlfcn.h>
#include <fmt/format.h>

namespace segue {

std::optional<double> EnergyMeter::joules() const {
  if (!begin_) return {};
  const std::optional<double> end = now();
  if (!end) return {};
  return *end - *begin_;
}

std::vector<CardWarning> card_warnings(const CardState& s, bool under_load) {
  std::vector<CardWarning> all;
  const std::string clock = fmt::format("the SMs run at {} of {} MHz", s.sm_mhz, s.most_sm_mhz);
  if (s.set_sm_mhz > 0 && s.set_sm_mhz < s.most_sm_mhz) {
    all.push_back({"clock set low",
                   fmt::format("the clock of the SMs is set to {} of {} MHz; `nvidia-smi -rac` and "
                               "`nvidia-smi -rgc` undo that",
                               s.set_sm_mhz, s.most_sm_mhz)});
  }
  if (s.too_hot) {
    all.push_back({"too hot", fmt::format("the card is too hot ({} C): {}; see to its cooling, or "
                                          "let it rest",
                                          s.celsius, clock)});
  }
  if (s.watt_limit > 0 && s.watt_limit < s.usual_watt_limit) {
    all.push_back({"power limit lowered",
                   fmt::format("the power limit is {:.0f} W, usual for this card are {:.0f}; "
                               "`nvidia-smi -pl {:.0f}` sets it back",
                               s.watt_limit, s.usual_watt_limit, s.usual_watt_limit)});
  }
  if (s.out_of_power) {
    all.push_back(
        {"power limit", fmt::format("the power limit ({:.0f} W) is reached: {}; compare only with "
                                    "results that say the same",
                                    s.watt_limit, clock)});
  }
  // A card that works and is neither hot nor out of power takes its highest clock, or nearly.
  constexpr double kNearly = 0.95;
  const bool slow = static_cast<double>(s.sm_mhz) < kNearly * static_cast<double>(s.most_sm_mhz);
  if (under_load && slow && all.empty()) {
    all.push_back({"clock locked", clock + " and no limit is reached: they are locked, or the work "
                                           "was too short; `nvidia-smi -rgc` unlocks them"});
  }
  if (s.other_processes > 0) {
    all.push_back({"shared", fmt::format("{} other process{} on this card, which makes times "
                                         "longer and vary; wait, or choose another card by "
                                         "CUDA_VISIBLE_DEVICES",
                                         s.other_processes,
                                         s.other_processes > 1 ? "es compute" : " computes")});
  }
  return all;
}

namespace {

/// The part of NVML that is used, as its documentation describes it. Every call returns 0 if it
/// went well; what fails is not known.
struct Nvml {
  using Card = void*;
  using Clock = int (*)(Card, int kind, unsigned* mhz);
  using Number = int (*)(Card, unsigned* value);
  using Long = int (*)(Card, unsigned long long* value);
  struct Process {
    unsigned pid = 0;
    unsigned long long bytes = 0;
    unsigned instance = 0, compute_instance = 0;
  };

  int (*init)() = nullptr;
  int (*by_bus_id)(const char* id, Card* card) = nullptr;
  Clock clock = nullptr, most_clock = nullptr, temperature = nullptr;
  Clock set_clock = nullptr, usual_set_clock = nullptr;
  Number power = nullptr, power_limit = nullptr, usual_power_limit = nullptr;
  Long reasons = nullptr, energy = nullptr;
  int (*processes)(Card, unsigned* count, Process* list) = nullptr;

  /// Stays open as long as the process; null: there is no such library.
  static const Nvml* get() {
    static const std::unique_ptr<const Nvml> kLibrary = open();
    return kLibrary.get();
  }

 private:
  static std::unique_ptr<const Nvml> open() {
    void* const library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    if (library == nullptr) return nullptr;
    auto n = std::make_unique<Nvml>();
    const auto find = [&](auto& function, const char* name) {
      function = reinterpret_cast<std::decay_t<decltype(function)>>(dlsym(library, name));
    };
    find(n->init, "nvmlInit_v2");
    find(n->by_bus_id, "nvmlDeviceGetHandleByPciBusId_v2");
    find(n->clock, "nvmlDeviceGetClockInfo");
    find(n->most_clock, "nvmlDeviceGetMaxClockInfo");
    find(n->set_clock, "nvmlDeviceGetApplicationsClock");
    find(n->usual_set_clock, "nvmlDeviceGetDefaultApplicationsClock");
    find(n->temperature, "nvmlDeviceGetTemperature");
    find(n->power, "nvmlDeviceGetPowerUsage");
    find(n->power_limit, "nvmlDeviceGetEnforcedPowerLimit");
    find(n->usual_power_limit, "nvmlDeviceGetPowerManagementDefaultLimit");
    find(n->reasons, "nvmlDeviceGetCurrentClocksThrottleReasons");
    find(n->energy, "nvmlDeviceGetTotalEnergyConsumption");
    find(n->processes, "nvmlDeviceGetComputeRunningProcesses_v3");
    const bool usable = n->init != nullptr && n->by_bus_id != nullptr && n->init() == 0;
    return usable ? std::move(n) : nullptr;
  }
};

class NvmlCard final : public CardSensor {
 public:
  NvmlCard(const Nvml& nvml, Nvml::Card card) : nvml_(nvml), card_(card) {}

  CardState state() const override {
    constexpr int kSm = 1, kGpuSensor = 0;
    constexpr double kMilli = 1e-3;
    const auto kind_of = [&](Nvml::Clock read, int kind) {
      unsigned value = 0;
      return read != nullptr && read(card_, kind, &value) == 0 ? int64_t{value} : 0;
    };
    const auto watts = [&](Nvml::Number read) {
      unsigned value = 0;
      return read != nullptr && read(card_, &value) == 0 ? kMilli * value : 0;
    };
    CardState s;
    s.sm_mhz = kind_of(nvml_.clock, kSm);
    s.most_sm_mhz = kind_of(nvml_.most_clock, kSm);
    // Some cards come with a value here that they do not keep to.
    const int64_t set = kind_of(nvml_.set_clock, kSm);
    if (set < kind_of(nvml_.usual_set_clock, kSm)) s.set_sm_mhz = set;
    s.celsius = kind_of(nvml_.temperature, kGpuSensor);
    s.watts = watts(nvml_.power);
    s.watt_limit = watts(nvml_.power_limit);
    s.usual_watt_limit = watts(nvml_.usual_power_limit);
    // Software and hardware have a bit each; the hardware's general slowdown may be either.
    constexpr uint64_t kThermal = 0x20 | 0x40, kPower = 0x4 | 0x80;
    const auto reasons = static_cast<uint64_t>(number(nvml_.reasons).value_or(0));
    s.too_hot = (reasons & kThermal) != 0;
    s.out_of_power = (reasons & kPower) != 0;
    s.other_processes = std::max<int64_t>(0, process_count() - 1);
    return s;
  }

  std::optional<double> joules() const override {
    constexpr double kMilli = 1e-3;
    const std::optional<uint64_t> value = number(nvml_.energy);
    if (!value) return {};
    return kMilli * static_cast<double>(*value);
  }

 private:
  std::optional<uint64_t> number(Nvml::Long read) const {
    unsigned long long value = 0;
    if (read == nullptr || read(card_, &value) != 0) return {};
    return value;
  }
  /// This process is among them, by a number that a container may not know: open_card has used the
  /// card.
  int64_t process_count() const {
    std::array<Nvml::Process, 64> list{};
    auto count = static_cast<unsigned>(list.size());
    if (nvml_.processes == nullptr || nvml_.processes(card_, &count, list.data()) != 0) return 0;
    return count;
  }

  const Nvml& nvml_;
  Nvml::Card card_;
};

}  // namespace

std::unique_ptr<CardSensor> open_card(Device device) {
  if (device.is_cpu() || cuda_device_count() <= device.index) return nullptr;
  const Nvml* const nvml = Nvml::get();
  if (nvml == nullptr) return nullptr;
  const std::string bus_id = cuda_facts(device.index).bus_id;
  Nvml::Card card = nullptr;
  if (nvml->by_bus_id(bus_id.c_str(), &card) != 0) return nullptr;
  return std::make_unique<NvmlCard>(*nvml, card);
}

}  // namespace segue
