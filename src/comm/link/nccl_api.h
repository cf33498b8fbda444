#pragma once

#include <string>

#include <nccl.h>

namespace segue::comm {

/// The functions of NCCL that are used here, out of the library that this machine has: a program
/// that needs none of them starts without it. Included by files of the NCCL build only.
struct NcclApi {
  decltype(&::ncclGetVersion) get_version = nullptr;
  decltype(&::ncclGetErrorString) error_string = nullptr;
  decltype(&::ncclGetUniqueId) get_unique_id = nullptr;
  decltype(&::ncclCommInitRankConfig) init_rank = nullptr;
  decltype(&::ncclCommGetAsyncError) get_async_error = nullptr;
  decltype(&::ncclCommFinalize) finalize = nullptr;
  decltype(&::ncclCommDestroy) destroy = nullptr;
  decltype(&::ncclCommAbort) abort = nullptr;
  decltype(&::ncclGroupStart) group_start = nullptr;
  decltype(&::ncclGroupEnd) group_end = nullptr;
  decltype(&::ncclSend) send = nullptr;
  decltype(&::ncclRecv) receive = nullptr;

  std::string trouble;  // why it cannot be used; empty when it can
};

/// Loaded on the first call.
const NcclApi& nccl_api();

/// Why a library of this version does not serve a program built with that header; empty if it does.
std::string version_trouble(int header, int library);

}  // namespace segue::comm
