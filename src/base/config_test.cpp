#include "base/config.h"

#include <cstdlib>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/test_util.h"

namespace segue::base {
namespace {

enum class Layer { kConcat, kGated };

struct Attention {
  int64_t heads = 4;
  double alpha = 0.5;
};
void describe(ConfigVisitor& v, Attention& c) {
  v.field("heads", c.heads, "number of heads");
  v.field("alpha", c.alpha, "scale of the scores");
}

struct Table {
  std::string name = "unnamed";
  int64_t rows = 10;
  Attention inner;
};
void describe(ConfigVisitor& v, Table& c) {
  v.field("name", c.name, "name of the table");
  v.field("rows", c.rows, "number of rows");
  v.section("inner", c.inner);
}

struct Model {
  int64_t layers = 2;
  double dropout = 0.1;
  bool bias = true;
  Layer layer = Layer::kConcat;
  std::vector<int64_t> sizes = {1, 2};
  std::vector<double> rates;
  Attention attention;
};
void describe(ConfigVisitor& v, Model& c) {
  v.field("layers", c.layers, "number of layers");
  v.field("dropout", c.dropout, "share of dropped values");
  v.field("bias", c.bias, "add a bias");
  v.choice("layer", c.layer, {"concat", "gated"}, "which layer");
  v.section("attention", c.attention, "the attention");
  v.field("sizes", c.sizes, "sizes");
  v.field("rates", c.rates, "rates");
}

struct Config {
  std::string preset = "none";
  std::vector<std::string> tags;
  Model model;
  std::vector<Table> tables;
};
void describe(ConfigVisitor& v, Config& c) {
  v.field("preset", c.preset, "named defaults");
  v.field("tags", c.tags, "free words");
  v.section("model", c.model);
  v.list("tables", c.tables, "embedding tables");
}

/// Sets an environment variable for the length of a scope.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) { setenv(name, value, 1); }
  ~Variable() { unsetenv(name_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
};

ConfigSources sources_of(const std::string& toml, std::vector<std::string> sets = {}) {
  ConfigSources sources;
  if (!toml.empty()) {
    sources.file = temp_path("config.toml");
    put_file(sources.file, toml);
  }
  sources.sets = std::move(sets);
  return sources;
}

Config load(const std::string& toml, std::vector<std::string> sets = {}, Config config = {}) {
  load_config(config, sources_of(toml, std::move(sets)));
  return config;
}

/// The message of the Error(kConfig) that loading gives, with the path cut to "config.toml".
std::string message(const std::string& toml, std::vector<std::string> sets = {},
                    Config config = {}) {
  const auto error = error_of([&] { load(toml, std::move(sets), config); });
  if (!error) return "";
  EXPECT_EQ(error->code(), ErrorCode::kConfig);
  std::string text = error->what();
  const std::string path = temp_path("config.toml");
  for (size_t at; (at = text.find(path)) != std::string::npos;) {
    text.replace(at, path.size(), "config.toml");
  }
  return text;
}

TEST(ConfigFile, FillsTheStruct) {
  const Config c = load(R"(
    preset = "small"
    tags = ["a", "b"]
    model.layers = 7
    [model.attention]
    heads = 8
    alpha = 1
    [[tables]]
    name = "items"
    [[tables]]
    rows = 1_000
    inner.heads = 1
  )");
  EXPECT_EQ(c.preset, "small");
  EXPECT_EQ(c.tags, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(c.model.layers, 7);
  EXPECT_EQ(c.model.dropout, 0.1);
  EXPECT_EQ(c.model.attention.heads, 8);
  EXPECT_EQ(c.model.attention.alpha, 1.0);
  ASSERT_EQ(c.tables.size(), 2u);
  EXPECT_EQ(c.tables[0].name, "items");
  EXPECT_EQ(c.tables[0].rows, 10);
  EXPECT_EQ(c.tables[1].rows, 1000);
  EXPECT_EQ(c.tables[1].inner.heads, 1);
}

TEST(ConfigFile, NoSourceKeepsDefaults) {
  const Config c = load("");
  EXPECT_EQ(c.model.sizes, (std::vector<int64_t>{1, 2}));
  EXPECT_TRUE(c.tables.empty());
}

TEST(ConfigFile, AListReplacesTheDefaultAsAWhole) {
  Config defaults;
  defaults.tables = {{"first", 1, {}}, {"second", 2, {}}};
  const Config c = load("[[tables]]\nrows = 5\n", {}, defaults);
  ASSERT_EQ(c.tables.size(), 1u);
  EXPECT_EQ(c.tables[0].name, "unnamed");
  EXPECT_EQ(c.tables[0].rows, 5);
  EXPECT_TRUE(load("tables = []", {}, defaults).tables.empty());
  EXPECT_EQ(load("preset = \"x\"", {}, defaults).tables.size(), 2u);
}

TEST(ConfigFile, NumbersOfTheOtherKind) {
  EXPECT_EQ(load("model.layers = 1e6").model.layers, 1'000'000);
  EXPECT_EQ(load("model.layers = -3.0").model.layers, -3);
  EXPECT_EQ(load("model.sizes = [1e3, 2]").model.sizes, (std::vector<int64_t>{1000, 2}));
  EXPECT_EQ(load("model.rates = [1, 0.5]").model.rates, (std::vector<double>{1.0, 0.5}));
  for (const char* bad : {"2.5", "1e16", "inf", "nan", "-9007199254740992.0"}) {
    EXPECT_TRUE(contains(message(std::string("model.layers = ") + bad), "must be an integer"));
  }
}

TEST(ConfigFile, MissingFileIsNotFoundWithAHint) {
  const std::string there = temp_path("demo.toml");
  put_file(there, "");
  Config config;
  ConfigSources sources;
  sources.file = temp_path("demmo.toml");
  const auto error = error_of([&] { load_config(config, sources); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::kNotFound);
  EXPECT_TRUE(contains(error->what(), sources.file));
  EXPECT_TRUE(contains(error->what(), "did you mean `" + there + "`?"));
  sources.file = temp_path("folder/x");
  EXPECT_TRUE(contains(error_of([&] { load_config(config, sources); })->what(),
                       "give the path of a TOML file"));
}

TEST(ConfigError, BrokenTomlHasFileLineAndColumn) {
  EXPECT_TRUE(contains(message("preset = \"a\"\nmodel.layers = \n"), "config.toml:2:16: "));
  EXPECT_TRUE(contains(message("preset = \"a\"\npreset = \"b\"\n"), "config.toml:2:10: "));
  EXPECT_TRUE(contains(message("[model]\n[model]\n"), "config.toml:2:1: "));
  EXPECT_TRUE(contains(message("preset = \"\xff\"\n"), "config.toml:1:"));
}

TEST(ConfigError, UnknownKeySuggestsTheNearest) {
  EXPECT_EQ(message("[model]\n  layrs = 3\n"),
            "config.toml:2:3: unknown key `model.layrs`; did you mean `model.layers`?");
  EXPECT_EQ(message("[modle]\nlayers = 3\n"),
            "config.toml:1:2: unknown key `modle`; did you mean `model`?");
  EXPECT_EQ(message("[[tables]]\n[[tables]]\nrow = 3\n"),
            "config.toml:3:1: unknown key `tables.1.row`; did you mean `tables.1.rows`?");
}

TEST(ConfigError, UnknownKeyOfAnotherSection) {
  EXPECT_EQ(message("dropout = 0.5"),
            "config.toml:1:1: unknown key `dropout`; did you mean `model.dropout`?");
}

TEST(ConfigError, UnknownKeyThatResemblesNothing) {
  EXPECT_EQ(message("[model.attention]\nxyzzy = 1\n"),
            "config.toml:2:1: unknown key `model.attention.xyzzy`; known here: heads, alpha");
}

TEST(ConfigError, WrongTypesSayExpectedAndFound) {
  EXPECT_EQ(message("model.layers = \"three\""),
            "config.toml:1:16: `model.layers` must be an integer, found the string \"three\"");
  EXPECT_EQ(message("model.dropout = true"),
            "config.toml:1:17: `model.dropout` must be a number, found true");
  EXPECT_EQ(message("model.bias = 1"),
            "config.toml:1:14: `model.bias` must be true or false, found the integer 1");
  EXPECT_EQ(message("preset = 1.5"),
            "config.toml:1:10: `preset` must be a string, found the number 1.5");
  EXPECT_EQ(message("preset = 2020-01-01"),
            "config.toml:1:10: `preset` must be a string, found a date or time");
  EXPECT_EQ(message("model = 3"), "config.toml:1:9: `model` must be a table, found the integer 3");
  EXPECT_EQ(message("model.sizes = 3"),
            "config.toml:1:15: `model.sizes` must be a list of integers, found the integer 3");
  EXPECT_EQ(message("model.sizes = [1, \"x\"]"),
            "config.toml:1:19: `model.sizes.1` must be an integer, found the string \"x\"");
  EXPECT_EQ(message("[tables]\nrows = 3"),
            "config.toml:1:1: `tables` must be a list of tables, found a table");
  EXPECT_EQ(message("tables = [1]"),
            "config.toml:1:11: `tables.0` must be a table, found the integer 1");
}

TEST(ConfigError, BadChoiceListsTheNames) {
  EXPECT_EQ(
      message("model.layer = \"gaetd\""),
      "config.toml:1:15: `model.layer` must be one of concat, gated, found the string \"gaetd\"; "
      "did you mean `gated`?");
  EXPECT_EQ(message("model.layer = 1"),
            "config.toml:1:15: `model.layer` must be one of concat, gated, found the integer 1");
  EXPECT_EQ(load("model.layer = \"gated\"").model.layer, Layer::kGated);
}

TEST(ConfigError, AllMistakesAtOnceInOrder) {
  const Variable variable("SEGUE_MODEL__LAYRS", "3");
  EXPECT_EQ(
      message("[model]\nbias = 3\nlayers = 1\nlayer = \"none\"\n[zoo]\n",
              {"model.dropout=high", "nonsense"}),
      "6 mistakes in the config:\n"
      "config.toml:2:8: `model.bias` must be true or false, found the integer 3\n"
      "config.toml:4:9: `model.layer` must be one of concat, gated, found the string \"none\"\n"
      "config.toml:5:2: unknown key `zoo`; known here: preset, tags, model, tables\n"
      "SEGUE_MODEL__LAYRS: unknown key `model.layrs`; did you mean `model.layers`?\n"
      "--set: `nonsense`: expected section.key=value\n"
      "--set: `model.dropout` must be a number, found the string \"high\"");
}

TEST(ConfigSet, OverridesTheFile) {
  const Config c =
      load("[model]\nlayers = 3\nlayer = \"concat\"\n",
           {"model.layers=4", "model.layers = 5", "model.layer=gated", "model.bias=false",
            "model.sizes=[7, 8]", "model.dropout=1", "tags=['x']"});
  EXPECT_EQ(c.model.layers, 5);
  EXPECT_EQ(c.model.layer, Layer::kGated);
  EXPECT_FALSE(c.model.bias);
  EXPECT_EQ(c.model.sizes, (std::vector<int64_t>{7, 8}));
  EXPECT_EQ(c.model.dropout, 1.0);
  EXPECT_EQ(c.tags, std::vector<std::string>{"x"});
  EXPECT_EQ(load("", {"tags=y"}).tags, std::vector<std::string>{"y"});  // a list of one
  EXPECT_EQ(load("tags = \"z\"").tags, std::vector<std::string>{"z"});
}

TEST(ConfigSet, StringsNeedNoQuotes) {
  const auto preset = [](const std::string& value) { return load("", {"preset=" + value}).preset; };
  EXPECT_EQ(preset("small"), "small");
  EXPECT_EQ(preset("\"in quotes\""), "in quotes");
  EXPECT_EQ(preset("3"), "3");
  EXPECT_EQ(preset("true"), "true");
  EXPECT_EQ(preset("2020-01-01"), "2020-01-01");
  EXPECT_EQ(preset("{a = 1}"), "{a = 1}");
  EXPECT_EQ(preset("a=b # c"), "a=b # c");
  EXPECT_EQ(preset("1\nmodel.layers = 3"), "1\nmodel.layers = 3");
  EXPECT_EQ(preset(""), "");
  EXPECT_TRUE(contains(message("", {"preset=\xff"}), "--set: value of `preset` is not UTF-8"));
}

TEST(ConfigSet, ListItemsByNumber) {
  const std::string file = "[[tables]]\nname = \"a\"\n[[tables]]\nname = \"b\"\n";
  const Config c = load(file, {"tables.1.rows=7", "tables.2.name=c", "tables.2.inner.heads=9"});
  ASSERT_EQ(c.tables.size(), 3u);
  EXPECT_EQ(c.tables[1].name, "b");
  EXPECT_EQ(c.tables[1].rows, 7);
  EXPECT_EQ(c.tables[2].name, "c");
  EXPECT_EQ(c.tables[2].inner.heads, 9);
  EXPECT_EQ(
      message(file, {"tables.5.rows=1"}),
      "--set: `tables.5.rows`: list `tables` has 2 items, counted from 0; `5` is neither one of "
      "them nor the next");
  EXPECT_TRUE(contains(message(file, {"tables.rows=1"}), "`rows` is neither"));
}

TEST(ConfigSet, ItemsOfADefaultListByNumber) {
  Config defaults;
  defaults.tables = {{"first", 1, {}}, {"second", 2, {}}};
  const Config c = load("", {"tables.0.rows=7", "tables.2.rows=9"}, defaults);
  ASSERT_EQ(c.tables.size(), 3u);
  EXPECT_EQ(c.tables[0].name, "first");
  EXPECT_EQ(c.tables[0].rows, 7);
  EXPECT_EQ(c.tables[1].name, "second");
  EXPECT_EQ(c.tables[2].name, "unnamed");
  EXPECT_EQ(c.tables[2].rows, 9);
  EXPECT_EQ(message("", {"tables.7.rows=1"}, defaults),
            "--set: unknown key `tables.7.rows`: list `tables` has 2 items, counted from 0");
}

TEST(ConfigSet, WholeTablesAndLists) {
  const Config c = load("[model]\nlayers = 3\n",
                        {"model={dropout=0.5, attention={heads=2}}", "tables=[{name='x'}]"});
  EXPECT_EQ(c.model.layers, 3);
  EXPECT_EQ(c.model.dropout, 0.5);
  EXPECT_EQ(c.model.attention.heads, 2);
  ASSERT_EQ(c.tables.size(), 1u);
  EXPECT_EQ(c.tables[0].name, "x");
}

TEST(ConfigSet, UnknownKeys) {
  EXPECT_EQ(message("", {"modle.layers=3"}),
            "--set: unknown key `modle.layers`; did you mean `model.layers`?");
  EXPECT_EQ(message("", {"model.attention.hats=3"}),
            "--set: unknown key `model.attention.hats`; did you mean `model.attention.heads`?");
  EXPECT_EQ(message("model.layers = 2", {"model.layers.deep=3"}),
            "--set: `model.layers` must be an integer, found a table");
  for (const char* bad : {"=3", "model..layers=3", "model.=3", "model"}) {
    EXPECT_TRUE(contains(message("", {bad}), "expected section.key=value"));
  }
}

TEST(ConfigEnvironment, BetweenFileAndSet) {
  const Variable layers("SEGUE_MODEL__LAYERS", "4");
  const Variable heads("SEGUE_Model__Attention__HEADS", "5");
  const Variable preset("SEGUE__PRESET", "big");
  const Variable rows("SEGUE_TABLES__0__ROWS", "6");
  const Variable not_ours("SEGUE_CUDA", "OFF");
  const std::string file = "[model]\nlayers = 3\n";
  Config c = load(file);
  EXPECT_EQ(c.model.layers, 4);
  EXPECT_EQ(c.model.attention.heads, 5);
  EXPECT_EQ(c.preset, "big");
  ASSERT_EQ(c.tables.size(), 1u);
  EXPECT_EQ(c.tables[0].rows, 6);
  c = load(file, {"model.layers=9", "model.attention.heads=1"});
  EXPECT_EQ(c.model.layers, 9);
  EXPECT_EQ(c.model.attention.heads, 1);

  ConfigSources sources = sources_of(file);
  sources.use_environment = false;
  Config plain;
  load_config(plain, sources);
  EXPECT_EQ(plain.model.layers, 3);
}

TEST(ConfigEnvironment, Mistakes) {
  {
    const Variable variable("SEGUE_MODLE__LAYERS", "4");
    EXPECT_EQ(message(""),
              "SEGUE_MODLE__LAYERS: unknown key `modle.layers`; did you mean `model.layers`?");
  }
  {
    const Variable variable("SEGUE_MODEL__LAYERS", "many");
    EXPECT_EQ(message(""),
              "SEGUE_MODEL__LAYERS: `model.layers` must be an integer, found the string \"many\"");
  }
  const Variable variable("SEGUE_MODEL__", "1");
  EXPECT_EQ(message(""), "SEGUE_MODEL__: expected a name such as SEGUE_SECTION__KEY");
}

TEST(ConfigPeek, LastSourceWins) {
  EXPECT_EQ(peek_string(sources_of(""), "preset"), std::nullopt);
  const std::string file = "preset = \"file\"\nunknown = 3\n";
  EXPECT_EQ(peek_string(sources_of(file), "preset"), "file");
  const Variable variable("SEGUE__PRESET", "environment");
  EXPECT_EQ(peek_string(sources_of(file), "preset"), "environment");
  EXPECT_EQ(peek_string(sources_of(file, {"preset=set", "broken"}), "preset"), "set");
  EXPECT_EQ(peek_string(sources_of("model = 3"), "model"), std::nullopt);
}

TEST(NearestName, TypingErrorsOnly) {
  const std::vector<std::string> names = {"layers", "lr", "learning_rate", "heads"};
  EXPECT_EQ(nearest_name("layer", names), "layers");
  EXPECT_EQ(nearest_name("Layers", names), "layers");
  EXPECT_EQ(nearest_name("laeyrs", names), "layers");
  EXPECT_EQ(nearest_name("rl", names), "lr");
  EXPECT_EQ(nearest_name("learningrate", names), "learning_rate");
  EXPECT_EQ(nearest_name("id", names), "");
  EXPECT_EQ(nearest_name("zebra", names), "");
  EXPECT_EQ(nearest_name(std::string(10'000, 'x'), names), "");
  EXPECT_EQ(nearest_name("x", {}), "");
}

}  // namespace
}  // namespace segue::base
