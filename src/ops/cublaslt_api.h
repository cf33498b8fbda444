#pragma once

#include <string>

#include <cublasLt.h>

namespace segue::ops::cuda {

/// The functions of cuBLASLt that are used here. The library takes 0.1 s and 230 MB to load, so it
/// is looked for when the first product on a GPU needs it.
struct CublasLtApi {
  decltype(&::cublasLtGetVersion) get_version = nullptr;
  decltype(&::cublasLtGetStatusString) status_string = nullptr;
  decltype(&::cublasLtCreate) create = nullptr;
  decltype(&::cublasLtMatrixLayoutCreate) layout_create = nullptr;
  decltype(&::cublasLtMatrixLayoutDestroy) layout_destroy = nullptr;
  decltype(&::cublasLtMatrixLayoutSetAttribute) layout_set = nullptr;
  decltype(&::cublasLtMatmulDescCreate) description_create = nullptr;
  decltype(&::cublasLtMatmulDescDestroy) description_destroy = nullptr;
  decltype(&::cublasLtMatmulDescSetAttribute) description_set = nullptr;
  decltype(&::cublasLtMatmulPreferenceCreate) preference_create = nullptr;
  decltype(&::cublasLtMatmulPreferenceDestroy) preference_destroy = nullptr;
  decltype(&::cublasLtMatmulPreferenceSetAttribute) preference_set = nullptr;
  decltype(&::cublasLtMatmulAlgoConfigGetAttribute) algorithm_get = nullptr;
  decltype(&::cublasLtMatmulAlgoGetHeuristic) heuristic = nullptr;
  decltype(&::cublasLtMatmul) matmul = nullptr;

  std::string trouble;  // why it cannot be used; empty when it can
};

/// Loaded on the first call.
const CublasLtApi& cublaslt_api();

}  // namespace segue::ops::cuda
