#include <array>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>
#include <utility>

#include "ops/cublaslt_api.h"
#include "ops/cuda_forms.h"
#include "ops/gemm.cuh"
#include "tensor/buffer.h"

// Products by cuBLASLt. It computes column-major, where our c is its transpose: c^T = op(b)^T
// op(a)^T, so the operands change places and nothing is copied.

namespace segue::ops::cuda {
namespace {

void check_cublas(cublasStatus_t rc, std::source_location at = std::source_location::current()) {
  if (rc == CUBLAS_STATUS_SUCCESS) return;
  fail(ErrorCode::kUnsupported, std::string("cuBLASLt: ") + cublaslt_api().status_string(rc) +
                                    " (" + at.file_name() + ":" + std::to_string(at.line()) + ")");
}

// ---- descriptors ----

class Layout {
 public:
  Layout(cudaDataType_t type, int64_t rows, int64_t columns, int64_t ld, int64_t batches,
         int64_t batch_stride) {
    check_cublas(cublaslt_api().layout_create(&handle_, type, static_cast<uint64_t>(rows),
                                              static_cast<uint64_t>(columns), ld));
    const auto count = static_cast<int32_t>(batches);
    set(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, count);
    set(CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, batch_stride);
  }
  ~Layout() { cublaslt_api().layout_destroy(handle_); }
  Layout(const Layout&) = delete;
  Layout& operator=(const Layout&) = delete;
  cublasLtMatrixLayout_t get() const { return handle_; }

 private:
  template <class V>
  void set(cublasLtMatrixLayoutAttribute_t name, const V& value) {
    check_cublas(cublaslt_api().layout_set(handle_, name, &value, sizeof(value)));
  }
  cublasLtMatrixLayout_t handle_ = nullptr;
};

class Description {
 public:
  Description() {
    check_cublas(cublaslt_api().description_create(&handle_, CUBLAS_COMPUTE_32F, CUDA_R_32F));
  }
  ~Description() { cublaslt_api().description_destroy(handle_); }
  Description(const Description&) = delete;
  Description& operator=(const Description&) = delete;
  template <class V>
  void set(cublasLtMatmulDescAttributes_t name, const V& value) {
    check_cublas(cublaslt_api().description_set(handle_, name, &value, sizeof(value)));
  }
  cublasLtMatmulDesc_t get() const { return handle_; }

 private:
  cublasLtMatmulDesc_t handle_ = nullptr;
};

class Preference {
 public:
  Preference() { check_cublas(cublaslt_api().preference_create(&handle_)); }
  ~Preference() { cublaslt_api().preference_destroy(handle_); }
  Preference(const Preference&) = delete;
  Preference& operator=(const Preference&) = delete;
  template <class V>
  void set(cublasLtMatmulPreferenceAttributes_t name, const V& value) {
    check_cublas(cublaslt_api().preference_set(handle_, name, &value, sizeof(value)));
  }
  cublasLtMatmulPreference_t get() const { return handle_; }

