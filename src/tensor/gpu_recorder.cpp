#include "tensor/gpu_recorder.h"

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include <cxxabi.h>
#include <fmt/format.h>

#if SEGUE_HAS_CUDA && __has_include(<cupti.h>)
#define SEGUE_HAS_CUPTI 1
#include <cupti.h>

#include "base/shared_library.h"
#else
#define SEGUE_HAS_CUPTI 0
#endif

namespace segue {
namespace detail {

std::string kernel_name(const std::string& mangled) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> plain(
      abi::__cxa_demangle(mangled.c_str(), nullptr, nullptr, &status), &std::free);
  std::string name = status == 0 ? plain.get() : mangled;
  for (const char* noise : {"(anonymous namespace)::", "void "}) {
    for (size_t at = name.find(noise); at != std::string::npos; at = name.find(noise)) {
      name.erase(at, std::string(noise).size());
    }
  }
  // Brackets and parentheses nest: only what stands outside of all of them is cut.
  size_t begin = 0, template_at = std::string::npos, end = name.size();
  int depth = 0;
  for (size_t i = 0; i < name.size(); ++i) {
    const char c = name[i];
    if (c == '<' && depth++ == 0 && template_at == std::string::npos) template_at = i;
    if (c == '>') --depth;
    if (c == ':' && depth == 0) {
      begin = i + 1;
      template_at = std::string::npos;
    }
    if (c == '(' && depth == 0) {
      end = i;
      break;
    }
  }
  constexpr size_t kMost = 96;
  if (end - begin > kMost && template_at < end) {
    return name.substr(begin, std::min(template_at - begin, kMost)) + "<...>";
  }
  return name.substr(begin, std::min(end - begin, kMost));
}

}  // namespace detail

#if SEGUE_HAS_CUPTI

namespace {

/// The functions of CUPTI that are used here, out of the library that this machine has.
struct Cupti {
  decltype(&::cuptiActivityRegisterTimestampCallback) set_clock = nullptr;
  decltype(&::cuptiActivityRegisterCallbacks) set_callbacks = nullptr;
  decltype(&::cuptiActivityEnable) enable = nullptr;
  decltype(&::cuptiActivityDisable) disable = nullptr;
  decltype(&::cuptiActivityFlushAll) flush = nullptr;
  decltype(&::cuptiActivityGetNextRecord) next_record = nullptr;
  decltype(&::cuptiActivityGetNumDroppedRecords) dropped = nullptr;
  decltype(&::cuptiGetCallbackName) callback_name = nullptr;
  decltype(&::cuptiSetThreadIdType) set_thread_ids = nullptr;
  decltype(&::cuptiGetResultString) result_string = nullptr;

  std::string trouble;  // why it cannot be used

  static const Cupti& get() {
    static const Cupti cupti = load();
    return cupti;
  }

  std::string said(CUptiResult rc) const {
    const char* text = nullptr;
    result_string(rc, &text);
    return text != nullptr ? text : fmt::format("CUPTI error {}", static_cast<int>(rc));
  }

 private:
  /// Records are read as the header describes them, which holds within a major version.
  static Cupti load() {
    Cupti c;
    base::SharedLibrary library(fmt::format("libcupti.so.{}", CUPTI_API_VERSION / 10000));
    library.find("cuptiActivityRegisterTimestampCallback", c.set_clock);
    library.find("cuptiActivityRegisterCallbacks", c.set_callbacks);
    library.find("cuptiActivityEnable", c.enable);
    library.find("cuptiActivityDisable", c.disable);
    library.find("cuptiActivityFlushAll", c.flush);
    library.find("cuptiActivityGetNextRecord", c.next_record);
    library.find("cuptiActivityGetNumDroppedRecords", c.dropped);
    library.find("cuptiGetCallbackName", c.callback_name);
    library.find("cuptiSetThreadIdType", c.set_thread_ids);
    library.find("cuptiGetResultString", c.result_string);
    c.trouble = library.trouble();
    return c;
  }
};

constexpr CUpti_ActivityKind kKinds[] = {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL,
                                         CUPTI_ACTIVITY_KIND_MEMCPY, CUPTI_ACTIVITY_KIND_MEMSET,
                                         CUPTI_ACTIVITY_KIND_RUNTIME, CUPTI_ACTIVITY_KIND_DRIVER};

/// What CUPTI has filled and nobody has read. Its callbacks take no argument of ours, and may come
/// from threads of its own.
struct Filled {
  static constexpr size_t kBytes = size_t{4} << 20, kAlignment = 8;
  static constexpr size_t kMost = 128;  // half a GiB: some million kernels
  struct Free {
    void operator()(uint8_t* p) const { std::free(p); }
  };
  struct Piece {
    std::unique_ptr<uint8_t, Free> data;
    size_t bytes = 0;
  };

  std::mutex mutex;
  std::vector<Piece> pieces;
  int64_t lost_pieces = 0;
  size_t lost_records = 0;

