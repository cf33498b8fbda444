#pragma once

#include <cstdint>
#include <string>

#include "tensor/device.h"
#include "tensor/tensor.h"

/// Which kernels full attention runs on, known without a GPU or CUDA.
namespace segue::attention {

/// Kernels of a GPU, the fastest first; kAuto: the first that can do it.
enum class Kernel : uint8_t { kAuto, kSm90, kPortable, kPlain };
inline constexpr Kernel kKernels[] = {Kernel::kSm90, Kernel::kPortable, Kernel::kPlain};

const char* to_string(Kernel kernel);
/// By its name; Error(kInvalidArgument) with the names there are.
Kernel parse_kernel(const std::string& name);

/// What the choice depends on, beside rows that lie 16-byte aligned.
struct HeadShape {
  int64_t qk_dim = 0, v_dim = 0;
  DType dtype = DType::kBf16;
};

/// Whether a kernel can do such heads on a GPU of compute capability `major`.x.
bool kernel_fits(Kernel kernel, const HeadShape& head, int major);
/// Of a GPU of compute capability `major`.x. Error(kConfig) with what it needs if `asked` cannot do
/// such heads there, Error(kUnsupported) if none can.
Kernel choose_kernel(Kernel asked, const HeadShape& head, int major);
/// The same of a device: its name. On the CPU, which has one kernel, `cpu`, asking for another is
/// an Error(kConfig).
std::string kernel_name(Kernel asked, const HeadShape& head, Device device);
/// For logs: which kernel it is and for what it was chosen.
std::string describe_kernel(Kernel asked, const HeadShape& head, Device device);

/// Which head widths each kernel gets on such a GPU, where queries and values have one width.
std::string list_kernels(DType dtype, int major);

}  // namespace segue::attention
