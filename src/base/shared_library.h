#pragma once

#include <string>

namespace segue::base {

/// A library that is looked for when it is first needed: a program that never needs it starts
/// without it, and faster. It stays loaded until the program ends.
class SharedLibrary {
 public:
  /// Tries the linker's path, then the folders in which CUDA toolkits are usually installed.
  explicit SharedLibrary(std::string name);

  /// Takes the address of `symbol`, and remembers what is missing.
  template <class Function>
  void find(const char* symbol, Function& function) {
    function = reinterpret_cast<Function>(address(symbol));
  }

  /// Why it cannot be used, and what to do; empty when it can.
  const std::string& trouble() const { return trouble_; }

 private:
  void* address(const char* symbol);

  std::string name_, trouble_;
  void* handle_ = nullptr;
};

}  // namespace segue::base
