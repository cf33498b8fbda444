#include <string>

#include <cuda.h>
#include <cuda_runtime.h>

#include "base/error.h"
#include "tensor/growing_buffer.h"

// Addresses and memory apart, by the driver's calls for it. They are looked up rather than linked:
// a machine without a driver must be able to start the program.

namespace segue::detail {
namespace {

constexpr unsigned kVersion = 12000;  // of CUDA, whose form of these calls is meant

template <class F>
F* driver_call(const char* name) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result{};
  const cudaError_t rc =
      cudaGetDriverEntryPointByVersion(name, &found, kVersion, cudaEnableDefault, &result);
  if (rc != cudaSuccess || result != cudaDriverEntryPointSuccess || found == nullptr) {
    fail(ErrorCode::kUnsupported,
         std::string("the CUDA driver has no ") + name + "; tables that grow need a newer one");
  }
  return reinterpret_cast<F*>(found);
}

struct Driver {
  decltype(cuMemGetAllocationGranularity)* granularity =
      driver_call<decltype(cuMemGetAllocationGranularity)>("cuMemGetAllocationGranularity");
  decltype(cuMemAddressReserve)* reserve =
      driver_call<decltype(cuMemAddressReserve)>("cuMemAddressReserve");
  decltype(cuMemAddressFree)* unreserve =
      driver_call<decltype(cuMemAddressFree)>("cuMemAddressFree");
  decltype(cuMemCreate)* create = driver_call<decltype(cuMemCreate)>("cuMemCreate");
  decltype(cuMemRelease)* release = driver_call<decltype(cuMemRelease)>("cuMemRelease");
  decltype(cuMemMap)* map = driver_call<decltype(cuMemMap)>("cuMemMap");
  decltype(cuMemUnmap)* unmap = driver_call<decltype(cuMemUnmap)>("cuMemUnmap");
  decltype(cuMemSetAccess)* set_access = driver_call<decltype(cuMemSetAccess)>("cuMemSetAccess");
};

const Driver& driver() {
  static const Driver calls;
  return calls;
}

void check(CUresult rc, const char* what) {
  if (rc == CUDA_SUCCESS) return;
  const ErrorCode code =
      rc == CUDA_ERROR_OUT_OF_MEMORY ? ErrorCode::kOutOfMemory : ErrorCode::kUnsupported;
  fail(code, std::string("CUDA: ") + what + ": error " + std::to_string(rc));
}

CUmemAllocationProp properties(int index) {
  CUmemAllocationProp p{};
  p.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  p.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  p.location.id = index;
  return p;
}

/// The calls need the device's context.
class ContextScope {
 public:
  explicit ContextScope(int index) {
    cudaGetDevice(&previous_);
    cudaSetDevice(index);
    cudaFree(nullptr);
  }
  ~ContextScope() { cudaSetDevice(previous_); }
  ContextScope(const ContextScope&) = delete;
  ContextScope& operator=(const ContextScope&) = delete;

 private:
  int previous_ = 0;
};

}  // namespace

int64_t cuda_granularity(int index) {
  require_available(Device::cuda(index));
  const ContextScope scope(index);
  size_t bytes = 0;
  const CUmemAllocationProp p = properties(index);
  check(driver().granularity(&bytes, &p, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
        "size of memory pages");
  return static_cast<int64_t>(bytes);
}

void* cuda_reserve(int index, int64_t bytes) {
  const ContextScope scope(index);
  CUdeviceptr at = 0;
  check(driver().reserve(&at, static_cast<size_t>(bytes), 0, 0, 0), "reserving addresses");
  return reinterpret_cast<void*>(at);
}

uint64_t cuda_map(int index, void* at, int64_t bytes) {
  const ContextScope scope(index);
  const CUmemAllocationProp p = properties(index);
  const auto size = static_cast<size_t>(bytes);
  const auto place = reinterpret_cast<CUdeviceptr>(at);
  CUmemGenericAllocationHandle handle = 0;
  check(driver().create(&handle, size, &p, 0), "more memory for a table");
  CUresult rc = driver().map(place, size, 0, handle, 0);
  if (rc == CUDA_SUCCESS) {
    CUmemAccessDesc access{};
    access.location = p.location;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    rc = driver().set_access(place, size, &access, 1);
    if (rc != CUDA_SUCCESS) driver().unmap(place, size);
  }
  if (rc != CUDA_SUCCESS) {
    driver().release(handle);
    check(rc, "mapping memory");
  }
  cuda_zero(index, at, bytes, bytes, 1, nullptr);
  return handle;
}

void cuda_unmap(int index, void* at, int64_t bytes, uint64_t handle) noexcept {
  const ContextScope scope(index);
  cudaDeviceSynchronize();  // nothing may still read it
  driver().unmap(reinterpret_cast<CUdeviceptr>(at), static_cast<size_t>(bytes));
  driver().release(handle);
}

void cuda_unreserve(int index, void* at, int64_t bytes) noexcept {
  const ContextScope scope(index);
  driver().unreserve(reinterpret_cast<CUdeviceptr>(at), static_cast<size_t>(bytes));
}

}  // namespace segue::detail