  static Filled& get() {
    static auto* const filled = new Filled;  // CUPTI may still call while the process ends
    return *filled;
  }
};

void CUPTIAPI give_buffer(uint8_t** buffer, size_t* bytes, size_t* most_records) {
  *buffer = static_cast<uint8_t*>(std::aligned_alloc(Filled::kAlignment, Filled::kBytes));
  *bytes = *buffer != nullptr ? Filled::kBytes : 0;
  *most_records = 0;  // as many as fit
}

void CUPTIAPI take_buffer(CUcontext context, uint32_t stream, uint8_t* buffer, size_t /*bytes*/,
                          size_t valid_bytes) {
  Filled::Piece piece{decltype(Filled::Piece::data)(buffer), valid_bytes};
  Filled& filled = Filled::get();
  size_t dropped = 0;
  Cupti::get().dropped(context, stream, &dropped);
  const std::lock_guard lock(filled.mutex);
  filled.lost_records += dropped;
  if (valid_bytes == 0) return;
  if (filled.pieces.size() < Filled::kMost) {
    filled.pieces.push_back(std::move(piece));
  } else {
    ++filled.lost_pieces;
  }
}

uint64_t CUPTIAPI clock_of_stages() { return static_cast<uint64_t>(base::stage_clock_ns()); }

const char* copy_name(uint8_t kind) {
  switch (kind) {
    case CUPTI_ACTIVITY_MEMCPY_KIND_HTOD:
      return "copy to device";
    case CUPTI_ACTIVITY_MEMCPY_KIND_DTOH:
      return "copy to host";
    case CUPTI_ACTIVITY_MEMCPY_KIND_DTOD:
      return "copy on device";
    default:
      return "copy";
  }
}

/// Turns records into the plain form, kernels of one name sharing the work of reading it.
class Reader {
 public:
  explicit Reader(base::StageRecording& to) : to_(to) {}

  void read(const Filled::Piece& piece) {
    CUpti_Activity* record = nullptr;
    while (Cupti::get().next_record(piece.data.get(), piece.bytes, &record) == CUPTI_SUCCESS) {
      switch (record->kind) {
        case CUPTI_ACTIVITY_KIND_KERNEL:
        case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL:
          add(*reinterpret_cast<const CUpti_ActivityKernel10*>(record));
          break;
        case CUPTI_ACTIVITY_KIND_MEMCPY:
          add(*reinterpret_cast<const CUpti_ActivityMemcpy6*>(record));
          break;
        case CUPTI_ACTIVITY_KIND_MEMSET:
          add(*reinterpret_cast<const CUpti_ActivityMemset4*>(record));
          break;
        case CUPTI_ACTIVITY_KIND_RUNTIME:
        case CUPTI_ACTIVITY_KIND_DRIVER:
          add(*reinterpret_cast<const CUpti_ActivityAPI*>(record));
          break;
        default:
          break;
      }
    }
  }

  /// Ties work to the calls that queued it, once all records are read. Of other calls only those
  /// that took long are kept: the host waited there.
  void finish() {
    constexpr int64_t kLong = 10'000;  // nanoseconds
    std::unordered_map<uint32_t, size_t> by_correlation;
    for (size_t i = 0; i < calls_.size(); ++i) by_correlation.emplace(calls_[i].correlation, i);
    std::vector<int> kept(calls_.size(), -1);
    const auto keep = [&](size_t i) {
      if (kept[i] < 0) {
        kept[i] = static_cast<int>(to_.calls.size());
        to_.calls.push_back(named(calls_[i]));
      }
      return kept[i];
    };
    for (size_t w = 0; w < correlation_of_work_.size(); ++w) {
      const auto call = by_correlation.find(correlation_of_work_[w]);
      if (call != by_correlation.end()) to_.work[first_ + w].call = keep(call->second);
    }
    for (size_t i = 0; i < calls_.size(); ++i) {
      if (calls_[i].end - calls_[i].start >= kLong) keep(i);
    }
  }

 private:
  struct Call {
    CUpti_CallbackDomain domain;
    CUpti_CallbackId id;
    int64_t thread, start, end;
    uint32_t correlation;
  };

  int64_t time(uint64_t ns) const { return static_cast<int64_t>(ns) - to_.start_ns; }

  template <class Record>
  base::DeviceWork* add_work(const Record& r, base::DeviceWork::Kind kind) {
    if (r.start == 0 || r.end < r.start || time(r.start) < 0) return nullptr;
    base::DeviceWork& work = to_.work.emplace_back();
    work.kind = kind;
    work.device = static_cast<int>(r.deviceId);
    work.stream = r.streamId;
    work.start_ns = time(r.start);
    work.duration_ns = static_cast<int64_t>(r.end - r.start);
    correlation_of_work_.push_back(r.correlationId);
    return &work;
  }