 private:
  cublasLtMatmulPreference_t handle_ = nullptr;
};

// ---- one product, as cuBLASLt sees it ----

struct Product {
  const void *a, *b, *addend;
  void* c;
  const void* bias;
  cudaDataType_t in, out;
  bool trans_a, trans_b;
  int64_t m, n, k;
  int64_t lda, ldb, ldc, ld_addend;
  float beta;
  Batch batch;
};

/// Largest power of two, up to 256, that divides the address.
uint32_t alignment_of(const void* p) {
  const auto address = reinterpret_cast<uintptr_t>(p);
  uint32_t alignment = 256;
  while (address % alignment != 0) alignment /= 2;
  return alignment;
}

/// Numbers of tokens differ from step to step. They are taken in steps of a sixteenth to an eighth
/// of their size, so that the algorithm, and with it the order of every sum, belongs to the class.
int64_t size_class(int64_t size) {
  int64_t step = 8;
  while (step * 8 <= size) step *= 2;
  return divide_up(size, step) * step;
}

using ProductClass = std::array<int64_t, 21>;

/// Everything that the choice of an algorithm may depend on.
ProductClass class_of(const Product& p) {
  return {p.in,
          p.out,
          p.trans_a,
          p.trans_b,
          p.m,
          p.n,
          p.k,
          p.lda,
          p.ldb,
          p.ldc,
          p.ld_addend,
          p.bias != nullptr,
          p.beta != 0,
          p.addend == p.c,
          p.batch.count,
          p.batch.a,
          p.batch.b,
          p.batch.c,
          alignment_of(p.a) | int64_t{alignment_of(p.b)} << 16,
          alignment_of(p.c) | int64_t{alignment_of(p.addend)} << 16,
          p.bias == nullptr ? 0 : alignment_of(p.bias)};
}

/// The product that stands for its class: sizes that are not the length of somebody's rows grow to
/// the next step.
Product representative(Product p) {
  if (!p.trans_a) p.m = size_class(p.m);
  if (p.trans_a && !p.trans_b) p.k = size_class(p.k);
  return p;
}

/// Partial products of a cut k are added up by a second kernel.
int64_t kernels_of(const cublasLtMatmulAlgo_t& algorithm) {
  int32_t parts = 1;
  size_t written = 0;
  check_cublas(cublaslt_api().algorithm_get(&algorithm, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &parts,
                                            sizeof(parts), &written));
  return parts > 1 ? 2 : 1;
}

/// Owns the descriptors of a product for one call.
class Prepared {
 public:
  explicit Prepared(const Product& p)
      : b_(p.in, p.trans_b ? p.k : p.n, p.trans_b ? p.n : p.k, p.ldb, p.batch.count, p.batch.b),
        a_(p.in, p.trans_a ? p.m : p.k, p.trans_a ? p.k : p.m, p.lda, p.batch.count, p.batch.a),
        addend_(p.out, p.n, p.m, p.ld_addend, p.batch.count, p.batch.c),
        c_(p.out, p.n, p.m, p.ldc, p.batch.count, p.batch.c) {
    const cublasOperation_t first = p.trans_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasOperation_t second = p.trans_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    description_.set(CUBLASLT_MATMUL_DESC_TRANSA, first);
    description_.set(CUBLASLT_MATMUL_DESC_TRANSB, second);
    if (p.bias == nullptr) return;
    const cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
    description_.set(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue);
    description_.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.bias);
    if (p.batch.count > 1) {
      description_.set(CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE, p.batch.bias);
    }
  }

  bool choose(cublasLtHandle_t handle, const Product& p, size_t workspace_bytes,
              cublasLtMatmulAlgo_t& algorithm) const {
    Preference preference;
    preference.set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace_bytes);
    // The other schemes add partial products in the type of the result, or in no fixed order. A
    // short k is not worth a second kernel.
    constexpr int64_t kShort = 4096;
    const auto schemes = static_cast<uint32_t>(
        p.k <= kShort ? CUBLASLT_REDUCTION_SCHEME_NONE : CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
    preference.set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, schemes);
    preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment_of(p.b));
    preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment_of(p.a));
    preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment_of(p.addend));
    preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment_of(p.c));
    cublasLtMatmulHeuristicResult_t result{};
    int found = 0;
    const cublasStatus_t rc =
        cublaslt_api().heuristic(handle, description_.get(), b_.get(), a_.get(), addend_.get(),
                                 c_.get(), preference.get(), 1, &result, &found);
    if (rc != CUBLAS_STATUS_SUCCESS || found == 0) return false;
    algorithm = result.algo;
    return true;
  }

  cublasStatus_t run(cublasLtHandle_t handle, const Product& p,
                     const cublasLtMatmulAlgo_t& algorithm, const Buffer& workspace,
                     cudaStream_t stream) const {
    const float alpha = 1;
    count_launches(kernels_of(algorithm));
    return cublaslt_api().matmul(handle, description_.get(), &alpha, p.b, b_.get(), p.a, a_.get(),
                                 &p.beta, p.addend, addend_.get(), p.c, c_.get(), &algorithm,
                                 workspace.data(), static_cast<size_t>(workspace.bytes()), stream);
  }

 private:
  Description description_;
  Layout b_, a_, addend_, c_;
};

// ---- library handle, workspace and choices of one stream ----

class Context {
 public:
  explicit Context(Device device) : workspace_(device, kWorkspaceBytes, Purpose::kScratch) {
    const std::string& trouble = cublaslt_api().trouble;
    if (!trouble.empty()) {
      fail(ErrorCode::kUnsupported,
           "matrix products on the GPU need cuBLASLt, a part of the CUDA toolkit: " + trouble);
    }
    check_cublas(cublaslt_api().create(&handle_));
  }

  /// False if the library has no algorithm for this product.
  bool run(const Product& p, cudaStream_t stream) {
    const Prepared prepared(p);
    const cublasLtMatmulAlgo_t* algorithm = of_class(representative(p));
    if (algorithm != nullptr &&
        prepared.run(handle_, p, *algorithm, workspace_, stream) == CUBLAS_STATUS_SUCCESS) {
      return true;
    }
    // What fits the class may not fit this size; then the size is a class of its own.
    algorithm = of_class(p);
    if (algorithm == nullptr) return false;
    check_cublas(prepared.run(handle_, p, *algorithm, workspace_, stream));
    return true;
  }

