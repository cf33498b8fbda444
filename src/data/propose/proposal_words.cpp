#include "data/propose/proposal_words.h"

#include <algorithm>
#include <cctype>
#include <span>

#include <fmt/format.h>

#include "base/config_tree.h"

namespace segue::data {

std::string as_toml(const std::string& text) { return base::detail::quote_toml(text); }

std::string list_of(const std::vector<std::string>& names) {
  std::vector<std::string> words(names.size());
  std::ranges::transform(names, words.begin(), as_toml);
  return fmt::format("[{}]", fmt::join(words, ", "));
}

std::string per_cent(double share) { return fmt::format("{:.3g} %", 100 * share); }

double share(int64_t part, int64_t whole) {
  return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

std::string as_comment(std::string_view text, size_t longest) {
  std::string comment;
  for (size_t i = 0; i < text.size();) {
    const auto first = static_cast<unsigned char>(text[i]);
    const size_t length = first < 0x80 ? 1 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
    const std::string_view letter = text.substr(i, length);
    if (comment.size() + letter.size() > longest) break;
    const bool control = first < 0x20 || first == 0x7f;
    const bool fine = !control && base::detail::is_utf8(letter);
    comment += fine ? letter : control ? " " : "?";
    i += fine ? length : 1;
  }
  return comment;
}

std::string some_values(const ColumnSample& c) {
  constexpr size_t kShown = 4, kLongest = 24;
  std::vector<std::string> shown;
  for (size_t i = 0; i < std::min(kShown, c.values.size()); ++i) {
    shown.push_back(as_comment(c.values[i], kLongest));
  }
  return fmt::format("{}{}", fmt::join(shown, ", "), c.values.size() > kShown ? ", ..." : "");
}

namespace {

bool is_among(std::span<const char* const> words, const std::string& value) {
  std::string lower;
  for (const char c : value) {
    lower += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return std::ranges::find(words, lower) != words.end();
}

}  // namespace

bool is_yes(const std::string& value) {
  constexpr const char* kYes[] = {"1",        "yes",   "y",       "t",    "true", "pos",
                                  "positive", "right", "success", "good", "ja",   "oui",
                                  "si",       "sí",    "sim",     "tak",  "da",   "correct"};
  return is_among(kYes, value);
}

bool is_no(const std::string& value) {
  constexpr const char* kNo[] = {"0",        "-1",        "no",  "n",    "f",   "false", "neg",
                                 "negative", "wrong",     "bad", "nein", "non", "não",   "nao",
                                 "nie",      "incorrect", "nej", "nee",  "net"};
  return is_among(kNo, value);
}

std::string plain_letters(const std::string& name) {
  std::string plain;
  for (const char c : name) {
    const bool fine = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    plain += fine ? c : '_';
  }
  return plain.empty() ? "x" : plain;
}

std::string plain_name(const std::string& name, std::set<std::string>& taken) {
  std::string plain = plain_letters(name);
  while (!taken.insert(plain).second) plain += "_";
  return plain;
}

}  // namespace segue::data
