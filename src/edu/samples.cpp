#include "edu/samples.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "edu/key_hash.h"

namespace segue::edu {
namespace {

/// Which ratings are trained on.
std::vector<bool> choose_training(const Ratings& data, uint64_t seed, Split split) {
  std::vector<uint64_t> key(data.ratings.size());
  Draws draw(seed, 4);
  for (size_t i = 0; i < key.size(); ++i) {
    key[i] = split == Split::kByTime ? static_cast<uint64_t>(data.ratings[i].time) : draw.bits();
  }
  std::vector<size_t> order(key.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, {}, [&](size_t i) { return key[i]; });
  std::vector<bool> training(key.size(), false);
  for (size_t i = 0; i < order.size() * 8 / 10; ++i) training[order[i]] = true;
  return training;
}

struct UserStatistics {
  double stars = 0;
  int64_t ratings = 0;
};

class SampleMaker {
 public:
  SampleMaker(const Ratings& data, const std::vector<bool>& training, int64_t history)
      : data_(data), history_(history), users_(data.users.size()) {
    for (size_t i = 0; i < data.ratings.size(); ++i) {
      if (!training[i]) continue;
      UserStatistics& user = users_[static_cast<size_t>(data.ratings[i].user)];
      user.stars += data.ratings[i].stars;
      most_ = std::max(most_, ++user.ratings);
    }
    const auto n = static_cast<double>(data.users.size());
    for (const User& user : data.users) mean_age_ += static_cast<double>(user.age) / n;
    double variance = 0;
    for (const User& user : data.users) {
      variance += std::pow(static_cast<double>(user.age) - mean_age_, 2) / n;
    }
    age_deviation_ = std::sqrt(variance) + 1e-8;
  }

  Samples make(const std::vector<size_t>& which, const std::vector<std::vector<size_t>>& earlier) {
    Samples out;
    out.history = history_;
    const size_t n = which.size();
    out.ids.resize(3 * n);
    out.crosses.assign(3 * n * static_cast<size_t>(history_), -1);
    for (size_t s = 0; s < n; ++s) {
      const Rating& r = data_.ratings[which[s]];
      add_dense(r, out.dense);
      out.labels.push_back(r.positive() ? 1.0F : 0.0F);
      if (!data_.truth.empty()) out.truth.push_back(data_.truth[which[s]]);
      out.ids[s] = r.user;
      out.ids[n + s] = r.item;
      out.ids[2 * n + s] = data_.users[static_cast<size_t>(r.user)].occupation;
      for (size_t k = 0; k < earlier[s].size(); ++k) {
        const Rating& before = data_.ratings[earlier[s][k]];
        const size_t at = s * static_cast<size_t>(history_) + k,
                     bag = n * static_cast<size_t>(history_);
        out.crosses[at] = pack_key(r.user, before.item);
        out.crosses[bag + at] = pack_key(r.item, before.item);
        out.crosses[2 * bag + at] = pack_key(r.item, before.item, before.stars);
      }
    }
    return out;
  }

 private:
  void add_dense(const Rating& r, std::vector<float>& to) const {
    const User& user = data_.users[static_cast<size_t>(r.user)];
    const UserStatistics& seen = users_[static_cast<size_t>(r.user)];
    const double mean = seen.ratings > 0 ? seen.stars / static_cast<double>(seen.ratings) : 3;
    to.push_back(static_cast<float>((static_cast<double>(user.age) - mean_age_) / age_deviation_));
    to.push_back(user.male ? 1.0F : 0.0F);
    to.push_back(static_cast<float>((mean - 3) / 2));
    to.push_back(
        static_cast<float>(static_cast<double>(seen.ratings) / static_cast<double>(most_)));
    const auto& genres = data_.genres[static_cast<size_t>(r.item)];
    to.insert(to.end(), genres.begin(), genres.end());
  }

  const Ratings& data_;
  int64_t history_;
  std::vector<UserStatistics> users_;
  int64_t most_ = 1;
  double mean_age_ = 0, age_deviation_ = 1;
};

}  // namespace

double Samples::positive_share() const {
  return std::accumulate(labels.begin(), labels.end(), 0.0) / static_cast<double>(count());
}

double Dataset::majority() const {
  return std::max(validation.positive_share(), 1 - validation.positive_share());
}

double Dataset::bayes() const {
  if (validation.truth.empty()) return 0;
  double sum = 0;
  for (const double p : validation.truth) sum += std::max(p, 1 - p);
  return sum / static_cast<double>(validation.count());
}

Dataset make_dataset(const Ratings& data, uint64_t seed, int64_t history, Split split) {
  const std::vector<bool> training = choose_training(data, seed, split);
  // In order of time, so that a user's earlier ratings are those that were met before.
  std::vector<size_t> order(data.ratings.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, {}, [&](size_t i) { return data.ratings[i].time; });
  std::vector<std::vector<size_t>> met(data.users.size());
  std::vector<size_t> which[2];
  std::vector<std::vector<size_t>> earlier[2];
  for (const size_t i : order) {
    const Rating& r = data.ratings[i];
    std::vector<size_t>& of_user = met[static_cast<size_t>(r.user)];
    std::vector<size_t> newest;
    for (auto e = of_user.rbegin(); e != of_user.rend() && std::ssize(newest) < history; ++e) {
      if (data.ratings[*e].time < r.time) newest.push_back(*e);  // not those of the same second
    }
    const size_t part = training[i] ? 0 : 1;
    which[part].push_back(i);
    earlier[part].push_back(std::move(newest));
    of_user.push_back(i);
  }
  SampleMaker maker(data, training, history);
  return {.train = maker.make(which[0], earlier[0]),
          .validation = maker.make(which[1], earlier[1])};
}

}  // namespace segue::edu
