#include "base/shared_library.h"

#include <cmath>

#include <gtest/gtest.h>

namespace segue::base {
namespace {

TEST(SharedLibraryTest, FindsWhatIsThere) {
  SharedLibrary library("libm.so.6");
  double (*root)(double) = nullptr;
  library.find("sqrt", root);
  EXPECT_EQ(library.trouble(), "");
  ASSERT_NE(root, nullptr);
  EXPECT_EQ(root(9.0), 3.0);
}

TEST(SharedLibraryTest, NamesWhatIsMissing) {
  SharedLibrary nowhere("libsegue-has-no-such.so.1");
  double (*function)(double) = nullptr;
  nowhere.find("sqrt", function);
  EXPECT_EQ(function, nullptr);
  EXPECT_NE(nowhere.trouble().find("libsegue-has-no-such.so.1 is not on this machine"),
            std::string::npos);
  EXPECT_NE(nowhere.trouble().find("LD_LIBRARY_PATH"), std::string::npos);

  SharedLibrary library("libm.so.6");
  library.find("no_such_function", function);
  EXPECT_EQ(library.trouble(), "libm.so.6 has no no_such_function");
}

}  // namespace
}  // namespace segue::base
