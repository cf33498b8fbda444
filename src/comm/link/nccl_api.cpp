#if SEGUE_HAS_NCCL

#include "comm/link/nccl_api.h"

#include <fmt/format.h>

#include "base/shared_library.h"

namespace segue::comm {
namespace {

NcclApi load() {
  NcclApi api;
  base::SharedLibrary library("libnccl.so.2");
  library.find("ncclGetVersion", api.get_version);
  library.find("ncclGetErrorString", api.error_string);
  library.find("ncclGetUniqueId", api.get_unique_id);
  library.find("ncclCommInitRankConfig", api.init_rank);
  library.find("ncclCommGetAsyncError", api.get_async_error);
  library.find("ncclCommFinalize", api.finalize);
  library.find("ncclCommDestroy", api.destroy);
  library.find("ncclCommAbort", api.abort);
  library.find("ncclGroupStart", api.group_start);
  library.find("ncclGroupEnd", api.group_end);
  library.find("ncclSend", api.send);
  library.find("ncclRecv", api.receive);
  api.trouble = library.trouble();
  if (!api.trouble.empty()) return api;
  int version = 0;
  api.get_version(&version);
  api.trouble = version_trouble(NCCL_VERSION_CODE, version);
  return api;
}

}  // namespace

std::string version_trouble(int header, int library) {
  // 22809 is 2.28.9: the last two digits are fixes only.
  if (library / 10000 == header / 10000 && library / 100 >= header / 100) return "";
  return fmt::format(
      "libnccl.so.2 is version {}, but this segue was built for {} and needs one of the same major "
      "version that is not older, fixes aside",
      library, header);
}

const NcclApi& nccl_api() {
  static const NcclApi api = load();
  return api;
}

}  // namespace segue::comm

#endif
