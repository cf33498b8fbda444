#include "base/shared_library.h"

#include <utility>

#include <dlfcn.h>
#include <fmt/format.h>

namespace segue::base {

SharedLibrary::SharedLibrary(std::string name) : name_(std::move(name)) {
  // Toolkits are often installed without being on the linker's path.
  for (const char* folder : {"", "/usr/local/cuda/lib64/", "/usr/local/cuda/lib/",
                             "/usr/local/cuda/extras/CUPTI/lib64/"}) {
    handle_ = ::dlopen((folder + name_).c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle_ != nullptr) return;
  }
  trouble_ =
      fmt::format("{} is not on this machine (set LD_LIBRARY_PATH if it is elsewhere)", name_);
}

void* SharedLibrary::address(const char* symbol) {
  if (handle_ == nullptr) return nullptr;
  void* found = ::dlsym(handle_, symbol);
  if (found == nullptr && trouble_.empty()) trouble_ = fmt::format("{} has no {}", name_, symbol);
  return found;
}

}  // namespace segue::base
