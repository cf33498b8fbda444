#include "base/shared_library.h"
#include "ops/cublaslt_api.h"
#include "ops/cuda_forms.h"

namespace segue::ops::cuda {
namespace {

CublasLtApi load() {
  CublasLtApi api;
  base::SharedLibrary library("libcublasLt.so." + std::to_string(CUBLAS_VER_MAJOR));
  library.find("cublasLtGetVersion", api.get_version);
  library.find("cublasLtGetStatusString", api.status_string);
  library.find("cublasLtCreate", api.create);
  library.find("cublasLtMatrixLayoutCreate", api.layout_create);
  library.find("cublasLtMatrixLayoutDestroy", api.layout_destroy);
  library.find("cublasLtMatrixLayoutSetAttribute", api.layout_set);
  library.find("cublasLtMatmulDescCreate", api.description_create);
  library.find("cublasLtMatmulDescDestroy", api.description_destroy);
  library.find("cublasLtMatmulDescSetAttribute", api.description_set);
  library.find("cublasLtMatmulPreferenceCreate", api.preference_create);
  library.find("cublasLtMatmulPreferenceDestroy", api.preference_destroy);
  library.find("cublasLtMatmulPreferenceSetAttribute", api.preference_set);
  library.find("cublasLtMatmulAlgoConfigGetAttribute", api.algorithm_get);
  library.find("cublasLtMatmulAlgoGetHeuristic", api.heuristic);
  library.find("cublasLtMatmul", api.matmul);
  api.trouble = library.trouble();
  return api;
}

}  // namespace

const CublasLtApi& cublaslt_api() {
  static const CublasLtApi api = load();
  return api;
}

std::string gemm_library() {
  const CublasLtApi& api = cublaslt_api();
  if (!api.trouble.empty()) return api.trouble;
  const size_t version = api.get_version();  // 130100 is 13.1.0
  return "cuBLASLt " + std::to_string(version / 10000) + '.' + std::to_string(version / 100 % 100) +
         '.' + std::to_string(version % 100);
}

}  // namespace segue::ops::cuda
