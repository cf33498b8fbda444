#include "cli/bus_error.h"

#include <csignal>
#include <cstddef>
#include <filesystem>
#include <string>

#include <gtest/gtest.h>

#include "base/file.h"
#include "base/test_util.h"
#include "cli/app.h"

namespace segue::cli {
namespace {

/// Reads a mapped file that has been cut off meanwhile.
void read_behind_the_end(const std::string& path) {
  const base::MappedFile file(path);
  std::filesystem::resize_file(path, 0);
  const volatile std::byte* const bytes = file.bytes().data();
  static_cast<void>(bytes[5000]);
}

TEST(BusErrorDeathTest, NamesTheFileThatBecameShorter) {
  const std::string path = base::temp_path("column.npy");
  base::put_file(path, std::string(10000, 'x'));
  EXPECT_EXIT(
      {
        explain_bus_errors();
        read_behind_the_end(path);
      },
      testing::ExitedWithCode(kExitFile), "segue: error: .*column.npy: became shorter");
}

TEST(BusErrorDeathTest, OthersEndTheProcessAsEver) {
  EXPECT_EXIT(
      {
        explain_bus_errors();
        ::raise(SIGBUS);
        ::raise(SIGBUS);
      },
      testing::KilledBySignal(SIGBUS), "");
}

}  // namespace
}  // namespace segue::cli