 private:
  static constexpr int64_t kWorkspaceBytes = int64_t{64} << 20;

  struct Choice {
    bool exists = false;
    cublasLtMatmulAlgo_t algorithm{};
  };

  const cublasLtMatmulAlgo_t* of_class(const Product& p) {
    const auto [at, is_new] = choices_.try_emplace(class_of(p));
    Choice& choice = at->second;
    if (is_new) {
      choice.exists = Prepared(p).choose(handle_, p, kWorkspaceBytes, choice.algorithm);
    }
    return choice.exists ? &choice.algorithm : nullptr;
  }

  cublasLtHandle_t handle_ = nullptr;
  Buffer workspace_;  // one per stream: products of one stream never overlap
  std::map<ProductClass, Choice> choices_;
};

Context& context_of(const Exec& exec, cudaStream_t stream) {
  // Never destroyed: at exit the CUDA runtime may be gone before we are.
  static auto& contexts = *new std::map<std::pair<int, cudaStream_t>, std::unique_ptr<Context>>;
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  std::unique_ptr<Context>& context = contexts[{exec.device.index, stream}];
  if (context == nullptr) context = std::make_unique<Context>(exec.device);
  return *context;
}

// ---- what is left when k is zero ----

template <class T>
__global__ void add_only_kernel(int64_t rows, int64_t columns, const T* bias,
                                Matrix<const T> addend, Matrix<T> c) {
  const int64_t n = rows * columns;
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += step) {
    const int64_t r = i / columns, j = i % columns;
    float value = bias != nullptr ? to_float(bias[j]) : 0.f;
    if (addend.data != nullptr) value += to_float(addend.row(r)[j]);
    c.row(r)[j] = from_float<T>(value);
  }
}

void add_only(const Exec& exec, const Tensor& c, const GemmExtra& extra, const Batch& batch) {
  const cudaStream_t stream = stream_of(exec);
  dispatch_type(c.dtype, [&](auto zero_value) {
    using T = decltype(zero_value);
    Matrix<T> to = matrix_of<T>(c);
    Matrix<const T> addend = extra.accumulate ? input_of<T>(c) : input_of<T>(extra.residual);
    const T* bias = device_ptr<T>(extra.bias);
    for (int64_t i = 0; i < batch.count; ++i) {
      const int64_t blocks = std::min(divide_up(c.elements(), kThreads), kMaxBlocks);
      add_only_kernel<T><<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(
          c.size(0), c.size(1), bias, addend, to);
      check_launch();
      to.data += batch.c;
      if (addend.data != nullptr) addend.data += batch.c;
      if (bias != nullptr) bias += batch.bias;
    }
  });
}

cudaDataType_t cublas_type(DType dtype) { return dtype == DType::kBf16 ? CUDA_R_16BF : CUDA_R_32F; }

DType product_type(const Exec& exec) {
  if (exec.precision == Precision::kF64) {
    fail(ErrorCode::kUnsupported, "products in double exist on the CPU only; use --device cpu");
  }
  return exec.rounds_to_bf16() ? DType::kBf16 : DType::kF32;
}

/// Rows of one element or a single row may have any stride; cuBLASLt wants one that fits.
int64_t leading(const Tensor& t) {
  return t.size(0) <= 1 ? std::max<int64_t>(1, t.size(1)) : t.stride(0);
}

void check_operands(Trans trans_a, const Tensor& a, Trans trans_b, const Tensor& b, const Tensor& c,
                    const GemmExtra& extra) {
  const auto is_matrix = [](const Tensor& t) {
    return t.rank == 2 && (t.stride(1) == 1 || t.size(1) <= 1);
  };
  SEGUE_ASSERT(is_matrix(a) && is_matrix(b) && is_matrix(c), "gemm: matrices, unit column stride");
  const bool ta = trans_a == Trans::kYes, tb = trans_b == Trans::kYes;
  SEGUE_ASSERT(a.size(ta ? 1 : 0) == c.size(0), "gemm: rows of op(a) and c differ");
  SEGUE_ASSERT(b.size(tb ? 0 : 1) == c.size(1), "gemm: columns of op(b) and c differ");
  SEGUE_ASSERT(a.size(ta ? 0 : 1) == b.size(tb ? 1 : 0),
               "gemm: inner sizes of op(a) and op(b) differ");
  SEGUE_ASSERT(!extra.bias || (extra.bias.is_contiguous() && extra.bias.elements() == c.size(1)),
               "gemm: bias must be a vector of n");
  SEGUE_ASSERT(!extra.residual ||
                   (is_matrix(extra.residual) && !extra.accumulate &&
                    extra.residual.size(0) == c.size(0) && extra.residual.size(1) == c.size(1)),
               "gemm: residual must have the shape of c, and c must not be added to");
  SEGUE_ASSERT(!extra.residual || c.elements() == 0 || extra.residual.data != c.data,
               "gemm: residual must not be c itself");
}

}  // namespace

