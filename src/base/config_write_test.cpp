#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/config.h"
#include "base/config_tree.h"
#include "base/test_util.h"

namespace segue::base {
namespace {

enum class Color { kRed, kGreen, kBlue };

struct Leaf {
  double weight = 1.0;
  std::vector<std::string> words;
};
void describe(ConfigVisitor& v, Leaf& c) {
  v.field("weight", c.weight, "");
  v.field("words", c.words, "several words");
}

struct Branch {
  std::vector<Leaf> leaves = {Leaf(), Leaf()};
  int64_t count = 3;
  Leaf extra;
};
void describe(ConfigVisitor& v, Branch& c) {
  v.list("leaves", c.leaves, "a list in a list");
  v.section("extra", c.extra, "described before a plain field on purpose");
  v.field("count", c.count, "");
}

struct Holder {
  std::vector<Branch> branches;
};
void describe(ConfigVisitor& v, Holder& c) { v.list("branches", c.branches); }

struct Tree {
  std::string name = "oak";
  bool evergreen = false;
  Color color = Color::kGreen;
  std::vector<double> heights = {1.0};
  std::vector<int64_t> years;
  Holder holder;
};
void describe(ConfigVisitor& v, Tree& c) {
  v.section("holder", c.holder);
  v.field("name", c.name, "name of the tree");
  v.field("evergreen", c.evergreen, "keeps its leaves");
  v.choice("color", c.color, {"red", "green", "blue"}, "color of the leaves");
  v.field(
      "heights", c.heights,
      "heights over the years in metres, measured at the end of each year by somebody with a long "
      "measuring stick and much patience");
  v.field("years", c.years, "two\nlines");
}

TEST(ToToml, LooksLikeThis) {
  Tree tree;
  tree.holder.branches.resize(1);
  tree.holder.branches[0].leaves.resize(1);
  tree.holder.branches[0].extra.words = {"a \"b\"", "c"};
  EXPECT_EQ(to_toml(tree), R"(name = "oak"  # name of the tree
evergreen = false  # keeps its leaves
color = "green"  # color of the leaves (red | green | blue)
# heights over the years in metres, measured at the end of each year by somebody with a long
# measuring stick and much patience
heights = [1.0]
# two
# lines
years = []

[[holder.branches]]
count = 3

# a list in a list
[[holder.branches.leaves]]
weight = 1.0
words = []  # several words

# described before a plain field on purpose
[holder.branches.extra]
weight = 1.0
words = ["a \"b\"", "c"]  # several words
)");
}

TEST(ToToml, EmptyListIsWritten) {
  Branch branch;
  branch.leaves.clear();
  EXPECT_TRUE(contains(to_toml(branch), "leaves = []"));
}

TEST(ToToml, DoublesNeverLookLikeIntegers) {
  const auto text = [](double value) {
    Leaf leaf;
    leaf.weight = value;
    return to_toml(leaf).substr(9, to_toml(leaf).find('\n') - 9);
  };
  EXPECT_EQ(text(3), "3.0");
  EXPECT_EQ(text(-0.0), "-0.0");
  EXPECT_EQ(text(0.1), "0.1");
  EXPECT_EQ(text(1e-6), "1e-06");
  EXPECT_EQ(text(1e300), "1e+300");
  EXPECT_EQ(text(std::numeric_limits<double>::infinity()), "inf");
}

TEST(ToToml, StringThatIsNotTextIsRefused) {
  Tree tree;
  tree.name = "\xc3\x28";
  const auto error = error_of([&] { to_toml(tree); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::kConfig);
}

TEST(Utf8, Validity) {
  for (const char* good :
       {"", "abc", "\xc3\xa4", "\xe2\x82\xac", "\xf0\x9f\x8c\xb3", "\xed\x9f\xbf"}) {
    EXPECT_TRUE(detail::is_utf8(good));
  }
  for (const char* bad : {"\x80", "\xc3", "\xc0\xaf", "\xe0\x80\xaf", "\xed\xa0\x80",
                          "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xff", "a\xe2\x82"}) {
    EXPECT_FALSE(detail::is_utf8(bad));
  }
}

/// Random trees with the values that are easy to get wrong.
class Generator {
 public:
  explicit Generator(uint64_t seed) : random_(seed) {}

  Tree tree() {
    Tree t;
    t.name = text();
    t.evergreen = below(2) == 1;
    t.color = static_cast<Color>(below(3));
    t.heights.resize(below(4));
    for (double& height : t.heights) height = number();
    t.years.resize(below(4));
    for (int64_t& year : t.years) year = integer();
    t.holder.branches.resize(below(3));
    for (Branch& branch : t.holder.branches) {
      branch.count = integer();
      branch.extra = leaf();
      branch.leaves.resize(below(4));
      for (Leaf& one : branch.leaves) one = leaf();
    }
    return t;
  }

 private:
  size_t below(size_t n) { return random_() % n; }
  Leaf leaf() {
    Leaf l;
    l.weight = number();
    l.words.resize(below(3));
    for (std::string& word : l.words) word = text();
    return l;
  }
  int64_t integer() {
    const int64_t special[] = {0, -1, INT64_MAX, INT64_MIN};
    return below(2) == 0 ? special[below(4)] : static_cast<int64_t>(random_() >> below(64));
  }
  double number() {
    const double special[] = {0.0,
                              -0.0,
                              1.0,
                              1e22,
                              5e-324,
                              std::numeric_limits<double>::max(),
                              std::numeric_limits<double>::infinity()};
    if (below(3) == 0) return special[below(7)];
    const auto value = std::bit_cast<double>(static_cast<uint64_t>(random_()));
    return std::isnan(value) ? 0.5 : value;
  }
  std::string text() {
    std::string result;
    const char* const pieces[] = {
        "a",    "\"", "\\", "\n",       "\t",           "\x01",
        "\x7f", "#",  "'",  "\xc3\xa4", "\xe2\x80\xa8", "\xf0\x9f\x8c\xb3",
        "\r",   "=",  "]",  " ",        "\xef\xbb\xbf"};
    for (size_t i = below(8); i > 0; --i) result += pieces[below(std::size(pieces))];
    if (below(8) == 0) result += '\0';
    return result;
  }

  std::mt19937_64 random_;
};

void expect_same(const Leaf& a, const Leaf& b) {
  EXPECT_EQ(std::bit_cast<uint64_t>(a.weight), std::bit_cast<uint64_t>(b.weight));
  EXPECT_EQ(a.words, b.words);
}

TEST(ToToml, ReadsBackTheSameStruct) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const Tree tree = Generator(seed).tree();
    const std::string text = to_toml(tree);
    EXPECT_EQ(to_toml(tree), text);

    // Defaults that must all be overwritten.
    Tree back = Generator(seed + 1000).tree();
    ConfigSources sources;
    sources.file = temp_path("config.toml");
    put_file(sources.file, text);
    ASSERT_NO_THROW(load_config(back, sources)) << text;

    EXPECT_EQ(to_toml(back), text);
    EXPECT_EQ(back.name, tree.name);
    EXPECT_EQ(back.color, tree.color);
    EXPECT_EQ(back.years, tree.years);
    ASSERT_EQ(back.heights.size(), tree.heights.size());
    for (size_t i = 0; i < tree.heights.size(); ++i) {
      EXPECT_EQ(std::bit_cast<uint64_t>(back.heights[i]), std::bit_cast<uint64_t>(tree.heights[i]));
    }
    ASSERT_EQ(back.holder.branches.size(), tree.holder.branches.size());
    for (size_t i = 0; i < tree.holder.branches.size(); ++i) {
      const Branch &a = tree.holder.branches[i], &b = back.holder.branches[i];
      EXPECT_EQ(a.count, b.count);
      expect_same(a.extra, b.extra);
      ASSERT_EQ(a.leaves.size(), b.leaves.size());
      for (size_t k = 0; k < a.leaves.size(); ++k) expect_same(a.leaves[k], b.leaves[k]);
    }
  }
}

}  // namespace
}  // namespace segue::base
