#if SEGUE_HAS_NCCL

#include "comm/nccl_api.h"

#include <dlfcn.h>
#include <fmt/format.h>

namespace segue::comm {
namespace {

void* open_library() {
  // Toolkits are often installed without being on the linker's path.
  for (const char* name :
       {"libnccl.so.2", "/usr/local/cuda/lib64/libnccl.so.2", "/usr/local/cuda/lib/libnccl.so.2"}) {
    if (void* library = ::dlopen(name, RTLD_NOW | RTLD_LOCAL)) return library;
  }
  return nullptr;
}

NcclApi load() {
  NcclApi api;
  void* library = open_library();
  if (library == nullptr) {
    api.trouble = "libnccl.so.2 is not on this machine (set LD_LIBRARY_PATH if it is elsewhere)";
    return api;
  }
  const auto find = [&]<class Function>(const char* name, Function& function) {
    function = reinterpret_cast<Function>(::dlsym(library, name));
    if (function == nullptr) api.trouble = fmt::format("libnccl.so.2 has no {}", name);
  };
  find("ncclGetVersion", api.get_version);
  find("ncclGetErrorString", api.error_string);
  find("ncclGetUniqueId", api.get_unique_id);
  find("ncclCommInitRankConfig", api.init_rank);
  find("ncclCommGetAsyncError", api.get_async_error);
  find("ncclCommFinalize", api.finalize);
  find("ncclCommDestroy", api.destroy);
  find("ncclCommAbort", api.abort);
  find("ncclGroupStart", api.group_start);
  find("ncclGroupEnd", api.group_end);
  find("ncclSend", api.send);
  find("ncclRecv", api.receive);
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
