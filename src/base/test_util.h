#pragma once

// For tests only.

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <system_error>

#include <gtest/gtest.h>
#include <unistd.h>

#include "base/error.h"

namespace segue::base {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif
/// Limits of tests on seconds are multiplied by this.
inline constexpr double kSlowness = kSanitized ? 5 : 1;

/// A path in a temporary folder that no other test or process uses. The folder is removed when the
/// program ends, unless a test failed: then it stays to be looked at.
inline std::string temp_path(const std::string& name) {
  struct Folder {
    const pid_t owner = ::getpid();
    const std::string path = testing::TempDir() + "segue-test-" + std::to_string(owner);
    Folder() { std::filesystem::create_directories(path); }
    ~Folder() {
      if (::getpid() != owner) return;  // a child of a test
      if (testing::UnitTest::GetInstance()->Failed()) {
        std::fputs(("files of failed tests: " + path + "\n").c_str(), stderr);
        return;
      }
      std::error_code ignored;
      std::filesystem::remove_all(path, ignored);
    }
  };
  static const Folder kFolder;
  const testing::TestInfo* info = testing::UnitTest::GetInstance()->current_test_info();
  std::string test = std::string(info->test_suite_name()) + "." + info->name() + ".";
  std::ranges::replace(test, '/', '-');  // of parametrised tests
  return kFolder.path + "/" + test + name;
}

/// Writes a new file without syncing: quick enough for a file per trial.
inline void put_file(const std::string& path, const std::string& text) {
  std::filesystem::remove(path);  // truncating in place makes some file systems flush
  std::ofstream(path, std::ios::binary) << text;
}

/// The segue::Error that `action` throws; a failed test and nullopt if it throws none.
template <class Action>
std::optional<Error> error_of(Action action) {
  try {
    action();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "no segue::Error was thrown";
  return std::nullopt;
}

/// The message of the segue::Error of this code that `action` throws; a failed test if not so.
template <class Action>
std::string message_of(ErrorCode code, Action action) {
  const std::optional<Error> error = error_of(action);
  if (!error) return {};
  EXPECT_EQ(error->code(), code) << error->what();
  return error->what();
}

/// `text` contains `part`; shows both if not.
inline testing::AssertionResult contains(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return testing::AssertionSuccess();
  return testing::AssertionFailure() << "no <" << part << "> in <" << text << ">";
}

}  // namespace segue::base