  void add(const CUpti_ActivityKernel10& r) {
    base::DeviceWork* const work = add_work(r, base::DeviceWork::Kind::kKernel);
    if (work == nullptr) return;
    std::string& name = names_[r.name];
    if (name.empty() && r.name != nullptr) name = detail::kernel_name(r.name);
    work->name = name;
    work->grid = {r.gridX, r.gridY, r.gridZ};
    work->block = {r.blockX, r.blockY, r.blockZ};
    work->registers = r.registersPerThread;
    work->shared_bytes = r.staticSharedMemory + r.dynamicSharedMemory;
  }
  void add(const CUpti_ActivityMemcpy6& r) {
    base::DeviceWork* const work = add_work(r, base::DeviceWork::Kind::kCopy);
    if (work == nullptr) return;
    work->name = copy_name(r.copyKind);
    work->bytes = static_cast<int64_t>(r.bytes);
  }
  void add(const CUpti_ActivityMemset4& r) {
    base::DeviceWork* const work = add_work(r, base::DeviceWork::Kind::kFill);
    if (work == nullptr) return;
    work->name = "fill";
    work->bytes = static_cast<int64_t>(r.bytes);
  }
  void add(const CUpti_ActivityAPI& r) {
    if (r.start == 0 || r.end < r.start || time(r.start) < 0) return;
    calls_.push_back({r.kind == CUPTI_ACTIVITY_KIND_DRIVER ? CUPTI_CB_DOMAIN_DRIVER_API
                                                           : CUPTI_CB_DOMAIN_RUNTIME_API,
                      r.cbid, r.threadId, time(r.start), time(r.end), r.correlationId});
  }

  base::DeviceCall named(const Call& c) const {
    const char* name = nullptr;
    if (Cupti::get().callback_name(c.domain, c.id, &name) != CUPTI_SUCCESS) name = nullptr;
    std::string text = name != nullptr ? name : "call";
    // cudaLaunchKernel_v7000: the number is of the interface.
    if (const size_t at = text.rfind("_v"); at != std::string::npos) text.resize(at);
    return {text, c.thread, c.start, c.end - c.start};
  }

  base::StageRecording& to_;
  size_t first_ = to_.work.size();
  std::vector<uint32_t> correlation_of_work_;
  std::vector<Call> calls_;
  std::unordered_map<const char*, std::string> names_;
};

bool g_recording = false;  // one recorder, driven by one thread

}  // namespace

std::string start_gpu_recording() {
  const Cupti& cupti = Cupti::get();
  if (!cupti.trouble.empty()) return cupti.trouble;
  if (g_recording) return "";
  // Clock and thread numbers are those of stages; CUPTI wants to know before it begins.
  CUptiResult rc = cupti.set_clock(&clock_of_stages);
  if (rc == CUPTI_SUCCESS) rc = cupti.set_thread_ids(CUPTI_ACTIVITY_THREAD_ID_TYPE_SYSTEM);
  if (rc == CUPTI_SUCCESS) rc = cupti.set_callbacks(&give_buffer, &take_buffer);
  for (const CUpti_ActivityKind kind : kKinds) {
    if (rc == CUPTI_SUCCESS) rc = cupti.enable(kind);
  }
  if (rc == CUPTI_SUCCESS) {
    g_recording = true;
    return "";
  }
  for (const CUpti_ActivityKind kind : kKinds) cupti.disable(kind);
  return fmt::format("CUPTI: {} (another profiler may be at work)", cupti.said(rc));
}

void drop_gpu_recording() {
  if (!g_recording) return;
  Cupti::get().flush(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
  Filled& filled = Filled::get();
  const std::lock_guard lock(filled.mutex);
  filled.pieces.clear();
  filled.lost_pieces = 0;
  filled.lost_records = 0;
}

std::string stop_gpu_recording(base::StageRecording& recording) {
  if (!std::exchange(g_recording, false)) return "";
  const Cupti& cupti = Cupti::get();
  cupti.flush(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
  for (const CUpti_ActivityKind kind : kKinds) cupti.disable(kind);
  Filled& filled = Filled::get();
  const std::lock_guard lock(filled.mutex);
  Reader reader(recording);
  for (const Filled::Piece& piece : std::exchange(filled.pieces, {})) reader.read(piece);
  reader.finish();
  const int64_t pieces = std::exchange(filled.lost_pieces, 0);
  const size_t records = std::exchange(filled.lost_records, 0);
  if (pieces == 0 && records == 0) return "";
  return fmt::format("{} MiB and {} records of GPU work did not fit; make trace.active smaller",
                     pieces * int64_t{Filled::kBytes >> 20}, records);
}

#else

std::string start_gpu_recording() { return "segue was built without CUPTI's header"; }
void drop_gpu_recording() {}
std::string stop_gpu_recording(base::StageRecording& /*recording*/) { return ""; }

#endif

}  // namespace segue
