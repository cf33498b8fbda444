#include "data/propose/column_words.h"

#include <algorithm>
#include <cctype>
#include <filesystem>

namespace segue::data {

const Words kUserWords = {"user",    "uid",     "customer", "visitor",  "member",   "account",
                          "client",  "reader",  "player",   "buyer",    "listener", "subscriber",
                          "person",  "viewer",  "cookie",   "device",   "profile",  "usr",
                          "student", "learner", "pupil",    "reviewer", "patient"};
const Words kItemWords = {"item",     "iid",     "product", "movie",     "track",   "song",
                          "video",    "article", "sku",     "content",   "doc",     "document",
                          "ad",       "news",    "listing", "book",      "game",    "offer",
                          "asin",     "film",    "show",    "post",      "page",    "hotel",
                          "episode",  "course",  "recipe",  "business",  "problem", "exercise",
                          "question", "isbn",    "venue",   "restaurant"};
const Words kTimeWords = {"time", "timestamp", "ts", "date", "datetime", "created", "unix", "at"};
const Words kHourWords = {"hour", "day", "month", "week", "when"};
const Words kEventWords = {"event",       "action",   "behavior", "behaviour",
                           "interaction", "activity", "operation"};
const Words kTypeWords = {"type", "kind"};
const Words kValueWords = {"rating",  "rate",     "score",  "stars", "value",
                           "played",  "ratio",    "dwell",  "watch", "pct",
                           "percent", "strength", "weight", "grade", "overall"};
const Words kLabelWords = {"click",       "clicked",   "label",     "target",     "purchase",
                           "bought",      "buy",       "converted", "conversion", "like",
                           "liked",       "purchased", "install",   "watched",    "finished",
                           "long",        "success",   "response",  "y",          "correct",
                           "recommended", "completed", "subscribed"};
const Words kOtherWords = {"session", "request", "row", "index", "query"};

namespace {

const std::vector<Words> kSteps = {
    {"view", "pv", "impression", "show", "shown", "detail", "visit", "expose", "seen", "pageview"},
    {"click", "open", "play", "listen", "start", "clickout"},
    {"like", "fav", "favorite", "favourite", "wish", "wishlist", "save", "share", "follow"},
    {"cart", "addtocart", "add", "basket", "checkout", "book"},
    {"buy", "purchase", "order", "transaction", "pay", "conversion", "subscribe", "sale"}};

}  // namespace

std::vector<std::string> words_of(const std::string& name) {
  std::vector<std::string> words(1);
  for (size_t i = 0; i < name.size(); ++i) {
    const auto c = static_cast<unsigned char>(name[i]);
    const bool upper = std::isupper(c) != 0;
    const bool after_lower = i > 0 && std::islower(static_cast<unsigned char>(name[i - 1])) != 0;
    if (std::isalnum(c) == 0 || (upper && after_lower)) words.emplace_back();
    if (std::isalnum(c) != 0) words.back() += static_cast<char>(std::tolower(c));
  }
  // userid is user, id
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string stem =
        words[i].substr(0, words[i].size() - std::min<size_t>(2, words[i].size()));
    const bool known = kUserWords.contains(stem) || kItemWords.contains(stem);
    if (known && words[i].ends_with("id")) {
      words[i] = stem;
      words.emplace_back("id");
    }
  }
  std::erase(words, "");
  return words;
}

bool any_word(const std::string& name, const Words& of) {
  return std::ranges::any_of(words_of(name),
                             [&](const std::string& word) { return of.contains(word); });
}

bool is_of_users(const std::string& file) {
  std::string stem = std::filesystem::path(file).filename().string();
  stem.erase(std::min(stem.find('.'), stem.size()));
  return std::ranges::any_of(words_of(stem), [](std::string word) {
    if (word.ends_with('s')) word.pop_back();
    return kUserWords.contains(word);
  });
}

int step_of(const std::string& kind) {
  const std::vector<std::string> words = words_of(kind);
  for (int step = static_cast<int>(kSteps.size()) - 1; step >= 0; --step) {
    const bool found = std::ranges::any_of(words, [&](const std::string& word) {
      return kSteps[static_cast<size_t>(step)].contains(word);
    });
    if (found) return step;
  }
  return -1;
}

}  // namespace segue::data
