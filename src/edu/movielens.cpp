#include <algorithm>
#include <charconv>
#include <map>
#include <string_view>

#include <fmt/format.h>

#include "base/error.h"
#include "base/file.h"
#include "edu/ratings.h"
#include "edu/workload.h"

namespace segue::edu {
namespace {

/// One file of lines with fields. Bytes stay as they are: titles are Latin-1, and nobody asks.
class FieldFile {
 public:
  FieldFile(const std::string& folder, const char* name, char separator, size_t fields)
      : path_(folder + "/" + name), separator_(separator), fields_(fields) {
    if (!base::exists(path_)) {
      fail(ErrorCode::kNotFound,
           fmt::format("{}: not found; --data takes the folder of MovieLens-100K with u.data, "
                       "u.user and u.item. Without it the data is made up",
                       path_));
    }
    text_ = base::read_regular_file(path_);
  }

  /// False at the end. Empty lines are skipped.
  bool next() {
    while (at_ < text_.size()) {
      const size_t end = std::min(text_.find('\n', at_), text_.size());
      std::string_view line(text_.data() + at_, end - at_);
      at_ = end + 1;
      ++line_;
      if (line.ends_with('\r')) line.remove_suffix(1);
      if (line.empty()) continue;
      split(line);
      return true;
    }
    return false;
  }

  std::string_view text(size_t field) const { return values_[field]; }
  int64_t number(size_t field, int64_t least, int64_t most) const {
    const std::string_view value = values_[field];
    int64_t number = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
    if (error != std::errc() || end != value.data() + value.size() || number < least ||
        number > most) {
      wrong(fmt::format("field {} is `{}`, not a whole number from {} to {}", field + 1,
                        value.substr(0, 40), least, most));
    }
    return number;
  }
  [[noreturn]] void wrong(const std::string& what) const {
    fail(ErrorCode::kCorrupt,
         fmt::format("{}:{}: {}; is this MovieLens-100K?", path_, line_, what));
  }

 private:
  void split(std::string_view line) {
    values_.clear();
    for (size_t at = 0; at <= line.size();) {
      const size_t end = std::min(line.find(separator_, at), line.size());
      values_.push_back(line.substr(at, end - at));
      at = end + 1;
    }
    if (values_.size() < fields_) {
      wrong(fmt::format("{} fields where {} are needed", values_.size(), fields_));
    }
  }

  std::string path_;
  char separator_;
  size_t fields_;
  std::string text_;
  size_t at_ = 0;
  int64_t line_ = 0;
  std::vector<std::string_view> values_;
};

void read_users(const std::string& folder, Ratings& out) {
  FieldFile file(folder, "u.user", '|', 4);
  std::map<std::string, int32_t, std::less<>> occupations;
  std::vector<std::string> words(kUserRows);
  while (file.next()) {
    const auto user = static_cast<size_t>(file.number(0, 1, kUserRows) - 1);
    const std::string_view gender = file.text(2);
    if (gender != "M" && gender != "F") file.wrong("field 3 is neither M nor F");
    out.users[user] = {.age = static_cast<float>(file.number(1, 0, 150)), .male = gender == "M"};
    words[user] = file.text(3);
    occupations.emplace(words[user], 0);
    if (std::ssize(occupations) > kOccupationRows) {
      file.wrong(fmt::format("more than {} occupations", kOccupationRows));
    }
  }
  // Words in alphabetical order are 0, 1, ...: the same numbers whatever the order of users.
  int32_t number = 0;
  for (auto& [word, index] : occupations) index = number++;
  for (size_t user = 0; user < words.size(); ++user) {
    if (!words[user].empty()) out.users[user].occupation = occupations.find(words[user])->second;
  }
}

void read_items(const std::string& folder, Ratings& out) {
  constexpr size_t kFirstGenre = 5;
  FieldFile file(folder, "u.item", '|', kFirstGenre + 19);
  while (file.next()) {
    auto& genres = out.genres[static_cast<size_t>(file.number(0, 1, kItemRows) - 1)];
    for (size_t g = 0; g < genres.size(); ++g) {
      genres[g] = static_cast<float>(file.number(kFirstGenre + g, 0, 1));
    }
  }
}

}  // namespace

Ratings read_movielens(const std::string& folder) {
  Ratings out;
  out.source = folder;
  out.users.resize(kUserRows);
  out.genres.resize(kItemRows);
  read_users(folder, out);
  read_items(folder, out);
  FieldFile file(folder, "u.data", '\t', 4);
  while (file.next()) {
    out.ratings.push_back({.user = static_cast<int32_t>(file.number(0, 1, kUserRows) - 1),
                           .item = static_cast<int32_t>(file.number(1, 1, kItemRows) - 1),
                           .stars = static_cast<int32_t>(file.number(2, 1, 5)),
                           .time = file.number(3, 0, int64_t{1} << 40)});
  }
  if (out.ratings.size() < 100) file.wrong("fewer than 100 ratings");
  return out;
}

}  // namespace segue::edu
