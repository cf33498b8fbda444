#include "base/toml_depth.h"

#include <gtest/gtest.h>

#include "base/config.h"
#include "base/test_util.h"

namespace segue::base {
namespace {

std::string dotted(int parts) {
  std::string key = "a";
  for (int i = 1; i < parts; ++i) key += ".a";
  return key;
}

TEST(TomlDepth, KeysOfManyPartsAreFound) {
  const std::string longest = dotted(kMostKeyParts), longer = dotted(kMostKeyParts + 1);
  for (const char* form :
       {"[%]\n", "[[%]]\n", "% = 1\n", "x = {% = 1}\n", "x = {a = 1, % = 2}\n"}) {
    const auto with = [&](const std::string& key) {
      std::string text = form;
      return "# a comment\n" + text.replace(text.find('%'), 1, key);
    };
    EXPECT_EQ(line_of_deep_key(with(longest)), 0) << form;
    EXPECT_EQ(line_of_deep_key(with(longer)), 2) << form;
  }
}

TEST(TomlDepth, DotsElsewhereDoNotCount) {
  const std::string dots(100, '.');
  for (const std::string& text :
       {"a = \"" + dots + "\"", "a = '" + dots + "'", "a = \"\"\"\n\"" + dots + "\\\"\"\"\"",
        "a = '''\n'" + dots + "\n'''", "# " + dots + "\na = 1", "a = \"\\\"" + dots + "\"",
        std::string(
            "a = [1.5, 2.5, 3.5, 4.5, 5.5, 6.5, 7.5, 8.5, 9.5, 1.5, 2.5, 3.5, 4.5, 5.5, 6.5, "
            "7.5, 8.5, 9.5]")}) {
    EXPECT_EQ(line_of_deep_key(text), 0) << text;
  }
}

TEST(TomlDepth, QuotedPartsCountAndStringsWithoutEndHideNothing) {
  std::string quoted;
  for (int i = 0; i <= kMostKeyParts; ++i) quoted += i % 2 == 0 ? "\"a\" ." : "'a'.";
  EXPECT_EQ(line_of_deep_key("[" + quoted + "a]"), 1);
  EXPECT_EQ(line_of_deep_key("x = \"no end\n[" + dotted(100) + "]\n"), 2);
  for (const char* text : {"\"", "'", "\"\"\"", "'''a", "\"\\", "#", ""}) {
    EXPECT_EQ(line_of_deep_key(text), 0);
  }
}

struct Plain {
  int64_t a = 0;
};
void describe(ConfigVisitor& v, Plain& c) { v.field("a", c.a, ""); }

struct Path {
  std::string path;
};
void describe(ConfigVisitor& v, Path& c) { v.field("path", c.path, ""); }

// These ended the process: the stack is not long enough for a call per part.
TEST(TomlDepth, AConfigCannotEndTheProcess) {
  const std::string deep = dotted(200'000);
  for (const ConfigSources& sources :
       {ConfigSources{.file = "c.toml", .text = "[" + deep + "]\n", .use_environment = false},
        ConfigSources{.sets = {"a={" + deep + " = 1}"}, .use_environment = false},
        ConfigSources{.sets = {deep + "=1"}, .use_environment = false}}) {
    Plain config;
    message_of(ErrorCode::kConfig, [&] { load_config(config, sources); });
  }
  // A value that only looks like a key stays the text that it was.
  Path config;
  load_config(config, {.sets = {"path=" + std::string(50, '.')}, .use_environment = false});
  EXPECT_EQ(config.path, std::string(50, '.'));
}

}  // namespace
}  // namespace segue::base
