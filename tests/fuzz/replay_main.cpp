// replay FOLDER-OR-FILE...: runs a fuzz target on every file given, or of a folder given, in the
// order of their names. It catches nothing: a target that misbehaves ends it, and the last line
// names the input.

#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "base/file.h"
#include "fuzz.h"

int main(int argc, char** argv) {
  namespace fs = std::filesystem;
  std::vector<std::string> files;
  for (int i = 1; i < argc; ++i) {
    if (!fs::is_directory(argv[i])) {
      files.emplace_back(argv[i]);
      continue;
    }
    for (const fs::directory_entry& entry : fs::directory_iterator(argv[i])) {
      files.push_back(entry.path().string());
    }
  }
  if (files.empty()) {
    std::fprintf(stderr, "usage: %s FOLDER-OR-FILE...; there must be at least one file\n", argv[0]);
    return 2;
  }
  std::ranges::sort(files);
  for (const std::string& file : files) {
    std::printf("%s\n", file.c_str());
    std::fflush(stdout);
    const std::string text = segue::base::read_file(file);
    // Exactly as large as the input, so that a sanitizer sees a read beyond it.
    const std::vector<uint8_t> input(text.begin(), text.end());
    LLVMFuzzerTestOneInput(input.data(), input.size());
  }
  std::printf("%zu inputs\n", files.size());
  return 0;
}
