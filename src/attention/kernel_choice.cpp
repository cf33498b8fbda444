#include "attention/kernel_choice.h"

#include <fmt/format.h>

#include "base/error.h"

namespace segue::attention {
namespace {

constexpr int64_t kMostColumns = 256;  // of a head, on any GPU

const char* needs(Kernel kernel) {
  switch (kernel) {
    case Kernel::kSm90:
      return "a Hopper GPU (compute 9.x), bf16 or f16, and heads of a multiple of 8 up to 256 "
             "columns, the same for queries and values";
    case Kernel::kPortable:
      return "a GPU of compute 8.0 or later, bf16 or f16, and heads of 32, 64, 128 or 256 columns, "
             "the same for queries and values";
    default:
      return "heads of at most 256 columns";
  }
}

std::string describe(const HeadShape& head) {
  const std::string columns = head.qk_dim == head.v_dim
                                  ? fmt::format("{}", head.qk_dim)
                                  : fmt::format("{} (values {})", head.qk_dim, head.v_dim);
  return fmt::format("heads of {}, {}", columns, segue::to_string(head.dtype));
}

}  // namespace

const char* to_string(Kernel kernel) {
  switch (kernel) {
    case Kernel::kSm90:
      return "sm90";
    case Kernel::kPortable:
      return "portable";
    case Kernel::kPlain:
      return "plain";
    default:
      return "auto";
  }
}

Kernel parse_kernel(const std::string& name) {
  if (name == to_string(Kernel::kAuto)) return Kernel::kAuto;
  for (const Kernel kernel : kKernels) {
    if (name == to_string(kernel)) return kernel;
  }
  fail(ErrorCode::kInvalidArgument,
       fmt::format("there is no attention kernel `{}`; use auto, sm90, portable or plain", name));
}

bool kernel_fits(Kernel kernel, const HeadShape& head, int major) {
  const int64_t dim = head.qk_dim;
  const bool half = size_of(head.dtype) == 2 && head.v_dim == dim;
  switch (kernel) {
    case Kernel::kSm90:
      return half && major == 9 && dim <= kMostColumns && dim % 8 == 0;
    case Kernel::kPortable:
      return half && major >= 8 && (dim == 32 || dim == 64 || dim == 128 || dim == 256);
    case Kernel::kPlain:
      return dim <= kMostColumns && head.v_dim <= kMostColumns;
    default:
      return false;
  }
}

Kernel choose_kernel(Kernel asked, const HeadShape& head, int major) {
  if (asked == Kernel::kAuto) {
    for (const Kernel kernel : kKernels) {
      if (kernel_fits(kernel, head, major)) return kernel;
    }
    fail(ErrorCode::kUnsupported,
         fmt::format("attention on a GPU needs {}, not {}; use --device cpu, or smaller heads",
                     needs(Kernel::kPlain), describe(head)));
  }
  if (kernel_fits(asked, head, major)) return asked;
  fail(ErrorCode::kConfig,
       fmt::format("attention kernel `{}` needs {}; here: {} on compute {}.x. Use `auto`, which "
                   "takes the fastest kernel that can do it",
                   to_string(asked), needs(asked), describe(head), major));
}

std::string kernel_name(Kernel asked, const HeadShape& head, Device device) {
  if (device.is_cuda()) {
    return to_string(choose_kernel(asked, head, cuda_facts(device.index).major));
  }
  if (asked != Kernel::kAuto) {
    fail(ErrorCode::kConfig, fmt::format("attention kernel `{}` runs on a GPU only, and this is "
                                         "the CPU; use `auto`, or --device cuda",
                                         to_string(asked)));
  }
  return "cpu";
}

std::string describe_kernel(Kernel asked, const HeadShape& head, Device device) {
  return fmt::format("{}: kernel {}{}", describe(head), kernel_name(asked, head, device),
                     asked == Kernel::kAuto ? "" : ", as asked for");
}

std::string list_kernels(DType dtype, int major) {
  std::string text;
  for (const Kernel kernel : kKernels) {
    std::string widths;
    int64_t count = 0;
    for (int64_t dim = 8; dim <= kMostColumns; dim += 8) {
      const HeadShape head{dim, dim, dtype};
      if (choose_kernel(Kernel::kAuto, head, major) != kernel) continue;
      widths += fmt::format(" {}", dim);
      ++count;
    }
    if (count == kMostColumns / 8) widths = fmt::format(" multiples of 8 up to {}", kMostColumns);
    if (kernel == Kernel::kPlain)
      widths = fmt::format(" {} up to {}", text.empty() ? "all" : "the rest", kMostColumns);
    if (!widths.empty())
      text += fmt::format("{}{}:{}", text.empty() ? "" : "; ", to_string(kernel), widths);
  }
  return text;
}

}  // namespace segue::attention
