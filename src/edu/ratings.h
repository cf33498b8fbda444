#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <string>
#include <utility>
#include <vector>

#include "base/rng.h"

namespace segue::edu {

inline constexpr int64_t kGenres = 12;  // of an item's flags, those that become dense features

struct Rating {
  int32_t user = 0, item = 0;  // from 0
  int32_t stars = 0;           // 1 to 5
  int64_t time = 0;

  bool positive() const { return stars >= 4; }
};

struct User {
  float age = 0;
  bool male = false;
  int32_t occupation = 0;  // below kOccupationRows
};

/// A log of the shape of MovieLens-100K.
struct Ratings {
  std::string source;
  std::vector<Rating> ratings;
  std::vector<User> users;
  std::vector<std::array<float, kGenres>> genres;  // of items
  /// Of each rating, the probability that it is positive; empty where nobody knows.
  std::vector<double> truth;
};

/// The files u.data, u.user and u.item of a folder. Error(kCorrupt) with file and line.
Ratings read_movielens(const std::string& folder);

/// As many users, items and ratings, made up: the probability of each label is known.
Ratings make_ratings(uint64_t seed, int64_t count = 100'000);

/// Random numbers of one purpose, in order.
class Draws {
 public:
  Draws(uint64_t seed, uint64_t purpose) : key_(base::philox_key(seed, purpose)) {}
  uint64_t bits() {
    const base::PhiloxCounter r = base::philox(
        {static_cast<uint32_t>(next_), static_cast<uint32_t>(next_ >> 32), 0, 0}, key_);
    ++next_;
    return static_cast<uint64_t>(r.x) << 32 | r.y;
  }
  double uniform() { return static_cast<double>(bits() >> 11) * 0x1p-53; }  // [0, 1)
  double normal() {
    const double radius = std::sqrt(-2 * std::log(1 - uniform()));
    return radius * std::cos(2 * std::numbers::pi * uniform());
  }
  int64_t below(int64_t n) { return static_cast<int64_t>(bits() % static_cast<uint64_t>(n)); }
  template <class T>
  void shuffle(std::vector<T>& values) {
    for (size_t i = values.size(); i > 1; --i) {
      std::swap(values[i - 1], values[static_cast<size_t>(below(static_cast<int64_t>(i)))]);
    }
  }

 private:
  base::PhiloxKey key_;
  uint64_t next_ = 0;
};

}  // namespace segue::edu