Tensor in_type(const Exec& exec, const Tensor& t, DType dtype) {
  if (!t || t.dtype == dtype) return t;
  Tensor to = exec.rounded_parameters.find(t, dtype);
  if (to) return to;
  if (t.rank == 1) {
    to = exec.arena->tensor(dtype, {t.size(0)});
  } else if (t.rank == 2) {
    to = exec.arena->tensor(dtype, {t.size(0), t.size(1)});
  } else {
    to = exec.arena->tensor(dtype, {t.size(0), t.size(1), t.size(2)});
  }
  convert(exec, t, to);
  return to;
}

Tensor product_operand(const Exec& exec, const Tensor& t) {
  return in_type(exec, t, product_type(exec));
}

void gemm_batch(const Exec& exec, Trans trans_a, const Tensor& a, Trans trans_b, const Tensor& b,
                const Tensor& c, const GemmExtra& extra, const Batch& batch) {
  check_operands(trans_a, a, trans_b, b, c, extra);
  if (c.elements() == 0 || batch.count == 0) return;
  const int64_t k = a.size(trans_a == Trans::kYes ? 0 : 1);
  if (k == 0) return add_only(exec, c, extra, batch);

  Product p{};
  p.a = a.data;
  p.b = b.data;
  p.c = c.data;
  const Tensor& addend = extra.residual ? extra.residual : c;
  p.addend = addend.data;
  p.bias = extra.bias ? extra.bias.data : nullptr;
  p.in = cublas_type(a.dtype);
  p.out = cublas_type(c.dtype);
  p.trans_a = trans_a == Trans::kYes;
  p.trans_b = trans_b == Trans::kYes;
  p.m = c.size(0);
  p.n = c.size(1);
  p.k = k;
  p.lda = leading(a);
  p.ldb = leading(b);
  p.ldc = leading(c);
  p.ld_addend = leading(addend);
  p.beta = extra.accumulate || extra.residual ? 1.f : 0.f;
  p.batch = batch;
  const cudaStream_t stream = stream_of(exec);
  Context& context = context_of(exec, stream);
  if (context.run(p, stream)) return;
  // Some epilogues exist for single products only.
  p.batch = {};
  for (int64_t i = 0; i < batch.count; ++i) {
    const auto at = [i](const void* data, int64_t distance, DType dtype) {
      return static_cast<const char*>(data) + i * distance * size_of(dtype);
    };
    p.a = at(a.data, batch.a, a.dtype);
    p.b = at(b.data, batch.b, b.dtype);
    p.c = const_cast<char*>(at(c.data, batch.c, c.dtype));
    p.addend = at(addend.data, batch.c, c.dtype);
    if (extra.bias) p.bias = at(extra.bias.data, batch.bias, c.dtype);
    if (batch.count == 1 || !context.run(p, stream)) {
      fail(ErrorCode::kUnsupported, "cuBLASLt has no algorithm for a product of " +
                                        std::to_string(p.m) + " x " + std::to_string(p.n) + " x " +
                                        std::to_string(p.k));
    }
  }
}

void gemm(const Exec& exec, Trans trans_a, const Tensor& a, Trans trans_b, const Tensor& b,
          const Tensor& c, const GemmExtra& extra) {
  const Arena::Mark mark(*exec.arena);
  // The library adds bias and residual in the type of the result.
  GemmExtra used = extra;
  used.bias = in_type(exec, extra.bias, c.dtype);
  used.residual = in_type(exec, extra.residual, c.dtype);
  gemm_batch(exec, trans_a, product_operand(exec, a), trans_b, product_operand(exec, b), c, used,
             {});
}

bool gemm_each(const Exec& exec, Trans trans_a, const Tensor& a, Trans trans_b, const Tensor& b,
               const Tensor& c, bool accumulate) {
  const DType type = product_type(exec);
  if (a.dtype != type || b.dtype != type) return false;  // conversions are by matrix
  Batch batch;
  batch.count = c.size(0);
  batch.a = a.stride(0);
  batch.b = b.stride(0);
  batch.c = c.stride(0);
  gemm_batch(exec, trans_a, a.select(0), trans_b, b.select(0), c.select(0),
             {.accumulate = accumulate}, batch);
  return true;
}

}  // namespace segue::ops::cuda
