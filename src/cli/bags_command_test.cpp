// Attributes of several values, from CSV files over a proposed schema and config to scores.

#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "cli/run_test_util.h"
#include "cli/test_util.h"

namespace segue::cli {
namespace {

using base::contains;

constexpr int64_t kUsers = 40, kFilms = 60;

/// Whoever sees a war film likes it, whatever else it is.
std::string make_log() {
  const std::string folder = base::temp_path(unique("bags"));
  base::make_folders(folder + "/raw");
  const char* const genres[] = {"Action", "Comedy", "Crime", "Drama", "War"};
  std::mt19937_64 random(1);
  std::string films = "movieId,title,genres\n", ratings = "userId,movieId,rating,timestamp\n";
  std::string users = "uid,tastes\n";
  std::vector<bool> war;
  for (int64_t film = 0; film < kFilms; ++film) {
    std::string list;
    const int64_t bits = film * 11 % 31 + 1;
    for (int64_t g = 0; g < 5; ++g) {
      if ((bits >> g & 1) != 0) list += (list.empty() ? "" : "|") + std::string(genres[g]);
    }
    war.push_back(contains(list, "War"));
    films += fmt::format("{},Film {},{}\n", film, film, list);
  }
  for (int64_t user = 0; user < kUsers; ++user) {
    users += fmt::format("{},{};{}\n", user, user % 3 + 1, user % 7 + 1);
    for (int64_t i = 0; i < 60; ++i) {
      const auto film = static_cast<int64_t>(random() % kFilms);
      const bool liked = war[static_cast<size_t>(film)] != (random() % 20 == 0);
      ratings += fmt::format("{},{},{},{}\n", user, film, liked ? 5 : 1,
                             1'100'000'000 + i * 40'000 + user);
    }
  }
  base::put_file(folder + "/raw/ratings.csv", ratings);
  base::put_file(folder + "/raw/movies.csv", films);
  base::put_file(folder + "/users.csv", users);
  return folder;
}

TEST(BagsCommand, FromALogToScores) {
  const std::string folder = make_log(), raw = folder + "/raw", store = folder + "/store";
  const Outcome schema = run({"init", "--raw", raw});
  ASSERT_EQ(schema.code, 0) << schema.err;
  EXPECT_TRUE(contains(schema.out, "separator = \"|\"")) << schema.out;
  EXPECT_TRUE(contains(schema.out, "max_values = ")) << schema.out;
  // Users have several values, too.
  base::put_file(raw + "/users.csv", base::read_file(folder + "/users.csv"));
  base::put_file(folder + "/schema.toml", schema.out + R"(
[[user_attributes]]
name = "tastes"
file = "users.csv"
user = "uid"
value = "tastes"
separator = ";"
max_values = 2
)");
  const Outcome prepared =
      run({"prep", "--raw", raw, "--out", store, "--schema", folder + "/schema.toml", "--history",
           "16", "--min-history", "4", "--set", "attributes.0.max_values=3", "--verify"});
  ASSERT_EQ(prepared.code, 0) << prepared.err;
  EXPECT_TRUE(contains(prepared.err, "items with more than 3 values of genres")) << prepared.err;

  const Outcome inspected = run({"inspect", store});
  ASSERT_EQ(inspected.code, 0) << inspected.err;
  EXPECT_TRUE(contains(inspected.out, "5, 3 of one")) << inspected.out;
  EXPECT_FALSE(contains(inspected.out, "\n  genres_2"))  // a line of its own
      << "columns of one attribute belong together" << inspected.out;

  const Outcome proposed = run({"init", store});
  ASSERT_EQ(proposed.code, 0) << proposed.err;
  EXPECT_TRUE(contains(proposed.out,
                       "{ history = \"genres\", candidate = \"item_candidate_genres\", table = "
                       "\"genres\", values = 3 }"))
      << proposed.out;
  EXPECT_TRUE(contains(proposed.out, "{ name = \"tastes\", table = \"tastes\", values = 2 }"));
  EXPECT_TRUE(contains(proposed.out, "{ name = \"genres\", rows = 6 }"));
  EXPECT_TRUE(contains(proposed.out, "{ name = \"tastes\", rows = 8 }"));
  EXPECT_TRUE(contains(proposed.out, "user_genres_1_rate"));
  EXPECT_FALSE(contains(proposed.out, "user_genres_2_rate"));
  const std::string config = folder + "/my.toml";
  base::put_file(config, proposed.out);

  const auto refused = [&](const std::string& setting) {
    const Outcome o = run({"train", config, "--run", folder + "/refused", "--set", setting});
    EXPECT_NE(o.code, 0) << setting;
    return o.err;
  };
  EXPECT_TRUE(contains(refused("model.additional.0.values=4"),
                       "reads 4 values of `genres`, and the store keeps 3; set values = 3"));
  EXPECT_TRUE(contains(refused("model.additional.0.values=1"),
                       "of which the store keeps 3 values, in columns `genres_1` to `genres_3`"));
  EXPECT_TRUE(contains(refused("model.additional.0.history=genre"),
                       "reads column `genre_1`, which samples of the store do not have; did you "
                       "mean `genres_1`?"));
  EXPECT_TRUE(contains(refused("model.contextual.0.values=2"), "values of `uid`, and the store "));
  EXPECT_TRUE(contains(refused("sparse.tables.3.rows=4"),
                       "(table `genres` has 4; `genres` has ids up to 5)"));
  EXPECT_TRUE(contains(refused("model.additional.0.values=0"), "model.additional.values"));

  const std::string trained = folder + "/run";
  const auto train = [&](const std::string& to, const std::string& steps) {
    const Outcome o = run({"train", config, "--run", to, "--steps", steps, "--set",
                           "train.threads=1", "--allow-config-change", "train.steps"});
    ASSERT_EQ(o.code, 0) << o.err;
  };
  train(trained, "20");
  train(trained, "40");
  train(folder + "/whole", "40");
  EXPECT_EQ(lasting_metrics(trained).back(), lasting_metrics(folder + "/whole").back());
  // The run that ended at step 20 was evaluated there: its metrics remember that, its model does
  // not.
  const auto model = [](const std::string& run) {
    std::map<std::string, std::string> files = newest_arrays(run);
    EXPECT_EQ(std::erase_if(files,
                            [](const auto& f) { return f.first.ends_with("metrics.safetensors"); }),
              1u);
    EXPECT_EQ(files.size(), 2u);
    return files;
  };
  EXPECT_TRUE(model(trained) == model(folder + "/whole")) << "resumed bit for bit";

  const Outcome scored = run({"score", trained, "--user", "3", "--top", "10"});
  ASSERT_EQ(scored.code, 0) << scored.err;
  const Outcome planned = run({"plan", config});
  ASSERT_EQ(planned.code, 0) << planned.err;

  // The same columns in a DLRM.
  base::put_file(folder + "/dlrm.toml", R"(
[model]
family = "dlrm"
tasks = [{ name = "liked", bit = 1 }]
[model.dlrm]
dense = ""
label = "item_action_weight"
top = [16]
features = [
  { column = "uid", table = "user" },
  { column = "tastes", table = "taste", values = 2 },
  { column = "genres", table = "genre", of = "event", values = 3 },
  { column = "item_candidate_genres", table = "genre", of = "candidate", values = 3 },
]
[sparse]
dim = 8
tables = [{ name = "user", rows = 40 }, { name = "taste", rows = 8 }, { name = "genre", rows = 6 }]
[optimizer]
lr = 1e-2
sparse_lr = 0.1
[data]
store = ")" + store + R"("
batch_size = 64
[data.stream]
min_history = 4
window_seconds = 604800
[train]
epochs = 6
device = "cpu"
arena_gib = 0.25
)");
  const Outcome dlrm = run({"train", folder + "/dlrm.toml", "--run", folder + "/dlrm"});
  ASSERT_EQ(dlrm.code, 0) << dlrm.err;
  const Outcome more = run({"train", folder + "/dlrm.toml", "--run", folder + "/more", "--set",
                            "model.dlrm.features.1.values=3"});
  EXPECT_TRUE(contains(more.err, "reads 3 values of `tastes`, and the store keeps 2")) << more.err;
}

}  // namespace
}  // namespace segue::cli
