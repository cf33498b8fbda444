#include "tensor/tensor.h"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "tensor/buffer.h"
#include "tensor/exec.h"

namespace segue {

int64_t size_of(DType dtype) {
  switch (dtype) {
    case DType::kF64:
    case DType::kI64:
      return 8;
    case DType::kF32:
    case DType::kI32:
      return 4;
    case DType::kBf16:
    case DType::kF16:
      return 2;
    case DType::kU8:
      return 1;
  }
  return 0;
}

const char* to_string(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "f32";
    case DType::kF64:
      return "f64";
    case DType::kBf16:
      return "bf16";
    case DType::kF16:
      return "f16";
    case DType::kI32:
      return "i32";
    case DType::kI64:
      return "i64";
    case DType::kU8:
      return "u8";
  }
  return "?";
}

Tensor::Tensor(void* memory, DType type, Device where, std::initializer_list<int64_t> shape)
    : data(memory), dtype(type), device(where), rank(static_cast<int>(shape.size())) {
  SEGUE_ASSERT(rank >= 1 && rank <= kMaxRank, "tensors have one to four dimensions");
  std::copy(shape.begin(), shape.end(), sizes.begin());
  int64_t stride = 1;
  for (int d = rank - 1; d >= 0; --d) {
    strides[static_cast<size_t>(d)] = stride;
    stride *= sizes[static_cast<size_t>(d)];
  }
}

int64_t Tensor::elements() const {
  int64_t n = rank > 0 ? 1 : 0;
  for (int d = 0; d < rank; ++d) n *= size(d);
  return n;
}

bool Tensor::is_contiguous() const {
  int64_t expected = 1;
  for (int d = rank - 1; d >= 0; --d) {
    if (size(d) != 1 && stride(d) != expected) return elements() == 0;
    expected *= size(d);
  }
  return true;
}

Tensor Tensor::narrow(int dim, int64_t begin, int64_t count) const {
  SEGUE_ASSERT(dim >= 0 && dim < rank, "narrow: no such dimension");
  SEGUE_ASSERT(begin >= 0 && count >= 0 && count <= size(dim) - begin, "narrow: out of range");
  Tensor view = *this;
  if (data != nullptr) view.data = static_cast<char*>(data) + begin * stride(dim) * size_of(dtype);
  view.sizes[static_cast<size_t>(dim)] = count;
  return view;
}

Tensor Tensor::column(int64_t index) const {
  SEGUE_ASSERT(rank == 2, "column: of a matrix");
  Tensor view = narrow(1, index, 1);
  view.rank = 1;
  return view;
}

Tensor Tensor::select(int64_t index) const {
  SEGUE_ASSERT(rank >= 2, "select: a tensor of rank one has no sub-tensor");
  const Tensor narrowed = narrow(0, index, 1);
  Tensor view = narrowed;
  view.rank = rank - 1;
  for (size_t d = 0; d + 1 < static_cast<size_t>(rank); ++d) {
    view.sizes[d] = narrowed.sizes[d + 1];
    view.strides[d] = narrowed.strides[d + 1];
  }
  return view;
}

Tensor Tensor::reshape(std::initializer_list<int64_t> shape) const {
  SEGUE_ASSERT(is_contiguous(), "reshape of a strided tensor");
  Tensor view(data, dtype, device, shape);
  SEGUE_ASSERT(view.elements() == elements(), "reshape changes the number of elements");
  return view;
}

Tensor Tensor::split_columns(int64_t heads) const {
  SEGUE_ASSERT(rank == 2 && stride(1) == 1 && heads > 0 && size(1) % heads == 0,
               "split_columns: wrong shape");
  Tensor view = *this;
  view.rank = 3;
  const int64_t dim = size(1) / heads;
  view.sizes = {size(0), heads, dim, 0};
  view.strides = {stride(0), dim, 1, 0};
  return view;
}

std::string Tensor::shape_string() const {
  std::string text = fmt::format("{}[", to_string(dtype));
  for (int d = 0; d < rank; ++d) text += fmt::format("{}{}", d == 0 ? "" : ", ", size(d));
  return text + "]";
}

void copy(const Tensor& to, const Tensor& from, const Stream* stream) {
  SEGUE_ASSERT(to.dtype == from.dtype && to.elements() == from.elements(), "copy: shapes differ");
  SEGUE_ASSERT(to.is_contiguous() && from.is_contiguous(), "copy: strided tensor");
  copy_bytes(to.data, to.device, from.data, from.device, static_cast<size_t>(to.bytes()), stream);
}

void zero(const Tensor& t, const Stream* stream) {
  if (t.elements() == 0) return;
  const bool flat = t.is_contiguous();
  SEGUE_ASSERT(flat || (t.rank == 2 && t.stride(1) == 1), "zero: unsupported strides");
  const int64_t rows = flat ? 1 : t.size(0);
  const int64_t row_bytes = flat ? t.bytes() : t.size(1) * size_of(t.dtype);
  const int64_t pitch = flat ? row_bytes : t.stride(0) * size_of(t.dtype);
  if (t.device.is_cuda()) {
    detail::cuda_zero(t.device.index, t.data, pitch, row_bytes, rows, stream);
    return;
  }
  for (int64_t r = 0; r < rows; ++r) {
    std::memset(static_cast<char*>(t.data) + r * pitch, 0, static_cast<size_t>(row_bytes));
  }
}

void require_cpu(const Exec& exec, const char* op) {
  if (exec.device.is_cpu()) return;
  fail(ErrorCode::kUnsupported,
       fmt::format("{} has no CUDA kernel in this build; use --device cpu", op));
}

}  // namespace segue
